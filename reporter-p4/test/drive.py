"""Runs the reporter on bmv2, sends it packets, and writes down what went in and what came out.

    drive.py FOLDER-OF-THE-PROGRAM CAPTURE

Run in a network namespace of its own. The capture is records of `what 8, port 8, time 64 (ns), length 32,
bytes`, big-endian; what is 0 for a frame in, 1 for a frame out, 2 for the start of a phase, 3 for the
digests of the program's sources. The entries written here are those that crates/telemetry/tests/reporter_p4.rs computes the truth from.
"""

import random
import select
import socket
import struct
import subprocess
import sys
import time

from p4runtime import DELETE, Switch

PORTS = [1, 2, 3, 4, 5]
A, B, ROUTER = 0x020000000A01, 0x020000000A02, 0x0200000000FE
NOWHERE, CLOSED, DENIED = 0x020000000099, 0x020000000055, 0x0200000000DD
BROADCAST = (1 << 48) - 1
END = 60


def address(text):
    return struct.unpack("!I", socket.inet_aton(text))[0]


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Traffic:
    """Frames, each with an IP id of its own. The same ones in each run."""

    def __init__(self):
        self.random = random.Random(7)
        self.id = 0

    def ip(self, src, dst, protocol, payload, ttl=64, options=b"", fragment=0, tos=0):
        self.id += 1
        head = struct.pack(
            "!BBHHHBBH4s4s", 0x40 | 5 + len(options) // 4, tos, 20 + len(options) + len(payload), self.id, fragment, ttl,
            protocol, 0, socket.inet_aton(src), socket.inet_aton(dst),
        ) + options
        return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload

    def udp(self, sport, dport, payload=b""):
        return struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload

    def tcp(self, sport, dport, payload=b""):
        return struct.pack("!HHIIBBHHH", sport, dport, 1, 2, 0x50, 0x10, 1000, 0, 0) + payload

    def frame(self, mac, packet, source=A, tags=(), kind=0x0800):
        head = mac.to_bytes(6, "big") + source.to_bytes(6, "big")
        for type_, tag in tags:
            head += struct.pack("!HH", type_, tag)
        frame = head + struct.pack("!H", kind) + packet
        return frame + b"\0" * max(0, 60 - len(frame))

    def any(self):
        """A port and a frame."""
        pick, bytes_ = self.random.randrange, lambda length: bytes(n & 0xFF for n in range(length))
        src = f"10.0.1.{pick(1, 9)}" if pick(3) else f"192.168.{pick(3)}.7"
        dst = f"10.0.2.{pick(1, 5)}"
        payload = bytes_(pick(0, 90))
        udp = self.udp(pick(1000, 1010), pick(5000, 5004), payload)
        tcp = self.tcp(pick(1000, 1010), 80, payload)
        kind = pick(26)
        if kind < 4:
            return 1, self.frame(B, self.ip(src, dst, 17, udp))
        if kind < 8:
            return 1, self.frame(B, self.ip(src, dst, 6, tcp))
        if kind == 8:
            return 1, self.frame(ROUTER, self.ip(src, dst, 17, udp, ttl=pick(2, 200)))
        if kind == 9:
            return 1, self.frame(ROUTER, self.ip(src, dst, 17, udp, ttl=pick(2)))
        if kind == 10:
            return 1, self.frame(ROUTER, self.ip(src, f"10.9.{pick(4)}.1", 6, tcp))
        if kind == 11:
            return 1, self.frame(B, self.ip(src, "10.0.66.1", 6, self.tcp(7, pick(98, 103), payload)))
        if kind == 12:
            return 1, self.frame(self.random.choice([NOWHERE, CLOSED, DENIED]), self.ip(src, dst, 17, udp))
        if kind == 13:
            return 5, self.frame(B, self.ip(src, dst, 6, tcp))
        if kind == 14:
            return 1, self.frame(B, self.ip(src, "10.0.2.99", 6, tcp))
        if kind == 15:
            return 1, self.frame(B, self.ip(f"172.{pick(4)}.3.4", f"172.16.{pick(4)}.7", 17, self.udp(9, pick(4999, 5002), payload)))
        if kind == 16:
            tags = [(0x88A8, 7), (0x8100, 42)][pick(2):]
            return 1, self.frame(B, self.ip(src, dst, 17, udp), tags=tags)
        if kind == 17:
            inner = self.frame(NOWHERE, self.ip(f"10.7.0.{pick(1, 4)}", "10.7.9.9", 6, tcp), tags=[(0x8100, 3)][pick(2):])
            vxlan = struct.pack("!BBHI", 8 * pick(2), 0, 0, 77 << 8)
            return 1, self.frame(B, self.ip("192.168.5.1", "192.168.5.2", 17, self.udp(4000, 4789, vxlan + inner)))
        if kind in (18, 19):
            inner = self.ip(f"10.7.1.{pick(1, 4)}", "10.7.9.9", 17, udp, options=[b"", bytes([1, 1, 1, 0])][pick(2)])
            more = [
                (0x30, b""), (0x32, bytes(4)), (0x34, bytes([0, 0, 0, 0x85, 1, 0, 9, 0])),
                (0x36, bytes([0, 1, 0, 0x85, 2, 1, 2, 3, 4, 5, 6, 0xC0, 1, 7, 7, 0])),
            ]
            flags, extra = self.random.choice(more)
            gtpu = struct.pack("!BBHI", flags, 255 if pick(5) else 1, len(extra) + len(inner), 99) + extra
            return 1, self.frame(B, self.ip("192.168.5.1", "192.168.5.2", 17, self.udp(2152, 2152, gtpu + inner)))
        if kind == 20:
            return 1, self.frame(B, self.ip(src, dst, 17, bytes_(64), fragment=0x2000 * pick(2) | pick(1, 100)))
        if kind == 21:
            return 1, self.frame(B, self.ip(src, dst, 1, bytes([8, 0, 0, 0]) + payload))
        if kind == 22:
            options = bytes([1] * (4 * pick(1, 10)))
            return 1, self.frame(ROUTER, self.ip(src, dst, 6, tcp, options=options))
        if kind == 23:
            if pick(2):
                return 1, self.frame(BROADCAST, bytes(28), kind=0x0806)
            return 1, self.frame(B, bytes([0x60]) + bytes(60), kind=0x86DD)
        if kind == 24:
            port, theirs = self.random.choice([(1, 40040), (40040, 5), (1, 40044), (1, 4791), (1, 54321)])
            to = "10.0.3.9" if theirs == 54321 else dst
            return 1, self.frame(B, self.ip(src, to, 17, self.udp(port, theirs, payload)))
        return 2, self.frame(A, self.ip("10.0.2.3", "10.0.1.4", 6, self.tcp(80, 1000, bytes_(pick(1, 2000)))), source=B)


