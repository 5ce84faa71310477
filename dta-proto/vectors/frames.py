#!/usr/bin/env python3
"""Writes frames.json: reports, and the RoCEv2 frames that a translator in reference mode makes of them, one byte string after the other.

    dta-proto/vectors/frames.py > dta-proto/vectors/frames.json

The translator holds program.json without its flush entries and with `reference` set, and a postcard cache of 65,536 rows. A case may
change the transport of writes and the first PSN, and set `entries` of its own. Each report comes alone. At the end of a case everything
that is held is flushed: the last `flushed` of the frames. `nacks` are payloads, each with the number of the report that it answers;
`dropped` are reports that are not taken, by reason. The rules are those of docs/reference-mode.md.
"""
import json
import pathlib

from second import (batch, be, column, crc32c, inline_key_write, ip_packet, key_write, report_bytes, row, slots, source_port, transport_bytes)

PROGRAM = json.loads((pathlib.Path(__file__).parent / "program.json").read_text())
KEYS = [bytes([10, 0, 0, n, 10, 0, 1, n]) + be(5000 + n, 2) + be(80, 2) + bytes([6, 0, 0, 0]) for n in range(1, 9)]
KW, AP, KI, PC, SM, NOTIFY = 1, 2, 3, 4, 5, 6
# Rows of the postcard cache. With any power of two from 1,024 on the frames are the same, but the order of those of a flush.
ROWS = 1 << 16
# Keys that have the place of the first of KEYS in the cache, and others in the stores.
TWINS = [bytes.fromhex(key) for key in ("0a0002010a00010108bb005006000000", "0a0002010a000101679a005006000000")]
assert all(crc32c(twin) % ROWS == crc32c(KEYS[0]) % ROWS for twin in TWINS)
assert len({crc32c(key) % 1024 for key in KEYS}) == len(KEYS)


class Dropped(Exception):
    """A report that is not taken, and why."""


def after(sequence):
    """The sequence of the next batch of a list: 0 is none."""
    return sequence % 0xFFFFFFFF + 1


