#!/usr/bin/env python3
"""Writes frames.txt: frames with the digests that they have, computed from what each was made of and not by reading it."""

import ipaddress
import struct

MASK = (1 << 64) - 1


SEED = 0x243F6A8885A308D3
SPREAD = 0x9E3779B97F4A7C15
MULTIPLIERS = [
    0x13198A2E03707345, 0xA4093822299F31D1, 0x082EFA98EC4E6C89, 0x452821E638D01377, 0xBE5466CF34E90C6D, 0xC0AC29B7C97C50DD,
    0x3F84D5B5B5470917, 0x9216D5D98979FB1B, 0xD1310BA698DFB5AD, 0x2FFD72DBD01ADFB7, 0xB8E1AFED6A267E97,
]


def term(word, multiplier):
    product = word * SPREAD & MASK
    return (product ^ product >> 32) * multiplier & MASK


def finish(state):
    state ^= state >> 30
    state = state * 0xBF58476D1CE4E5B9 & MASK
    state ^= state >> 27
    state = state * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


def wide(address):
    address = ipaddress.ip_address(address)
    return bytes(10) + b"\xff\xff" + address.packed if address.version == 4 else address.packed


def digest(src, dst, proto, payload=b"", sport=0, dport=0, ip_id=0, offset=0, data=False, seq=0, ack=0):
    numbers = lambda data: struct.unpack(f"<{len(data) // 8}Q", data)
    words = [proto | data << 8 | ip_id << 16 | offset << 32, seq | ack << 32]
    words += numbers(payload[:32].ljust(32, b"\0")) + numbers(wide(src) + wide(dst)) + (sport | dport << 16,)
    terms = [term(word, multiplier) for word, multiplier in zip(words, MULTIPLIERS)]
    return finish(SEED + sum(terms) & MASK) or 1, finish(SEED + sum(terms[:6]) & MASK)


def ethernet(ethertype, body, tags=()):
    head = bytes.fromhex("0200000000020200000000 01".replace(" ", ""))
    for tag in tags:
        head += struct.pack(">HH", 0x8100, tag)
    return head + struct.pack(">H", ethertype) + body


