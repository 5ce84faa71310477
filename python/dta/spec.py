"""The description of a store, in Python and protobuf (`dta.v1.Store`).

The description is read without the protobuf library, so that region files need numpy alone: it has numbers, one text
and one message within another, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Callable, Dict, Iterator, Tuple, Union

import numpy as np

from .errors import RegionError

@dataclass(frozen=True)
class Kind:
    """A kind of stores: how its description and its memory are read. `kinds` has one file for each."""

    #: Its name: `key-write`.
    name: str
    #: The number of its field in `dta.v1.Store`.
    number: int
    #: The names of its fields by their numbers.
    fields: Dict[int, str]
    #: Bytes of one element: slot, row, batch, counter or column.
    element_len: Callable[[StoreSpec], int]
    #: The shape of all elements: of slots, of batches by list, of columns by epoch.
    shape: Callable[[StoreSpec], Tuple[int, ...]]
    #: As `StoreSpec::validate` of the crate `dta-proto` has it, as far as reading needs it.
    is_sound: Callable[[StoreSpec], bool]
    #: One element as a numpy type.
    dtype: Callable[[StoreSpec], np.dtype]  # type: ignore[type-arg]


#: The kinds by name.
KINDS: Dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Makes a kind known."""
    KINDS[kind.name] = kind


#: Fields that are words, by their number in the message.
_WORDS = {"merge": ("sum", "max", "or"), "keys": ("hashed", "inline")}


@dataclass(frozen=True)
class StoreSpec:
    """A store: its id in reports, its name for people, and its layout. Fields of other kinds of stores are 0."""

    #: Id in version-1 reports.
    id: int
    #: Name in configuration, queries and logs.
    name: str
    #: The name of its kind, such as `key-write`.
    kind: str
    #: Slots or counters, a power of two (key-write, postcarding, key-increment).
    slots: int = 0
    #: Copies N per report (key-write, postcarding, key-increment).
    redundancy: int = 0
    #: Collectors that must count each key, 1 or 2; 0 means 1 (key-increment).
    replicas: int = 0
    #: Bytes of a value (key-write).
    value_len: int = 0
    #: `inline` if slots hold their keys, else `hashed` (key-write).
    keys: str = "hashed"
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
        return KINDS[self.kind].element_len(self)

    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape of all elements: of slots, of batches by list, of columns by epoch."""
        return KINDS[self.kind].shape(self)

    @property
    def elements(self) -> int:
        """Slots, batches of all lists, counters, or columns of all epochs."""
        return prod(self.shape)

    @property
    def region_len(self) -> int:
        """Bytes of the store's region."""
        return self.element_len * self.elements

    @classmethod
    def from_protobuf(cls, message: bytes) -> StoreSpec:
        """Parses a `dta.v1.Store`, and checks that it describes a layout. Raises `RegionError`."""
        fields: dict[str, Union[int, str]] = {"id": 0, "name": "", "kind": ""}
        kinds = {kind.number: kind for kind in KINDS.values()}
        for number, value in _fields(message):
            if number == 1 and isinstance(value, int):
                fields["id"] = value
            elif number == 2 and isinstance(value, bytes):
                fields["name"] = _text(value)
            elif number in kinds and isinstance(value, bytes):
                kind = kinds[number]
                fields["kind"] = kind.name
                for inner, what in _fields(value):
                    if inner in kind.fields and isinstance(what, int):
                        fields[kind.fields[inner]] = what
        return cls._checked(fields)

    @classmethod
    def _checked(cls, fields: dict[str, Union[int, str]]) -> StoreSpec:
        for field, words in _WORDS.items():
            number = fields.get(field, 0)
            if not (isinstance(number, int) and number < len(words)):
                raise RegionError(f"the description of a store has {field} {number}, which this version does not know")
            fields[field] = words[number]
        fields["notify"] = bool(fields.get("notify", 0))
        spec = cls(**fields)  # type: ignore[arg-type]
        if spec.kind not in KINDS or not KINDS[spec.kind].is_sound(spec):
            raise RegionError(f"the description of a store cannot be used: {spec}")
        return spec


def pow2(n: int, most: int) -> bool:
    """Whether a number is a power of two, at most 2^`most`."""
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