class Wires:
    """The far ends of the switch's ports, and the capture."""

    def __init__(self, capture):
        self.capture = open(capture, "wb")
        self.sockets = {}
        self.sent = 0
        self.out = {port: 0 for port in PORTS}
        for port in PORTS:
            one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            one.bind((f"h{port}", 0))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            one.setsockopt(263, 8, 1)  # PACKET_AUXDATA, for the VLAN tag that the kernel takes off
            one.setblocking(False)
            self.sockets[port] = one

    def record(self, what, port, moment, frame):
        self.capture.write(struct.pack("!BBQI", what, port, moment, len(frame)) + frame)

    def send(self, port, frame):
        self.record(0, port, time.monotonic_ns(), frame)
        self.sent += 1
        self.sockets[port].send(frame)

    def receive(self, seconds):
        ready, _, _ = select.select(list(self.sockets.values()), [], [], seconds)
        for port, one in self.sockets.items():
            while one in ready:
                try:
                    frame, notes, _, whence = one.recvmsg(70000, 256)
                except BlockingIOError:
                    break
                if whence[2] == 4:  # PACKET_OUTGOING
                    continue
                for level, kind, data in notes:
                    if (level, kind) == (263, 8):
                        status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", data[:20])
                        if status & 0x10:
                            frame = frame[:12] + struct.pack("!HH", tpid if status & 0x40 else 0x8100, tci) + frame[12:]
                self.out[port] += 1
                self.record(1, port, time.monotonic_ns(), frame)
        return bool(ready)

    def wait(self, what, done):
        end = time.monotonic() + END
        while not done():
            assert time.monotonic() < end, f"waited too long for {what}"
            self.receive(0.05)


