//! What the software NIC counts.

pub use dta_proto::counter::nic::Counter;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicCounts([u64; Counter::ALL.len()]);

impl Default for NicCounts {
    fn default() -> Self {
        NicCounts([0; Counter::ALL.len()])
    }
}

impl NicCounts {
    #[inline(always)]
    pub fn increment(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }

    #[inline(always)]
    pub fn add(&mut self, counter: Counter, n: u64) {
        self.0[counter as usize] += n;
    }

    #[inline(always)]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    pub fn set(&mut self, counter: Counter, value: u64) {
        self.0[counter as usize] = value;
    }

    /// Packets received but not yet counted under a fate: 0 between batches.
    pub fn unfinished(&self) -> u64 {
        let fates: u64 = Counter::ALL.iter().filter(|c| c.is_final_fate()).map(|&c| self.get(c)).sum();
        self.get(Counter::Received).saturating_sub(fates)
    }

    /// The counters that are not zero, by name.
    pub fn nonzero_counters(&self) -> Vec<(String, u64)> {
        Counter::ALL
            .iter()
            .filter(|&&c| self.get(c) > 0)
            .map(|&c| (c.name().to_owned(), self.get(c)))
            .collect()
    }
}
