"""Flows over all stores: which are the largest, and what is known of one, as `dta-collector top` and `query flow` answer it.

Stores cannot list their keys. Flows come from the key directory that the translator writes (list 3 of `int-events`) or,
without it, from the only append store whose entries are keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from .epoch import Moment
from .errors import AskError
from .key import KEY_LEN, Flow, Key, KeyLike, hashed_key
from .kinds import AppendStore, KeyIncrementStore, KeyWriteStore, PostcardingStore
from .store import Store

#: What flows can be ranked by. If nothing is asked for, the first of these for which any flow has a figure is used.
RANKINGS = ("latency", "bytes", "packets", "reports", "drops")

_EVENTS, _KEY_LIST = "int-events", 3
_PATHS, _POSTCARDS, _VALUES, _COUNTERS = "int-paths", "int-postcards", "int-values", "int-counters"
#: Stores whose keys and values are not those of DTA reports.
_TELEMETRY = ("int-", "trace-")
#: Kinds of keys (the last four bytes) that stand for no flow.
_NO_FLOWS = (b"qocc", b"qcon", b"util", b"drop")
_UNKNOWN_SWITCH = 0xFFFFFFFF
_STORED_HOPS = 14


@dataclass(frozen=True)
class RankedFlow:
    """A flow with its figure."""

    #: Its key.
    key: Key
    #: The flow; `None` if only its key is known.
    flow: Optional[Flow]
    #: Its figure.
    value: int

    def __str__(self) -> str:
        return str(self.flow or self.key)


@dataclass(frozen=True)
class TopFlows:
    """The top flows, highest first."""

    #: What they are ranked by: one of `RANKINGS`, or the name of the store that has the figures.
    by: str
    #: The store with the figures.
    store: str
    #: The top flows.
    flows: List[RankedFlow]
    #: How many flows are known.
    known: int
    #: How many of these have a figure, including those that are not among the top flows.
    with_figure: int

    def to_dict(self) -> Dict[str, List[Any]]:
        """Columns `flow` (text) and one with the name of the ranking, for `pandas.DataFrame`."""
        return {"flow": [str(flow) for flow in self.flows], self.by: [flow.value for flow in self.flows]}


@dataclass(frozen=True)
class FlowSummary:
    """What is known of a flow."""

    #: The flow.
    flow: Flow
    #: The switches on its path, in the order of its packets, `None` for unknown ones; `None` if no path is known.
    path: Optional[List[Optional[int]]]
    #: Nanoseconds through all hops; `None` if unknown.
    latency: Optional[int]
    #: Its `reports`, `packets` and `bytes`: those that were counted.
    counts: Dict[str, int]
    #: Its dropped packets by the number of the reason.
    drops: Dict[int, int]
    #: What stores of DTA reports know about it, by their names: a path, a count or a value (bytes).
    stores: Dict[str, Any]


@dataclass
class _KnownFlow:
    flow: Optional[Flow] = None
    #: Keys of its drops, with the number of the reason.
    drops: List[Tuple[Key, int]] = field(default_factory=list)


class FlowStores(Mapping[str, Store]):
    """Stores by name, and what they know together of flows."""

    def top(
        self,
        by: Optional[str] = None,
        number: int = 10,
        *,
        store: Optional[str] = None,
        keys: Optional[Iterable[KeyLike]] = None,
        at: Optional[Moment] = None,
    ) -> TopFlows:
        """The `number` top flows, now or by the figures of the moment `at`.

        `by` is one of `RANKINGS`; `store` ranks by another store instead: counts (key-increment), or values (key-write),
        whose first 4 bytes are the number. `keys` are the flows to rank, if not those that are listed. Raises `AskError`
        if there is no store for it.
        """
        if by is not None and by not in RANKINGS:
            raise AskError(f"by is {by!r}, but must be one of {', '.join(RANKINGS)}")
        is_directory = keys is None and isinstance(self.get(_EVENTS), AppendStore)
        flows = _given_flows(keys) if keys is not None else self._listed_flows()
        found: Optional[Tuple[str, str, List[RankedFlow]]] = None
        for ranking in [by] if by else [store] if store else RANKINGS:
            figures = store or self._figures_store(ranking, is_directory, keys is not None)
            if figures is None:
                continue
            rows = self._figures(None if store else ranking, self[figures], flows, at)
            if found is None or rows:
                found = ranking, figures, rows
            if rows:
                break
        if found is None:
            raise AskError(f"no {by or 'figures of flows'} here: there are {', '.join(self)}")
        ranking, figures, rows = found
        rows.sort(key=lambda row: (-row.value, row.key))
        return TopFlows(ranking, figures, rows[:number], len(flows), len(rows))

    def flow(self, flow: "str | Flow", *, at: Optional[Moment] = None) -> FlowSummary:
        """What is known of a flow, now or at the moment `at`, of which all stores that are asked need epochs."""
        flow = Flow.parse(flow) if isinstance(flow, str) else flow
        key = flow.key()
        counters = self.get(_COUNTERS)
        counts: Dict[str, int] = {}
        drops: Dict[int, int] = {}
        if isinstance(counters, KeyIncrementStore):
            names = {"reports": key, "packets": _hashed(flow, b"pkts"), "bytes": _hashed(flow, b"byts")}
            counted = counters.query(names.values(), at=at).counts.tolist()
            counts = {name: count for name, count in zip(names, counted) if count}
            listed = self._listed_flows() if isinstance(self.get(_EVENTS), AppendStore) else {}
            reasons = listed.get(key, _KnownFlow()).drops
            dropped = counters.query([of for of, _ in reasons], at=at).counts.tolist() if reasons else []
            drops = {reason: count for (_, reason), count in zip(reasons, dropped) if count}
        values = self.get(_VALUES)
        latency = None
        if isinstance(values, KeyWriteStore):
            answers = values.query(key, at=at)
            latency = int(answers.numbers()[0][0]) if answers.found[0] else None
        own = {
            name: answer
            for name, store in self.items()
            if not name.startswith(_TELEMETRY) and (answer := _answer(store, key, at)) is not None
        }
        return FlowSummary(flow, self._path(key, at), latency, counts, drops, own)

    def _path(self, key: Key, at: Optional[Moment]) -> Optional[List[Optional[int]]]:
        paths = self.get(_PATHS)
        if isinstance(paths, KeyWriteStore):
            answers = paths.query(key, at=at)
            if answers.found[0]:
                hops = int(answers.values[0][0])
                switches = answers.numbers()[0][1:].tolist()[: min(hops, _STORED_HOPS)]
                return [None if switch == _UNKNOWN_SWITCH else switch for switch in switches]
        postcards = self.get(_POSTCARDS)
        path = _answer(postcards, key, at) if isinstance(postcards, PostcardingStore) else None
        return path if isinstance(path, list) else None

    def _listed_flows(self) -> Dict[Key, _KnownFlow]:
        """The flows that are listed, with what is known of each."""
        events = self.get(_EVENTS)
        if isinstance(events, AppendStore):
            return _flows_of_directory(entry.tobytes() for entry in events.read(_KEY_LIST).entries)
        lists = [s for s in self.values() if isinstance(s, AppendStore) and s.spec.entry_len == KEY_LEN]
        if len(lists) != 1:
            raise AskError(
                f"no list of flows here: neither {_EVENTS} nor one append store whose entries are keys (16 bytes); give keys"
            )
        entries = [lists[0].read(number).entries for number in range(lists[0].spec.lists)]
        return _given_flows(entry.tobytes() for entry in np.concatenate(entries))

    def _figures_store(self, by: str, is_directory: bool, are_given: bool) -> Optional[str]:
        """The store with figures of flows, by the rules of `dta-collector top`."""
        name, kind = (_VALUES, KeyWriteStore) if by == "latency" else (_COUNTERS, KeyIncrementStore)
        if (is_directory or are_given) and isinstance(self.get(name), kind):
            return name
        if is_directory:
            return None
        return by if isinstance(self.get(by), (KeyIncrementStore, KeyWriteStore)) else None

    def _figures(
        self, by: Optional[str], store: Store, flows: Dict[Key, _KnownFlow], at: Optional[Moment]
    ) -> List[RankedFlow]:
        """The flows that have a figure; without `by`, by the values or counts under the flows' own keys."""
        if not flows:
            return []
        if isinstance(store, KeyWriteStore):
            answers = store.query(flows, at=at)
            values = zip(answers.found.tolist(), answers.numbers()[:, 0].tolist())
            return [
                RankedFlow(key, known.flow, value)
                for (key, known), (found, value) in zip(flows.items(), values)
                if found
            ]
        if not isinstance(store, KeyIncrementStore):
            raise AskError(f"store {store.name} is of {store.spec.kind}, which has no figures to rank by")
        asked: List[Key] = []
        ends = []
        for key, known in flows.items():
            asked += _counted_keys(by if store.name == _COUNTERS else None, key, known)
            ends.append(len(asked))
        counts = store.query(asked, at=at).counts.tolist() if asked else []
        sums = (sum(counts[start:end]) for start, end in zip([0, *ends], ends))
        return [RankedFlow(key, known.flow, total) for (key, known), total in zip(flows.items(), sums) if total]


