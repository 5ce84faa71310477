//! The numbering of one source: what is missing, came late, or came twice.
//!
//! NetFlow v9 numbers datagrams. NetFlow v5 and IPFIX number records, and a datagram has the number of its
//! first record. So every datagram stands for a run of numbers.
//!
//! softflowd gives an IPFIX message the number after its last record, and does not count options. Two
//! messages in a row reveal that, unless both have the same number of records.

use dta_proto::counter::gaps::{GapCounters, RESTART};

/// How many datagrams are remembered, to tell a repeat from a late one.
const REMEMBERED: usize = 32;

/// How far the uptime of a late datagram may be behind, in milliseconds.
const LATE_UPTIME: u32 = 10_000;
/// How far ahead an uptime that has wrapped around may be, in milliseconds.
const WRAPPED_UPTIME: u32 = 3_600_000;
/// How far behind the numbers of an exporter that does not number options may be.
const UNNUMBERED: u32 = 64;

/// When a datagram was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentTime {
    /// Milliseconds since its exporter's start.
    pub(crate) uptime: Option<u32>,
    /// Seconds since 1970, by the exporter's clock; 0 = not known.
    pub(crate) seconds: u32,
}

impl SentTime {
    /// Whether the exporter restarted between a datagram sent at `newest` and this one: its uptime has gone
    /// back without wrapping around.
    fn is_of_a_new_start(self, newest: SentTime) -> bool {
        let (Some(uptime), Some(newest)) = (self.uptime, newest.uptime) else { return false };
        uptime < newest && newest - uptime >= LATE_UPTIME && uptime.wrapping_sub(newest) >= WRAPPED_UPTIME
    }

    /// Whether it was sent after a datagram sent at `newest`, as far as is known.
    fn is_later(self, newest: SentTime) -> bool {
        self.seconds > newest.seconds && newest.seconds != 0
    }
}

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
    /// When the newest datagram was sent.
    newest: SentTime,
    /// Numbers skipped since the last start that did not arrive later.
    missing: u64,
    pub(crate) counters: GapCounters,
}

impl Sequence {
    /// Records a datagram with `count` numbers from `first` on; `None` if the count is unknown.
    pub(crate) fn note_datagram(&mut self, first: u32, count: Option<u32>, sent: SentTime) {
        let newest = self.newest;
        if sent
            .uptime
            .is_some_and(|uptime| newest.uptime.is_none_or(|newest| uptime.wrapping_sub(newest) < 1 << 31))
        {
            self.newest.uptime = sent.uptime;
        }
        self.newest.seconds = newest.seconds.max(sent.seconds);
        let after = count.map(|count| first.wrapping_add(count));
        let Some(next) = self.next else {
            self.next = after;
            return self.remember_datagram(first, count);
        };
        let (ahead, behind) = (first.wrapping_sub(next), next.wrapping_sub(first));
        let is_renumbered =
            ahead >= RESTART && behind > UNNUMBERED && count != Some(0) && sent.is_later(newest);
        let restarts = sent.is_of_a_new_start(newest) || is_renumbered;
        if restarts || ahead >= RESTART && behind > RESTART {
            self.counters.restarts += 1;
            self.count = 0;
            self.missing = 0;
            self.newest = sent;
            self.next = after;
        } else if ahead < RESTART {
            self.counters.gaps += u64::from(ahead);
            self.missing += u64::from(ahead);
            self.next = after;
        } else if count == Some(0) {
            // An empty datagram has no number of its own.
            return;
        } else if self.recent[..self.count.min(REMEMBERED)].contains(&first) {
            self.counters.repeats += 1;
            return;
        } else if self.missing == 0 {
            // It fills no gap: it is an old one again, or its exporter numbers differently.
            if behind <= UNNUMBERED && sent.is_later(newest) {
                self.next = after;
            } else {
                self.counters.repeats += 1;
            }
            return;
        } else {
            let filled = u64::from(count.unwrap_or(0)).min(self.missing);
            self.missing -= filled;
            self.counters.gaps_filled += filled;
        }
        self.remember_datagram(first, count);
    }