def fill(switch):
    """The entries. Kept small; crates/telemetry/tests/reporter_p4.rs has the same."""
    switch.set_default("settings", "set", switch_id=7, time_offset=10**18, interval_mask=0, latency_mask=0, every_packet=1)
    for port, hop in [(1, 2), (2, 0), (3, 0), (4, 0)]:
        switch.insert("ingress_port", {"ingress_port": port}, "admit", hop=hop)
    for port, last in [(1, 0), (2, 1), (3, 0), (4, 0)]:
        switch.insert("egress_port", {"egress_port": port}, "allow", is_last_hop=last)
    switch.group(1, [1, 2])
    switch.insert("l2", {"destination": A}, "Arrival.forwarding.forward", port=1)
    switch.insert("l2", {"destination": B}, "Arrival.forwarding.forward", port=2)
    switch.insert("l2", {"destination": CLOSED}, "Arrival.forwarding.forward", port=5)
    switch.insert("l2", {"destination": BROADCAST}, "flood", group=1)
    switch.insert("l2", {"destination": ROUTER}, "route")
    switch.insert("l2", {"destination": DENIED}, "Arrival.forwarding.drop", reason=128)
    switch.insert("l3", {"destination": (address("10.0.2.0"), 24)}, "next_hop", port=2, source=ROUTER, destination=B)
    switch.insert("l3", {"destination": (address("10.9.3.0"), 24)}, "Arrival.forwarding.drop", reason=134)
    switch.insert(
        "acl", {"destination": (address("10.0.66.0"), 0xFFFFFF00), "protocol": (6, 255), "destination_port": (100, 200)},
        "deny", priority=1, reason=80,
    )
    switch.insert("queue_of", {"dscp": 46}, "use_queue", queue=3)
    switch.insert(
        "excluded", {"destination": (address("10.0.3.9"), 0xFFFFFFFF), "protocol": 17, "destination_port": (54321, 0xFFFF)}, "exclude",
        priority=1,
    )
    switch.insert("watchlist", {"destination": (address("10.0.2.99"), 0xFFFFFFFF)}, "ignore", priority=40)
    switch.insert("watchlist", {"source": (address("10.0.0.0"), 0xFF000000)}, "watch", priority=30, flows=1, queues=1, drops=1)
    switch.insert(
        "watchlist",
        {"destination": (address("172.0.0.7"), 0xFF0000FF), "protocol": (17, 255), "destination_port": (5000, 5999)},
        "watch", priority=20, flows=1, queues=0, drops=0,
    )
    mac = {"source_mac": 0x020000000077, "destination_mac": 0x020000000088, "source_ip": address("10.0.3.7")}
    switch.insert(
        "destination", {"number": 1}, "translator", reporter=77, destination_ip=address("10.0.3.1"), source_port=50001,
        destination_port=40040, tos=4, **mac,
    )
    switch.insert(
        "destination", {"number": 2}, "translator", reporter=78, destination_ip=address("10.0.4.1"), source_port=50002,
        destination_port=40040, tos=0, **mac,
    )
    switch.insert(
        "destination", {"number": 3}, "int_collector", hardware=5, packet_bytes=128, destination_ip=address("10.0.3.9"),
        source_port=50003, destination_port=54321, tos=0, **mac,
    )
    key_write = dict(destination=1, store=11, redundancy=2)
    switch.insert("report", {"replica": 1}, "key_write", key_kind=1, value_kind=0, with_time=1, **key_write)
    switch.insert("report", {"replica": 2}, "key_write", key_kind=2, value_kind=1, with_time=1, **key_write)
    switch.insert("report", {"replica": 3}, "postcard", destination=1, store=12, value_kind=2)
    switch.insert("report", {"replica": 4}, "key_increment", destination=2, store=13, redundancy=0, key_kind=5, value_kind=3)
    switch.insert("report", {"replica": 5}, "key_increment", destination=2, store=13, redundancy=0, key_kind=6, value_kind=4)
    switch.insert("report", {"replica": 6}, "Departure.make_report.append", destination=1, store=14, list_number=5, entry_kind=2, immediate=1)
    switch.insert("report", {"replica": 7}, "telemetry_report", destination=3)
    switch.insert("report", {"replica": 8}, "key_write", destination=1, store=15, redundancy=0, key_kind=0, value_kind=0, with_time=0)
    switch.insert("report", {"replica": 20}, "Departure.make_report.append", destination=1, store=16, list_number=2, entry_kind=1, immediate=0)
    switch.insert("report", {"replica": 30}, "Departure.make_report.append", destination=1, store=16, list_number=1, entry_kind=0, immediate=0)
    switch.insert("report", {"replica": 31}, "key_increment", destination=2, store=13, redundancy=2, key_kind=3, value_kind=3)
    switch.insert("report", {"replica": 32}, "key_increment", destination=2, store=13, redundancy=2, key_kind=4, value_kind=3)
    # Two replicas of one session go out of one port where they have numbers of their own.
    flow = [(3, 1), (3, 2), (3, 3), (4, 4), (4, 5), (3, 6), (3, 8)]
    switch.session(1, flow + [(3, 7)])
    switch.session(2, [(3, 20), (3, 7)])
    switch.session(3, flow + [(3, 20), (3, 7)])
    switch.session(4, [(3, 30), (4, 31), (4, 32), (3, 7)])


