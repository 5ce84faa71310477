//! How INT is stored: keys, values and list entries, written by the translator's INT rules and decoded by
//! readers. All integers are big-endian.
//!
//! **Keys.** A flow's own values are stored under the flow's key. Other keys are up to 12 bytes, zero-padded,
//! and four bytes that name the kind; longer ones become CRC-32, CRC-32C and CRC-32K over all their bytes,
//! then the kind. A flow in such a key is `src ‖ dst ‖ sport ‖ dport ‖ protocol`: 13 bytes, or 37 for IPv6.
//!
//! | kind | of what | bytes |
//! |---|---|---|
//! | `hlat` | hop latency | flow, switch 32: CRCs |
//! | `qocc`, `qcon` | queue occupancy, congestion status | switch 32, egress port 32, queue 32 |
//! | `util` | utilisation of a link | switch 32, egress port 32 |
//! | `drop` | drops of a switch by reason | switch 32, [`DropReason`] 32 |
//! | `fdrp` | drops of a flow by reason | flow, reason 8 of INT or [`DropReason`] 32 of sFlow: CRCs |
//! | `pkts`, `byts` | packets and bytes of a flow | flow: CRCs |
//! | `ifnm` | name of an interface, in the key directory only | switch 32, port 32 |
//! | `ifct` | what an interface counted | switch 32, port 32, [`InterfaceCounter`] 32 |
//!
//! An unavailable number is all ones in a key.
//!
//! **Values.** A number is `value u32, time u64` ([`TimedValue`]); a path is `hops u8, flags u8, 0 u16, switches u32 ..`
//! ([`SwitchPath`]). **Entries** of the event lists have 60 bytes ([`TelemetryEntry`]).

use core::net::{IpAddr, Ipv4Addr};

use crate::crc;
use crate::drop_reason::DropReason;
use crate::key::{Flow, KEY_LEN, Key};
use crate::trace::TraceName;

/// Length of an entry of the event lists.
pub const ENTRY_LEN: usize = 60;
/// Most bytes that say what a key stands for, in an entry.
const MEANS_LEN: usize = ENTRY_LEN - 4 - KEY_LEN - 1;
/// Length of a [`TimedValue`].
pub const VALUE_LEN: usize = 12;
/// Length of a [`SwitchPath`].
pub const PATH_LEN: usize = 60;
/// Hops of a [`SwitchPath`] that are stored; the rest are only counted.
pub const PATH_HOPS: usize = (PATH_LEN - 4) / 4;

/// Seconds after which the translator repeats unchanged values by default. Readers that follow events alone
/// know everything if each event ring reaches back that far.
pub const KEEP_ALIVE_SECONDS: u64 = 60;

/// Prefix of the names of INT stores. Such a store is used only by name, never as the default of its kind:
/// neither for version-0 reports nor by a query that names no store.
pub const STORE_PREFIX: &str = "int-";

/// The default names of these stores.
pub mod store {
    /// Paths of flows (key-write).
    pub const PATHS: &str = "int-paths";
    /// Latencies, queues and links (key-write).
    pub const VALUES: &str = "int-values";
    /// Events (append).
    pub const EVENTS: &str = "int-events";
    /// Reports, packets, bytes and drops (key-increment).
    pub const COUNTERS: &str = "int-counters";
    /// Paths of flows whose switches each report separately (postcarding).
    pub const POSTCARDS: &str = "int-postcards";
}

/// Whether this is the name of an INT store, a trace store ([`crate::trace`]) or the store of flow records.
pub fn is_telemetry_store(name: &str) -> bool {
    name.starts_with(STORE_PREFIX)
        || name.starts_with(crate::trace::STORE_PREFIX)
        || name == crate::flow_record::STORE
}

/// The lists of the event store, by number.
pub mod list {
    /// Changes: new keys, values that moved, paths.
    pub const CHANGES: u32 = 0;
    /// Dropped packets.
    pub const DROPS: u32 = 1;
    /// Packets in congested queues.
    pub const CONGESTION: u32 = 2;
    /// The key directory: what each key stands for.
    pub const KEYS: u32 = 3;
    /// Number of lists.
    pub const COUNT: u32 = 4;

