//! How traces of hosts are stored: keys, values and list entries, written by `dta-reporter` and decoded by
//! readers. All integers are big-endian.
//!
//! A *host* is its reporter's id. A *hop* is the number of a point, one point of one host. Points on the
//! packets' path have numbers 0 to 13, unique in the whole network; other points, such as those where packets
//! are dropped, have higher ones. A *digest* identifies a packet and is the same at all points of all hosts.
//!
//! **Keys** are 16 bytes, of which the last four name the kind. A flow in a key is `src ‖ dst ‖ sport ‖ dport ‖
//! protocol`: 13 bytes, or 37 for IPv6.
//!
//! | kind | store | of what | bytes before the kind |
//! |---|---|---|---|
//! | `tpkt` | `trace-paths` | the path of a packet through a host | digest 64, host 16, 0 16 |
//! | `tlat` | `trace-latencies` | a segment of a flow in one host | CRCs of: flow, host 16, from hop 8, to hop 8 |
//! | `tpks`, `tbts` | `trace-counters` | packets and bytes of a flow at a point | CRCs of: flow, host 16, hop 8 |
//! | `tdrp` | `trace-counters` | drops of a flow in a host for a reason | CRCs of: flow, host 16, reason 32 |
//! | `tsiz` | `trace-sizes` | bytes of a flow, over all hosts | CRCs of: flow |
//!
//! CRCs are those of [`crate::telemetry::hashed_key`]: CRC-32, CRC-32C and CRC-32K over all bytes.
//!
//! **Values.** A hop of a path is the low 32 bits of the time at which the packet was there, in nanoseconds. A segment of a
//! flow is 28 bytes ([`Latency`]). **Entries** of the event lists have 60 bytes ([`TraceEntry`]).

use serde::Serialize;

use crate::key::{Flow, KEY_LEN, Key};
use crate::store::{Merge, StoreKind, StoreSpec};
use crate::telemetry::{FieldReader, FieldWriter, FlowBytes, hashed_key};

/// Length of an entry of the event lists.
pub const ENTRY_LEN: usize = crate::telemetry::ENTRY_LEN;
/// Length of a [`Latency`].
pub const LATENCY_LEN: usize = 28;
/// Hops of a path: points with a number.
pub const HOPS: u8 = 14;
/// Longest name in a [`TraceEntry::Name`]; longer ones are truncated at a character boundary.
pub const NAME_LEN: usize = 40;

/// Seconds of an epoch of [`store::SIZES`]: its number is seconds since 1970 divided by this.
pub const EPOCH_SECONDS: u32 = 10;

/// Prefix of the names of trace stores. Like INT stores, they are used only by name.
pub const STORE_PREFIX: &str = "trace-";

/// The names of these stores.
pub mod store {
    /// Paths of sampled packets (postcarding, 14 hops).
    pub const PATHS: &str = "trace-paths";
    /// Sampled packets, drops, slow packets and names (append).
    pub const EVENTS: &str = "trace-events";
    /// Last, least and most latency per flow and segment (key-write).
    pub const LATENCIES: &str = "trace-latencies";
    /// Packets, bytes and drops of flows (key-increment).
    pub const COUNTERS: &str = "trace-counters";
    /// Sizes of flows in epochs, over all hosts (sketch-merge).
    pub const SIZES: &str = "trace-sizes";
}

/// The trace stores, with a collector's default sizes.
pub fn default_trace_stores() -> [StoreSpec; 5] {
    let store = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
    [
        store(32, store::PATHS, StoreKind::Postcarding { slots: 1 << 17, hops: HOPS, redundancy: 4 }),
        store(
            33,
            store::EVENTS,
            StoreKind::Append {
                lists: list::COUNT,
                ring: 1 << 13,
                batch_len: 128,
                entry_len: ENTRY_LEN as u8,
                notify: false,
            },
        ),
        store(
            34,
            store::LATENCIES,
            StoreKind::KeyWrite {
                slots: 1 << 15,
                value_len: LATENCY_LEN as u8,
                redundancy: 2,
                keys: Default::default(),
            },
        ),
        store(35, store::COUNTERS, StoreKind::KeyIncrement { slots: 1 << 17, redundancy: 2, replicas: 1 }),
        store(
            36,
            store::SIZES,
            StoreKind::SketchMerge { columns: 1 << 10, rows: 3, epochs: 4, merge: Merge::Sum, expected: 1 },
        ),
    ]
}

