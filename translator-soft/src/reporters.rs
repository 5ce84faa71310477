//! Reporters heard: their sequence windows, where to send NACKs, and what they are counted for.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use super::window::{Verdict, WINDOW, Window};

/// Reports outside the window in a row, without any inside, after which the window is placed anew: the reporter has
/// restarted, and none of its reports that said so arrived.
const STRANGERS: u32 = WINDOW;

/// An address and port in one number: the per-report path compares it, and seldom needs its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source(u64);

impl Source {
    #[inline]
    pub(crate) fn new(ip: Ipv4Addr, port: u16) -> Source {
        Source(u64::from(u32::from(ip)) << 16 | u64::from(port))
    }

    #[inline]
    pub(crate) fn of(socket: SocketAddrV4) -> Source {
        Source::new(*socket.ip(), socket.port())
    }

    pub(crate) fn ip(self) -> Ipv4Addr {
        Ipv4Addr::from((self.0 >> 16) as u32)
    }

    pub(crate) fn socket(self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip(), self.0 as u16)
    }
}

/// What is counted per reporter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReporterCounters {
    /// Reports heard, not decodable ones aside.
    pub received: u64,
    /// Sequences skipped when a later one came, and those between an earlier life of this translator and this one.
    pub gaps: u64,
    /// Of them, those that came after all: reordered, or sent again after a NACK.
    pub gaps_filled: u64,
    /// Reports whose sequence was seen before.
    pub duplicates: u64,
    /// Reports outside the window.
    pub out_of_window: u64,
    /// Times the sequence began anew.
    pub restarts: u64,
    /// NACK datagrams sent to it.
    pub nacks: u64,
}

/// One version-1 reporter.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Its id.
    pub id: u16,
    /// What is counted for it.
    pub counters: ReporterCounters,
    /// Where its datagrams come from, and NACKs go.
    source: Source,
    window: Window,
    strangers: u32,
    /// Whether it is known to have begun anew since it was first heard, or with that.
    began_anew: bool,
    /// Where its datagrams came from before: late ones may still come from there.
    previous: Option<Source>,
}

/// A run of sequences to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) first: u32,
    pub(crate) count: u16,
}

/// What is to be done with a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Apply it; ask for these sequences before it.
    Apply(Option<Missing>),
    /// Drop it: seen before.
    Duplicate,
    /// Drop it: outside the window.
    OutOfWindow,
    /// Drop it: too many reporters.
    TooMany,
}

/// All version-1 reporters, at most a configured number.
pub struct Reporters {
    /// Index + 1 in `list` by reporter id; 0 = not heard.
    index: Vec<u16>,
    list: Vec<Reporter>,
    limit: usize,
    /// How far an earlier life of this translator had heard those that this one has not heard yet.
    earlier: BTreeMap<u16, u32>,
}