def _given_flows(keys: Iterable[KeyLike]) -> Dict[Key, _KnownFlow]:
    flows = {}
    for of in keys:
        text = Flow.parse(of) if isinstance(of, str) and "->" in of else of
        key = Key(text)
        flows[key] = _KnownFlow(text if isinstance(text, Flow) else key.flow())
    return flows


def _flows_of_directory(entries: Iterable[bytes]) -> Dict[Key, _KnownFlow]:
    """What entries of the key directory say: `"keys", key[16], length 8`, and what the key stands for."""
    means = {Key(entry[4:20]): entry[21 : 21 + entry[20]] for entry in entries if entry[:4] == b"keys"}
    flows: Dict[Key, _KnownFlow] = {}

    def known_flow(key: Key) -> _KnownFlow:
        known = flows.setdefault(key, _KnownFlow())
        known.flow = known.flow or key.flow() or _flow_from_bytes(means.get(key, b""))
        return known

    for key, meaning in means.items():
        kind = key[12:]
        if kind in _NO_FLOWS or kind == b"ifnm":
            continue
        if kind in (b"hlat", b"fdrp") and len(meaning) >= 20:
            known = known_flow(Key(meaning[:16]))
            if kind == b"fdrp":
                known.drops.append((key, int.from_bytes(meaning[16:20], "big")))
        else:
            known_flow(key)
    return flows


def _flow_from_bytes(packed: bytes) -> Optional[Flow]:
    return Flow.from_packed(packed) if len(packed) == 37 else None


def _hashed(flow: Flow, kind: bytes) -> Key:
    return hashed_key(flow.packed(), kind)


def _counted_keys(by: Optional[str], key: Key, known: _KnownFlow) -> List[Key]:
    """The keys of a flow whose counts are summed."""
    if by == "drops":
        return [of for of, _ in known.drops]
    if by in ("packets", "bytes"):
        kind = b"pkts" if by == "packets" else b"byts"
        # Without the flow, its other keys cannot be computed.
        return [_hashed(known.flow, kind)] if known.flow else []
    return [key]


def _answer(store: Store, key: Key, at: Optional[Moment]) -> Any:
    """What a store has under a flow's own key; `None` if nothing."""
    if isinstance(store, PostcardingStore):
        return store.query(key, at=at)[0]["path"]
    if isinstance(store, KeyIncrementStore):
        return int(store.query(key, at=at).counts[0]) or None
    if isinstance(store, KeyWriteStore):
        return store.query(key, at=at)[0]["value"]
    return None
