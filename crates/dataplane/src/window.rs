//! A sequence window: which of the last 1,024 sequences have arrived.

/// Sequences that the window remembers, the newest included.
pub const WINDOW: u32 = 1024;
/// Sequences less than this ahead are later; all others are earlier.
pub const HALF: u32 = 1 << 31;

const WORDS: usize = WINDOW as usize / 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ahead of all others: apply. `missing` sequences before it have not arrived.
    New { missing: u32 },
    /// Behind the newest and not seen before: apply. `fills` says whether it had been counted missing (not if
    /// it is older than the first sequence heard).
    Late {
        /// Whether it had been counted missing.
        fills: bool,
    },
    /// Already seen: do not apply.
    Duplicate,
    /// Further ahead than allowed. Nothing has changed.
    Ahead,
    /// 1,024 or more behind the newest: it may be a repeat. Nothing has changed.
    Behind,
}

/// Sequences seen, modulo 2^32.
#[derive(Clone, Debug)]
pub struct SequenceWindow {
    newest: u32,
    /// Sequences after this that have not arrived were counted missing.
    first: u32,
    /// Bit `s mod 1024` says whether sequence `s` of the window was seen.
    seen: [u64; WORDS],
}

impl SequenceWindow {
    /// A window that has seen one sequence.
    pub fn new(first: u32) -> Self {
        let mut window = SequenceWindow { newest: first, first, seen: [0; WORDS] };
        window.mark_seen(first);
        window
    }

    /// Counts everything between `earlier` and the first sequence seen as missing, and returns the number; 0
    /// if `earlier` is not before it.
    pub fn missing_since(&mut self, earlier: u32) -> u32 {
        let ahead = self.first.wrapping_sub(earlier);
        if ahead == 0 || ahead >= HALF {
            return 0;
        }
        self.first = earlier;
        ahead - 1
    }

    pub fn newest_sequence(&self) -> u32 {
        self.newest
    }

    pub fn has_seen(&self, sequence: u32) -> bool {
        self.newest.wrapping_sub(sequence) < WINDOW && self.is_marked(sequence)
    }

    /// Whether a sequence is in the window, or ahead by less than its length.
    pub fn is_near(&self, sequence: u32) -> bool {
        let ahead = sequence.wrapping_sub(self.newest);
        ahead < WINDOW || ahead.wrapping_neg() < WINDOW
    }

    fn mark_seen(&mut self, sequence: u32) {
        let bit = sequence % WINDOW;
        self.seen[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    fn is_marked(&self, sequence: u32) -> bool {
        let bit = sequence % WINDOW;
        self.seen[(bit / 64) as usize] >> (bit % 64) & 1 != 0
    }

    /// Accepts the sequence after the newest: the common case. The new one takes the bit of the one that
    /// leaves the window.
    #[inline]
    pub fn advance_by_one(&mut self) {
        self.newest = self.newest.wrapping_add(1);
        self.mark_seen(self.newest);
    }

    /// Judges a sequence less than a window's length ahead and records it.
    pub fn offer_sequence(&mut self, sequence: u32) -> Verdict {
        let ahead = sequence.wrapping_sub(self.newest);
        if (1..WINDOW).contains(&ahead) {
            for skipped in 1..ahead {
                let bit = sequence.wrapping_sub(skipped) % WINDOW;
                self.seen[(bit / 64) as usize] &= !(1 << (bit % 64));
            }
            self.newest = sequence;
            self.mark_seen(sequence);
            return Verdict::New { missing: ahead - 1 };
        }
        let behind = self.newest.wrapping_sub(sequence);
        if behind >= WINDOW {
            return if ahead < HALF { Verdict::Ahead } else { Verdict::Behind };
        }
        if self.is_marked(sequence) {
            return Verdict::Duplicate;
        }
        self.mark_seen(sequence);
        // Signed distance: `first` is at most 2^31 behind before this fails, and by then the window is long
        // past it.
        Verdict::Late { fills: (sequence.wrapping_sub(self.first) as i32) > 0 || self.first_is_far() }
    }

    fn first_is_far(&self) -> bool {
        self.newest.wrapping_sub(self.first) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// The same, by keeping every sequence ever seen.
    struct Naive {
        newest: u32,
        first: u32,
        seen: HashSet<u32>,
    }

    impl Naive {
        fn offer(&mut self, s: u32) -> Verdict {
            let ahead = s.wrapping_sub(self.newest);
            if ahead > 0 && ahead < WINDOW {
                self.newest = s;
                self.seen.insert(s);
                return Verdict::New { missing: ahead - 1 };
            }
            if self.newest.wrapping_sub(s) >= WINDOW {
                return if ahead < HALF { Verdict::Ahead } else { Verdict::Behind };
            }
            if !self.seen.insert(s) {
                return Verdict::Duplicate;
            }
            let fills = s.wrapping_sub(self.first) <= self.newest.wrapping_sub(self.first);
            Verdict::Late { fills }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(start in any::<u32>(), steps in prop::collection::vec(
            prop_oneof![8 => -40i64..40, 2 => -1100i64..1100, 1 => -70_000i64..70_000], 0..400)) {
            let mut window = SequenceWindow::new(start);
            let mut naive = Naive { newest: start, first: start, seen: HashSet::from([start]) };
            for step in steps {
                let s = naive.newest.wrapping_add(step as u32);
                let has = naive.newest.wrapping_sub(s) < WINDOW && naive.seen.contains(&s);
                prop_assert_eq!(window.has_seen(s), has);
                if s == naive.newest.wrapping_add(1) && s.is_multiple_of(2) {
                    window.advance_by_one();
                    naive.offer(s);
                } else {
                    prop_assert_eq!(window.offer_sequence(s), naive.offer(s));
                }
                prop_assert_eq!(window.newest_sequence(), naive.newest);
            }
        }
    }

    #[test]
    fn wraps_around() {
        let mut w = SequenceWindow::new(u32::MAX - 1);
        let mut offer = |s| w.offer_sequence(s);
        assert_eq!(offer(u32::MAX), Verdict::New { missing: 0 });
        assert_eq!(offer(2), Verdict::New { missing: 2 });
        assert_eq!(offer(0), Verdict::Late { fills: true });
        assert_eq!(offer(0), Verdict::Duplicate);
        assert_eq!(offer(u32::MAX), Verdict::Duplicate);
        assert_eq!(offer(2 + HALF - 1), Verdict::Ahead);
        assert_eq!(offer(2 + HALF), Verdict::Behind);
    }
}
