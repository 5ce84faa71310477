"""Answers from a region's bytes, by the rules of the collector's own readers (`collector/src/store/`).

Every function copies the elements of its keys out of the memory first, and judges the copy: a NIC writes meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import layout
from .answers import CounterAnswers, KeyWriteAnswers, PathAnswers, SketchAnswers
from .key import KeyArray
from .spec import StoreSpec

#: A sketch's column has no checksum: it is read until two readings agree, and as often as this at most.
_READINGS = 16


def key_write(
    spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray, policy: str, at_least: int
) -> KeyWriteAnswers:
    """Values of keys."""
    n, copies = len(keys), spec.redundancy
    found_at = layout.slots(keys, copies, spec.slots)
    slots = data.reshape(spec.slots, -1)[found_at.reshape(-1)]
    stored = slots[:, :4].copy().view(">u4").reshape(-1)
    values = slots[:, 4:]
    sums = layout.checksums(np.repeat(keys, copies, axis=0), values)
    matching = (stored == sums).reshape(n, copies)
    values = values.reshape(n, copies, spec.value_len)
    # Of each copy: how many matching copies hold its value. 0 for one that does not match itself.
    equal = (values[:, :, np.newaxis, :] == values[:, np.newaxis, :, :]).all(axis=3)
    votes = (equal & matching[:, np.newaxis, :]).sum(axis=2) * matching
    # Both take the lowest n among equals.
    chosen = matching.argmax(axis=1) if policy == "first" else votes.argmax(axis=1)
    row = np.arange(n)
    agreeing = votes[row, chosen]
    differing = matching.sum(axis=1) - agreeing
    found = agreeing >= max(at_least, 1)
    value = np.where(found[:, np.newaxis], values[row, chosen], 0).astype(np.uint8)
    return KeyWriteAnswers(keys, found, value, agreeing.astype(np.uint8), differing.astype(np.uint8))


def path(spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray) -> PathAnswers:
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


def counter(spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray) -> CounterAnswers:
    """Counts of keys: the least counter, each divided by how many of the key's slots fall on it."""
    found_at = layout.slots(keys, spec.redundancy, spec.slots)
    counters = data.view(np.uint64)[found_at]
    shared = (found_at[:, :, np.newaxis] == found_at[:, np.newaxis, :]).sum(axis=2).astype(np.uint64)
    return CounterAnswers(keys, (counters // shared).min(axis=1, initial=np.iinfo(np.uint64).max))


def sketch(spec: StoreSpec, data: NDArray[np.uint8], keys: KeyArray, epoch: int) -> SketchAnswers:
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
