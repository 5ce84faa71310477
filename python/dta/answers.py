"""Results of queries: one array per column, all of equal length, in the order of the requested keys.

`to_dict` gives columns that `pandas.DataFrame` takes as they are, and `len`, `[i]` and iteration give rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from .epoch import EarlierEpoch, Epoch
from .key import Key, KeyArray


class Answers:
    """Common base of all answers."""

    def to_dict(self) -> Dict[str, Any]:
        """Columns by name: arrays of numbers, or lists if values can be unknown (`None`)."""
        raise NotImplementedError

    def __len__(self) -> int:
        columns = self.to_dict()
        return len(next(iter(columns.values())))

    def __getitem__(self, row: int) -> Dict[str, Any]:
        def plain(value: Any) -> Any:
            return value.item() if isinstance(value, np.generic) else value

        return {name: plain(column[row]) for name, column in self.to_dict().items()}

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        columns = self.to_dict()
        for row in zip(*(c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values())):
            yield dict(zip(columns, row))


def _numbers(bytes_of_rows: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    # In native byte order, which pandas requires.
    return np.ascontiguousarray(bytes_of_rows).view(dtype).astype(np.dtype(dtype).newbyteorder("="))


def _texts(keys: KeyArray) -> List[str]:
    return [str(Key(key.tobytes())) for key in keys]


@dataclass(frozen=True, eq=False)
class KeyWriteAnswers(Answers):
    """The last value of each key."""

    #: The keys, bytes of shape (n, 16).
    keys: KeyArray
    #: Whether there is a value.
    found: NDArray[np.bool_]
    #: The values, bytes of shape (n, value length); zeros if not found.
    values: NDArray[np.uint8]
    #: Matching copies that hold the value (or, without a value, the one that most hold).
    agreeing: NDArray[np.uint8]
    #: Matching copies with another value.
    differing: NDArray[np.uint8]
    #: The epoch that they are from; `None` if the store has no epochs, and from region files.
    epoch: Optional[Epoch] = None
    #: Earlier epochs in which values were reported; `None` for values of that epoch itself. Empty from region files.
    earlier: Sequence[Optional[EarlierEpoch]] = ()

    def to_dict(self) -> Dict[str, Any]:
        """Columns `key` (text), `value` (bytes or None), `agreeing`, `differing`."""
        value = [value.tobytes() if found else None for value, found in zip(self.values, self.found)]
        return {"key": _texts(self.keys), "value": value, "agreeing": self.agreeing, "differing": self.differing}

    def numbers(self, dtype: str = ">u4") -> NDArray[Any]:
        """The values as numbers, shape (n, value length / size of a number); `>u4` is big-endian, 32 bits."""
        return _numbers(self.values, dtype)


@dataclass(frozen=True, eq=False)
class PathAnswers(Answers):
    """The path of each key."""

    #: The keys, bytes of shape (n, 16).
    keys: KeyArray
    #: Whether anything of the path is known.
    found: NDArray[np.bool_]
    #: Values by hop, of shape (n, hops of the store); 0 if unknown.
    hops: NDArray[np.uint32]
    #: Whether the hop's value is known, of shape (n, hops of the store).
    present: NDArray[np.bool_]
    #: Hops of the whole path; 0 if no postcard carried it.
    path_length: NDArray[np.uint8]
    #: Whether the length and every hop are known.
    complete: NDArray[np.bool_]
    #: Matching copies with this path.
    agreeing: NDArray[np.uint8]
    #: Matching copies with another path.
    differing: NDArray[np.uint8]
    #: The epoch that they are from; `None` if the store has no epochs, and from region files.
    epoch: Optional[Epoch] = None
    #: Earlier epochs in which paths were reported; `None` for paths of that epoch itself. Empty from region files.
    earlier: Sequence[Optional[EarlierEpoch]] = ()

    def to_dict(self) -> Dict[str, Any]:
        """Columns `key`, `path` (a list with None for unknown hops, or None), `complete`, `agreeing`, `differing`."""
        path: List[Any] = [None] * len(self.keys)
        for row in np.flatnonzero(self.found):
            known = np.flatnonzero(self.present[row])
            length = max(int(self.path_length[row]), int(known[-1]) + 1 if len(known) else 0)
            hops, present = self.hops[row].tolist(), self.present[row]
            path[row] = [hops[h] if present[h] else None for h in range(length)]
        return {
            "key": _texts(self.keys),
            "path": path,
            "complete": self.complete,
            "agreeing": self.agreeing,
            "differing": self.differing,
        }


@dataclass(frozen=True, eq=False)
class CounterAnswers(Answers):
    """The count of each key: its own increments, and more if other keys share its counters."""

    #: The keys, bytes of shape (n, 16).
    keys: KeyArray
    #: The counts: at least what was applied.
    counts: NDArray[np.uint64]
    #: The epoch that they are from; `None` if the store has no epochs, and from region files.
    epoch: Optional[Epoch] = None

    def to_dict(self) -> Dict[str, Any]:
        """Columns `key` and `count`."""
        return {"key": _texts(self.keys), "count": self.counts}


@dataclass(frozen=True, eq=False)
class SketchAnswers(Answers):
    """The estimate of each key in one epoch."""

    #: The keys, bytes of shape (n, 16).
    keys: KeyArray
    #: The epoch.
    epoch: int
    #: Whether all columns of the key hold this epoch.
    known: NDArray[np.bool_]
    #: The estimates; 0 if unknown.
    estimates: NDArray[np.uint64]
    #: Fewest reporters merged into any of the key's columns.
    merged: NDArray[np.uint16]
    #: Reporters that complete a column.
    expected: int
    #: The epoch of the store's history; `None` if the store has no epochs, and from region files.
    table_epoch: Optional[Epoch] = None

    def to_dict(self) -> Dict[str, Any]:
        """Columns `key`, `epoch`, `estimate` (None if unknown), `merged`, `expected`."""
        estimate = [n if known else None for n, known in zip(self.estimates.tolist(), self.known)]
        n = len(self.keys)
        return {
            "key": _texts(self.keys),
            "epoch": np.full(n, self.epoch, dtype=np.uint32),
            "estimate": estimate,
            "merged": self.merged,
            "expected": np.full(n, self.expected, dtype=np.uint16),
        }


@dataclass(frozen=True, eq=False)
class Entries(Answers):
    """Entries of one append list, in order."""

    #: The entries, bytes of shape (n, entry length).
    entries: NDArray[np.uint8]
    #: Sequence to continue with: `read(list, from_sequence=...)` returns what arrived since.
    next_sequence: int
    #: Batches that the writer overwrote before they could be read.
    overwritten: int = 0
    #: Batches that never arrived although later ones did.
    missing: int = 0
    #: Places whose bytes are not a valid batch.
    damaged: int = 0
    #: The epoch that they are from, if a moment other than now was asked about.
    epoch: Optional[Epoch] = None

    def __len__(self) -> int:
        return len(self.entries)

    def to_dict(self) -> Dict[str, Any]:
        """The column `entry`, as bytes."""
        return {"entry": [entry.tobytes() for entry in self.entries]}

    def numbers(self, dtype: str = ">u4") -> NDArray[Any]:
        """The entries as numbers, shape (n, entry length / size of a number); `>u4` is big-endian, 32 bits."""
        return _numbers(self.entries, dtype)
