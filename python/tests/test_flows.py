"""Flows over all stores: the test writes memory in place of a NIC, and `dta-collector top` and `query flow` are the truth."""

import json
import os
import subprocess

import numpy as np
import pytest

import dta
from dta import layout
from dta.key import hashed_key

from conftest import HANGS, program

FLOWS = [
    "10.0.0.1:5000->10.0.0.2:80/tcp",
    "10.0.0.3:5001->10.0.0.2:80/tcp",
    "[2001:db8::1]:1->[2001:db8::2]:2/udp",
    "10.0.0.9->10.0.0.2/icmp",
]
INT = """
[[store]]
id = 16
name = "int-paths"
kind = "key-write"
slots = 1024
value_len = 60
redundancy = 2
[[store]]
id = 17
name = "int-values"
kind = "key-write"
slots = 1024
value_len = 12
redundancy = 2
[[store]]
id = 18
name = "int-events"
kind = "append"
lists = 4
ring = 16
batch_len = 128
entry_len = 60
[[store]]
id = 19
name = "int-counters"
kind = "key-increment"
slots = 65536
redundancy = 2
"""
DTA = """
[[store]]
id = 1
name = "keys"
kind = "append"
lists = 2
ring = 16
batch_len = 32
entry_len = 16
[[store]]
id = 2
name = "bytes"
kind = "key-increment"
slots = 65536
redundancy = 2
[[store]]
id = 3
name = "packets"
kind = "sketch-merge"
columns = 16
rows = 2
epochs = 4
expected = 1
"""