class Translator:
    """What docs/wire-format.md, docs/memory-layout.md and docs/reference-mode.md say of a translator in reference mode."""

    def __init__(self, program):
        table = lambda name: [entry for entry in program if entry["table"] == name]
        self.pairs = {(pair.get("collector", 0), pair["purpose"]): dict(pair, psn=pair["start_psn"]) for pair in table("queue-pair")}
        self.stores = {}
        for store in table("store"):
            self.stores.setdefault(store["spec"]["id"], []).append(store)
        self.version0 = {entry["primitive"]: entry["store"] for entry in table("version0")}
        self.bits = {(entry["store"], entry["reporter"]): entry["bit"] for entry in table("sketch-reporter")}
        self.lists = {}
        for entry in table("lists"):
            newest, collector = dict(map(tuple, entry["positions"])), entry.get("collector", 0)
            for n in range(entry["first"], entry["first"] + entry["count"]):
                self.lists[entry["store"], n] = dict(sequence=after(newest.get(n, 0)), entries=[], collector=collector)
        self.rows, self.columns, self.next = {}, {}, {}
        self.frames, self.nacks, self.dropped = [], [], {}

    def at_collector(self, spec, h):
        """The store where a key with this hash is."""
        for store in self.stores[spec["id"]]:
            for part in store.get("buckets", "0-255").split(","):
                first, last = (part.split("-") * 2)[:2] if "-" not in part else part.split("-")
                if int(first) <= h >> 24 <= int(last):
                    return store
        raise Dropped("no_bucket")

    def sequence(self, report):
        """Counts a version-1 report, and answers a gap."""
        sequence, reporter = report["sequence"], report["reporter"]
        d = (sequence - self.next.get(reporter, sequence)) % 2**32
        known = reporter in self.next and not report["restarted"]
        if known and d >= 2**31:
            return
        self.next[reporter] = (sequence + 1) % 2**32
        if known and d and report["retransmittable"]:
            count = min(d, 1023)
            first = (sequence - count) % 2**32
            self.nacks.append(dict(report=report["number"],
                                   payload=(bytes([first & 0xFF, 0x81]) + be(reporter, 2) + be(first, 4) + be(count, 2) + bytes(2)).hex()))

    def send(self, store, operation, offset, payload=b"", imm=None, add=None):
        pair = self.pairs[store.get("collector", 0), store["queue_pair"]]
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
        if report["version"]:
            self.sequence(report)
        spec = self.stores[report["store"] if report["version"] else self.version0[primitive]][0]["spec"]
        assert spec["kind"] == primitive
        try:
            getattr(self, primitive.replace("-", "_"))(report, body, spec, bytes.fromhex(body.get("key", "")))
        except Dropped as dropped:
            reason = str(dropped)
            self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def key_write(self, report, body, spec, key):
        if body["redundancy"] > spec["redundancy"]:
            raise Dropped("redundancy")
        store = self.at_collector(spec, crc32c(key))
        value = bytes.fromhex(body["value"])
        if len(value) > spec["value_len"]:
            raise Dropped("value_length")
        element = inline_key_write(key, value) if spec.get("keys") == "inline" else key_write(key, value, spec["value_len"])
        for slot in slots(key, body["redundancy"] or spec["redundancy"], spec["slots"]):
            self.send(store, "write-only", slot * len(element), element)

    def key_increment(self, report, body, spec, key):
        store = self.at_collector(spec, crc32c(key))
        for slot in slots(key, spec["redundancy"], spec["slots"]):
            self.send(store, "fetch-add", slot * 8, add=int(body["delta"]))

    def append(self, report, body, spec, _):
        held = self.lists[spec["id"], body["list"]]
        held["entries"].append(bytes.fromhex(body["value"]))
        full = len(held["entries"]) == (spec["batch_len"] - 8) // spec["entry_len"]
        if full or (report["immediate"] and spec["notify"]):
            self.send_batch(spec, body["list"], held)

    def send_batch(self, spec, number, held):
        store = next(s for s in self.stores[spec["id"]] if s.get("collector", 0) == held["collector"])
        element = batch(number, held["sequence"], len(held["entries"]), b"".join(held["entries"]), spec["batch_len"])
        place = number * spec["ring"] + (held["sequence"] - 1) % spec["ring"]
        imm = number if spec["notify"] else None
        self.send(store, "write-only" if imm is None else "write-only-imm", place * spec["batch_len"], element, imm)
        held["sequence"], held["entries"] = after(held["sequence"]), []

    def postcarding(self, report, body, spec, key):
        self.at_collector(spec, crc32c(key))  # of nobody: it takes no row
        place, path = (spec["id"], crc32c(key) % ROWS), (key, body["path_length"])
        if place in self.rows and self.rows[place]["path"] != path:
            self.send_row(spec, place)
        held = self.rows.setdefault(place, dict(path=path, hops={}))
        held["hops"][body["hop"]] = int(body["value"], 16)
        if len(held["hops"]) == body["path_length"]:
            self.send_row(spec, place)

    def send_row(self, spec, place):
        held = self.rows.pop(place)
        key, length = held["path"]
        store = self.at_collector(spec, crc32c(key))
        element = row(key, spec["hops"], length, held["hops"])
        for slot in slots(key, spec["redundancy"], spec["slots"]):
            self.send(store, "write-only", slot * len(element), element)

    def sketch_merge(self, report, body, spec, _):
        cells = [int(body["cells"][i:i + 8], 16) for i in range(0, len(body["cells"]), 8)]
        number, epoch = body["column"], body["epoch"]
        # A sketch is at its collector as if its columns were keys.
        store = self.at_collector(spec, crc32c(be(number, 4) + bytes(12)))
        place = spec["id"], (epoch % spec["epochs"]) * spec["columns"] + number
        if (spec["id"], report["reporter"]) not in self.bits:
            raise Dropped("sketch_reporters")
        bit = 1 << self.bits[spec["id"], report["reporter"]]
        held = self.columns.get(place)
        if held and (epoch - held["epoch"]) % 2**32 >= 2**31:
            raise Dropped("epoch_old")
        if not held or held["epoch"] != epoch:
            held = self.columns[place] = dict(store=store, number=number, epoch=epoch, bits=0, cells=[0] * len(cells), sent=False)
        if held["bits"] & bit:
            raise Dropped("duplicate_column")
        held["bits"] |= bit
        assert spec["merge"] == "sum"
        held["cells"] = [min(a + b, 0xFFFFFFFF) for a, b in zip(held["cells"], cells)]
        held["sent"] = False
        if held["bits"].bit_count() >= spec["expected"]:
            self.send_column(spec, held)

    def send_column(self, spec, held):
        held["sent"] = True
        element = column(held["epoch"], held["bits"].bit_count(), spec["expected"], held["cells"])
        place = (held["epoch"] % spec["epochs"]) * spec["columns"] + held["number"]
        self.send(held["store"], "write-only", place * len(element), element)

    def flush(self):
        for store in sorted(self.stores):
            spec = self.stores[store][0]["spec"]
            mine = lambda held: [place for place in sorted(held) if place[0] == store]
            for place in mine(self.lists):
                if self.lists[place]["entries"]:
                    self.send_batch(spec, place[1], self.lists[place])
            for place in mine(self.rows):
                self.send_row(spec, place)
            for place in mine(self.columns):
                if not self.columns[place]["sent"]:
                    self.send_column(spec, self.columns[place])


