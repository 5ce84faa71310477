"""Stores with epochs: which epoch answers, other moments, and series. The test writes memory in place of a NIC."""

import json
import os
import subprocess
import time
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

import dta
from dta import layout
from dta.epoch import millis

from conftest import HANGS, program

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
value_len = 12
redundancy = 2
keys = "{keys}"
epoch = "2s"
[[store]]
id = 2
name = "values"
kind = "key-write"
slots = 1024
value_len = 4
redundancy = 2
[[store]]
id = 3
name = "bytes"
kind = "key-increment"
slots = 1024
redundancy = 2
epoch = "2s"
[[store]]
id = 4
name = "packets"
kind = "sketch-merge"
columns = 16
rows = 2
epochs = 4
expected = 1
epoch = "2s"
[[store]]
id = 5
name = "events"
kind = "append"
lists = 2
ring = 64
batch_len = 32
entry_len = 4
epoch = "2s"
"""


@pytest.fixture(params=["hashed", "inline"])
def folder(request, tmp_path):
    (tmp_path / "collector.toml").write_text(CONFIG.format(folder=tmp_path, keys=request.param))
    return tmp_path


@pytest.fixture
def collector(folder):
    command = [program("dta-collector"), "serve", "--config", folder / "collector.toml"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "DTA_COLLECTOR_LOG": "warn"})
    try:
        with dta.connect(json.loads(process.stdout.readline())["listen"], timeout=HANGS) as collector:
            yield collector
    finally:
        process.terminate()
        process.wait(HANGS)


def write(path, value):
    """Writes the value of a flow, as a NIC does. Returns the generation of the memory."""
    store = dta.open(path)
    keys, spec = dta.keys([FLOW]), store.spec
    held = (keys.tobytes() if spec.keys == "inline" else b"") + int(value).to_bytes(4, "big") + bytes(8)
    data = np.frombuffer(held, dtype=np.uint8).reshape(1, -1)
    checksum = int(layout.checksums(keys, data)[0]).to_bytes(4, "big")
    start = os.stat(path).st_size - spec.region_len
    with open(path, "r+b") as file:
        for slot in layout.slots(keys, spec.redundancy, spec.slots)[0]:
            file.seek(start + int(slot) * spec.element_len)
            file.write(checksum + data.tobytes())
    return store.generation


def test_a_moment_is_the_millisecond_that_has_begun():
    assert millis(1795679678.0869) == 1795679678086
    for n in range(1000):
        moment = 1795679678000 + n
        assert millis(moment / 1000) == millis(datetime.fromtimestamp(moment // 1000).replace(microsecond=n * 1000)) == moment
    assert (millis(None), millis(0)) == (0, 1)


def test_each_epoch_is_asked_and_named(folder, collector):
    flows, path = collector["flows"], folder / "memory/flows.region"
    values, moments, written = {}, {}, set()
    while len(values) < 3:
        # Once in each epoch; an epoch that ended just then is not asked.
        if dta.open(path).generation not in written:
            value = len(written) + 1
            generation, at = write(path, value), time.time()
            written.add(generation)
            answers = flows.query(FLOW)
            # Epochs end at even seconds; until its memory is changed, what one is still written belongs to the next.
            over = answers.epoch.opened.timestamp() // 2 * 2 + 2
            if answers.epoch.generation == generation and answers.found[0] and at < over:
                values[generation], moments[generation] = value, at
        time.sleep(0.1)
    is_kept = lambda g: any(e.generation == g and e.state == "kept" for e in flows.epochs())
    wait_for("all but the last are kept", lambda: all(is_kept(g) for g in sorted(values)[:-1]))
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
    numbers = {answers.epoch.generation: answers.numbers()[0, 0] for answers in series if answers.found[0]}
    assert {generation: numbers[generation] for generation in values} == values
    first = epochs[min(values)]
    part = flows.series(FLOW, since=first.opened, until=first.ended)
    assert [answers.epoch.generation for answers in part] == [first.generation]
    assert flows.epochs(since=first.opened, until=first.ended) == [first]


def elements(path):
    """The elements of a region file, to write to as a NIC does."""
    spec = dta.open(path).spec
    start = os.stat(path).st_size - spec.region_len
    return layout.elements(spec, np.memmap(path, dtype=np.uint8, mode="r+")[start:])


def wait_for(what, find):
    """What `find` gives, once it gives something."""
    end = time.monotonic() + HANGS
    while not (found := find()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


def kept_with(series, is_it):
    """The first kept epoch of whose answers `is_it` says yes."""
    return next((of.epoch for of in series if of.epoch.state == "kept" and is_it(of)), None)


def test_counters_are_asked_as_of_the_end_of_an_epoch(folder, collector):
    store, data = collector["bytes"], elements(folder / "memory/bytes.region")
    slots, began = layout.slots(dta.keys([FLOW]), 2, 1024)[0], store.epochs()[0].opened
    epochs = []
    for count in (5, 7):
        written = datetime.now(timezone.utc) - timedelta(milliseconds=1)
        data[slots] = count
        counted = lambda: kept_with(store.series(FLOW, since=began), lambda of: of.counts[0] == count)
        epochs.append(wait_for("it is kept", counted))
        assert written <= epochs[-1].closed
    returned = [store.query([FLOW, "00"], at=epoch.opened).counts.tolist() for epoch in epochs]
    assert returned == [[5, 0], [7, 0]]
    assert store.query(FLOW).counts.tolist() == [7] and store.query(FLOW).epoch.state == "open"
    series = store.series(FLOW, since=epochs[0].opened)
    assert [answers.counts[0] for answers in series] == sorted(answers.counts[0] for answers in series)
    assert series[0].counts[0] == 5 and series[-1].counts[0] == 7
    kept = store.query(FLOW, at=epochs[1].opened).epoch
    assert kept == epochs[1]
    assert (kept.waterfall.sent, kept.waterfall.lost, kept.sketch) == (0, {}, None)


def test_the_sketch_of_a_moment_is_found_without_its_number(folder, collector):
    store, data = collector["packets"], elements(folder / "memory/packets.region")
    for epoch in (40, 41):
        place = data[epoch % 4]
        place["epoch"], place["expected"], place["cells"], place["merged"] = epoch, 1, epoch, 1
        wait_for("it is kept", lambda: any(of.sketch == epoch for of in store.epochs()))
    for of in store.epochs():
        if of.sketch is not None:
            answers = store.query(FLOW, at=of.opened)
            assert (answers.epoch, answers.estimates[0]) == (of.sketch, of.sketch)
            assert answers.table_epoch == of
            assert not store.query(FLOW, of.sketch + 1, at=of.opened).known[0]
    with pytest.raises(dta.AskError, match="which epoch"):
        store.query(FLOW)
    with pytest.raises(dta.AskError, match="the oldest epoch kept"):
        store.query(FLOW, at=1)


def test_the_entries_of_a_moment_are_those_of_its_epoch(folder, collector):
    store, data = collector["events"], elements(folder / "memory/events.region")
    began, epochs = store.epochs()[0].opened, []
    for sequence in (1, 2):
        entries = [sequence * 10, sequence * 10 + 1]
        batch = np.zeros(1, dtype=data.dtype)
        batch["entries"][0, :8] = np.array(entries, dtype=">u4").view(np.uint8)
        batch["sequence"], batch["count"] = sequence, 2
        sums = layout.batch_checks(np.array([1], dtype=np.uint32), batch.view(np.uint8).reshape(1, -1))
        batch["check"] = sums.astype(">u4").view(np.uint8)[1:]
        written = datetime.now(timezone.utc) - timedelta(milliseconds=1)
        data[1, (sequence - 1) % 64] = batch[0]
        has_them = lambda of: of.numbers().reshape(-1).tolist() == entries
        epochs.append(wait_for("it is kept", lambda: kept_with(store.series(1, since=began), has_them)))
        # It belongs to the epoch in which it was read.
        assert written <= epochs[-1].closed
    returned = [store.read(1, at=epoch.opened).numbers().reshape(-1).tolist() for epoch in epochs]
    assert returned == [[10, 11], [20, 21]]
    series = [*store.series(1, since=epochs[0].opened)]
    assert [n for of in series for n in of.numbers().reshape(-1)] == [10, 11, 20, 21]
    assert [of.epoch.opened for of in series] == sorted(of.epoch.opened for of in series)
    assert all(len(of) == 0 for of in store.series(0, since=began))
    with pytest.raises(dta.AskError, match="has no list 2"):
        store.read(2, at=began)


def test_what_is_not_there_is_refused(folder, collector):
    flows = collector["flows"]
    assert flows.query(FLOW).epoch.state == "open"
    with pytest.raises(dta.AskError, match="nothing is kept of 1970-01-01T00:00:01.000Z"):
        flows.query(FLOW, at=1)
    with pytest.raises(dta.AskError, match="is in the future"):
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
