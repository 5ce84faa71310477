//! The epochs of a store, and which of them each report counts for.
//!
//! A report is in the epoch whose memory the translator wrote to when it executed the report. That moment is known to lie
//! in the time that the report was [under way](crate::journal::Journal::under_way). A report that was under way within a
//! single epoch is in that one. If it was under way while writers moved from one epoch to the next, it is in one of the
//! two, and the answers say which: each answer needs a report of its own. Whether the answers of an epoch fit the reports
//! that count for it is then checked as without epochs.
//!
//! A store without epochs has one, which never ends.

use std::ops::RangeInclusive;

use dta_proto::control::{self, EpochState, MAX_KEYS};
use dta_rpc::{Ask, ClientError, KeyAnswer, Question, QuestionKind, Spread};
use serde::Serialize;

use super::Tally;
use crate::share::Share;
use crate::workload::SeenFlow;

/// An epoch of a store, as its collector reports it. Moments are milliseconds since 1970 by the collector's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectorEpoch {
    pub generation: u64,
    /// When it was opened to writers.
    pub opened: u64,
    /// When writers began to move to the next one; `None` = it is open.
    pub flipped_from: Option<u64>,
    /// When the last writer had moved; `None` = unknown, because it is open, not sealed yet, or a writer did not
    /// confirm.
    pub flipped_to: Option<u64>,
    /// Its slots in the history; `None` = it is not written yet.
    pub rows: Option<u64>,
    #[serde(skip)]
    pub ahead: Ahead,
}

/// How far a clock is ahead of this machine's, in milliseconds: at least, and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead([i64; 2]);

impl Ahead {
    /// It showed `there` at some moment of `asked`.
    pub fn from_clock_reading(there: u64, asked: RangeInclusive<u64>) -> Self {
        let ahead = |here: &u64| there.wrapping_sub(*here).cast_signed();
        // Each clock is read in whole milliseconds.
        Self([ahead(asked.end()) - 1, ahead(asked.start()) + 1])
    }

    /// The first and the last moment at which that clock may have shown this.
    fn local_moments(self, moment: u64) -> RangeInclusive<u64> {
        moment.saturating_add_signed(-self.0[1])..=moment.saturating_add_signed(-self.0[0])
    }
}

impl CollectorEpoch {
    /// From the report of a collector whose clock is `ahead` of ours.
    pub fn from_control_epoch(epoch: &control::Epoch, ahead: Ahead) -> Self {
        let known = |moment: u64| (moment != 0).then_some(moment);
        Self {
            generation: epoch.generation,
            opened: epoch.opened,
            flipped_from: known(epoch.flipped_from),
            flipped_to: known(epoch.flipped_to).filter(|_| epoch.confirmed),
            rows: (epoch.state() == EpochState::Kept).then_some(epoch.rows),
            ahead,
        }
    }
}

/// The epochs of a store at each collector, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// By collector; at least one each.
    of: Vec<Vec<CollectorEpoch>>,
    /// Whether the store has epochs at all.
    are_real: bool,
    /// Whether a report may be in two epochs: a queue pair that was replaced sent it again.
    may_repeat: bool,
}

impl Epochs {
    /// For a store without epochs, at this many collectors.
    pub fn without_epochs(collectors: usize) -> Self {
        Self { of: vec![vec![CollectorEpoch::default()]; collectors], are_real: false, may_repeat: false }
    }

    /// The epochs that each collector lists, the oldest first. A gap between generations means that an epoch is missing.
    pub fn try_from_lists(of: Vec<Vec<CollectorEpoch>>, may_repeat: bool) -> Result<Self, String> {
        for epochs in &of {
            let generations: Vec<u64> = epochs.iter().map(|epoch| epoch.generation).collect();
            if epochs.is_empty() || generations.windows(2).any(|two| two[1] != two[0] + 1) {
                return Err(format!("a collector lists the epochs {generations:?}: some are missing"));
            }
        }
        Ok(Self { of, are_real: true, may_repeat })
    }

    pub fn has_real_epochs(&self) -> bool {
        self.are_real
    }

    /// By collector, the oldest first.
    pub fn by_collector(&self) -> &[Vec<CollectorEpoch>] {
        &self.of
    }

    /// Whether each of these is written according to `later`.
    pub fn are_written_in(&self, later: &Epochs) -> bool {
        let is_written = |now: &[CollectorEpoch], known: &CollectorEpoch| {
            now.iter().any(|epoch| epoch.generation == known.generation && epoch.rows.is_some())
        };
        self.of.iter().zip(&later.of).all(|(known, now)| known.iter().all(|epoch| is_written(now, epoch)))
    }

    /// How many are written at the collector with the fewest.
    pub fn written_count(&self) -> u64 {
        let written =
            |epochs: &Vec<CollectorEpoch>| epochs.iter().filter(|epoch| epoch.rows.is_some()).count() as u64;
        self.of.iter().map(written).min().unwrap_or(0)
    }

    /// Whether a report may be in two epochs.
    pub(super) fn may_repeat(&self) -> bool {
        self.may_repeat
    }

