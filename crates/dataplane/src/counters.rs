//! Counters of the data plane, named as in [`dta_proto::counter::translator`].
//!
//! The unit is the report unless a name says otherwise. At any time, per primitive and in sum:
//! `received = accepted + sum(dropped.*)` and `accepted = emitted + held + superseded +
//! sum(discarded.*)`; and `frames = idle_frames + sum(store.*.frames)`.

use dta_proto::counter::translator as names;
pub use dta_proto::counter::{Discard, LossCause, Reason};
use dta_proto::program::Primitive;

dta_proto::published_counters! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PrimitiveCounters(primitive) {
        pub received: u64 = names::OF_RECEIVED,
        pub accepted: u64 = names::OF_ACCEPTED,
        pub emitted: u64 = names::OF_EMITTED,
        pub held: u64 = names::OF_HELD,
        pub superseded: u64 = names::OF_SUPERSEDED,
        pub operations: u64 = names::OF_OPERATIONS,
        pub coalesced: u64 = names::OF_COALESCED,
        /// Every copy was lost, or for a counter any copy.
        pub lost_reports: u64 = names::OF_LOST,
        pub lost_operations: u64 = names::OF_LOST_OPERATIONS,
    }
}

dta_proto::published_counters! {
    #[derive(Clone, Debug, Default)]
    pub struct EngineCounters {
        pub received: u64 = names::RECEIVED,
        pub frames: u64 = names::FRAMES,
        pub idle_frames: u64 = names::IDLE_FRAMES,
        pub repeated_frames: u64 = names::REPEATED_FRAMES,
        pub nacks: u64 = names::NACKS,
        pub nacked_sequences: u64 = names::NACKED_SEQUENCES,
        pub nacks_withheld: u64 = names::NACKS_WITHHELD,
        pub version0_gaps: u64 = names::VERSION0_GAPS,
        pub partial_rows: u64 = names::PARTIAL_ROWS,
        pub joined_postcards: u64 = names::JOINED_POSTCARDS,
        pub immediate_ignored: u64 = names::IMMEDIATE_IGNORED,
    }
    by {
        dropped: Reason = names::DROPPED,
        discarded: Discard = names::DISCARDED,
        lost_reports: LossCause = names::LOST_BY,
        lost_operations: LossCause = names::LOST_OPERATIONS_BY,
    }
    and {
        /// By primitive, in the order of [`Primitive::ALL`].
        pub primitives: [PrimitiveCounters; Primitive::ALL.len()],
        /// Frames handed to the link by the store they write to: name, frames.
        /// A removed store stays in the list.
        pub stores: Vec<(String, u64)>,
    }
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
        (self.lost_reports[cause as usize], self.lost_operations[cause as usize])
    }

    pub(crate) fn count_lost(&mut self, cause: LossCause, primitive: Primitive, reports: u64) {
        self.lost_reports[cause as usize] += reports;
        self.lost_operations[cause as usize] += 1;
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

    pub fn add(&mut self, other: &EngineCounters) {
        self.add_fields(other);
        self.primitives.iter_mut().zip(&other.primitives).for_each(|(own, more)| own.add(more));
        for (name, frames) in &other.stores {
            let place = self.place_of_store(name);
            self.stores[place].1 += frames;
        }
    }

    fn sum_primitives(&self) -> PrimitiveCounters {
        let mut sum = PrimitiveCounters::default();
        self.primitives.iter().for_each(|primitive| sum.add(primitive));
        sum
    }

    /// Says what does not add up; `None` when every report is accounted for exactly once.
    pub fn find_imbalance(&self) -> Option<String> {
        let dropped: u64 = self.dropped.iter().sum();
        let discarded: u64 = self.discarded.iter().sum();
        let PrimitiveCounters { accepted, emitted, held, superseded, .. } = self.sum_primitives();
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
        if accepted != emitted + held + superseded + discarded {
            return Some(format!(
                "accepted {accepted} is not emitted {emitted} + held {held} + superseded {superseded} + discarded {discarded}"
            ));
        }
        None
    }

    /// Every counter by its dotted name, without rare reasons that are zero.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let sum = self.sum_primitives();
        let totals = [
            (&names::ACCEPTED, sum.accepted),
            (&names::EMITTED, sum.emitted),
            (&names::HELD, sum.held),
            (&names::SUPERSEDED, sum.superseded),
            (&names::OPERATIONS, sum.operations),
            (&names::LOST, sum.lost_reports),
            (&names::LOST_OPERATIONS, sum.lost_operations),
        ];
        let mut list = self.named_fields();
        list.extend(totals.map(|(counter, value)| (counter.format_name(&[]), value)));
        for (primitive, counters) in Primitive::ALL.iter().zip(&self.primitives) {
            list.extend(counters.named_counters(primitive.canonical_name()));
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
