//! The tables of `translator-p4` as far as the control plane uses them. `translator-p4/README.md` says what each
//! means. At the start, and in a test, this is compared with what the compiled program tells of itself.

use std::borrow::Cow;

use super::schema::MatchKind::{Exact, Prefix, Range};
use super::schema::{Used, UsedAction, UsedTable};

/// The action of a store of this primitive.
pub const KEY_WRITE_STORE: UsedAction = UsedAction {
    name: "key_write_store",
    params: &[("number", 8), ("copies", 8), ("value_words", 8), ("slots_mask", 32), ("element_shift", 8)],
};
/// The action of a store of this primitive.
pub const KEY_INCREMENT_STORE: UsedAction =
    UsedAction { name: "key_increment_store", params: &[("number", 8), ("copies", 8), ("slots_mask", 32)] };
/// The action of a store of this primitive.
pub const APPEND_STORE: UsedAction = UsedAction {
    name: "append_store",
    params: &[
        ("number", 8),
        ("lists", 32),
        ("ring_shift", 8),
        ("ring_mask", 32),
        ("element_shift", 8),
        ("entry_words", 8),
        ("entries", 8),
        ("notify", 1),
    ],
};
/// The action of a store of this primitive.
pub const POSTCARDING_STORE: UsedAction = UsedAction {
    name: "postcarding_store",
    params: &[
        ("number", 8),
        ("copies", 8),
        ("hops", 8),
        ("slots_mask", 32),
        ("element_shift", 8),
        ("cache_base", 32),
        ("cache_mask", 32),
    ],
};
/// The action of a store of this primitive.
pub const SKETCH_MERGE_STORE: UsedAction = UsedAction {
    name: "sketch_merge_store",
    params: &[
        ("number", 8),
        ("rows", 8),
        ("merge", 2),
        ("expected_reporters", 16),
        ("columns_shift", 8),
        ("columns_mask", 32),
        ("epochs_mask", 32),
        ("element_shift", 8),
        ("state_base", 32),
    ],
};

/// All that is used.
pub static USED: Used = Used {
    tables: Cow::Borrowed(&[
        UsedTable {
            name: "l2",
            key: &[("mac", Exact, 48)],
            actions: &[
                UsedAction { name: "forward", params: &[("port", 9)] },
                UsedAction { name: "flood", params: &[("group", 16)] },
                UsedAction { name: "route", params: &[] },
            ],
        },
        UsedTable {
            name: "l3",
            key: &[("address", Prefix, 32)],
            actions: &[UsedAction {
                name: "next_hop",
                params: &[("port", 9), ("source", 48), ("destination", 48)],
            }],
        },
        UsedTable {
            name: "service",
            key: &[("address", Exact, 32), ("port", Exact, 16)],
            actions: &[UsedAction { name: "take_reports", params: &[] }],
        },
        UsedTable {
            name: "reporter",
            key: &[("version", Exact, 2), ("reporter", Exact, 16), ("source", Exact, 32)],
            actions: &[
                UsedAction { name: "permit", params: &[] },
                UsedAction { name: "not_listed", params: &[] },
            ],
        },
        UsedTable {
            name: "version0",
            key: &[("primitive", Exact, 8)],
            actions: &[UsedAction { name: "use_store", params: &[("store", 16)] }],
        },
        UsedTable {
            name: "store",
            key: &[("store", Exact, 16)],
            actions: &[
                KEY_WRITE_STORE,
                KEY_INCREMENT_STORE,
                APPEND_STORE,
                POSTCARDING_STORE,
                SKETCH_MERGE_STORE,
            ],
        },
        UsedTable {
            name: "region",
            key: &[("store", Exact, 16), ("bucket", Range, 8)],
            actions: &[UsedAction {
                name: "use_region",
                params: &[("pair", 8), ("address", 64), ("rkey", 32)],
            }],
        },
        UsedTable {
            name: "lists",
            key: &[("store", Exact, 16), ("list", Range, 32)],
            actions: &[UsedAction {
                name: "use_list",
                params: &[("state_offset", 32), ("pair", 8), ("address", 64), ("rkey", 32)],
            }],
        },
        UsedTable {
            name: "sketch_reporter",
            key: &[("store", Exact, 16), ("reporter", Exact, 16)],
            actions: &[UsedAction { name: "use_bit", params: &[("mask", 32)] }],
        },
        UsedTable {
            name: "departure",
            key: &[("pair", Exact, 8)],
            actions: &[UsedAction { name: "depart", params: &[("group", 16)] }],
        },
        UsedTable {
            name: "answer",
            key: &[("address", Exact, 32), ("local_qpn", Exact, 24)],
            actions: &[UsedAction { name: "answer_of", params: &[("pair", 8)] }],
        },
        UsedTable {
            name: "queue_pair",
            key: &[("pair", Exact, 8)],
            actions: &[UsedAction {
                name: "use_queue_pair",
                params: &[
                    ("rc", 1),
                    ("remote_qpn", 24),
                    ("source_mac", 48),
                    ("destination_mac", 48),
                    ("source_ip", 32),
                    ("destination_ip", 32),
                    ("udp_port", 16),
                    ("tos", 8),
                ],
            }],
        },
    ]),
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
    /// What else it says.
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
