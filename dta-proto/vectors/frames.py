#!/usr/bin/env python3
"""Writes frames.json: reports, and the RoCEv2 frames that a translator in reference mode makes of them, one byte string after the other.

    dta-proto/vectors/frames.py > dta-proto/vectors/frames.json

The translator holds program.json without its flush entries and with `reference` set. A case may change the transport of writes and the
first PSN. Each report comes alone. At the end of a case everything that is held is flushed.
"""
import json
import pathlib

from second import (batch, be, column, ip_packet, key_write, report_bytes, row, slots, source_port, transport_bytes)

PROGRAM = json.loads((pathlib.Path(__file__).parent / "program.json").read_text())
KEYS = [bytes([10, 0, 0, n, 10, 0, 1, n]) + be(5000 + n, 2) + be(80, 2) + bytes([6, 0, 0, 0]) for n in range(1, 9)]
KW, AP, KI, PC, SM, NOTIFY = 1, 2, 3, 4, 5, 6


class Translator:
    """What docs/wire-format.md and docs/memory-layout.md say of a translator, in reference mode."""

    def __init__(self, transport, start_psn):
        table = lambda name: [entry for entry in PROGRAM if entry["table"] == name]
        self.pairs = {pair["purpose"]: dict(pair, psn=start_psn) for pair in table("queue-pair")}
        self.pairs["write"]["transport"] = transport
        self.stores = {store["spec"]["id"]: store for store in table("store")}
        self.version0 = {entry["primitive"]: entry["store"] for entry in table("version0")}
        self.lists = {}
        for entry in table("lists"):
            newest = dict(map(tuple, entry["positions"]))
            for n in range(entry["first"], entry["first"] + entry["count"]):
                self.lists[entry["store"], n] = dict(sequence=newest.get(n, 0) + 1, entries=[])
        self.rows, self.columns, self.frames = {}, {}, []

    def send(self, store, operation, offset, payload=b"", imm=None, add=None):
        pair = self.pairs[store["queue_pair"]]
        va, psn = f"{store['address'] | offset:#x}", pair["psn"]
        pair["psn"] = (psn + 1) & 0xFFFFFF
        reth = dict(va=va, rkey=store["rkey"], length=len(payload)) if add is None else None
        atomic = dict(va=va, rkey=store["rkey"], swap_add=add, compare=0) if add is not None else None
        ack = pair["transport"] == "rc" and psn % 64 == 63
        _, _, t = transport_bytes(operation, pair["transport"], pair["remote_qpn"], psn, ack, reth, atomic, imm=imm, data=payload)
        packet = ip_packet(t, pair["source"]["ip"], pair["destination"]["ip"], source_port(pair["remote_qpn"]),
                           pair["destination"]["port"], pair["tos"])
        self.frames.append(packet.hex())

    def take(self, report):
        body = report["body"]
        primitive = body["primitive"]
        store = self.stores[report["store"] if report["version"] else self.version0[primitive]]
        spec = store["spec"]
        assert spec["kind"] == primitive
        getattr(self, primitive.replace("-", "_"))(report, body, store, spec, bytes.fromhex(body.get("key", "")))

    def key_write(self, report, body, store, spec, key):
        element = key_write(key, bytes.fromhex(body["value"]), spec["value_len"])
        for slot in slots(key, body["redundancy"] or spec["redundancy"], spec["slots"]):
            self.send(store, "write-only", slot * len(element), element)

    def key_increment(self, report, body, store, spec, key):
        for slot in slots(key, spec["redundancy"], spec["slots"]):
            self.send(store, "fetch-add", slot * 8, add=int(body["delta"]))

    def append(self, report, body, store, spec, _):
        held = self.lists[spec["id"], body["list"]]
        held["entries"].append(bytes.fromhex(body["value"]))
        full = len(held["entries"]) == (spec["batch_len"] - 8) // spec["entry_len"]
        if full or (report["immediate"] and spec["notify"]):
            self.send_batch(store, spec, body["list"], held)

    def send_batch(self, store, spec, number, held):
        element = batch(number, held["sequence"], len(held["entries"]), b"".join(held["entries"]), spec["batch_len"])
        place = number * spec["ring"] + (held["sequence"] - 1) % spec["ring"]
        imm = number if spec["notify"] else None
        self.send(store, "write-only" if imm is None else "write-only-imm", place * spec["batch_len"], element, imm)
        held["sequence"], held["entries"] = held["sequence"] + 1, []

    def postcarding(self, report, body, store, spec, key):
        held = self.rows.setdefault((spec["id"], key), dict(length=body["path_length"], hops={}))
        held["hops"][body["hop"]] = int(body["value"], 16)
        if held["length"] and len(held["hops"]) == held["length"]:
            self.send_row(store, spec, key)

    def send_row(self, store, spec, key):
        held = self.rows.pop((spec["id"], key))
        element = row(key, spec["hops"], held["length"], held["hops"])
        for slot in slots(key, spec["redundancy"], spec["slots"]):
            self.send(store, "write-only", slot * len(element), element)

    def sketch_merge(self, report, body, store, spec, _):
        cells = [int(body["cells"][i:i + 8], 16) for i in range(0, len(body["cells"]), 8)]
        held = self.columns.setdefault((spec["id"], body["epoch"], body["column"]), dict(reporters=set(), cells=[0] * len(cells), sent=False))
        held["reporters"].add(report["reporter"])
        held["cells"] = [min(a + b, 0xFFFFFFFF) for a, b in zip(held["cells"], cells)]
        held["sent"] = len(held["reporters"]) == spec["expected"]
        if held["sent"]:
            self.send_column(store, spec, body["epoch"], body["column"], held)

    def send_column(self, store, spec, epoch, number, held):
        element = column(epoch, len(held["reporters"]), spec["expected"], held["cells"])
        self.send(store, "write-only", ((epoch % spec["epochs"]) * spec["columns"] + number) * len(element), element)

    def flush(self):
        for (store, number), held in self.lists.items():
            if held["entries"]:
                self.send_batch(self.stores[store], self.stores[store]["spec"], number, held)
        for store, key in list(self.rows):
            self.send_row(self.stores[store], self.stores[store]["spec"], key)
        for (store, epoch, number), held in self.columns.items():
            if not held["sent"]:
                self.send_column(self.stores[store], self.stores[store]["spec"], epoch, number, held)


