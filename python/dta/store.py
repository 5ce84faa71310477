"""The five kinds of stores. Where their memory is (a region file, a running collector) is their source's matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Optional, Protocol, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from . import layout
from .answers import CounterAnswers, Entries, KeyWriteAnswers, PathAnswers, SketchAnswers
from .errors import AskError
from .key import KeyArray, KeyLike, keys as key_array
from .spec import StoreSpec

Keys = Union[KeyLike, Iterable[KeyLike], KeyArray]


class Source(Protocol):
    """Answers queries for the stores of one place."""

    def raw(self, spec: StoreSpec) -> NDArray[np.uint8]:
        """The bytes of a store's region."""

    def key_write(self, spec: StoreSpec, keys: KeyArray, policy: str, at_least: int) -> KeyWriteAnswers:
        """Values; `policy` is `first`, `plurality` or `at-least`."""

    def path(self, spec: StoreSpec, keys: KeyArray) -> PathAnswers:
        """Paths."""

    def counter(self, spec: StoreSpec, keys: KeyArray) -> CounterAnswers:
        """Counts."""

    def sketch(self, spec: StoreSpec, keys: KeyArray, epoch: int) -> SketchAnswers:
        """Estimates."""

    def entries(self, spec: StoreSpec, list: int, from_sequence: int) -> Entries:
        """The entries of a list from a sequence, or from its oldest batch (0)."""


@dataclass(frozen=True)
class Store:
    """A store: its description and its queries."""

    spec: StoreSpec
    #: Increases whenever the store's memory is replaced.
    generation: int
    source: Source

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    def array(self) -> NDArray[np.void]:
        """Its whole memory as a structured array, element by element (`docs/memory-layout.md`).

        Of a region file it is the memory itself, which changes while a collector runs: copy it first (`.copy()`) to
        compute with numbers that hold still. From a running collector it is a copy, fetched piece by piece.
        """
        return layout.elements(self.spec, self.source.raw(self.spec))


class KeyWriteStore(Store):
    """The last value of keys."""

    def query(self, keys: Keys, policy: str = "first") -> KeyWriteAnswers:
        """The last value of each key.

        `policy` says how one answer is made of several copies: `first` that matches, `plurality`, or `at-least=N`
        that agree.
        """
        return self.source.key_write(self.spec, key_array(keys), *_policy(policy, self.spec.redundancy))


class PostcardingStore(Store):
    """Paths of keys."""

    def query(self, keys: Keys) -> PathAnswers:
        """The path of each key. Of copies that differ, the one with most hops."""
        return self.source.path(self.spec, key_array(keys))


class KeyIncrementStore(Store):
    """Counters of keys."""

    def query(self, keys: Keys) -> CounterAnswers:
        """What was counted of each key."""
        return self.source.counter(self.spec, key_array(keys))


class SketchMergeStore(Store):
    """Estimates of keys, by epoch."""

    def query(self, keys: Keys, epoch: int) -> SketchAnswers:
        """The estimate of each key in one epoch."""
        if not 0 <= epoch < 1 << 32:
            raise AskError(f"epoch is {epoch}, but must be 0 to 4294967295")
        return self.source.sketch(self.spec, key_array(keys), epoch)


class AppendStore(Store):
    """Lists of entries."""

    def read(self, list: int = 0, from_sequence: Optional[int] = None) -> Entries:
        """What is in a list, oldest first; or what came with the batch of a sequence and after it."""
        if not 0 <= list < self.spec.lists:
            raise AskError(f"store {self.name!r} has no list {list}: there are lists 0 to {self.spec.lists - 1}")
        if from_sequence is not None and not 1 <= from_sequence < 1 << 32:
            raise AskError(f"from_sequence is {from_sequence}, but must be 1 to 4294967295")
        return self.source.entries(self.spec, list, from_sequence or 0)


_KINDS = {
    "key-write": KeyWriteStore,
    "postcarding": PostcardingStore,
    "append": AppendStore,
    "key-increment": KeyIncrementStore,
    "sketch-merge": SketchMergeStore,
}


def store_of(spec: StoreSpec, generation: int, source: Source) -> Store:
    """The store for a description."""
    return _KINDS[spec.kind](spec, generation, source)


def _policy(policy: str, copies: int) -> Tuple[str, int]:
    if policy in ("first", "plurality"):
        return policy, 0
    name, _, number = policy.partition("=")
    if name == "at-least" and number.isascii() and number.isdigit():
        if 1 <= int(number) <= copies:
            return name, int(number)
        raise AskError(f"at-least is {number}, but the store has {copies} copies: give 1 to {copies}")
    raise AskError(f"policy is {policy!r}, but must be first, plurality or at-least=N")
