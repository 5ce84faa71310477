//! The numbering of one source: what is missing, came late, or came twice.
//!
//! NetFlow v9 numbers datagrams; NetFlow v5 and IPFIX number records, and a datagram has the number of its first one. So
//! every datagram stands for a run of numbers.
//!
//! softflowd gives an IPFIX message the number after its last record, and does not count options. That shows in two messages in
//! a row, unless both have as many records.

use dta_proto::counter::gaps::{GapCounters, RESTART};

/// Datagrams that are remembered, to tell a repeat from one that is late.
const REMEMBERED: usize = 32;

/// The numbering of one source.
#[derive(Default)]
pub(crate) struct Sequence {
    /// The number that the next datagram must have; `None` if it cannot be known.
    next: Option<u32>,
    /// First numbers of the last datagrams, the oldest overwritten first.
    recent: [u32; REMEMBERED],
    /// Datagrams that were put there.
    count: usize,
    /// Number, records and options of the last message of IPFIX.
    last: Option<(u32, u32, u32)>,
    /// Whether these messages have the number after their last record; `None` = not known yet.
    by_end: Option<bool>,
    pub(crate) counters: GapCounters,
}

impl Sequence {
    /// Records a datagram with `count` numbers from `first` on; `None` if it is not known how many.
    pub(crate) fn note_datagram(&mut self, first: u32, count: Option<u32>) {
        let after = count.map(|count| first.wrapping_add(count));
        let Some(next) = self.next else {
            self.next = after;
            return self.remember_datagram(first, count);
        };
        let (ahead, behind) = (first.wrapping_sub(next), next.wrapping_sub(first));
        if ahead < RESTART {
            self.counters.gaps += u64::from(ahead);
            self.next = after;
        } else if behind > RESTART {
            self.counters.restarts += 1;
            self.count = 0;
            self.next = after;
        } else if count == Some(0) {
            // It has no number of its own.
            return;
        } else if self.recent[..self.count.min(REMEMBERED)].contains(&first) {
            self.counters.repeats += 1;
            return;
        } else {
            self.counters.gaps_filled += u64::from(count.unwrap_or(0));
        }
        self.remember_datagram(first, count);
    }

    /// Records a message of IPFIX with so many records of data and of options; `None` if it is not known how many.
    pub(crate) fn note_message(&mut self, number: u32, contents: Option<(u32, u32)>) {
        let Some((records, options)) = contents else {
            self.last = None;
            return self.note_datagram(number, None);
        };
        if self.by_end.is_none()
            && let Some((before, old_records, old_options)) = self.last
        {
            let by_first = number == before.wrapping_add(old_records).wrapping_add(old_options);
            let by_end = number == before.wrapping_add(records);
            if by_first != by_end {
                self.by_end = Some(by_end);
                self.next = if by_end { Some(before) } else { self.next };
            }
        }
        self.last = Some((number, records, options));
        match self.by_end {
            Some(true) => self.note_datagram(number.wrapping_sub(records), Some(records)),
            _ => self.note_datagram(number, Some(records.wrapping_add(options))),
        }
    }

