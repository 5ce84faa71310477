//! Counters of the data plane, named as in [`dta_proto::counter::translator`].
//!
//! The unit is the report unless a name says otherwise. At any time, per primitive and in sum:
//! `received = accepted + sum(dropped.*)` and `accepted = emitted + held + superseded +
//! sum(discarded.*)`; and `frames = idle_frames + sum(store.*.frames)`.

use dta_proto::counter::translator as names;
pub use dta_proto::counter::{Discard, LossCause, Reason};
use dta_proto::program::Primitive;

dta_proto::counters! {
    /// Counters of one primitive.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PrimitiveCounters {
        /// Reports decoded as this primitive.
        pub received: u64,
        /// Of these, accepted.
        pub accepted: u64,
        /// Accepted and turned into operations.
        pub emitted: u64,
        /// Accepted, but replaced by a later one before it was sent.
        pub superseded: u64,
        /// Accepted, waiting for the rest of their batch, row or column.
        pub held: u64,
        /// Operations made, copies included.
        pub operations: u64,
        /// Operations saved by summing increments of one counter.
        pub coalesced: u64,
        /// Emitted reports known to be lost on a queue pair: every copy, or for a counter any copy.
        pub lost_reports: u64,
        /// Operations known to be lost on a queue pair.
        pub lost_operations: u64,
    }
}

/// All counters of the data plane.
#[derive(Clone, Debug, Default)]
pub struct EngineCounters {
    /// Datagrams received as reports, decodable or not.
    pub received: u64,
    /// By primitive, in the order of [`Primitive::ALL`].
    pub primitives: [PrimitiveCounters; Primitive::ALL.len()],
    dropped: [u64; Reason::ALL.len()],
    discarded: [u64; Discard::ALL.len()],
    lost: [(u64, u64); LossCause::ALL.len()],
    pub nacks: u64,
    /// Sequences asked for in them.
    pub nacked_sequences: u64,
    /// NACK datagrams not sent because their reporter exceeded its budget.
    pub nacks_withheld: u64,
    /// Sequences skipped by version-0 reporters, as far as their retransmittable reports show.
    pub version0_gaps: u64,
    /// Postcard rows sent with hops missing: the flush time ran out, or another key needed their place.
    pub partial_rows: u64,
    /// Postcards that came after their row was sent, and were merged with it.
    pub joined_postcards: u64,
    /// Accepted reports with the immediate flag for stores that wake no reader.
    pub immediate_ignored: u64,
    /// Frames handed to the link, retransmissions on RC included.
    pub frames: u64,
    /// Of these, zero-length WRITEs in place of operations whose store is gone.
    pub idle_frames: u64,
    /// Of the frames, list batches resent on another UC queue pair.
    pub repeated_frames: u64,
    /// Frames handed to the link by the store they write to: name, frames.
    /// A removed store stays in the list.
    pub stores: Vec<(String, u64)>,
}

impl EngineCounters {
    /// Counts frames for the store at this place in `stores`.
    #[inline]
    pub(crate) fn count_frames(&mut self, store: usize, frames: u64) {
        self.frames += frames;
        if let Some((_, count)) = self.stores.get_mut(store) {
            *count += frames;
        }
    }