/// The lists of the event store, by number.
pub mod list {
    /// Sampled packets: each host reports those it saw.
    pub const PACKETS: u32 = 0;
    /// Dropped packets.
    pub const DROPS: u32 = 1;
    /// Packets beyond the latency threshold.
    pub const SLOW: u32 = 2;
    /// Names of hosts, points and drop reasons.
    pub const NAMES: u32 = 3;
    /// Number of lists.
    pub const COUNT: u32 = 4;
}

/// Key of a packet's path through a host. Each host has its own row, so that the reports of one host need not find another's row
/// in the translator, perhaps much later.
pub fn path_key(digest: u64, host: u16) -> Key {
    let mut key = [0; KEY_LEN];
    key[..8].copy_from_slice(&digest.to_be_bytes());
    key[8..10].copy_from_slice(&host.to_be_bytes());
    key[12..].copy_from_slice(b"tpkt");
    Key(key)
}

/// Key of a flow's latency between two points of one host.
pub fn latency_key(flow: &Flow, host: u16, from: u8, to: u8) -> Key {
    let [high, low] = host.to_be_bytes();
    hashed_flow_key(flow, &[high, low, from, to], *b"tlat")
}

/// Key of a flow's packet count at a point.
pub fn packets_key(flow: &Flow, host: u16, hop: u8) -> Key {
    let [high, low] = host.to_be_bytes();
    hashed_flow_key(flow, &[high, low, hop], *b"tpks")
}

/// Key of a flow's byte count at a point.
pub fn bytes_key(flow: &Flow, host: u16, hop: u8) -> Key {
    let [high, low] = host.to_be_bytes();
    hashed_flow_key(flow, &[high, low, hop], *b"tbts")
}

/// Stands for any reason: drops as the kernel's programs count them, sampled or not. Under a specific reason, only sampled
/// packets count.
pub const ANY_REASON: u32 = u32::MAX;

/// Key of a flow's drops in a host for a reason.
pub fn drops_key(flow: &Flow, host: u16, reason: u32) -> Key {
    let mut more = [0; 6];
    more[..2].copy_from_slice(&host.to_be_bytes());
    more[2..].copy_from_slice(&reason.to_be_bytes());
    hashed_flow_key(flow, &more, *b"tdrp")
}

/// Key of a flow's size in the sketch.
pub fn flow_size_key(flow: &Flow) -> Key {
    hashed_flow_key(flow, &[], *b"tsiz")
}

fn hashed_flow_key(flow: &Flow, more: &[u8], kind: [u8; 4]) -> Key {
    let mut bytes = FlowBytes::from_flow(flow);
    bytes.push(more);
    hashed_key(bytes.get(), kind)
}

/// A flow's latency between two points of a host, in nanoseconds; larger numbers saturate at 2^32 - 1. 28
/// bytes: `last 32, least 32, most 32, mean 32, packets 32, time 64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Latency of the last packet.
    pub last: u32,
    /// Minimum since the agent has known the flow.
    pub least: u32,
    /// Maximum since then.
    pub most: u32,
    /// Mean since then.
    pub mean: u32,
    /// Sampled packets since then.
    pub packets: u32,
    /// When the last packet was at the second point: nanoseconds by the host's clock.
    // Shown as an age instead.
    #[serde(skip)]
    pub time: u64,
}

impl Latency {
    /// Its encoding.
    pub fn to_bytes(&self) -> [u8; LATENCY_LEN] {
        let mut bytes = [0; LATENCY_LEN];
        let words = [self.last, self.least, self.most, self.mean, self.packets];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes[20..].copy_from_slice(&self.time.to_be_bytes());
        bytes
    }

    /// Decodes it; `None` if there are fewer than 28 bytes.
    pub fn parse_bytes(bytes: &[u8]) -> Option<Latency> {
        let mut reader = FieldReader(bytes);
        let mut word = || reader.take().map(u32::from_be_bytes);
        let (last, least, most, mean, packets) = (word()?, word()?, word()?, word()?, word()?);
        Some(Latency { last, least, most, mean, packets, time: reader.read_time()? })
    }
}

/// What a [`TraceEntry::Name`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Named {
    /// The host; the number is 0.
    Host = 0,
    /// A point; the number is its hop.
    Point = 1,
    /// A drop reason of the host's kernel; the number is the kernel's.
    Reason = 2,
}

