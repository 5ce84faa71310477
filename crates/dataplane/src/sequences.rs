//! Sequences of one reporter: which reports to accept, and where the sequence stands.
//!
//! There is one window, whatever socket a report comes from. A report far from the newest sequence may follow
//! a long gap, be the first after a restart, or be bogus: as in RFC 3550, A.1, the window moves there when the
//! next report agrees.

use super::budget::{Budget, Rate};
use super::reporters::{Admission, Missing, PackedSocketAddr, ReporterCounters};
use super::window::{HALF, SequenceWindow, Verdict, WINDOW};

/// After this many reports behind the window from the reporter's own socket, with none accepted in between,
/// the window moves to them: the reporter counts from elsewhere, and none of its reports that said so
/// arrived. It is more than one NACK can ask for, so that a late answer does not look like this.
const STRANGERS: u32 = WINDOW;
/// The second report agrees with the first if it is at most this far ahead of it.
const AGREE: u32 = 256;
/// A jump from a new socket continues the same count if it is at most this long; otherwise the reporter has
/// restarted.
const SAME_COUNT: u32 = 1 << 16;
/// Limit of NACKs for one reporter.
const NACKS: Rate = Rate::per_second(10_000, 10_000);
/// No sequence: the next report takes the slow path.
const UNEXPECTED: u64 = u64::MAX;

/// The parts of a report that matter for its sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceArrival {
    pub(crate) sequence: u32,
    pub(crate) restarted: bool,
    pub(crate) retransmittable: bool,
    pub(crate) source: PackedSocketAddr,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequences {
    pub(crate) counters: ReporterCounters,
    /// When it was last heard.
    pub(crate) last_heard: u64,
    /// Whether a second report agreed with the first.
    pub(crate) confirmed: bool,
    /// Source of the report that moved the window last.
    source: PackedSocketAddr,
    /// The next sequence, if only the window need be checked; else [`UNEXPECTED`].
    expected: u64,
    window: SequenceWindow,
    candidate: Option<Candidate>,
    strangers: u32,
    /// Whether it is known to have restarted since, or at, its first report.
    began_anew: bool,
    /// How far it was heard before its first report here, until a second report agrees.
    earlier: Option<u32>,
    nacks: Budget,
}

/// A report outside the window. If the next one agrees with it, the window moves there.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    sequence: u32,
    source: PackedSocketAddr,
    /// Whether it was accepted, because it announced a restart.
    taken: bool,
    /// `received` when it, or a repeat, arrived.
    mark: u64,
}

impl Candidate {
    fn agrees_with(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.sequence) <= AGREE || self.sequence.wrapping_sub(sequence) < WINDOW
    }
}

impl Sequences {
    /// For a reporter heard for the first time, whose report is accepted.
    pub(crate) fn new(now: u64, first: &SequenceArrival, earlier: Option<u32>) -> Self {
        Sequences {
            counters: ReporterCounters { received: 1, ..Default::default() },
            last_heard: now,
            confirmed: false,
            source: first.source,
            expected: UNEXPECTED,
            window: SequenceWindow::new(first.sequence),
            candidate: None,
            strangers: 0,
            began_anew: first.restarted,
            earlier,
            nacks: Budget::default(),
        }
    }

    pub(crate) fn newest_sequence(&self) -> u32 {
        self.window.newest_sequence()
    }

    /// Sets how far it was heard before: everything in between is missing.
    pub(crate) fn heard_earlier(&mut self, newest: u32) {
        self.earlier = Some(newest);
        if self.confirmed {
            self.count_since_earlier();
        }
    }

    /// Whether the report that moved the window last came from this source.
    pub(crate) fn is_from_source(&self, source: PackedSocketAddr) -> bool {
        self.source == source
    }

    /// Accepts a report if it is the next in sequence, as nearly all are.
    #[inline]
    pub(crate) fn take_expected(&mut self, now: u64, arrival: &SequenceArrival) -> bool {
        if u64::from(arrival.sequence) != self.expected || arrival.source != self.source {
            return false;
        }
        self.counters.received += 1;
        self.last_heard = now;
        self.window.advance_by_one();
        self.expected = arrival.sequence.wrapping_add(1).into();
        true
    }

