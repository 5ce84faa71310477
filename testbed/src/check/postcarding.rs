//! Postcarding: the path of each flow.

use std::ops::RangeInclusive;

use dta_proto::control;
use dta_proto::counter::{Stage, translator};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::{QuestionKind, Spread};

use super::epochs::{Candidate, EpochTallies, Epochs, witnesses};
use super::occupancy::{Occupancy, WriteOrder};
use super::{LOST_TO_TRANSLATOR, Pools, ReportEnds, Tally};
use crate::journal::{Journal, JournalEntry};
use crate::share::Share;
use crate::statistics::TestbedStatistics;
use crate::topology::Primitive;
use crate::workload::{ReportBody, SeenFlow, Workload};

/// A path as the collector returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathAnswer {
    /// Value per hop, from hop 0; `None` if the row has none.
    pub hops: Vec<Option<u32>>,
    /// Length as reported; 0 = unknown.
    pub length: u32,
}

/// What the translator did with rows that were not complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct IncompleteRows {
    /// How many it sent incomplete: no more paths than that may lack a hop without a loss.
    pub evicted: u64,
    /// Postcards that came after their row had left, and were written with it once more.
    pub joined: u64,
    /// How long it may hold a postcard, in milliseconds.
    pub held_ms: u64,
}

impl IncompleteRows {
    /// By what the translator counted; `flush_ms` is how long it waits for the rest of a row (0 = until a flush).
    pub fn from_statistics(statistics: &TestbedStatistics, flush_ms: u64) -> Self {
        let node = statistics.stage_total(Stage::Translator);
        // Twice that, because it looks at its clock only between batches.
        Self {
            evicted: node.get(&translator::PARTIAL_ROWS),
            joined: node.get(&translator::JOINED_POSTCARDS),
            held_ms: if flush_ms == 0 { u64::MAX } else { 2 * flush_ms },
        }
    }
}

/// The path of every flow, in each epoch.
pub(super) async fn query_paths(
    all: (&Spread, Share),
    store: &StoreSpec,
    flows: &[SeenFlow],
    epochs: &Epochs,
) -> anyhow::Result<Vec<Vec<Option<PathAnswer>>>> {
    let answers: Vec<Vec<control::PathAnswer>> =
        epochs.query_flows(all, &store.name, flows, QuestionKind::Postcarding).await?;
    let path = |answer: control::PathAnswer| {
        let hops = answer.hops.iter().zip(&answer.present).map(|(value, present)| present.then_some(*value));
        answer.found.then(|| PathAnswer { hops: hops.collect(), length: answer.path_length })
    };
    Ok(answers.into_iter().map(|of| of.into_iter().map(path).collect()).collect())
}

struct Postcard<'a> {
    place: usize,
    entry: &'a JournalEntry,
    hop: usize,
    /// The epochs that it may be in.
    epochs: RangeInclusive<usize>,
}

impl Postcard<'_> {
    /// Whether any copy is in memory according to all records.
    fn has_any_copy_landed(&self, copies: usize) -> bool {
        (0..copies).any(|n| self.entry.fate.has_copy_landed(n))
    }
}