/// A name of at most [`NAME_LEN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceName {
    bytes: [u8; NAME_LEN],
    len: u8,
}

impl TraceName {
    /// The text, truncated if too long.
    pub fn new(text: &str) -> TraceName {
        let mut len = text.len().min(NAME_LEN);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; NAME_LEN];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        TraceName { bytes, len: len as u8 }
    }

    /// Its first bytes, at most `most`, cut at a character boundary.
    pub(crate) fn leading_bytes(&self, most: usize) -> &[u8] {
        let all = &self.bytes[..usize::from(self.len)];
        let mut len = all.len().min(most);
        while all.get(len).is_some_and(|byte| byte & 0xc0 == 0x80) {
            len -= 1;
        }
        &all[..len]
    }

    /// The text; invalid characters from the network are replaced.
    pub fn to_lossy_string(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.len)]).into_owned()
    }
}

/// Flag bit of an entry: PTP keeps the host's clock, so its times are comparable with other such hosts'.
const SYNCED: u8 = 1;

/// Common part of entries about a packet, 40 bytes: `time 64, flow key[16], digest 64, host 16, hop 8, flags 8, length 32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketSighting {
    /// When: nanoseconds by the host's clock.
    pub time: u64,
    /// Key of the packet's innermost flow; zeros if it could not be parsed.
    pub flow: Key,
    /// The packet.
    pub digest: u64,
    /// Which host.
    pub host: u16,
    /// At which point.
    pub hop: u8,
    /// Whether PTP keeps the host's clock (bit 0 of the flags).
    pub synced: bool,
    /// Length of the packet at the point.
    pub length: u32,
}

/// An entry of the event lists, 60 bytes:
///
/// - packet, list 0: `"pckt"`, [`PacketSighting`] (the first point of the host), `points 8, 0 24, left 64`: number of
///   points of this host that saw it, and its digest at the last one.
/// - drop, list 1: `"drop"`, [`PacketSighting`], `reason 32, interface 32, 0 ..`.
/// - slow, list 2: `"slow"`, [`PacketSighting`] (the last point), `from 8, 0 24, latency 64`: nanoseconds from hop `from` to this one.
/// - name, list 3: `"name", time 64, host 16, kind 8, length 8, number 32, bytes[40]`.
/// - books, list 3: `"book", time 64, host 16, 0 16`, [`Books`] (5 numbers of 64 bits), `0 ..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEntry {
    /// A sampled packet was in a host.
    Packet {
        /// Its first point there.
        seen: PacketSighting,
        /// Number of points of this host that saw it.
        points: u8,
        /// Its digest at the last one: different if addresses or ports were translated.
        left: u64,
    },
    /// A packet was dropped.
    Drop {
        /// Where.
        seen: PacketSighting,
        /// Why: the kernel's number.
        reason: u32,
        /// Index of the interface, 0 = none.
        interface: u32,
    },
    /// A packet took longer than the threshold.
    Slow {
        /// The last point.
        seen: PacketSighting,
        /// The first point.
        from: u8,
        /// Nanoseconds between them.
        latency: u64,
    },
    /// A name.
    Name {
        /// When it was reported.
        time: u64,
        /// Which host.
        host: u16,
        /// The kind of thing named.
        of: Named,
        /// Its number.
        number: u32,
        /// The name.
        name: TraceName,
    },
    /// Totals over the packets at all points of a host.
    Books {
        /// When they were reported.
        time: u64,
        /// Which host.
        host: u16,
        /// The totals since the agent's start.
        books: Books,
    },
}

/// Totals over the packets at all points of a host: `seen` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Packets that came to a point.
    pub seen: u64,
    /// Of these, reported.
    pub reported: u64,
    /// Of these, excluded by the filter or by sampling.
    pub left_out: u64,
    /// Of these, lost because the ring between kernel and agent was full.
    pub ring_full: u64,
    /// Of these, not parseable as IP packets.
    pub refused: u64,
}

impl TraceEntry {
    /// The list that the entry belongs to.
    pub fn list_number(&self) -> u32 {
        match self {
            TraceEntry::Packet { .. } => list::PACKETS,
            TraceEntry::Drop { .. } => list::DROPS,
            TraceEntry::Slow { .. } => list::SLOW,
            TraceEntry::Name { .. } | TraceEntry::Books { .. } => list::NAMES,
        }
    }

