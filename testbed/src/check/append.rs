//! Append: each new flow once, in its list.

use std::collections::HashMap;

use dta_proto::control::TailRequest;
use dta_proto::layout::append::{self, entries_per_batch};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::{Ask, ClientError, Spread};

use super::read_store_memory;
use super::{CheckContext, LOST_TO_TRANSLATOR, Pools, ReportEnds, Tally};
use crate::journal::{Journal, JournalEntry};
use crate::share::Share;
use crate::topology::Primitive;
use crate::workload::{ReportBody, SeenFlow};

/// The result of reading one list from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TailAnswer {
    /// Entries, in order.
    pub entries: Vec<Vec<u8>>,
    /// Batches that the reader reported as overwritten before it came.
    pub overwritten_batches: u64,
    /// Batches that the reader reported as missing or unreadable.
    pub missing_batches: u64,
    /// Where they are missing, by the batches in memory.
    pub gaps: Vec<Gap>,
}

/// Batches that are not in memory, although later ones of their list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub at: usize,
    pub batches: u64,
}

/// Asks for everything in the store, and compares.
pub(super) async fn query_and_check(
    asked: &CheckContext<'_>,
    all: &Spread,
    store: &StoreSpec,
    pools: &mut Pools,
) -> Result<(Tally, ReportEnds), ClientError> {
    let answers = query_lists(all, store).await?;
    Ok(check_answers(&store.kind, asked.flows, asked.journal, &answers, pools))
}

/// Every list from its first batch to its end.
async fn query_lists(all: &Spread, store: &StoreSpec) -> Result<Vec<TailAnswer>, ClientError> {
    let StoreKind::Append { lists, ring, batch_len, entry_len, .. } = store.kind else {
        return Ok(Vec::new());
    };
    let mut answers = Vec::new();
    for list in 0..lists {
        let request = TailRequest {
            store: store.name.clone(),
            list,
            until_caught_up: true,
            from_sequence: 1,
            ..TailRequest::default()
        };
        let mut stream = all.tail_list(request).await?;
        let mut answer = TailAnswer::default();
        while let Some(message) = stream.next_message().await? {
            answer.overwritten_batches += message.overwritten_batches;
            answer.missing_batches += message.missing_batches + message.damaged_batches;
            answer.entries.extend(message.entries);
        }
        let length = ring * u64::from(batch_len);
        let members = all.members();
        let owner = &*members[Share::with_collectors(members.len()).collector_of_list(list, lists)].ask;
        let bytes =
            read_store_memory(owner, store, append::place_offset(list, 0, ring, batch_len), length).await?;
        let batches = bytes.chunks_exact(batch_len.into()).filter_map(|batch| {
            match append::decode_batch(batch, list, entry_len) {
                append::RingBatch::Valid { sequence, count, .. } => Some((sequence, count)),
                append::RingBatch::Empty | append::RingBatch::Torn => None,
            }
        });
        answer.gaps = find_gaps(batches.collect(), ring);
        answers.push(answer);
    }
    Ok(answers)
}

/// Where batches are missing in a ring that holds `batches`, each a sequence and a number of entries.
fn find_gaps(mut batches: Vec<(u32, u8)>, ring: u64) -> Vec<Gap> {
    batches.sort_unstable();
    let newest = batches.last().map_or(0, |batch| batch.0);
    let mut expected = u64::from(newest).saturating_sub(ring - 1).max(1);
    let (mut gaps, mut at) = (Vec::new(), 0);
    for (sequence, count) in batches {
        let sequence = u64::from(sequence);
        // A lower one is left from the ring's previous turn, in place of a newer batch that is missing.
        if sequence >= expected {
            if sequence > expected {
                gaps.push(Gap { at, batches: sequence - expected });
            }
            expected = sequence + 1;
        }
        at += usize::from(count);
    }
    gaps
}

