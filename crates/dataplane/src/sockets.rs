//! The sockets that report under one reporter's id: its known one, and one other.
//!
//! Anyone who reaches the port can report under a reporter's id. Unless they also forge its address and port,
//! they are another socket, and nothing from one socket changes how another's reports are judged. So no
//! report of the real reporter is dropped because of someone else's. Consecutive reports decide whose count
//! is the reporter's.

use super::reporters::{Admission, PackedSocketAddr, ReporterCounters};
use super::sequences::{SequenceArrival, Sequences};
use super::window::LastSeen;

/// A new socket continues the same count if it starts at most this far ahead; otherwise the reporter has
/// restarted.
const STRANGE_JUMP: u32 = 1 << 16;
/// Consecutive reports that confirm another socket as the reporter.
const TWO: u32 = 2;
/// Consecutive reports that confirm a socket that the reporter seemed to have left: some may only be late.
const BACK: u32 = 8;

/// Former sockets remembered. A reporter whose ports rotate, such as behind a NAT, returns to them.
const LEFT: usize = 8;

/// One version-1 reporter.
#[derive(Clone, Debug)]
pub(crate) struct Sockets {
    current: Sequences,
    /// The other one heard last.
    rival: Option<Rival>,
    let_go: ReporterCounters,
    /// The last of those.
    left: Vec<(PackedSocketAddr, LastSeen)>,
}

#[derive(Clone, Debug)]
struct Rival {
    sequences: Sequences,
    kind: RivalKind,
    /// Its current consecutive run of reports that moved its window ahead.
    run: u32,
    /// What the current one had received when the last of them arrived.
    mark: u64,
}

#[derive(Clone, Copy, Debug)]
enum RivalKind {
    /// It has not been the reporter's so far, so its gaps do not count yet. Whether it began where the
    /// current one was.
    New { goes_on: bool },
    /// It was the reporter's; gaps and restarts counted in the meantime.
    Former { gaps: u64, restarts: u64 },
}

impl Rival {
    /// Its counters on the reporter's account.
    fn reporter_counters(&self) -> ReporterCounters {
        let (gaps, restarts) = match self.kind {
            RivalKind::New { .. } => (0, 0),
            RivalKind::Former { gaps, restarts } => (gaps, restarts),
        };
        let counters = self.sequences.counters;
        ReporterCounters { gaps, gaps_filled: counters.gaps_filled.min(gaps), restarts, ..counters }
    }
}

impl Sockets {
    /// For a reporter heard for the first time: this report is accepted.
    pub(crate) fn new(now: u64, first: &SequenceArrival, earlier: Option<u32>) -> Self {
        let current = Sequences::new(now, first, earlier);
        Sockets { current, rival: None, let_go: ReporterCounters::default(), left: Vec::new() }
    }

    pub(crate) fn reporter_counters(&self) -> ReporterCounters {
        let mut counters = self.let_go;
        counters.add(&self.current.counters);
        if let Some(rival) = &self.rival {
            counters.add(&rival.reporter_counters());
        }
        counters.gaps_filled = counters.gaps_filled.min(counters.gaps);
        counters
    }

