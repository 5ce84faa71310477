//! Which INT datagrams are missing, by sequence numbers per switch and its separately numbering parts.
//!
//! v0.5 without a drop or switch-local header does not identify its switch; its source address is used
//! instead. Sequences have 32 bits, 22 in v2.0. A source that always sends the same number does not count;
//! its losses are unknown.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use dta_proto::counter::gaps::{GapCounters, RESTART};
use foldhash::fast::RandomState;

use crate::int;

/// Sequences behind the newest that are distinguished from repeats.
const WINDOW: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceName {
    /// The number of a switch, and the part of it.
    Switch(u32, u8),
    /// The address of a switch that does not send its number, and the part of it.
    Address(IpAddr, u8),
}

impl std::fmt::Display for SourceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SourceName::Switch(switch, part) => write!(f, "{switch}/{part}"),
            SourceName::Address(address, part) => write!(f, "{address}/{part}"),
        }
    }
}

#[derive(Clone, Copy)]
struct Numbered {
    newest: u32,
    /// Bit d: the sequence d behind the newest was seen.
    seen: u64,
    counters: GapCounters,
}

/// All sources, at most a configured number; datagrams of others are only counted in total.
pub struct Sources {
    places: HashMap<SourceName, usize, RandomState>,
    all: Vec<(SourceName, Numbered)>,
    /// Place of the last one heard: a switch rarely sends a single datagram.
    last: usize,
    limit: usize,
    beyond: u64,
    /// Sources whose numbers an XDP program follows, and its datagrams of sources beyond the limit.
    of_program: BTreeMap<SourceName, GapCounters>,
    beyond_of_program: u64,
}

impl Sources {
    /// Makes room for this many sources.
    pub(crate) fn new(limit: usize) -> Sources {
        Sources {
            places: HashMap::with_capacity_and_hasher(limit, RandomState::default()),
            all: Vec::with_capacity(limit),
            last: 0,
            limit,
            beyond: 0,
            of_program: BTreeMap::new(),
            beyond_of_program: 0,
        }
    }

    /// Each source once: one that is followed in both places has the counts of both.
    pub fn iter(&self) -> impl Iterator<Item = (SourceName, GapCounters)> {
        let own = self.all.iter().map(|(name, source)| {
            let mut counters = source.counters;
            self.of_program.get(name).into_iter().for_each(|more| counters.add(more));
            (*name, counters)
        });
        let others = self.of_program.iter().filter(|(name, _)| !self.places.contains_key(name));
        own.chain(others.map(|(name, counters)| (*name, *counters)))
    }

    /// Replaces what an XDP program counted.
    pub(crate) fn set_program_sources(&mut self, sources: Vec<(SourceName, GapCounters)>, beyond: u64) {
        (self.of_program, self.beyond_of_program) = (sources.into_iter().collect(), beyond);
    }

    pub fn sum(&self) -> GapCounters {
        let mut sum = GapCounters::default();
        self.iter().for_each(|(_, counters)| sum.add(&counters));
        sum
    }

    /// Datagrams of sources beyond the limit.
    pub fn datagrams_beyond_limit(&self) -> u64 {
        self.beyond + self.beyond_of_program
    }

    pub(crate) fn note_datagram(&mut self, from: IpAddr, source: &int::DatagramSource) {
        let name = match source.switch {
            Some(switch) => SourceName::Switch(switch, source.hardware),
            None => SourceName::Address(from, source.hardware),
        };
        let sequence = source.sequence;
        if self.all.get(self.last).is_none_or(|(last, _)| *last != name) {
            let Some(place) = self.places.get(&name) else {
                self.add_source(name, sequence);
                return;
            };
            self.last = *place;
        }
        let known = &mut self.all[self.last].1;
        let counters = &mut known.counters;
        let bits = u32::from(source.sequence_bits).min(32);
        let mask = u32::MAX >> (32 - bits);
        let ahead = sequence.wrapping_sub(known.newest) & mask;
        let behind = known.newest.wrapping_sub(sequence) & mask;
        if ahead == 0 {
            counters.repeats += 1;
        } else if ahead < RESTART {
            counters.gaps += u64::from(ahead - 1);
            known.seen = if ahead < WINDOW { known.seen << ahead | 1 } else { 1 };
            known.newest = sequence;
        } else if behind < WINDOW {
            if known.seen >> behind & 1 == 1 {
                counters.repeats += 1;
            } else {
                known.seen |= 1 << behind;
                counters.gaps_filled += 1;
            }
        } else {
            counters.restarts += 1;
            (known.newest, known.seen) = (sequence, u64::MAX);
        }
    }

