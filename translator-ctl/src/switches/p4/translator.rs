//! The tables of `translator-p4` as far as the control plane uses them. `translator-p4/README.md` says what each
//! means. At the start, and in a test, this is compared with what the compiled program says of itself.

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
    /// They leave by all ports of a multicast group.
    Flood = "flood" { group: u32 = 16 }
    /// They are routed.
    Route = "route" {}
    /// What is routed goes to the next hop.
    NextHop = "next_hop" { port: u16 = 9, source: Mac = 48, destination: Mac = 48 }
    TakeReports = "take_reports" {}
    Permit = "permit" {}
    NotListed = "not_listed" {}
    UseStore = "use_store" { store: u16 = 16 }
    KeyWriteStore = "key_write_store" {
        number: u32 = 8,
        copies: u8 = 8,
        value_words: u8 = 8,
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
    /// The state of a list is at its number and this offset, modulo 2^32.
    UseList = "use_list" { state_offset: u32 = 32, pair: u32 = 8, address: u64 = 64, rkey: u32 = 32 }
    UseBit = "use_bit" { mask: u32 = 32 }
    /// Frames of a queue pair leave by the group of this number and their copies.
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
    /// Where reports come to.
    Service = "service" { address: Ipv4Addr = 32, port: u16 = 16 } => [TakeReports]
    /// Who may report. A report of version 0 does not say which reporter sent it.
    Reporter = "reporter" { version: u8 = 2, reporter: u16 = 16, source: Ipv4Addr = 32 } => [Permit, NotListed]
    /// The store of reports of version 0.
    Version0 = "version0" { primitive: u8 = 8 } => [UseStore]
    Store = "store" { store: u16 = 16 } =>
        [KeyWriteStore, KeyIncrementStore, AppendStore, PostcardingStore, SketchMergeStore]
    /// Where the part of a store with some buckets lies.
    Region = "region" { store: u16 = 16, bucket: RangeInclusive<u8> = 8 } => [UseRegion]
    Lists = "lists" { store: u16 = 16, list: RangeInclusive<u32> = 32 } => [UseList]
    SketchReporter = "sketch_reporter" { store: u16 = 16, reporter: u16 = 16 } => [UseBit]
    Departure = "departure" { pair: u32 = 8 } => [Depart]
    Answer = "answer" { address: Ipv4Addr = 32, local_qpn: u32 = 24 } => [AnswerOf]
    QueuePair = "queue_pair" { pair: u32 = 8 } => [UseQueuePair]
}

/// All that is used.
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

/// A command that goes to the data plane as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do: one of the numbers below.
    pub command: u8,
    /// The queue pair that it is about.
    pub pair: u8,
    /// The store that it is about.
    pub store: u16,
    /// The list, row or column that it is about.
    pub index: u32,
    /// What else it needs.
    pub value: u32,
    /// Where the state of its list, row or column is, for a switch whose registers are written.
    pub state: u32,
}

/// The next frame of a queue pair bears PSN `value`.
pub const SET_PSN: u8 = 1;
/// The newest batch of list `index` has sequence `value`; what is gathered of it stays.
pub const SET_LIST: u8 = 2;
/// The batch of list `index` leaves as it is, if its first entry is `value` microseconds old.
pub const FLUSH_LIST: u8 = 3;
/// The row at place `index` of the cache leaves as it is, if its first postcard is `value` microseconds old.
pub const FLUSH_ROW: u8 = 4;
/// Column `index` of epoch `value` leaves as it is.
pub const FLUSH_COLUMN: u8 = 5;
/// The row at place `index` of the cache is discarded.
pub const FORGET_ROW: u8 = 6;
/// Column `index` at the place of epoch `value` is discarded.
pub const FORGET_COLUMN: u8 = 7;
/// A WRITE of nothing goes to a queue pair, with AckReq.
pub const PROBE: u8 = 8;

/// How many queue pairs the program has.
pub const QUEUE_PAIRS: u32 = 64;
/// How many stores it counts frames of.
pub const STORES: u32 = 256;
/// How many lists it has state for, over all stores.
pub const LIST_STATES: u32 = 65_536;
/// How many rows of postcards.
pub const ROW_STATES: u32 = 65_536;
/// How many columns of sketches, over all epochs.
pub const COLUMN_STATES: u32 = 262_144;
/// The clone session by which NACKs are made.
pub const NACK_SESSION: u32 = 1;
/// Multicast groups and clone sessions of queue pair p are `GROUPS (p + 1) + copies`.
pub const GROUPS: u32 = 16;
/// Its port, which does not matter: a NACK comes back to the ingress from the egress.
pub const NACK_PORT: u32 = 254;
/// The multicast group of frames that go to all ports.
pub const FLOOD_GROUP: u32 = 8;
/// The UDP port of reports, which the program's parser knows.
pub const REPORTS_PORT: u16 = 40_040;
