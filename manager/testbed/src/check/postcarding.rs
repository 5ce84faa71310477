//! Postcarding: the path of each flow.

use dta_client::{AskKeys, ClientError, Spread};
use dta_proto::control;
use dta_proto::counter::{Stage, translator};
use dta_proto::store::{StoreKind, StoreSpec};

use super::occupancy::{Occupancy, When};
use super::{Asked, Ends, LOST_TO_TRANSLATOR, Pools, Tally, keys, share};
use crate::journal::{Entry, Journal};
use crate::share::Share;
use crate::topology::Primitive;
use crate::workload::{Body, SeenFlow, Workload};

/// A path as the collector returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathAnswer {
    /// Value per hop, from hop 0; `None` if the row has none.
    pub hops: Vec<Option<u32>>,
    /// Length as reported; 0 = unknown.
    pub length: u32,
}

/// Asks for everything in the store, and compares.
pub(super) async fn of(
    asked: &Asked<'_>,
    all: &Spread,
    store: &StoreSpec,
    pools: &mut Pools,
) -> Result<(Tally, Ends), ClientError> {
    let answers = ask(all, store, asked.flows).await?;
    let evicted = asked.statistics.node(Stage::Translator).get(&translator::PARTIAL_ROWS);
    Ok(check((&store.kind, share(all)), asked.flows, asked.journal, &answers, evicted, pools))
}

/// The path of every flow.
async fn ask(
    all: &Spread,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<Option<PathAnswer>>, ClientError> {
    let answers = all.path(&store.name, &keys(flows)).await?;
    let path = |answer: control::PathAnswer| {
        let hops = answer.hops.iter().zip(&answer.present).map(|(value, present)| present.then_some(*value));
        answer.found.then(|| PathAnswer { hops: hops.collect(), length: answer.path_length })
    };
    Ok(answers.into_iter().map(path).collect())
}

/// Compares `answers` (one per flow, in order; `None` = not found) with the reports.
///
/// `evicted` is how many rows the translator sent incomplete: no more paths than that may lack a hop without a loss.
pub(super) fn check(
    (kind, share): (&StoreKind, Share),
    flows: &[SeenFlow],
    journal: &Journal,
    answers: &[Option<PathAnswer>],
    evicted: u64,
    pools: &mut Pools,
) -> (Tally, Ends) {
    let &StoreKind::Postcarding { slots, redundancy, .. } = kind else {
        unreachable!("called with the postcard store");
    };
    let mut by_flow = vec![Vec::<(usize, &Entry, u8)>::new(); flows.len()];
    let mut occupancy = Occupancy::default();
    for (place, entry) in journal.of(Primitive::Postcarding) {
        if let Body::Postcard { flow, hop } = entry.report.body {
            by_flow[flow as usize].push((place, entry, hop));
            for (n, slot) in share.slots(&flows[flow as usize].key, redundancy, slots).iter().enumerate() {
                if entry.fate.may_have_landed(n) {
                    occupancy.write(*slot, flow, row_written(place, entry, n, evicted));
                }
            }
        }
    }
    let (mut tally, mut ends) = (Tally::default(), Ends::default());
    let mut evictions = evicted;
    for (index, reports) in by_flow.iter().enumerate() {
        let Some(&(last_place, last, _)) = reports.last() else { continue };
        tally.queried += 1;
        let flow = &flows[index];
        let places = share.slots(&flow.key, redundancy, slots);
        let all_lost = |entry: &Entry| (0..places.len()).all(|n| !entry.fate.landed(n));
        let overwritten =
            |n, slot| occupancy.taken(slot, index as u32, row_written(last_place, last, n, evicted));
        let there = places
            .iter()
            .enumerate()
            .filter(|(n, slot)| last.fate.landed(*n) && !overwritten(*n, **slot))
            .count();
        let mut touched = reports.iter().any(|(_, entry, _)| entry.fate.touched());
        let answer = answers[index].as_ref();
        let mut shown = vec![false; flow.path.len()];
        let mut wrong = false;
        for (hop, value) in answer.into_iter().flat_map(|a| a.hops.iter().enumerate()) {
            if let Some(value) = value {
                match flow.path.get(hop) {
                    Some(&switch) if Workload::switch_id(switch) == *value => shown[hop] = true,
                    _ => wrong = true,
                }
            }
        }
        wrong |= answer.is_some_and(|a| a.length != 0 && a.length as usize != flow.path.len());
        let complete = shown.iter().all(|s| *s);
        if answer.is_some() && !complete && !touched && evictions > 0 {
            evictions -= 1;
            touched = true;
        }

        // Latest first, so that the first report of each hop that arrived is the one shown.
        let mut not_found = 0;
        let mut seen = vec![false; flow.path.len()];
        for (_, entry, hop) in reports.iter().rev() {
            let hop = usize::from(*hop);
            if !entry.fate.arrived() {
                ends.lose(LOST_TO_TRANSLATOR);
            } else if all_lost(entry) {
                ends.lose(entry.fate.lost_behind_translator());
            } else if std::mem::replace(&mut seen[hop], true) {
                ends.superseded += 1;
            } else if shown[hop] {
                ends.queryable += 1;
            } else if answer.is_some() && !wrong && touched {
                // It was in an earlier row of the flow, which a later, incomplete one has replaced.
                ends.superseded += 1;
            } else if answer.is_none() && there == 0 {
                ends.overwritten += 1;
            } else if answer.is_none() && touched && entry.fate.any_copy_lost() {
                ends.lose(entry.fate.lost_behind_translator());
            } else {
                not_found += 1;
            }
        }
        // Each alone; else all together, in the frames of one path: all copies of it if there is no answer, the one
        // that the query answers from if an older path is there.
        let frames = if answer.is_none() { there as u64 } else { 1 };
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
            Some(_) if wrong => tally.wrong(|| {
                let path: Vec<_> = flow.path.iter().map(|s| Workload::switch_id(*s)).collect();
                format!("{}: answered {:?}, the path is {path:?}", flow.flow, answer.map(|a| &a.hops))
            }),
            Some(_) if complete => tally.right += 1,
            Some(_) if unexplained => tally.wrong(|| {
                format!(
                    "{}: hops are missing in {:?}, and nothing accounts for them",
                    flow.flow,
                    answer.map(|a| &a.hops)
                )
            }),
            Some(_) => tally.partial += 1,
        }
    }
    (tally, ends)
}

/// When the row of a postcard may have been written: a row that waits for hops is written later.
fn row_written(place: usize, entry: &Entry, copy: usize, evicted: u64) -> When {
    let when = When::of(place, &entry.fate, copy);
    if evicted > 0 { When { earliest: 0, latest: usize::MAX } } else { when }
}