/// Compares `lists` (by list number) with the reports.
pub(super) fn check_answers(
    kind: &StoreKind,
    flows: &[SeenFlow],
    journal: &Journal,
    lists: &[TailAnswer],
    pools: &mut Pools,
) -> (Tally, ReportEnds) {
    let &StoreKind::Append { batch_len, entry_len, .. } = kind else {
        unreachable!("called with the append store");
    };
    let per_batch = u64::from(entries_per_batch(batch_len, entry_len));
    let (mut tally, mut ends) = (Tally::default(), ReportEnds::default());
    let mut sent = vec![Vec::<(u32, &JournalEntry)>::new(); lists.len()];
    for (_, entry) in journal.reports_of_primitive(Primitive::Append) {
        if let ReportBody::Append { flow, list } = entry.report.body {
            sent[list as usize].push((flow, entry));
        }
    }
    for (number, (answer, sent)) in lists.iter().zip(&sent).enumerate() {
        check_list(number, flows, answer, sent, per_batch, pools, &mut tally, &mut ends);
    }
    (tally, ends)
}

#[allow(clippy::too_many_arguments)] // what is queried, what is known, and where to report it
fn check_list(
    number: usize,
    flows: &[SeenFlow],
    answer: &TailAnswer,
    sent: &[(u32, &JournalEntry)],
    per_batch: u64,
    pools: &mut Pools,
    tally: &mut Tally,
    ends: &mut ReportEnds,
) {
    let missing: u64 = answer.gaps.iter().map(|gap| gap.batches).sum();
    // In a ring that has turned, the reader skips more than is missing now.
    if answer.overwritten_batches == 0 && answer.missing_batches != missing {
        tally.queried += 1;
        tally.count_wrong(|| {
            format!(
                "list {number}: the reader reported {} missing batches, but {missing} are missing in memory",
                answer.missing_batches
            )
        });
    }
    let mut found = HashMap::<&[u8], (usize, u32)>::new();
    for (place, entry) in answer.entries.iter().enumerate() {
        found.entry(entry).or_insert((place, 0)).1 += 1;
    }
    // By report: the place of the next one found whose place among the others is known.
    let mut next = None;
    let mut nexts: Vec<_> = sent
        .iter()
        .rev()
        .map(|(flow, entry)| {
            if let Some((place, _)) = found.get(&flows[*flow as usize].key.0[..])
                && !entry.fate.moved
            {
                next = Some(*place);
            }
            next
        })
        .collect();
    nexts.reverse();
    // Batches that the reader reported, as entries: no more than these may be missing.
    let mut overwritten = answer.overwritten_batches * per_batch;
    let mut missing =
        Missing { gaps: answer.gaps.clone(), per_batch, last: None, recorded: 0, of_frame: 0, frame: None };
    for ((flow, entry), next) in sent.iter().zip(nexts) {
        tally.queried += 1;
        let flow = &flows[*flow as usize];
        if let Some((place, times)) = found.remove(&flow.key.0[..]) {
            ends.queryable += 1;
            if times == 1 {
                tally.right += 1;
            } else {
                tally.count_wrong(|| format!("list {number}: {} is there {times} times", flow.flow));
            }
            if !entry.fate.moved {
                missing.note_found(place);
            }
            continue;
        }
        // Nothing reveals what should have come after the newest batch, nor where an entry was if its place is unknown.
        let anywhere = entry.fate.moved || next.is_none();
        let before_all = missing.last.is_none() && answer.overwritten_batches > 0;
        let excused = if !entry.fate.has_arrived() {
            ends.count_loss(LOST_TO_TRANSLATOR);
            true
        } else if !entry.fate.has_copy_landed(0) {
            ends.count_loss(entry.fate.lost_behind_translator());
            anywhere || before_all || missing.take_recorded(next)
        } else if overwritten > 0 && (anywhere || before_all) {
            overwritten -= 1;
            ends.overwritten += 1;
            true
        } else {
            match missing.take_of_frame().or_else(|| pools.take()) {
                Some(name) => ends.lost_or_missing(Some(name)),
                None => {
                    let is_reported = missing.is_gap_reported(next, entry.fate.moved);
                    // Even if unexplained, it is not a wrong answer if the reader reported a gap.
                    ends.lost_or_missing(missing.take_frame(next, anywhere, pools)) || is_reported
                }
            }
        };
        if excused {
            tally.absent += 1;
        } else {
            tally.count_wrong(|| {
                format!("list {number}: {} is missing, but the reader reported no gap", flow.flow)
            });
        }
    }
    for (entry, (_, times)) in found {
        for _ in 0..times {
            tally.count_wrong(|| format!("list {number}: the entry {entry:02x?} was never sent"));
        }
    }
}

