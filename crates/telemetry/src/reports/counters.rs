//! Counters of INT, named as in [`dta_proto::counter::translator`].

pub use dta_proto::counter::IntReason;
use dta_proto::counter::translator as names;
use dta_proto::telemetry::Metric;

/// Counters of all listeners. `reports = dropped + not_watched + unchanged + changed` at any time.
#[derive(Clone, Debug, Default)]
pub struct IntCounters {
    pub datagrams: u64,
    /// Reports in them; an unparseable datagram counts as one.
    pub reports: u64,
    dropped: [u64; IntReason::ALL.len()],
    /// Reports of flows not on the watchlist.
    pub not_watched: u64,
    /// Reports that led to nothing.
    pub unchanged: u64,
    /// Reports that led to primitives.
    pub changed: u64,
    /// Primitives made; each then counts as a report of the data plane.
    pub primitives: u64,
    /// Values replaced by a later one of the same key in the same batch, and so not written.
    pub superseded: u64,
    /// Primitives that are event list entries.
    pub events: u64,
    /// Values that made no event, by metric.
    pub suppressed: [u64; Metric::ALL.len()],
    /// Reports whose counts were written early because another flow took their place.
    pub counts_early: u64,
    /// Reports whose packet has INT that is not read.
    pub unread: u64,
    pub xd: u64,
    pub mx: u64,
    /// Switches beyond those kept per path.
    pub long_trails: u64,
}

impl IntCounters {
    pub fn dropped_reports(&self, reason: IntReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(super) fn count_dropped(&mut self, reason: IntReason) {
        self.dropped[reason as usize] += 1;
    }

    /// What does not add up.
    pub fn find_imbalance(&self) -> Option<String> {
        let dropped: u64 = self.dropped.iter().sum();
        let ended = dropped + self.not_watched + self.unchanged + self.changed;
        (self.reports != ended).then(|| format!("{} reports of INT, and {ended} that ended", self.reports))
    }

    /// Every counter by its dotted name, without reasons that are zero.
    pub(super) fn named_counters(&self) -> Vec<(String, u64)> {
        let all = [
            (&names::INT_DATAGRAMS, self.datagrams),
            (&names::INT_REPORTS, self.reports),
            (&names::INT_NOT_WATCHED, self.not_watched),
            (&names::INT_UNCHANGED, self.unchanged),
            (&names::INT_CHANGED, self.changed),
            (&names::INT_PRIMITIVES, self.primitives),
            (&names::INT_SUPERSEDED, self.superseded),
            (&names::INT_EVENTS, self.events),
            (&names::INT_COUNTS_EARLY, self.counts_early),
            (&names::INT_UNREAD, self.unread),
            (&names::INT_XD, self.xd),
            (&names::INT_MX, self.mx),
            (&names::INT_LONG_TRAILS, self.long_trails),
        ];
        let mut list: Vec<_> = all.into_iter().map(|(name, count)| (name.format_name(&[]), count)).collect();
        for (reason, count) in IntReason::ALL.iter().zip(&self.dropped).filter(|(_, count)| **count != 0) {
            list.push((names::INT_DROPPED.format_name(&[reason.name()]), *count));
        }
        for (metric, count) in Metric::ALL.iter().zip(&self.suppressed) {
            list.push((names::INT_SUPPRESSED.format_name(&[metric.name()]), *count));
        }
        list
    }
}