    pub(crate) fn admit_arrival(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        self.counters.received += 1;
        self.last_heard = now;
        let admission = self.consider_arrival(now, arrival);
        let plain = self.confirmed && self.strangers == 0;
        self.expected = if plain { self.window.newest_sequence().wrapping_add(1).into() } else { UNEXPECTED };
        admission
    }

    /// Judges any report by the rules of a switch, which knows only the next sequence: all are accepted, and
    /// skipped sequences are requested.
    pub(crate) fn admit_in_reference(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        let &SequenceArrival { sequence, restarted, retransmittable, source } = arrival;
        self.counters.received += 1;
        self.last_heard = now;
        self.confirmed = true;
        self.source = source;
        let missing = sequence.wrapping_sub(self.window.newest_sequence()).wrapping_sub(1);
        if restarted && missing != 0 {
            self.counters.restarts += 1;
        } else if missing >= HALF {
            return Admission::Apply(None);
        }
        self.window = SequenceWindow::new(sequence);
        self.expected = sequence.wrapping_add(1).into();
        if restarted || missing == 0 {
            return Admission::Apply(None);
        }
        self.counters.gaps += u64::from(missing);
        if !retransmittable {
            return Admission::Apply(None);
        }
        self.counters.nacks += 1;
        let count = missing.min(WINDOW - 1);
        Admission::Apply(Some(Missing { first: sequence.wrapping_sub(count), count: count as u16 }))
    }

    /// The same reporter at its position, without what was seen before.
    pub(crate) fn without_history(&self) -> Self {
        let Sequences { counters, last_heard, confirmed, source, .. } = *self;
        let newest = SequenceArrival {
            sequence: self.newest_sequence(),
            restarted: false,
            retransmittable: false,
            source,
        };
        Sequences { counters, confirmed, ..Sequences::new(last_heard, &newest, None) }
    }

    fn consider_arrival(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        let &SequenceArrival { sequence, restarted, source, .. } = arrival;
        let near = self.window.is_near(sequence);
        if let Some(candidate) = &mut self.candidate
            && candidate.sequence == sequence
            && candidate.source == source
            && (candidate.taken || !near)
        {
            candidate.mark = self.counters.received;
            return if candidate.taken { self.duplicate() } else { self.out_of_window() };
        }
        if let Some(candidate) = self.candidate
            && candidate.mark + 1 == self.counters.received
            && candidate.agrees_with(sequence)
            && (!near || candidate.taken && candidate.source == source)
        {
            return self.move_window(now, arrival, candidate);
        }
        if restarted && self.begins_run(arrival) {
            self.note_candidate(arrival, true);
            return Admission::Apply(None);
        }
        if !self.confirmed && near && !self.window.has_seen(sequence) {
            self.mark_confirmed();
        }
        match self.window.offer_sequence(sequence) {
            Verdict::New { missing } => {
                self.strangers = 0;
                self.source = source;
                self.counters.gaps += u64::from(missing);
                self.request_missing(now, arrival, missing)
            }
            Verdict::Late { fills } => {
                self.strangers = 0;
                self.counters.gaps_filled += u64::from(fills);
                Admission::Apply(None)
            }
            Verdict::Duplicate => self.duplicate(),
            Verdict::Ahead => {
                self.note_candidate(arrival, false);
                self.out_of_window()
            }
            Verdict::Behind => self.consider_behind(arrival),
        }
    }

    /// Whether a report that announces a restart belongs to another run than the window's: reports of the
    /// same run are in the window, and a new process has a socket of its own.
    fn begins_run(&self, arrival: &SequenceArrival) -> bool {
        let ahead = arrival.sequence.wrapping_sub(self.window.newest_sequence());
        let repeats = self.is_from_source(arrival.source) && self.window.is_near(arrival.sequence);
        !repeats && !(1..WINDOW).contains(&ahead)
    }

    /// A report 1,024 or more behind the newest. From the window's own socket it may be a late answer to a
    /// NACK, as may the next.
    fn consider_behind(&mut self, arrival: &SequenceArrival) -> Admission {
        if !self.confirmed || !self.is_from_source(arrival.source) {
            self.note_candidate(arrival, false);
            return self.out_of_window();
        }
        self.strangers += 1;
        if self.strangers < STRANGERS {
            return self.out_of_window();
        }
        self.window = SequenceWindow::new(arrival.sequence);
        self.strangers = 0;
        self.began_anew = true;
        self.counters.restarts += 1;
        Admission::Apply(None)
    }