def report(store, body, version=1, reporter=7, immediate=False, retransmittable=False, restarted=False, sequence=None):
    return dict(version=version, immediate=immediate, retransmittable=retransmittable, restarted=restarted, reporter=reporter, store=store,
                sequence=sequence, body=body)


def entry_key(entry):
    """What makes an entry of a program unique."""
    named = ["purpose", "primitive", "store", "first", "reporter", "collector"]
    own = {"lists": ["store", "first"], "sketch-reporter": ["store", "reporter"], "version0": ["primitive"]}.get(entry["table"], named)
    parts = [(name, entry.get(name, 0)) for name in own]
    return (entry["table"], entry.get("spec", {}).get("id", 0), *parts)


def case(name, reports, transport="uc", start_psn=0xFFFFFE, entries=()):
    """`entries` are set in the program on top of it all, each in the place of the one of its key."""
    program = {}
    for e in PROGRAM:
        if e["table"] == "queue-pair":
            e = dict(e, start_psn=start_psn)
            if e["purpose"] == "write":
                e["transport"] = transport
        program[entry_key(e)] = e
    program.update((entry_key(e), e) for e in entries)
    translator, sequences, sent = Translator(program.values()), {}, []
    for number, r in enumerate(reports):
        if r["sequence"] is None:
            r["sequence"] = sequences.get(r["reporter"], 0)
        sequences[r["reporter"]] = r["sequence"] + 1
        sent.append(report_bytes(r).hex())
        translator.take(dict(r, number=number))
    before = len(translator.frames)
    translator.flush()
    out = dict(name=name, transport=transport, start_psn=start_psn, entries=list(entries), reports=sent, frames=translator.frames)
    return dict(out, flushed=len(translator.frames) - before, nacks=translator.nacks, dropped=translator.dropped)


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


# Each reporter's bit of the sketch.
BITS = [dict(table="sketch-reporter", store=SM, reporter=reporter, bit=bit) for reporter, bit in ((1, 0), (2, 31), (3, 7))]
KEY4 = bytes([1, 2, 3, 4]) + bytes(12)


def second(purpose, psn=5):
    """A queue pair of a second collector."""
    (of_first,) = [e for e in PROGRAM if e["table"] == "queue-pair" and e["purpose"] == purpose]
    to = dict(of_first["destination"], ip="10.9.0.3")
    numbers = dict(remote_qpn=of_first["remote_qpn"] + 0x40, local_qpn=of_first["local_qpn"] + 2, start_psn=psn)
    return dict(of_first, collector=1, destination=to, **numbers)


def part(store, collector, **fields):
    """The part of a store at a collector, the first or the second."""
    (whole,) = [e for e in PROGRAM if e["table"] == "store" and e["spec"]["id"] == store]
    return dict(whole, collector=collector, address=whole["address"] | collector << 40, rkey=whole["rkey"] | collector << 16, **fields)


def halves(store, first="0-127", second="128-255"):
    return [part(store, 0, buckets=first), part(store, 1, buckets=second)]


def inline(store):
    """A key-write store whose slots hold their keys."""
    whole = part(store, 0)
    return dict(whole, spec=dict(whole["spec"], keys="inline"), length=32 * whole["spec"]["slots"])


