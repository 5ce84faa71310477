//! Sketch-merge: packets per flow and epoch, and every cell of every column.

use std::collections::HashMap;

use dta_proto::layout::sketch_merge::{self, ColumnContents, SketchColumn, columns_of};
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use dta_rpc::{AskKeys, ClientError, Spread};

use super::read_store_memory;
use super::{CheckContext, LOST_TO_TRANSLATOR, Pools, ReportEnds, Tally};
use crate::journal::{Journal, JournalEntry};
use crate::topology::Primitive;
use crate::workload::{EpochTruth, ReportBody, SeenFlow};

/// The collector's answers for all epochs that it still has.
#[derive(Clone, Debug, Default)]
pub(super) struct SketchAnswers {
    /// By ring place, all columns in memory.
    pub memory: Vec<Vec<SketchColumn>>,
    /// By epoch (from 1; empty if no longer kept): the estimate of each flow of the epoch's truth, in its order.
    pub estimates: Vec<Vec<Option<u64>>>,
}

/// Asks for everything in the store, and compares.
pub(super) async fn query_and_check(
    asked: &CheckContext<'_>,
    all: &Spread,
    store: &StoreSpec,
    pools: &mut Pools,
) -> Result<(Tally, ReportEnds), ClientError> {
    let answers = query_sketches(all, store, asked.flows, asked.epochs).await?;
    Ok(check_answers(&store.kind, asked.flows, asked.epochs, asked.journal, &answers, pools))
}

/// All columns in memory, and the estimate of every flow of every epoch that is still kept.
async fn query_sketches(
    all: &Spread,
    store: &StoreSpec,
    flows: &[SeenFlow],
    truth: &[EpochTruth],
) -> Result<SketchAnswers, ClientError> {
    let StoreKind::SketchMerge { columns, rows, epochs, .. } = store.kind else {
        return Ok(SketchAnswers::default());
    };
    let length = u64::from(columns) * sketch_merge::column_len(rows);
    // A sketch is at the first collector, whole.
    let owner = &*all.members()[0].ask.clone();
    let mut answers = SketchAnswers::default();
    for place in 0..u64::from(epochs) {
        let bytes = read_store_memory(owner, store, place * length, length).await?;
        let unwritten = SketchColumn { epoch: 0, merged: 0, expected: 0, cells: [0; 4] };
        let column = |bytes: &[u8]| sketch_merge::decode_column(bytes, rows).unwrap_or(unwritten);
        answers
            .memory
            .push(bytes.chunks_exact(sketch_merge::column_len(rows) as usize).map(column).collect());
    }
    let newest = truth.last().map_or(0, |epoch| epoch.epoch);
    for epoch in truth {
        let mut estimates = Vec::new();
        if epoch.epoch + epochs > newest {
            let keys: Vec<_> = epoch.packets.iter().map(|(flow, _)| flows[*flow as usize].key).collect();
            let found = all.query_sketches(&store.name, &keys, epoch.epoch).await?;
            estimates.extend(found.into_iter().map(|answer| answer.estimate));
        }
        answers.estimates.push(estimates);
    }
    Ok(answers)
}

/// Compares memory and estimates with the reports.
pub(super) fn check_answers(
    kind: &StoreKind,
    flows: &[SeenFlow],
    epochs: &[EpochTruth],
    journal: &Journal,
    answers: &SketchAnswers,
    pools: &mut Pools,
) -> (Tally, ReportEnds) {
    let &StoreKind::SketchMerge { columns, rows, epochs: kept, merge, expected } = kind else {
        unreachable!("called with the sketch store");
    };
    assert_eq!(merge, Merge::Sum, "the simulated switches report sums");
    let newest = epochs.last().map_or(0, |e| e.epoch);
    let mut by_column = HashMap::<(u32, u32), Vec<&JournalEntry>>::new();
    for (_, entry) in journal.reports_of_primitive(Primitive::SketchMerge) {
        if let ReportBody::SketchMerge { epoch, column, .. } = entry.report.body {
            by_column.entry((epoch, column)).or_default().push(entry);
        }
    }
    let (mut tally, mut ends) = (Tally::default(), ReportEnds::default());
    let mut damaged = 0;
    for truth in epochs {
        let epoch = truth.epoch;
        let place = (epoch & (kept - 1)) as usize;
        if epoch + kept <= newest {
            for column in 0..columns {
                for entry in by_column.remove(&(epoch, column)).unwrap_or_default() {
                    end_of_old(entry, &mut ends);
                }
            }
            continue;
        }
        for column in 0..columns {
            let reports = by_column.remove(&(epoch, column)).unwrap_or_default();
            let held = column_of_epoch(&answers.memory[place][column as usize], epoch);
            if !column_ends(held, &reports, rows, expected, &mut ends, pools) {
                damaged += 1;
                tally.count_wrong(|| {
                    format!(
                        "epoch {epoch}, column {column}: memory holds {held:?}, which is not a merge of what was sent"
                    )
                });
            }
        }
        for (&(flow, packets), estimate) in truth.packets.iter().zip(&answers.estimates[epoch as usize - 1]) {
            tally.queried += 1;
            let touched: Vec<_> = columns_of(&flows[flow as usize].key, rows, columns)
                .iter()
                .map(|c| column_of_epoch(&answers.memory[place][*c as usize], epoch))
                .collect();
            let known = touched.iter().all(Option::is_some);
            let cells = touched.iter().flatten().enumerate().map(|(row, held)| u64::from(held.cells[row]));
            let expect = known.then(|| cells.min().unwrap_or(0));
            let whole = touched.iter().flatten().all(|held| u32::from(held.merged) >= u32::from(expected));
            if *estimate != expect {
                tally.count_wrong(|| {
                    format!(
                        "{}, epoch {epoch}: answered {estimate:?}, memory says {expect:?}",
                        flows[flow as usize].flow
                    )
                });
                continue;
            }
            match *estimate {
                None => tally.absent += 1,
                Some(n) if n == packets => tally.right += 1,
                Some(n) if n > packets => tally.over += 1,
                Some(_) if !whole => tally.incomplete += 1,
                Some(n) => tally.count_wrong(|| {
                    format!(
                        "{}, epoch {epoch}: answered {n} of {packets} packets, all switches merged",
                        flows[flow as usize].flow
                    )
                }),
            }
        }
    }
    // A damaged column is wrong even if no queried flow uses it.
    tally.queried += damaged;
    (tally, ends)
}