    fn note_candidate(&mut self, arrival: &SequenceArrival, taken: bool) {
        let &SequenceArrival { sequence, source, .. } = arrival;
        self.candidate = Some(Candidate { sequence, source, taken, mark: self.counters.received });
    }

    fn out_of_window(&mut self) -> Admission {
        self.counters.out_of_window += 1;
        Admission::OutOfWindow
    }

    fn duplicate(&mut self) -> Admission {
        self.counters.duplicates += 1;
        if let Some(candidate) = &mut self.candidate
            && candidate.mark + 1 == self.counters.received
        {
            // Repeats do not separate two reports in a row.
            candidate.mark += 1;
        }
        Admission::Duplicate
    }

    /// Moves the window to a report that agrees with the one before it: the reporter is there.
    fn move_window(&mut self, now: u64, arrival: &SequenceArrival, candidate: Candidate) -> Admission {
        let newest = self.window.newest_sequence();
        let same_socket = self.is_from_source(arrival.source);
        let longest = if same_socket { HALF - 1 } else { SAME_COUNT };
        let goes_on = !candidate.taken
            && (same_socket || self.confirmed)
            && arrival.sequence.wrapping_sub(newest) <= longest;
        (self.candidate, self.strangers, self.source) = (None, 0, arrival.source);
        if goes_on {
            self.mark_confirmed();
            self.window = SequenceWindow::new(arrival.sequence);
            let missing = self.window.missing_since(newest);
            self.counters.gaps += u64::from(missing);
            return self.request_missing(now, arrival, missing);
        }
        if self.confirmed || candidate.taken {
            self.counters.restarts += 1;
            self.began_anew = true;
        }
        let first = if candidate.taken { candidate.sequence } else { arrival.sequence };
        self.window = SequenceWindow::new(first);
        self.mark_confirmed();
        let missing = match candidate.taken {
            true => match self.window.offer_sequence(arrival.sequence) {
                Verdict::New { missing } => missing,
                _ => 0,
            },
            // It was dropped, and so is one of those missing.
            false => self.window.missing_since(candidate.sequence.wrapping_sub(1)),
        };
        self.counters.gaps += u64::from(missing);
        self.request_missing(now, arrival, missing)
    }

    /// Requests the last of `missing` sequences before a report, if they are retransmittable and the budget
    /// allows it; anything older than the window would not be accepted if resent. Whether each of them is
    /// retransmittable is unknown: the report that revealed the gap stands for all.
    fn request_missing(&mut self, now: u64, arrival: &SequenceArrival, missing: u32) -> Admission {
        let count = missing.min(WINDOW - 1);
        if !arrival.retransmittable || count == 0 {
            return Admission::Apply(None);
        }
        if !self.nacks.take(now, NACKS) {
            return Admission::Unasked;
        }
        self.counters.nacks += 1;
        let first = arrival.sequence.wrapping_sub(count);
        Admission::Apply(Some(Missing { first, count: count as u16 }))
    }

    fn mark_confirmed(&mut self) {
        if !std::mem::replace(&mut self.confirmed, true) {
            self.count_since_earlier();
        }
    }