    /// Records an IPFIX message and its numbers of data records and of options; `None` if they are unknown.
    pub(crate) fn note_message(&mut self, number: u32, contents: Option<(u32, u32)>, sent: SentTime) {
        let Some((records, options)) = contents else {
            self.last = None;
            return self.note_datagram(number, None, sent);
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
            Some(true) => self.note_datagram(number.wrapping_sub(records), Some(records), sent),
            _ => self.note_datagram(number, Some(records.wrapping_add(options)), sent),
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
        datagrams
            .iter()
            .for_each(|(first, count)| sequence.note_datagram(*first, *count, SentTime::default()));
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
            sequence.note_message(number, Some(contents), SentTime::default());
        }
        assert_eq!(sequence.counters, GapCounters::default());
        // 30 are lost, and 12 of them come late.
        sequence.note_message(184, Some((20, 0)), SentTime::default());
        sequence.note_message(146, Some((12, 0)), SentTime::default());
        let counted = sequence.counters;
        assert_eq!((counted.gaps, counted.gaps_filled, counted.repeats), (30, 12, 0));
        // By their first record, as RFC 7011 has it.
        let mut sequence = Sequence::default();
        for (number, contents) in
            [(0, (0, 0)), (0, (21, 1)), (22, (27, 0)), (49, (26, 1)), (86, (5, 0)), (91, (5, 0))]
        {
            sequence.note_message(number, Some(contents), SentTime::default());
        }
        assert_eq!(sequence.counters.gaps, 10);
        // After one of unknown length nothing is known to be missing, whichever way they are numbered.
        for (number, contents) in [(96, None), (200, Some((3, 0))), (203, Some((2, 0)))] {
            sequence.note_message(number, contents, SentTime::default());
        }
        assert_eq!(sequence.counters.gaps, 10);
    }

    #[test]
    fn a_restart_is_known_by_uptime_by_time_and_by_number() {
        let counted = |datagrams: &[(u32, Option<u32>, u32)]| {
            let mut sequence = Sequence::default();
            for (first, uptime, seconds) in datagrams {
                sequence.note_datagram(*first, Some(1), SentTime { uptime: *uptime, seconds: *seconds });
            }
            let GapCounters { gaps, gaps_filled, repeats, restarts } = sequence.counters;
            (gaps, gaps_filled, repeats, restarts)
        };
        let up = |milliseconds| Some(milliseconds);
        // By uptime, below number 65,536, with one missing behind it.
        let datagrams = [(300, up(90_000), 0), (301, up(91_000), 0), (0, up(500), 0), (2, up(600), 0)];
        assert_eq!(counted(&datagrams), (1, 0, 0, 1));
        // An exporter that goes on numbering.
        assert_eq!(counted(&[(300, up(90_000), 0), (310, up(500), 0)]), (0, 0, 0, 1));
        // One that is late by less than ten seconds, and an uptime that wraps around.
        assert_eq!(counted(&[(300, up(9000), 0), (302, up(9500), 0), (301, up(100), 0)]), (1, 1, 0, 0));
        assert_eq!(counted(&[(300, up(u32::MAX - 9), 0), (301, up(20), 0)]), (0, 0, 0, 0));
        assert_eq!(
            counted(&[(300, up(u32::MAX - 9), 0), (0, up(90_000_000), 0)]),
            (0, 0, 0, 1),
            "no wrap takes a day"
        );
        // By time, where there is no uptime.
        assert_eq!(counted(&[(5000, None, 70), (0, None, 99), (1, None, 100)]), (0, 0, 0, 1));
        assert_eq!(counted(&[(5000, None, 70), (0, None, 70)]), (0, 0, 1, 0), "an old one again");
        // An exporter that does not number its options is behind each time.
        assert_eq!(
            counted(&[(5000, None, 70), (5000, None, 70), (4999, None, 71), (5000, None, 72)]),
            (0, 0, 1, 0)
        );
    }

    proptest! {
        /// What arrives late is never more than what was missing.
        #[test]
        fn gaps_are_never_negative(datagrams in prop::collection::vec((any::<u8>(), 0u32..40, any::<u8>(), 0u32..3), 1..200)) {
            let mut sequence = Sequence::default();
            for (first, count, uptime, seconds) in datagrams {
                let sent = SentTime { uptime: (uptime > 9).then_some(u32::from(uptime) * 7000), seconds };
                sequence.note_datagram(u32::from(first) * 9, Some(count), sent);
                prop_assert!(sequence.counters.gaps_filled <= sequence.counters.gaps);
            }
        }

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
            arriving.iter().for_each(|(first, count)| sequence.note_datagram(*first, Some(*count), SentTime::default()));
            let counted = sequence.counters;
            prop_assert_eq!((counted.gaps - counted.gaps_filled, counted.repeats), (lost.into(), repeats));
        }
    }
}
