"""Sketch-merge: estimates of keys, by epoch."""

from __future__ import annotations

from typing import Optional

import numpy as np
from numpy.typing import NDArray

from .. import layout
from ..answers import SketchAnswers
from ..epoch import Moment, millis
from ..key import KeyArray, keys as key_array
from ..spec import Kind, StoreSpec, pow2, register
from ..store import Keys, Store, column
from ..errors import AskError

#: A sketch's column has no checksum: it is read until two readings agree, at most this often.
_READINGS = 16


def _is_sound(spec: StoreSpec) -> bool:
    ring = pow2(spec.columns, 31) and pow2(spec.epochs, 16) and spec.epochs >= 2
    return ring and 1 <= spec.rows <= 4 and 1 <= spec.expected <= 32


def _dtype(spec: StoreSpec) -> np.dtype:  # type: ignore[type-arg]
    fields = {
        "names": ["epoch", "merged", "expected", "cells"],
        "formats": [">u4", ">u2", ">u2", (">u4", (spec.rows,))],
        "offsets": [0, 4, 6, 8],
        "itemsize": spec.element_len,
    }
    return np.dtype(fields)  # type: ignore[call-overload,no-any-return]


register(
    Kind(
        name="sketch-merge",
        number=7,
        fields={1: "columns", 2: "rows", 3: "epochs", 4: "merge", 5: "expected"},
        element_len=lambda spec: 16 if spec.rows <= 2 else 32,
        shape=lambda spec: (spec.epochs, spec.columns),
        is_sound=_is_sound,
        dtype=_dtype,
    )
)


class SketchMergeStore(Store, kind="sketch-merge"):
    """Estimates of keys, by epoch."""

    def query(
        self, keys: Keys, epoch: Optional[int] = None, *, at: Optional[Moment] = None
    ) -> SketchAnswers:
        """The estimate of each key in one epoch, as reporters number them: of those that the store has now, or at the
        moment `at`. Without a number, in the epoch of the moment."""
        if epoch is None:
            epoch = self._epoch_at(millis(at))
        if not 0 <= epoch < 1 << 32:
            raise AskError(f"epoch is {epoch}, but must be 0 to 4294967295")
        spec, asked = self.spec, key_array(keys)
        reply = self.source.ask(spec, asked, millis(at), epoch=epoch)
        if reply is None:
            return read(spec, self.source.raw(spec), asked, epoch)
        answers = reply.answers
        known = np.array([answer.HasField("estimate") for answer in answers], dtype=bool)
        estimates, merged = column(answers, "estimate", np.uint64), column(answers, "merged", np.uint16)
        return SketchAnswers(asked, epoch, known, estimates, merged, spec.expected, reply.epoch)

    def _epoch_at(self, at: int) -> int:
        """The number of the epoch of a moment; 0 if nothing of it is kept, which its answer says."""
        if not at:
            raise AskError("which epoch? Give its number, or a moment (at=…)")
        epochs = self.source.epochs(self.spec, (at, at + 1))
        if epochs and epochs[-1].sketch is None:
            raise AskError(f"store {self.name!r}: the epoch of this moment is still merged; give its number")
        return epochs[-1].sketch or 0 if epochs else 0


def read(spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray, epoch: int) -> SketchAnswers:
    """Estimates of keys in one epoch."""
    n, rows = len(keys), spec.rows
    columns = layout.slots(keys, rows, spec.columns).reshape(-1)
    at = (epoch & (spec.epochs - 1)) * spec.columns + columns
    memory = data.reshape(spec.elements, -1)
    raw = memory[at]
    settled = np.zeros(len(at), dtype=bool)
    for _ in range(_READINGS):
        again = memory[at]
        settled |= (again == raw).all(axis=1)
        if settled.all():
            break
        raw[~settled] = again[~settled]
    found = raw.view(layout.dtype(spec)).reshape(n, rows)
    held = settled.reshape(n, rows) & (found["merged"] != 0) & (found["epoch"] == epoch)
    known = held.all(axis=1)
    # Row r's cell lies in the r-th column of the key.
    cells = found["cells"].reshape(n, rows, rows)[:, np.arange(rows), np.arange(rows)].astype(np.uint32)
    joined = np.bitwise_and.reduce(cells, axis=1) if spec.merge == "or" else cells.min(axis=1, initial=0xFFFFFFFF)
    merged = np.where(held, found["merged"], 0).min(axis=1, initial=0xFFFF)
    return SketchAnswers(
        keys,
        epoch,
        known,
        np.where(known, joined, 0).astype(np.uint64),
        merged.astype(np.uint16),
        spec.expected,
    )
