//! Key-write: the last value of each flow.

use dta_client::{AskKeys, ClientError, Spread};
use dta_proto::control::Policy;
use dta_proto::store::{StoreKind, StoreSpec};

use super::occupancy::{Occupancy, When};
use super::{Asked, Ends, LOST_TO_TRANSLATOR, Pools, Tally, keys, share};
use crate::journal::{Entry, Journal};
use crate::share::Share;
use crate::topology::Primitive;
use crate::workload::{Body, SeenFlow};

/// Asks for everything in the store, and compares.
pub(super) async fn of(
    asked: &Asked<'_>,
    all: &Spread,
    store: &StoreSpec,
    pools: &mut Pools,
) -> Result<(Tally, Ends), ClientError> {
    let answers = ask(all, store, asked.flows).await?;
    Ok(check((&store.kind, share(all)), asked.flows, asked.journal, &answers, pools))
}

/// The value of every flow.
pub async fn ask(
    all: &Spread,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<Option<Vec<u8>>>, ClientError> {
    let answers = all.key_write(&store.name, &keys(flows), Policy::First, 0).await?;
    Ok(answers.into_iter().map(|answer| answer.value).collect())
}

/// Compares `answers` (one per flow, in order) with the reports. `kind` is that of the store, which the collectors share.
pub(super) fn check(
    (kind, share): (&StoreKind, Share),
    flows: &[SeenFlow],
    journal: &Journal,
    answers: &[Option<Vec<u8>>],
    pools: &mut Pools,
) -> (Tally, Ends) {
    let &StoreKind::KeyWrite { slots, redundancy, .. } = kind else {
        unreachable!("called with the key-write store");
    };
    let mut by_flow = vec![Vec::<(usize, &Entry, [u8; 12])>::new(); flows.len()];
    let mut occupancy = Occupancy::default();
    for (place, entry) in journal.of(Primitive::KeyWrite) {
        if let Body::KeyWrite { flow, value } = entry.report.body {
            by_flow[flow as usize].push((place, entry, value));
            for (n, slot) in share.slots(&flows[flow as usize].key, redundancy, slots).iter().enumerate() {
                if entry.fate.may_have_landed(n) {
                    occupancy.write(*slot, flow, When::of(place, &entry.fate, n));
                }
            }
        }
    }
    let (mut tally, mut ends) = (Tally::default(), Ends::default());
    for (index, reports) in by_flow.iter().enumerate() {
        let Some(last) = reports.len().checked_sub(1) else { continue };
        tally.queried += 1;
        let places = share.slots(&flows[index].key, redundancy, slots);
        let all_lost = |entry: &Entry| (0..places.len()).all(|n| !entry.fate.landed(n));
        // Copies of the report that no record shows lost, and that no other key can have overwritten.
        let there = |place: usize, entry: &Entry| {
            let overwritten = |n, slot| occupancy.taken(slot, index as u32, When::of(place, &entry.fate, n));
            places
                .iter()
                .enumerate()
                .filter(|(n, slot)| entry.fate.landed(*n) && !overwritten(*n, **slot))
                .count() as u64
        };
        // The fate of a report that is not the answer although none with its key is newer: at most `most` of the
        // copies that should be there must be lost for that.
        let explain = |ends: &mut Ends, pools: &mut Pools, place: usize, entry: &Entry, most: u64| {
            let there = there(place, entry);
            if !entry.fate.arrived() {
                ends.lose(LOST_TO_TRANSLATOR);
                true
            } else if all_lost(entry) {
                ends.lose(entry.fate.lost_behind_translator());
                true
            } else if there == 0 {
                ends.overwritten += 1;
                true
            } else {
                ends.not_found_in(there.min(most), pools)
            }
        };
        let found = answers[index]
            .as_deref()
            .map(|answer| (answer, reports.iter().rposition(|(_, _, value)| value[..] == *answer)));
        match found {
            None => {
                tally.absent += 1;
                let (place, entry, _) = reports[last];
                explain(&mut ends, pools, place, entry, u64::MAX);
                older(&mut ends, &reports[..last], places.len());
            }
            Some((answer, None)) => {
                tally.wrong(|| format!("{}: {answer:02x?} was never reported", flows[index].flow));
                reports.iter().for_each(|(_, entry, _)| {
                    if entry.fate.arrived() {
                        ends.missing += 1;
                    } else {
                        ends.lose(LOST_TO_TRANSLATOR);
                    }
                });
            }
            Some((answer, Some(at))) => {
                // Packets of one length and one time have one value: the answer may be from any report with this
                // value.
                let answer_moved = reports[..=at].iter().any(|(_, entry, value)| {
                    value[..] == *answer
                        && (0..places.len())
                            .any(|n| entry.fate.may_have_landed(n) && entry.fate.order_unknown(n))
                });
                let mut excused = true;
                for (place, entry, _) in &reports[at + 1..] {
                    let moved = answer_moved || (0..places.len()).any(|n| entry.fate.order_unknown(n));
                    if entry.fate.arrived() && moved && !all_lost(entry) {
                        ends.superseded += 1;
                    } else if entry.fate.arrived() && entry.fate.any_copy_lost() {
                        // The copies that landed are not the ones that the query answers from.
                        ends.lose(entry.fate.lost_behind_translator());
                    } else {
                        // The query answers from the first slot that holds the key: one copy decides.
                        excused &= explain(&mut ends, pools, *place, entry, 1);
                    }
                }
                ends.queryable += 1;
                older(&mut ends, &reports[..at], places.len());
                if at == last {
                    tally.right += 1;
                } else if excused {
                    tally.stale += 1;
                } else {
                    tally.wrong(|| {
                        let newer = last - at;
                        format!(
                            "{}: {answer:02x?} is {newer} reports old, and none of these is accounted for",
                            flows[index].flow
                        )
                    });
                }
            }
        }
    }
    (tally, ends)
}

/// Reports that a newer one with the same key replaced.
fn older(ends: &mut Ends, reports: &[(usize, &Entry, [u8; 12])], copies: usize) {
    for (_, entry, _) in reports {
        if !entry.fate.arrived() {
            ends.lose(LOST_TO_TRANSLATOR);
        } else if (0..copies).all(|n| !entry.fate.landed(n)) {
            ends.lose(entry.fate.lost_behind_translator());
        } else {
            ends.superseded += 1;
        }
    }
}