    fn remember_datagram(&mut self, first: u32, count: Option<u32>) {
        if count != Some(0) {
            self.recent[self.count % REMEMBERED] = first;
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(datagrams: &[(u32, Option<u32>)]) -> GapCounters {
        let mut sequence = Sequence::default();
        datagrams.iter().for_each(|(first, count)| sequence.note_datagram(*first, *count));
        sequence.counters
    }

    #[test]
    fn gaps_late_ones_and_repeats() {
        let counted =
            of(&[(5, 1), (6, 1), (9, 1), (8, 1), (8, 1), (10, 1)].map(|(n, count)| (n, Some(count))));
        assert_eq!((counted.gaps, counted.gaps_filled, counted.repeats), (2, 1, 1));
        // Records: 30 are missing, and come late.
        let counted =
            of(&[(0, 30), (60, 30), (30, 30), (90, 0), (90, 7), (97, 0)].map(|(n, count)| (n, Some(count))));
        assert_eq!((counted.gaps, counted.gaps_filled, counted.repeats), (30, 30, 0));
    }

    #[test]
    fn numbers_wrap_and_restart() {
        assert_eq!(of(&[(u32::MAX, Some(1)), (1, Some(1))]).gaps, 1);
        let counted = of(&[(1_000_000, Some(1)), (1, Some(1)), (2, Some(1)), (4, Some(1))]);
        assert_eq!((counted.restarts, counted.gaps), (1, 1));
    }

    #[test]
    fn after_a_datagram_of_unknown_length_nothing_is_known_to_be_missing() {
        assert_eq!(of(&[(1, Some(1)), (2, None), (9, Some(1)), (11, Some(1))]).gaps, 1);
    }

    #[test]
    fn messages_may_be_numbered_by_their_end() {
        // As softflowd numbers: 21, 27, 26 and 28 records, the first with an option, as has the last.
        let mut sequence = Sequence::default();
        for (number, contents) in
            [(21, (21, 1)), (48, (27, 0)), (74, (26, 0)), (102, (28, 0)), (134, (32, 1))]
        {
            sequence.note_message(number, Some(contents));
        }
        assert_eq!(sequence.counters, GapCounters::default());
        // 30 are lost, and 12 of them come late.
        sequence.note_message(184, Some((20, 0)));
        sequence.note_message(146, Some((12, 0)));
        let counted = sequence.counters;
        assert_eq!((counted.gaps, counted.gaps_filled, counted.repeats), (30, 12, 0));
        // By their first record, as RFC 7011 has it.
        let mut sequence = Sequence::default();
        for (number, contents) in
            [(0, (0, 0)), (0, (21, 1)), (22, (27, 0)), (49, (26, 1)), (86, (5, 0)), (91, (5, 0))]
        {
            sequence.note_message(number, Some(contents));
        }
        assert_eq!(sequence.counters.gaps, 10);
        // After one of unknown length nothing is known to be missing, whichever way they are numbered.
        for (number, contents) in [(96, None), (200, Some((3, 0))), (203, Some((2, 0)))] {
            sequence.note_message(number, contents);
        }
        assert_eq!(sequence.counters.gaps, 10);
    }

    proptest! {
        /// Datagrams of any length, some lost, some repeated, neighbours exchanged: gaps less those filled are those lost
        /// before the last that arrived.
        #[test]
        fn what_is_missing_is_what_was_lost(
            datagrams in prop::collection::vec((1u32..40, 0u8..10), 1..200),
            begin in any::<u32>(),
        ) {
            let (mut at, mut sent) = (begin, Vec::new());
            for (n, (count, fate)) in datagrams.iter().enumerate() {
                // The first arrives, so that the beginning is known.
                sent.push((at, *count, if n == 0 { 9 } else { *fate }));
                at = at.wrapping_add(*count);
            }
            let mut arriving = Vec::new();
            let (mut repeats, mut last) = (0, 0);
            for (n, (first, count, fate)) in sent.iter().enumerate() {
                if *fate > 2 {
                    arriving.push((*first, *count));
                    last = n;
                }
                if *fate == 3 {
                    arriving.push((*first, *count));
                    repeats += 1;
                }
            }
            for n in (1..arriving.len().saturating_sub(2)).step_by(5) {
                arriving.swap(n, n + 1);
            }
            let lost: u32 = sent[..last].iter().filter(|(.., fate)| *fate <= 2).map(|(_, count, _)| count).sum();
            let mut sequence = Sequence::default();
            arriving.iter().for_each(|(first, count)| sequence.note_datagram(*first, Some(*count)));
            let counted = sequence.counters;
            prop_assert_eq!((counted.gaps - counted.gaps_filled, counted.repeats), (lost.into(), repeats));
        }
    }
}
