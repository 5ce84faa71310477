#!/usr/bin/env python3
"""Writes wire.json: the vectors of docs/wire-format.md, made without the code they test.

    dta-proto/vectors/wire.py > dta-proto/vectors/wire.json
"""
import ipaddress
import json
import zlib

from second import be, crc, icrc, ip_checksum, ip_packet, report_bytes, source_port, transport_bytes

# --- reports ---------------------------------------------------------------------------------------------------------

FLOW = bytes([10, 0, 0, 1, 10, 0, 0, 2]) + be(5000, 2) + be(80, 2) + bytes([6, 0, 0, 0])


def report(name, version, body, immediate=False, retransmittable=False, restarted=False, sequence=0, reporter=0, store=0):
    r = dict(version=version, immediate=immediate, retransmittable=retransmittable, restarted=restarted,
             sequence=sequence, reporter=reporter, store=store, body=body)
    return dict(name=name, hex=report_bytes(r).hex(), report=r)


def key4(n):
    return (be(n, 4) + bytes(12)).hex()


FLOW_HEX = FLOW.hex()
# A delta is text: JSON readers may keep numbers as doubles.
REPORTS = [
    report("v0-key-write", 0, dict(primitive="key-write", redundancy=2, key=key4(0x0A000001), value="00000064")),
    report("v0-append", 0, dict(primitive="append", list=3, value="deadbeef"), immediate=True),
    report("v0-key-increment", 0, dict(primitive="key-increment", redundancy=4, key=key4(0x01020304), delta="65536"),
           retransmittable=True, sequence=255),
    report("v0-postcard-first-hop", 0, dict(primitive="postcarding", key=key4(0x01020304), hop=0, path_length=0, value="00000005")),
    report("v0-postcard-last-hop", 0, dict(primitive="postcarding", key=key4(0x01020304), hop=13, path_length=0, value="00000005"),
           restarted=True),
    report("v1-key-write-4", 1, dict(primitive="key-write", redundancy=0, key=FLOW_HEX, value="00000064"),
           sequence=1, reporter=7, store=1),
    report("v1-key-write-12", 1, dict(primitive="key-write", redundancy=3, key=FLOW_HEX, value=bytes(range(12)).hex()),
           immediate=True, retransmittable=True, restarted=True, sequence=0xFFFFFFFF, reporter=0xFFFF, store=0xFFFF),
    report("v1-key-write-60", 1, dict(primitive="key-write", redundancy=4, key=FLOW_HEX, value=bytes(range(60)).hex()),
           sequence=0x05060708, reporter=0x0304, store=0x0102),
    report("v1-append-4", 1, dict(primitive="append", list=0, value="00000001"), sequence=2, reporter=7, store=2),
    report("v1-append-12", 1, dict(primitive="append", list=65535, value=bytes(range(12)).hex()),
           immediate=True, sequence=3, reporter=7, store=2),
    report("v1-key-increment", 1, dict(primitive="key-increment", redundancy=0, key=FLOW_HEX, delta=str(2**64 - 1)),
           retransmittable=True, sequence=4, reporter=7, store=3),
    report("v1-postcard-unknown-length", 1, dict(primitive="postcarding", key=FLOW_HEX, hop=13, path_length=0, value="00000009"),
           sequence=5, reporter=7, store=4),
    report("v1-postcard-hop-4-of-5", 1, dict(primitive="postcarding", key=FLOW_HEX, hop=4, path_length=5, value="00000009"),
           sequence=6, reporter=7, store=4),
    report("v1-sketch-merge-1-row", 1, dict(primitive="sketch-merge", epoch=9, column=1023, cells="00000001"),
           sequence=7, reporter=7, store=5),
    report("v1-sketch-merge-4-rows", 1, dict(primitive="sketch-merge", epoch=9, column=0, cells="00000001000000020000000300000004"),
           retransmittable=True, sequence=8, reporter=7, store=5),
]
BY_NAME = {r["name"]: bytes.fromhex(r["hex"]) for r in REPORTS}


def patched(name, *changes, cut=None, more=b""):
    data = bytearray(BY_NAME[name])
    for at, byte in changes:
        data[at] = byte
    return (bytes(data[:cut]) + more).hex()


