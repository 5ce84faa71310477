//! Key-write: the last value of each flow.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use dta_proto::control::{KeyWriteAnswer, Policy};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::{QuestionKind, Spread};

use super::epochs::{Candidate, EpochTallies, Epochs, witnesses};
use super::occupancy::{Occupancy, WriteOrder};
use super::{LOST_TO_TRANSLATOR, Pools, ReportEnds, Tally};
use crate::journal::{Journal, JournalEntry};
use crate::share::Share;
use crate::topology::Primitive;
use crate::workload::{ReportBody, SeenFlow};

/// The value of every flow, in each epoch.
pub(super) async fn query_values(
    all: (&Spread, Share),
    store: &StoreSpec,
    flows: &[SeenFlow],
    epochs: &Epochs,
) -> anyhow::Result<Vec<Vec<Option<Vec<u8>>>>> {
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let answers: Vec<Vec<KeyWriteAnswer>> = epochs.query_flows(all, &store.name, flows, kind).await?;
    Ok(answers.into_iter().map(|of| of.into_iter().map(|answer| answer.value).collect()).collect())
}

struct ValueReport<'a> {
    place: usize,
    entry: &'a JournalEntry,
    value: [u8; 12],
    /// The epochs that it may be in.
    epochs: RangeInclusive<usize>,
}

impl ValueReport<'_> {
    /// Whether any copy is in memory according to all records.
    fn has_any_copy_landed(&self, copies: usize) -> bool {
        (0..copies).any(|n| self.entry.fate.has_copy_landed(n))
    }

    fn order_unknown(&self, copies: usize) -> bool {
        (0..copies).any(|n| self.entry.fate.order_unknown(n))
    }
}

/// Compares `answers` (by flow, in order, and epoch) with the reports. `kind` is that of the store, which the collectors
/// share.
pub(super) fn check_answers(
    (kind, share): (&StoreKind, Share),
    flows: &[SeenFlow],
    journal: &Journal,
    epochs: &Epochs,
    answers: &[Vec<Option<Vec<u8>>>],
    pools: &mut Pools,
) -> (EpochTallies, ReportEnds) {
    let &StoreKind::KeyWrite { slots, redundancy, .. } = kind else {
        unreachable!("called with the key-write store");
    };
    let mut by_flow: Vec<Vec<ValueReport<'_>>> = flows.iter().map(|_| Vec::new()).collect();
    // A report that may be in two epochs may have overwritten others in both.
    let mut occupancy: Vec<Occupancy> =
        (0..epochs.max_per_collector()).map(|_| Occupancy::default()).collect();
    for (place, entry) in journal.reports_of_primitive(Primitive::KeyWrite) {
        if let ReportBody::KeyWrite { flow, value } = entry.report.body {
            let seen = &flows[flow as usize];
            let of = epochs.of_report(share.collector_of_key(&seen.key), &journal.under_way(place, 0));
            for (n, slot) in share.slots_of_value(&seen.key, redundancy, slots).iter().enumerate() {
                if entry.fate.may_have_landed(n) {
                    let when = WriteOrder::from_fate(place, &entry.fate, n);
                    occupancy[of.clone()].iter_mut().for_each(|of| of.note_write(*slot, flow, when));
                }
            }
            by_flow[flow as usize].push(ValueReport { place, entry, value, epochs: of });
        }
    }
    let (mut tallies, mut ends) = (epochs.empty_tallies(), ReportEnds::default());
    for (index, reports) in by_flow.iter().enumerate() {
        let flow = &flows[index];
        let collector = share.collector_of_key(&flow.key);
        let places = share.slots_of_value(&flow.key, redundancy, slots);
        // Copies of the report that no record shows lost, and that no other key can have overwritten.
        let there = |report: &ValueReport<'_>, epoch: usize| {
            let overwritten = |n, slot| {
                occupancy[epoch].may_be_overwritten(
                    slot,
                    index as u32,
                    WriteOrder::from_fate(report.place, &report.entry.fate, n),
                )
            };
            let is_there =
                |(n, slot): &(usize, &u64)| report.entry.fate.has_copy_landed(*n) && !overwritten(*n, **slot);
            places.iter().enumerate().filter(is_there).count() as u64
        };
        let placed =
            ValueEpochs::from_answers(reports, &answers[index], places.len(), epochs.may_repeat(), there);
        for (epoch, answer) in answers[index].iter().enumerate() {
            let judged = FlowEpoch {
                name: format!("{}{}", flow.flow, epochs.epoch_label(collector, epoch)),
                reports: placed.reports_in_epoch(reports, epoch),
                is_repeated: placed.repeated.iter().any(|(of, _)| *of == epoch),
                is_backwards: placed.backwards.contains(&epoch),
                copies: places.len(),
            };
            let there = |report: &ValueReport<'_>| there(report, epoch);
            judged.judge_answer(
                answer.as_deref(),
                there,
                tallies.tally_mut(collector, epoch),
                &mut ends,
                pools,
            );
        }
    }
    (tallies, ends)
}