def ip4(src, dst, proto, body, ip_id=0, fragment=0, ttl=64, tos=0):
    head = struct.pack(">BBHHHBBH", 0x45, tos, 20 + len(body), ip_id, fragment, ttl, proto, 0)
    head += ipaddress.ip_address(src).packed + ipaddress.ip_address(dst).packed
    total = sum(struct.unpack(">10H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack(">H", ~total & 0xFFFF) + head[12:] + body


def ip6(src, dst, proto, body):
    head = struct.pack(">IHBB", 6 << 28, len(body), proto, 64)
    return head + ipaddress.ip_address(src).packed + ipaddress.ip_address(dst).packed + body


def udp(sport, dport, body, length=None):
    return struct.pack(">HHHH", sport, dport, length or 8 + len(body), 0) + body


def tcp(sport, dport, seq, ack, flags, body, options=b""):
    return struct.pack(">HHIIBBHHH", sport, dport, seq, ack, (20 + len(options)) << 2, flags, 512, 0, 0) + options + body


A, B, C, D = "10.9.0.1", "10.9.0.2", "fd00::1", "fd00::2"
TEXT = bytes(range(65, 65 + 50))
STAMPS = bytes.fromhex("0101080a") + bytes.fromhex("0011223344556677")
frames = []


def add(name, frame, *args, **fields):
    full, core = digest(*args, **fields)
    frames.append(f"{name} {frame.hex()} {full:016x} {core:016x}")


add("udp", ethernet(0x800, ip4(A, B, 17, udp(1000, 2000, TEXT), 7)), A, B, 17, TEXT, 1000, 2000, 7, seq=58)
add("udp-other-ttl-and-tos", ethernet(0x800, ip4(A, B, 17, udp(1000, 2001, TEXT), 8, ttl=3, tos=0xB8)),
    A, B, 17, TEXT, 1000, 2001, 8, seq=58)
add("udp-short-padded", ethernet(0x800, ip4(A, B, 17, udp(1, 2, b"ab"), 9)).ljust(60, b"\x55"), A, B, 17, b"ab", 1, 2, 9, seq=10)
add("udp-without-data", ethernet(0x800, ip4(A, B, 17, udp(1, 2, b""), 10)), A, B, 17, b"", 1, 2, 10, seq=8)
add("udp-vlan", ethernet(0x800, ip4(A, B, 17, udp(3, 4, TEXT), 11), [7]), A, B, 17, TEXT, 3, 4, 11, seq=58)
add("udp-two-vlans", ethernet(0x800, ip4(A, B, 17, udp(3, 5, TEXT), 12), [7, 9]), A, B, 17, TEXT, 3, 5, 12, seq=58)
add("fragment-first", ethernet(0x800, ip4(A, B, 17, udp(5, 6, TEXT[:40], 208), 13, 0x2000)), A, B, 17, TEXT[:40], 5, 6, 13, seq=208)
add("fragment-later", ethernet(0x800, ip4(A, B, 17, TEXT, 13, 6)), A, B, 17, TEXT, ip_id=13, offset=6)
add("tcp-syn", ethernet(0x800, ip4(A, B, 6, tcp(80, 90, 100, 0, 2, b"", bytes.fromhex("020405b4")), 14)), A, B, 6, b"", 80, 90, 14, seq=100)
add("tcp-data-stamps", ethernet(0x800, ip4(A, B, 6, tcp(80, 90, 101, 7, 24, TEXT, STAMPS), 15)),
    A, B, 6, STAMPS[4:], 80, 90, 15, data=True, seq=101, ack=7)
add("tcp-ack-alone", ethernet(0x800, ip4(A, B, 6, tcp(80, 90, 101, 7, 16, b"", STAMPS), 16)), A, B, 6, STAMPS[4:], 80, 90, 16, seq=101, ack=7)
echo = struct.pack(">BBHHH", 8, 0, 0x1234, 77, 5)
add("icmp-echo", ethernet(0x800, ip4(A, B, 1, echo + TEXT, 17)), A, B, 1, TEXT, 0, 77, 17, seq=0x08000005)
add("icmp-unreachable", ethernet(0x800, ip4(A, B, 1, struct.pack(">BBHHH", 3, 3, 0, 0, 0) + TEXT, 18)), A, B, 1, TEXT, ip_id=18, seq=0x03030000)
add("esp", ethernet(0x800, ip4(A, B, 50, TEXT, 19)), A, B, 50, TEXT, ip_id=19)
add("sctp", ethernet(0x800, ip4(A, B, 132, struct.pack(">HHII", 11, 12, 1, 2) + TEXT, 20)), A, B, 132, TEXT, 11, 12, 20)
add("udp6", ethernet(0x86DD, ip6(C, D, 17, udp(1000, 2000, TEXT))), C, D, 17, TEXT, 1000, 2000, seq=58)
add("tcp6", ethernet(0x86DD, ip6(C, D, 6, tcp(1, 2, 3, 4, 16, TEXT))), C, D, 6, b"", 1, 2, data=True, seq=3, ack=4)
options = bytes([17, 0, 1, 4, 0, 0, 0, 0])
add("udp6-hop-by-hop", ethernet(0x86DD, ip6(C, D, 0, options + udp(7, 8, TEXT))), C, D, 17, TEXT, 7, 8, seq=58)
fragment = struct.pack(">BBHI", 17, 0, 6 << 3 | 1, 0xAABBCCDD)
add("udp6-fragment-later", ethernet(0x86DD, ip6(C, D, 44, fragment + TEXT)), C, D, 17, TEXT, ip_id=0xCCDD, offset=6)
inner = ethernet(0x800, ip4(A, B, 17, udp(21, 22, TEXT), 21))
outer = lambda body, port: ethernet(0x800, ip4("192.0.2.1", "192.0.2.2", 17, udp(999, port, body), 99))
add("vxlan", outer(bytes.fromhex("0800000000000700") + inner, 4789), A, B, 17, TEXT, 21, 22, 21, seq=58)
add("geneve-with-options", outer(bytes.fromhex("0100655800000700") + bytes(4) + inner, 6081), A, B, 17, TEXT, 21, 22, 21, seq=58)
arp = ethernet(0x806, bytes(28))
around = bytes.fromhex("0800000000000700") + arp
add("vxlan-with-arp", outer(around, 4789), "192.0.2.1", "192.0.2.2", 17, around, 999, 4789, 99, seq=8 + len(around))
gre = lambda head, body: ethernet(0x800, ip4("192.0.2.1", "192.0.2.2", 47, bytes.fromhex(head) + body, 98))
add("gre-with-key", gre("20000800" + "00000001", ip4(A, B, 17, udp(23, 24, TEXT), 22)), A, B, 17, TEXT, 23, 24, 22, seq=58)
add("ip-in-ip", ethernet(0x800, ip4("192.0.2.1", "192.0.2.2", 4, ip4(A, B, 6, tcp(1, 2, 3, 4, 24, TEXT), 23), 97)),
    A, B, 6, b"", 1, 2, 23, data=True, seq=3, ack=4)
add("ip6-in-ip", ethernet(0x800, ip4("192.0.2.1", "192.0.2.2", 41, ip6(C, D, 17, udp(25, 26, TEXT)), 96)), C, D, 17, TEXT, 25, 26, seq=58)
add("tcp-cut-header", ethernet(0x800, ip4(A, B, 6, TEXT[:12], 24)), A, B, 6, TEXT[:12], ip_id=24)

with open(__file__.removesuffix("py") + "txt", "w", encoding="ascii") as file:
    file.write("\n".join(frames) + "\n")
