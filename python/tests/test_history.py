"""Stores with epochs: which epoch answers, other moments, and series. The test writes memory in place of a NIC."""

import json
import os
import subprocess
import time
from datetime import datetime, timedelta

import numpy as np
import pytest

import dta
from dta import layout

from conftest import program

FLOW = "10.0.0.1:5000->10.0.0.2:5000/udp"
CONFIG = """
[collector]
listen = "127.0.0.1:0"
memory = "{folder}/memory"
[soft]
port = 0
[history]
directory = "{folder}/history"
[[store]]
id = 1
name = "flows"
kind = "key-write"
slots = 1024
value_len = 4
redundancy = 2
epoch = "2s"
[[store]]
id = 2
name = "values"
kind = "key-write"
slots = 1024
value_len = 4
redundancy = 2
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "collector.toml").write_text(CONFIG.format(folder=tmp_path))
    return tmp_path


@pytest.fixture
def collector(folder):
    command = [program("dta-collector"), "serve", "--config", folder / "collector.toml"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "DTA_COLLECTOR_LOG": "warn"})
    try:
        with dta.connect(json.loads(process.stdout.readline())["listen"]) as collector:
            yield collector
    finally:
        process.terminate()
        process.wait(10)


def write(path, value):
    """Writes the value of a flow, as a NIC does. Returns the generation of the memory."""
    store = dta.open(path)
    keys, spec = dta.keys([FLOW]), store.spec
    data = np.frombuffer(int(value).to_bytes(4, "big"), dtype=np.uint8).reshape(1, -1)
    checksum = int(layout.checksums(keys, data)[0]).to_bytes(4, "big")
    start = os.stat(path).st_size - spec.region_len
    with open(path, "r+b") as file:
        for slot in layout.slots(keys, spec.redundancy, spec.slots)[0]:
            file.seek(start + int(slot) * spec.element_len)
            file.write(checksum + data.tobytes())
    return store.generation


def test_each_epoch_is_asked_and_named(folder, collector):
    flows, path = collector["flows"], folder / "memory/flows.region"
    values, moments, written = {}, {}, set()
    while len(values) < 3:
        # Once in each epoch; one that ended just then is not asked.
        if dta.open(path).generation not in written:
            value = len(written) + 1
            generation, at = write(path, value), time.time()
            written.add(generation)
            answers = flows.query(FLOW)
            if answers.epoch.generation == generation and answers.found[0]:
                values[generation], moments[generation] = value, at
        time.sleep(0.1)
    end = time.monotonic() + 60
    while not all(any(e.generation == g and e.state == "kept" for e in flows.epochs()) for g in sorted(values)[:-1]):
        assert time.monotonic() < end, flows.epochs()
        time.sleep(0.1)
    epochs = {epoch.generation: epoch for epoch in flows.epochs()}
    assert [epoch.opened for epoch in epochs.values()] == sorted(epoch.opened for epoch in epochs.values())
    for generation, at in moments.items():
        then = flows.query([FLOW, "00"], at=at)
        assert then.numbers()[0, 0] == values[generation] and then.found.tolist() == [True, False]
        assert then.epoch.generation == generation
        # The first moment of an epoch, with and without a time zone, and the one before it.
        opened = then.epoch.opened
        for same in (opened, opened.astimezone().replace(tzinfo=None)):
            assert flows.query(FLOW, at=same).epoch.generation == generation
        if generation - 1 in epochs:
            before = flows.query(FLOW, at=opened - timedelta(milliseconds=1))
            assert before.epoch.generation == generation - 1
    series = flows.series([FLOW, "00"], since=min(moments.values()))
    told = {answers.epoch.generation: answers.numbers()[0, 0] for answers in series if answers.found[0]}
    assert {generation: told[generation] for generation in values} == values
    first = epochs[min(values)]
    part = flows.series(FLOW, since=first.opened, until=first.flipped_from)
    assert [answers.epoch.generation for answers in part] == [first.generation]
    assert flows.epochs(since=first.opened, until=first.flipped_from) == [first]


def test_what_is_not_there_is_told(folder, collector):
    flows = collector["flows"]
    assert flows.query(FLOW).epoch.state == "open"
    with pytest.raises(dta.AskError, match="nothing of the moment 1970-01-01T00:00:01.000Z is kept"):
        flows.query(FLOW, at=1)
    with pytest.raises(dta.AskError, match="is yet to come"):
        flows.query(FLOW, at=datetime.now() + timedelta(hours=1))
    for asked in (
        lambda: collector["values"].query(FLOW, at=time.time()),
        lambda: collector["values"].series(FLOW, since=1),
        lambda: collector["values"].epochs(),
    ):
        with pytest.raises(dta.AskError, match="no history"):
            asked()
    assert collector["values"].query(FLOW).epoch is None
    file = dta.open(folder / "memory/flows.region")
    for asked in (lambda: file.query(FLOW, at=1), lambda: file.series(FLOW, since=1), lambda: file.epochs()):
        with pytest.raises(dta.AskError, match="connect to its collector"):
            asked()
