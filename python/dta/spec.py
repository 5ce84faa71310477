"""The description of a store, in Python and protobuf (`dta.v1.Store`).

The description is read without the protobuf library, so that region files need numpy alone: it has numbers, one text
and one message within another, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Tuple, Union

from .errors import RegionError

#: Kinds of stores by the number of their field in `dta.v1.Store`, and the names of their fields by number.
_KINDS = {
    3: ("key-write", {1: "slots", 2: "value_len", 3: "redundancy"}),
    4: ("postcarding", {1: "slots", 2: "hops", 3: "redundancy"}),
    5: ("append", {1: "lists", 2: "ring", 3: "batch_len", 4: "entry_len", 5: "notify"}),
    6: ("key-increment", {1: "slots", 2: "redundancy"}),
    7: ("sketch-merge", {1: "columns", 2: "rows", 3: "epochs", 4: "merge", 5: "expected"}),
}
#: Ways in which sketch cells merge, by their number in `dta.v1.Merge`.
_MERGES = ("sum", "max", "or")


@dataclass(frozen=True)
class StoreSpec:
    """A store: its id in reports, its name for people, and its layout. Fields of other kinds of stores are 0."""

    #: Id in version-1 reports.
    id: int
    #: Name in configuration, queries and logs.
    name: str
    #: `key-write`, `postcarding`, `append`, `key-increment` or `sketch-merge`.
    kind: str
    #: Slots or counters, a power of two (key-write, postcarding, key-increment).
    slots: int = 0
    #: Copies N per report (key-write, postcarding, key-increment).
    redundancy: int = 0
    #: Bytes of a value (key-write).
    value_len: int = 0
    #: Hops per row (postcarding).
    hops: int = 0
    #: Lists, a power of two (append).
    lists: int = 0
    #: Batches in each list's ring, a power of two (append).
    ring: int = 0
    #: Bytes per batch (append).
    batch_len: int = 0
    #: Bytes per entry (append).
    entry_len: int = 0
    #: Whether batches wake a reader (append).
    notify: bool = False
    #: Columns per epoch, a power of two (sketch-merge).
    columns: int = 0
    #: Cells per column (sketch-merge).
    rows: int = 0
    #: Epochs kept, a power of two (sketch-merge).
    epochs: int = 0
    #: `sum`, `max` or `or`: how to merge two reporters' cells (sketch-merge).
    merge: str = "sum"
    #: Reporters that complete a column (sketch-merge).
    expected: int = 0

    @property
    def element_len(self) -> int:
        """Bytes of one element: slot, row, batch, counter or column."""
        if self.kind == "key-write":
            return 4 + self.value_len
        if self.kind == "postcarding":
            return 8 + 4 * self.hops
        if self.kind == "append":
            return self.batch_len
        if self.kind == "key-increment":
            return 8
        return 16 if self.rows <= 2 else 32

    @property
    def elements(self) -> int:
        """Slots, batches of all lists, counters, or columns of all epochs."""
        if self.kind == "append":
            return self.lists * self.ring
        if self.kind == "sketch-merge":
            return self.columns * self.epochs
        return self.slots

    @property
    def region_len(self) -> int:
        """Bytes of the store's region."""
        return self.element_len * self.elements

    @classmethod
    def from_protobuf(cls, message: bytes) -> StoreSpec:
        """Parses a `dta.v1.Store`, and checks that it describes a layout. Raises `RegionError`."""
        fields: dict[str, Union[int, str]] = {"id": 0, "name": "", "kind": ""}
        for number, value in _fields(message):
            if number == 1 and isinstance(value, int):
                fields["id"] = value
            elif number == 2 and isinstance(value, bytes):
                fields["name"] = _text(value)
            elif number in _KINDS and isinstance(value, bytes):
                fields["kind"], names = _KINDS[number]
                for inner, what in _fields(value):
                    if inner in names and isinstance(what, int):
                        fields[names[inner]] = what
        return cls._checked(fields)

    @classmethod
    def _checked(cls, fields: dict[str, Union[int, str]]) -> StoreSpec:
        merge = fields.get("merge", 0)
        if not (isinstance(merge, int) and merge < len(_MERGES)):
            raise RegionError(f"the description of a store has merge {merge}, which this version does not know")
        fields["merge"] = _MERGES[merge]
        fields["notify"] = bool(fields.get("notify", 0))
        spec = cls(**fields)  # type: ignore[arg-type]
        if not spec._is_sound():
            raise RegionError(f"the description of a store cannot be used: {spec}")
        return spec

    def _is_sound(self) -> bool:
        """As `StoreSpec::validate` of the crate `dta-proto` has it, as far as reading needs it."""
        if self.kind == "key-write":
            return _pow2(self.slots, 32) and self.value_len in (4, 12, 28, 60) and 1 <= self.redundancy <= 4
        if self.kind == "postcarding":
            return _pow2(self.slots, 32) and self.hops in (6, 14) and 1 <= self.redundancy <= 4
        if self.kind == "append":
            fits = 0 < self.entry_len <= min(60, self.batch_len - 8) and self.entry_len % 4 == 0
            return _pow2(self.lists, 16) and _pow2(self.ring, 30) and self.batch_len in (16, 32, 64, 128) and fits
        if self.kind == "key-increment":
            return _pow2(self.slots, 32) and 1 <= self.redundancy <= 4
        if self.kind == "sketch-merge":
            ring = _pow2(self.columns, 31) and _pow2(self.epochs, 16) and self.epochs >= 2
            return ring and 1 <= self.rows <= 4 and 1 <= self.expected <= 32
        return False


def _pow2(n: int, most: int) -> bool:
    return n > 0 and n & (n - 1) == 0 and n <= 1 << most


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RegionError("the description of a store is damaged: its name is not text") from None


def varint(data: bytes, at: int) -> Tuple[int, int]:
    """A protobuf varint at `at`, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise RegionError("the description of a store is damaged")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(message: bytes) -> Iterator[Tuple[int, Union[int, bytes]]]:
    """Number and value of each field: an `int`, or the bytes of a text or message."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 0:
            value, at = varint(message, at)
            yield tag >> 3, value
        elif tag & 7 in (1, 2, 5):
            length, at = varint(message, at) if tag & 7 == 2 else (8 if tag & 7 == 1 else 4, at)
            if at + length > len(message):
                raise RegionError("the description of a store is damaged")
            yield tag >> 3, message[at : at + length]
            at += length
        else:
            raise RegionError("the description of a store is damaged")
