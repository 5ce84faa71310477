//! Counts different values: exactly for a few, otherwise with HyperLogLog (Flajolet et al., 2007) and 1,024
//! registers, whose standard error is 1.04 / √1024 = 3.25 %.

/// A power of two.
const REGISTERS: usize = 1024;
const INDEX_BITS: u32 = REGISTERS.trailing_zeros();
/// Hashes stored one by one before registers replace them: they take as much memory.
const MOST_EXACT: usize = REGISTERS / 8;
/// Standard error of the estimates.
pub(super) const STANDARD_ERROR: f64 = 0.0325;

/// A set of hashes. Sets that use the same hash function can be united.
#[derive(Clone, Debug)]
pub(super) enum DistinctSketch {
    /// Sorted.
    Exact(Vec<u64>),
    /// Indexed by the first bits of the hash; each holds the greatest position of the first 1 in the other bits.
    Registers(Box<[u8; REGISTERS]>),
}

impl Default for DistinctSketch {
    fn default() -> Self {
        DistinctSketch::Exact(Vec::new())
    }
}

impl DistinctSketch {
    pub(super) fn insert(&mut self, hash: u64) {
        match self {
            DistinctSketch::Exact(hashes) => {
                let Err(place) = hashes.binary_search(&hash) else { return };
                if hashes.len() < MOST_EXACT {
                    return hashes.insert(place, hash);
                }
                let mut registers = Box::new([0; REGISTERS]);
                hashes.iter().chain([&hash]).for_each(|hash| raise_register(&mut registers, *hash));
                *self = DistinctSketch::Registers(registers);
            }
            DistinctSketch::Registers(registers) => raise_register(registers, hash),
        }
    }

    pub(super) fn unite(&mut self, other: &DistinctSketch) {
        match (&mut *self, other) {
            (_, DistinctSketch::Exact(hashes)) => hashes.iter().for_each(|hash| self.insert(*hash)),
            (DistinctSketch::Registers(own), DistinctSketch::Registers(other)) => {
                own.iter_mut().zip(other.iter()).for_each(|(own, other)| *own = (*own).max(*other));
            }
            (DistinctSketch::Exact(hashes), DistinctSketch::Registers(other)) => {
                let mut registers = other.clone();
                hashes.iter().for_each(|hash| raise_register(&mut registers, *hash));
                *self = DistinctSketch::Registers(registers);
            }
        }
    }

    pub(super) fn is_exact(&self) -> bool {
        matches!(self, DistinctSketch::Exact(_))
    }

    /// Estimates how many different hashes were inserted.
    pub(super) fn estimate(&self) -> f64 {
        let registers = match self {
            DistinctSketch::Exact(hashes) => return hashes.len() as f64,
            DistinctSketch::Registers(registers) => registers,
        };
        let count = REGISTERS as f64;
        let alpha = 0.7213 / (1.0 + 1.079 / count);
        let sum: f64 = registers.iter().map(|rank| 2f64.powi(-i32::from(*rank))).sum();
        let raw = alpha * count * count / sum;
        let empty = registers.iter().filter(|rank| **rank == 0).count();
        // Linear counting, where the raw estimate is biased.
        if raw <= 2.5 * count && empty > 0 { count * (count / empty as f64).ln() } else { raw }
    }
}

fn raise_register(registers: &mut [u8; REGISTERS], hash: u64) {
    let rank = (hash << INDEX_BITS | 1 << (INDEX_BITS - 1)).leading_zeros() + 1;
    let register = &mut registers[(hash >> (64 - INDEX_BITS)) as usize];
    *register = (*register).max(rank as u8);
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn estimates_are_within_four_standard_errors() {
        let hasher = foldhash::quality::FixedState::default();
        for count in [0u64, 1, 100, 128, 129, 500, 2_000, 5_000, 100_000, 1_000_000] {
            let mut sketch = DistinctSketch::default();
            for number in (0..count).chain(0..count.min(1000)) {
                sketch.insert(hasher.hash_one(number));
            }
            let error = (sketch.estimate() - count as f64).abs();
            let allowed = if sketch.is_exact() { 0.0 } else { 4.0 * STANDARD_ERROR * count as f64 };
            assert!(error <= allowed, "{count}: {}", sketch.estimate());
            assert_eq!(sketch.is_exact(), count <= MOST_EXACT as u64);
        }
    }

    #[test]
    fn a_union_is_the_sketch_of_all() {
        let hasher = foldhash::quality::FixedState::default();
        let sketch = |numbers: std::ops::Range<u64>| {
            let mut sketch = DistinctSketch::default();
            numbers.for_each(|number| sketch.insert(hasher.hash_one(number)));
            sketch
        };
        for (a, b) in
            [(0..50, 25..75), (0..50, 0..5000), (0..5000, 0..50), (0..100, 90..190), (0..9000, 3000..20_000)]
        {
            let mut united = sketch(a.clone());
            united.unite(&sketch(b.clone()));
            assert_eq!(united.estimate(), sketch(a.start..a.end.max(b.end)).estimate(), "{a:?} {b:?}");
        }
    }
}
