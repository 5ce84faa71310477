#!/usr/bin/env python3
"""Writes layout.json: vectors of docs/memory-layout.md, by a second implementation that shares no code with the crate.

    python3 dta-proto/vectors/layout.py > dta-proto/vectors/layout.json

Bytes are hex strings in the order of memory; numbers are decimal.
"""
import json
import struct

from second import batch, be32, column, crc32, crc32c, inline_key_write, key_write, row, slots


def flow(src, dst, sport, dport, proto):
    quad = lambda a: bytes(int(x) for x in a.split("."))
    return quad(src) + quad(dst) + struct.pack(">HHB", sport, dport, proto) + bytes(3)


UDP = flow("10.0.0.1", "10.0.0.2", 5000, 5000, 17)
TCP = flow("192.168.255.254", "1.1.1.1", 65535, 443, 6)
SHORT = bytes.fromhex("0a0b0c0d") + bytes(12)
ZERO, ONES, COUNT = bytes(16), b"\xff" * 16, bytes(range(16))
KEYS = [UDP, TCP, SHORT, ZERO, ONES, COUNT]


def ramp(n, start=1):
    return bytes((start + i) & 0xFF for i in range(n))


def damaged(element, bit):
    out = bytearray(element)
    out[bit // 8] ^= 1 << (bit % 8)
    return bytes(out)


vectors = {
    "slots": [
        {"key": k.hex(), "hash": crc32c(k), "slots": size, "at": slots(k, 8, size)}
        for k in KEYS
        for size in (1, 1 << 10, 1 << 18, 1 << 32)
    ],
    "key_write": [
        {"key": k.hex(), "value": v.hex(), "value_len": n, "keys": "hashed", "slot": key_write(k, v, n).hex()}
        for k, v, n in [
            (UDP, bytes.fromhex("c0a80001"), 4),
            (TCP, ramp(12), 12),
            (SHORT, ramp(4), 12),
            (ZERO, bytes(4), 4),
            (ONES, ramp(28, 200), 28),
            (COUNT, ramp(60), 60),
        ]
    ]
    + [
        {"key": k.hex(), "value": v.hex(), "value_len": 12, "keys": "inline", "slot": inline_key_write(k, v).hex()}
        for k, v in [(UDP, ramp(12)), (ONES, ramp(4)), (ZERO, b"")]
    ],
    "postcarding": [
        {
            "key": k.hex(),
            "hops": hops,
            "path_length": length,
            "values": {str(h): v for h, v in values.items()},
            "complete": length > 0 and sorted(values) == list(range(length)),
            "row": row(k, hops, length, values).hex(),
        }
        for k, hops, length, values in [
            (UDP, 6, 5, {0: 101, 1: 102, 2: 103, 3: 104, 4: 105}),
            (TCP, 6, 5, {0: 101, 3: 104}),
            (SHORT, 6, 0, {5: 0xFFFFFFFF}),
            (COUNT, 14, 14, {h: 0x01010101 * (h + 1) for h in range(14)}),
            (ONES, 14, 1, {0: 0}),
        ]
    ],
    "append": [
        {
            "list": list_,
            "sequence": sequence,
            "count": count,
            "entry_len": entry_len,
            "ring": ring,
            "place": (sequence - 1) % ring,
            "offset": (list_ * ring + (sequence - 1) % ring) * batch_len,
            "entries": ramp(count * entry_len).hex(),
            "batch": batch(list_, sequence, count, ramp(count * entry_len), batch_len).hex(),
        }
        for list_, sequence, count, entry_len, ring, batch_len in [
            (0, 1, 2, 4, 4, 16),
            (3, 9, 14, 4, 8, 64),
            (3, 10, 3, 4, 8, 64),
            (255, 4294967295, 4, 12, 1024, 64),
            (65535, 70000, 2, 60, 65536, 128),
            (1, 2, 1, 24, 1, 32),
            (2, 5, 5, 192, 4096, 1024),
            (3, 8, 21, 192, 16, 4096),
        ]
    ],
    "key_increment": [
        {"key": k.hex(), "slots": size, "offsets": [8 * s for s in slots(k, 8, size)], "counter": n, "bytes": struct.pack("<Q", n).hex()}
        for k, size, n in [(UDP, 1 << 10, 1), (TCP, 1 << 16, 0x0102030405060708), (ONES, 1 << 32, (1 << 64) - 1)]
    ],
    "sketch_merge": [
        {
            "epoch": epoch,
            "column": col,
            "epochs": epochs,
            "columns": columns,
            "merged": merged,
            "expected": expected,
            "cells": cells,
            "offset": ((epoch % epochs) * columns + col) * len(column(epoch, merged, expected, cells)),
            "bytes": column(epoch, merged, expected, cells).hex(),
        }
        for epoch, col, epochs, columns, merged, expected, cells in [
            (0, 0, 2, 1024, 1, 1, [7]),
            (5, 3, 4, 1024, 2, 3, [1, 0xFFFFFFFF]),
            (4294967295, 65535, 4, 65536, 32, 32, [1, 2, 3]),
            (6, 17, 2, 32, 1, 2, [0x01020304, 0x05060708, 0x090A0B0C, 0x0D0E0F10]),
        ]
    ],
    "merge": [
        {"a": a, "b": b, "sum": min(a + b, 0xFFFFFFFF), "max": max(a, b), "or": a | b}
        for a, b in [(0, 0), (6, 5), (0xFFFFFFFF, 1), (0x80000000, 0x80000000), (0xF0F0F0F0, 0x0F0F0F0F)]
    ],
    # Elements that must not be taken for what they look like.
    "rejected": {
        "key_write": [
            {"why": why, "key": UDP.hex(), "keys": "hashed", "slot": e.hex()}
            for why, e in [
                ("never written", bytes(16)),
                ("another key's", key_write(TCP, ramp(12), 12)),
                ("one bit of the value differs", damaged(key_write(UDP, ramp(12), 12), 100)),
                ("one bit of the checksum differs", damaged(key_write(UDP, ramp(12), 12), 0)),
                ("new checksum and half of the new value, the rest old", key_write(UDP, ramp(12), 12)[:8] + key_write(UDP, ramp(12, 9), 12)[8:]),
                ("too short for a value", be32(crc32(UDP))),
            ]
        ]
        + [
            {"why": why, "key": UDP.hex(), "keys": "inline", "slot": e.hex()}
            for why, e in [
                ("never written, with room for a key", bytes(32)),
                ("another key's, which it holds", inline_key_write(TCP, ramp(12))),
                ("holds another key, under this one's checksum", key_write(UDP, TCP + ramp(12), 28)),
                ("one bit of the key that it holds differs", damaged(inline_key_write(UDP, ramp(12)), 32)),
            ]
        ],
        "postcarding": [
            {"why": why, "key": UDP.hex(), "row": e.hex()}
            for why, e in [
                ("never written", bytes(32)),
                ("another key's", row(TCP, 6, 1, {0: 1})),
                ("right checksum over no hop", be32(crc32(UDP + bytes(28))) + bytes(28)),
                ("right checksum over a hop that 32 bytes have no room for", (lambda b: be32(crc32(UDP + b)) + b)(b"\x00\x40\x00\x00" + bytes(24))),
                ("right checksum over a path longer than the row", (lambda b: be32(crc32(UDP + b)) + b)(b"\x00\x01\x07\x00" + bytes(24))),
                ("right checksum, but byte 7 is not 0", (lambda b: be32(crc32(UDP + b)) + b)(b"\x00\x01\x01\x01" + bytes(24))),
                ("one bit of a hop differs", damaged(row(UDP, 6, 1, {0: 1}), 80)),
            ]
        ],
        "append": [
            {"why": why, "list": 3, "entry_len": 4, "verdict": verdict, "batch": e.hex()}
            for why, verdict, e in [
                ("never written", "empty", bytes(64)),
                ("another list's", "torn", batch(4, 9, 14, ramp(56), 64)),
                ("sequence 0 under a right check", "torn", batch(3, 0, 14, ramp(56), 64)),
                ("no entries under a right check", "torn", batch(3, 9, 0, b"", 64)),
                ("more entries than there is room, under a right check", "torn", batch(3, 9, 15, ramp(56), 64)),
                ("old entries under the new trailer", "torn", batch(3, 1, 14, ramp(56, 9), 64)[:56] + batch(3, 9, 14, ramp(56), 64)[56:]),
                ("new entries over the old trailer", "torn", batch(3, 9, 14, ramp(56), 64)[:56] + batch(3, 1, 14, ramp(56, 9), 64)[56:]),
                ("one bit in the zeros after the last entry", "torn", damaged(batch(3, 9, 3, ramp(12), 64), 200)),
                ("too short for a trailer", "torn", bytes(7)),
            ]
        ],
    },
}

print(json.dumps(vectors, indent=1))
