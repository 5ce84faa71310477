"""Reads an append list from its ring, like `crates/memory/src/reader/append.rs` does.

A list is looked at as a whole: what lies at each place, and whether it is a batch of this list. A batch that is missing
or damaged while a later one is there is looked for once more after the time in which frames can overtake each other, and
given up then. Damaged places behind the last batch are counted too, but the reader stays before them: the batches that
belong there may not have been written yet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from . import layout
from .answers import Entries
from .spec import StoreSpec

#: Number of sequences in a cycle: 1 to 2^32 - 1.
_CYCLE = (1 << 32) - 1
#: Seconds after which a missing batch is given up: one that was merely overtaken has arrived by then.
_PATIENCE = 0.05


def forward(sequence: int, n: int) -> int:
    """The sequence `n` batches after `sequence`, across the wrap."""
    return (sequence - 1 + n) % _CYCLE + 1


def distance(start: int, end: int) -> int:
    """How many batches `end` comes after `start`, across the wrap."""
    return (end - start) % _CYCLE


def is_after(a: int, b: int) -> bool:
    """Whether `a` is the later one: less than half a cycle after `b`."""
    return a != b and distance(b, a) < _CYCLE // 2


def _are_after(a: Union[int, NDArray[np.int64]], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """`is_after` for arrays; 0 (no batch) is after none."""
    ahead = (a - b) % _CYCLE
    after: NDArray[np.bool_] = (np.asarray(a) != 0) & (ahead != 0) & (ahead < _CYCLE // 2)
    return after


@dataclass(frozen=True)
class Ring:
    """A copy of one list's ring."""

    raw: NDArray[np.uint8]
    #: Sequence of the batch at each place; 0 if there is none.
    sequence: NDArray[np.int64]
    #: Entries of the batch at each place.
    count: NDArray[np.uint8]
    #: Whether the place holds bytes other than a batch that belongs there.
    torn: NDArray[np.bool_]

    @classmethod
    def copy(cls, spec: StoreSpec, data: NDArray[np.uint8], list: int) -> Ring:
        """Copies a list's ring from its store's memory, and examines all places."""
        return cls.look(spec, np.array(data.reshape(spec.lists, spec.ring, spec.batch_len)[list]), list)

    @classmethod
    def look(cls, spec: StoreSpec, raw: NDArray[np.uint8], list: int) -> Ring:
        """Examines all places of a list; `raw` are its batches, of shape (ring, batch length)."""
        batches = raw.view(layout.dtype(spec)).reshape(-1)
        sequence = batches["sequence"].astype(np.int64)
        check = batches["check"].astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
        used = batches["count"].astype(np.int64) * spec.entry_len
        valid = (sequence != 0) & (used != 0) & (used <= spec.batch_len - layout.TRAILER_LEN)
        # Compute the CRC only of plausible batches.
        at = np.flatnonzero(valid)
        lists = np.full(len(at), list, dtype=np.uint32)
        valid[at] = layout.batch_checks(lists, raw[at]) == check[at]
        # A whole batch in another batch's place counts as no batch.
        belongs = valid & ((sequence - 1) % spec.ring == np.arange(spec.ring))
        empty = ~valid & ~raw.any(axis=1)
        return cls(raw, np.where(belongs, sequence, 0), batches["count"], ~belongs & ~empty)

    def ends(self) -> Optional[Tuple[int, int]]:
        """The oldest and the newest sequence; `None` if no batch is there."""
        there = self.sequence[self.sequence != 0]
        if not len(there):
            return None
        # Offsets from the first batch's place, across the wrap: negative ones are earlier.
        ahead = (there - there[0]) % _CYCLE
        ahead = np.where(ahead < _CYCLE // 2, ahead, ahead - _CYCLE)
        return int(there[ahead.argmin()]), int(there[ahead.argmax()])

    def newest(self) -> int:
        """The newest sequence; 0 if no batch is there."""
        ends = self.ends()
        return ends[1] if ends else 0


def read(spec: StoreSpec, data: NDArray[np.uint8], list: int, from_sequence: int) -> Entries:
    """The entries of a list from a sequence, or from its oldest batch (0)."""
    ring = Ring.copy(spec, data, list)
    walk = _Walk(spec, ring, from_sequence)
    if not walk.to_the_end(ring, None):
        time.sleep(_PATIENCE)
        # What is still missing is given up; what arrived since gets its own time.
        known = ring
        ring = Ring.copy(spec, data, list)
        walk.to_the_end(ring, known)
    return walk.entries()


class _Walk:
    """A reader's position in a list."""

    def __init__(self, spec: StoreSpec, ring: Ring, from_sequence: int) -> None:
        self.spec = spec
        self.overwritten = self.missing = self.damaged = 0
        self.parts: List[NDArray[np.uint8]] = []
        ends = ring.ends()
        self.next = from_sequence or (ends[0] if ends else 1)
        if from_sequence and ends and is_after(ends[1], from_sequence):
            if distance(from_sequence, ends[1]) >= spec.ring:
                # Everything up to the oldest is gone at once.
                self.overwritten = distance(from_sequence, ends[0])
                self.next = ends[0]

    def to_the_end(self, ring: Ring, before: Optional[Ring]) -> bool:
        """Takes all that is there. What is missing or damaged ends it (`False`) or, if it was so in the ring as it
        was before, is given up and counted."""
        size = self.spec.ring
        newest, newest_before = ring.newest(), before.newest() if before else 0
        while True:
            # The next sequences, as many as there are places, and what is there instead.
            wanted = (self.next - 1 + np.arange(size, dtype=np.int64)) % _CYCLE + 1
            places = (wanted - 1) % size
            there, torn = ring.sequence[places], ring.torn[places]
            right = there == wanted
            gone = (there != 0) & _are_after(there, wanted)
            lost = ~right & ~gone & _are_after(newest, wanted)
            if before is None:
                given_up = np.zeros(size, dtype=bool)
            else:
                given_up = lost & (before.torn[places] | _are_after(newest_before, wanted))
            # If a batch is from more than one turn of the ring later, several are gone.
            one_gone = gone & ((there - wanted) % _CYCLE <= size)
            passed = right | one_gone | given_up
            n = size if passed.all() else int(passed.argmin())
            if n:
                self._take(ring, places[:n][right[:n]])
                self.overwritten += int(one_gone[:n].sum())
                self.damaged += int((given_up & torn)[:n].sum())
                self.missing += int((given_up & ~torn)[:n].sum())
                self.next = forward(self.next, n)
            elif gone[0]:
                count = distance(self.next, int(there[0])) + 1 - size
                self.overwritten += count
                self.next = forward(self.next, count)
            elif lost[0]:
                return False
            elif not torn[0]:
                return True
            elif before is None or not before.torn[places[0]]:
                return before is not None
            else:
                self.damaged += size if torn.all() else int(torn.argmin())
                return True

    def _take(self, ring: Ring, places: NDArray[np.int64]) -> None:
        room = min(255, (self.spec.batch_len - layout.TRAILER_LEN) // self.spec.entry_len)
        held = ring.raw[places, : room * self.spec.entry_len].reshape(len(places), room, self.spec.entry_len)
        there = np.arange(room) < ring.count[places][:, np.newaxis]
        self.parts.append(held[there])

    def entries(self) -> Entries:
        none = np.zeros((0, self.spec.entry_len), dtype=np.uint8)
        return Entries(
            np.concatenate([none, *self.parts]),
            self.next,
            self.overwritten,
            self.missing,
            self.damaged,
        )
