//! Sequences of version-0 reporters: 8 bits, per source address, checked only if a report is retransmittable.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

use super::budget::{Budget, Rate};

/// Sequences behind the newest that count as old: half the 8-bit space.
const HALF: u8 = 128;
/// Most NACKs for one gap: version 0 requests one sequence at a time.
pub(crate) const MOST_NACKS: u8 = 32;

/// The last 128 sequences of a source.
#[derive(Clone, Copy, Debug)]
struct Window8 {
    newest: u8,
    /// Bit d: the sequence d behind the newest was seen.
    seen: u128,
    nacks: Budget,
}

/// What to do with a version-0 report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission0 {
    /// Apply it; `gap` sequences before it were skipped.
    Apply {
        gap: u8,
    },
    Duplicate,
}

/// Version-0 reporters by address, at most a configured number; others are not tracked.
pub(crate) struct Version0Reporters {
    windows: HashMap<Ipv4Addr, Window8>,
    limit: usize,
    nacks: Option<Rate>,
    /// Addresses that may report; empty = all.
    listed: HashSet<Ipv4Addr>,
}

impl Version0Reporters {
    /// `nacks` is the limit per source and second.
    pub(crate) fn new(limit: usize, nacks: u32) -> Self {
        let mut reporters = Version0Reporters {
            windows: HashMap::with_capacity(limit.min(1024)),
            limit,
            nacks: None,
            listed: HashSet::new(),
        };
        reporters.set_nacks(nacks);
        reporters
    }

    /// Sets the limit of NACKs per source and second.
    pub(crate) fn set_nacks(&mut self, nacks: u32) {
        self.nacks =
            (nacks != 0).then(|| Rate::per_second(nacks.into(), nacks.max(MOST_NACKS.into()).into()));
    }

    /// Accepts reports only from these addresses; from all if there are none.
    pub(crate) fn accept_only(&mut self, addresses: impl Iterator<Item = Ipv4Addr>) {
        self.listed = addresses.collect();
    }

    #[inline]
    pub(crate) fn may_report(&self, source: Ipv4Addr) -> bool {
        self.listed.is_empty() || self.listed.contains(&source)
    }

    pub(crate) fn admit_sequence(&mut self, source: Ipv4Addr, sequence: u8, restarted: bool) -> Admission0 {
        const TAKE: Admission0 = Admission0::Apply { gap: 0 };
        let Some(window) = self.windows.get_mut(&source) else {
            if self.windows.len() < self.limit {
                let window = Window8 { newest: sequence, seen: 1, nacks: Budget::default() };
                self.windows.insert(source, window);
            }
            return TAKE;
        };
        let ahead = sequence.wrapping_sub(window.newest);
        if restarted && ahead != 0 {
            (window.newest, window.seen) = (sequence, 1);
            return TAKE;
        }
        if ahead == 0 || ahead >= HALF {
            let behind = ahead.wrapping_neg();
            if behind < HALF && window.seen >> behind & 1 == 1 {
                return Admission0::Duplicate;
            }
            if behind < HALF {
                window.seen |= 1 << behind;
            }
            return TAKE;
        }
        window.newest = sequence;
        window.seen = window.seen << ahead | 1;
        Admission0::Apply { gap: ahead - 1 }
    }

    /// How many of a gap's last sequences may be requested: at most [`MOST_NACKS`] and the source's budget.
    pub(crate) fn requestable_sequences(&mut self, now: u64, source: Ipv4Addr, gap: u8) -> u8 {
        let (Some(rate), Some(window)) = (self.nacks, self.windows.get_mut(&source)) else { return 0 };
        (0..gap.min(MOST_NACKS)).take_while(|_| window.nacks.take(now, rate)).count() as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_repeats_and_wrapping() {
        let a = Ipv4Addr::LOCALHOST;
        let mut r = Version0Reporters::new(1, 0);
        let apply = |gap| Admission0::Apply { gap };
        assert_eq!(r.admit_sequence(a, 250, false), apply(0));
        assert_eq!(r.admit_sequence(a, 251, false), apply(0));
        assert_eq!(r.admit_sequence(a, 1, false), apply(5));
        assert_eq!(r.admit_sequence(a, 253, false), apply(0));
        assert_eq!(r.admit_sequence(a, 253, false), Admission0::Duplicate);
        assert_eq!(r.admit_sequence(a, 1, false), Admission0::Duplicate);
        assert_eq!(r.admit_sequence(a, 101, false), apply(99));
        // One source more than is tracked: always accepted.
        assert_eq!(r.admit_sequence(Ipv4Addr::UNSPECIFIED, 5, false), apply(0));
        assert_eq!(r.admit_sequence(Ipv4Addr::UNSPECIFIED, 5, false), apply(0));
    }

    #[test]
    fn nacks_are_asked_for_and_bounded() {
        let a = Ipv4Addr::LOCALHOST;
        let mut none = Version0Reporters::new(4, 0);
        none.admit_sequence(a, 0, false);
        assert_eq!(none.requestable_sequences(0, a, 99), 0);

        let mut some = Version0Reporters::new(4, 40);
        some.admit_sequence(a, 0, false);
        assert_eq!(some.requestable_sequences(0, a, 99), 32);
        assert_eq!(some.requestable_sequences(0, a, 99), 8);
        assert_eq!(some.requestable_sequences(0, a, 99), 0);
        assert_eq!(some.requestable_sequences(500_000_000, a, 99), 20);
        assert_eq!(some.requestable_sequences(500_000_000, Ipv4Addr::UNSPECIFIED, 99), 0, "nobody watched");
    }

    #[test]
    fn a_list_of_addresses_keeps_others_out() {
        let mut r = Version0Reporters::new(4, 0);
        assert!(r.may_report(Ipv4Addr::LOCALHOST));
        r.accept_only([Ipv4Addr::LOCALHOST].into_iter());
        assert!(r.may_report(Ipv4Addr::LOCALHOST) && !r.may_report(Ipv4Addr::BROADCAST));
    }
}
