"""Stores. `kinds` has what is of one kind. Where their memory is (a region file, a running collector) is their source's matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Optional, Protocol, Tuple, Type, Union

import numpy as np
from numpy.typing import NDArray

from . import layout
from .answers import Entries
from .epoch import Epoch, Moment, millis
from .key import KeyArray, KeyLike
from .spec import StoreSpec

Keys = Union[KeyLike, Iterable[KeyLike], KeyArray]
#: The first moment, and the first after the span: milliseconds since 1970; 0 = without this limit.
Span = Tuple[int, int]


class Source(Protocol):
    """Answers queries for the stores of one place."""

    def raw(self, spec: StoreSpec) -> NDArray[np.uint8]:
        """The bytes of a store's region."""

    def ask(self, spec: StoreSpec, keys: KeyArray, at: int, **more: Any) -> Optional[Reply]:
        """What a collector answers; `None` where there is memory alone."""

    def series(self, spec: StoreSpec, keys: KeyArray, span: Span, **more: Any) -> Iterator[Reply]:
        """What a collector answers for each epoch of a span of time, the oldest first. Raises `AskError` where there is
        memory alone."""

    def epochs(self, spec: StoreSpec, span: Span) -> List[Epoch]:
        """The epochs of a span of time, the oldest first. Raises `AskError` where there is memory alone."""

    def entries(self, spec: StoreSpec, list: int, from_sequence: int) -> Entries:
        """The entries of a list from a sequence, or from its oldest batch (0)."""

    def entries_by_epoch(self, spec: StoreSpec, list: int, span: Span) -> Iterator[Entries]:
        """The entries of a list in each epoch of a span of time, the oldest first; one at least. Raises `AskError` where
        there is memory alone."""


@dataclass(frozen=True)
class Reply:
    """What a collector answers."""

    #: One message for each key.
    answers: List[Any]
    #: The epoch that they are from.
    epoch: Optional[Epoch]


@dataclass(frozen=True)
class Store:
    """A store: its description and its queries."""

    spec: StoreSpec
    #: Increases whenever the store's memory is replaced.
    generation: int
    source: Source

    def __init_subclass__(cls, kind: str) -> None:
        _KINDS[kind] = cls

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    def epochs(self, since: Optional[Moment] = None, until: Optional[Moment] = None) -> List[Epoch]:
        """The epochs of the moments from `since` to before `until`, the oldest first: those in memory, and those that
        the history has. Raises `AskError` if the store has no epochs, and for region files.
        """
        return self.source.epochs(self.spec, (millis(since), millis(until)))

    def array(self) -> NDArray[np.void]:
        """Its whole memory as a structured array, element by element (`docs/memory-layout.md`).

        Of a region file it is the memory itself, which changes while a collector runs: copy it first (`.copy()`) to
        compute with numbers that hold still. From a running collector it is a copy, fetched piece by piece.
        """
        return layout.elements(self.spec, self.source.raw(self.spec))


_KINDS: Dict[str, Type[Store]] = {}


def store_of(spec: StoreSpec, generation: int, source: Source) -> Store:
    """The store for a description."""
    return _KINDS[spec.kind](spec, generation, source)


def column(answers: List[Any], name: str, of: Any) -> Any:
    """A field of all messages."""
    return np.array([getattr(answer, name) for answer in answers], dtype=of)


def votes(answers: List[Any]) -> Tuple[Any, Any]:
    """Matching copies that agree with each answer, and those that differ."""
    return column(answers, "agreeing", np.uint8), column(answers, "differing", np.uint8)
