//! Sequences from one socket under a reporter's id: which reports to accept, and where the sequence stands.
//!
//! A report far from the newest sequence may follow a long gap, be the first after a restart, or be bogus. So
//! it is accepted, and its position is kept beside the window; the window moves there, and the gap is
//! counted, only when the next report agrees. Both positions remember what was seen there, so nothing is
//! accepted twice.

use super::budget::{Budget, Rate};
use super::reporters::{Admission, Missing, PackedSocketAddr, ReporterCounters};
use super::window::{HALF, LastSeen, NEAR, SequenceWindow, Verdict, WINDOW};

/// Reports behind the window in a row, without any inside, after which the window is placed anew:
/// the reporter counts from elsewhere, on the socket that it had, and none of its reports that said
/// so arrived. More than one NACK can ask for, so that an answer that comes late does not look like
/// this.
const STRANGERS: u32 = WINDOW;
/// The second report agrees with the first if it is at most this far ahead of it.
const AGREE: u32 = 1 << 16;
/// Consecutive reports that confirm a position where the window has never been.
const TWO: u32 = 2;
/// Consecutive reports that confirm a return to before the jump: some may only be late.
const BACK: u32 = 64;
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

/// State of one socket under one reporter's id.
#[derive(Clone, Debug)]
pub(crate) struct Sequences {
    pub(crate) counters: ReporterCounters,
    /// When it was last heard.
    pub(crate) last_heard: u64,
    /// Whether a second report agreed with the first.
    pub(crate) confirmed: bool,
    source: PackedSocketAddr,
    /// The next sequence, if only the window need be checked; else [`UNEXPECTED`].
    expected: u64,
    window: SequenceWindow,
    other: Option<Other>,
    candidate: Candidate,
    beyond: Option<Beyond>,
    strangers: u32,
    /// Whether it is known to have restarted since, or at, its first report.
    began_anew: bool,
    /// How far it was heard before its first report here, until a second one agrees.
    earlier: Option<u32>,
    nacks: Budget,
}

/// A dropped report: the position beside the window holds others that must not be accepted twice. If the next
/// one agrees with it, the window moves there.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    sequence: u32,
    /// `received` when it arrived.
    mark: u64,
}

impl Candidate {
    fn agrees_with(&self, sequence: u32, received: u64) -> bool {
        let near =
            sequence.wrapping_sub(self.sequence) <= AGREE || self.sequence.wrapping_sub(sequence) < WINDOW;
        self.mark + 1 == received && sequence != self.sequence && near
    }
}

/// Reports accepted ahead of where the window later moved. Nothing from the first to the last of them, less
/// than a window apart, is accepted: it may be one of them.
#[derive(Clone, Copy, Debug)]
struct Beyond {
    first: u32,
    last: u32,
    /// Those of them not yet subtracted from a gap.
    taken: u32,
    /// `received` when the last one arrived.
    mark: u64,
}

impl Beyond {
    fn contains_sequence(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first) <= self.last.wrapping_sub(self.first)
    }
}

/// A position beside the window.
#[derive(Clone, Debug)]
struct Other {
    kind: PositionKind,
    window: SequenceWindow,
    taken: u32,
    /// No sequence ahead of the window and before this was accepted here.
    earliest: u32,
    missing: u32,
    /// Length of the current consecutive run.
    run: u32,
    /// `received` when the last one arrived.
    mark: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PositionKind {
    /// Further ahead in the same count: a long gap.
    Ahead,
    /// Another count: the reporter restarted, announced or not.
    Anew { announced: bool },
    /// Where the window was before a long gap; how many sequences of it are still missing, and how far ahead
    /// nothing now forgotten was accepted.
    Before { from: u32, owed: u64, reach: u32 },
    /// Where the window was before the restart.
    Life,
}

impl Sequences {
    /// For a socket heard for the first time: this report is accepted.
    pub(crate) fn new(now: u64, first: &SequenceArrival, earlier: Option<u32>) -> Self {
        Sequences {
            counters: ReporterCounters { received: 1, ..Default::default() },
            last_heard: now,
            confirmed: false,
            source: first.source,
            expected: UNEXPECTED,
            window: SequenceWindow::new(first.sequence),
            other: None,
            candidate: Candidate::default(),
            beyond: None,
            strangers: 0,
            began_anew: first.restarted,
            earlier,
            nacks: Budget::default(),
        }
    }

