"""The columns of flow records are those of `dta-proto/vectors/flow_record.json`, which the Rust code is held to, too."""

import json
from ipaddress import ip_address
from pathlib import Path

import numpy as np

from dta import flow_records

VECTORS = json.loads((Path(__file__).parents[2] / "dta-proto/vectors/flow_record.json").read_text())


def test_columns_lie_where_the_vectors_say():
    dtype = flow_records.FLOW_RECORD
    assert dtype.itemsize == VECTORS["entry_len"]
    expected = [(c["name"].replace("-", "_"), c["offset"], c["width"]) for c in VECTORS["columns"]]
    fields = [(name, dtype.fields[name][1], dtype.fields[name][0].itemsize) for name in dtype.names]
    assert fields == expected


def test_an_entry_has_the_values_of_the_vectors():
    entry = np.frombuffer(bytes.fromhex(VECTORS["entry"]), dtype=np.uint8)
    record = flow_records.records(np.stack([entry, entry]))[1]
    for column in VECTORS["columns"]:
        value = record[column["name"].replace("-", "_")]
        number = int.from_bytes(bytes(value), "big") if column["kind"] == "address" else int(value)
        assert str(number) == VECTORS["values"][column["name"]], column["name"]


def test_addresses_of_both_families():
    mapped = bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 1])
    assert flow_records.address(mapped) == ip_address("192.0.2.1")
    assert flow_records.address(ip_address("2001:db8::1").packed) == ip_address("2001:db8::1")