    /// The name of a list, for people.
    pub const fn list_name(of: u32) -> &'static str {
        match of {
            CHANGES => "changes",
            DROPS => "drops",
            CONGESTION => "congestion",
            _ => "keys",
        }
    }
}

/// Times from here on (September 2001) are nanoseconds since 1970; smaller ones are a switch's own.
const SINCE_1970: u64 = 1_000_000_000_000_000_000;

/// Whether the time of a value or event is nanoseconds since 1970, and not a switch's own number.
pub const fn is_since_1970(time: u64) -> bool {
    time >= SINCE_1970
}

/// Seconds from one time to another; `None` for a switch's own number. 0 if `time` is in the future, as clocks of two
/// hosts differ.
pub fn age_in_seconds(time: u64, now: u64) -> Option<f64> {
    is_since_1970(time).then(|| now.saturating_sub(time) as f64 / 1e9)
}

/// The item with this number, counted from 1.
fn item_by_number<T: Copy>(all: &[T], number: u8) -> Option<T> {
    all.get(usize::from(number).checked_sub(1)?).copied()
}

crate::named! {
    /// The metrics, in the order of settings and counters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Metric {
        /// The switches on a flow's path.
        FlowPath = 1: "flow-path",
        /// End-to-end latency of a flow, in nanoseconds.
        FlowLatency = 2: "flow-latency",
        /// Latency of a flow in one hop, in nanoseconds.
        HopLatency = 3: "hop-latency",
        /// Occupancy of a queue.
        QueueOccupancy = 4: "queue-occupancy",
        /// Congestion status of a queue.
        QueueCongestion = 5: "queue-congestion",
        /// Utilisation of an egress port.
        LinkUtilization = 6: "link-utilization",
    }
}

impl Metric {
    /// Its place in [`Metric::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// The metric with this number.
    pub fn from_number(number: u8) -> Option<Metric> {
        item_by_number(&Metric::ALL, number)
    }

    /// The metric whose values are under this key, if the key tells. A flow's own key has several.
    pub fn from_key(key: &Key) -> Option<Metric> {
        match key.0.last_chunk::<4>()? {
            b"hlat" => Some(Metric::HopLatency),
            b"qocc" => Some(Metric::QueueOccupancy),
            b"qcon" => Some(Metric::QueueCongestion),
            b"util" => Some(Metric::LinkUtilization),
            _ => None,
        }
    }
}

crate::named! {
    /// Why a change was reported.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
    #[serde(rename_all = "kebab-case")]
    #[repr(u8)]
    pub enum Why {
        /// The key is new, or had been evicted.
        New = 1: "new",
        /// The value left its interval, or moved by more than the threshold; the path changed.
        Moved = 2: "moved",
        /// Nothing changed during the keep-alive time.
        KeepAlive = 3: "keep-alive",
        /// The path visits a switch twice (reported beside the path change).
        Loop = 4: "loop",
        /// One more switch of a recently seen flow reported separately: the path may not have changed, but more
        /// of it is known.
        Learning = 5: "learning",
    }
}

impl Why {
    /// The reason with this number.
    pub fn from_number(number: u8) -> Option<Why> {
        item_by_number(&Why::ALL, number)
    }
}

/// A flow's bytes at the beginning of a longer key.
pub(crate) struct FlowBytes {
    bytes: [u8; 37 + 6],
    len: usize,
}

impl FlowBytes {
    pub(crate) fn from_flow(flow: &Flow) -> FlowBytes {
        let mut all = FlowBytes { bytes: [0; 37 + 6], len: 0 };
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                all.push(&src.octets());
                all.push(&dst.octets());
            }
            (src, dst) => {
                let v6 = |address| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                all.push(&v6(src).octets());
                all.push(&v6(dst).octets());
            }
        }
        all.push(&flow.sport.to_be_bytes());
        all.push(&flow.dport.to_be_bytes());
        all.push(&[flow.proto]);
        all
    }

    /// Appends to the flow's bytes, at most 6 bytes in all.
    pub(crate) fn push(&mut self, more: &[u8]) {
        self.bytes[self.len..self.len + more.len()].copy_from_slice(more);
        self.len += more.len();
    }

    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A key longer than 16 bytes: three CRCs over all its bytes, and four bytes for the kind.