    pub(super) fn max_per_collector(&self) -> usize {
        self.of.iter().map(Vec::len).max().unwrap_or(1)
    }

    /// The first and the last epoch of a collector, by place, that may contain a report that was under way `when`.
    pub(super) fn of_report(&self, collector: usize, when: &RangeInclusive<u64>) -> RangeInclusive<usize> {
        let epochs = &self.of[collector];
        // If its end is unknown: its writers had moved when those of the next epoch began to, because a store has at
        // most one former epoch.
        let end = |n: usize| {
            let next = epochs.get(n + 1).and_then(|next: &CollectorEpoch| next.flipped_from);
            epochs[n].flipped_to.or(next).map_or(u64::MAX, |end| *epochs[n].ahead.local_moments(end).end())
        };
        let opened = |n: usize| *epochs[n].ahead.local_moments(epochs[n].opened).start();
        let last = epochs.len() - 1;
        let first = (0..last).find(|n| end(*n) >= *when.start()).unwrap_or(last);
        let last = (0..=last).rev().find(|n| opened(*n) <= *when.end()).unwrap_or(0);
        // The other way round only if a clock jumped.
        first.min(last)..=last.max(first)
    }

    pub(super) fn empty_tallies(&self) -> EpochTallies {
        EpochTallies(self.of.iter().map(|epochs| vec![Tally::default(); epochs.len()]).collect())
    }

    /// Words that say which epoch an answer is of; empty without epochs.
    pub(super) fn epoch_label(&self, collector: usize, epoch: usize) -> String {
        match self.are_real {
            true => format!(" in epoch {}", self.of[collector][epoch].generation),
            false => String::new(),
        }
    }

    /// Asks for every flow in each epoch of its collector; answers by flow and epoch.
    pub(super) async fn query_flows<A>(
        &self,
        (all, share): (&Spread, Share),
        store: &str,
        flows: &[SeenFlow],
        kind: QuestionKind,
    ) -> anyhow::Result<Vec<Vec<A>>>
    where
        A: TryFrom<KeyAnswer, Error = ClientError> + Send,
    {
        let mut answers: Vec<Vec<A>> = flows.iter().map(|_| Vec::new()).collect();
        for (collector, epochs) in self.of.iter().enumerate() {
            let here: Vec<usize> =
                (0..flows.len()).filter(|n| share.collector_of_key(&flows[*n].key) == collector).collect();
            for epoch in epochs {
                for some in here.chunks(MAX_KEYS) {
                    let keys = some.iter().map(|n| flows[*n].key).collect();
                    let at = if self.are_real { epoch.opened.into() } else { Default::default() };
                    let question = Question { store: store.to_owned(), keys, kind, at };
                    // If a key is at several collectors, all are asked.
                    let answer = match share.replicas() {
                        1 => all.members()[collector].ask.query_keys(question).await?,
                        _ => all.query_keys(question).await?,
                    };
                    anyhow::ensure!(
                        !self.are_real || answer.generation == epoch.generation,
                        "store {store:?} was asked for epoch {}, and answered from epoch {}",
                        epoch.generation,
                        answer.generation
                    );
                    anyhow::ensure!(answer.of_keys.len() == some.len(), "not every key was answered");
                    for (n, answer) in some.iter().zip(answer.of_keys) {
                        // An answer from an earlier epoch is compared in that epoch.
                        let answer = match answer.earlier_epoch() {
                            Some(_) => kind.answer_of_none(),
                            None => answer,
                        };
                        answers[*n].push(A::try_from(answer)?);
                    }
                }
            }
        }
        Ok(answers)
    }
}

/// How the answers of each epoch compare with the truth, by collector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochTallies(Vec<Vec<Tally>>);

impl EpochTallies {
    pub(super) fn tally_mut(&mut self, collector: usize, epoch: usize) -> &mut Tally {
        &mut self.0[collector][epoch]
    }

    pub fn by_collector(&self) -> &[Vec<Tally>] {
        &self.0
    }

    pub fn sum(&self) -> Tally {
        self.0.iter().flatten().fold(Tally::default(), |sum, tally| sum.merged_with(tally))
    }
}

impl From<Tally> for EpochTallies {
    fn from(tally: Tally) -> Self {
        Self(vec![vec![tally]])
    }
}

/// A report that an answer may be from.
pub(super) struct Candidate {
    /// The epochs that it may be in.
    pub(super) epochs: RangeInclusive<usize>,
    /// According to all records, nothing of it landed.
    pub(super) is_gone: bool,
}

