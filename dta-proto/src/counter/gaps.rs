//! Gaps in numbered datagrams, by source: INT switches and exporters of flows.

use super::Definition;

/// A skip of this many numbers or more, ahead or back, is a restart: so many are never lost in a row unless the source or
/// the translator was down.
pub const RESTART: u32 = 1 << 16;
/// Sources that are reported by name.
const NAMED: usize = 32;

crate::counters! {
    /// Counters of one source.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct GapCounters {
        /// Numbers skipped.
        pub gaps: u64,
        /// Of these, those that arrived later.
        pub gaps_filled: u64,
        /// Datagrams with a number already seen. They are processed all the same.
        pub repeats: u64,
        /// Times that the numbering restarted.
        pub restarts: u64,
    }
}

impl GapCounters {
    /// The gaps of the 32 sources with the most, and how many were filled, under the names of these two counters.
    pub fn largest_gaps<N: Ord + core::fmt::Display>(
        sources: impl Iterator<Item = (N, GapCounters)>,
        [gaps, filled]: [&Definition; 2],
    ) -> Vec<(String, u64)> {
        let mut lacking: Vec<_> = sources.filter(|(_, counters)| counters.gaps != 0).collect();
        lacking.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.gaps.cmp(&of_a.gaps).then_with(|| a.cmp(b)));
        let named = lacking.into_iter().take(NAMED).flat_map(|(source, counters)| {
            let source = source.to_string();
            [
                (gaps.format_name(&[&source]), counters.gaps),
                (filled.format_name(&[&source]), counters.gaps_filled),
            ]
        });
        named.collect()
    }
}