pub fn hashed_key(bytes: &[u8], kind: [u8; 4]) -> Key {
    let mut key = [0; KEY_LEN];
    key[..4].copy_from_slice(&crc::crc32(bytes).to_be_bytes());
    key[4..8].copy_from_slice(&crc::crc32c(bytes).to_be_bytes());
    key[8..12].copy_from_slice(&crc::crc32k(bytes).to_be_bytes());
    key[12..].copy_from_slice(&kind);
    Key(key)
}

/// A key of at most three numbers and the kind.
fn short_key(numbers: &[u32], kind: [u8; 4]) -> Key {
    let mut key = [0; KEY_LEN];
    for (place, number) in key.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    key[12..].copy_from_slice(&kind);
    Key(key)
}

/// A number as a key holds it.
const fn number_or_all_ones(number: Option<u32>) -> u32 {
    match number {
        Some(number) => number,
        None => u32::MAX,
    }
}

/// Key of a flow's latency in one switch.
pub fn hop_latency_key(flow: &Flow, switch: u32) -> Key {
    let mut bytes = FlowBytes::from_flow(flow);
    bytes.push(&switch.to_be_bytes());
    hashed_key(bytes.get(), *b"hlat")
}

/// Key of a queue's occupancy.
pub fn queue_occupancy_key(switch: u32, port: Option<u32>, queue: Option<u32>) -> Key {
    short_key(&[switch, number_or_all_ones(port), number_or_all_ones(queue)], *b"qocc")
}

/// Key of a queue's congestion status.
pub fn queue_congestion_key(switch: u32, port: Option<u32>, queue: Option<u32>) -> Key {
    short_key(&[switch, number_or_all_ones(port), number_or_all_ones(queue)], *b"qcon")
}

/// Key of an egress port's utilisation.
pub fn link_utilization_key(switch: u32, port: Option<u32>) -> Key {
    short_key(&[switch, number_or_all_ones(port)], *b"util")
}

/// Key of the number of drops in a switch for a reason.
pub fn drops_key(switch: u32, reason: DropReason) -> Key {
    short_key(&[switch, u32::from_be_bytes(reason.to_bytes())], *b"drop")
}

/// Key of the number of drops of a flow for a reason.
pub fn flow_drops_key(flow: &Flow, reason: DropReason) -> Key {
    let mut bytes = FlowBytes::from_flow(flow);
    // Switches hash one byte, for INT reasons.
    let len = if reason.is_sflow() { 4 } else { 1 };
    bytes.push(&reason.to_bytes()[..len]);
    hashed_key(bytes.get(), *b"fdrp")
}

/// Key of a flow's packet count.
pub fn packets_key(flow: &Flow) -> Key {
    hashed_key(FlowBytes::from_flow(flow).get(), *b"pkts")
}

/// Key of a flow's byte count.
pub fn bytes_key(flow: &Flow) -> Key {
    hashed_key(FlowBytes::from_flow(flow).get(), *b"byts")
}

/// Key of an interface's name.
pub fn interface_name_key(switch: u32, port: u32) -> Key {
    short_key(&[switch, port], *b"ifnm")
}

crate::named! {
    /// What an interface counts, in the order of sFlow's `if_counters`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum InterfaceCounter {
        /// Bytes received.
        InOctets = 0: "in-octets",
        /// Unicast packets received.
        InUnicast = 1: "in-unicast",
        /// Multicast packets received.
        InMulticast = 2: "in-multicast",
        /// Broadcast packets received.
        InBroadcast = 3: "in-broadcast",
        /// Packets received without errors, but dropped.
        InDiscards = 4: "in-discards",
        /// Packets received with errors.
        InErrors = 5: "in-errors",
        /// Packets received with an unknown protocol.
        InUnknownProtocols = 6: "in-unknown-protocols",
        /// Bytes sent.
        OutOctets = 7: "out-octets",
        /// Unicast packets sent.
        OutUnicast = 8: "out-unicast",
        /// Multicast packets sent.
        OutMulticast = 9: "out-multicast",
        /// Broadcast packets sent.
        OutBroadcast = 10: "out-broadcast",
        /// Packets to be sent that had no errors, but were dropped.
        OutDiscards = 11: "out-discards",
        /// Packets that could not be sent because of errors.
        OutErrors = 12: "out-errors",
    }
}