/// Which epoch each report of a flow counts for.
#[derive(Debug, Default, PartialEq, Eq)]
struct ValueEpochs {
    epoch: Vec<usize>,
    /// Epochs whose answer is from a report that counts for another epoch, with that report.
    repeated: Vec<(usize, usize)>,
    /// Epochs whose answer was reported before that of an earlier one.
    backwards: Vec<usize>,
}

impl ValueEpochs {
    /// A report counts for the epoch whose answer is from it, or else for one where it is explained that none is: it was
    /// replaced by a newer one, lost, or overwritten.
    fn from_answers(
        reports: &[ValueReport<'_>],
        answers: &[Option<Vec<u8>>],
        copies: usize,
        may_repeat: bool,
        there: impl Fn(&ValueReport<'_>, usize) -> u64,
    ) -> ValueEpochs {
        if answers.len() == 1 {
            return ValueEpochs { epoch: vec![0; reports.len()], ..ValueEpochs::default() };
        }
        if let Some(epoch) = epochs_in_order(reports, answers, copies) {
            return ValueEpochs { epoch, ..ValueEpochs::default() };
        }
        let candidates: Vec<Candidate> = reports
            .iter()
            .map(|report| Candidate {
                epochs: report.epochs.clone(),
                is_gone: !report.has_any_copy_landed(copies),
            })
            .collect();
        let is_answer = |epoch: usize, n: usize| {
            answers[epoch].as_deref().is_some_and(|answer| *answer == reports[n].value)
        };
        let found = witnesses(answers.len(), &candidates, is_answer);
        let mut placed = ValueEpochs::default();
        for (n, report) in reports.iter().enumerate() {
            let cost = |epoch: &usize| -> u8 {
                let (answer, from) = (&answers[*epoch], found[*epoch]);
                let is_newer = from.is_some_and(|from| from > n || reports[from].order_unknown(copies));
                if found[*epoch] == Some(n) {
                    0
                } else if candidates[n].is_gone
                    || is_answer(*epoch, n)
                    || is_newer
                    || answer.is_some() && report.order_unknown(copies)
                {
                    1
                } else if (answer.is_some() && report.entry.fate.any_copy_lost())
                    || there(report, *epoch) == 0
                {
                    2
                } else {
                    3
                }
            };
            placed.epoch.push(report.epochs.clone().min_by_key(cost).unwrap_or_default());
        }
        let mut newest = None;
        for (epoch, from) in found.iter().enumerate() {
            match *from {
                Some(n) => {
                    if newest.is_some_and(|newest| n < newest) && !reports[n].order_unknown(copies) {
                        placed.backwards.push(epoch);
                    }
                    if !reports[n].order_unknown(copies) {
                        newest = newest.max(Some(n));
                    }
                }
                None if may_repeat => {
                    let is_it = |n: &usize| reports[*n].epochs.contains(&epoch) && is_answer(epoch, *n);
                    if let Some(n) =
                        (0..reports.len()).rev().find(is_it).filter(|n| placed.epoch[*n] != epoch)
                    {
                        placed.repeated.push((epoch, n));
                    }
                }
                None => {}
            }
        }
        placed
    }

    /// The reports that count for an epoch, and the one that its answer is from, in order.
    fn reports_in_epoch<'a, 'b>(
        &self,
        reports: &'b [ValueReport<'a>],
        epoch: usize,
    ) -> Vec<&'b ValueReport<'a>> {
        let is_in = |n: &usize| self.epoch[*n] == epoch || self.repeated.contains(&(epoch, *n));
        (0..reports.len()).filter(is_in).map(|n| &reports[n]).collect()
    }
}

/// The epoch of each report, if they were executed in order and each epoch answers with the last one that it got.
/// `None`: there is no such assignment, or the order is not known.
fn epochs_in_order(
    reports: &[ValueReport<'_>],
    answers: &[Option<Vec<u8>>],
    copies: usize,
) -> Option<Vec<usize>> {
    if reports.iter().any(|report| report.order_unknown(copies)) {
        return None;
    }
    let there: Vec<&ValueReport<'_>> =
        reports.iter().filter(|report| report.has_any_copy_landed(copies)).collect();
    // By epoch: each possible number of reports up to its end, with the number up to its beginning.
    let mut ways: Vec<BTreeMap<usize, usize>> = Vec::new();
    let mut begins = vec![0];
    for (epoch, answer) in answers.iter().enumerate() {
        let mut ends = BTreeMap::new();
        for begin in begins {
            let Some(answer) = answer else {
                ends.entry(begin).or_insert(begin);
                continue;
            };
            let here = there[begin..].iter().take_while(|report| report.epochs.contains(&epoch));
            for (n, _) in here.enumerate().filter(|(_, report)| report.value[..] == **answer) {
                ends.entry(begin + n + 1).or_insert(begin);
            }
        }
        begins = ends.keys().copied().collect();
        ways.push(ends);
    }
    let (mut of, mut end) = (vec![0; there.len()], there.len());
    for (epoch, ends) in ways.iter().enumerate().rev() {
        let begin = *ends.get(&end)?;
        of[begin..end].fill(epoch);
        end = begin;
    }
    let mut of = of.into_iter();
    let place = |report: &ValueReport<'_>| match report.has_any_copy_landed(copies) {
        true => of.next().unwrap_or_default(),
        false => *report.epochs.start(),
    };
    Some(reports.iter().map(place).collect())
}

struct FlowEpoch<'a, 'b> {
    name: String,
    /// The reports that count for the epoch.
    reports: Vec<&'b ValueReport<'a>>,
    /// Whether the answer's report counts for another epoch.
    is_repeated: bool,
    is_backwards: bool,
    copies: usize,
}

impl FlowEpoch<'_, '_> {
    /// Compares the answer with the reports. `there` says how many copies of a report should be in memory.
    fn judge_answer(
        &self,
        answer: Option<&[u8]>,
        there: impl Fn(&ValueReport<'_>) -> u64,
        tally: &mut Tally,
        ends: &mut ReportEnds,
        pools: &mut Pools,
    ) {
        let FlowEpoch { name, reports, copies, .. } = self;
        let copies = *copies;
        // The fate of a report that is not the answer although none with its key is newer: at most `most` of the
        // copies that should be there must be lost for that.
        let explain = |ends: &mut ReportEnds, pools: &mut Pools, report: &ValueReport<'_>, most: u64| {
            let there = there(report);
            if !report.entry.fate.has_arrived() {
                ends.count_loss(LOST_TO_TRANSLATOR);
                true
            } else if !report.has_any_copy_landed(copies) {
                ends.count_loss(report.entry.fate.lost_behind_translator());
                true
            } else if there == 0 {
                ends.overwritten += 1;
                true
            } else {
                ends.not_found_in(there.min(most), pools)
            }
        };
        let found =
            answer.map(|answer| (answer, reports.iter().rposition(|report| report.value[..] == *answer)));
        match (found, reports.len().checked_sub(1)) {
            // Nothing was reported, and nothing is there.
            (None, None) => {}
            (None, Some(last)) => {
                tally.queried += 1;
                tally.absent += 1;
                explain(ends, pools, reports[last], u64::MAX);
                count_superseded(ends, &reports[..last], copies);
            }
            (Some((answer, None)), _) => {
                tally.queried += 1;
                tally.count_wrong(|| format!("{name}: {answer:02x?} was never reported"));
                reports.iter().for_each(|report| {
                    if report.entry.fate.has_arrived() {
                        ends.missing += 1;
                    } else {
                        ends.count_loss(LOST_TO_TRANSLATOR);
                    }
                });
            }
            (Some((answer, Some(at))), last) => {
                tally.queried += 1;
                let last = last.unwrap_or(at);
                // Packets of one length and one time have one value: the answer may be from any report with this
                // value.
                let answer_moved = reports[..=at].iter().any(|report| {
                    report.value[..] == *answer
                        && (0..copies).any(|n| {
                            report.entry.fate.may_have_landed(n) && report.entry.fate.order_unknown(n)
                        })
                });
                let mut excused = true;
                for report in &reports[at + 1..] {
                    let fate = &report.entry.fate;
                    let moved = answer_moved || report.order_unknown(copies);
                    if fate.has_arrived() && moved && report.has_any_copy_landed(copies) {
                        ends.superseded += 1;
                    } else if fate.has_arrived() && fate.any_copy_lost() {
                        // The copies that landed are not the ones that the query answers from.
                        ends.count_loss(fate.lost_behind_translator());
                    } else {
                        // The query answers from the first slot that holds the key: one copy decides.
                        excused &= explain(ends, pools, report, 1);
                    }
                }
                ends.queryable += u64::from(!self.is_repeated);
                count_superseded(ends, &reports[..at], copies);
                if self.is_backwards {
                    tally.count_wrong(|| {
                        format!("{name}: {answer:02x?} is older than the answer of an earlier epoch")
                    });
                } else if at == last {
                    tally.right += 1;
                } else if excused {
                    tally.stale += 1;
                } else {
                    tally.count_wrong(|| {
                        let newer = last - at;
                        format!(
                            "{name}: {answer:02x?} is {newer} reports old, and nothing accounts for these"
                        )
                    });
                }
            }
        }
    }
}

/// Reports that a newer one with the same key replaced.
fn count_superseded(ends: &mut ReportEnds, reports: &[&ValueReport<'_>], copies: usize) {
    for report in reports {
        if !report.entry.fate.has_arrived() {
            ends.count_loss(LOST_TO_TRANSLATOR);
        } else if !report.has_any_copy_landed(copies) {
            ends.count_loss(report.entry.fate.lost_behind_translator());
        } else {
            ends.superseded += 1;
        }
    }
}