class Bed:
    """A collector and its memory."""

    def __init__(self, folder, stores):
        head = f'[collector]\nlisten = "127.0.0.1:0"\nmemory = "{folder}/memory"\n[soft]\nport = 0\n'
        (folder / "collector.toml").write_text(head + stores)
        command = [program("dta-collector"), "serve", "--config", folder / "collector.toml"]
        env = {**os.environ, "DTA_COLLECTOR_LOG": "warn"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        self.address = json.loads(self.process.stdout.readline())["listen"]
        self.memory = folder / "memory"

    def rust(self, *arguments):
        """What a command of `dta-collector` prints for programs."""
        command = [program("dta-collector"), *arguments, "--collector", self.address, "-o", "json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def elements(self, store):
        path = self.memory / f"{store}.region"
        spec = dta.open(path).spec
        start = os.stat(path).st_size - spec.region_len
        return spec, layout.elements(spec, np.memmap(path, dtype=np.uint8, mode="r+")[start:])

    def count(self, store, key, count):
        spec, data = self.elements(store)
        data[layout.slots(dta.keys([key]), spec.redundancy, spec.slots)[0]] += np.uint64(count)

    def put(self, store, key, value):
        spec, data = self.elements(store)
        keys, value = dta.keys([key]), np.frombuffer(value.ljust(spec.value_len, b"\0"), dtype=np.uint8)
        slots = layout.slots(keys, spec.redundancy, spec.slots)[0]
        data["value"][slots] = value
        data["checksum"][slots] = layout.checksums(keys, value[np.newaxis, :])[0]

    def append(self, store, list, entries):
        """One batch for each entry, from the first sequence on."""
        spec, data = self.elements(store)
        for sequence, entry in enumerate(entries, 1):
            batch = np.zeros(1, dtype=data.dtype)
            batch["entries"][0, : spec.entry_len] = np.frombuffer(entry.ljust(spec.entry_len, b"\0"), dtype=np.uint8)
            batch["sequence"], batch["count"] = sequence, 1
            sums = layout.batch_checks(np.array([list], dtype=np.uint32), batch.view(np.uint8).reshape(1, -1))
            batch["check"] = sums.astype(">u4").view(np.uint8)[1:]
            data[list, sequence - 1] = batch[0]


@pytest.fixture
def bed(request, tmp_path):
    bed = Bed(tmp_path, request.param)
    try:
        yield bed
    finally:
        bed.process.terminate()
        bed.process.wait(HANGS)


def with_both(bed):
    """The stores by their collector, and by their region files."""
    with dta.connect(bed.address, timeout=HANGS) as collector:
        yield collector
    yield dta.open_memory(bed.memory)


def directory_entry(key, meaning=b""):
    return b"keys" + bytes(key) + bytes([len(meaning)]) + meaning


def assert_same_top(own, rust):
    assert [(str(row.flow), row.value) for row in own.flows] == [(row["flow"], row["value"]) for row in rust["flows"]]
    assert [str(row.key) for row in own.flows] == [row["key"] for row in rust["flows"]]
    facts = ("by", "store", "known", "with_figure")
    assert [getattr(own, fact) for fact in facts] == [rust[fact] for fact in facts]


@pytest.mark.parametrize("bed", [INT], indirect=True, ids=["int"])
def test_flows_of_int_are_ranked_and_summarized_as_the_commands_do(bed):
    flows = [dta.Flow.parse(flow) for flow in FLOWS]
    drops = hashed_key(flows[0].packed() + bytes([71]), b"fdrp")
    entries = [directory_entry(flow.key(), b"" if flow.src.version == 4 else flow.packed()) for flow in flows]
    entries.append(directory_entry(drops, flows[0].key() + (71).to_bytes(4, "big")))
    # An interface is no flow.
    entries.append(directory_entry((6).to_bytes(4, "big") + (12).to_bytes(4, "big") + bytes(4) + b"ifnm", b"eth0"))
    bed.append("int-events", 3, entries)
    bed.count("int-counters", drops, 3)
    for number, flow in enumerate(flows[:3], 1):
        bed.count("int-counters", flow.key(), 10 * number)
        bed.count("int-counters", hashed_key(flow.packed(), b"pkts"), 100 - number)
        bed.count("int-counters", hashed_key(flow.packed(), b"byts"), 1000 + number)
    bed.put("int-values", flows[1].key(), (408).to_bytes(4, "big") + (7).to_bytes(8, "big"))
    switches = b"".join(switch.to_bytes(4, "big") for switch in (6, 0xFFFFFFFF, 4))
    bed.put("int-paths", flows[0].key(), bytes([3, 0, 0, 0]) + switches)
    rankings = [None, *dta.flows.RANKINGS]
    tops = {by: bed.rust("top", *(["--by", by] if by else [])) for by in rankings}
    assert tops[None]["by"] == "latency" and len(tops["drops"]["flows"]) == 1
    answers = bed.rust("query", "flow", *FLOWS[:3])
    for stores in with_both(bed):
        for by in rankings:
            assert_same_top(stores.top(by), tops[by])
        assert [row.value for row in stores.top("packets", 2).flows] == [99, 98]
        for text, rust in zip(FLOWS, answers):
            own = stores.flow(text)
            assert str(own.flow) == rust["flow"]
            assert own.counts == {name: rust[name] for name in ("reports", "packets", "bytes") if rust[name]}
            assert own.latency == (rust["latency"] and rust["latency"]["value"])
            assert own.path == ([hop["switch"] for hop in rust["hops"]] or None)
            assert sum(own.drops.values()) == sum(of["counted"] for of in rust["drops"])
        assert stores.flow(FLOWS[0]).path == [6, None, 4] and stores.flow(FLOWS[0]).drops == {71: 3}
        assert stores.flow(FLOWS[3]) == dta.FlowSummary(flows[3], None, None, {}, {}, {})


@pytest.mark.parametrize("bed", [DTA], indirect=True, ids=["dta"])
def test_flows_of_dta_reports_are_ranked_by_what_is_there(bed):
    keys = [dta.Flow.parse(flow).key() for flow in FLOWS]
    bed.append("keys", 0, keys[:2])
    bed.append("keys", 1, keys[2:])
    for number, key in enumerate(keys, 1):
        bed.count("bytes", key, 1500 * number)
    ranked = bed.rust("top")
    assert ranked["by"] == "bytes" and len(ranked["flows"]) == 4
    of_store = bed.rust("top", "--store", "bytes", "-n", "2")
    for stores in with_both(bed):
        top = stores.top()
        assert [(str(row.key), row.value) for row in top.flows] == [(row["key"], row["value"]) for row in ranked["flows"]]
        assert top.to_dict()["bytes"] == [6000, 4500, 3000, 1500]
        assert [row.value for row in stores.top(number=2, store="bytes").flows] == [row["value"] for row in of_store["flows"]]
        assert [str(row) for row in stores.top(keys=FLOWS[:1]).flows] == FLOWS[:1]
        assert stores.flow(FLOWS[0]).stores == {"bytes": 1500}
        with pytest.raises(dta.AskError, match="no latency here"):
            stores.top("latency")
        with pytest.raises(dta.AskError, match="store packets is of sketch-merge"):
            stores.top(store="packets")
        with pytest.raises(dta.AskError, match="must be one of latency"):
            stores.top("size")