/// Compares `answers` (by flow, in order, and epoch; `None` = not found) with the reports.
pub(super) fn check_answers(
    (kind, share): (&StoreKind, Share),
    flows: &[SeenFlow],
    journal: &Journal,
    epochs: &Epochs,
    answers: &[Vec<Option<PathAnswer>>],
    rows: IncompleteRows,
    pools: &mut Pools,
) -> (EpochTallies, ReportEnds) {
    let &StoreKind::Postcarding { slots, redundancy, .. } = kind else {
        unreachable!("called with the postcard store");
    };
    // Rows that are complete are not held.
    let held = if rows.evicted + rows.joined > 0 { rows.held_ms } else { 0 };
    let mut by_flow: Vec<Vec<Postcard<'_>>> = flows.iter().map(|_| Vec::new()).collect();
    let mut occupancy: Vec<Occupancy> =
        (0..epochs.max_per_collector()).map(|_| Occupancy::default()).collect();
    for (place, entry) in journal.reports_of_primitive(Primitive::Postcarding) {
        if let ReportBody::Postcard { flow, hop } = entry.report.body {
            let seen = &flows[flow as usize];
            let of = epochs.of_report(share.collector_of_key(&seen.key), &journal.under_way(place, held));
            for (n, slot) in share.slots_of_each(&seen.key, redundancy, slots).iter().enumerate() {
                if entry.fate.may_have_landed(n) {
                    let when = row_written(place, entry, n, rows.evicted);
                    occupancy[of.clone()].iter_mut().for_each(|of| of.note_write(*slot, flow, when));
                }
            }
            by_flow[flow as usize].push(Postcard { place, entry, hop: hop.into(), epochs: of });
        }
    }
    let (mut tallies, mut ends) = (epochs.empty_tallies(), ReportEnds::default());
    let mut evictions = rows.evicted;
    for (index, reports) in by_flow.iter().enumerate() {
        let flow = &flows[index];
        let collector = share.collector_of_key(&flow.key);
        let places = share.slots_of_each(&flow.key, redundancy, slots);
        // Copies of the postcard's row that no record shows lost, and that no other key can have overwritten.
        let there = |last: &Postcard<'_>, epoch: usize| {
            let overwritten = |n, slot| {
                occupancy[epoch].may_be_overwritten(
                    slot,
                    index as u32,
                    row_written(last.place, last.entry, n, rows.evicted),
                )
            };
            let is_there =
                |(n, slot): &(usize, &u64)| last.entry.fate.has_copy_landed(*n) && !overwritten(*n, **slot);
            places.iter().enumerate().filter(is_there).count() as u64
        };
        let shown: Vec<ShownPath<'_>> =
            answers[index].iter().map(|answer| ShownPath::from_answer(answer, flow)).collect();
        let placed =
            PostcardEpochs::from_answers(reports, &shown, places.len(), epochs.may_repeat(), rows, there);
        for (epoch, shown) in shown.iter().enumerate() {
            let here = reports.iter().zip(&placed.epoch).filter(|(_, of)| **of == epoch);
            let may_be_here = reports.iter().filter(|report| report.epochs.contains(&epoch));
            let judged = FlowEpoch {
                flow,
                name: format!("{}{}", flow.flow, epochs.epoch_label(collector, epoch)),
                reports: here.map(|(report, _)| report).collect(),
                copies: places.len(),
                touched: may_be_here.clone().any(|report| report.entry.fate.is_affected()),
                foreign: placed.foreign.contains(&epoch),
            };
            let there = |last: &Postcard<'_>| there(last, epoch);
            judged.judge_answer(
                shown,
                there,
                &mut evictions,
                tallies.tally_mut(collector, epoch),
                &mut ends,
                pools,
            );
        }
    }
    (tallies, ends)
}

/// What an answer shows of a path.
struct ShownPath<'a> {
    answer: &'a Option<PathAnswer>,
    /// By hop, whether it is there.
    hops: Vec<bool>,
    /// Whether it shows anything but the path.
    wrong: bool,
}

impl<'a> ShownPath<'a> {
    fn from_answer(answer: &'a Option<PathAnswer>, flow: &SeenFlow) -> Self {
        let (mut hops, mut wrong) = (vec![false; flow.path.len()], false);
        for (hop, value) in answer.iter().flat_map(|answer| answer.hops.iter().enumerate()) {
            if let Some(value) = value {
                match flow.path.get(hop) {
                    Some(&switch) if Workload::switch_id(switch) == *value => hops[hop] = true,
                    _ => wrong = true,
                }
            }
        }
        wrong |= answer.as_ref().is_some_and(|a| a.length != 0 && a.length as usize != flow.path.len());
        Self { answer, hops, wrong }
    }

    fn is_complete(&self) -> bool {
        self.hops.iter().all(|shown| *shown)
    }
}

/// Which epoch each postcard of a flow counts for.
struct PostcardEpochs {
    epoch: Vec<usize>,
    /// Epochs that show a hop although no report that may be in them is left for it.
    foreign: Vec<usize>,
}