/// Counters of an interface, in the order of [`InterfaceCounter::ALL`]; `None` = the interface has no such counter.
pub type InterfaceCounts = [Option<u64>; InterfaceCounter::ALL.len()];

impl InterfaceCounter {
    /// Whether the counter has 64 bits, not 32.
    pub const fn is_64_bit(self) -> bool {
        matches!(self, InterfaceCounter::InOctets | InterfaceCounter::OutOctets)
    }

    /// The increase from one reading to the next; `None` if the counter was reset. A 32-bit counter wraps around, and is
    /// read before it has counted half of its range.
    pub fn increase_between(self, old: u64, new: u64) -> Option<u64> {
        if self.is_64_bit() {
            return new.checked_sub(old);
        }
        let more = (new as u32).wrapping_sub(old as u32);
        (more < 1 << 31).then_some(more.into())
    }
}

/// Key of an interface's counter.
pub fn interface_counter_key(switch: u32, port: u32, counter: InterfaceCounter) -> Key {
    short_key(&[switch, port, counter as u32], *b"ifct")
}

/// A number at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedValue {
    /// The number; larger ones saturate at 2^32 - 1.
    pub value: u32,
    /// Nanoseconds since 1970, or as the switch sent them, depending on the translator's setting.
    pub time: u64,
}

impl TimedValue {
    /// Its encoding.
    pub fn to_bytes(&self) -> [u8; VALUE_LEN] {
        let mut bytes = [0; VALUE_LEN];
        bytes[..4].copy_from_slice(&self.value.to_be_bytes());
        bytes[4..].copy_from_slice(&self.time.to_be_bytes());
        bytes
    }

    /// Decodes a number; `None` if there are fewer than 12 bytes.
    pub fn parse_bytes(bytes: &[u8]) -> Option<TimedValue> {
        let (value, rest) = bytes.split_first_chunk()?;
        let time = rest.first_chunk()?;
        Some(TimedValue { value: u32::from_be_bytes(*value), time: u64::from_be_bytes(*time) })
    }
}

/// The path of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPath {
    /// Number of hops, including those beyond the 14 stored.
    pub hops: u8,
    /// Whether it visits a switch twice.
    pub looped: bool,
    /// The first 14 switches, in packet order; an unknown one is all ones.
    pub switches: [u32; PATH_HOPS],
}

impl SwitchPath {
    /// The path through these switches.
    pub fn from_switches(switches: &[u32]) -> SwitchPath {
        let mut path =
            SwitchPath { hops: switches.len().min(255) as u8, looped: false, switches: [0; PATH_HOPS] };
        path.switches.iter_mut().zip(switches).for_each(|(place, switch)| *place = *switch);
        let twice = |(n, switch): (usize, &u32)| *switch != u32::MAX && switches[..n].contains(switch);
        path.looped = switches.iter().enumerate().any(twice);
        path
    }

    /// The stored switches.
    pub fn stored_switches(&self) -> &[u32] {
        &self.switches[..usize::from(self.hops).min(PATH_HOPS)]
    }

    /// Its encoding.
    pub fn to_bytes(&self) -> [u8; PATH_LEN] {
        let mut bytes = [0; PATH_LEN];
        bytes[..2].copy_from_slice(&[self.hops, self.looped.into()]);
        for (place, switch) in bytes[4..].chunks_exact_mut(4).zip(self.stored_switches()) {
            place.copy_from_slice(&switch.to_be_bytes());
        }
        bytes
    }

    /// CRC-32C of its encoding.
    pub fn path_digest(&self) -> u32 {
        crc::crc32c(&self.to_bytes())
    }

