//! What the reporter's program for Tofino has in another way than that for bmv2. `reporter-p4/README.md` says the same
//! in words.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::tables::{self, SESSIONS};
use crate::switches::p4::schema::MatchKind::{Exact, Ternary};
use crate::switches::p4::schema::{Used, UsedAction, UsedTable};
use crate::switches::p4::tables::{Holds, Item, Match, Mirror, Side, Tables, Towards};
use crate::switches::p4::tofino::{WHOLE, shape_group};

/// Bytes in front of a copy: what was seen of its packet.
const SEEN_BYTES: u16 = 32;
/// Bytes of a copy of which no byte is sent: what was seen, and a header of Ethernet.
const NO_PACKET: u16 = SEEN_BYTES + 14;
/// Nodes of a multicast group, at most.
const NODES: u32 = 512;
/// The multicast group of clone session s is `REPORT_GROUPS` + s.
const REPORT_GROUPS: u32 = 16;
/// The session of packets that are dropped, which are copied at ingress and at egress.
const DROPS: u32 = SESSIONS[3];
/// The place of `drops` among the parameters of `watch`.
const WATCH_DROPS: usize = 2;
/// The number of bytes of the frame among kinds of values.
const VALUE_BYTES: u128 = 4;

/// All that the control plane uses of the program for Tofino.
pub static USED: LazyLock<Used> = LazyLock::new(|| {
    let mut all: Vec<UsedTable> = tables::USED.tables.to_vec();
    for table in &mut all {
        match table.name {
            "watchlist" => {
                table.actions = &[
                    UsedAction {
                        name: "watch",
                        params: &[("flows", 1), ("queues", 1), ("drops", 1), ("deflect", 1)],
                    },
                    UsedAction { name: "ignore", params: &[] },
                ];
            }
            "queue_of" => table.actions = &[UsedAction { name: "use_queue", params: &[("queue", 5)] }],
            "queue_limits" => table.key = &[("egress_port", Ternary, 9), ("queue", Exact, 5)],
            "settings" => {
                table.actions = &[UsedAction {
                    name: "set",
                    params: &[
                        ("switch_id", 32),
                        ("time_offset_high", 32),
                        ("time_offset_low", 32),
                        ("interval_mask_high", 16),
                        ("interval_mask_low", 32),
                        ("latency_mask", 32),
                        ("every_packet", 1),
                    ],
                }];
            }
            _ => {}
        }
    }
    Used { tables: Cow::Owned(all), counters: Cow::Borrowed(&tables::COUNTERS), packet_out: &[] }
});

/// Tables as this program has them: settings in halves, groups with nodes of their own, for each clone session a
/// mirror session that sends to a group, and packets whose drops are watched are deflected, where there is a place for them.
pub fn shape(tables: &Tables) -> Tables {
    let mut shaped = Tables::default();
    let deflects = tables.iter().any(|(item, _)| matches!(item, Item::Deflection(_)));
    for (item, holds) in tables.iter() {
        match (item, holds) {
            (Item::Default { table }, Holds::Action { name, params }) if table == "settings" => {
                let params = in_halves(params);
                shaped.set(item.clone(), Holds::Action { name: name.clone(), params });
            }
            (Item::Row { table, .. }, Holds::Action { name, params })
                if table == "watchlist" && name == "watch" =>
            {
                let drops = params.get(WATCH_DROPS).copied().unwrap_or(0);
                let params = [&params[..], &[drops & u128::from(deflects)]].concat();
                shaped.set(item.clone(), Holds::Action { name: name.clone(), params });
            }
            (Item::Group(id), Holds::Copies(copies)) => shape_group(&mut shaped, *id, NODES, copies),
            (Item::Clone(session), Holds::Copies(copies)) => {
                let group = REPORT_GROUPS + session;
                shape_group(&mut shaped, group, NODES, copies);
                let at = if *session == DROPS { Side::Both } else { Side::Egress };
                let mirror = Mirror { to: Towards::Group(group), at, longest: longest(tables, copies) };
                shaped.set(item.clone(), Holds::Mirror(mirror));
            }
            _ => shaped.set(item.clone(), holds.clone()),
        }
    }
    shaped
}

/// Switch, offset, masks, and whether each packet is reported: the offset and the mask of times in halves. The clock
/// has 48 bits.
fn in_halves(params: &[u128]) -> Vec<u128> {
    let [switch_id, offset, interval, latency, every] = params else { return params.to_vec() };
    let low = |number: &u128| number & 0xffff_ffff;
    vec![*switch_id, offset >> 32, low(offset), interval >> 32 & 0xffff, low(interval), *latency, *every]
}

/// How much of a packet the copies of a session need: as much as the reports send of it, or all of it where they tell
/// its length.
fn longest(tables: &Tables, copies: &[(u32, u32)]) -> u16 {
    let row = |table: &str, number: u128| {
        let key = vec![Match::Exact(number)];
        match tables.get(&Item::Row { table: table.into(), key, order: 0 }) {
            Some(Holds::Action { name, params }) => Some((name.as_str(), params.as_slice())),
            _ => None,
        }
    };
    let of_copy = |replica: u32| match row("report", replica.into()) {
        Some(("key_write" | "key_increment", [_, _, _, _, VALUE_BYTES, ..])) => WHOLE,
        Some(("postcard", [_, _, VALUE_BYTES])) => WHOLE,
        Some(("telemetry_report", [to])) => match row("destination", *to) {
            Some(("int_collector", [_, packet_bytes, ..])) => {
                let bytes = u16::try_from(*packet_bytes).unwrap_or(WHOLE);
                SEEN_BYTES.saturating_add(bytes).min(WHOLE)
            }
            _ => NO_PACKET,
        },
        _ => NO_PACKET,
    };
    copies.iter().map(|(_, replica)| of_copy(*replica)).max().unwrap_or(NO_PACKET)
}
