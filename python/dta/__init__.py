"""Reads the stores of a Direct Telemetry Access (DTA) collector into numpy arrays.

`open` and `open_memory` read region files, whether or not their collector runs; `connect` asks a running collector
over gRPC. Both give the same kinds of stores, with the same answers::

    import dta

    memory = dta.open_memory("/dev/shm/dta-collector")
    answers = memory["flows"].query(["10.0.0.1:5000->10.0.0.2:5000/udp"])
    answers.to_dict()

What lies where in memory is defined in `docs/memory-layout.md` of DTA; how keys are hashed, copies checked and votes
counted is as in the Rust readers, and tested against them.
"""

from . import flows, kinds
from .answers import CounterAnswers, Entries, KeyWriteAnswers, PathAnswers, SketchAnswers
from .epoch import EarlierEpoch, Epoch, Waterfall
from .errors import AskError, BadKey, Error, NoSuchStore, RegionError
from .flows import FlowSummary, RankedFlow, TopFlows
from .key import Flow, Key, keys
from .kinds import *
from .live import Collector, connect
from .memory import Memory, open_memory, open_region
from .spec import StoreSpec
from .store import Store

#: Opens one region file: `dta.open("flows.region")`.
open = open_region

__all__ = [
    "AskError",
    "BadKey",
    "Collector",
    "CounterAnswers",
    "EarlierEpoch",
    "Entries",
    "Epoch",
    "Error",
    "Flow",
    "FlowSummary",
    "Key",
    "KeyWriteAnswers",
    "Memory",
    "NoSuchStore",
    "PathAnswers",
    "RankedFlow",
    "RegionError",
    "SketchAnswers",
    "Store",
    "StoreSpec",
    "TopFlows",
    "Waterfall",
    "connect",
    "keys",
    "open",
    "open_memory",
]
__all__ += kinds.__all__
