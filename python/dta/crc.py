"""DTA's three CRC-32s, over many messages of one length at once.

All are reflected, initial value and final exclusive-or all ones, as in the crate `dta-proto`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def _table(reversed_polynomial: int) -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(reversed_polynomial), table >> 1).astype(np.uint32)
    return table


#: CRC-32/ISO-HDLC, that of zlib: checksums of elements.
CRC32 = _table(0xEDB88320)
#: CRC-32C (Castagnoli): slots of keys.
CRC32C = _table(0x82F63B78)
#: CRC-32K (Koopman): keys of IPv6 flows.
CRC32K = _table(0xEB31D82E)


def crc_each(table: NDArray[np.uint32], *parts: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC of each row: `parts` are arrays of bytes of shape (rows, length), whose rows are concatenated."""
    crc = np.full(len(parts[0]), 0xFFFFFFFF, dtype=np.uint32)
    for part in parts:
        for column in part.T:
            crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return ~crc


def crc_of(table: NDArray[np.uint32], message: bytes) -> int:
    """The CRC of one message."""
    return int(crc_each(table, np.frombuffer(message, dtype=np.uint8)[np.newaxis, :])[0])