    /// Decodes a path; `None` if there are fewer than 60 bytes.
    pub fn parse_bytes(bytes: &[u8]) -> Option<SwitchPath> {
        let bytes: &[u8; PATH_LEN] = bytes.first_chunk()?;
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let mut path = SwitchPath { hops: head[0], looped: head[1] & 1 != 0, switches: [0; PATH_HOPS] };
        for (place, word) in path.switches.iter_mut().zip(rest.chunks_exact(4)) {
            *place = word.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
        }
        path.switches[usize::from(path.hops).min(PATH_HOPS)..].fill(0);
        Some(path)
    }
}

impl core::fmt::Display for SwitchPath {
    /// As `6:5:4`, by [`SwitchNumber`]; a path with more hops than are stored ends in `:...`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (n, switch) in self.stored_switches().iter().enumerate() {
            let colon = if n == 0 { "" } else { ":" };
            if *switch == u32::MAX {
                write!(f, "{colon}?")?;
            } else {
                write!(f, "{colon}{}", SwitchNumber(*switch))?;
            }
        }
        if usize::from(self.hops) > PATH_HOPS { f.write_str(":...") } else { Ok(()) }
    }
}

/// The number of a switch, for people. An exporter of flows has no number but its IPv4 address, and is shown by it; so is
/// a switch whose number is as large as an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchNumber(pub u32);

impl SwitchNumber {
    /// Numbers from here on are shown as addresses: smaller ones would be in 0.0.0.0/8, which no host has.
    const FIRST_ADDRESS: u32 = 1 << 24;

    /// Whether it is shown as an address.
    pub const fn is_address(self) -> bool {
        self.0 >= Self::FIRST_ADDRESS
    }

    /// What has the number: `switch` or `exporter`.
    pub const fn role_name(self) -> &'static str {
        if self.is_address() { "exporter" } else { "switch" }
    }
}

impl core::fmt::Display for SwitchNumber {
    /// As `6`, or `10.200.0.1`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_address() { Ipv4Addr::from_bits(self.0).fmt(f) } else { self.0.fmt(f) }
    }
}

impl core::str::FromStr for SwitchNumber {
    type Err = core::num::ParseIntError;

    /// A number, or the address that stands for one.
    fn from_str(text: &str) -> Result<SwitchNumber, Self::Err> {
        match text.parse::<Ipv4Addr>() {
            Ok(address) => Ok(SwitchNumber(address.to_bits())),
            Err(_) => text.parse().map(SwitchNumber),
        }
    }
}

/// Where something was seen; unavailable numbers are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Switch.
    pub switch: Option<u32>,
    /// Egress port.
    pub port: Option<u32>,
    /// Queue.
    pub queue: Option<u32>,
}

/// Hops that fit in an event.
pub const EVENT_HOPS: usize = 7;

/// The path of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The path itself, of at most [`EVENT_HOPS`] hops.
    Path(SwitchPath),
    /// The [`SwitchPath::path_digest`] of a path that is longer, or that the event is not about: a path looked up
    /// elsewhere is the event's if it has this digest.
    Digest(u32),
}

impl Via {
    /// The path as stored in an event about it.
    pub fn from_path(path: &SwitchPath) -> Via {
        if usize::from(path.hops) <= EVENT_HOPS { Via::Path(*path) } else { Via::Digest(path.path_digest()) }
    }

    /// Whether it stands for this path.
    pub fn matches_path(&self, path: &SwitchPath) -> bool {
        match self {
            Via::Path(own) => own == path,
            Via::Digest(digest) => *digest == path.path_digest(),
        }
    }
}

