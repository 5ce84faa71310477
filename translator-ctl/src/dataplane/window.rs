//! The sequence window of one version-1 reporter: which of the last 1,024 sequences have arrived.

/// Sequences that the window remembers, the newest included.
pub const WINDOW: u32 = 1024;
/// A jump ahead beyond this is no gap but a stranger: see [`Verdict::Outside`].
pub const MAX_JUMP: u32 = 1 << 16;

const WORDS: usize = WINDOW as usize / 64;

/// What the window says about a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ahead of all others: apply. `missing` sequences before it have not arrived.
    New {
        /// How many were skipped.
        missing: u32,
    },
    /// Behind the newest and not seen before: apply. `fills` tells whether it had been counted missing (it had not if it is
    /// older than the first sequence heard).
    Late {
        /// Whether it had been counted missing.
        fills: bool,
    },
    /// Seen before: do not apply.
    Duplicate,
    /// 1,024 or more behind the newest, or more than [`MAX_JUMP`] ahead: whether it is a repeat cannot be told.
    Outside,
}

/// Sequences seen, modulo 2^32.
#[derive(Clone, Debug)]
pub struct Window {
    newest: u32,
    first: u32,
    /// Bit `s mod 1024` tells whether sequence `s` of the window was seen.
    seen: [u64; WORDS],
}

impl Window {
    /// A window that has seen one sequence.
    pub fn new(first: u32) -> Self {
        let mut window = Window { newest: first, first, seen: [0; WORDS] };
        window.mark(first);
        window
    }

    /// Counts as missing what came after `earlier` and before the first sequence seen; how many that is. 0 if it lies not before
    /// it. Whoever knows `earlier` knows that the reporter went on from there, so that it may be any number.
    pub fn missing_since(&mut self, earlier: u32) -> u32 {
        let ahead = self.first.wrapping_sub(earlier);
        if ahead == 0 || ahead > i32::MAX as u32 {
            return 0;
        }
        self.first = earlier;
        ahead - 1
    }

    /// The newest sequence seen.
    pub fn newest(&self) -> u32 {
        self.newest
    }

    fn mark(&mut self, sequence: u32) {
        let bit = sequence % WINDOW;
        self.seen[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    fn is_marked(&self, sequence: u32) -> bool {
        let bit = sequence % WINDOW;
        self.seen[(bit / 64) as usize] >> (bit % 64) & 1 != 0
    }

    /// Judges a sequence and remembers it.
    #[inline]
    pub fn offer(&mut self, sequence: u32) -> Verdict {
        let ahead = sequence.wrapping_sub(self.newest);
        if ahead == 1 {
            // The common case: the bit of the sequence that leaves the window is the new one's.
            self.newest = sequence;
            self.mark(sequence);
            return Verdict::New { missing: 0 };
        }
        if ahead != 0 && ahead <= MAX_JUMP {
            if ahead >= WINDOW {
                self.seen = [0; WORDS];
            } else {
                for skipped in 1..ahead {
                    let bit = self.newest.wrapping_add(skipped) % WINDOW;
                    self.seen[(bit / 64) as usize] &= !(1 << (bit % 64));
                }
            }
            self.newest = sequence;
            self.mark(sequence);
            return Verdict::New { missing: ahead - 1 };
        }
        let behind = self.newest.wrapping_sub(sequence);
        if behind >= WINDOW {
            return Verdict::Outside;
        }
        if self.is_marked(sequence) {
            return Verdict::Duplicate;
        }
        self.mark(sequence);
        // Signed distance: `first` lies at most 2^31 behind before this stops telling, and then the window is long past it.
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

    /// The same by keeping every sequence ever seen.
    struct Naive {
        newest: u32,
        first: u32,
        seen: HashSet<u32>,
    }

    impl Naive {
        fn offer(&mut self, s: u32) -> Verdict {
            let ahead = s.wrapping_sub(self.newest);
            if ahead > 0 && ahead <= MAX_JUMP {
                self.newest = s;
                self.seen.insert(s);
                return Verdict::New { missing: ahead - 1 };
            }
            if self.newest.wrapping_sub(s) >= WINDOW {
                return Verdict::Outside;
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
            let mut window = Window::new(start);
            let mut naive = Naive { newest: start, first: start, seen: HashSet::from([start]) };
            for step in steps {
                let s = naive.newest.wrapping_add(step as u32);
                prop_assert_eq!(window.offer(s), naive.offer(s));
                prop_assert_eq!(window.newest(), naive.newest);
            }
        }
    }

    #[test]
    fn wraps_around() {
        let mut w = Window::new(u32::MAX - 1);
        assert_eq!(w.offer(u32::MAX), Verdict::New { missing: 0 });
        assert_eq!(w.offer(2), Verdict::New { missing: 2 });
        assert_eq!(w.offer(0), Verdict::Late { fills: true });
        assert_eq!(w.offer(0), Verdict::Duplicate);
        assert_eq!(w.offer(u32::MAX), Verdict::Duplicate);
    }
}