    /// The newest of its sequences heard.
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

    /// Counts everything between a sequence and the first one heard as missing: the count continues from
    /// there.
    pub(crate) fn goes_on_from(&mut self, newest: u32) {
        self.counters.gaps += u64::from(self.window.missing_since(newest));
    }

    /// Takes over the rest of another socket's NACK budget.
    pub(crate) fn inherit_nack_budget(&mut self, other: &Sequences) {
        self.nacks = other.nacks;
    }

    /// Which of its newest sequences were seen.
    pub(crate) fn last_seen(&self) -> LastSeen {
        self.window.last_seen()
    }

    /// Marks as seen what the same socket sent before.
    pub(crate) fn mark_last_seen(&mut self, last: LastSeen) {
        self.window.mark_last_seen(last);
    }

    pub(crate) fn source_socket(&self) -> PackedSocketAddr {
        self.source
    }

    /// Takes over as the reporter's count from another socket; `anew` if the reporter restarted.
    pub(crate) fn take_over_from(&mut self, other: &mut Sequences, anew: bool) {
        if anew {
            self.counters.restarts += 1;
            self.began_anew = true;
        }
        if let Some(earlier) = other.earlier.take() {
            self.heard_earlier(earlier);
        }
    }

    /// Whether its first report announced a restart.
    pub(crate) fn began_anew(&self) -> bool {
        self.began_anew
    }

    /// Whether its datagrams come from this source.
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
        let plain = self.confirmed && self.other.is_none() && self.beyond.is_none() && self.strangers == 0;
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
        let &SequenceArrival { sequence, restarted, .. } = arrival;
        self.forget_stale_positions();
        let announced = restarted && !self.window.is_near(sequence, WINDOW - 1);
        if !announced {
            if self.beyond.is_some_and(|beyond| beyond.contains_sequence(sequence)) {
                self.counters.out_of_window += 1;
                return Admission::OutOfWindow;
            }
            match self.offer_sequence(sequence) {
                Verdict::New { missing } => return self.advance_window(now, arrival, missing),
                Verdict::Late { fills } => {
                    self.strangers = 0;
                    self.count_gap_filled(sequence, fills);
                    return Admission::Apply(None);
                }
                Verdict::Duplicate => return self.duplicate(),
                Verdict::Ahead | Verdict::Behind => {}
            }
        }
        match &self.other {
            Some(other) if other.can_include(&self.window, arrival, announced) => {
                if other.would_forget(sequence, self.counters.received) {
                    return self.propose_jump(now, arrival);
                }
                self.take_elsewhere(now, arrival)
            }
            _ => self.open(now, arrival, announced),
        }
    }

    /// Offers a sequence to the window.
    fn offer_sequence(&mut self, sequence: u32) -> Verdict {
        if !self.confirmed && self.window.is_near(sequence, NEAR) && !self.window.has_seen(sequence) {
            self.mark_confirmed();
        }
        let Sequences { window, other, .. } = self;
        let Some(Other { kind: PositionKind::Ahead, window: ahead, taken, earliest, .. }) = other else {
            return window.offer_sequence(sequence, NEAR, |_| false);
        };
        if ahead.has_seen(sequence) {
            return Verdict::Duplicate;
        }
        let verdict = window.offer_sequence(sequence, NEAR, |skipped| {
            let came = ahead.has_seen(skipped);
            *taken -= u32::from(came && *taken > 0);
            came
        });
        if window.newest_sequence().wrapping_sub(*earliest) < HALF {
            *earliest = window.newest_sequence().wrapping_add(1);
        }
        if *taken == 0 {
            // The window has reached all that was accepted further ahead.
            self.other = None;
        }
        verdict
    }

