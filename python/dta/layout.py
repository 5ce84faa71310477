"""The contents of a region as numpy types, and the positions of a key's elements.

`docs/memory-layout.md` defines it. All numbers are big-endian but the counters of key-increment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .crc import CRC32, CRC32C, crc_each
from .key import KeyArray
from .spec import KINDS, StoreSpec

#: The constants C_0 to C_7 that distinguish a key's slots.
CONSTANTS = np.array(
    [
        0x9E3779B9,
        0x7F4A7C15,
        0x94D049BB,
        0xBF58476D,
        0xCC9E2D51,
        0xC2B2AE35,
        0x85EBCA6B,
        0x1B873593,
    ],
    dtype=np.uint32,
)
#: Length of a batch's sequence, count and check.
TRAILER_LEN = 8


def dtype(spec: StoreSpec) -> np.dtype:  # type: ignore[type-arg]
    """One element of the store's memory."""
    return KINDS[spec.kind].dtype(spec)


def elements(spec: StoreSpec, data: NDArray[np.uint8]) -> NDArray[np.void]:
    """A region's bytes as elements: of shape (lists, ring) for append, (epochs, columns) for sketch-merge."""
    return data.view(dtype(spec)).reshape(spec.shape)


def slots(keys: KeyArray, redundancy: int, count: int) -> NDArray[np.int64]:
    """Slots of keys in a store of `count` slots, a power of two: of shape (n, redundancy)."""
    summed = crc_each(CRC32C, keys)[:, np.newaxis] + CONSTANTS[:redundancy]
    words = summed.astype("<u4").reshape(-1, 1).view(np.uint8)
    found = crc_each(CRC32C, words).reshape(-1, redundancy)
    return found.astype(np.int64) & (count - 1)


def checksums(keys: KeyArray, covered: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The checksum of each key's element: `covered` are the bytes it covers, of shape (n, length)."""
    return crc_each(CRC32, keys, covered)


def batch_checks(lists: NDArray[np.uint32], batches: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The check of each batch: low 24 bits over its list and all its bytes except the last three."""
    words = lists.astype(">u4").reshape(-1, 1).view(np.uint8)
    return crc_each(CRC32, words, batches[:, :-3]) & np.uint32(0xFFFFFF)
