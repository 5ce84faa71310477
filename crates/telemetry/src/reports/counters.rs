//! Counters of INT, named as in [`dta_proto::counter::translator`].

pub use dta_proto::counter::IntReason;
use dta_proto::counter::translator as names;
use dta_proto::telemetry::Metric;

dta_proto::published_counters! {
    /// Counters of all listeners. `reports = dropped + not_watched + unchanged + changed` at any time.
    #[derive(Clone, Debug, Default)]
    pub struct IntCounters {
        pub datagrams: u64 = names::INT_DATAGRAMS,
        pub reports: u64 = names::INT_REPORTS,
        pub not_watched: u64 = names::INT_NOT_WATCHED,
        pub unchanged: u64 = names::INT_UNCHANGED,
        pub changed: u64 = names::INT_CHANGED,
        pub primitives: u64 = names::INT_PRIMITIVES,
        pub superseded: u64 = names::INT_SUPERSEDED,
        pub events: u64 = names::INT_EVENTS,
        pub counts_early: u64 = names::INT_COUNTS_EARLY,
        pub unread: u64 = names::INT_UNREAD,
        pub xd: u64 = names::INT_XD,
        pub mx: u64 = names::INT_MX,
        pub long_trails: u64 = names::INT_LONG_TRAILS,
    }
    by {
        dropped: IntReason = names::INT_DROPPED,
    }
    and {
        /// Values that made no event, by metric.
        pub suppressed: [u64; Metric::ALL.len()],
    }
}

impl IntCounters {
    pub fn dropped_reports(&self, reason: IntReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(super) fn count_dropped(&mut self, reason: IntReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Says what does not add up.
    pub fn find_imbalance(&self) -> Option<String> {
        let dropped: u64 = self.dropped.iter().sum();
        let ended = dropped + self.not_watched + self.unchanged + self.changed;
        (self.reports != ended).then(|| format!("{} reports of INT, and {ended} that ended", self.reports))
    }

    /// Every counter by its dotted name, without reasons that are zero.
    pub(super) fn named_counters(&self) -> Vec<(String, u64)> {
        let mut list = self.named_fields();
        for (metric, count) in Metric::ALL.iter().zip(&self.suppressed) {
            list.push((names::INT_SUPPRESSED.format_name(&[metric.name()]), *count));
        }
        list
    }
}