    fn duplicate(&mut self) -> Admission {
        self.counters.duplicates += 1;
        if self.candidate.mark + 1 == self.counters.received {
            self.candidate.mark += 1;
        }
        if let Some(other) = &mut self.other
            && other.mark + 1 == self.counters.received
        {
            // Repeats do not break a consecutive run.
            other.mark += 1;
        }
        Admission::Duplicate
    }

    /// The window has moved ahead to a report, past `missing` others.
    fn advance_window(&mut self, now: u64, arrival: &SequenceArrival, missing: u32) -> Admission {
        self.strangers = 0;
        self.counters.gaps += u64::from(missing);
        match missing.min(WINDOW - 1) {
            0 => Admission::Apply(None),
            count => self.request_missing(now, arrival, arrival.sequence.wrapping_sub(count), count),
        }
    }

    /// Requests `count` sequences from `first`, if they are retransmittable and the budget allows it. Whether
    /// each of them is retransmittable is unknown: the report that revealed the gap stands for all.
    fn request_missing(&mut self, now: u64, arrival: &SequenceArrival, first: u32, count: u32) -> Admission {
        if !arrival.retransmittable || count == 0 {
            return Admission::Apply(None);
        }
        let missing = Missing { first, count: count as u16 };
        if !self.nacks.take(now, NACKS) {
            return Admission::Unasked;
        }
        self.counters.nacks += 1;
        Admission::Apply(Some(missing))
    }

    fn count_gap_filled(&mut self, sequence: u32, fills: bool) {
        self.counters.gaps_filled += u64::from(fills);
        if let Some(Other { kind: PositionKind::Before { from, owed, .. }, .. }) = &mut self.other
            && sequence.wrapping_sub(*from) < HALF
        {
            *owed = owed.saturating_sub(u64::from(fills));
        }
    }

    /// Accepts a report near the other position.
    fn take_elsewhere(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        let received = self.counters.received;
        let Some(other) = &mut self.other else { return Admission::OutOfWindow };
        let verdict = other.window.offer_sequence(arrival.sequence, AGREE, |_| false);
        let (ahead, inner, fills) = match verdict {
            Verdict::New { missing } => (true, missing, false),
            Verdict::Late { fills } => (false, 0, fills),
            Verdict::Duplicate | Verdict::Ahead | Verdict::Behind => return self.duplicate(),
        };
        let in_a_row = other.mark + 1 == received;
        other.mark = received;
        other.taken += 1;
        if arrival.sequence.wrapping_sub(other.earliest) >= HALF {
            other.earliest = arrival.sequence;
        }
        other.missing = other.missing.saturating_add(inner).saturating_sub(fills.into());
        let needed = match other.kind {
            PositionKind::Ahead | PositionKind::Anew { .. } => {
                other.run = if in_a_row { other.run + 1 } else { 1 };
                TWO
            }
            PositionKind::Before { .. } | PositionKind::Life => {
                other.run = if in_a_row { other.run + u32::from(ahead) } else { 1 };
                BACK
            }
        };
        let (kind, run) = (other.kind, other.run);
        match kind {
            // Everything it skips was counted missing with the gap.
            PositionKind::Before { .. } => self.count_gap_filled(arrival.sequence, ahead || fills),
            PositionKind::Life => {
                self.counters.gaps += u64::from(inner);
                self.counters.gaps_filled += u64::from(fills);
            }
            PositionKind::Ahead | PositionKind::Anew { .. } => {}
        }
        if run >= needed { self.move_to_other(now, arrival, inner) } else { Admission::Apply(None) }
    }

