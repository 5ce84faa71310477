//! The tables of `translator-p4` that the control plane uses. `translator-p4/README.md` explains them. At the
//! start, and in a test, this is checked against the compiled program's description.

use std::borrow::Cow;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use dta_proto::prefix::Prefix;
use dta_proto::program::Mac;

use super::row::{actions, tables};
use super::schema::Used;

actions! {
    /// Frames to a station leave by its port.
    Forward = "forward" { port: u16 = 9 }
    /// They go to all ports of a multicast group.
    Flood = "flood" { group: u32 = 16 }
    /// They are routed.
    Route = "route" {}
    /// Routed packets go to the next hop.
    NextHop = "next_hop" { port: u16 = 9, source: Mac = 48, destination: Mac = 48 }
    TakeReports = "take_reports" {}
    Permit = "permit" {}
    NotListed = "not_listed" {}
    UseStore = "use_store" { store: u16 = 16 }
    KeyWriteStore = "key_write_store" {
        number: u32 = 8,
        copies: u8 = 8,
        value_words: u8 = 8,
        inline_keys: bool = 1,
        slots_mask: u32 = 32,
        element_shift: u32 = 8,
    }
    KeyIncrementStore = "key_increment_store" { number: u32 = 8, copies: u8 = 8, slots_mask: u32 = 32 }
    AppendStore = "append_store" {
        number: u32 = 8,
        lists: u32 = 32,
        ring_shift: u32 = 8,
        ring_mask: u32 = 32,
        element_shift: u32 = 8,
        entry_words: u8 = 8,
        entries: u8 = 8,
        notify: bool = 1,
    }
    PostcardingStore = "postcarding_store" {
        number: u32 = 8,
        copies: u8 = 8,
        hops: u8 = 8,
        slots_mask: u32 = 32,
        element_shift: u32 = 8,
        cache_base: u32 = 32,
        cache_mask: u32 = 32,
    }
    SketchMergeStore = "sketch_merge_store" {
        number: u32 = 8,
        rows: u8 = 8,
        merge: u8 = 2,
        expected_reporters: u8 = 16,
        columns_shift: u32 = 8,
        columns_mask: u32 = 32,
        epochs_mask: u32 = 32,
        element_shift: u32 = 8,
        state_base: u32 = 32,
    }
    UseRegion = "use_region" { pair: u32 = 8, address: u64 = 64, rkey: u32 = 32 }
    /// The state of a list is at its number plus this offset, modulo 2^32.
    UseList = "use_list" { state_offset: u32 = 32, pair: u32 = 8, address: u64 = 64, rkey: u32 = 32 }
    UseBit = "use_bit" { mask: u32 = 32 }
    /// Frames of a queue pair use the group with this number and their copies.
    Depart = "depart" { group: u32 = 16 }
    AnswerOf = "answer_of" { pair: u32 = 8 }
    UseQueuePair = "use_queue_pair" {
        rc: bool = 1,
        remote_qpn: u32 = 24,
        source_mac: Mac = 48,
        destination_mac: Mac = 48,
        source_ip: Ipv4Addr = 32,
        destination_ip: Ipv4Addr = 32,
        udp_port: u16 = 16,
        tos: u8 = 8,
    }
}

tables! {
    TABLES:
    L2 = "l2" { mac: Mac = 48 } => [Forward, Flood, Route]
    L3 = "l3" { address: Prefix = 32 } => [NextHop]
    /// Destination of reports.
    Service = "service" { address: Ipv4Addr = 32, port: u16 = 16 } => [TakeReports]
    /// Allowed reporters. A version-0 report does not say which reporter sent it.
    Reporter = "reporter" { version: u8 = 2, reporter: u16 = 16, source: Ipv4Addr = 32 } => [Permit, NotListed]
    /// The store for version-0 reports.
    Version0 = "version0" { primitive: u8 = 8 } => [UseStore]
    Store = "store" { store: u16 = 16 } =>
        [KeyWriteStore, KeyIncrementStore, AppendStore, PostcardingStore, SketchMergeStore]
    /// The address of a store's part with some buckets.
    Region = "region" { store: u16 = 16, bucket: RangeInclusive<u8> = 8 } => [UseRegion]
    Lists = "lists" { store: u16 = 16, list: RangeInclusive<u32> = 32 } => [UseList]
    SketchReporter = "sketch_reporter" { store: u16 = 16, reporter: u16 = 16 } => [UseBit]
    Departure = "departure" { pair: u32 = 8 } => [Depart]
    Answer = "answer" { address: Ipv4Addr = 32, local_qpn: u32 = 24 } => [AnswerOf]
    QueuePair = "queue_pair" { pair: u32 = 8 } => [UseQueuePair]
}