# Reports of a clone by its session, at ports 3 and 4.
REPORTS = {1: (6, 2), 2: (2, 0), 3: (7, 2), 4: (2, 2)}
# Packets that may be under way: bmv2's queues hold 64 packets, and drop the next one in silence.
UNDER_WAY = 6


def settle(switch, wires):
    """Waits until all that was sent has come out, with all its reports, by the counters of the program."""

    def total(name):
        return sum(switch.counters(name).values())

    def handled():
        return total("Arrival.dropped") + total("Departure.egress_dropped") + total("Departure.forwarded") == wires.sent

    wires.wait("the switch", handled)
    clones = {4: total("Arrival.ingress_mirrored")}
    for session, number in switch.counters("Departure.mirrored").items():
        clones[session] = clones.get(session, 0) + number
    reports = [sum(number * REPORTS[session][at] for session, number in clones.items()) for at in (0, 1)]
    forwarded = total("Departure.forwarded")
    wires.wait("frames", lambda: wires.out[1] + wires.out[2] >= forwarded)
    wires.wait("reports", lambda: wires.out[3] >= reports[0] and wires.out[4] >= reports[1])
    assert (wires.out[1] + wires.out[2], wires.out[3], wires.out[4]) == (forwarded, *reports)


def run(switch, wires):
    traffic = Traffic()

    def phase(number):
        settle(switch, wires)
        wires.record(2, number, time.monotonic_ns(), b"")

    def settings(**changed):
        now = dict(switch_id=7, time_offset=10**18, interval_mask=0, latency_mask=0, every_packet=0)
        switch.set_default("settings", "set", **{**now, **changed})

    def forwarded(frame, port=1):
        """Sends, and waits until it came out of port 2 (or 1)."""
        before = wires.out[1] + wires.out[2]
        wires.send(port, frame)
        wires.wait("a frame", lambda: wires.out[1] + wires.out[2] > before)
        if wires.sent % UNDER_WAY == 0:
            settle(switch, wires)

    # Each packet is reported.
    phase(1)
    for number in range(540):
        wires.send(*traffic.any())
        if number % UNDER_WAY == 0:
            settle(switch, wires)

    # One report in each interval of 2^29 ns.
    phase(2)
    settings(interval_mask=(1 << 64) - (1 << 29))
    end, rounds = time.monotonic() + 3.5, 0
    while time.monotonic() < end or rounds < 12:
        rounds += 1
        for flow in range(6):
            forwarded(traffic.frame(B, traffic.ip(f"10.0.1.{flow}" if flow < 4 else "11.0.0.1", "10.0.2.1", 17, traffic.udp(7, flow))))

    # One interval for ever: a report for each change of port, queue and path alone.
    phase(3)
    settings()
    for source, tos, mac, port in [(A, 0, B, 1), (A, 46 << 2, B, 1), (A, 0, ROUTER, 1), (B, 0, A, 2), (B, 0, B, 1)]:
        for _ in range(4):
            forwarded(traffic.frame(mac, traffic.ip("10.0.1.1", "10.0.2.50", 6, traffic.tcp(4, 5)), source=source), port)
            if tos:
                forwarded(traffic.frame(mac, traffic.ip("10.0.1.1", "10.0.2.50", 6, traffic.tcp(4, 5), tos=tos), source=source), port)

    # A queue that is congested from the first packet: three reports, and three more behind a reset.
    phase(4)
    queue = {"queue": 0, "egress_port": (2, 0x1FF)}

    def eight():
        for _ in range(8):
            forwarded(traffic.frame(B, traffic.ip("10.0.1.1", "10.0.2.60", 17, traffic.udp(8, 9))))

    high = (1 << 32) - 1
    switch.insert("queue_limits", queue, "limit", priority=1, trigger_ns=1, reset_ns=0, reports=3)
    eight()
    switch.modify("queue_limits", queue, "limit", priority=1, trigger_ns=high, reset_ns=high, reports=3)
    eight()
    switch.modify("queue_limits", queue, "limit", priority=1, trigger_ns=1, reset_ns=0, reports=3)
    eight()
    # A report for each latency that is in another power of two than the last; one interval, no limits.
    phase(5)
    switch.write(DELETE, switch.entry("queue_limits", queue, None, priority=1))
    settings(latency_mask=high & ~1023)
    for _ in range(60):
        forwarded(traffic.frame(B, traffic.ip("10.0.1.1", "10.0.2.70", 17, traffic.udp(8, 9))))

    phase(6)
    for name in ["received", "no_flow", "excluded_packets", "watched", "dropped"]:
        print(name, switch.counters(f"Arrival.{name}"))
    for name in ["forwarded", "egress_dropped", "mirrored", "filter.unchanged", "filter.over_quota", "make_report.sent", "make_report.no_report"]:
        print(name, switch.counters(f"Departure.{name}"))