/// An entry of the event lists, 60 bytes:
///
/// - change: `"chng", time 64, key[16], metric 8, why 8, 0 16, old 64, new 64, switch 32, port 32, queue 32`.
///   For a flow latency, the last word is the [`SwitchPath::path_digest`] of the flow's path; 0 = not available.
/// - change of a path: `"chng", time 64, key[16], metric 8, why 8, old hops 8, hops 8`, and 28 bytes: for up
///   to 7 hops `switch 32 ..`, all ones after the last, except that the seventh word is the switch that
///   reported for itself, if one did; for more hops `Path::digest 32, loop 32, 0 ..`.
/// - drop: `"drop", time 64, flow key[16], switch 32, ingress port 32, egress port 32, queue 32,
///   [`DropReason`] 32, 0 ..`
/// - congestion: `"cong", time 64, flow key[16], switch 32, egress port 32, queue 32, occupancy 32, latency 32, 0 ..`
/// - key: `"keys", key[16], length 8, bytes ..`: what the key stands for, at most 39 bytes: nothing if the
///   key is self-explanatory, the flow for an IPv6 flow, the name of an interface,
///   `key[16] of the flow, switch 32, egress port 32, time 64` for a hop latency, and
///   `key[16] of the flow, reason 32` ([`DropReason::to_bits`]) for the drops of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelemetryEntry {
    /// A value changed.
    Change {
        /// When.
        time: u64,
        /// Key of the value.
        key: Key,
        /// What changed.
        metric: Metric,
        /// Why this was reported.
        why: Why,
        /// The last value reported; 0 for a new key. For a path, its number of hops.
        old: u64,
        /// The value. For a path, its number of hops, with bit 8 set if it has a loop.
        new: u64,
        /// Where. For a path, the switch that reported for itself.
        place: Location,
        /// The path, for changes of a flow's path or latency.
        path: Option<Via>,
    },
    /// A packet was dropped.
    Drop {
        /// When.
        time: u64,
        /// Key of the flow; zeros if the packet could not be parsed.
        key: Key,
        /// Where.
        place: Location,
        /// Ingress port.
        ingress_port: Option<u32>,
        /// Why.
        reason: DropReason,
    },
    /// A packet waited in a congested queue.
    Congestion {
        /// When.
        time: u64,
        /// Key of the flow; zeros if the packet could not be parsed.
        key: Key,
        /// Where.
        place: Location,
        /// How full the queue was.
        occupancy: Option<u32>,
        /// Nanoseconds in the switch; larger ones saturate at 2^32 - 2.
        latency: Option<u32>,
    },
    /// What a key stands for.
    Key {
        /// The key.
        key: Key,
        /// What it stands for.
        means: Means,
    },
}

/// The meaning of a key that is not self-explanatory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The key is self-explanatory: an IPv4 flow, or numbers and their kind.
    Itself,
    /// An IPv6 flow.
    Flow(Flow),
    /// A hop of a flow: the flow's key and the switch; or its drops: the flow's key and the reason.
    Hop(Key, u32),
    /// A hop of a flow, and the egress port there.
    Leaves {
        /// The flow's key.
        flow: Key,
        /// The switch.
        switch: u32,
        /// Egress port.
        port: Option<u32>,
        /// When.
        time: u64,
    },
    /// The name of an interface, of which 39 bytes are kept.
    Name(TraceName),
}

/// Writes one field after another.
pub(crate) struct FieldWriter<'a>(pub(crate) &'a mut [u8; ENTRY_LEN], pub(crate) usize);

impl FieldWriter<'_> {
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }

    fn put_number(&mut self, number: Option<u32>) -> &mut Self {
        self.put_bytes(&number_or_all_ones(number).to_be_bytes())
    }
}

/// Reads one field after another.
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl FieldReader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(crate) fn read_key(&mut self) -> Option<Key> {
        self.take().map(Key)
    }

    pub(crate) fn read_time(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// A number; the inner option is `None` if it is unavailable.
    fn read_number(&mut self) -> Option<Option<u32>> {
        self.take().map(u32::from_be_bytes).map(|number| Some(number).filter(|number| *number != u32::MAX))
    }
}

impl TelemetryEntry {
    /// When the event happened; `None` for an entry that says what a key stands for.
    pub fn event_time(&self) -> Option<u64> {
        match self {
            TelemetryEntry::Change { time, .. }
            | TelemetryEntry::Drop { time, .. }
            | TelemetryEntry::Congestion { time, .. } => Some(*time),
            TelemetryEntry::Key { .. } => None,
        }
    }