# Reserved bits and bytes are ignored: these mean the same as the report they name.
REPORTS_RESERVED = [
    dict(name="v0-reserved-flags", hex=patched("v0-append", (2, 0x9C)), same_as="v0-append"),
    dict(name="v1-reserved-flags", hex=patched("v1-append-4", (2, 0x1D)), same_as="v1-append-4"),
    dict(name="v1-append-argument", hex=patched("v1-append-4", (3, 0xFF)), same_as="v1-append-4"),
    dict(name="v1-sketch-merge-argument", hex=patched("v1-sketch-merge-1-row", (3, 1)), same_as="v1-sketch-merge-1-row"),
]


def error(name, data, layer, field, offset, kind):
    return dict(name=name, hex=data, layer=layer, field=field, offset=offset, kind=kind)


REPORT_ERRORS = [
    error("empty", "", "Dta", "header", 0, "Truncated"),
    error("two-bytes", "0100", "Dta", "header", 0, "Truncated"),
    error("version-2", patched("v1-append-4", (2, 2)), "Dta", "version", 2, "UnknownVersion"),
    error("version-3", patched("v1-append-4", (2, 3)), "Dta", "version", 2, "UnknownVersion"),
    error("v0-opcode-0", patched("v0-append", (0, 0)), "DtaV0", "opcode", 0, "UnknownOpcode"),
    error("v0-sketch-merge", patched("v0-append", (0, 5)), "DtaV0", "opcode", 0, "UnknownOpcode"),
    error("v0-key-write-short", patched("v0-key-write", cut=11), "DtaV0", "key-write", 3, "Truncated"),
    error("v0-key-write-long", patched("v0-key-write", more=b"\0"), "DtaV0", "key-write", 12, "TooLong"),
    error("v0-append-short", patched("v0-append", cut=10), "DtaV0", "append", 3, "Truncated"),
    error("v0-key-increment-long", patched("v0-key-increment", more=b"\0"), "DtaV0", "key-increment", 16, "TooLong"),
    error("v0-hop-0", patched("v0-postcard-first-hop", (7, 0)), "DtaV0", "hop", 7, "Hop"),
    error("v0-hop-15", patched("v0-postcard-first-hop", (7, 15)), "DtaV0", "hop", 7, "Hop"),
    error("v1-header-short", patched("v1-append-4", cut=11), "DtaV1", "header", 0, "Truncated"),
    error("v1-opcode-0", patched("v1-append-4", (0, 0)), "DtaV1", "opcode", 0, "UnknownOpcode"),
    error("v1-opcode-6", patched("v1-append-4", (0, 6)), "DtaV1", "opcode", 0, "UnknownOpcode"),
    error("v1-sequence-contradicts", patched("v1-append-4", (1, 3)), "DtaV1", "sequence", 1, "Contradiction"),
    error("v1-key-short", patched("v1-key-write-4", cut=27), "DtaV1", "key", 12, "Truncated"),
    error("v1-value-none", patched("v1-key-write-4", cut=28), "DtaV1", "value", 28, "ValueLength"),
    error("v1-value-5", patched("v1-key-write-4", more=b"\0"), "DtaV1", "value", 28, "ValueLength"),
    error("v1-value-64", patched("v1-key-write-60", more=bytes(4)), "DtaV1", "value", 28, "ValueLength"),
    error("v1-list-short", patched("v1-append-4", cut=15), "DtaV1", "list", 12, "Truncated"),
    error("v1-append-none", patched("v1-append-4", cut=16), "DtaV1", "value", 16, "ValueLength"),
    error("v1-delta-short", patched("v1-key-increment", cut=35), "DtaV1", "delta", 28, "Truncated"),
    error("v1-key-increment-long", patched("v1-key-increment", more=b"\0"), "DtaV1", "end", 36, "TooLong"),
    error("v1-hop-14", patched("v1-postcard-hop-4-of-5", (3, 0x0E)), "DtaV1", "hop", 3, "Hop"),
    error("v1-path-length-15", patched("v1-postcard-hop-4-of-5", (3, 0xF4)), "DtaV1", "path_length", 3, "PathLength"),
    error("v1-path-length-not-beyond-hop", patched("v1-postcard-hop-4-of-5", (3, 0x44)), "DtaV1", "path_length", 3, "PathLength"),
    error("v1-postcard-long", patched("v1-postcard-hop-4-of-5", more=bytes(4)), "DtaV1", "end", 32, "TooLong"),
    error("v1-column-short", patched("v1-sketch-merge-1-row", cut=19), "DtaV1", "column", 16, "Truncated"),
    error("v1-rows-0", patched("v1-sketch-merge-1-row", cut=20), "DtaV1", "cells", 20, "Rows"),
    error("v1-rows-5", patched("v1-sketch-merge-4-rows", more=bytes(4)), "DtaV1", "cells", 20, "Rows"),
    error("v1-rows-broken", patched("v1-sketch-merge-1-row", more=b"\0"), "DtaV1", "cells", 20, "Rows"),
]