def report(store, body, version=1, reporter=7, immediate=False):
    return dict(version=version, immediate=immediate, retransmittable=False, restarted=False, reporter=reporter, store=store, body=body)


def case(name, reports, transport="uc", start_psn=0xFFFFFE):
    translator, sequences = Translator(transport, start_psn), {}
    sent = []
    for r in reports:
        r["sequence"] = sequences.get(r["reporter"], 0)
        sequences[r["reporter"]] = r["sequence"] + 1
        sent.append(report_bytes(r).hex())
        translator.take(r)
    translator.flush()
    return dict(name=name, transport=transport, start_psn=start_psn, reports=sent, frames=translator.frames)


def write(key, value, redundancy=0):
    return dict(primitive="key-write", redundancy=redundancy, key=key.hex(), value=value.hex())


def entry(number, value):
    return dict(primitive="append", list=number, value=value.hex())


def add(key, delta):
    return dict(primitive="key-increment", redundancy=0, key=key.hex(), delta=str(delta))


def hop(key, n, length, value):
    return dict(primitive="postcarding", key=key.hex(), hop=n, path_length=length, value=be(value, 4).hex())


def cells(epoch, number, *values):
    return dict(primitive="sketch-merge", epoch=epoch, column=number, cells=b"".join(be(v, 4) for v in values).hex())


KEY4 = bytes([1, 2, 3, 4]) + bytes(12)
CASES = [
    case("key-write", [report(KW, write(key, bytes(range(n, n + 12)))) for n, key in enumerate(KEYS)]),
    case("key-write-fewer-copies", [report(KW, write(key, bytes([n] * 12), redundancy=1)) for n, key in enumerate(KEYS)]),
    case("key-write-shorter-value", [report(KW, write(KEYS[0], bytes([1, 2, 3, 4])))]),
    case("key-write-zero-key-and-value", [report(KW, write(bytes(16), bytes(12)))]),
    case("key-write-version-0", [report(0, write(KEY4, bytes([0, 0, 0, 9]), redundancy=2), version=0)]),
    case("key-write-rc-asks-for-an-acknowledgement-at-63", [report(KW, write(key, bytes(12))) for key in KEYS], "rc", 60),
    # List 1 goes on after batch 5. Its ring has four places: batches 6 to 9 go once around, and no batch is left out.
    case("append-around-the-ring", [report(AP, entry(1, be(n, 8))) for n in range(15)]),
    case("append-rest-is-flushed", [report(AP, entry(n % 2 * 4, be(n, 8))) for n in range(8)]),
    case("append-notify", [report(NOTIFY, entry(n % 2, be(n, 4)), immediate=n == 2) for n in range(5)]),
    case("append-version-0", [report(0, entry(1, be(n, 4)), version=0) for n in range(2)]),
    case("key-increment", [report(KI, add(key, n)) for n, key in enumerate(KEYS[:4])]),
    case("key-increment-same-key-twice", [report(KI, add(KEYS[0], 2**64 - 1)), report(KI, add(KEYS[0], 2))]),
    case("key-increment-version-0", [report(0, dict(add(KEY4, 5), redundancy=2), version=0)]),
    case("postcards-in-any-order", [report(PC, hop(KEYS[0], n, 3, 100 + n)) for n in (2, 0, 1)]),
    case("postcards-of-two-paths", [report(PC, hop(KEYS[n % 2], n // 2, 3, n)) for n in range(6)]),
    case("postcards-partial", [report(PC, hop(KEYS[0], 0, 3, 1)), report(PC, hop(KEYS[0], 2, 3, 3))]),
    case("postcards-of-unknown-length", [report(PC, hop(KEYS[0], 1, 0, 0))]),
    case("postcards-version-0", [report(0, hop(KEY4, n, 0, n + 5), version=0) for n in range(2)]),
    case("sketch-merge", [report(SM, cells(5, 3, 1, 0xFFFFFFFF), reporter=1), report(SM, cells(5, 3, 2, 1), reporter=2)]),
    case("sketch-merge-incomplete", [report(SM, cells(4, 15, 7, 8), reporter=1)]),
    case("all-stores", [report(KW, write(KEYS[0], bytes(12))), report(AP, entry(0, be(1, 8))), report(KI, add(KEYS[1], 1)),
                        report(PC, hop(KEYS[2], 0, 1, 6)), report(AP, entry(0, be(2, 8))), report(KW, write(KEYS[3], bytes(12))),
                        report(AP, entry(0, be(3, 8)))]),
]
print(json.dumps(CASES, indent=1))
