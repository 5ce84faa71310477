"""Postcarding: paths of keys."""

from __future__ import annotations

from typing import List, Optional

import numpy as np
from numpy.typing import NDArray

from .. import layout
from ..answers import PathAnswers
from ..epoch import EarlierEpoch, Moment, millis
from ..key import KeyArray, keys as key_array
from ..spec import Kind, StoreSpec, pow2, register
from ..store import Keys, Reply, Store, column, votes


def _is_sound(spec: StoreSpec) -> bool:
    return pow2(spec.slots, 32) and spec.hops in (6, 14) and 1 <= spec.redundancy <= 4


def _dtype(spec: StoreSpec) -> np.dtype:  # type: ignore[type-arg]
    row = [("checksum", ">u4"), ("bitmap", ">u2"), ("path_length", "u1"), ("zero", "u1")]
    return np.dtype([*row, ("hops", ">u4", (spec.hops,))])


register(
    Kind(
        name="postcarding",
        number=4,
        fields={1: "slots", 2: "hops", 3: "redundancy"},
        element_len=lambda spec: 8 + 4 * spec.hops,
        shape=lambda spec: (spec.slots,),
        is_sound=_is_sound,
        dtype=_dtype,
    )
)


class PostcardingStore(Store, kind="postcarding"):
    """Paths of keys."""

    def query(self, keys: Keys, *, at: Optional[Moment] = None) -> PathAnswers:
        """The path of each key: now, or in the epoch of the moment `at`. Of copies that differ, the one with most hops."""
        spec, asked = self.spec, key_array(keys)
        reply = self.source.ask(spec, asked, millis(at))
        if reply is None:
            return read(spec, self.source.raw(spec), asked)
        return _answers(spec, asked, reply)

    def series(self, keys: Keys, since: Moment, until: Optional[Moment] = None) -> List[PathAnswers]:
        """The path of each key in each epoch of the moments from `since` to before `until`, the oldest first."""
        spec, asked = self.spec, key_array(keys)
        reply = self.source.series(spec, asked, (millis(since), millis(until)))
        return [_answers(spec, asked, of_epoch) for of_epoch in reply]


def _answers(spec: StoreSpec, keys: KeyArray, reply: Reply) -> PathAnswers:
    answers = reply.answers
    hops = np.zeros((len(keys), spec.hops), dtype=np.uint32)
    present = np.zeros((len(keys), spec.hops), dtype=bool)
    for row, answer in enumerate(answers):
        hops[row, : len(answer.hops)] = answer.hops
        present[row, : len(answer.present)] = answer.present
    found = column(answers, "found", np.bool_)
    complete = column(answers, "complete", np.bool_)
    length = column(answers, "path_length", np.uint8)
    earlier = [EarlierEpoch.from_message(answer) for answer in answers]
    return PathAnswers(keys, found, hops, present, length, complete, *votes(answers), reply.epoch, earlier)


def read(spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray) -> PathAnswers:
    """Paths of keys."""
    n, copies, room = len(keys), spec.redundancy, spec.hops
    found_at = layout.slots(keys, copies, spec.slots)
    raw = data.reshape(spec.slots, -1)[found_at.reshape(-1)]
    rows = raw.view(layout.dtype(spec)).reshape(-1)
    sums = layout.checksums(np.repeat(keys, copies, axis=0), raw[:, 4:])
    bitmap, length = rows["bitmap"].astype(np.uint16), rows["path_length"]
    # A chance match of the checksum seldom holds up to the rest.
    sound = (bitmap != 0) & (bitmap >> room == 0) & (length <= room) & (rows["zero"] == 0)
    matching = ((rows["checksum"] == sums) & sound).reshape(n, copies)
    bits = (bitmap[:, np.newaxis] >> np.arange(room, dtype=np.uint16)) & 1 == 1
    known = bits.sum(axis=1).reshape(n, copies)
    row = np.arange(n)
    chosen = np.where(matching, known, -1).argmax(axis=1)
    contents = raw[:, 4:].reshape(n, copies, spec.element_len - 4)
    same = (contents == contents[row, chosen][:, np.newaxis, :]).all(axis=2) & matching
    found = matching.any(axis=1)
    agreeing = same.sum(axis=1)
    present = bits.reshape(n, copies, room)[row, chosen] & found[:, np.newaxis]
    path_length = np.where(found, length.reshape(n, copies)[row, chosen], 0).astype(np.uint8)
    whole = np.arange(room) < path_length[:, np.newaxis]
    hops = rows["hops"].reshape(n, copies, room)[row, chosen]
    return PathAnswers(
        keys,
        found,
        np.where(present, hops, 0).astype(np.uint32),
        present,
        path_length,
        (path_length > 0) & (present == whole).all(axis=1),
        agreeing.astype(np.uint8),
        (matching.sum(axis=1) - agreeing).astype(np.uint8),
    )