# --- NACKs -----------------------------------------------------------------------------------------------------------


def nack_v1(reporter, first, count):
    data = bytes([first & 0xFF, 0x81]) + be(reporter, 2) + be(first, 4) + be(count, 2) + bytes(2)
    return dict(hex=data.hex(), version=1, reporter=reporter, first=first, count=count)


NACKS = [
    dict(name="v0-nack", hex="2a80", version=0, sequence=42),
    dict(name="v1-nack-one", **nack_v1(7, 0x05060708, 1)),
    dict(name="v1-nack-run-over-the-wrap", **nack_v1(0xFFFF, 0xFFFFFFFE, 5)),
]
RUN = NACKS[2]["hex"]
NACK_ERRORS = [
    error("nack-short", "2a", "Nack", "header", 0, "Truncated"),
    error("nack-without-bit", "2a00", "Nack", "nack", 1, "NotANack"),
    error("nack-version-2", "2a82", "Nack", "version", 1, "UnknownVersion"),
    error("v0-nack-long", "2a8000", "Nack", "end", 2, "TooLong"),
    error("v1-nack-short", RUN[:22], "Nack", "body", 2, "Truncated"),
    error("v1-nack-long", RUN + "00", "Nack", "end", 12, "TooLong"),
    error("v1-nack-contradicts", "00" + RUN[2:], "Nack", "sequence", 0, "Contradiction"),
    error("v1-nack-of-none", RUN[:16] + "0000" + RUN[20:], "Nack", "count", 8, "NotANack"),
]

# --- RoCEv2 frames -----------------------------------------------------------------------------------------------------

def frame(name, operation, transport="rc", dest_qp=0x11, psn=0, ack_req=False, ethernet=None, tos=0, ttl=64, dst_port=4791,
          reth=None, atomic=None, aeth=None, atomic_ack=None, imm=None, payload="", src="10.0.0.1", dst="10.0.0.2"):
    data = bytes.fromhex(payload)
    opcode, pad, t = transport_bytes(operation, transport, dest_qp, psn, ack_req, reth, atomic, aeth, atomic_ack, imm, data)
    src_port = source_port(dest_qp)
    packet = ip_packet(t, src, dst, src_port, dst_port, tos, ttl)
    head = b""
    if ethernet:
        head = b"".join(bytes.fromhex(mac.replace(":", "")) for mac in ethernet)
        head += b"\x86\xdd" if ":" in src else b"\x08\x00"
    f = dict(name=name, hex=(head + packet).hex(), src=src, dst=dst, src_port=src_port, dst_port=dst_port, tos=tos, ttl=ttl,
             opcode=opcode, dest_qp=dest_qp, psn=psn, ack_req=ack_req, pad=pad, payload=payload)
    optional = dict(ethernet=ethernet, reth=reth, atomic=atomic, aeth=aeth, atomic_ack=atomic_ack, imm=imm)
    f.update({k: v for k, v in optional.items() if v is not None})
    return f


def at(length, va="0x0000000100000040", rkey=0x1234):
    return dict(va=va, rkey=rkey, length=length)