impl PostcardEpochs {
    /// A postcard counts for the epoch that shows its hop, or else for one where it is explained that it is not shown.
    fn from_answers(
        reports: &[Postcard<'_>],
        shown: &[ShownPath<'_>],
        copies: usize,
        may_repeat: bool,
        rows: IncompleteRows,
        there: impl Fn(&Postcard<'_>, usize) -> u64,
    ) -> PostcardEpochs {
        if shown.len() == 1 {
            return PostcardEpochs { epoch: vec![0; reports.len()], foreign: Vec::new() };
        }
        let candidates: Vec<Candidate> = reports
            .iter()
            .map(|report| Candidate {
                epochs: report.epochs.clone(),
                is_gone: !report.has_any_copy_landed(copies),
            })
            .collect();
        let (mut of, mut foreign) = (vec![None; reports.len()], Vec::new());
        for hop in 0..shown.first().map_or(0, |shown| shown.hops.len()) {
            let is_answer = |epoch: usize, n: usize| reports[n].hop == hop && shown[epoch].hops[hop];
            for (epoch, found) in witnesses(shown.len(), &candidates, is_answer).into_iter().enumerate() {
                // A postcard that came late was written with the row that had left, which may have been in an earlier
                // epoch.
                let again = || {
                    let is_near = |report: &Postcard<'_>| report.epochs.contains(&epoch);
                    (may_repeat && (0..reports.len()).any(|n| is_near(&reports[n]) && is_answer(epoch, n)))
                        || (rows.joined > 0 && reports.iter().any(is_near))
                };
                match found {
                    Some(n) => of[n] = Some(epoch),
                    None if shown[epoch].hops[hop] && !again() => foreign.push(epoch),
                    None => {}
                }
            }
        }
        let place = |(n, report): (usize, &Postcard<'_>)| {
            let cost = |epoch: &usize| {
                let (shown, fate) = (&shown[*epoch], &report.entry.fate);
                if candidates[n].is_gone || shown.hops[report.hop] {
                    0
                } else if (shown.answer.is_some() || fate.any_copy_lost()) && fate.is_affected()
                    || shown.answer.is_none() && there(report, *epoch) == 0
                {
                    1
                } else if shown.answer.is_some() {
                    2
                } else {
                    3
                }
            };
            of[n].or_else(|| report.epochs.clone().min_by_key(cost)).unwrap_or_default()
        };
        PostcardEpochs { epoch: reports.iter().enumerate().map(place).collect(), foreign }
    }
}

struct FlowEpoch<'a, 'b> {
    flow: &'b SeenFlow,
    name: String,
    /// The postcards that count for the epoch, in order.
    reports: Vec<&'b Postcard<'a>>,
    copies: usize,
    /// Whether anything happened to a postcard that may be in it.
    touched: bool,
    /// Whether a hop is shown that was not reported in it.
    foreign: bool,
}

impl FlowEpoch<'_, '_> {
    /// Compares the answer with the postcards. `there` says how many copies of a row should be in memory.
    fn judge_answer(
        &self,
        shown: &ShownPath<'_>,
        there: impl Fn(&Postcard<'_>) -> u64,
        evictions: &mut u64,
        tally: &mut Tally,
        ends: &mut ReportEnds,
        pools: &mut Pools,
    ) {
        let FlowEpoch { flow, name, reports, .. } = self;
        let answer = shown.answer.as_ref();
        let Some(last) = reports.last() else {
            if self.foreign || shown.wrong {
                tally.queried += 1;
                tally.count_wrong(|| format!("{name}: has a path, although none was reported"));
            }
            return;
        };
        tally.queried += 1;
        let there = there(last);
        let (wrong, complete) = (shown.wrong, shown.is_complete());
        let mut touched = self.touched;
        if answer.is_some() && !complete && !touched && *evictions > 0 {
            *evictions -= 1;
            touched = true;
        }

        // Latest first, so that the first report of each hop that arrived is the one shown.
        let mut not_found = 0;
        let mut seen = vec![false; flow.path.len()];
        for report in reports.iter().rev() {
            let (fate, hop) = (&report.entry.fate, report.hop);
            if !fate.has_arrived() {
                ends.count_loss(LOST_TO_TRANSLATOR);
            } else if !report.has_any_copy_landed(self.copies) {
                ends.count_loss(fate.lost_behind_translator());
            } else if std::mem::replace(&mut seen[hop], true) {
                ends.superseded += 1;
            } else if shown.hops[hop] {
                ends.queryable += 1;
            } else if answer.is_some() && !wrong && touched {
                // It was in an earlier row of the flow, which a later, incomplete one has replaced.
                ends.superseded += 1;
            } else if answer.is_none() && there == 0 {
                ends.overwritten += 1;
            } else if answer.is_none() && touched && fate.any_copy_lost() {
                ends.count_loss(fate.lost_behind_translator());
            } else {
                not_found += 1;
            }
        }
        // Each is explained alone, or all together by the frames of one path: all its copies if there is no answer, the
        // one that the query answers from if an older path is there.
        let frames = if answer.is_none() { there } else { 1 };
        let mut path = None;
        let mut unexplained = false;
        for _ in 0..not_found {
            let name = pools.take().or_else(|| {
                if path.is_none() {
                    path = pools.take_frames(frames.max(1));
                }
                path.clone()
            });
            unexplained |= !ends.lost_or_missing(name);
        }
        match answer {
            None => tally.absent += 1,
            Some(_) if self.foreign => {
                tally.count_wrong(|| format!("{name}: has a hop that was not reported in that epoch"));
            }
            Some(_) if wrong => tally.count_wrong(|| {
                let path: Vec<_> = flow.path.iter().map(|s| Workload::switch_id(*s)).collect();
                format!("{name}: answered {:?}, the path is {path:?}", answer.map(|a| &a.hops))
            }),
            Some(_) if complete => tally.right += 1,
            Some(_) if unexplained => tally.count_wrong(|| {
                format!(
                    "{name}: hops are missing in {:?}, and nothing accounts for them",
                    answer.map(|a| &a.hops)
                )
            }),
            Some(_) => tally.partial += 1,
        }
    }
}

/// When the row of a postcard may have been written: a row that waits for hops is written later.
fn row_written(place: usize, entry: &JournalEntry, copy: usize, evicted: u64) -> WriteOrder {
    let when = WriteOrder::from_fate(place, &entry.fate, copy);
    if evicted > 0 { WriteOrder { earliest: 0, latest: usize::MAX } } else { when }
}