    fn count_since_earlier(&mut self) {
        if let Some(newest) = self.earlier.take()
            && !self.began_anew
        {
            self.counters.gaps += u64::from(self.window.missing_since(newest));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn at(port: u16) -> PackedSocketAddr {
        PackedSocketAddr::new(Ipv4Addr::LOCALHOST, port)
    }

    /// A reporter whose first report is the first sent here.
    struct Heard(Option<Sequences>);

    impl Heard {
        fn send(&mut self, sequence: u32, restarted: bool, retransmittable: bool, port: u16) -> Admission {
            let arrival = SequenceArrival { sequence, restarted, retransmittable, source: at(port) };
            match &mut self.0 {
                None => {
                    self.0 = Some(Sequences::new(0, &arrival, None));
                    Admission::Apply(None)
                }
                Some(s) => match s.take_expected(0, &arrival) {
                    true => Admission::Apply(None),
                    false => s.admit_arrival(0, &arrival),
                },
            }
        }

        fn counters(&self) -> ReporterCounters {
            self.0.as_ref().unwrap().counters
        }
    }

    const APPLY: Admission = Admission::Apply(None);

    #[test]
    fn a_repeat_is_known_while_a_reporters_ports_rotate() {
        let port = |n: u32| 1 + (n % 5) as u16;
        for (repeated_after, start) in [(1, 0), (3, 0), (7, u32::MAX - 20)] {
            let mut r = Heard(None);
            for n in 0..60 {
                let sequence = |n: u32| start.wrapping_add(n);
                assert_eq!(r.send(sequence(n), false, false, port(n)), APPLY, "{n}");
                if let Some(before) = n.checked_sub(repeated_after) {
                    let again = r.send(sequence(before), false, false, port(before));
                    assert_eq!(again, Admission::Duplicate, "{before} after {n}");
                }
            }
            let c = r.counters();
            assert_eq!(
                (c.received, c.duplicates),
                (120 - u64::from(repeated_after), 60 - u64::from(repeated_after))
            );
        }
    }

    #[test]
    fn a_gap_is_asked_for_if_its_report_can_be_sent_again() {
        let mut r = Heard(None);
        let missing = |first, count| Admission::Apply(Some(Missing { first, count }));
        assert_eq!(r.send(0, true, true, 1), APPLY);
        assert_eq!(r.send(3, false, true, 1), missing(1, 2));
        assert_eq!(r.send(5, false, false, 1), APPLY);
        assert_eq!(r.send(1, false, true, 1), APPLY);
        assert_eq!(r.send(1, false, true, 1), Admission::Duplicate);
        let c = r.counters();
        assert_eq!((c.received, c.gaps, c.gaps_filled, c.duplicates, c.nacks), (5, 3, 1, 1, 1));
        // A long gap counts once a second report confirms it; the first is one of the missing. A NACK never
        // asks for more than the window would accept.
        assert_eq!(r.send(5005, false, true, 1), Admission::OutOfWindow);
        assert_eq!(r.counters().gaps, 3);
        assert_eq!(r.send(5006, false, true, 1), missing(5006 - 1023, 1023));
        assert_eq!(r.counters().gaps, 3 + 5000);
        assert_eq!(r.send(5005, false, true, 1), APPLY);
        assert_eq!(r.counters().gaps_filled, 2);
        assert_eq!(r.send(5606, false, true, 1), missing(5007, 599));
        assert_eq!(r.send(5007, false, true, 1), APPLY);
        assert_eq!(r.send(5006, false, true, 1), Admission::Duplicate);
    }

    #[test]
    fn a_restart_begins_anew_and_its_repeat_does_not() {
        let mut r = Heard(None);
        for s in 0..10 {
            assert_eq!(r.send(s, s == 0, false, 1), APPLY);
        }
        // The network duplicates the first report.
        assert_eq!(r.send(0, true, false, 1), Admission::Duplicate);
        // A new process, on its own socket.
        assert_eq!(r.send(0, true, false, 2), APPLY);
        assert_eq!(r.send(1, false, false, 2), APPLY);
        // The same socket, far away.
        assert_eq!(r.send(0x8000_0000, true, false, 2), APPLY);
        assert_eq!(r.send(0x8000_0000, true, false, 2), Admission::Duplicate);
        assert_eq!(r.send(0x8000_0001, false, false, 2), APPLY);
        assert_eq!((r.counters().restarts, r.counters().gaps), (2, 0));
    }

    #[test]
    fn a_new_socket_that_counts_anew_is_a_restart_even_unannounced() {
        for start in [2000, 1u32 << 20, u32::MAX - 100_000] {
            let mut r = Heard(None);
            for s in 0..10 {
                r.send(start.wrapping_add(s), s == 0, false, 1);
            }
            // The announcement, sequence 0, is lost. The next is dropped, and counted as missing.
            assert_eq!(r.send(1, false, false, 2), Admission::OutOfWindow);
            for s in 2..10 {
                assert_eq!(r.send(s, false, false, 2), APPLY, "{s}");
            }
            // The network duplicates reports of both processes.
            assert_eq!(r.send(9, false, false, 2), Admission::Duplicate);
            assert_eq!(r.send(start.wrapping_add(9), false, false, 1), Admission::OutOfWindow);
            assert_eq!((r.counters().restarts, r.counters().gaps), (1, 1));
        }
    }

    #[test]
    fn a_restart_on_the_same_socket_that_nobody_announced_is_believed_after_a_window() {
        let mut r = Heard(None);
        for s in 0..2 {
            r.send(1_000_000 + s, true, false, 1);
        }
        let dropped = (0..2000).filter(|s| r.send(*s, false, false, 1) == Admission::OutOfWindow).count();
        assert_eq!(dropped, STRANGERS as usize - 1);
        assert_eq!(r.counters().restarts, 1);
    }

    #[test]
    fn nacks_have_a_budget() {
        let mut r = Heard(None);
        let asked = (0..30_000)
            .filter(|n| matches!(r.send(2 * n, false, true, 1), Admission::Apply(Some(_))))
            .count();
        assert_eq!(asked, 10_000);
        assert_eq!(r.counters().nacks, 10_000);
    }

    proptest! {
        /// One reporter on one socket, whose reports are lost, duplicated and reordered by up to 16 places,
        /// with jumps of any length: everything that arrives within a window's length of the newest is
        /// accepted once, and everything that is not accepted is counted.
        #[test]
        fn nothing_is_taken_twice_and_the_books_close(
            start in any::<u32>(),
            bursts in prop::collection::vec((1u32..60, prop_oneof![3 => 0u32..600, 1 => 0u32..70_000, 1 => 0u32..3_000_000]), 1..12),
            faults in prop::collection::vec(0u8..40, 64),
        ) {
            let mut sent = Vec::new();
            let mut next = start;
            for (n, (burst, jump)) in bursts.iter().enumerate() {
                for _ in 0..*burst {
                    sent.push(next);
                    next = next.wrapping_add(1);
                }
                if n + 1 != bursts.len() {
                    next = next.wrapping_add(*jump);
                }
            }
            // The last two come in order, to confirm the last jump.
            let whole = sent.len();
            sent.extend([next, next.wrapping_add(1), next.wrapping_add(2)]);
            let mut arriving = Vec::new();
            for (n, sequence) in sent.iter().enumerate() {
                let fault = faults[n % faults.len()];
                if n == 0 {
                    arriving.push((0, *sequence));
                } else if n >= whole {
                    // After everything late, or they would not be consecutive.
                    arriving.push((n as u32 * 10 + 200, *sequence));
                } else {
                    match fault {
                        0 => {}
                        1 => arriving.extend([(n as u32 * 10, *sequence), (n as u32 * 10 + 31, *sequence)]),
                        2..6 => arriving.push((n as u32 * 10 + 1 + u32::from(fault) * 25, *sequence)),
                        _ => arriving.push((n as u32 * 10, *sequence)),
                    }
                }
            }
            arriving.sort_unstable();
            let end = arriving.len();
            let mut r = Heard(None);
            let mut taken = HashSet::new();
            for (n, (_, sequence)) in arriving.iter().enumerate() {
                let newest = r.0.as_ref().map_or(start, Sequences::newest_sequence);
                match r.send(*sequence, false, n % 2 == 0, 1) {
                    Admission::Apply(_) | Admission::Unasked => prop_assert!(taken.insert(*sequence), "{sequence} twice"),
                    Admission::Duplicate => prop_assert!(taken.contains(sequence), "{sequence} was no repeat"),
                    Admission::OutOfWindow => prop_assert!((sequence.wrapping_sub(newest) as i32).unsigned_abs() >= WINDOW),
                    other => prop_assert!(false, "{sequence}: {other:?}, report {n} of {end}"),
                }
            }
            let c = r.counters();
            let newest = r.0.unwrap().newest_sequence();
            prop_assert_eq!(newest, next.wrapping_add(2));
            let before_first = taken.iter().filter(|s| (s.wrapping_sub(start) as i32) < 0).count();
            prop_assert_eq!(before_first, 0);
            let missing = u64::from(newest.wrapping_sub(start)) + 1 - taken.len() as u64;
            let counted = c.gaps - c.gaps_filled;
            prop_assert_eq!(
                missing, counted,
                "gaps {} filled {}", c.gaps, c.gaps_filled
            );
        }
    }
}
