"""The same memory, queried by the Rust readers, by this package, and by this package over gRPC."""

import dataclasses

import numpy as np
import pytest

import dta


def of_kind(truth, kind):
    found = {name: store["questions"] for name, store in truth.stores.items() if store["spec"]["kind"] == kind}
    assert found
    return found


def test_descriptions(truth, stores):
    assert set(stores) == set(truth.stores)
    assert [store.spec.id for store in stores.values()] == list(range(1, len(stores) + 1))
    for name, expected in truth.stores.items():
        spec = dataclasses.asdict(stores[name].spec)
        assert {field: spec[field] for field in expected["spec"]} == expected["spec"]
        assert stores[name].generation == 1


def test_key_write(truth, stores):
    seen = set()
    for name, questions in of_kind(truth, "key-write").items():
        for question in questions:
            answers = stores[name].query(truth.key_array, policy=question["policy"])
            returned = [[a["value"] and a["value"].hex(), a["agreeing"], a["differing"]] for a in answers]
            assert returned == question["answers"], (name, question["policy"])
            assert not answers.values[~answers.found].any()
            seen |= {(value is None, agreeing > 1, differing > 0) for value, agreeing, differing in returned}
    # Found and not found, by one copy and by several, with and without differing ones.
    assert len(seen) >= 6, seen


def test_postcarding(truth, stores):
    for name, (question,) in of_kind(truth, "postcarding").items():
        answers = stores[name].query(truth.key_array)
        returned = [[a["path"], length, a["complete"], a["agreeing"], a["differing"]] for a, length in zip(answers, answers.path_length)]
        assert returned == question["answers"], name
        assert {a["complete"] for a in answers} == {True, False}


def test_append(truth, stores):
    is_live = isinstance(stores, dta.Collector)
    seen = set()
    for name, questions in of_kind(truth, "append").items():
        for question in questions:
            entries = stores[name].read(question["list"], question["from_sequence"] or None)
            returned = dataclasses.asdict(entries)
            returned["entries"] = entries.entries.tobytes().hex()
            # Now, whatever epoch that is.
            assert returned.pop("epoch") is None
            where = name, question["list"], question["from_sequence"]
            if is_live:
                # The collector reports the newest batch read, not what was skipped after it.
                del returned["next_sequence"]
            assert returned == {field: question[field] for field in returned}, where
            seen |= {field for field in ("overwritten", "missing", "damaged") if question[field]}
    assert seen == {"overwritten", "missing", "damaged"}


def test_key_increment(truth, stores):
    for name, (question,) in of_kind(truth, "key-increment").items():
        assert stores[name].query(truth.key_array).counts.tolist() == question["counts"], name


def test_sketch_merge(truth, stores):
    for name, questions in of_kind(truth, "sketch-merge").items():
        for question in questions:
            answers = stores[name].query(truth.key_array, epoch=question["epoch"])
            returned = [[a["estimate"], a["merged"], a["expected"]] for a in answers]
            assert returned == question["answers"], (name, question["epoch"])
        assert any(e is not None for q in questions for e, *_ in q["answers"]), name


def test_whole_stores_are_the_same_from_both(truth, live):
    memory = dta.open_memory(truth.memory)
    for name in truth.stores:
        here, there = memory[name].array(), live[name].array()
        assert here.shape == there.shape and here.dtype == there.dtype
        assert (np.asarray(here) == there).all(), name
    assert memory["events"].array().shape == (4, 64)
    assert memory["packets"].array().shape == (4, 1024)
    assert memory["packets"].array()["cells"].shape == (4, 1024, 3)


def test_keys_are_read_as_rust_reads_them(truth):
    good = 0
    for text, expected in truth.texts:
        try:
            key = dta.Key(text)
        except dta.BadKey as error:
            assert expected is None, (text, error)
        else:
            assert [key.hex(), str(key)] == expected, text
            good += 1
    assert 0 < good < len(truth.texts)
    for code, text in truth.keys:
        assert str(dta.Key(bytes.fromhex(code))) == text
        assert dta.Key(text).hex() == code


def test_many_keys_take_several_calls(truth, stores):
    many = np.tile(truth.key_array, (100, 1))
    assert len(many) > 16_384
    answers = stores["bytes"].query(many)
    assert answers.counts.reshape(100, -1).tolist() == [truth.stores["bytes"]["questions"][0]["counts"]] * 100


def test_no_keys(stores):
    assert len(stores["flows"].query([])) == len(stores["bytes"].query([])) == 0
    assert len(stores["paths"].query([])) == len(stores["packets"].query([], epoch=5)) == 0


@pytest.mark.parametrize(
    "question, expected",
    [
        (lambda s: s["flow"], "there is no store 'flow'; there are flows, paths"),
        (lambda s: s["flows"].query("00", policy="most"), "must be first, plurality or at-least=N"),
        (lambda s: s["flows"].query("00", policy="at-least=3"), "the store has 2 copies"),
        (lambda s: s["events"].read(4), "there are lists 0 to 3"),
        (lambda s: s["events"].read(0, from_sequence=0), "must be 1 to 4294967295"),
        (lambda s: s["packets"].query("00", epoch=-1), "must be 0 to 4294967295"),
    ],
)
def test_refusals_say_what_is_wrong(stores, question, expected):
    with pytest.raises(dta.AskError, match=expected):
        question(stores)
    assert "flow" not in stores and stores.get("flow") is None
