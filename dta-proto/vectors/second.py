"""A second implementation of docs/wire-format.md and docs/memory-layout.md, which shares no code with the crates.

The scripts beside it write the vectors with it. The iCRC is zlib's CRC-32; the other CRCs are computed bit by bit from their
polynomials.
"""
import ipaddress
import struct
import zlib


def be(n, length):
    return n.to_bytes(length, "big")


def be32(*numbers):
    return struct.pack(f">{len(numbers)}I", *numbers)


def crc(polynomial, data):
    """Reflected, initial value and final exclusive-or all ones; `polynomial` in normal order."""
    reversed_polynomial = int(f"{polynomial:032b}"[::-1], 2)
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (reversed_polynomial if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def crc32(data):
    return crc(0x04C11DB7, data)


def crc32c(data):
    return crc(0x1EDC6F41, data)


assert crc32(b"123456789") == 0xCBF43926 and crc32c(b"123456789") == 0xE3069283


# --- elements in memory

C = [
    0x9E3779B9,
    0x7F4A7C15,
    0x94D049BB,
    0xBF58476D,
    0xCC9E2D51,
    0xC2B2AE35,
    0x85EBCA6B,
    0x1B873593,
]


def slots(key, n, size):
    h = crc32c(key)
    return [crc32c(struct.pack("<I", (h + C[i]) & 0xFFFFFFFF)) % size for i in range(n)]


def key_write(key, value, value_len):
    value += bytes(value_len - len(value))
    return be32(crc32(key + value)) + value


def inline_key_write(key, value):
    return key_write(key, key + value, 28)


def row(key, hops, length, values):
    bitmap = sum(1 << h for h in values)
    body = struct.pack(">HBB", bitmap, length, 0) + be32(*(values.get(h, 0) for h in range(hops)))
    return be32(crc32(key + body)) + body


def batch(list_, sequence, count, entries, batch_len):
    covered = entries + bytes(batch_len - 8 - len(entries)) + be32(sequence) + bytes([count])
    return covered + be32(crc32(be32(list_) + covered))[1:]


def column(epoch, merged, expected, cells):
    size = 16 if len(cells) <= 2 else 32
    out = struct.pack(">IHH", epoch, merged, expected) + be32(*cells)
    return out + bytes(size - len(out))


# --- reports

OPCODES = {"key-write": 1, "append": 2, "key-increment": 3, "postcarding": 4, "sketch-merge": 5}


def flags(r):
    return (r["immediate"] << 7) | (r["retransmittable"] << 6) | (r["restarted"] << 5) | r["version"]


def report_bytes(r):
    b, op = r["body"], OPCODES[r["body"]["primitive"]]
    key = bytes.fromhex(b.get("key", ""))
    value = bytes.fromhex(b.get("value", ""))
    if r["version"] == 0:
        head = bytes([op, r["sequence"] & 0xFF, flags(r)])
        return head + {
            1: lambda: bytes([b["redundancy"]]) + key[:4] + value,
            2: lambda: be(b["list"], 4) + value,
            3: lambda: bytes([b["redundancy"]]) + key[:4] + be(int(b["delta"]), 8),
            4: lambda: key[:4] + bytes([b["hop"] + 1]) + value,
        }[op]()
    argument = {1: b.get("redundancy"), 3: b.get("redundancy"), 4: b.get("path_length", 0) << 4 | b.get("hop", 0)}.get(op, 0)
    head = bytes([op, r["sequence"] & 0xFF, flags(r), argument])
    head += be(r["store"], 2) + be(r["reporter"], 2) + be(r["sequence"], 4)
    return head + {
        1: lambda: key + value,
        2: lambda: be(b["list"], 4) + value,
        3: lambda: key + be(int(b["delta"]), 8),
        4: lambda: key + value,
        5: lambda: be(b["epoch"], 4) + be(b["column"], 4) + bytes.fromhex(b["cells"]),
    }[op]()


# --- RoCEv2 frames

RC = {"write-first": 6, "write-middle": 7, "write-last": 8, "write-last-imm": 9, "write-only": 10, "write-only-imm": 11,
      "read-request": 12, "read-response-first": 13, "read-response-middle": 14, "read-response-last": 15,
      "read-response-only": 16, "ack": 17, "atomic-ack": 18, "cmp-swap": 19, "fetch-add": 20}


def ip_checksum(header):
    total = sum(int.from_bytes(header[i:i + 2], "big") for i in range(0, len(header), 2))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return total ^ 0xFFFF


def icrc(packet):
    masked = bytearray(packet)
    if packet[0] >> 4 == 6:
        masked[0] |= 0x0F
        places = (1, 2, 3, 7, 46, 47, 52)
    else:
        places = (1, 8, 10, 11, 26, 27, 32)
    for at in places:
        masked[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little")


def ip_packet(transport, src, dst, src_port, dst_port=4791, tos=0, ttl=64):
    """IPv4 or IPv6 packet with `transport` and its iCRC."""
    udp_len = 8 + len(transport) + 4
    src, dst = ipaddress.ip_address(src), ipaddress.ip_address(dst)
    if src.version == 6:
        header = be(6 << 28 | tos << 20, 4) + be(udp_len, 2) + bytes([17, ttl]) + src.packed + dst.packed
    else:
        header = bytes([0x45, tos]) + be(20 + udp_len, 2) + be(0, 2) + be(0x4000, 2) + bytes([ttl, 17, 0, 0])
        header += src.packed + dst.packed
        header = header[:10] + be(ip_checksum(header), 2) + header[12:]
    packet = header + be(src_port, 2) + be(dst_port, 2) + be(udp_len, 2) + bytes(2) + transport
    return packet + icrc(packet)


def transport_bytes(operation, transport, dest_qp, psn, ack_req, reth=None, atomic=None, aeth=None, atomic_ack=None, imm=None, data=b""):
    """BTH, the headers that the operation has, payload and pad."""
    pad = -len(data) % 4
    opcode = RC[operation] | (0x20 if transport == "uc" else 0)
    t = bytes([opcode, 0x40 | pad << 4]) + be(0xFFFF, 2) + be(dest_qp, 4) + be(ack_req << 31 | psn, 4)
    if reth:
        t += be(int(reth["va"], 16), 8) + be(reth["rkey"], 4) + be(reth["length"], 4)
    if atomic:
        t += be(int(atomic["va"], 16), 8) + be(atomic["rkey"], 4) + be(int(atomic["swap_add"]), 8) + be(int(atomic["compare"]), 8)
    if aeth:
        t += bytes([aeth["syndrome"]]) + be(aeth["msn"], 3)
    if atomic_ack is not None:
        t += be(int(atomic_ack), 8)
    if imm is not None:
        t += be(imm, 4)
    return opcode, pad, t + data + bytes(pad)


def source_port(dest_qp):
    return 0xC000 | (dest_qp & 0x3FFF)
