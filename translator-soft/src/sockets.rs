//! The sockets that report under one reporter's id: the one that it is known by, and one other.
//!
//! Whoever reaches the port can report under a reporter's id. Without the address and port of the
//! reporter he is another socket, and nothing that comes from one socket changes how the reports of
//! another are judged. So a report of the reporter is never dropped on account of somebody else's.
//! Whose count is the reporter's is decided by reports in a row.

use super::reporters::{Admission, ReporterCounters, Source};
use super::sequences::{Arrival, Sequences};
use super::window::LastSeen;

/// A socket that was not heard before goes on in the same count if it begins no further ahead than
/// this; otherwise the reporter has begun anew.
const STRANGE_JUMP: u32 = 1 << 16;
/// Reports in a row by which another socket is believed to be the reporter.
const TWO: u32 = 2;
/// Reports in a row by which a socket is believed that the reporter seemed to have left: some may only
/// be late.
const BACK: u32 = 8;

/// Sockets that are remembered after a third one has taken their place. A reporter whose ports rotate, as behind
/// an address translator, comes back to them.
const LEFT: usize = 8;

/// One version-1 reporter.
#[derive(Clone, Debug)]
pub(crate) struct Sockets {
    current: Sequences,
    /// The other one that was heard last.
    rival: Option<Rival>,
    /// What was counted of those that were heard before.
    let_go: ReporterCounters,
    /// The last of those.
    left: Vec<(Source, LastSeen)>,
}

#[derive(Clone, Debug)]
struct Rival {
    sequences: Sequences,
    kind: Kind,
    /// Its last reports in a row that moved its window ahead.
    run: u32,
    /// What the current one had received when the last of them came.
    mark: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// It was not the reporter's so far, so its gaps are nobody's yet. Whether it began where the
    /// current one was.
    New { goes_on: bool },
    /// It was the reporter's; the gaps and restarts that were counted meanwhile.
    Former { gaps: u64, restarts: u64 },
}

impl Rival {
    /// What is counted of it for the reporter.
    fn counters(&self) -> ReporterCounters {
        let (gaps, restarts) = match self.kind {
            Kind::New { .. } => (0, 0),
            Kind::Former { gaps, restarts } => (gaps, restarts),
        };
        let counters = self.sequences.counters;
        ReporterCounters { gaps, gaps_filled: counters.gaps_filled.min(gaps), restarts, ..counters }
    }
}

impl Sockets {
    /// Of a reporter that is heard for the first time: this report is to be taken.
    pub(crate) fn new(now: u64, first: &Arrival, earlier: Option<u32>) -> Self {
        let current = Sequences::new(now, first, earlier);
        Sockets { current, rival: None, let_go: ReporterCounters::default(), left: Vec::new() }
    }

    /// What is counted for the reporter.
    pub(crate) fn counters(&self) -> ReporterCounters {
        let mut counters = self.let_go;
        counters.add(&self.current.counters);
        if let Some(rival) = &self.rival {
            counters.add(&rival.counters());
        }
        counters.gaps_filled = counters.gaps_filled.min(counters.gaps);
        counters
    }

