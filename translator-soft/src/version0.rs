//! Sequences of version-0 reporters: 8 bits, per source address, and looked at only where a report is retransmittable.

use std::collections::HashMap;
use std::net::Ipv4Addr;

/// Sequences behind the newest that are told apart from new ones: half of what 8 bits can say.
const HALF: u8 = 128;
/// NACKs sent for one gap at most: version 0 asks for one sequence at a time.
pub(crate) const MOST_NACKS: u8 = 32;

/// What the last 128 sequences of a source were.
#[derive(Clone, Copy, Debug)]
struct Window8 {
    newest: u8,
    /// Bit d: the sequence d behind the newest was seen.
    seen: u128,
}

/// What is to be done with a version-0 report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission0 {
    /// Apply it; ask for `missing` sequences from `first`, at most [`MOST_NACKS`], of `gap` that were skipped.
    Apply { first: u8, missing: u8, gap: u8 },
    /// Drop it: seen before.
    Duplicate,
}

/// Version-0 reporters by address, at most a configured number; those beyond are not watched.
pub(crate) struct Version0Reporters {
    windows: HashMap<Ipv4Addr, Window8>,
    limit: usize,
}

impl Version0Reporters {
    pub(crate) fn new(limit: usize) -> Self {
        Version0Reporters { windows: HashMap::with_capacity(limit.min(1024)), limit }
    }

    pub(crate) fn admit(&mut self, source: Ipv4Addr, sequence: u8, restarted: bool) -> Admission0 {
        const TAKE: Admission0 = Admission0::Apply { first: 0, missing: 0, gap: 0 };
        let anew = Window8 { newest: sequence, seen: 1 };
        let Some(window) = self.windows.get_mut(&source) else {
            if self.windows.len() < self.limit {
                self.windows.insert(source, anew);
            }
            return TAKE;
        };
        let ahead = sequence.wrapping_sub(window.newest);
        if restarted && ahead != 0 {
            *window = anew;
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
        let gap = ahead - 1;
        let missing = gap.min(MOST_NACKS);
        Admission0::Apply { first: sequence.wrapping_sub(missing), missing, gap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_repeats_and_wrapping() {
        let a = Ipv4Addr::LOCALHOST;
        let mut r = Version0Reporters::new(1);
        let apply = |first, missing, gap| Admission0::Apply { first, missing, gap };
        assert_eq!(r.admit(a, 250, false), apply(0, 0, 0));
        assert_eq!(r.admit(a, 251, false), apply(251, 0, 0));
        assert_eq!(r.admit(a, 1, false), apply(252, 5, 5));
        assert_eq!(r.admit(a, 253, false), apply(0, 0, 0));
        assert_eq!(r.admit(a, 253, false), Admission0::Duplicate);
        assert_eq!(r.admit(a, 1, false), Admission0::Duplicate);
        assert_eq!(r.admit(a, 101, false), apply(69, 32, 99));
        // One more source than is watched: always taken.
        assert_eq!(r.admit(Ipv4Addr::UNSPECIFIED, 5, false), apply(0, 0, 0));
        assert_eq!(r.admit(Ipv4Addr::UNSPECIFIED, 5, false), apply(0, 0, 0));
    }
}