impl Reporters {
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, usize::from(u16::MAX));
        Reporters { index: vec![0; 1 << 16], list: Vec::new(), limit, earlier: BTreeMap::new() }
    }

    /// Tells how far an earlier life of this translator had heard a reporter: what lies between that and the first sequence that this
    /// one hears is missing. It is not asked for, as the earlier life may have taken some of it without being able to say so.
    pub(crate) fn heard_earlier(&mut self, id: u16, newest: u32) {
        match self.index[usize::from(id)] {
            0 => drop(self.earlier.insert(id, newest)),
            place => self.list[usize::from(place) - 1].missing_since(newest),
        }
    }

    /// Every reporter heard, in the order of appearance.
    pub fn iter(&self) -> impl Iterator<Item = &Reporter> {
        self.list.iter()
    }

    /// Judges a report by its sequence.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        id: u16,
        sequence: u32,
        restarted: bool,
        retransmittable: bool,
        source: Source,
    ) -> Admission {
        let reporter = match self.index[usize::from(id)] {
            0 => {
                if self.list.len() >= self.limit {
                    return Admission::TooMany;
                }
                let mut reporter = Reporter {
                    id,
                    source,
                    counters: ReporterCounters { received: 1, ..Default::default() },
                    window: Window::new(sequence),
                    strangers: 0,
                    began_anew: restarted,
                    previous: None,
                };
                if let Some(newest) = self.earlier.remove(&id) {
                    reporter.missing_since(newest);
                }
                self.list.push(reporter);
                self.index[usize::from(id)] = self.list.len() as u16;
                return Admission::Apply(None);
            }
            place => &mut self.list[usize::from(place) - 1],
        };
        reporter.counters.received += 1;
        if restarted && reporter.is_restart(sequence, source) {
            reporter.begin_anew(sequence, source);
            return Admission::Apply(None);
        }
        let verdict = reporter.window.offer(sequence);
        if verdict != Verdict::Outside {
            reporter.strangers = 0;
        }
        match verdict {
            Verdict::New { missing } => {
                reporter.heard_from(source);
                if missing == 0 {
                    return Admission::Apply(None);
                }
                reporter.counters.gaps += u64::from(missing);
                if !retransmittable {
                    return Admission::Apply(None);
                }
                // What is older than the window would not be taken when it came again.
                let count = missing.min(WINDOW - 1);
                reporter.counters.nacks += 1;
                Admission::Apply(Some(Missing { first: sequence.wrapping_sub(count), count: count as u16 }))
            }
            Verdict::Late { fills } => {
                reporter.counters.gaps_filled += u64::from(fills);
                Admission::Apply(None)
            }
            Verdict::Duplicate if reporter.is_strange(source) => {
                // A new process, whose first report did not arrive, counts anew.
                reporter.begin_anew(sequence, source);
                Admission::Apply(None)
            }
            Verdict::Duplicate => {
                reporter.counters.duplicates += 1;
                Admission::Duplicate
            }
            Verdict::Outside => {
                reporter.strangers += 1;
                if reporter.strangers >= STRANGERS {
                    reporter.begin_anew(sequence, source);
                    return Admission::Apply(None);
                }
                reporter.counters.out_of_window += 1;
                Admission::OutOfWindow
            }
        }
    }
}

impl Reporter {
    /// The newest of its sequences heard.
    pub fn newest(&self) -> u32 {
        self.window.newest()
    }

    fn missing_since(&mut self, newest: u32) {
        if !self.began_anew {
            self.counters.gaps += u64::from(self.window.missing_since(newest));
        }
    }

    /// Whether a report that says "restarted" is the first of a new run, rather than a repeat or a neighbour of one that said so
    /// before: it comes from another socket, or lies outside the window.
    fn is_restart(&self, sequence: u32, source: Source) -> bool {
        let newest = self.window.newest();
        self.is_strange(source)
            || (newest.wrapping_sub(sequence) >= WINDOW && sequence.wrapping_sub(newest) >= WINDOW)
    }

    /// Whether the reporter was never heard from there.
    fn is_strange(&self, source: Source) -> bool {
        source != self.source && Some(source) != self.previous
    }

    fn heard_from(&mut self, source: Source) {
        if source != self.source {
            self.previous = Some(std::mem::replace(&mut self.source, source));
        }
    }