ADD = dict(va="0x0000000100000048", rkey=0x1234, swap_add="1500", compare="0")
SWAP = dict(va="0x0000000100000048", rkey=0x1234, swap_add=str(2**64 - 1), compare="1500")
ACK = dict(syndrome=0x1F, msn=1)
IPV6 = dict(src="2001:db8::1", dst="2001:db8::2:0:7")
SLOT = (be(zlib.crc32(FLOW + bytes(range(12))), 4) + bytes(range(12))).hex()
FRAMES = [
    frame("uc-write-only", "write-only", "uc", psn=7, reth=at(16), payload=SLOT),
    frame("uc-write-only-ethernet", "write-only", "uc", psn=7, reth=at(16), payload=SLOT,
          ethernet=["02:00:00:00:00:01", "02:00:00:00:00:02"]),
    frame("uc-write-only-tos-ttl-port", "write-only", "uc", psn=7, reth=at(16), payload=SLOT, tos=0x62, ttl=3, dst_port=14791),
    frame("uc-write-only-imm", "write-only-imm", "uc", psn=8, reth=at(64), imm=0xDEADBEEF, payload=bytes(range(64)).hex()),
    frame("rc-write-only-imm", "write-only-imm", psn=127, ack_req=True, reth=at(4), imm=0, payload="00000001"),
    frame("uc-write-first", "write-first", "uc", psn=20, reth=at(1028), payload=bytes(1024).hex()),
    frame("uc-write-middle", "write-middle", "uc", psn=21, payload="00000001"),
    frame("uc-write-last-imm", "write-last-imm", "uc", psn=22, imm=1, payload="00000001"),
    frame("rc-write-only-psn-63", "write-only", psn=63, ack_req=True, reth=at(4), payload="00000001"),
    frame("rc-write-only-highest", "write-only", dest_qp=0xFFFFFF, psn=0xFFFFFF, ack_req=True,
          reth=at(8, "0xfffffffffffffff8", 0xFFFFFFFF), payload="ffffffffffffffff"),
    frame("rc-write-nothing", "write-only", psn=5, ack_req=True, reth=at(0, "0x0", 0)),
    frame("rc-write-first", "write-first", psn=20, reth=at(2056), payload=bytes(1024).hex()),
    frame("rc-write-middle", "write-middle", psn=21, payload=bytes(1024).hex()),
    frame("rc-write-last", "write-last", psn=22, ack_req=True, payload=bytes(8).hex()),
    frame("rc-write-last-imm", "write-last-imm", psn=22, ack_req=True, imm=1, payload=bytes(8).hex()),
    frame("uc-write-last-padded", "write-last", "uc", psn=22, payload="010203"),
    frame("rc-fetch-add", "fetch-add", psn=9, ack_req=True, atomic=ADD),
    frame("rc-cmp-swap", "cmp-swap", psn=10, ack_req=True, atomic=SWAP),
    frame("rc-read-request", "read-request", psn=11, ack_req=True, reth=at(2049)),
    frame("rc-read-response-first", "read-response-first", psn=11, aeth=ACK, payload=bytes(1024).hex()),
    frame("rc-read-response-middle", "read-response-middle", psn=12, payload=bytes(1024).hex()),
    frame("rc-read-response-last-padded", "read-response-last", psn=13, aeth=ACK, payload="7f"),
    frame("rc-read-response-only", "read-response-only", psn=11, aeth=ACK, payload="00010203"),
    frame("rc-ack", "ack", psn=63, aeth=ACK),
    frame("rc-nak-psn-sequence-error", "ack", psn=64, aeth=dict(syndrome=0x60, msn=2)),
    frame("rc-nak-invalid-request", "ack", psn=65, aeth=dict(syndrome=0x61, msn=2)),
    frame("rc-nak-remote-access-error", "ack", psn=65, aeth=dict(syndrome=0x62, msn=2)),
    frame("rc-rnr-nak", "ack", psn=65, aeth=dict(syndrome=0x2C, msn=2)),
    frame("rc-atomic-ack", "atomic-ack", psn=9, aeth=ACK, atomic_ack="18446744073709551615"),
    frame("ipv6-uc-write-only", "write-only", "uc", psn=7, reth=at(16), payload=SLOT, **IPV6),
    frame("ipv6-rc-write-only-ethernet", "write-only", psn=7, reth=at(4), payload="00000001", **IPV6,
          ethernet=["02:00:00:00:00:01", "02:00:00:00:00:02"], tos=0x62, ttl=3),
    frame("ipv6-uc-write-only-imm", "write-only-imm", "uc", psn=8, reth=at(64), imm=0xDEADBEEF, payload=bytes(range(64)).hex(), **IPV6),
    frame("ipv6-rc-fetch-add", "fetch-add", psn=9, ack_req=True, atomic=ADD, **IPV6),
    frame("ipv6-rc-ack", "ack", psn=63, aeth=ACK, **IPV6),
    frame("ipv6-rc-atomic-ack", "atomic-ack", psn=9, aeth=ACK, atomic_ack="18446744073709551615", **IPV6),
]
FRAME = {f["name"]: bytes.fromhex(f["hex"]) for f in FRAMES}
# Sent by the soft-RoCE of Linux 6.1: frames by another profile (IPv4 id, source port), from the IP header on.
RECEIVED = [dict(name="rxe-ack", hex="4500003016d6400040110fd30a0900020a090001d35312b7001c00001100ffff00000123000000641f0000016fa083c5",
                 src="10.9.0.2", dst="10.9.0.1", src_port=0xD353, dst_port=4791, opcode=17, dest_qp=0x123, psn=0x64,
                 ack_req=False, pad=0, payload="", aeth=ACK),
            dict(name="rxe-ipv6-write", hex="6000000000381140fd544441000900000000000000000002fd544441000900000000000000000001c12112b7003800002a00ffff"
                 "0000001100e0c9d000000200000fcb500000025f00000010001b62060000006400000000000000007d5a70a4",
                 src="fd54:4441:9::2", dst="fd54:4441:9::1", src_port=0xC121, dst_port=4791, opcode=42, dest_qp=0x11, psn=0xE0C9D0,
                 ack_req=False, pad=0, reth=at(16, "0x00000200000fcb50", 0x25F), payload="001b6206000000640000000000000000")]