/// A column, if it holds anything of the epoch.
fn column_of_epoch(column: &SketchColumn, epoch: u32) -> Option<&SketchColumn> {
    Some(column).filter(|c| c.contents_for(epoch) != ColumnContents::Unknown)
}

/// A report of an epoch that another has replaced in the ring.
fn end_of_old(entry: &JournalEntry, ends: &mut ReportEnds) {
    if !entry.fate.has_arrived() {
        ends.count_loss(LOST_TO_TRANSLATOR);
    } else if !entry.fate.has_copy_landed(0) {
        ends.count_loss(entry.fate.lost_behind_translator());
    } else {
        ends.overwritten += 1;
    }
}

/// Determines where the reports of one column ended; false if memory does not hold a merge of them.
fn column_ends(
    held: Option<&SketchColumn>,
    reports: &[&JournalEntry],
    rows: u8,
    expected: u8,
    ends: &mut ReportEnds,
    pools: &mut Pools,
) -> bool {
    let merged = held.map_or(0, |c| usize::from(c.merged));
    let Some(subset) = subset_of(held, reports, rows) else {
        for entry in reports {
            if entry.fate.has_arrived() {
                ends.missing += 1;
            } else {
                ends.count_loss(LOST_TO_TRANSLATOR);
            }
        }
        return false;
    };
    // Everything missing was in one frame, the last of the column.
    let mut frame = None;
    for (n, entry) in reports.iter().enumerate() {
        if subset >> n & 1 == 1 {
            ends.queryable += 1;
        } else if !entry.fate.has_arrived() {
            ends.count_loss(LOST_TO_TRANSLATOR);
        } else if !entry.fate.has_copy_landed(0) {
            ends.count_loss(entry.fate.lost_behind_translator());
        } else {
            let name = pools.take().or_else(|| {
                if frame.is_none() {
                    frame = pools.take_frames(1);
                }
                frame.clone()
            });
            ends.lost_or_missing(name);
        }
    }
    merged <= usize::from(expected) && held.is_none_or(|c| c.expected == u16::from(expected))
}

/// The reports merged into a column, as a bitmap; prefers those that have arrived. `None` if there are none.
fn subset_of(held: Option<&SketchColumn>, reports: &[&JournalEntry], rows: u8) -> Option<u32> {
    let Some(held) = held else { return Some(0) };
    let rows = usize::from(rows);
    let arrived = |subset: u32| {
        (0..reports.len()).filter(|n| subset >> n & 1 == 1 && reports[*n].fate.has_arrived()).count()
    };
    (0..1u32 << reports.len().min(16))
        .filter(|subset| subset.count_ones() == u32::from(held.merged))
        .filter(|subset| {
            let mut cells = [0u32; 4];
            for (n, entry) in reports.iter().enumerate() {
                if let (1, ReportBody::SketchMerge { cells: more, .. }) =
                    (subset >> n & 1, &entry.report.body)
                {
                    (0..rows).for_each(|row| cells[row] = cells[row].saturating_add(more[row]));
                }
            }
            cells[..rows] == held.cells[..rows]
        })
        .max_by_key(|subset| (arrived(*subset), u32::MAX - subset))
}
