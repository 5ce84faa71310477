//! How the reporter's program for Tofino differs from that for bmv2. `reporter-p4/README.md` describes the
//! same.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::settings::{Becomes, ReceiverKind, SwitchReporterSettings, ValueKind};
use super::tables::{self, SESSIONS, Settings as SettingsTable, Watchlist};
use crate::row::{ActionOf, RowAction as _, actions};
use crate::schema::MatchKind::{Exact, Ternary};
use crate::schema::{Used, UsedAction, UsedTable};
use crate::tofino::WHOLE;

/// Metadata bytes before a copy: what was seen of its packet.
const SEEN_BYTES: u16 = 32;
/// Bytes of a copy that are not sent: the metadata and an Ethernet header.
const NO_PACKET: u16 = SEEN_BYTES + 14;
/// Most nodes of a multicast group.
pub(super) const NODES: u32 = 512;
/// The multicast group of clone session s is `REPORT_GROUPS` + s.
pub(super) const REPORT_GROUPS: u32 = 16;
/// The session for dropped packets, which are copied at ingress and at egress.
pub(super) const DROPS: u32 = SESSIONS[3];

actions! {
    Watch = "watch" { flows: bool = 1, queues: bool = 1, drops: bool = 1, deflect: bool = 1 }
    Set = "set" {
        switch_id: u32 = 32,
        time_offset_high: u32 = 32,
        time_offset_low: u32 = 32,
        interval_mask_high: u16 = 16,
        interval_mask_low: u32 = 32,
        latency_mask: u32 = 32,
        every_packet: bool = 1,
    }
}

impl ActionOf<Watchlist> for Watch {}
impl ActionOf<SettingsTable> for Set {}

/// Everything the control plane uses of the program for Tofino.
pub static USED: LazyLock<Used> = LazyLock::new(|| {
    let mut all: Vec<UsedTable> = tables::USED.tables.to_vec();
    for table in &mut all {
        match table.name {
            "watchlist" => table.actions = &[Watch::USED, tables::Ignore::USED],
            "queue_of" => table.actions = &[UsedAction { params: &[("queue", 5)], ..tables::UseQueue::USED }],
            "queue_limits" => table.key = &[("egress_port", Ternary, 9), ("queue", Exact, 5)],
            "settings" => table.actions = &[Set::USED],
            _ => {}
        }
    }
    Used { tables: Cow::Owned(all), counters: Cow::Borrowed(&tables::COUNTERS), packet_out: &[] }
});

/// How much of a packet a session's copies need: as much as the reports send of it, or all of it if they
/// include its length.
pub(super) fn longest_copy(settings: &SwitchReporterSettings, copies: &[(u32, u32)]) -> u16 {
    let made = (1..).zip(&settings.reports);
    let of = made.filter(|(replica, _)| copies.iter().any(|(_, of)| of == replica)).map(|(_, made)| {
        let to = settings.destinations.get(usize::from(made.to).wrapping_sub(1)).map(|to| to.kind);
        match (made.becomes, to) {
            (
                Becomes::KeyWrite { value: ValueKind::Bytes, .. }
                | Becomes::KeyIncrement { value: ValueKind::Bytes, .. }
                | Becomes::Postcard { value: ValueKind::Bytes, .. },
                _,
            ) => WHOLE,
            (Becomes::TelemetryReport, Some(ReceiverKind::IntCollector { packet_bytes, .. })) => {
                SEEN_BYTES.saturating_add(packet_bytes).min(WHOLE)
            }
            _ => NO_PACKET,
        }
    });
    of.max().unwrap_or(NO_PACKET)
}
