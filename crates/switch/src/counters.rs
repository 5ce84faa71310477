//! A P4 switch's counters, under the names common to all translators.
//!
//! A counter of the switch counts packets by index. If one packet stands for several reports, it is counted
//! once for each bit of their number: index 8 p + b of primitive p counts 2^b each.

use std::collections::BTreeMap;

use dta_proto::control::{Counter, NodeStatistics};
use dta_proto::counter::{Reason as R, Stage, translator as names};
use dta_proto::program::Primitive;

use super::lower::split_pair_number;
use super::p4_switch::unix_time_us;
use super::state::SwitchState;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts(pub BTreeMap<String, Vec<u64>>);

impl SwitchCounts {
    /// All counters of a name; empty if the switch does not have it.
    pub fn counts_named(&self, name: &str) -> &[u64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn count_at(&self, name: &str, index: usize) -> u64 {
        self.counts_named(name).get(index).copied().unwrap_or(0)
    }

    /// Reports of a primitive, from counters per bit of their number.
    fn sum_report_bits(&self, name: &str, primitive: Primitive) -> u64 {
        let first = usize::from(primitive.opcode()) * 8;
        (0..8).map(|bit| self.count_at(name, first + bit) << bit).sum()
    }
}

/// The meaning of each index of the counters `dropped` and `egress_dropped`.
const REASONS: [Option<R>; 22] = [
    None,
    Some(R::Header),
    Some(R::Checksum),
    Some(R::Version),
    Some(R::Opcode),
    Some(R::Length),
    Some(R::Field),
    Some(R::Version0Store),
    Some(R::UnknownStore),
    Some(R::WrongPrimitive),
    Some(R::ListRange),
    Some(R::ListNotOwned),
    Some(R::Redundancy),
    Some(R::ValueLength),
    Some(R::Hop),
    Some(R::PathLength),
    Some(R::Column),
    Some(R::EpochOld),
    Some(R::DuplicateColumn),
    Some(R::SketchReporters),
    Some(R::NotListed),
    Some(R::NoQueuePair),
];

/// The node of a switch whose session is called `name`.
pub fn switch_statistics(name: &str, kept: &SwitchState, counts: &SwitchCounts) -> NodeStatistics {
    let mut all: Vec<(String, u64)> = Vec::new();
    let (mut accepted, mut emitted, mut superseded, mut discarded, mut operations, mut lost) =
        (0, 0, 0, 0, 0, 0);
    let mut held_of = Vec::new();
    for primitive in Primitive::ALL {
        let index = usize::from(primitive.opcode());
        let of = |definition: &dta_proto::counter::Definition| {
            definition.format_name(&[primitive.canonical_name()])
        };
        let taken = counts.count_at("accepted", index) + counts.count_at("egress_accepted", index);
        let left = counts.sum_report_bits("emitted", primitive);
        let mut replaced = counts.sum_report_bits("egress_superseded", primitive);
        let mut thrown = counts.sum_report_bits("egress_discarded", primitive);
        if primitive == Primitive::Postcarding {
            replaced += counts.count_at("superseded", 0);
            thrown += (0..8).map(|bit| counts.count_at("discarded", bit) << bit).sum::<u64>();
        }
        let gone = counts.count_at("lost", index);
        let made = counts.count_at("operations", index);
        held_of.push(taken.saturating_sub(left + replaced + thrown + gone));
        all.push((of(&names::OF_RECEIVED), counts.count_at("received", index)));
        all.push((of(&names::OF_ACCEPTED), taken));
        // What became a frame without a queue pair counts as emitted and lost.
        all.push((of(&names::OF_EMITTED), left + gone));
        all.push((of(&names::OF_SUPERSEDED), replaced));
        all.push((of(&names::OF_OPERATIONS), made));
        all.push((of(&names::OF_LOST), gone));
        accepted += taken;
        emitted += left + gone;
        superseded += replaced;
        discarded += thrown;
        operations += made;
        lost += gone;
    }
    for (primitive, held) in Primitive::ALL.iter().zip(&held_of) {
        all.push((names::OF_HELD.format_name(&[primitive.canonical_name()]), *held));
    }
    for (index, reason) in REASONS.iter().enumerate() {
        let Some(reason) = reason else { continue };
        let count = counts.count_at("dropped", index) + counts.count_at("egress_dropped", index);
        if count != 0 {
            all.push((names::DROPPED.format_name(&[reason.name()]), count));
        }
    }
    let frames: u64 = counts.counts_named("pair_frames").iter().sum();
    for (number, count) in
        counts.counts_named("pair_frames").iter().enumerate().filter(|(_, count)| **count != 0)
    {
        let (collector, purpose) = split_pair_number(u32::try_from(number).unwrap_or(u32::MAX));
        let collector = if collector == 0 { String::new() } else { collector.to_string() };
        all.push((names::PAIR_SENT.format_name(&[&collector, purpose.name()]), *count));
    }
    for (number, count) in
        counts.counts_named("store_frames").iter().enumerate().filter(|(_, count)| **count != 0)
    {
        let id = kept.places.store_by_number(u32::try_from(number).unwrap_or(u32::MAX));
        if let Some(store) = id.and_then(|id| kept.applied.first_store_part(id)) {
            all.push((names::STORE_FRAMES.format_name(&[&store.spec.name]), *count));
        }
    }
    let one = |name: &str| counts.count_at(name, 0);
    let nacked: u64 = counts
        .counts_named("nacked_sequences")
        .iter()
        .enumerate()
        .map(|(bit, count)| count << bit.min(63))
        .sum();
    all.extend([
        (names::RECEIVED.format_name(&[]), one("received")),
        // A program sees each packet that its port received.
        (names::LINK_RECEIVED.format_name(&[names::REPORTS]), one("received")),
        (names::LINK_RECEIVED.format_name(&[names::ROCE]), counts.counts_named("answers").iter().sum()),
        (names::ACCEPTED.format_name(&[]), accepted),
        (names::EMITTED.format_name(&[]), emitted),
        (names::HELD.format_name(&[]), held_of.iter().sum()),
        (names::SUPERSEDED.format_name(&[]), superseded),
        (names::DISCARDED.format_name(&["store_removed"]), discarded),
        (names::OPERATIONS.format_name(&[]), operations),
        (names::LOST.format_name(&[]), lost),
        (names::LOST_BY.format_name(&["queue_pair_down"]), lost),
        (names::FRAMES.format_name(&[]), frames),
        (names::PARTIAL_ROWS.format_name(&[]), one("partial_rows")),
        (names::NACKS.format_name(&[]), one("nacks")),
        (names::NACKED_SEQUENCES.format_name(&[]), nacked),
        (
            names::IMMEDIATE_IGNORED.format_name(&[]),
            one("immediate_ignored") + one("egress_immediate_ignored"),
        ),
    ]);
    let counters = all.into_iter().map(|(name, value)| Counter { name, value }).collect();
    NodeStatistics {
        node: Stage::Translator.node_name(name),
        counters,
        age_seconds: 0.0,
        session: String::new(),
        life: kept.life,
        time_us: unix_time_us(),
    }
}