    /// Whether a second report agreed with the first.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.current.confirmed
    }

    /// When it was heard last.
    pub(crate) fn last_heard(&self) -> u64 {
        let rival = self.rival.as_ref().map_or(0, |rival| rival.sequences.last_heard);
        self.current.last_heard.max(rival)
    }

    /// The newest of its sequences heard.
    pub(crate) fn newest(&self) -> u32 {
        self.current.newest()
    }

    /// Whether its datagrams come from this source.
    pub(crate) fn is_from(&self, source: Source) -> bool {
        self.current.is_from(source)
    }

    /// Tells how far it was heard before: what lies between is missing.
    pub(crate) fn heard_earlier(&mut self, newest: u32) {
        self.current.heard_earlier(newest);
    }

    /// The same reporter where it is, without what was seen before.
    pub(crate) fn meet_anew(&mut self) {
        self.let_rival_go();
        self.current = self.current.met_anew();
    }

    /// Takes a report if it is the one that comes next, as nearly all are.
    #[inline]
    pub(crate) fn take_expected(&mut self, now: u64, arrival: &Arrival) -> bool {
        self.current.take_expected(now, arrival)
    }

    /// Judges any report by the rules of a switch, which knows no sockets.
    pub(crate) fn admit_in_reference(&mut self, now: u64, arrival: &Arrival) -> Admission {
        self.current.admit_in_reference(now, arrival)
    }

    /// Judges any report.
    pub(crate) fn admit(&mut self, now: u64, arrival: &Arrival) -> Admission {
        if self.current.is_from(arrival.source) {
            return self.current.admit(now, arrival);
        }
        let received = self.current.counters.received;
        let Some(rival) = self.rival.as_mut().filter(|rival| rival.sequences.is_from(arrival.source)) else {
            return self.meet(now, arrival);
        };
        let newest = rival.sequences.newest();
        let admission = rival.sequences.admit(now, arrival);
        if rival.mark != received {
            (rival.run, rival.mark) = (0, received);
        }
        rival.run += u32::from(rival.sequences.newest() != newest);
        let needed = match rival.kind {
            Kind::New { .. } => TWO,
            Kind::Former { .. } => BACK,
        };
        if rival.run >= needed && rival.sequences.confirmed {
            self.change_over();
        }
        admission
    }

    /// The first report of a socket, which is to be taken, unless the socket was here before and had sent it then.
    fn meet(&mut self, now: u64, arrival: &Arrival) -> Admission {
        let mut sequences = Sequences::new(now, arrival, None);
        if let Some((_, before)) = self.left.iter().find(|(source, _)| *source == arrival.source) {
            if before.has(arrival.sequence) {
                self.let_go.received += 1;
                self.let_go.duplicates += 1;
                return Admission::Duplicate;
            }
            sequences.remember(*before);
        }
        let ahead = arrival.sequence.wrapping_sub(self.current.newest());
        let goes_on = !arrival.restarted && self.current.confirmed && (1..=STRANGE_JUMP).contains(&ahead);
        if goes_on {
            sequences.goes_on_from(self.current.newest());
        }
        if let Some(before) = self.let_rival_go() {
            sequences.inherit(&before);
        }
        let mark = self.current.counters.received;
        self.rival = Some(Rival { sequences, kind: Kind::New { goes_on }, run: 1, mark });
        Admission::Apply(None)
    }

    fn let_rival_go(&mut self) -> Option<Sequences> {
        let rival = self.rival.take()?;
        self.let_go.add(&rival.counters());
        let (source, seen) = (rival.sequences.source(), rival.sequences.last_seen());
        self.left.retain(|(other, _)| *other != source);
        if self.left.len() == LEFT {
            self.left.remove(0);
        } else if self.left.is_empty() {
            self.left.reserve_exact(LEFT);
        }
        self.left.push((source, seen));
        Some(rival.sequences)
    }

    /// The rival's count is the reporter's from here on.
    fn change_over(&mut self) {
        let Some(Rival { sequences, kind, .. }) = self.rival.take() else { return };
        let mut left = std::mem::replace(&mut self.current, sequences);
        match kind {
            Kind::New { goes_on } => {
                let anew = !goes_on && (left.confirmed || self.current.began_anew());
                self.current.follow(&mut left, anew);
            }
            Kind::Former { .. } => {
                // The reporter was never elsewhere, so nothing of that count is missing.
                self.current.follow(&mut left, true);
                left.counters.gaps_filled = left.counters.gaps;
            }
        }
        let ReporterCounters { gaps, restarts, .. } = left.counters;
        let (kind, mark) = (Kind::Former { gaps, restarts }, self.current.counters.received);
        self.rival = Some(Rival { sequences: left, kind, run: 0, mark });
    }
}