    fn begin_anew(&mut self, sequence: u32, source: Source) {
        self.window = Window::new(sequence);
        self.heard_from(source);
        self.strangers = 0;
        self.began_anew = true;
        self.counters.restarts += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Source {
        Source::new(Ipv4Addr::LOCALHOST, port)
    }

    #[test]
    fn a_gap_is_asked_for_if_its_report_can_be_sent_again() {
        let mut r = Reporters::new(4);
        assert_eq!(r.admit(7, 0, true, true, at(1)), Admission::Apply(None));
        assert_eq!(r.admit(7, 3, false, true, at(1)), Admission::Apply(Some(Missing { first: 1, count: 2 })));
        assert_eq!(r.admit(7, 5, false, false, at(1)), Admission::Apply(None));
        assert_eq!(r.admit(7, 1, false, true, at(1)), Admission::Apply(None));
        assert_eq!(r.admit(7, 1, false, true, at(1)), Admission::Duplicate);
        let c = r.list[0].counters;
        assert_eq!((c.received, c.gaps, c.gaps_filled, c.duplicates, c.nacks), (5, 3, 1, 1, 1));
        // A NACK never asks for more than the window would take.
        assert_eq!(
            r.admit(7, 5005, false, true, at(1)),
            Admission::Apply(Some(Missing { first: 5005 - 1023, count: 1023 }))
        );
    }

    #[test]
    fn a_restart_begins_anew_and_its_repeat_does_not() {
        let mut r = Reporters::new(4);
        for s in 0..10 {
            assert_eq!(r.admit(7, s, s == 0, false, at(1)), Admission::Apply(None));
        }
        // The network repeats the first report.
        assert_eq!(r.admit(7, 0, true, false, at(1)), Admission::Duplicate);
        // A new process, on a socket of its own.
        assert_eq!(r.admit(7, 0, true, false, at(2)), Admission::Apply(None));
        assert_eq!(r.admit(7, 1, false, false, at(2)), Admission::Apply(None));
        // The same socket, far away.
        assert_eq!(r.admit(7, 0x8000_0000, true, false, at(2)), Admission::Apply(None));
        assert_eq!(r.list[0].counters.restarts, 2);
    }

    #[test]
    fn a_new_socket_that_counts_anew_is_a_restart_even_unannounced() {
        let mut r = Reporters::new(4);
        for s in 0..10 {
            r.admit(7, s, s == 0, false, at(1));
        }
        // The announcement, sequence 0, is lost.
        for s in 1..10 {
            assert_eq!(r.admit(7, s, false, false, at(2)), Admission::Apply(None), "{s}");
        }
        // The network repeats reports of both processes.
        assert_eq!(r.admit(7, 9, false, false, at(2)), Admission::Duplicate);
        assert_eq!(r.admit(7, 9, false, false, at(1)), Admission::Duplicate);
        assert_eq!(r.list[0].counters.restarts, 1);
    }

    #[test]
    fn a_restart_that_nobody_announced_is_believed_after_a_window() {
        let mut r = Reporters::new(4);
        r.admit(7, 1_000_000, true, false, at(1));
        let mut dropped = 0;
        for s in 0..2000 {
            match r.admit(7, s, false, false, at(2)) {
                Admission::OutOfWindow => dropped += 1,
                Admission::Apply(None) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(dropped, STRANGERS - 1);
    }

    #[test]
    fn what_no_life_of_the_translator_heard_is_missing_and_not_asked_for() {
        let mut r = Reporters::new(8);
        let counted = |r: &Reporters, id| {
            let c = r.iter().find(|reporter| reporter.id == id).unwrap().counters;
            (c.gaps, c.gaps_filled, c.nacks)
        };
        for id in 1..6 {
            r.heard_earlier(id, 99);
        }
        assert_eq!(r.admit(1, 130, false, true, at(1)), Admission::Apply(None));
        assert_eq!(counted(&r, 1), (30, 0, 0));
        // One of them was only late.
        assert_eq!(r.admit(1, 120, false, true, at(1)), Admission::Apply(None));
        assert_eq!(counted(&r, 1), (30, 1, 0));
        // It goes on where it was; it begins anew, and says so or not.
        r.admit(2, 100, false, true, at(2));
        r.admit(3, 130, true, true, at(3));
        r.admit(4, 5, false, true, at(4));
        r.admit(5, 0x8000_0000, false, true, at(5));
        assert_eq!([2, 3, 4, 5].map(|id| counted(&r, id)), [(0, 0, 0); 4]);
        // Heard before the session that tells of the earlier life is open.
        r.admit(6, 110, false, true, at(6));
        r.admit(6, 111, false, true, at(6));
        r.heard_earlier(6, 99);
        assert_eq!(counted(&r, 6), (10, 0, 0));
        assert_eq!(r.list[0].newest(), 130);
    }

    #[test]
    fn reporters_are_bounded() {
        let mut r = Reporters::new(2);
        assert_eq!(r.admit(1, 0, false, false, at(1)), Admission::Apply(None));
        assert_eq!(r.admit(2, 0, false, false, at(1)), Admission::Apply(None));
        assert_eq!(r.admit(3, 0, false, false, at(1)), Admission::TooMany);
        assert_eq!(r.admit(1, 1, false, false, at(1)), Admission::Apply(None));
    }
}