    /// Whether a second report agreed with the first.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.current.confirmed
    }

    /// When it was last heard.
    pub(crate) fn last_heard(&self) -> u64 {
        let rival = self.rival.as_ref().map_or(0, |rival| rival.sequences.last_heard);
        self.current.last_heard.max(rival)
    }

    /// The newest of its sequences heard.
    pub(crate) fn newest_sequence(&self) -> u32 {
        self.current.newest_sequence()
    }

    /// Whether its datagrams come from this source.
    pub(crate) fn is_from_source(&self, source: PackedSocketAddr) -> bool {
        self.current.is_from_source(source)
    }

    /// Sets how far it was heard before: everything in between is missing.
    pub(crate) fn heard_earlier(&mut self, newest: u32) {
        self.current.heard_earlier(newest);
    }

    /// The same reporter at its position, without what was seen before.
    pub(crate) fn meet_anew(&mut self) {
        self.let_rival_go();
        self.current = self.current.without_history();
    }

    /// Accepts a report if it is the next in sequence, as nearly all are.
    #[inline]
    pub(crate) fn take_expected(&mut self, now: u64, arrival: &SequenceArrival) -> bool {
        self.current.take_expected(now, arrival)
    }

    /// Judges any report by the rules of a switch, which does not distinguish sockets.
    pub(crate) fn admit_in_reference(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        self.current.admit_in_reference(now, arrival)
    }

    pub(crate) fn admit_arrival(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        if self.current.is_from_source(arrival.source) {
            return self.current.admit_arrival(now, arrival);
        }
        let received = self.current.counters.received;
        let Some(rival) = self.rival.as_mut().filter(|rival| rival.sequences.is_from_source(arrival.source))
        else {
            return self.admit_new_socket(now, arrival);
        };
        let newest = rival.sequences.newest_sequence();
        let admission = rival.sequences.admit_arrival(now, arrival);
        if rival.mark != received {
            (rival.run, rival.mark) = (0, received);
        }
        rival.run += u32::from(rival.sequences.newest_sequence() != newest);
        let needed = match rival.kind {
            RivalKind::New { .. } => TWO,
            RivalKind::Former { .. } => BACK,
        };
        if rival.run >= needed && rival.sequences.confirmed {
            self.change_over();
        }
        admission
    }

    /// The first report of a socket, which is accepted unless the socket was here before and already sent it.
    fn admit_new_socket(&mut self, now: u64, arrival: &SequenceArrival) -> Admission {
        let mut sequences = Sequences::new(now, arrival, None);
        if let Some((_, before)) = self.left.iter().find(|(source, _)| *source == arrival.source) {
            if before.has_seen(arrival.sequence) {
                self.let_go.received += 1;
                self.let_go.duplicates += 1;
                return Admission::Duplicate;
            }
            sequences.mark_last_seen(*before);
        }
        let ahead = arrival.sequence.wrapping_sub(self.current.newest_sequence());
        let goes_on = !arrival.restarted && self.current.confirmed && (1..=STRANGE_JUMP).contains(&ahead);
        if goes_on {
            sequences.goes_on_from(self.current.newest_sequence());
        }
        if let Some(before) = self.let_rival_go() {
            sequences.inherit_nack_budget(&before);
        }
        let mark = self.current.counters.received;
        self.rival = Some(Rival { sequences, kind: RivalKind::New { goes_on }, run: 1, mark });
        Admission::Apply(None)
    }

    fn let_rival_go(&mut self) -> Option<Sequences> {
        let rival = self.rival.take()?;
        self.let_go.add(&rival.reporter_counters());
        let (source, seen) = (rival.sequences.source_socket(), rival.sequences.last_seen());
        self.left.retain(|(other, _)| *other != source);
        if self.left.len() == LEFT {
            self.left.remove(0);
        } else if self.left.is_empty() {
            self.left.reserve_exact(LEFT);
        }
        self.left.push((source, seen));
        Some(rival.sequences)
    }

    /// The rival becomes the reporter.
    fn change_over(&mut self) {
        let Some(Rival { sequences, kind, .. }) = self.rival.take() else { return };
        let mut left = std::mem::replace(&mut self.current, sequences);
        match kind {
            RivalKind::New { goes_on } => {
                let anew = !goes_on && (left.confirmed || self.current.began_anew());
                self.current.take_over_from(&mut left, anew);
            }
            RivalKind::Former { .. } => {
                // The reporter was never there, so nothing of that count is missing.
                self.current.take_over_from(&mut left, true);
                left.counters.gaps_filled = left.counters.gaps;
            }
        }
        let ReporterCounters { gaps, restarts, .. } = left.counters;
        let (kind, mark) = (RivalKind::Former { gaps, restarts }, self.current.counters.received);
        self.rival = Some(Rival { sequences: left, kind, run: 0, mark });
    }
}