    pub fn dropped_reports(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    #[cfg(test)]
    pub(crate) fn discarded(&self, reason: Discard) -> u64 {
        self.discarded[reason as usize]
    }

    /// Reports and operations lost by a cause.
    pub fn lost_by_cause(&self, cause: LossCause) -> (u64, u64) {
        self.lost[cause as usize]
    }

    pub(crate) fn count_lost(&mut self, cause: LossCause, primitive: Primitive, reports: u64) {
        let entry = &mut self.lost[cause as usize];
        entry.0 += reports;
        entry.1 += 1;
        let p = self.primitive_counters_mut(primitive);
        p.lost_reports += reports;
        p.lost_operations += 1;
    }

    pub(crate) fn count_dropped(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }

    pub(crate) fn count_discarded(&mut self, reason: Discard, reports: u64) {
        self.discarded[reason as usize] += reports;
    }

    /// Where a store's frames are counted in [`EngineCounters::stores`].
    pub(crate) fn place_of_store(&mut self, name: &str) -> usize {
        if let Some(place) = self.stores.iter().position(|(known, _)| known == name) {
            return place;
        }
        self.stores.push((name.to_owned(), 0));
        self.stores.len() - 1
    }

    pub(crate) fn primitive_counters_mut(&mut self, primitive: Primitive) -> &mut PrimitiveCounters {
        &mut self.primitives[primitive.index()]
    }

    /// Adds another data plane's counters.
    pub fn add(&mut self, other: &EngineCounters) {
        self.received += other.received;
        for (own, more) in self.primitives.iter_mut().zip(&other.primitives) {
            own.add(more);
        }
        self.dropped.iter_mut().zip(other.dropped).for_each(|(own, more)| *own += more);
        self.discarded.iter_mut().zip(other.discarded).for_each(|(own, more)| *own += more);
        for (own, more) in self.lost.iter_mut().zip(&other.lost) {
            *own = (own.0 + more.0, own.1 + more.1);
        }
        self.nacks += other.nacks;
        self.nacked_sequences += other.nacked_sequences;
        self.nacks_withheld += other.nacks_withheld;
        self.version0_gaps += other.version0_gaps;
        self.partial_rows += other.partial_rows;
        self.joined_postcards += other.joined_postcards;
        self.immediate_ignored += other.immediate_ignored;
        self.frames += other.frames;
        self.idle_frames += other.idle_frames;
        self.repeated_frames += other.repeated_frames;
        for (name, frames) in &other.stores {
            let place = self.place_of_store(name);
            self.stores[place].1 += frames;
        }
    }

    fn sum(&self, field: impl Fn(&PrimitiveCounters) -> u64) -> u64 {
        self.primitives.iter().map(field).sum()
    }

    /// What does not add up; `None` when every report is accounted for exactly once.
    pub fn find_imbalance(&self) -> Option<String> {
        let dropped: u64 = self.dropped.iter().sum();
        let discarded: u64 = self.discarded.iter().sum();
        let accepted = self.sum(|p| p.accepted);
        if self.received != accepted + dropped {
            return Some(format!(
                "received {} is not accepted {accepted} + dropped {dropped}",
                self.received
            ));
        }
        let to_stores: u64 = self.stores.iter().map(|(_, frames)| frames).sum();
        if self.frames != self.idle_frames + to_stores {
            return Some(format!(
                "frames {} is not idle {} + frames of stores {to_stores}",
                self.frames, self.idle_frames
            ));
        }
        let (emitted, held, superseded) =
            (self.sum(|p| p.emitted), self.sum(|p| p.held), self.sum(|p| p.superseded));
        if accepted != emitted + held + superseded + discarded {
            return Some(format!(
                "accepted {accepted} is not emitted {emitted} + held {held} + superseded {superseded} + discarded {discarded}"
            ));
        }
        None
    }

    /// Every counter by its dotted name, without rare reasons that are zero.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let all = [
            (&names::RECEIVED, self.received),
            (&names::ACCEPTED, self.sum(|p| p.accepted)),
            (&names::EMITTED, self.sum(|p| p.emitted)),
            (&names::HELD, self.sum(|p| p.held)),
            (&names::SUPERSEDED, self.sum(|p| p.superseded)),
            (&names::OPERATIONS, self.sum(|p| p.operations)),
            (&names::FRAMES, self.frames),
            (&names::IDLE_FRAMES, self.idle_frames),
            (&names::REPEATED_FRAMES, self.repeated_frames),
            (&names::NACKS, self.nacks),
            (&names::NACKED_SEQUENCES, self.nacked_sequences),
            (&names::NACKS_WITHHELD, self.nacks_withheld),
            (&names::VERSION0_GAPS, self.version0_gaps),
            (&names::PARTIAL_ROWS, self.partial_rows),
            (&names::JOINED_POSTCARDS, self.joined_postcards),
            (&names::IMMEDIATE_IGNORED, self.immediate_ignored),
            (&names::LOST, self.sum(|p| p.lost_reports)),
            (&names::LOST_OPERATIONS, self.sum(|p| p.lost_operations)),
        ];
        let mut list: Vec<(String, u64)> =
            all.into_iter().map(|(counter, value)| (counter.format_name(&[]), value)).collect();
        for (reason, count) in Reason::ALL.iter().zip(&self.dropped).filter(|(_, c)| **c != 0) {
            list.push((names::DROPPED.format_name(&[reason.name()]), *count));
        }
        for (reason, count) in Discard::ALL.iter().zip(&self.discarded).filter(|(_, c)| **c != 0) {
            list.push((names::DISCARDED.format_name(&[reason.name()]), *count));
        }
        for (cause, (reports, operations)) in LossCause::ALL.iter().zip(&self.lost).filter(|(_, l)| l.1 != 0)
        {
            list.push((names::LOST_BY.format_name(&[cause.name()]), *reports));
            list.push((names::LOST_OPERATIONS_BY.format_name(&[cause.name()]), *operations));
        }
        for (primitive, p) in Primitive::ALL.iter().zip(&self.primitives) {
            let of_primitive = [
                (&names::OF_RECEIVED, p.received),
                (&names::OF_ACCEPTED, p.accepted),
                (&names::OF_EMITTED, p.emitted),
                (&names::OF_HELD, p.held),
                (&names::OF_SUPERSEDED, p.superseded),
                (&names::OF_OPERATIONS, p.operations),
                (&names::OF_COALESCED, p.coalesced),
                (&names::OF_LOST, p.lost_reports),
                (&names::OF_LOST_OPERATIONS, p.lost_operations),
            ];
            list.extend(
                of_primitive
                    .map(|(counter, value)| (counter.format_name(&[primitive.canonical_name()]), value)),
            );
        }
        let stores = self.stores.iter();
        list.extend(stores.map(|(store, frames)| (names::STORE_FRAMES.format_name(&[store]), *frames)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::counter::{CounterKind, CounterNode};

    #[test]
    fn counters_of_two_data_planes_are_added_under_every_name() {
        let mut one = EngineCounters { stores: vec![("flows".into(), 1)], ..EngineCounters::default() };
        Reason::ALL.iter().for_each(|reason| one.count_dropped(*reason));
        Discard::ALL.iter().for_each(|reason| one.count_discarded(*reason, 1));
        LossCause::ALL.iter().for_each(|cause| one.count_lost(*cause, Primitive::Append, 1));
        for primitive in Primitive::ALL {
            let p = one.primitive_counters_mut(primitive);
            (p.received, p.accepted, p.emitted, p.superseded, p.held) = (1, 2, 3, 4, 5);
            (p.operations, p.coalesced) = (6, 7);
        }
        (one.received, one.nacks, one.nacked_sequences, one.nacks_withheld) = (1, 2, 3, 4);
        (one.version0_gaps, one.partial_rows, one.joined_postcards) = (5, 6, 7);
        (one.immediate_ignored, one.frames, one.idle_frames) = (8, 9, 10);
        let mut two = one.clone();
        two.stores.insert(0, ("paths".into(), 4));
        two.add(&one);
        for (name, count) in one.named_counters() {
            let sum = two.named_counters().into_iter().find(|(other, _)| *other == name).map(|(_, sum)| sum);
            assert_eq!(sum, Some(2 * count), "{name}");
        }
        assert_eq!(two.stores, [("paths".to_owned(), 4), ("flows".to_owned(), 2)]);
    }

    #[test]
    fn every_counter_of_the_data_plane_is_defined_and_those_that_wait_may_fall() {
        let mut counters = EngineCounters { stores: vec![("flows".into(), 1)], ..EngineCounters::default() };
        Reason::ALL.iter().for_each(|reason| counters.count_dropped(*reason));
        Discard::ALL.iter().for_each(|reason| counters.count_discarded(*reason, 1));
        LossCause::ALL.iter().for_each(|cause| counters.count_lost(*cause, Primitive::Append, 1));
        let named = counters.named_counters();
        assert!(
            named.len()
                > 16 + 9 * Primitive::ALL.len()
                    + Reason::ALL.len()
                    + Discard::ALL.len()
                    + 2 * LossCause::ALL.len()
        );
        for (name, _) in &named {
            let found = CounterNode::Translator
                .find_counter(name)
                .unwrap_or_else(|| panic!("{name} has no definition"));
            assert!(found.known, "{name}");
            assert_eq!(
                found.definition.kind == CounterKind::Counter,
                name != "held" && !name.ends_with(".held"),
                "{name}"
            );
        }
    }
}
