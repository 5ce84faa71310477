"""Append: lists of entries."""

from __future__ import annotations

from typing import Iterator, Optional

import numpy as np

from ..answers import Entries
from ..epoch import Moment, millis
from ..errors import AskError
from ..layout import TRAILER_LEN
from ..spec import Kind, StoreSpec, pow2, register
from ..store import Store


def _is_sound(spec: StoreSpec) -> bool:
    fits = 0 < spec.entry_len <= min(252, spec.batch_len - 8) and spec.entry_len % 4 == 0
    return pow2(spec.lists, 16) and pow2(spec.ring, 30) and 16 <= spec.batch_len and pow2(spec.batch_len, 12) and fits


def _dtype(spec: StoreSpec) -> np.dtype:  # type: ignore[type-arg]
    entries = ("entries", "u1", (spec.batch_len - TRAILER_LEN,))
    return np.dtype([entries, ("sequence", ">u4"), ("count", "u1"), ("check", "u1", (3,))])


register(
    Kind(
        name="append",
        number=5,
        fields={1: "lists", 2: "ring", 3: "batch_len", 4: "entry_len", 5: "notify"},
        element_len=lambda spec: spec.batch_len,
        shape=lambda spec: (spec.lists, spec.ring),
        is_sound=_is_sound,
        dtype=_dtype,
    )
)


class AppendStore(Store, kind="append"):
    """Lists of entries."""

    def read(
        self, list: int = 0, from_sequence: Optional[int] = None, *, at: Optional[Moment] = None
    ) -> Entries:
        """What is in a list, oldest first; or what came with the batch of a sequence and after it; or what came in the
        epoch of the moment `at`."""
        self._check(list)
        if at is not None:
            if from_sequence is not None:
                raise AskError("from_sequence is for what is in the list now: give either it or a moment")
            moment = millis(at)
            return [*self.source.entries_by_epoch(self.spec, list, (moment, moment + 1))][-1]
        if from_sequence is not None and not 1 <= from_sequence < 1 << 32:
            raise AskError(f"from_sequence is {from_sequence}, but must be 1 to 4294967295")
        return self.source.entries(self.spec, list, from_sequence or 0)

    def series(self, list: int, since: Moment, until: Optional[Moment] = None) -> Iterator[Entries]:
        """What came in a list in each epoch of the moments from `since` to before `until`, the oldest first."""
        self._check(list)
        yield from self.source.entries_by_epoch(self.spec, list, (millis(since), millis(until)))

    def _check(self, list: int) -> None:
        if not 0 <= list < self.spec.lists:
            raise AskError(f"store {self.name!r} has no list {list}: there are lists 0 to {self.spec.lists - 1}")