    /// Its encoding.
    pub fn to_bytes(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        let mut writer = FieldWriter(&mut bytes, 0);
        match self {
            TraceEntry::Packet { seen, points, left } => {
                put_sighting(&mut writer, b"pckt", seen);
                writer.put_bytes(&[*points, 0, 0, 0]).put_bytes(&left.to_be_bytes());
            }
            TraceEntry::Drop { seen, reason, interface } => {
                put_sighting(&mut writer, b"drop", seen);
                writer.put_bytes(&reason.to_be_bytes()).put_bytes(&interface.to_be_bytes());
            }
            TraceEntry::Slow { seen, from, latency } => {
                put_sighting(&mut writer, b"slow", seen);
                writer.put_bytes(&[*from, 0, 0, 0]).put_bytes(&latency.to_be_bytes());
            }
            TraceEntry::Name { time, host, of, number, name } => {
                writer.put_bytes(b"name").put_bytes(&time.to_be_bytes()).put_bytes(&host.to_be_bytes());
                writer
                    .put_bytes(&[*of as u8, name.len])
                    .put_bytes(&number.to_be_bytes())
                    .put_bytes(&name.bytes);
            }
            TraceEntry::Books { time, host, books } => {
                writer
                    .put_bytes(b"book")
                    .put_bytes(&time.to_be_bytes())
                    .put_bytes(&host.to_be_bytes())
                    .put_bytes(&[0; 2]);
                let Books { seen, reported, left_out, ring_full, refused } = books;
                for count in [seen, reported, left_out, ring_full, refused] {
                    writer.put_bytes(&count.to_be_bytes());
                }
            }
        }
        bytes
    }

    /// Decodes an entry; `None` if the bytes are not one.
    pub fn parse_bytes(bytes: &[u8]) -> Option<TraceEntry> {
        let mut reader = FieldReader(bytes.first_chunk::<ENTRY_LEN>()?);
        let kind: [u8; 4] = reader.take()?;
        if kind == *b"name" {
            let time = reader.read_time()?;
            let host = u16::from_be_bytes(reader.take()?);
            let [of, len] = reader.take()?;
            let of = match of {
                0 => Named::Host,
                1 => Named::Point,
                2 => Named::Reason,
                _ => return None,
            };
            let number = u32::from_be_bytes(reader.take()?);
            let mut bytes: [u8; NAME_LEN] = reader.take()?;
            bytes.get_mut(usize::from(len)..)?.fill(0);
            return Some(TraceEntry::Name { time, host, of, number, name: TraceName { bytes, len } });
        }
        if kind == *b"book" {
            let time = reader.read_time()?;
            let [high, low, _, _] = reader.take()?;
            let mut count = || reader.read_time();
            let (seen, reported, left_out) = (count()?, count()?, count()?);
            let books = Books { seen, reported, left_out, ring_full: count()?, refused: count()? };
            return Some(TraceEntry::Books { time, host: u16::from_be_bytes([high, low]), books });
        }
        let (time, flow, digest) = (reader.read_time()?, reader.read_key()?, reader.read_time()?);
        let host = u16::from_be_bytes(reader.take()?);
        let [hop, flags] = reader.take()?;
        let length = u32::from_be_bytes(reader.take()?);
        let seen = PacketSighting { time, flow, digest, host, hop, synced: flags & SYNCED != 0, length };
        match &kind {
            b"pckt" => {
                let [points, _, _, _] = reader.take()?;
                Some(TraceEntry::Packet { seen, points, left: reader.read_time()? })
            }
            b"drop" => {
                let (reason, interface) = (reader.take()?, reader.take()?);
                let (reason, interface) = (u32::from_be_bytes(reason), u32::from_be_bytes(interface));
                Some(TraceEntry::Drop { seen, reason, interface })
            }
            b"slow" => {
                let [from, _, _, _] = reader.take()?;
                Some(TraceEntry::Slow { seen, from, latency: reader.read_time()? })
            }
            _ => None,
        }
    }
}

fn put_sighting(writer: &mut FieldWriter<'_>, kind: &[u8; 4], seen: &PacketSighting) {
    writer
        .put_bytes(kind)
        .put_bytes(&seen.time.to_be_bytes())
        .put_bytes(&seen.flow.0)
        .put_bytes(&seen.digest.to_be_bytes());
    writer.put_bytes(&seen.host.to_be_bytes()).put_bytes(&[seen.hop, if seen.synced { SYNCED } else { 0 }]);
    writer.put_bytes(&seen.length.to_be_bytes());
}