def again(name, transport_change, cut=None, more=b""):
    """The named frame with its transport part changed, every length and checksum made right again."""
    transport = bytearray(FRAME[name][28:-4])
    for place, byte in transport_change:
        transport[place] = byte
    return ip_packet(bytes(transport[:cut]) + more, "10.0.0.1", "10.0.0.2", 0xC011).hex()


def ip_patched(name, *changes, fix=True):
    """The named frame with bytes of its IPv4 or UDP header changed and, if `fix`, the header checksum made right again."""
    data = bytearray(FRAME[name])
    for place, byte in changes:
        data[place] = byte
    if fix:
        data[10:12] = bytes(2)
        data[10:12] = be(ip_checksum(bytes(data[:20])), 2)
    return bytes(data).hex()


ICRC_OFF = FRAME["uc-write-only"][:-1] + bytes([FRAME["uc-write-only"][-1] ^ 1])
FRAME_ERRORS = [
    error("nothing", "", "Ipv4", "header", 0, "Truncated"),
    error("ip-version-5", ip_patched("rc-ack", (0, 0x55)), "Ipv4", "version", 0, "UnknownVersion"),
    error("ip-header-of-16", ip_patched("rc-ack", (0, 0x44)), "Ipv4", "ihl", 0, "Length"),
    error("ip-options", ip_patched("rc-ack", (0, 0x46)), "Ipv4", "options", 20, "Options"),
    error("ip-cut", FRAME["rc-ack"][:-1].hex(), "Ipv4", "total_length", 2, "Truncated"),
    error("ip-total-length-19", ip_patched("rc-ack", (3, 19)), "Ipv4", "total_length", 2, "Length"),
    error("ip-more-fragments", ip_patched("rc-ack", (6, 0x20)), "Ipv4", "fragment", 6, "Fragment"),
    error("ip-fragment-offset", ip_patched("rc-ack", (7, 1)), "Ipv4", "fragment", 6, "Fragment"),
    error("ip-checksum", ip_patched("rc-ack", (10, 0), fix=False), "Ipv4", "header_checksum", 10, "Checksum"),
    error("ipv6-header-cut", FRAME["ipv6-rc-ack"][:39].hex(), "Ipv6", "header", 0, "Truncated"),
    error("ipv6-cut", FRAME["ipv6-rc-ack"][:-1].hex(), "Ipv6", "payload_length", 4, "Truncated"),
    error("ipv6-hop-by-hop", ip_patched("ipv6-rc-ack", (6, 0), fix=False), "Ipv6", "next_header", 6, "Protocol"),
    error("ipv6-udp-checksum", ip_patched("ipv6-rc-ack", (47, 1), fix=False), "Udp", "checksum", 6, "Checksum"),
    error("ipv6-icrc", ip_patched("ipv6-rc-ack", (39, 8), fix=False), "Roce", "icrc", 16, "Checksum"),
    error("tcp", ip_patched("rc-ack", (9, 6)), "Ipv4", "protocol", 9, "Protocol"),
    error("udp-length-7", ip_patched("rc-ack", (25, 7)), "Udp", "length", 4, "Length"),
    error("udp-length-beyond", ip_patched("rc-ack", (25, 29)), "Udp", "length", 4, "Truncated"),
    error("udp-checksum", ip_patched("rc-ack", (27, 1)), "Udp", "checksum", 6, "Checksum"),
    error("icrc", ICRC_OFF.hex(), "Roce", "icrc", 44, "Checksum"),
    error("bth-short", again("rc-ack", [], cut=11), "Roce", "bth", 0, "Truncated"),
    error("transport-version-1", again("rc-ack", [(1, 0x41)]), "Roce", "transport_version", 1, "UnknownVersion"),
    error("send-only", again("uc-write-only", [(0, 0x04)]), "Roce", "opcode", 0, "UnsupportedOpcode"),
    error("uc-send-only", again("uc-write-only", [(0, 0x24)]), "Roce", "opcode", 0, "UnsupportedOpcode"),
    error("ud-send-only", again("uc-write-only", [(0, 0x64)]), "Roce", "opcode", 0, "UnsupportedOpcode"),
    error("uc-fetch-add", again("rc-fetch-add", [(0, 0x34)]), "Roce", "opcode", 0, "UnknownOpcode"),
    error("opcode-ff", again("rc-ack", [(0, 0xFF)]), "Roce", "opcode", 0, "UnknownOpcode"),
    error("reth-short", again("uc-write-only", [], cut=27), "Roce", "headers", 12, "Truncated"),
    error("atomic-eth-short", again("rc-fetch-add", [], cut=36), "Roce", "headers", 12, "Truncated"),
    error("fetch-add-with-payload", again("rc-fetch-add", [], more=bytes(4)), "Roce", "payload", 40, "TooLong"),
    error("ack-with-payload", again("rc-ack", [], more=bytes(4)), "Roce", "payload", 16, "TooLong"),
    error("pad-beyond-payload", again("rc-write-nothing", [(1, 0x50)]), "Roce", "pad", 1, "Truncated"),
    error("syndrome-reserved", again("rc-ack", [(12, 0x40)]), "Roce", "syndrome", 12, "Reserved"),
    error("nak-code-reserved", again("rc-ack", [(12, 0x65)]), "Roce", "syndrome", 12, "Reserved"),
]