SHARED = [second("write"), second("atomic")] + [e for store in (KW, KI, PC, SM) for e in halves(store)]
# Keys with the bucket 0 and the bucket 255.
ENDS = [bytes.fromhex(key) for key in ("0a0003010a000101009001bb06000000", "0a0003010a00010100f301bb06000000")]
assert [crc32c(key) >> 24 for key in ENDS] == [0, 255]
CASES = [
    case("key-write", [report(KW, write(key, bytes(range(n, n + 12)))) for n, key in enumerate(KEYS)]),
    case("key-write-fewer-copies", [report(KW, write(key, bytes([n] * 12), redundancy=1)) for n, key in enumerate(KEYS)]),
    case("key-write-shorter-value", [report(KW, write(KEYS[0], bytes([1, 2, 3, 4])))]),
    case("key-write-too-many-copies", [report(KW, write(KEYS[0], bytes(12), redundancy=3)), report(KW, write(KEYS[1], bytes(12)))]),
    case("key-write-zero-key-and-value", [report(KW, write(bytes(16), bytes(12)))]),
    case("key-write-version-0", [report(0, write(KEY4, bytes([0, 0, 0, 9]), redundancy=2), version=0)]),
    case("key-write-inline-keys", [report(KW, write(key, bytes(range(n, n + length)), redundancy=n % 3))
                                   for n, (key, length) in enumerate(zip([bytes(16)] + KEYS, (12, 12, 12, 4, 8, 12, 16, 4, 8)))]
         + [report(0, write(KEY4, bytes([0, 0, 0, 9]), redundancy=2), version=0)], entries=[inline(KW)]),
    case("key-write-rc-asks-for-an-acknowledgement-at-63", [report(KW, write(key, bytes(12))) for key in KEYS], "rc", 60),
    # List 1 goes on after batch 5. Its ring has four places: batches 6 to 9 go once around, and no batch is left out.
    case("append-around-the-ring", [report(AP, entry(1, be(n, 8))) for n in range(15)]),
    case("append-rest-is-flushed", [report(AP, entry(n % 2 * 4, be(n, 8))) for n in range(8)]),
    case("append-notify", [report(NOTIFY, entry(n % 2, be(n, 4)), immediate=n == 2) for n in range(5)]),
    case("append-version-0", [report(0, entry(1, be(n, 4)), version=0) for n in range(2)]),
    case("append-sequence-wraps", [report(AP, entry(0, be(n, 8))) for n in range(9)],
         entries=[dict(table="lists", store=AP, first=0, count=2, positions=[[0, 0xFFFFFFFD]])]),
    case("key-increment", [report(KI, add(key, n)) for n, key in enumerate(KEYS[:4])]),
    case("key-increment-same-key-twice", [report(KI, add(KEYS[0], 2**64 - 1)), report(KI, add(KEYS[0], 2))]),
    case("key-increment-version-0", [report(0, dict(add(KEY4, 5), redundancy=2), version=0)]),
    case("postcards-in-any-order", [report(PC, hop(KEYS[0], n, 3, 100 + n)) for n in (2, 0, 1)]),
    case("postcards-of-two-paths", [report(PC, hop(KEYS[n % 2], n // 2, 3, n)) for n in range(6)]),
    case("postcards-partial", [report(PC, hop(KEYS[0], 0, 3, 1)), report(PC, hop(KEYS[0], 2, 3, 3))]),
    case("postcards-of-unknown-length", [report(PC, hop(KEYS[0], 1, 0, 0))]),
    case("postcards-version-0", [report(0, hop(KEY4, n, 0, n + 5), version=0) for n in range(2)]),
    case("postcards-evicted-by-another-key", [report(PC, hop(key, n, 3, n + 1)) for n, key in enumerate((KEYS[0], KEYS[1], TWINS[0]))]
         + [report(PC, hop(KEYS[0], n, 3, 50 + n)) for n in range(3)] + [report(PC, hop(TWINS[1], 4, 5, 9))]),
    case("postcards-evicted-by-a-path-of-one-hop", [report(PC, hop(KEYS[0], 2, 3, 7)), report(PC, hop(TWINS[0], 0, 1, 8)),
                                                    report(PC, hop(KEYS[0], 0, 3, 6))]),
    case("postcards-of-another-length", [report(PC, hop(KEYS[0], n, length, 10 * n + length))
                                         for n, length in ((0, 3), (1, 3), (2, 4), (0, 4), (1, 0), (1, 4), (0, 3))]),
    case("postcards-hop-again", [report(PC, hop(KEYS[0], n, 3, 10 + i)) for i, n in enumerate((0, 0, 1, 0, 2))]),
    case("postcards-after-their-path", [report(PC, hop(KEYS[0], n, 2, 10 + i)) for i, n in enumerate((0, 1, 0))]
         + [report(PC, hop(KEYS[0], 1, 2, 99), sequence=1)]),
    case("sketch-merge", [report(SM, cells(5, 3, 1, 0xFFFFFFFF), reporter=1), report(SM, cells(5, 3, 2, 1), reporter=2)], entries=BITS),
    case("sketch-merge-incomplete", [report(SM, cells(4, 15, 7, 8), reporter=1)], entries=BITS),
    case("sketch-merge-later-epoch", [report(SM, cells(epoch, 3, 1, epoch), reporter=reporter)
                                      for epoch, reporter in ((5, 1), (7, 1), (5, 2), (6, 1), (7, 2), (6, 2), (9, 2))], entries=BITS),
    case("sketch-merge-far-ahead", [report(SM, cells(epoch, 0, 1, 2), reporter=1) for epoch in (2, 0x80000000, 2, 0x80000001, 0)],
         entries=BITS),
    case("sketch-merge-twice", [report(SM, cells(5, 3, n, n), reporter=1) for n in (1, 2)] + [report(SM, cells(5, 3, 9, 9), reporter=2)],
         entries=BITS),
    case("sketch-merge-unknown-reporter", [report(SM, cells(5, 3, 1, 1), reporter=reporter) for reporter in (1, 4)], entries=BITS),
    case("sketch-merge-late-reporter", [report(SM, cells(5, 3, n, 10 * n), reporter=n) for n in (1, 2, 3)], entries=BITS),
    case("flush-in-the-order-of-places",
         [report(SM, cells(1, n, n, n), reporter=1) for n in (9, 2, 15)] + [report(PC, hop(key, 0, 2, 5)) for key in KEYS]
         + [report(AP, entry(n, be(n, 8))) for n in (5, 4, 1, 0)], entries=BITS),
    case("sequence-gap", [report(KW, write(KEYS[0], be(n, 12)), retransmittable=again, sequence=n)
                          for n, again in ((0, True), (1, True), (5, True), (6, False), (9, False), (10, True), (12, True))]),
    case("sequence-wide-gap", [report(KW, write(KEYS[0], be(n, 12)), retransmittable=True, sequence=n) for n in (7, 1031, 2056, 2**31 + 2056)]),
    case("sequence-wrap", [report(KW, write(KEYS[0], be(n, 12)), retransmittable=True, sequence=n) for n in (2**32 - 3, 2**32 - 1, 2)]),
    case("sequence-late-and-again", [report(KI, add(KEYS[0], n), retransmittable=True, sequence=n) for n in (3, 6, 4, 4, 6, 2000, 1, 2001)]),
    case("sequence-restarted", [report(KW, write(KEYS[0], be(n, 12)), retransmittable=True, restarted=restarted, sequence=n)
                                for n, restarted in ((100, False), (0, True), (1, False), (9, True), (10, True), (11, False), (13, False))]),
    case("sequence-of-each-reporter", [report(KW, write(KEYS[0], be(n, 12)), retransmittable=True, reporter=reporter, sequence=n)
                                       for reporter, n in ((7, 5), (0xFFFF, 9), (7, 6), (0xFFFF, 11), (0, 1), (7, 8), (0, 2))]),
    case("sequence-version-0", [report(0, dict(add(KEY4, 5), redundancy=2), version=0, retransmittable=True, sequence=n) for n in (1, 9, 9, 3)]),
    case("collectors-share-keys", [report(KW, write(key, bytes(12))) for key in KEYS] + [report(KI, add(key, 1)) for key in KEYS[:4]]
         + [report(PC, hop(key, n, 2, n)) for n in range(2) for key in KEYS[:4]], entries=SHARED),
    case("collectors-share-keys-buckets-0-and-255", [report(KW, write(key, bytes(12))) for key in ENDS + KEYS[:2]],
         entries=[second("write"), *halves(KW, "0,255", "1-254")]),
    case("collectors-share-keys-of-nobody", [report(KW, write(key, bytes(12))) for key in ENDS + KEYS[:2]] + [report(PC, hop(ENDS[0], 0, 2, 1))],
         entries=[second("write"), *halves(KW, "1-127", "128-254"), *halves(PC, "1-127", "128-254")]),
    case("collectors-share-one-cache", [report(PC, hop(key, 0, 2, n)) for n, key in enumerate((KEYS[0], TWINS[0], TWINS[1], KEYS[0]))],
         entries=SHARED),
    case("collectors-share-lists", [report(AP, entry(number, be(n, 8))) for n, number in enumerate((0, 4, 0, 4, 4, 0, 5, 1))],
         entries=[second("write"), part(AP, 1), dict(table="lists", store=AP, collector=1, first=4, count=2, positions=[[4, 7]])]),
    case("collectors-share-columns", [report(SM, cells(5, n, n, n), reporter=reporter) for reporter in (1, 2) for n in (0, 3, 4, 12, 15, 9)],
         entries=BITS + SHARED),
    case("collectors-share-keys-on-rc", [report(KW, write(key, bytes(12))) for key in KEYS], start_psn=60,
         entries=[dict(second("write", 62), transport="rc"), *halves(KW)]),
    case("all-stores", [report(KW, write(KEYS[0], bytes(12))), report(AP, entry(0, be(1, 8))), report(KI, add(KEYS[1], 1)),
                        report(PC, hop(KEYS[2], 0, 1, 6)), report(AP, entry(0, be(2, 8))), report(KW, write(KEYS[3], bytes(12))),
                        report(AP, entry(0, be(3, 8)))]),
]
print(json.dumps(CASES, indent=1))
