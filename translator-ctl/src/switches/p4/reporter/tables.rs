//! The tables of `reporter-p4` as far as the control plane uses them. `reporter-p4/README.md` says what each means. At
//! the start, and in a test, this is compared with what the compiled program tells of itself.

use std::borrow::Cow;

use crate::switches::p4::schema::MatchKind::{Exact, Prefix, Range, Ternary};
use crate::switches::p4::schema::{Used, UsedAction, UsedTable};

/// All that is used.
pub static USED: Used = Used {
    tables: Cow::Borrowed(&[
        UsedTable {
            name: "l2",
            key: &[("destination", Exact, 48)],
            actions: &[
                UsedAction { name: "forward", params: &[("port", 9)] },
                UsedAction { name: "flood", params: &[("group", 16)] },
                UsedAction { name: "route", params: &[] },
                UsedAction { name: "drop", params: &[("reason", 8)] },
            ],
        },
        UsedTable {
            name: "l3",
            key: &[("destination", Prefix, 32)],
            actions: &[
                UsedAction { name: "next_hop", params: &[("port", 9), ("source", 48), ("destination", 48)] },
                UsedAction { name: "drop", params: &[("reason", 8)] },
            ],
        },
        UsedTable {
            name: "ingress_port",
            key: &[("ingress_port", Exact, 9)],
            actions: &[UsedAction { name: "admit", params: &[("hop", 4)] }],
        },
        UsedTable {
            name: "acl",
            key: &[
                ("ingress_port", Ternary, 9),
                ("source", Ternary, 32),
                ("destination", Ternary, 32),
                ("protocol", Ternary, 8),
                ("source_port", Range, 16),
                ("destination_port", Range, 16),
            ],
            actions: &[
                UsedAction { name: "permit", params: &[] },
                UsedAction { name: "deny", params: &[("reason", 8)] },
            ],
        },
        UsedTable {
            name: "queue_of",
            key: &[("dscp", Exact, 6)],
            actions: &[UsedAction { name: "use_queue", params: &[("queue", 3)] }],
        },
        UsedTable {
            name: "excluded",
            key: &[("destination", Ternary, 32), ("protocol", Exact, 8), ("destination_port", Ternary, 16)],
            actions: &[UsedAction { name: "exclude", params: &[] }],
        },
        UsedTable {
            name: "watchlist",
            key: &[
                ("source", Ternary, 32),
                ("destination", Ternary, 32),
                ("protocol", Ternary, 8),
                ("source_port", Range, 16),
                ("destination_port", Range, 16),
            ],
            actions: &[
                UsedAction { name: "watch", params: &[("flows", 1), ("queues", 1), ("drops", 1)] },
                UsedAction { name: "ignore", params: &[] },
            ],
        },
        UsedTable {
            name: "queue_limits",
            key: &[("egress_port", Ternary, 9), ("queue", Exact, 32)],
            actions: &[UsedAction {
                name: "limit",
                params: &[("trigger_ns", 32), ("reset_ns", 32), ("reports", 16)],
            }],
        },
        UsedTable {
            name: "report",
            key: &[("replica", Exact, 16)],
            actions: &[
                UsedAction {
                    name: "key_write",
                    params: &[
                        ("destination", 8),
                        ("store", 16),
                        ("redundancy", 8),
                        ("key_kind", 8),
                        ("value_kind", 8),
                        ("with_time", 1),
                    ],
                },
                UsedAction {
                    name: "append",
                    params: &[
                        ("destination", 8),
                        ("store", 16),
                        ("list_number", 32),
                        ("entry_kind", 8),
                        ("immediate", 1),
                    ],
                },
                UsedAction {
                    name: "key_increment",
                    params: &[
                        ("destination", 8),
                        ("store", 16),
                        ("redundancy", 8),
                        ("key_kind", 8),
                        ("value_kind", 8),
                    ],
                },
                UsedAction {
                    name: "postcard",
                    params: &[("destination", 8), ("store", 16), ("value_kind", 8)],
                },
                UsedAction { name: "telemetry_report", params: &[("destination", 8)] },
            ],
        },
        UsedTable {
            name: "destination",
            key: &[("number", Exact, 8)],
            actions: &[
                UsedAction {
                    name: "translator",
                    params: &[
                        ("reporter", 16),
                        ("source_mac", 48),
                        ("destination_mac", 48),
                        ("source_ip", 32),
                        ("destination_ip", 32),
                        ("source_port", 16),
                        ("destination_port", 16),
                        ("tos", 8),
                    ],
                },
                UsedAction {
                    name: "int_collector",
                    params: &[
                        ("hardware", 6),
                        ("packet_bytes", 16),
                        ("source_mac", 48),
                        ("destination_mac", 48),
                        ("source_ip", 32),
                        ("destination_ip", 32),
                        ("source_port", 16),
                        ("destination_port", 16),
                        ("tos", 8),
                    ],
                },
            ],
        },
        UsedTable {
            name: "egress_port",
            key: &[("egress_port", Exact, 9)],
            actions: &[UsedAction { name: "allow", params: &[("is_last_hop", 1)] }],
        },
        UsedTable {
            name: "settings",
            key: &[],
            actions: &[UsedAction {
                name: "set",
                params: &[
                    ("switch_id", 32),
                    ("time_offset", 64),
                    ("interval_mask", 64),
                    ("latency_mask", 32),
                    ("every_packet", 1),
                ],
            }],
        },
    ]),
    counters: Cow::Borrowed(&COUNTERS),
    packet_out: &[],
};

/// Counters, with how many there are of each.
pub static COUNTERS: [(&str, u64); 14] = [
    ("received", 512),
    ("no_flow", 2),
    ("excluded_packets", 1),
    ("watched", 1),
    ("dropped", 256),
    ("ingress_mirrored", 16),
    ("forwarded", 512),
    ("egress_dropped", 256),
    ("mirrored", 16),
    ("unchanged", 1),
    ("over_quota", 1),
    ("sent", 256),
    ("no_report", 1),
    ("no_destination", 1),
];

/// The multicast group of frames that go to all ports.
pub const FLOOD_GROUP: u32 = 1;
/// Clone sessions: of reports of flows, of queues, of both, and of drops.
pub const SESSIONS: [u32; 4] = [1, 2, 3, 4];
