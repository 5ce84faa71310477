//! Key-increment: bytes per flow.

use std::collections::HashMap;

use dta_proto::layout::hash;
use dta_proto::store::StoreKind;

use super::{Ends, LOST_TO_TRANSLATOR, Pools, Tally};
use crate::testbed::journal::{Entry, Journal};
use crate::testbed::workload::{Body, SeenFlow};
use crate::topology::Primitive;

/// Compares `answers` (one per flow, in order) with the reports.
///
/// What each counter has to hold is computed from the reports: the sum of what arrived and was not lost on the way to it,
/// of all the keys that share it; and what it may hold at most, with those that a queue pair gave up though they were only late. An
/// answer below is wrong unless `pools` knows of losses without a record, and one above always, because RC adds once.
pub fn check(
    kind: &StoreKind,
    flows: &[SeenFlow],
    journal: &Journal,
    answers: &[u64],
    pools: &mut Pools,
) -> (Tally, Ends) {
    let &StoreKind::KeyIncrement { slots, redundancy } = kind else {
        unreachable!("called with the counter store");
    };
    // Least and most.
    let mut counters = HashMap::<u64, [u64; 2]>::new();
    let mut by_flow = vec![(0u64, Vec::<&Entry>::new()); flows.len()];
    for (_, entry) in journal.of(Primitive::KeyIncrement) {
        if let Body::KeyIncrement { flow, delta } = entry.report.body {
            let (truth, reports) = &mut by_flow[flow as usize];
            *truth = truth.wrapping_add(delta);
            reports.push(entry);
            for (n, slot) in hash::slots(&flows[flow as usize].key, redundancy, slots).iter().enumerate() {
                let counter = counters.entry(*slot).or_default();
                if entry.fate.landed(n) {
                    counter[0] = counter[0].wrapping_add(delta);
                }
                if entry.fate.may_have_landed(n) {
                    counter[1] = counter[1].wrapping_add(delta);
                }
            }
        }
    }
    let (mut tally, mut ends) = (Tally::default(), Ends::default());
    for (index, (truth, reports)) in by_flow.iter().enumerate() {
        if reports.is_empty() {
            continue;
        }
        tally.queried += 1;
        let places = hash::slots(&flows[index].key, redundancy, slots);
        // A key whose copies share one counter adds to it once per copy.
        let share = |slot: &u64, of: usize| {
            let times = places.iter().filter(|other| *other == slot).count() as u64;
            counters.get(slot).map_or(0, |counter| counter[of]) / times
        };
        let (least, expected) =
            places.iter().map(|slot| share(slot, 0)).enumerate().min_by_key(|(_, n)| *n).unwrap_or((0, 0));
        let most = places.iter().map(|slot| share(slot, 1)).min().unwrap_or(0);
        let answer = answers[index];
        // What a counter lacks, or has, beyond the records, as reports: only whole reports can be gone or late.
        let mut lacking = expected.saturating_sub(answer);
        let mut late = answer.saturating_sub(expected);
        let mut excused = true;
        for entry in reports {
            let delta = match entry.report.body {
                Body::KeyIncrement { delta, .. } => delta,
                _ => 0,
            };
            if !entry.fate.arrived() {
                ends.lose(LOST_TO_TRANSLATOR);
            } else if !entry.fate.landed(least) {
                if entry.fate.may_have_landed(least) && delta <= late {
                    late -= delta;
                    ends.queryable += 1;
                } else {
                    ends.lose(entry.fate.lost_behind_translator());
                }
            } else if lacking > 0 && lacking >= delta {
                lacking -= delta;
                excused &= ends.not_found(pools);
            } else {
                ends.queryable += 1;
            }
        }
        excused &= lacking == 0 || !pools.is_empty();
        if answer > most || (answer < expected && !excused) {
            tally.wrong(|| {
                format!(
                    "{}: answered {answer}, but {expected} to {most} arrived of {truth} sent",
                    flows[index].flow
                )
            });
        } else if answer == *truth {
            tally.right += 1;
        } else if answer > *truth {
            tally.over += 1;
        } else {
            tally.incomplete += 1;
        }
    }
    (tally, ends)
}