/// The missing batches, as the missing entries use them up.
struct Missing {
    gaps: Vec<Gap>,
    per_batch: u64,
    last: Option<usize>,
    /// Entries that a batch recorded as lost may still contain.
    recorded: u64,
    /// The same for a batch that stands for a frame.
    of_frame: u64,
    frame: Option<String>,
}

impl Missing {
    /// An entry was found, so what follows is in other batches.
    fn note_found(&mut self, place: usize) {
        self.last = Some(place);
        (self.recorded, self.of_frame) = (0, 0);
    }

    /// A gap between the last entry found and the next one, if batches of it are left.
    fn next_gap(&mut self, next: Option<usize>) -> Option<&mut Gap> {
        let first = self.last.map_or(0, |last| last + 1);
        let until = next.unwrap_or(usize::MAX);
        self.gaps.iter_mut().find(|gap| (first..=until).contains(&gap.at) && gap.batches > 0)
    }

    /// Whether the reader reported a gap there, or any gap if `anywhere`.
    fn is_gap_reported(&mut self, next: Option<usize>, anywhere: bool) -> bool {
        let any = |gap: &Gap| gap.batches > 0;
        self.recorded > 0 || self.next_gap(next).is_some() || (anywhere && self.gaps.iter().any(any))
    }

    /// An entry of a batch recorded as lost; returns whether the reader reported one there.
    fn take_recorded(&mut self, next: Option<usize>) -> bool {
        if self.recorded == 0 {
            let Some(gap) = self.next_gap(next) else { return false };
            gap.batches -= 1;
            self.recorded = self.per_batch;
        }
        self.recorded -= 1;
        true
    }

    /// An entry of the batch in the last frame taken.
    fn take_of_frame(&mut self) -> Option<String> {
        self.of_frame = self.of_frame.checked_sub(1)?;
        self.frame.clone()
    }

    /// Takes a frame for exactly one missing batch, whose first entry this is.
    fn take_frame(&mut self, next: Option<usize>, anywhere: bool, pools: &mut Pools) -> Option<String> {
        if !anywhere && self.next_gap(next).is_none() {
            return None;
        }
        let name = pools.take_frames(1)?;
        if let Some(gap) = self.next_gap(next) {
            gap.batches -= 1;
        }
        self.of_frame = self.per_batch - 1;
        self.frame = Some(name.clone());
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_where_sequences_are_missing() {
        let gap = |at, batches| Gap { at, batches };
        assert_eq!(find_gaps(vec![], 8), []);
        assert_eq!(find_gaps(vec![(1, 3), (2, 3)], 8), []);
        assert_eq!(find_gaps(vec![(5, 3), (2, 3), (3, 1)], 8), [gap(0, 1), gap(4, 1)]);
        // A ring that has turned: 5 to 12 are in it, and 9 has not come, so that 1 is still there.
        let turned = [(12, 1), (5, 1), (6, 1), (7, 1), (8, 1), (1, 1), (10, 1), (11, 1)];
        assert_eq!(find_gaps(turned.to_vec(), 8), [gap(5, 1)]);
    }
}
