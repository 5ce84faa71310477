#!/usr/bin/python3
"""Makes sFlow v5 of a capture: sflow.py CAPTURE RATE OUT, both files in pcap format, without this project's code.

Of the packets, numbered from 1 as tshark does, each RATE-th is a sample, and each 50th from the 7th on a notice of a drop, whose
reason is the next of REASONS. After each 100 packets come the counters of interface 3. Compact and expanded forms alternate.
The agent is 10.200.0.1, its sub-agent 5; a datagram has 8 samples, the last one what is left.
"""

import socket
import struct
import sys

HEADER = 128
REASONS = [0, 3, 256, 257, 258, 261, 289]
AGENT, SUB_AGENT = socket.inet_aton("10.200.0.1"), 5


def packets(path):
    with open(path, "rb") as file:
        magic = file.read(4)
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\x3c\x4d": ">"}[magic]
        assert struct.unpack(order + "HHiIII", file.read(20))[5] == 1, "not of Ethernet"
        while head := file.read(16):
            _, _, kept, length = struct.unpack(order + "IIII", head)
            yield length, file.read(kept)


def words(*numbers):
    return struct.pack(f">{len(numbers)}I", *numbers)


def item(kind, body):
    return words(kind, len(body)) + body + bytes(-len(body) % 4)


def header_record(length, packet):
    # The checksum of the frame was on the wire, and was stripped.
    first = packet[:HEADER]
    return item(1, words(1, length + 4, 4, len(first)) + first)


def switch_record():
    return item(1001, words(100, 0, 100, 0))


def flow_sample(number, expanded, rate, record):
    port = 1 + number % 2
    if expanded:
        head = words(number, 0, port, rate, number * rate, 0, 0, port, 0, 3)
    else:
        head = words(number, port, rate, number * rate, 0, port, 3)
    return item(3 if expanded else 1, head + words(2) + switch_record() + record)


def drop_notice(number, reason, record):
    return item(5, words(number, 0, 1, 0, 1, 3, reason, 1) + record)


def counter_sample(number, expanded, octets):
    counters = words(3, 6) + struct.pack(">Q", 1_000_000_000) + words(1, 3)
    counters += struct.pack(">Q", 0) + words(0, 0, 0, 0, 0, 0)
    counters += struct.pack(">Q", octets) + words(0, 0, 0, 0, 0, 0)
    source = words(0, 3) if expanded else words(3)
    return item(4 if expanded else 2, words(number) + source + words(1) + item(1, counters))


def samples(path, rate):
    octets = drops = 0
    for number, (length, packet) in enumerate(packets(path), 1):
        octets += length
        expanded = number // rate % 2 == 1
        if number % rate == 0:
            yield flow_sample(number // rate, expanded, rate, header_record(length, packet))
        if number % 50 == 7:
            yield drop_notice(drops + 1, REASONS[drops % len(REASONS)], header_record(length, packet))
            drops += 1
        if number % 100 == 0:
            yield counter_sample(number // 100, number // 100 % 2 == 1, octets)


def datagram(sequence, batch):
    return words(5, 1) + AGENT + words(SUB_AGENT, sequence, 1000 * sequence, len(batch)) + b"".join(batch)


def framed(payload):
    udp = struct.pack(">HHHH", 8888, 6343, 8 + len(payload), 0) + payload
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, AGENT, socket.inet_aton("10.200.0.2"))
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack(">H", 0xFFFF ^ ((total & 0xFFFF) + (total >> 16))) + head[12:]
    return bytes(12) + b"\x08\x00" + head + udp


def main():
    path, rate, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    every = list(samples(path, rate))
    with open(out, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for sequence, at in enumerate(range(0, len(every), 8), 1):
            frame = framed(datagram(sequence, every[at : at + 8]))
            file.write(struct.pack("<IIII", sequence, 0, len(frame), len(frame)) + frame)


main()