    /// Moves the window to the other position: the reporter is there.
    fn move_to_other(&mut self, now: u64, arrival: &SequenceArrival, inner: u32) -> Admission {
        let Some(other) = self.other.take() else { return Admission::Apply(None) };
        self.strangers = 0;
        let trusted = self.confirmed;
        match other.kind {
            PositionKind::Before { owed, .. } => {
                // There was no such gap: the jump was not the reporter's.
                self.counters.gaps_filled += owed;
                self.window = other.window;
                Admission::Apply(None)
            }
            PositionKind::Life => {
                self.counters.restarts += 1;
                self.window = other.window;
                self.beyond = None;
                Admission::Apply(None)
            }
            PositionKind::Anew { announced } => {
                let left = std::mem::replace(&mut self.window, other.window);
                self.beyond = None;
                if trusted || announced {
                    self.counters.restarts += 1;
                    self.began_anew = true;
                }
                if trusted {
                    self.keep_position(PositionKind::Life, left);
                }
                // Two agree against the one heard first.
                self.mark_confirmed();
                self.counters.gaps += u64::from(other.missing);
                let asked = inner.min(WINDOW - 1);
                self.request_missing(now, arrival, arrival.sequence.wrapping_sub(asked), asked)
            }
            PositionKind::Ahead => {
                let newest = other.window.newest_sequence();
                let skipped_to = if inner == 0 { other.window.first_sequence() } else { newest };
                self.jump_ahead(now, arrival, newest, skipped_to, Some(other))
            }
        }
    }

    /// A report so far ahead that earlier ones accepted there would be forgotten: only a second one is
    /// accepted.
    fn propose_jump(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        let received = self.counters.received;
        if self.candidate.agrees_with(arrival.sequence, received) {
            self.strangers = 0;
            let other = self.other.take();
            return self.jump_ahead(now, arrival, arrival.sequence, arrival.sequence, other);
        }
        self.candidate = Candidate { sequence: arrival.sequence, mark: received };
        self.counters.out_of_window += 1;
        Admission::OutOfWindow
    }

    /// Moves the window ahead to `newest`, just accepted. `other` was beside the window. What is missing
    /// before `skipped_to` is requested.
    fn jump_ahead(
        &mut self,
        now: u64,
        arrival: &SequenceArrival,
        newest: u32,
        skipped_to: u32,
        other: Option<Other>,
    ) -> Admission {
        self.mark_confirmed();
        let left = self.window.clone();
        let from = left.newest_sequence();
        let distance = newest.wrapping_sub(from);
        let ahead = other.filter(|o| o.kind == PositionKind::Ahead);
        let came = |skipped| ahead.as_ref().is_some_and(|o| o.window.has_seen(skipped));
        if !matches!(self.window.offer_sequence(newest, HALF - 1, came), Verdict::New { .. }) {
            self.window = SequenceWindow::new(newest);
            return Admission::Apply(None);
        }
        // Not from the window: the first of those accepted may have left it.
        let (mut taken, mut untaken) = (1, distance);
        if let Some(place) = &ahead {
            let last = place.window.newest_sequence();
            if last.wrapping_sub(from) > distance {
                self.beyond =
                    Some(Beyond { first: place.earliest, last, taken: place.taken, mark: place.mark });
            } else {
                taken = place.taken + u32::from(last != newest);
                untaken = place.earliest.wrapping_sub(from).saturating_sub(1);
            }
        } else if let Some(beyond) = &mut self.beyond
            && beyond.last.wrapping_sub(from) <= distance
        {
            taken += std::mem::take(&mut beyond.taken);
            // The window may have passed the first of them.
            let to_first = beyond.first.wrapping_sub(from);
            untaken = if to_first < HALF { to_first.saturating_sub(1) } else { 0 };
        }
        let gap = u64::from(distance.saturating_sub(taken));
        self.counters.gaps += gap;
        if distance >= WINDOW {
            // What was accepted further ahead leaves the window in time, and must not be accepted again at
            // the former position.
            let reach = untaken.min(distance - 1).min(AGREE);
            self.keep_position(PositionKind::Before { from, owed: gap, reach }, left);
        }
        // What is older than the window would not be accepted if it came again.
        let first = newest.wrapping_sub((WINDOW - 1).min(distance - 1));
        let count = skipped_to.wrapping_sub(first);
        self.request_missing(now, arrival, first, if count < WINDOW { count } else { 0 })
    }

    fn keep_position(&mut self, kind: PositionKind, window: SequenceWindow) {
        self.other = Some(Other {
            earliest: window.newest_sequence(),
            kind,
            window,
            taken: 0,
            missing: 0,
            run: 0,
            mark: self.counters.received,
        });
    }