def main():
    program, capture = sys.argv[1:]
    open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w").write("1")
    open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w").write("1")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for port in PORTS:
        subprocess.run(["ip", "link", "add", f"s{port}", "mtu", "65535", "type", "veth", "peer", f"h{port}", "mtu", "65535"], check=True)
        for end in "sh":
            subprocess.run(["ip", "link", "set", f"{end}{port}", "up"], check=True)
    wires = Wires(capture)
    wires.record(3, 0, 0, open(f"{program}/sources.sha256", "rb").read())
    command = ["simple_switch_grpc", "--no-p4"]
    for port in PORTS:
        command += ["-i", f"{port}@s{port}"]
    command += ["--", "--grpc-server-addr", "127.0.0.1:9559", "--priority-queues", "8"]
    bmv2 = subprocess.Popen(command)
    try:
        end = time.monotonic() + END
        while True:
            assert bmv2.poll() is None, "simple_switch_grpc ended"
            try:
                socket.create_connection(("127.0.0.1", 9559), 1).close()
                break
            except OSError:
                assert time.monotonic() < end, "simple_switch_grpc does not listen"
                time.sleep(0.1)
        switch = Switch("127.0.0.1:9559", f"{program}/reporter.json", f"{program}/reporter.p4info.txtpb")
        fill(switch)
        run(switch, wires)
        switch.close()
        wires.capture.close()
    finally:
        bmv2.terminate()
        bmv2.wait()


if __name__ == "__main__":
    main()
