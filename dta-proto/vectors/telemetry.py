#!/usr/bin/env python3
"""Writes telemetry.json: keys of INT's metrics and of traces, and entries of traces, made without the code they test.

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
SFLOW = 1 << 31
KEYS = []
for one in FLOWS:
    tuple_ = flow(*one)
    for switch in (4, 0x01000004, 0xFFFFFFFE):
        key = crcs(tuple_ + struct.pack(">I", switch)) + b"hlat"
        KEYS.append(dict(kind="hlat", flow=text(*one), numbers=[switch], key=key.hex()))
    for kind, more, numbers in (("fdrp", b"\x47", [71]), ("fdrp", b"\x0a\x80\x00\x01", [SFLOW | 266]), ("pkts", b"", []), ("byts", b"", [])):
        KEYS.append(dict(kind=kind, flow=text(*one), numbers=numbers, key=(crcs(tuple_ + more) + kind.encode()).hex()))
for kind, numbers, layout in (
    ("qocc", [4, 3, 5], ">III"),
    ("qcon", [4, None, 5], ">III"),
    ("util", [4, 3], ">II4x"),
    ("drop", [4, 71], ">IB7x"),
    ("ifnm", [4, 3], ">II4x"),
    ("ifct", [4, 3, 11], ">III"),
):
    packed = struct.pack(layout, *(0xFFFFFFFF if n is None else n for n in numbers))
    KEYS.append(dict(kind=kind, numbers=numbers, key=(packed + kind.encode()).hex()))
# The low byte of a reason's number comes first, as if it had but that one.
KEYS.append(dict(kind="drop", numbers=[4, SFLOW | 266], key=(struct.pack(">IBBBB4x", 4, 10, 0x80, 0, 1) + b"drop").hex()))

# Keys of traces: `numbers` are host and hops, host and hop, or host and reason; a digest is in hex.
TRACE = [dict(kind="tpkt", digest="0123456789abcdef", numbers=[258], key="0123456789abcdef01020000" + b"tpkt".hex())]
for one in FLOWS:
    for kind, layout, numbers in (
        ("tlat", ">HBB", [7, 2, 13]),
        ("tpks", ">HB", [7, 2]),
        ("tbts", ">HB", [7, 2]),
        ("tdrp", ">HI", [0x0102, 64]),
        ("tsiz", ">", []),
    ):
        key = crcs(flow(*one) + struct.pack(layout, *numbers)) + kind.encode()
        TRACE.append(dict(kind=kind, flow=text(*one), numbers=numbers, key=key.hex()))


def seen(kind, more):
    """The flow is the first of FLOWS, 10.0.0.1:5000->10.0.0.2:80/tcp."""
    bytes_ = kind + struct.pack(">Q", 0x18EA6B6CF9F83A15) + flow(*FLOWS[0]) + bytes(3)
    bytes_ += struct.pack(">QHBBI", 0x0123456789ABCDEF, 0x0102, 3, 1, 1514) + more
    return bytes_.ljust(60, b"\0").hex()


ENTRIES = dict(
    packet=seen(b"pckt", struct.pack(">B3xQ", 6, 0xFEDCBA9876543210)),
    drop=seen(b"drop", struct.pack(">II", 64, 9)),
    slow=seen(b"slow", struct.pack(">B3xQ", 1, 5_000_000_000)),
    name=(b"name" + struct.pack(">QHBBI", 0x18EA6B6CF9F83A15, 0x0102, 1, 10, 3) + b"iface:eth0".ljust(40, b"\0")).hex(),
    books=(b"book" + struct.pack(">QH2xQQQQQ", 0x18EA6B6CF9F83A15, 0x0102, 15, 5, 4, 3, 3)).ljust(60, b"\0").hex(),
    latency=struct.pack(">IIIIIQ", 5, 3, 9, 6, 4, 0x18EA6B6CF9F83A15).hex(),
)

ALL = 0xFFFFFFFF


def four_bytes_key(src, dst, sport, dport, proto):
    """The key of a flow of IPv4: its 13 bytes and zeros."""
    return flow(src, dst, sport, dport, proto).ljust(16, b"\0")


def digest(switches, loop):
    """CRC-32C of a path as its store has it: hops, loop, 0 16, and 14 switches."""
    words = (list(switches) + [0] * 14)[:14]
    return be(crc(0x1EDC6F41, struct.pack(">BBxx14I", len(switches), loop, *words)), 4)


def change(metric, why, old_hops, hops, more):
    head = b"chng" + struct.pack(">Q", 0x18EA6B6CF9F83A15) + four_bytes_key(*FLOWS[0])
    return (head + bytes([metric, why, old_hops, hops]) + more).ljust(60, b"\0").hex()


def words(switches):
    return struct.pack(f">{len(switches)}I", *switches)


INT_ENTRIES = dict(
    path=change(1, 2, 2, 3, words([6, 5, 4, ALL, ALL, ALL, ALL])),
    trail=change(1, 5, 2, 3, words([7, 5, 9, ALL, ALL, ALL, 9])),
    seven_hops=change(1, 4, 2, 7, words([1, 2, 3, 4, 5, 6, 1])),
    long_path=change(1, 2, 2, 9, digest([1, 2, 3, 4, 5, 6, 7, 8, 1], 1) + struct.pack(">I", 1)),
    flow_latency=change(2, 2, 0, 0, struct.pack(">QQII", 408, 12, ALL, ALL) + digest([6, 5, 4], 0)),
    hop=(
        b"keys"
        + bytes.fromhex(KEYS[0]["key"])
        + bytes([32])
        + four_bytes_key(*FLOWS[0])
        + struct.pack(">IIQ", 4, 3, 0x18EA6B6CF9F83A15)
    ).ljust(60, b"\0").hex(),
)

print(json.dumps(dict(keys=KEYS, trace=TRACE, entries=ENTRIES, int_entries=INT_ENTRIES), indent=1))