/// Which report each epoch's answer is from: `is_answer` says whether it may be from a report. Each report is taken once.
/// Preferred are reports that came after the answers of earlier epochs, then those that later epochs can use least, so
/// that as many answers as possible have one. `None`: the epoch has no answer, or no report is left for it.
pub(super) fn witnesses(
    epochs: usize,
    candidates: &[Candidate],
    is_answer: impl Fn(usize, usize) -> bool,
) -> Vec<Option<usize>> {
    let mut found: Vec<Option<usize>> = Vec::new();
    for epoch in 0..epochs {
        let newest = found.iter().flatten().max().copied();
        let fits = |n: &usize| {
            !found.contains(&Some(*n)) && candidates[*n].epochs.contains(&epoch) && is_answer(epoch, *n)
        };
        let of = (0..candidates.len()).filter(fits).min_by_key(|n| {
            let Candidate { epochs, is_gone } = &candidates[*n];
            (*is_gone, newest.is_some_and(|newest| *n < newest), *epochs.end(), *n)
        });
        found.push(of);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(
        generation: u64,
        opened: u64,
        flipped_from: Option<u64>,
        flipped_to: Option<u64>,
    ) -> CollectorEpoch {
        CollectorEpoch { generation, opened, flipped_from, flipped_to, rows: None, ahead: Ahead::default() }
    }

    fn three() -> Vec<CollectorEpoch> {
        vec![
            epoch(1, 1000, Some(2000), Some(2500)),
            epoch(2, 2000, Some(4000), Some(4100)),
            epoch(3, 4000, None, None),
        ]
    }

    #[test]
    fn a_report_is_in_the_epoch_that_it_was_under_way_in_and_in_either_while_writers_move() {
        let epochs = Epochs::try_from_lists(vec![three()], false).unwrap();
        let of = |when| epochs.of_report(0, &when);
        assert_eq!(of(1000..=1010), 0..=0);
        assert_eq!(of(1500..=1999), 0..=0);
        // Under way when writers began to move, while they did, and until the last had.
        assert_eq!(of(1990..=2000), 0..=1);
        assert_eq!(of(2100..=2110), 0..=1);
        assert_eq!(of(2500..=2510), 0..=1);
        assert_eq!(of(2501..=3999), 1..=1);
        // Held for long, or never known to be executed.
        assert_eq!(of(1500..=4200), 0..=2);
        assert_eq!(of(1500..=u64::MAX), 0..=2);
        assert_eq!(of(4101..=u64::MAX), 2..=2);
        // Only a clock that jumped back gives such times.
        assert_eq!(of(0..=10), 0..=0);
    }

    #[test]
    fn a_writer_that_did_not_confirm_may_have_written_until_the_next_epoch_ended() {
        let mut list = three();
        list[0].flipped_to = None;
        let epochs = Epochs::try_from_lists(vec![list.clone()], false).unwrap();
        assert_eq!(epochs.of_report(0, &(3999..=3999)), 0..=1);
        assert_eq!(epochs.of_report(0, &(4050..=4060)), 1..=2);
        // Not sealed yet, and the newest of those that are over.
        list[1].flipped_to = None;
        let epochs = Epochs::try_from_lists(vec![list], false).unwrap();
        assert_eq!(epochs.of_report(0, &(9000..=9000)), 1..=2);
    }

    #[test]
    fn a_clock_elsewhere_is_known_as_well_as_the_time_of_an_answer() {
        // It showed 5,000 at some moment between 2,000 and 2,010 of ours.
        let ahead = Ahead::from_clock_reading(5000, 2000..=2010);
        let list = three().into_iter().map(|epoch| CollectorEpoch {
            opened: epoch.opened + 2995,
            flipped_from: epoch.flipped_from.map(|at| at + 2995),
            flipped_to: epoch.flipped_to.map(|at| at + 2995),
            ahead,
            ..epoch
        });
        let epochs = Epochs::try_from_lists(vec![list.collect()], false).unwrap();
        let of = |at| epochs.of_report(0, &(at..=at));
        assert_eq!((of(1993), of(1994)), (0..=0, 0..=1));
        assert_eq!((of(2506), of(2507)), (0..=1, 1..=1));
    }

    #[test]
    fn an_epoch_that_is_not_listed_is_noticed() {
        let mut list = three();
        list.remove(1);
        assert!(Epochs::try_from_lists(vec![three(), list], false).unwrap_err().contains("[1, 3]"));
        assert!(Epochs::try_from_lists(vec![Vec::new()], false).is_err());
    }

    #[test]
    fn each_answer_has_a_report_of_its_own() {
        let candidate = |epochs| Candidate { epochs, is_gone: false };
        // Two reports of one value: the one that can only be in the first epoch is taken for it.
        let reports = [candidate(0..=1), candidate(0..=0)];
        assert_eq!(witnesses(2, &reports, |_, _| true), [Some(1), Some(0)]);
        // One report cannot be the answer of two epochs.
        assert_eq!(witnesses(2, &reports[..1], |_, _| true), [Some(0), None]);
        assert_eq!(witnesses(2, &reports[..1], |epoch, _| epoch == 1), [None, Some(0)]);
        // The same value twice, and another one between, which the first epoch answers.
        let reports = [candidate(0..=1), candidate(0..=1), candidate(0..=1)];
        assert_eq!(witnesses(2, &reports, |epoch, n| (n == 1) == (epoch == 0)), [Some(1), Some(2)]);
        // One that is gone is taken last.
        let reports = [Candidate { epochs: 0..=0, is_gone: true }, candidate(0..=1)];
        assert_eq!(witnesses(2, &reports, |_, _| true), [Some(1), None]);
    }
}
