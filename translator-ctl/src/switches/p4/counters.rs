//! A P4 switch's counters, under the names common to all translators.
//!
//! A counter of the switch counts packets by index. If one packet stands for several reports, it is counted
//! once for each bit of their number: index 8 p + b of primitive p counts 2^b each.

use std::collections::BTreeMap;

use dta_proto::control::{Counter, NodeStatistics};
use dta_proto::counter::{Reason as R, Stage, translator as names};
use dta_proto::program::Primitive;

use super::lower::pair_of;
use super::now_us;
use super::state::SwitchState;

/// Counters of the switch by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<String, Vec<u64>>);

impl Counts {
    /// All counters of a name; empty if the switch does not have it.
    pub fn of(&self, name: &str) -> &[u64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// One counter of a name.
    pub fn at(&self, name: &str, index: usize) -> u64 {
        self.of(name).get(index).copied().unwrap_or(0)
    }

    /// Reports of a primitive, from counters per bit of their number.
    fn bits(&self, name: &str, primitive: Primitive) -> u64 {
        let first = usize::from(primitive.opcode()) * 8;
        (0..8).map(|bit| self.at(name, first + bit) << bit).sum()
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
pub fn node(name: &str, kept: &SwitchState, counts: &Counts) -> NodeStatistics {
    let mut all: Vec<(String, u64)> = Vec::new();
    let (mut accepted, mut emitted, mut superseded, mut discarded, mut operations, mut lost) =
        (0, 0, 0, 0, 0, 0);
    let mut held_of = Vec::new();
    for primitive in Primitive::ALL {
        let index = usize::from(primitive.opcode());
        let of = |definition: &dta_proto::counter::Definition| definition.of(&[primitive.name()]);
        let taken = counts.at("accepted", index) + counts.at("egress_accepted", index);
        let left = counts.bits("emitted", primitive);
        let mut replaced = counts.bits("egress_superseded", primitive);
        let mut thrown = counts.bits("egress_discarded", primitive);
        if primitive == Primitive::Postcarding {
            replaced += counts.at("superseded", 0);
            thrown += (0..8).map(|bit| counts.at("discarded", bit) << bit).sum::<u64>();
        }
        let gone = counts.at("lost", index);
        let made = counts.at("operations", index);
        held_of.push(taken.saturating_sub(left + replaced + thrown + gone));
        all.push((of(&names::OF_RECEIVED), counts.at("received", index)));
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
        all.push((names::OF_HELD.of(&[primitive.name()]), *held));
    }
    for (index, reason) in REASONS.iter().enumerate() {
        let Some(reason) = reason else { continue };
        let count = counts.at("dropped", index) + counts.at("egress_dropped", index);
        if count != 0 {
            all.push((names::DROPPED.of(&[reason.name()]), count));
        }
    }
    let frames: u64 = counts.of("pair_frames").iter().sum();
    for (number, count) in counts.of("pair_frames").iter().enumerate().filter(|(_, count)| **count != 0) {
        let (collector, purpose) = pair_of(u32::try_from(number).unwrap_or(u32::MAX));
        let collector = if collector == 0 { String::new() } else { collector.to_string() };
        all.push((names::PAIR_SENT.of(&[&collector, purpose.name()]), *count));
    }
    for (number, count) in counts.of("store_frames").iter().enumerate().filter(|(_, count)| **count != 0) {
        let id = kept.places.store_of(u32::try_from(number).unwrap_or(u32::MAX));
        if let Some(store) = id.and_then(|id| kept.applied.store(id)) {
            all.push((names::STORE_FRAMES.of(&[&store.spec.name]), *count));
        }
    }
    let one = |name: &str| counts.at(name, 0);
    let nacked: u64 =
        counts.of("nacked_sequences").iter().enumerate().map(|(bit, count)| count << bit.min(63)).sum();
    all.extend([
        (names::RECEIVED.of(&[]), one("received")),
        // A program sees each packet that its port received.
        (names::LINK_RECEIVED.of(&[names::REPORTS]), one("received")),
        (names::LINK_RECEIVED.of(&[names::ROCE]), counts.of("answers").iter().sum()),
        (names::ACCEPTED.of(&[]), accepted),
        (names::EMITTED.of(&[]), emitted),
        (names::HELD.of(&[]), held_of.iter().sum()),
        (names::SUPERSEDED.of(&[]), superseded),
        (names::DISCARDED.of(&["store_removed"]), discarded),
        (names::OPERATIONS.of(&[]), operations),
        (names::LOST.of(&[]), lost),
        (names::LOST_BY.of(&["queue_pair_down"]), lost),
        (names::FRAMES.of(&[]), frames),
        (names::PARTIAL_ROWS.of(&[]), one("partial_rows")),
        (names::NACKS.of(&[]), one("nacks")),
        (names::NACKED_SEQUENCES.of(&[]), nacked),
        (names::IMMEDIATE_IGNORED.of(&[]), one("immediate_ignored") + one("egress_immediate_ignored")),
    ]);
    let counters = all.into_iter().map(|(name, value)| Counter { name, value }).collect();
    NodeStatistics {
        node: Stage::Translator.node(name),
        counters,
        age_seconds: 0.0,
        session: String::new(),
        life: kept.life,
        time_us: now_us(),
    }
}
