"""The byte-exact vectors of `dta-proto/vectors/layout.json`, which the Rust code is held to, too."""

import json
from pathlib import Path

import numpy as np
import pytest

from dta import append, kinds, layout
from dta.key import keys
from dta.spec import StoreSpec

VECTORS = json.loads((Path(__file__).parents[2] / "dta-proto/vectors/layout.json").read_text())


def array(text):
    return np.frombuffer(bytes.fromhex(text), dtype=np.uint8)


def key_write(vector_slot, value_len, key, words="hashed"):
    spec = StoreSpec(1, "s", "key-write", slots=1, value_len=value_len, redundancy=1, keys=words)
    return kinds.key_write.read(spec, array(vector_slot), keys(bytes.fromhex(key)), "first", 0)


def postcarding(row, hops, key):
    spec = StoreSpec(1, "s", "postcarding", slots=1, hops=hops, redundancy=1)
    return kinds.postcarding.read(spec, array(row), keys(bytes.fromhex(key)))


@pytest.mark.parametrize("vector", VECTORS["slots"])
def test_slots(vector):
    found = layout.slots(keys(bytes.fromhex(vector["key"])), 8, vector["slots"])
    assert found.tolist() == [vector["at"]]


@pytest.mark.parametrize("vector", VECTORS["key_write"])
def test_key_write(vector):
    answers = key_write(vector["slot"], vector["value_len"], vector["key"], vector["keys"])
    assert answers[0]["value"] == bytes.fromhex(vector["value"]).ljust(vector["value_len"], b"\0")
    assert (answers[0]["agreeing"], answers[0]["differing"]) == (1, 0)


@pytest.mark.parametrize("vector", VECTORS["postcarding"])
def test_postcarding(vector):
    answers = postcarding(vector["row"], vector["hops"], vector["key"])
    path = answers[0]["path"]
    assert {str(hop): value for hop, value in enumerate(path) if value is not None} == vector["values"]
    assert answers[0]["complete"] == vector["complete"]
    assert answers.path_length.tolist() == [vector["path_length"]]


@pytest.mark.parametrize("vector", VECTORS["append"])
def test_append(vector):
    lists, ring, batch = vector["list"] + 1, vector["ring"], array(vector["batch"])
    spec = StoreSpec(
        1, "s", "append", lists=1 << lists.bit_length(), ring=ring, batch_len=len(batch), entry_len=vector["entry_len"]
    )
    # Only one list: 65,536 rings of 65,536 batches would not fit any memory.
    place = vector["place"] * len(batch)
    assert vector["offset"] == vector["list"] * ring * len(batch) + place
    data = np.zeros(ring * len(batch), dtype=np.uint8)
    data[place : place + len(batch)] = batch
    found = append.Ring.look(spec, data.reshape(ring, -1), vector["list"])
    assert found.ends() == (vector["sequence"], vector["sequence"])
    assert not found.torn.any()
    walk = append._Walk(spec, found, 0)
    assert walk.to_the_end(found, None)
    assert walk.entries().entries.tobytes() == bytes.fromhex(vector["entries"])


@pytest.mark.parametrize("vector", VECTORS["key_increment"])
def test_key_increment(vector):
    key, slots = keys(bytes.fromhex(vector["key"])), vector["slots"]
    assert (layout.slots(key, 8, slots) * 8).tolist() == [vector["offsets"]]
    spec = StoreSpec(1, "s", "key-increment", slots=1, redundancy=1)
    assert kinds.key_increment.read(spec, array(vector["bytes"]), key).counts.tolist() == [vector["counter"]]


@pytest.mark.parametrize("vector", VECTORS["sketch_merge"])
def test_sketch_merge(vector):
    spec = StoreSpec(
        1, "s", "sketch-merge", columns=vector["columns"], rows=len(vector["cells"]), epochs=vector["epochs"], expected=1
    )
    element = array(vector["bytes"])
    place = (vector["epoch"] & (spec.epochs - 1)) * spec.columns + vector["column"]
    assert vector["offset"] == place * spec.element_len
    column = element.view(layout.dtype(spec))[0]
    assert [column[name] for name in ("epoch", "merged", "expected")] == [
        vector[name] for name in ("epoch", "merged", "expected")
    ]
    assert column["cells"].tolist() == vector["cells"]


@pytest.mark.parametrize("vector", VECTORS["rejected"]["key_write"], ids=lambda v: v["why"])
def test_rejected_slots(vector):
    value_len = len(vector["slot"]) // 2 - (4 if vector["keys"] == "hashed" else 20)
    if value_len == 0:
        pytest.skip("a slot of a store has always room for a value: there is none to read")
    answers = key_write(vector["slot"], value_len, vector["key"], vector["keys"])
    assert answers.to_dict()["value"] == [None]
    assert not answers.values.any()


@pytest.mark.parametrize("vector", VECTORS["rejected"]["postcarding"], ids=lambda v: v["why"])
def test_rejected_rows(vector):
    answers = postcarding(vector["row"], 6, vector["key"])
    assert answers.to_dict()["path"] == [None]
    assert not answers.present.any() and not answers.complete.any()


@pytest.mark.parametrize("vector", VECTORS["rejected"]["append"], ids=lambda v: v["why"])
def test_rejected_batches(vector):
    batch = array(vector["batch"])
    if len(batch) < 8:
        pytest.skip("a batch of a store has always room for a trailer")
    spec = StoreSpec(1, "s", "append", lists=4, ring=1, batch_len=len(batch), entry_len=vector["entry_len"])
    found = append.Ring.look(spec, batch.reshape(1, -1), vector["list"])
    assert found.ends() is None
    assert found.torn.tolist() == [vector["verdict"] == "torn"]


def test_a_list_that_is_torn_is_read_to_its_end():
    spec = StoreSpec(1, "s", "append", lists=1, ring=8192, batch_len=64, entry_len=4)
    data = np.full((8192, 64), 0xFF, dtype=np.uint8)
    entries = append.read(spec, data.reshape(-1), 0, 0)
    assert (len(entries), entries.damaged, entries.next_sequence) == (0, 8192, 1)
    # Every other batch is whole: what is between them is given up together.
    batches = data.view(layout.dtype(spec)).reshape(-1)[1::2]
    batches["sequence"], batches["count"] = np.arange(2, 8193, 2), 1
    checks = layout.batch_checks(np.zeros(4096, dtype=np.uint32), data[1::2])
    batches["check"] = checks.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
    entries = append.read(spec, data.reshape(-1), 0, 1)
    # With the place after the last one.
    assert (len(entries), entries.damaged, entries.next_sequence) == (4096, 4097, 8193)
