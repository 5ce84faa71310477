"""The stores of region files, whether or not their collector runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Union

import numpy as np
from numpy.typing import NDArray

from . import append
from .answers import Entries
from .epoch import Epoch
from .errors import AskError, NoSuchStore, RegionError
from .flows import FlowStores
from .key import KeyArray
from .region import Region, open_file
from .spec import StoreSpec
from .store import Reply, Span, Store, store_of


class _File:
    """The source for one region's store."""

    def __init__(self, region: Region) -> None:
        self.region = region

    def raw(self, spec: StoreSpec) -> NDArray[np.uint8]:
        return self.region.data

    def ask(self, spec: StoreSpec, keys: KeyArray, at: int, **more: Any) -> Optional[Reply]:
        if at:
            raise self._no_history()
        return None

    def series(self, spec: StoreSpec, keys: KeyArray, span: Span, **more: Any) -> Iterator[Reply]:
        raise self._no_history()

    def epochs(self, spec: StoreSpec, span: Span) -> List[Epoch]:
        raise self._no_history()

    def entries_by_epoch(self, spec: StoreSpec, list: int, span: Span) -> Iterator[Entries]:
        raise self._no_history()

    def _no_history(self) -> AskError:
        return AskError(f"{self.region.path} keeps no history: connect to its collector for another moment")

    def entries(self, spec: StoreSpec, list: int, from_sequence: int) -> Entries:
        return append.read(spec, self.region.data, list, from_sequence)


def open_region(path: Union[str, "os.PathLike[str]"]) -> Store:
    """The store of a region file. Raises `RegionError`."""
    region = open_file(path)
    return store_of(region.spec, region.generation, _File(region))


class Memory(FlowStores):
    """The stores of a memory directory by name, in order of their ids.

    They are those present when the directory was opened: if a collector replaces one, open it again.
    """

    def __init__(self, directory: Union[str, "os.PathLike[str]"]) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise RegionError(f"{directory} is not a directory; give the `memory` directory of a collector")
        stores = [open_region(path) for path in sorted(self.directory.glob("*.region"))]
        if not stores:
            raise RegionError(f"there is no region file (*.region) in {directory}; give the `memory` directory of a collector")
        self._stores: Dict[str, Store] = {store.name: store for store in sorted(stores, key=lambda s: s.spec.id)}

    def __getitem__(self, name: str) -> Store:
        return named(self._stores, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stores)

    def __len__(self) -> int:
        return len(self._stores)


def named(stores: Dict[str, Store], name: str) -> Store:
    """The store of a name; `NoSuchStore` lists the existing names."""
    try:
        return stores[name]
    except KeyError:
        raise NoSuchStore(f"there is no store {name!r}; there are {', '.join(stores) or 'none'}") from None


def open_memory(directory: Union[str, "os.PathLike[str]"] = "/dev/shm/dta-collector") -> Memory:
    """The stores of a collector's memory directory. Raises `RegionError`."""
    return Memory(directory)