    /// Its encoding.
    pub fn to_bytes(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        let mut writer = FieldWriter(&mut bytes, 0);
        match self {
            TelemetryEntry::Change { time, key, metric: Metric::FlowPath, why, old, new, place, path } => {
                writer.put_bytes(b"chng").put_bytes(&time.to_be_bytes()).put_bytes(&key.0);
                writer.put_bytes(&[Metric::FlowPath as u8, *why as u8, *old as u8, *new as u8]);
                match path {
                    Some(Via::Path(path)) => {
                        let mut words = [u32::MAX; EVENT_HOPS];
                        words
                            .iter_mut()
                            .zip(path.stored_switches())
                            .for_each(|(word, switch)| *word = *switch);
                        if usize::from(path.hops) < EVENT_HOPS {
                            words[EVENT_HOPS - 1] = number_or_all_ones(place.switch);
                        }
                        words.iter().for_each(|word| _ = writer.put_bytes(&word.to_be_bytes()));
                    }
                    Some(Via::Digest(digest)) => {
                        writer.put_bytes(&digest.to_be_bytes()).put_bytes(&((new >> 8) as u32).to_be_bytes());
                    }
                    None => {}
                }
            }
            TelemetryEntry::Change { time, key, metric, why, old, new, place, path } => {
                writer.put_bytes(b"chng").put_bytes(&time.to_be_bytes()).put_bytes(&key.0);
                writer
                    .put_bytes(&[*metric as u8, *why as u8, 0, 0])
                    .put_bytes(&old.to_be_bytes())
                    .put_bytes(&new.to_be_bytes());
                writer.put_number(place.switch).put_number(place.port);
                match (metric, path) {
                    (Metric::FlowLatency, Some(Via::Digest(digest))) => {
                        writer.put_bytes(&digest.to_be_bytes())
                    }
                    (Metric::FlowLatency, Some(Via::Path(path))) => {
                        writer.put_bytes(&path.path_digest().to_be_bytes())
                    }
                    (Metric::FlowLatency, None) => writer.put_bytes(&[0; 4]),
                    _ => writer.put_number(place.queue),
                };
            }
            TelemetryEntry::Drop { time, key, place, ingress_port, reason } => {
                writer.put_bytes(b"drop").put_bytes(&time.to_be_bytes()).put_bytes(&key.0);
                writer
                    .put_number(place.switch)
                    .put_number(*ingress_port)
                    .put_number(place.port)
                    .put_number(place.queue);
                writer.put_bytes(&reason.to_bytes());
            }
            TelemetryEntry::Congestion { time, key, place, occupancy, latency } => {
                writer.put_bytes(b"cong").put_bytes(&time.to_be_bytes()).put_bytes(&key.0);
                writer.put_number(place.switch).put_number(place.port).put_number(place.queue);
                writer.put_number(*occupancy).put_number(*latency);
            }
            TelemetryEntry::Key { key, means } => {
                writer.put_bytes(b"keys").put_bytes(&key.0);
                match means {
                    Means::Itself => {}
                    Means::Flow(flow) => {
                        let flow = FlowBytes::from_flow(flow);
                        writer.put_bytes(&[flow.len as u8]).put_bytes(flow.get());
                    }
                    Means::Hop(flow, switch) => {
                        writer.put_bytes(&[20]).put_bytes(&flow.0).put_bytes(&switch.to_be_bytes());
                    }
                    Means::Leaves { flow, switch, port, time } => {
                        writer.put_bytes(&[32]).put_bytes(&flow.0).put_bytes(&switch.to_be_bytes());
                        writer.put_number(*port).put_bytes(&time.to_be_bytes());
                    }
                    Means::Name(name) => {
                        let name = name.leading_bytes(MEANS_LEN);
                        writer.put_bytes(&[name.len() as u8]).put_bytes(name);
                    }
                }
            }
        }
        bytes
    }

