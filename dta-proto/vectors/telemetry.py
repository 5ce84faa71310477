#!/usr/bin/env python3
"""Writes telemetry.json: keys of INT's metrics, made without the code they test.

    dta-proto/vectors/telemetry.py > dta-proto/vectors/telemetry.json
"""
import json
import struct
from ipaddress import ip_address

from second import be, crc


def crcs(data):
    """CRC-32, CRC-32C and CRC-32K (Koopman)."""
    return b"".join(be(crc(p, data), 4) for p in (0x04C11DB7, 0x1EDC6F41, 0x741B8CD7))


def flow(src, dst, sport, dport, proto):
    return ip_address(src).packed + ip_address(dst).packed + struct.pack(">HHB", sport, dport, proto)


def text(src, dst, sport, dport, proto):
    end = lambda a, p: f"[{a}]:{p}" if ":" in a else f"{a}:{p}"
    return f"{end(src, sport)}->{end(dst, dport)}/{proto}"


FLOWS = [
    ("10.0.0.1", "10.0.0.2", 5000, 80, 6),
    ("2001:db8::1", "2001:db8::2", 5000, 443, 17),
]
KEYS = []
for one in FLOWS:
    tuple_ = flow(*one)
    for switch in (4, 0x01000004, 0xFFFFFFFE):
        key = crcs(tuple_ + struct.pack(">I", switch)) + b"hlat"
        KEYS.append(dict(kind="hlat", flow=text(*one), numbers=[switch], key=key.hex()))
    for kind, more, numbers in (("fdrp", b"\x47", [71]), ("pkts", b"", []), ("byts", b"", [])):
        KEYS.append(dict(kind=kind, flow=text(*one), numbers=numbers, key=(crcs(tuple_ + more) + kind.encode()).hex()))
for kind, numbers, layout in (
    ("qocc", [4, 3, 5], ">III"),
    ("qcon", [4, None, 5], ">III"),
    ("util", [4, 3], ">II4x"),
    ("drop", [4, 71], ">IB7x"),
):
    packed = struct.pack(layout, *(0xFFFFFFFF if n is None else n for n in numbers))
    KEYS.append(dict(kind=kind, numbers=numbers, key=(packed + kind.encode()).hex()))

print(json.dumps(dict(keys=KEYS), indent=1))
