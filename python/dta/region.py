"""Region files: their header, and their memory as an array of bytes.

The header, little-endian where nothing else is said::

    offset  bytes
     0      8     magic "DTAREGN\\0"
     8      4     header version: 2
    12      4     0x01020304 in the writer's byte order, in which counters are too
    16      8     offset of the data in the file
    24      8     bytes of data
    32      4     bytes of the body
    36      4     CRC-32 of bytes 8 to 35 and the body
    40      n     body: generation, address, time of creation, length of the description, each a bincode varint; then
                  the description of the store, a protobuf `dta.v1.Store`
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple, Union

import numpy as np
from numpy.typing import NDArray

from .errors import RegionError
from .spec import StoreSpec

_HEADER_LEN = 4096
_VERSION = 2
_BODY = 40
#: Meaning of the first byte of a bincode varint.
_WIDTHS = {251: 2, 252: 4, 253: 8}


@dataclass(frozen=True)
class Region:
    """One region file."""

    path: Path
    #: The store in the region.
    spec: StoreSpec
    #: Increases whenever the store's memory is replaced.
    generation: int
    #: Address on the wire.
    iova: int
    #: When the file was created, in seconds since 1970.
    created: int
    #: The memory, mapped read-only. A NIC writes it while it is read.
    mapped: NDArray[np.uint8]
    _file: mmap.mmap
    _end: int

    @property
    def data(self) -> NDArray[np.uint8]:
        """The memory. Raises `RegionError` if the file was truncated: reading the missing part would kill the
        process (SIGBUS)."""
        has = self._file.size()
        if has < self._end:
            raise RegionError(f"{self.path} was cut short while it was open: it has {has} bytes, but it should have {self._end}")
        return self.mapped


def open_file(path: Union[str, "os.PathLike[str]"]) -> Region:
    """Maps a region file. Raises `RegionError`, which names the file and says what is wrong with it."""
    path = Path(path)
    try:
        return _open(path)
    except RegionError as error:
        raise RegionError(f"{path} {error}") from None
    except OSError as error:
        raise RegionError(f"{path} cannot be opened: {error.strerror}") from error


def _open(path: Path) -> Region:
    # Never wait, whatever it is: opening a fifo waits for its other end.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise RegionError("is not a regular file")
        has = found.st_size
        header = file.read(_HEADER_LEN)
        if len(header) < _HEADER_LEN and b"DTAREGN\0".startswith(header[:8]):
            raise RegionError(f"is cut off: it has {has} bytes, and a header has {_HEADER_LEN}")
        if header[:8] != b"DTAREGN\0":
            raise RegionError('is not a region file: it does not start with "DTAREGN"')
        (version,) = struct.unpack_from("<I", header, 8)
        if version != _VERSION:
            raise RegionError(f"has header version {version}; this package reads {_VERSION}")
        if header[12:16] != (0x01020304).to_bytes(4, sys.byteorder):
            raise RegionError("was written on a machine of the other byte order, or its header is damaged")
        offset, length, body_len, checksum = struct.unpack_from("<QQII", header, 16)
        body = header[_BODY : _BODY + body_len]
        if len(body) < body_len or zlib.crc32(header[8:36] + body) != checksum:
            raise RegionError("has a damaged header: its checksum is wrong")
        generation, iova, created, spec = _body(body)
        if length != spec.region_len or offset < _HEADER_LEN or offset % _HEADER_LEN:
            raise RegionError("has a damaged header: length or offset do not match its store")
        if has < offset + length:
            raise RegionError(f"is cut off: it has {has} bytes, but it should have {offset + length}")
        # The whole file: in hugetlbfs only whole pages can be mapped.
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = np.frombuffer(mapping, dtype=np.uint8, offset=offset, count=length)
    return Region(path, spec, generation, iova, created, data, mapping, offset + length)


def _body(body: bytes) -> Tuple[int, int, int, StoreSpec]:
    generation, at = _varint(body, 0)
    iova, at = _varint(body, at)
    created, at = _varint(body, at)
    length, at = _varint(body, at)
    if at + length != len(body):
        raise RegionError("has a damaged header: its body has the wrong length")
    return generation, iova, created, StoreSpec.from_protobuf(body[at:])


def _varint(body: bytes, at: int) -> Tuple[int, int]:
    """A bincode varint at `at`, and where it ends."""
    first = body[at : at + 1]
    if first and first[0] < 251:
        return first[0], at + 1
    width = _WIDTHS.get(first[0]) if first else None
    if width is None or at + 1 + width > len(body):
        raise RegionError("has a damaged header: its body ends early")
    return int.from_bytes(body[at + 1 : at + 1 + width], "little"), at + 1 + width