    /// Decodes an entry; `None` if the bytes are not one.
    pub fn parse_bytes(bytes: &[u8]) -> Option<TelemetryEntry> {
        let mut reader = FieldReader(bytes.first_chunk::<ENTRY_LEN>()?);
        let kind: [u8; 4] = reader.take()?;
        if kind == *b"keys" {
            let key = reader.read_key()?;
            let [len] = reader.take()?;
            let means = match len {
                1.. if key.0.ends_with(b"ifnm") => {
                    let name = reader.0.get(..len.into())?;
                    Means::Name(TraceName::new(&String::from_utf8_lossy(name)))
                }
                0 => Means::Itself,
                20 => {
                    let flow = reader.read_key()?;
                    Means::Hop(flow, u32::from_be_bytes(reader.take()?))
                }
                32 => {
                    let (flow, switch) = (reader.read_key()?, u32::from_be_bytes(reader.take()?));
                    Means::Leaves { flow, switch, port: reader.read_number()?, time: reader.read_time()? }
                }
                37 => {
                    let (src, dst): ([u8; 16], [u8; 16]) = (reader.take()?, reader.take()?);
                    let (sport, dport) =
                        (u16::from_be_bytes(reader.take()?), u16::from_be_bytes(reader.take()?));
                    let [proto] = reader.take()?;
                    Means::Flow(Flow { src: src.into(), dst: dst.into(), sport, dport, proto })
                }
                _ => return None,
            };
            return Some(TelemetryEntry::Key { key, means });
        }
        let (time, key) = (reader.read_time()?, reader.read_key()?);
        match &kind {
            b"chng" => {
                let [metric, why, old_hops, hops] = reader.take()?;
                let (metric, why) = (Metric::from_number(metric)?, Why::from_number(why)?);
                if metric == Metric::FlowPath {
                    let (new, place, path) = read_path_change(&mut reader, hops)?;
                    let (old, path) = (old_hops.into(), Some(path));
                    return Some(TelemetryEntry::Change { time, key, metric, why, old, new, place, path });
                }
                let (old, new) = (reader.read_time()?, reader.read_time()?);
                let mut place =
                    Location { switch: reader.read_number()?, port: reader.read_number()?, queue: None };
                let path = match metric {
                    Metric::FlowLatency => {
                        let digest = u32::from_be_bytes(reader.take()?);
                        Some(Via::Digest(digest)).filter(|_| digest != 0)
                    }
                    _ => {
                        place.queue = reader.read_number()?;
                        None
                    }
                };
                Some(TelemetryEntry::Change { time, key, metric, why, old, new, place, path })
            }
            b"drop" => {
                let (switch, ingress_port) = (reader.read_number()?, reader.read_number()?);
                let place = Location { switch, port: reader.read_number()?, queue: reader.read_number()? };
                let reason = DropReason::from_bytes(reader.take()?);
                Some(TelemetryEntry::Drop { time, key, place, ingress_port, reason })
            }
            b"cong" => {
                let place = Location {
                    switch: reader.read_number()?,
                    port: reader.read_number()?,
                    queue: reader.read_number()?,
                };
                let (occupancy, latency) = (reader.read_number()?, reader.read_number()?);
                Some(TelemetryEntry::Congestion { time, key, place, occupancy, latency })
            }
            _ => None,
        }
    }
}

/// The end of a path change: the new value, the switch that reported for itself, and the path. `None` without hops.
fn read_path_change(reader: &mut FieldReader<'_>, hops: u8) -> Option<(u64, Location, Via)> {
    let mut words = [0; EVENT_HOPS];
    for word in &mut words {
        *word = u32::from_be_bytes(reader.take()?);
    }
    let (looped, switch, path) = match usize::from(hops) {
        0 => return None,
        n @ 1..=EVENT_HOPS => {
            let path = SwitchPath::from_switches(&words[..n]);
            let last = words[EVENT_HOPS - 1];
            (path.looped, Some(last).filter(|last| n < EVENT_HOPS && *last != u32::MAX), Via::Path(path))
        }
        _ => (words[1] != 0, None, Via::Digest(words[0])),
    };
    Some((u64::from(looped) << 8 | u64::from(hops), Location { switch, ..Location::default() }, path))
}
