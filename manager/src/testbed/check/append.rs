//! Append: each new flow once, in its list.

use std::collections::HashMap;

use dta_proto::layout::append::entries_per_batch;
use dta_proto::store::StoreKind;

use super::{Ends, LOST_TO_TRANSLATOR, Pools, Tally};
use crate::testbed::journal::{Entry, Journal};
use crate::testbed::workload::{Body, SeenFlow};
use crate::topology::Primitive;

/// What reading one list from its start gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailAnswer {
    /// Entries, in order.
    pub entries: Vec<Vec<u8>>,
    /// Batches that the reader told were overwritten before it came.
    pub overwritten_batches: u64,
    /// Batches that the reader told are missing or could not be read whole.
    pub missing_batches: u64,
}

/// Compares `lists` (by list number) with the reports.
pub fn check(
    kind: &StoreKind,
    flows: &[SeenFlow],
    journal: &Journal,
    lists: &[TailAnswer],
    pools: &mut Pools,
) -> (Tally, Ends) {
    let &StoreKind::Append { batch_len, entry_len, .. } = kind else {
        unreachable!("called with the append store");
    };
    let per_batch = u64::from(entries_per_batch(batch_len, entry_len));
    let (mut tally, mut ends) = (Tally::default(), Ends::default());
    let mut sent = vec![Vec::<(u32, &Entry)>::new(); lists.len()];
    for (_, entry) in journal.of(Primitive::Append) {
        if let Body::Append { flow, list } = entry.report.body {
            sent[list as usize].push((flow, entry));
        }
    }
    for (number, (answer, sent)) in lists.iter().zip(&sent).enumerate() {
        let mut found = HashMap::<&[u8], u32>::new();
        for entry in &answer.entries {
            *found.entry(entry).or_default() += 1;
        }
        // Batches that the reader told of, as entries: none beyond these may be missing.
        let mut overwritten = answer.overwritten_batches * per_batch;
        let mut flagged = answer.missing_batches * per_batch;
        for (flow, entry) in sent {
            tally.queried += 1;
            let key = flows[*flow as usize].key;
            if let Some(times) = found.remove(&key.0[..]) {
                ends.queryable += 1;
                if times == 1 {
                    tally.right += 1;
                } else {
                    tally.wrong(|| {
                        format!("list {number}: {} stands there {times} times", flows[*flow as usize].flow)
                    });
                }
                continue;
            }
            let excused = if !entry.fate.arrived() {
                ends.lose(LOST_TO_TRANSLATOR);
                true
            } else if !entry.fate.landed(0) {
                // The reader has to have told of the batch, unless it was the last one: nothing tells of what never came.
                flagged = flagged.saturating_sub(1);
                ends.lose(entry.fate.lost_behind_translator());
                true
            } else if overwritten > 0 {
                overwritten -= 1;
                ends.overwritten += 1;
                true
            } else {
                let known = ends.not_found(pools);
                let reported = flagged > 0;
                flagged = flagged.saturating_sub(1);
                known || reported
            };
            if excused {
                tally.absent += 1;
            } else {
                tally.wrong(|| {
                    format!(
                        "list {number}: {} is missing, and the reader told of no gap",
                        flows[*flow as usize].flow
                    )
                });
            }
        }
        for (entry, times) in found {
            for _ in 0..times {
                tally.wrong(|| format!("list {number}: the entry {entry:02x?} was never sent"));
            }
        }
    }
    (tally, ends)
}
