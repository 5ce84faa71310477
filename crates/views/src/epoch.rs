//! Epochs of stores, in words and for programs.

use std::fmt;

use dta_files::moment;
use dta_proto::control::{EarlierEpoch, Epoch, EpochState};
use serde::Serialize;

/// An epoch for programs. Moments are in UTC, in the form that `--at` takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochSummary {
    /// The generation of its memory; `null` if several collectors answered.
    pub generation: Option<u64>,
    /// `open`, `closed` or `kept`.
    pub state: &'static str,
    /// When it was opened to writers.
    pub opened: String,
    /// When the first of its writers was moved away; `null` = still unknown.
    pub ended: Option<String>,
    /// When the last of its writers had moved; `null` = still unknown.
    pub closed: Option<String>,
    /// Whether all writers confirmed that they had moved, and the collector ran throughout; `null` = still unknown.
    pub complete: Option<bool>,
    /// When the collector started in the middle of it: reports that came while it was down are missing; `null` = it
    /// ran throughout.
    pub restarted: Option<String>,
    /// Its used slots; `null` = it is not in the history.
    pub rows: Option<u64>,
    /// Its number in the table; `null` = it is not in the history.
    pub number: Option<u64>,
    /// The collector that it belongs to, if several were asked.
    pub collector: Option<String>,
}

impl From<&Epoch> for EpochSummary {
    fn from(epoch: &Epoch) -> Self {
        let known = |at: u64| (at != 0).then(|| moment::format_utc(at));
        let is_kept = epoch.state() == EpochState::Kept;
        Self {
            generation: (epoch.generation != 0).then_some(epoch.generation),
            state: match epoch.state() {
                EpochState::Open => "open",
                EpochState::Closed => "closed",
                EpochState::Kept => "kept",
            },
            opened: moment::format_utc(epoch.opened),
            ended: known(epoch.flipped_from),
            closed: known(epoch.flipped_to),
            complete: is_kept.then_some(epoch.confirmed && epoch.restarted == 0),
            restarted: known(epoch.restarted),
            rows: is_kept.then_some(epoch.rows),
            number: (epoch.number != 0).then_some(epoch.number),
            collector: (!epoch.collector.is_empty()).then(|| epoch.collector.clone()),
        }
    }
}

impl EpochSummary {
    /// Which epoch it is, and what is unusual about it.
    pub fn describe(&self) -> String {
        let restarted = self.restarted.as_ref().map_or_else(String::new, |at| {
            format!("; the collector was down during it until {at}: reports from that time are missing")
        });
        let Some(end) = &self.ended else {
            return format!("the open epoch, since {}{restarted}", self.opened);
        };
        let more = match self.complete {
            Some(false) if self.restarted.is_none() => {
                "; not all of its writers confirmed that they had moved on"
            }
            None => "; it is not written yet",
            Some(_) => "",
        };
        format!("the epoch from {} to {end}{more}{restarted}", self.opened)
    }
}

/// An epoch before the one asked about, in which an answer was reported.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EarlierSummary {
    /// When it began.
    pub opened: String,
    /// When the next one began.
    pub closed: String,
    /// Its number in the table; `null` = not written yet.
    pub number: Option<u64>,
}

impl From<&EarlierEpoch> for EarlierSummary {
    fn from(epoch: &EarlierEpoch) -> Self {
        Self {
            opened: moment::format_utc(epoch.opened),
            closed: moment::format_utc(epoch.closed),
            number: (epoch.number != 0).then_some(epoch.number),
        }
    }
}

impl EarlierSummary {
    pub fn describe(&self) -> String {
        format!("last reported between {} and {}", self.opened, self.closed)
    }
}

/// A note about batches of an open epoch.
pub const NOT_WRITTEN: &str = "no longer in the ring: what was read of them comes once the epoch is written";

/// A span for which nothing is kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotKept {
    pub from: String,
    pub to: String,
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing is kept from {} to {}", self.from, self.to)
    }
}

/// The moment up to which epochs are covered, as they follow one another.
pub struct EpochCoverage(pub u64);

impl EpochCoverage {
    /// The gap before an epoch, if any; the epoch is covered afterwards.
    pub fn gap_before_epoch(&mut self, epoch: &Epoch) -> Option<NotKept> {
        let before = self.before_moment(epoch.opened);
        // Another collector's epoch may have ended later.
        self.0 = self.0.max(if epoch.state() == EpochState::Open { u64::MAX } else { epoch.flipped_to });
        before
    }

    pub fn before_moment(&self, end: u64) -> Option<NotKept> {
        (self.0 < end).then(|| NotKept { from: moment::format_utc(self.0), to: moment::format_utc(end) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_words(epoch: &Epoch) -> String {
        EpochSummary::from(epoch).describe()
    }

    #[test]
    fn epochs_have_words() {
        let open = Epoch { generation: 3, opened: 1_795_528_800_003, ..Epoch::default() };
        assert_eq!(in_words(&open), "the open epoch, since 2026-11-24T14:00:00.003Z");
        assert_eq!((EpochSummary::from(&open).complete, EpochSummary::from(&open).ended), (None, None));
        let closed =
            Epoch { flipped_from: 1_795_528_860_000, state: EpochState::Closed.into(), ..open.clone() };
        let span = "the epoch from 2026-11-24T14:00:00.003Z to 2026-11-24T14:01:00.000Z";
        assert_eq!(in_words(&closed), format!("{span}; it is not written yet"));
        let kept = Epoch { state: EpochState::Kept.into(), confirmed: true, rows: 5, ..closed };
        assert_eq!(in_words(&kept), span);
        assert_eq!(EpochSummary::from(&kept).rows, Some(5));
        assert!(in_words(&Epoch { confirmed: false, ..kept.clone() }).contains("not all of its writers"));
        let restarted = Epoch { restarted: 1_795_528_830_000, ..kept };
        assert_eq!(EpochSummary::from(&restarted).complete, Some(false));
        let restarted = in_words(&restarted);
        assert!(restarted.contains("down during it until 2026-11-24T14:00:30.000Z"), "{restarted}");
    }
}