    /// A report at a new position.
    fn open(&mut self, now: u64, arrival: &SequenceArrival, announced: bool) -> Admission {
        let forward = arrival.sequence.wrapping_sub(self.window.newest_sequence()) < HALF;
        let kind = if announced || (!forward && !self.confirmed) {
            PositionKind::Anew { announced }
        } else if forward {
            PositionKind::Ahead
        } else {
            self.strangers += 1;
            if self.strangers >= STRANGERS {
                self.begin_anew(arrival);
                return Admission::Apply(None);
            }
            self.counters.out_of_window += 1;
            return Admission::OutOfWindow;
        };
        let taken_ahead =
            self.beyond.is_some() || self.other.as_ref().is_some_and(|o| o.kind == PositionKind::Ahead);
        if kind == PositionKind::Ahead && taken_ahead {
            return self.propose_jump(now, arrival);
        }
        self.keep_position(kind, SequenceWindow::new(arrival.sequence));
        if let Some(other) = &mut self.other {
            (other.taken, other.run) = (1, 1);
        }
        Admission::Apply(None)
    }

    fn begin_anew(&mut self, arrival: &SequenceArrival) {
        self.window = SequenceWindow::new(arrival.sequence);
        self.other = None;
        self.beyond = None;
        self.strangers = 0;
        self.began_anew = true;
        self.counters.restarts += 1;
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

    /// Drops a position after a window's worth of reports without one there, unless the window is about to
    /// reach it.
    fn forget_stale_positions(&mut self) {
        if let Some(Beyond { last, mark, .. }) = self.beyond {
            let long_silent = self.counters.received - mark > WINDOW.into();
            let left = self.window.newest_sequence().wrapping_sub(last).wrapping_sub(WINDOW) < HALF;
            let before_us = last.wrapping_sub(self.window.newest_sequence()) <= 2 * WINDOW;
            let behind_us = self.window.newest_sequence().wrapping_sub(last) < WINDOW;
            // The former window does not know what was accepted there.
            let needed = self.other.as_ref().is_some_and(|other| {
                matches!(other.kind, PositionKind::Before { .. }) && other.window.is_near(last, AGREE)
            });
            if !needed && (left || long_silent && !before_us && !behind_us) {
                self.beyond = None;
            }
        }
        let Some(other) = &self.other else { return };
        let long_silent = self.counters.received - other.mark > WINDOW.into();
        let before_us =
            other.window.newest_sequence().wrapping_sub(self.window.newest_sequence()) <= 2 * WINDOW;
        if long_silent && !(other.kind == PositionKind::Ahead && before_us) {
            self.other = None;
        }
    }
}

impl Other {
    /// Whether accepting this sequence at an unconfirmed position ahead would make its window forget one.
    fn would_forget(&self, sequence: u32, received: u64) -> bool {
        let further = sequence.wrapping_sub(self.earliest);
        let believed = self.mark + 1 == received;
        self.kind == PositionKind::Ahead && !believed && (WINDOW..HALF).contains(&further)
    }