    /// Records the first datagram of a source. Nothing before it is missing.
    #[cold]
    fn add_source(&mut self, name: SourceName, sequence: u32) {
        if self.all.len() == self.limit {
            self.beyond += 1;
            return;
        }
        let counters = GapCounters::default();
        self.places.insert(name, self.all.len());
        self.all.push((name, Numbered { newest: sequence, seen: u64::MAX, counters }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(switch: Option<u32>, sequence: u32, sequence_bits: u8) -> int::DatagramSource {
        int::DatagramSource { switch, hardware: 1, sequence, sequence_bits }
    }

    fn of(bits: u8, sequences: &[u32]) -> GapCounters {
        let mut sources = Sources::new(1);
        for sequence in sequences {
            sources.note_datagram(IpAddr::from([127, 0, 0, 1]), &source(Some(7), *sequence, bits));
        }
        sources.sum()
    }

    #[test]
    fn gaps_late_ones_and_repeats() {
        let counted = of(32, &[5, 6, 9, 8, 8, 10]);
        assert_eq!((counted.gaps, counted.gaps_filled, counted.repeats), (2, 1, 1));
    }

    #[test]
    fn sequences_wrap_at_their_width() {
        assert_eq!(of(32, &[u32::MAX, 1]).gaps, 1);
        assert_eq!(of(22, &[(1 << 22) - 1, 2]).gaps, 2);
        assert_eq!(of(22, &[(1 << 22) - 1, 2]).restarts, 0);
    }

    #[test]
    fn a_switch_that_starts_anew_lost_nothing() {
        let counted = of(32, &[1_000_000, 1, 2, 4]);
        assert_eq!((counted.restarts, counted.gaps), (1, 1));
    }

    #[test]
    fn one_that_does_not_count_lost_nothing_that_is_known() {
        let counted = of(32, &[0; 100]);
        assert_eq!((counted.gaps, counted.repeats), (0, 99));
    }

    #[test]
    fn sources_are_kept_apart_and_bounded() {
        let mut sources = Sources::new(2);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        sources.note_datagram(a, &source(None, 1, 32));
        sources.note_datagram(b, &source(None, 9, 32));
        sources.note_datagram(a, &source(None, 3, 32));
        sources.note_datagram(a, &source(Some(4), 1, 32));
        assert_eq!((sources.sum().gaps, sources.datagrams_beyond_limit()), (1, 1));
        let mut names: Vec<_> = sources.iter().map(|(name, _)| name.to_string()).collect();
        names.sort();
        assert_eq!(names, ["10.0.0.1/1", "10.0.0.2/1"]);
    }

    #[test]
    fn a_source_that_a_program_follows_too_is_one_with_the_counts_of_both() {
        let mut sources = Sources::new(2);
        for sequence in [1, 3] {
            sources.note_datagram(IpAddr::from([10, 0, 0, 1]), &source(Some(7), sequence, 32));
        }
        let counted = |gaps| GapCounters { gaps, ..GapCounters::default() };
        let of_program = [(SourceName::Switch(7, 1), counted(5)), (SourceName::Switch(8, 1), counted(2))];
        sources.set_program_sources(of_program.into(), 0);
        let gaps: Vec<_> = sources.iter().map(|(name, counters)| (name.to_string(), counters.gaps)).collect();
        assert_eq!(gaps, [("7/1".to_owned(), 6), ("8/1".to_owned(), 2)]);
    }
}
