"""Key-increment: counters of keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import layout
from ..answers import CounterAnswers
from ..key import KeyArray, keys as key_array
from ..spec import Kind, StoreSpec, pow2, register
from ..store import Keys, Store, column


def _is_sound(spec: StoreSpec) -> bool:
    return pow2(spec.slots, 32) and 1 <= spec.redundancy <= 4


def _dtype(spec: StoreSpec) -> np.dtype:  # type: ignore[type-arg]
    return np.dtype(np.uint64)


register(
    Kind(
        name="key-increment",
        number=6,
        fields={1: "slots", 2: "redundancy"},
        element_len=lambda spec: 8,
        shape=lambda spec: (spec.slots,),
        is_sound=_is_sound,
        dtype=_dtype,
    )
)


class KeyIncrementStore(Store, kind="key-increment"):
    """Counters of keys."""

    def query(self, keys: Keys) -> CounterAnswers:
        """What was counted of each key."""
        spec, asked = self.spec, key_array(keys)
        told = self.source.ask("QueryCounter", spec, asked)
        if told is None:
            return read(spec, self.source.raw(spec), asked)
        return CounterAnswers(asked, column(told.answers, "value", np.uint64))


def read(spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray) -> CounterAnswers:
    """Counts of keys: the least counter, each divided by how many of the key's slots fall on it."""
    found_at = layout.slots(keys, spec.redundancy, spec.slots)
    counters = data.view(np.uint64)[found_at]
    shared = (found_at[:, :, np.newaxis] == found_at[:, np.newaxis, :]).sum(axis=2).astype(np.uint64)
    return CounterAnswers(keys, (counters // shared).min(axis=1, initial=np.iinfo(np.uint64).max))