    /// Whether a report that is not near the window may belong to this position.
    fn can_include(&self, window: &SequenceWindow, arrival: &SequenceArrival, announced: bool) -> bool {
        let sequence = arrival.sequence;
        let ahead = sequence.wrapping_sub(window.newest_sequence()) < HALF;
        match self.kind {
            PositionKind::Ahead => !announced && ahead && self.window.is_near(sequence, AGREE),
            PositionKind::Anew { .. } => self.window.is_near(sequence, AGREE),
            PositionKind::Before { from, reach, .. } => {
                let further = sequence.wrapping_sub(from);
                let untaken = further <= reach || further >= HALF;
                !announced && !ahead && untaken && self.window.is_near(sequence, reach)
            }
            PositionKind::Life => !announced && self.window.is_near(sequence, NEAR),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::sockets::Sockets;

    fn at(port: u16) -> PackedSocketAddr {
        PackedSocketAddr::new(Ipv4Addr::LOCALHOST, port)
    }

    /// A reporter whose first report is the first sent here.
    struct Heard(Option<Sockets>);

    impl Heard {
        fn send(&mut self, sequence: u32, restarted: bool, retransmittable: bool, port: u16) -> Admission {
            let arrival = SequenceArrival { sequence, restarted, retransmittable, source: at(port) };
            match &mut self.0 {
                None => {
                    self.0 = Some(Sockets::new(0, &arrival, None));
                    Admission::Apply(None)
                }
                Some(s) => match s.take_expected(0, &arrival) {
                    true => Admission::Apply(None),
                    false => s.admit_arrival(0, &arrival),
                },
            }
        }

        fn counters(&self) -> ReporterCounters {
            self.0.as_ref().unwrap().reporter_counters()
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
    fn what_one_socket_sent_does_not_judge_another_whose_ports_rotate() {
        let mut r = Heard(None);
        for (n, port) in (0..8).zip(1..) {
            assert_eq!(r.send(n, false, false, port), APPLY);
        }
        // The same numbers, each from a port that has not sent it.
        for (n, port) in (0..8).zip(11..) {
            assert_eq!(r.send(n, false, false, port), APPLY);
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
        // A long gap counts once a second report confirms it. A NACK never asks for more than the window
        // would accept.
        assert_eq!(r.send(5005, false, true, 1), APPLY);
        assert_eq!(r.counters().gaps, 3);
        assert_eq!(r.send(5006, false, true, 1), missing(5006 - 1023, 1022));
        assert_eq!(r.counters().gaps, 3 + 4999);
        assert_eq!(r.send(5606, false, true, 1), APPLY);
        assert_eq!(r.send(5607, false, true, 1), missing(5007, 599));
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
        for start in [0u32, 1 << 20, u32::MAX - 100_000] {
            let mut r = Heard(None);
            for s in 0..10 {
                r.send(start.wrapping_add(s), s == 0, false, 1);
            }
            // The announcement, sequence 0, is lost.
            for s in 1..10 {
                assert_eq!(r.send(s, false, false, 2), APPLY, "{s}");
            }
            // The network duplicates reports of both processes.
            assert_eq!(r.send(9, false, false, 2), Admission::Duplicate);
            assert_eq!(r.send(start.wrapping_add(9), false, false, 1), Admission::Duplicate);
            assert_eq!((r.counters().restarts, r.counters().gaps), (1, 0));
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
    fn a_reporter_that_goes_on_from_before_the_jump_never_jumped() {
        let mut r = Heard(None);
        for s in 0..10 {
            r.send(s, false, false, 1);
        }
        r.send(5000, false, false, 1);
        r.send(5001, false, false, 1);
        assert_eq!(r.counters().gaps, 4990);
        for s in 10..200 {
            assert_eq!(r.send(s, false, false, 1), APPLY);
        }
        assert_eq!(r.counters().gaps, r.counters().gaps_filled);
        assert_eq!(r.0.unwrap().newest_sequence(), 199);
    }

    #[test]
    fn a_nearer_place_does_not_make_a_further_one_forgotten() {
        let mut r = Heard(None);
        for s in 0..10 {
            r.send(s, false, false, 1);
        }
        assert_eq!(r.send(5000, false, false, 1), APPLY);
        // The position beside the window is in use: the first report elsewhere is dropped, and the second one
        // is believed.
        assert_eq!(r.send(1000, false, true, 1), Admission::OutOfWindow);
        assert_eq!(r.send(1001, false, true, 1), Admission::Apply(Some(Missing { first: 10, count: 991 })));
        assert_eq!(r.send(5000, false, false, 1), Admission::OutOfWindow);
        assert_eq!(r.send(1000, false, false, 1), APPLY);
        assert_eq!(r.counters().gaps - r.counters().gaps_filled, 990);
        // Likewise once the window has moved past it.
        assert_eq!(r.send(90_000, false, false, 1), Admission::OutOfWindow);
        assert_eq!(r.send(90_001, false, false, 1), APPLY);
        assert_eq!(r.counters().gaps - r.counters().gaps_filled, 990 + 88_998);
        for s in [5000, 1000, 9, 88_000, 5000] {
            assert!(!matches!(r.send(s, false, false, 1), Admission::Apply(_)), "{s}");
        }
        assert_eq!(r.send(1002, false, false, 1), APPLY);
        assert_eq!(r.send(89_001, false, false, 1), APPLY);
    }

    #[test]
    fn what_was_taken_further_ahead_stays_known_after_the_next_jumps() {
        let mut r = Heard(None);
        for s in 0..10 {
            r.send(s, false, false, 1);
        }
        assert_eq!(r.send(5000, false, false, 1), APPLY);
        // Nearer, then just past it, then so far that the window does not reach back to it.
        for s in [1000, 5500, 7000] {
            assert_eq!(r.send(s, false, false, 1), Admission::OutOfWindow);
            assert_eq!(r.send(s + 1, false, false, 1), APPLY);
            assert_eq!(r.send(5000, false, false, 1), Admission::OutOfWindow);
        }
        assert_eq!(r.send(5499, false, false, 1), APPLY);
        assert_eq!(r.counters().gaps - r.counters().gaps_filled, 7002 - (10 + 1 + 3 + 1));
    }

    #[test]
    fn a_place_ahead_does_not_forget_what_it_took() {
        let mut r = Heard(None);
        for s in 0..10 {
            r.send(s, false, false, 1);
        }
        // A correct one comes after each of those further ahead, so no two of them are consecutive.
        for (n, (ahead, admission)) in
            [(5000, APPLY), (6000, APPLY), (6100, Admission::OutOfWindow), (500_000, Admission::OutOfWindow)]
                .into_iter()
                .enumerate()
        {
            assert_eq!(r.send(ahead, false, false, 1), admission, "{ahead}");
            assert_eq!(r.send(10 + n as u32, false, false, 1), APPLY);
        }
        for s in [5000, 6000] {
            assert_eq!(r.send(s, false, false, 1), Admission::Duplicate);
        }
        // Reports that advance step by step are accepted wherever others were seen ahead, except for those
        // that arrived there.
        let refused: Vec<u32> =
            (14..8000).filter(|s| !matches!(r.send(*s, false, false, 1), Admission::Apply(_))).collect();
        assert!(refused.iter().all(|s| [5000, 6000].contains(s)), "{refused:?}");
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

    /// Whether jumps overlap: there is more than one, or a report from before a jump arrives when the newest
    /// is a window further on. One position beside the window cannot tell all of that apart.
    fn mixes_jumps(arriving: &[(u32, u32)]) -> bool {
        let (mut newest, mut jumps, mut behind) = (arriving[0].1, 0, false);
        for (_, sequence) in arriving {
            let ahead = sequence.wrapping_sub(newest);
            if ahead < HALF {
                jumps += u32::from(ahead > NEAR);
                newest = *sequence;
            } else {
                behind |= newest.wrapping_sub(*sequence) >= WINDOW;
            }
        }
        jumps > 1 || behind
    }

    proptest! {
        /// One reporter on one socket, whose reports are lost, duplicated and reordered by up to 16 places,
        /// with jumps of any length: everything that arrives is accepted once, and everything that does not
        /// is counted. Where jumps overlap, a few accepted ones may count as missing.
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
                match r.send(*sequence, false, n % 2 == 0, 1) {
                    Admission::Apply(_) | Admission::Unasked => prop_assert!(taken.insert(*sequence), "{sequence} twice"),
                    Admission::Duplicate => prop_assert!(taken.contains(sequence), "{sequence} was no repeat"),
                    // Reports after two jumps overtook it, so it is missing.
                    Admission::OutOfWindow if mixes_jumps(&arriving) => {}
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
            // Where jumps overlap, an accepted report may be counted as missing, but no missing one is left
            // out.
            let most = if mixes_jumps(&arriving) { 16 } else { 0 };
            prop_assert!(
                (missing..=missing + most).contains(&counted),
                "{missing} are missing, and {counted} counted: gaps {} filled {}", c.gaps, c.gaps_filled
            );
        }
    }
}
