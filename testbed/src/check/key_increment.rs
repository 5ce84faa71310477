//! Key-increment: bytes per flow.

use std::collections::HashMap;

use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::{AskKeys, ClientError, Spread};

use super::{CheckContext, LOST_TO_TRANSLATOR, Pools, ReportEnds, Tally, flow_keys};
use crate::journal::{Journal, JournalEntry};
use crate::share::Share;
use crate::topology::Primitive;
use crate::workload::{ReportBody, SeenFlow};

/// Asks for everything in the store, and compares.
pub(super) async fn query_and_check(
    asked: &CheckContext<'_>,
    all: &Spread,
    store: &StoreSpec,
    pools: &mut Pools,
) -> Result<(Tally, ReportEnds), ClientError> {
    let answers = query_counters(all, store, asked.flows).await?;
    Ok(check_answers((&store.kind, asked.answers.share), asked.flows, asked.journal, &answers, pools))
}

async fn query_counters(
    all: &Spread,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<u64>, ClientError> {
    let answers = all.query_counters(&store.name, &flow_keys(flows)).await?;
    Ok(answers.into_iter().map(|answer| answer.value).collect())
}

/// Compares `answers` (one per flow, in order) with the reports.
///
/// What each counter must hold is computed from the reports: the sum of what arrived and was not lost on the way to
/// it, over all keys that share it; and the most it may hold, with reports for which a queue pair does not know
/// whether they were executed. An answer below the sum is wrong unless whole reports, no more than `pools` has without
/// a record, make up the difference; one above the most always is, because RC adds once.
pub(super) fn check_answers(
    (kind, share): (&StoreKind, Share),
    flows: &[SeenFlow],
    journal: &Journal,
    answers: &[u64],
    pools: &mut Pools,
) -> (Tally, ReportEnds) {
    let &StoreKind::KeyIncrement { slots, redundancy, .. } = kind else {
        unreachable!("called with the counter store");
    };
    // Least and most.
    let mut counters = HashMap::<u64, [u64; 2]>::new();
    let mut by_flow = vec![(0u64, Vec::<&JournalEntry>::new()); flows.len()];
    for (_, entry) in journal.reports_of_primitive(Primitive::KeyIncrement) {
        if let ReportBody::KeyIncrement { flow, delta } = entry.report.body {
            let (truth, reports) = &mut by_flow[flow as usize];
            *truth = truth.wrapping_add(delta);
            reports.push(entry);
            for (n, slot) in
                share.slots_of_counters(&flows[flow as usize].key, redundancy, slots).iter().enumerate()
            {
                let counter = counters.entry(*slot).or_default();
                if entry.fate.has_copy_landed(n) {
                    counter[0] = counter[0].wrapping_add(delta);
                }
                if entry.fate.may_have_landed(n) {
                    counter[1] = counter[1].wrapping_add(delta);
                }
            }
        }
    }
    let (mut tally, mut ends) = (Tally::default(), ReportEnds::default());
    for (index, (truth, reports)) in by_flow.iter().enumerate() {
        if reports.is_empty() {
            continue;
        }
        tally.queried += 1;
        let places = share.slots_of_counters(&flows[index].key, redundancy, slots);
        // A key whose copies share one counter adds to it once per copy.
        let portion = |slot: &u64, of: usize| {
            let times = places.iter().filter(|other| *other == slot).count() as u64;
            counters.get(slot).map_or(0, |counter| counter[of]) / times
        };
        // At each collector the least of the key's counters counts, and of several collectors the most.
        let numbered: Vec<(usize, &u64)> = places.iter().enumerate().collect();
        let at_each = || numbered.chunks(redundancy.into());
        let least_at = |of: &[(usize, &u64)]| {
            of.iter().map(|(n, slot)| (*n, portion(slot, 0))).min_by_key(|(_, count)| *count)
        };
        let (least, expected) = at_each().filter_map(least_at).max_by_key(|(_, n)| *n).unwrap_or((0, 0));
        let most_at = |of: &[(usize, &u64)]| of.iter().map(|(_, slot)| portion(slot, 1)).min();
        let most = at_each().filter_map(most_at).max().unwrap_or(0);
        let answer = answers[index];
        // Differences beyond the records, as reports: only whole reports can be gone or late.
        let lacking = expected.saturating_sub(answer);
        let there: Vec<_> = reports
            .iter()
            .map(|entry| if entry.fate.has_copy_landed(least) { reported_delta(entry) } else { 0 })
            .collect();
        let gone = find_summands(&there, lacking);
        let mut late = answer.saturating_sub(expected);
        let mut excused = gone.is_some();
        let gone = gone.unwrap_or_default();
        for (n, entry) in reports.iter().enumerate() {
            let delta = reported_delta(entry);
            if !entry.fate.has_arrived() {
                ends.count_loss(LOST_TO_TRANSLATOR);
            } else if !entry.fate.has_copy_landed(least) {
                if entry.fate.may_have_landed(least) && delta <= late {
                    late -= delta;
                    ends.queryable += 1;
                } else {
                    ends.count_loss(entry.fate.lost_behind_translator());
                }
            } else if gone.contains(&n) {
                excused &= ends.not_found(pools);
            } else {
                ends.queryable += 1;
            }
        }
        if answer > most || (answer < expected && !excused) {
            tally.count_wrong(|| {
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

fn reported_delta(entry: &JournalEntry) -> u64 {
    match entry.report.body {
        ReportBody::KeyIncrement { delta, .. } => delta,
        _ => 0,
    }
}

/// Most sums tried, times reports: a second of work.
const MOST_SUMS: u64 = 1 << 30;

/// Places of some of `deltas` whose sum is `sum`; `None` if there are none. Zeros are not among them.
fn find_summands(deltas: &[u64], sum: u64) -> Option<Vec<usize>> {
    if sum == 0 {
        return Some(Vec::new());
    }
    if sum.saturating_mul(deltas.len() as u64) > MOST_SUMS {
        return None;
    }
    // Largest first, so that few are taken.
    let mut order: Vec<_> = (0..deltas.len()).filter(|n| (1..=sum).contains(&deltas[*n])).collect();
    order.sort_unstable_by_key(|n| std::cmp::Reverse(deltas[*n]));
    // By sum: the first one, in that order, that completes it. All others of the sum come earlier in the order.
    let mut made = vec![None::<u32>; sum as usize + 1];
    for (rank, &n) in order.iter().enumerate() {
        let delta = deltas[n] as usize;
        for total in (delta..=sum as usize).rev() {
            if made[total].is_none() && (total == delta || made[total - delta].is_some()) {
                made[total] = Some(rank as u32);
            }
        }
    }
    let (mut places, mut left) = (Vec::new(), sum);
    while left > 0 {
        let n = order[made[left as usize]? as usize];
        places.push(n);
        left -= deltas[n];
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn summands_are_found_if_and_only_if_there_are_such(
            deltas in proptest::collection::vec(0u64..40, 0..12), sum in 0u64..200,
        ) {
            let possible = (0..1u32 << deltas.len()).any(|subset| {
                deltas.iter().enumerate().map(|(n, d)| if subset >> n & 1 == 1 { *d } else { 0 }).sum::<u64>() == sum
            });
            let found = find_summands(&deltas, sum);
            prop_assert_eq!(found.is_some(), possible);
            if let Some(mut places) = found {
                prop_assert_eq!(places.iter().map(|n| deltas[*n]).sum::<u64>(), sum);
                let count = places.len();
                places.sort_unstable();
                places.dedup();
                prop_assert_eq!(places.len(), count);
            }
        }
    }
}
