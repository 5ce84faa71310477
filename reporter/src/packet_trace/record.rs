//! The kernel's record of one packet at one point.

use std::net::{IpAddr, Ipv6Addr};

use dta_proto::key::Flow;

/// Length of a record in the ring.
pub const RECORD: usize = 96;

pub mod flags {
    /// The innermost packet is IPv6.
    pub const IPV6: u16 = 1;
    /// It is a fragment, or the first of several.
    pub const FRAGMENT: u16 = 1 << 1;
    /// It was inside a tunnel (VXLAN, Geneve, GRE, IP in IP): the flow is the inner one.
    pub const TUNNEL: u16 = 1 << 2;
    /// Several packets share one buffer (GSO, GRO); `segments` is their number. For TCP, its digest is the
    /// first packet's; for UDP it matches none, because the length differs.
    pub const SEGMENTS: u16 = 1 << 3;
    /// The kernel dropped it here; `reason` says why.
    pub const DROPPED: u16 = 1 << 4;
    /// Its path ends here without loss (consumed).
    pub const CONSUMED: u16 = 1 << 5;
    /// Set if the packet leaves through the interface, unset if it arrived through it.
    pub const LEAVES: u16 = 1 << 6;
    /// Some payload bytes of the digest are where this point cannot read, so the digest differs from other points' digests.
    pub const PARTIAL: u16 = 1 << 7;
    /// Address translation changed it on this host: `first` differs from `digest`.
    pub const TRANSLATED: u16 = 1 << 8;
    /// Not a packet but the call of a function in a process ([`super::TraceRecord::calling_thread`]): it has no digest and no
    /// flow.
    pub const CALL: u16 = 1 << 9;
}

/// The kind of a kernel program's attachment, numbered as in `reporter/ebpf/record.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum AttachmentKind {
    /// An interface, receiving (tcx or clsact).
    Ingress = 0,
    /// An interface, sending (tcx or clsact).
    Egress = 1,
    /// Native XDP on an interface: before the kernel allocates a buffer.
    Xdp = 2,
    /// Tracepoint `net_dev_queue`: handed to a device's queue.
    DevQueue = 3,
    /// Tracepoint `net_dev_start_xmit`: taken from the queue and passed to the driver.
    DevStartXmit = 4,
    /// Tracepoint `netif_receive_skb`: received.
    NetifReceive = 5,
    /// Tracepoint `kfree_skb`: dropped, with a reason.
    Kfree = 6,
    /// Tracepoint `consume_skb`: consumed without loss.
    Consume = 7,
    /// The entry of a kernel function whose first argument is the packet's buffer (fentry, or kprobe).
    Function = 8,
}

/// One packet at one point. In the ring: numbers in the machine's byte order (little-endian), in the order of
/// `reporter/ebpf/record.h`, [`RECORD`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Nanoseconds of TAI as the kernel keeps it (`CLOCK_TAI`), which is UTC if the kernel does not know the offset. In the
    /// ring: `CLOCK_MONOTONIC`; `Tracer::read` adds TAI's lead.
    pub time: u64,
    /// The packet's digest here ([`super::digest::Digest::full`]).
    pub digest: u64,
    /// Its digest where this host first saw it: differs after address translation.
    pub first: u64,
    /// The digest without addresses and ports ([`super::digest::Digest::core`]).
    pub core: u64,
    /// The flow of the innermost packet, without ports in ICMP and in later fragments.
    pub flow: Flow,
    /// Bits of the module [`flags`].
    pub flags: u16,
    /// Length from the outermost IP header, including any padding after the packet.
    pub length: u32,
    /// The kernel's number of the drop reason, with [`flags::DROPPED`]; its name is in the running kernel's
    /// BTF.
    pub reason: u32,
    /// The network namespace: its inode number, as in `/proc/self/ns/net`; 0 if the packet has no device.
    pub namespace: u32,
    /// The interface's index in that namespace; 0 if the packet has no device.
    pub interface: u32,
    /// The point's number, from 0: the position of its attachment in the list of points.
    pub point: u16,
    /// The processor on which it was seen.
    pub cpu: u16,
    /// How many packets the buffer carries; 1 except with GSO and GRO.
    pub segments: u16,
}

impl TraceRecord {
    /// Reads a record of the ring; `None` if it has another length.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD] = bytes.try_into().ok()?;
        let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            time: u64_at(0),
            digest: u64_at(8),
            first: u64_at(16),
            core: u64_at(24),
            flow: read_flow(&bytes[32..69]),
            flags: u16_at(70),
            length: u32_at(72),
            reason: u32_at(76),
            namespace: u32_at(80),
            interface: u32_at(84),
            point: u16_at(88),
            cpu: u16_at(90),
            segments: u16_at(92),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallingThread {
    /// What the thread calls itself, at most 15 bytes.
    pub name: String,
    pub process: u32,
    pub thread: u32,
}

impl TraceRecord {
    /// The caller, if this is a call ([`flags::CALL`]).
    pub fn calling_thread(&self) -> Option<CallingThread> {
        if self.flags & flags::CALL == 0 {
            return None;
        }
        let bytes = match self.flow.src {
            IpAddr::V6(name) => name.octets(),
            IpAddr::V4(name) => name.to_ipv6_mapped().octets(),
        };
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let name = String::from_utf8_lossy(&bytes[..end]).into_owned();
        Some(CallingThread { name, process: self.reason, thread: self.interface })
    }
}

/// Reads a flow: source and destination (16 bytes each, IPv4 as `::ffff:a.b.c.d`), ports (the machine's byte order), protocol.
pub(crate) fn read_flow(bytes: &[u8]) -> Flow {
    let address = |at: usize| Ipv6Addr::from(std::array::from_fn(|i| bytes[at + i])).to_canonical();
    let port = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    Flow { src: address(0), dst: address(16), sport: port(32), dport: port(34), proto: bytes[36] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_names_its_thread() {
        let mut bytes = [0; RECORD];
        bytes[32..36].copy_from_slice(b"curl");
        bytes[70..72].copy_from_slice(&flags::CALL.to_ne_bytes());
        bytes[76..80].copy_from_slice(&7u32.to_ne_bytes());
        bytes[84..88].copy_from_slice(&8u32.to_ne_bytes());
        let call = TraceRecord::read(&bytes).unwrap();
        assert_eq!(call.calling_thread(), Some(CallingThread { name: "curl".into(), process: 7, thread: 8 }));
        bytes[70..72].fill(0);
        assert_eq!(TraceRecord::read(&bytes).unwrap().calling_thread(), None, "a packet");
    }
}