pub static USED: Used = Used {
    tables: Cow::Borrowed(TABLES),
    counters: Cow::Borrowed(&[
        ("received", 6),
        ("accepted", 6),
        ("dropped", 32),
        ("superseded", 1),
        ("discarded", 8),
        ("immediate_ignored", 1),
        ("partial_rows", 1),
        ("nacks", 1),
        ("nacked_sequences", 10),
        ("answers", 3),
        ("commands", 9),
        ("emitted", 48),
        ("egress_superseded", 48),
        ("egress_discarded", 48),
        ("operations", 6),
        ("egress_accepted", 6),
        ("egress_dropped", 32),
        ("egress_immediate_ignored", 1),
        ("lost", 6),
        ("store_frames", 256),
        ("pair_frames", 64),
    ]),
    packet_out: &[("command", 8), ("pair", 8), ("store", 16), ("index", 32), ("value", 32)],
};

/// A command, sent to the data plane as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do: one of the numbers below.
    pub command: u8,
    pub pair: u8,
    pub store: u16,
    /// The list, row or column concerned.
    pub index: u32,
    pub value: u32,
    /// Where the state of its list, row or column is, for a switch whose registers are written directly.
    pub state: u32,
}

/// The next frame of a queue pair gets PSN `value`.
pub const SET_PSN: u8 = 1;
/// The newest batch of list `index` has sequence `value`; what is gathered for it stays.
pub const SET_LIST: u8 = 2;
/// Sends the batch of list `index` if its first entry is `value` microseconds old.
pub const FLUSH_LIST: u8 = 3;
/// Sends the row at place `index` of the cache if its first postcard is `value` microseconds old.
pub const FLUSH_ROW: u8 = 4;
/// Sends column `index` of epoch `value`.
pub const FLUSH_COLUMN: u8 = 5;
/// Discards the row at place `index` of the cache.
pub const FORGET_ROW: u8 = 6;
/// Discards column `index` at the place of epoch `value`.
pub const FORGET_COLUMN: u8 = 7;
/// Sends a zero-length WRITE with AckReq on a queue pair.
pub const PROBE: u8 = 8;
/// Discards what is gathered for list `index`.
pub const FORGET_LIST: u8 = 9;

/// Number of queue pairs in the program.
pub const QUEUE_PAIRS: u32 = 64;
/// Number of collectors that these are enough for.
pub const COLLECTORS: u8 = (QUEUE_PAIRS / 2) as u8;
/// Number of stores whose frames it counts.
pub const STORES: u32 = 256;
/// Number of lists with state, over all stores.
pub const LIST_STATES: u32 = 65_536;
pub const ROW_STATES: u32 = 65_536;
/// Number of sketch columns, over all epochs.
pub const COLUMN_STATES: u32 = 262_144;
/// The clone session for NACKs.
pub const NACK_SESSION: u32 = 1;
/// Multicast groups and clone sessions of queue pair p are `GROUPS (p + 1) + copies`.
pub const GROUPS: u32 = 16;
/// Its port, which is irrelevant: a NACK returns from egress to ingress.
pub const NACK_PORT: u32 = 254;
/// The multicast group for broadcast frames.
pub const FLOOD_GROUP: u32 = 8;
/// The UDP port of reports, known to the program's parser.
pub const REPORTS_PORT: u16 = 40_040;