# --- keys --------------------------------------------------------------------------------------------------------------


def flow(text, src, dst, sport, dport, proto, shown=None):
    s, d = ipaddress.ip_address(src).packed, ipaddress.ip_address(dst).packed
    t = s + d + be(sport, 2) + be(dport, 2) + bytes([proto])
    if len(s) == 4:
        data = t + bytes(3)
    else:
        data = b"".join(be(crc(p, t), 4) for p in (0x04C11DB7, 0x1EDC6F41, 0x741B8CD7)) + bytes([proto, 0, 0, 6])
    return dict(text=text, key=data.hex(), shown=shown or (text if len(s) == 4 else data.hex()))


KEYS = [
    flow("10.0.0.1:5000->10.0.0.2:80/tcp", "10.0.0.1", "10.0.0.2", 5000, 80, 6),
    flow("192.168.1.255:65535->8.8.8.8:53/udp", "192.168.1.255", "8.8.8.8", 65535, 53, 17),
    flow("10.0.0.1->10.0.0.2/icmp", "10.0.0.1", "10.0.0.2", 0, 0, 1, "10.0.0.1:0->10.0.0.2:0/icmp"),
    flow("10.0.0.1:1->10.0.0.2:2/253", "10.0.0.1", "10.0.0.2", 1, 2, 253),
    flow("[2001:db8::1]:5000->[2001:db8::2]:443/udp", "2001:db8::1", "2001:db8::2", 5000, 443, 17),
    flow("fe80::1->ff02::1/icmp6", "fe80::1", "ff02::1", 0, 0, 58),
    dict(text="0a000001", key=key4(0x0A000001), shown=key4(0x0A000001)),
    dict(text="0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF", key="ff" * 16, shown="ff" * 16),
]

print(json.dumps(dict(reports=REPORTS, reports_reserved=REPORTS_RESERVED, report_errors=REPORT_ERRORS, nacks=NACKS,
                      nack_errors=NACK_ERRORS, frames=FRAMES, received=RECEIVED, frame_errors=FRAME_ERRORS, keys=KEYS), indent=1))
