"""Key-increment: counters of keys."""

from __future__ import annotations

from typing import List, Optional

import numpy as np
from numpy.typing import NDArray

from .. import layout
from ..answers import CounterAnswers
from ..epoch import Moment, millis
from ..key import KeyArray, keys as key_array
from ..spec import Kind, StoreSpec, pow2, register
from ..store import Keys, Reply, Store, column


def _is_sound(spec: StoreSpec) -> bool:
    most = 4 if _lanes(spec) == 1 else 2
    return pow2(spec.slots, 32) and 1 <= spec.redundancy <= most and spec.replicas <= 2


def _lanes(spec: StoreSpec) -> int:
    """How many counts there are of each key: one for each colour of another collector that counts it, too."""
    return 4 if spec.replicas > 1 else 1


def _dtype(spec: StoreSpec) -> np.dtype:  # type: ignore[type-arg]
    return np.dtype(np.uint64)


register(
    Kind(
        name="key-increment",
        number=6,
        fields={1: "slots", 2: "redundancy", 3: "replicas"},
        element_len=lambda spec: 8,
        shape=lambda spec: (spec.slots,),
        is_sound=_is_sound,
        dtype=_dtype,
    )
)


class KeyIncrementStore(Store, kind="key-increment"):
    """Counters of keys."""

    def query(self, keys: Keys, *, at: Optional[Moment] = None) -> CounterAnswers:
        """What was counted of each key: up to now, or up to the end of the epoch of the moment `at`."""
        spec, asked = self.spec, key_array(keys)
        reply = self.source.ask(spec, asked, millis(at))
        if reply is None:
            return read(spec, self.source.raw(spec), asked)
        return _answers(asked, reply)

    def series(self, keys: Keys, since: Moment, until: Optional[Moment] = None) -> List[CounterAnswers]:
        """What was counted of each key up to the end of each epoch of the moments from `since` to before `until`, the
        oldest first."""
        asked = key_array(keys)
        reply = self.source.series(self.spec, asked, (millis(since), millis(until)))
        return [_answers(asked, of_epoch) for of_epoch in reply]


def _answers(keys: KeyArray, reply: Reply) -> CounterAnswers:
    return CounterAnswers(keys, column(reply.answers, "value", np.uint64), reply.epoch)


def read(spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray) -> CounterAnswers:
    """Counts of keys, added up over lanes: of each the least counter, each divided by how many of the lane's slots fall on
    it."""
    found_at = layout.slots(keys, spec.redundancy * _lanes(spec), spec.slots)
    found_at = found_at.reshape(-1, _lanes(spec), spec.redundancy)
    counters = data.view(np.uint64)[found_at]
    shared = (found_at[..., :, np.newaxis] == found_at[..., np.newaxis, :]).sum(axis=3).astype(np.uint64)
    return CounterAnswers(keys, (counters // shared).min(axis=2).sum(axis=1))
