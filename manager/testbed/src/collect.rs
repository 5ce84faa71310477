//! Asking the collectors about everything, over the same gRPC as anybody.

use dta_client::{Ask, AskKeys, ClientError, Spread};
use dta_proto::control::{MAX_READ, Policy, ReadMemoryRequest, TailRequest};
use dta_proto::key::Key;
use dta_proto::layout::append;
use dta_proto::layout::sketch_merge::{self, Column};
use dta_proto::store::{StoreKind, StoreSpec};

use super::check::{Gap, PathAnswer, SketchAnswers, TailAnswer};
use super::share::Share;
use super::workload::{EpochTruth, SeenFlow};

/// Bytes of memory that one call gives at most.
const MEMORY_CHUNK: u64 = MAX_READ as u64;

fn keys(flows: &[SeenFlow]) -> Vec<Key> {
    flows.iter().map(|flow| flow.key).collect()
}

/// The value of every flow.
pub async fn key_write(
    all: &Spread,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<Option<Vec<u8>>>, ClientError> {
    let answers = all.key_write(&store.name, &keys(flows), Policy::First, 0).await?;
    Ok(answers.into_iter().map(|answer| answer.value).collect())
}

/// The path of every flow.
pub async fn paths(
    all: &Spread,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<Option<PathAnswer>>, ClientError> {
    let answers = all.path(&store.name, &keys(flows)).await?;
    let path = |answer: dta_proto::control::PathAnswer| {
        let hops = answer.hops.iter().zip(&answer.present).map(|(value, present)| present.then_some(*value));
        answer.found.then(|| PathAnswer { hops: hops.collect(), length: answer.path_length })
    };
    Ok(answers.into_iter().map(path).collect())
}

/// The counter of every flow.
pub async fn counters(all: &Spread, store: &StoreSpec, flows: &[SeenFlow]) -> Result<Vec<u64>, ClientError> {
    let answers = all.counter(&store.name, &keys(flows)).await?;
    Ok(answers.into_iter().map(|answer| answer.value).collect())
}

/// Every list from its first batch to its end.
pub async fn lists(all: &Spread, store: &StoreSpec) -> Result<Vec<TailAnswer>, ClientError> {
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
        let mut stream = all.tail(request).await?;
        let mut answer = TailAnswer::default();
        while let Some(message) = stream.message().await? {
            answer.overwritten_batches += message.overwritten_batches;
            answer.missing_batches += message.missing_batches + message.damaged_batches;
            answer.entries.extend(message.entries);
        }
        let length = ring * u64::from(batch_len);
        let owner = &*all.members()[Share::among(all.members().len()).of_list(list, lists)].ask;
        let bytes = memory(owner, store, append::place_offset(list, 0, ring, batch_len), length).await?;
        let batches = bytes.chunks_exact(batch_len.into()).filter_map(|batch| {
            match append::decode(batch, list, entry_len) {
                append::Batch::Valid { sequence, count, .. } => Some((sequence, count)),
                append::Batch::Empty | append::Batch::Torn => None,
            }
        });
        answer.gaps = gaps(batches.collect(), ring);
        answers.push(answer);
    }
    Ok(answers)
}

/// Where batches are missing in a ring that holds these, by sequence and number of entries.
fn gaps(mut batches: Vec<(u32, u8)>, ring: u64) -> Vec<Gap> {
    batches.sort_unstable();
    let newest = batches.last().map_or(0, |batch| batch.0);
    let mut expected = u64::from(newest).saturating_sub(ring - 1).max(1);
    let (mut gaps, mut at) = (Vec::new(), 0);
    for (sequence, count) in batches {
        let sequence = u64::from(sequence);
        // An older turn's, in a place where the newer batch is missing: read before it, if at all.
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

/// Bytes of a store's memory at one collector.
async fn memory(
    collector: &dyn Ask,
    store: &StoreSpec,
    first: u64,
    length: u64,
) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::with_capacity(length as usize);
    while (bytes.len() as u64) < length {
        let at = bytes.len() as u64;
        let chunk = MEMORY_CHUNK.min(length - at);
        let (store, offset, length) = (store.name.clone(), first + at, chunk as u32);
        bytes.extend(collector.read_memory(ReadMemoryRequest { store, offset, length }).await?.data);
    }
    Ok(bytes)
}

/// All columns in memory, and the estimate of every flow of every epoch that is still kept.
pub async fn sketches(
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
    let owner = &*all.members()[0].ask;
    let mut answers = SketchAnswers::default();
    for place in 0..u64::from(epochs) {
        let bytes = memory(owner, store, place * length, length).await?;
        let unwritten = Column { epoch: 0, merged: 0, expected: 0, cells: [0; 4] };
        let column = |bytes: &[u8]| sketch_merge::decode(bytes, rows).unwrap_or(unwritten);
        answers
            .memory
            .push(bytes.chunks_exact(sketch_merge::column_len(rows) as usize).map(column).collect());
    }
    let newest = truth.last().map_or(0, |epoch| epoch.epoch);
    for epoch in truth {
        let mut estimates = Vec::new();
        if epoch.epoch + epochs > newest {
            let keys: Vec<_> = epoch.packets.iter().map(|(flow, _)| flows[*flow as usize].key).collect();
            let found = all.sketch(&store.name, &keys, epoch.epoch).await?;
            estimates.extend(found.into_iter().map(|answer| answer.estimate));
        }
        answers.estimates.push(estimates);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_where_sequences_are_missing() {
        let gap = |at, batches| Gap { at, batches };
        assert_eq!(gaps(vec![], 8), []);
        assert_eq!(gaps(vec![(1, 3), (2, 3)], 8), []);
        assert_eq!(gaps(vec![(5, 3), (2, 3), (3, 1)], 8), [gap(0, 1), gap(4, 1)]);
        // A ring that has turned: 5 to 12 are in it, and 9 has not come, so that 1 is still there.
        let turned = [(12, 1), (5, 1), (6, 1), (7, 1), (8, 1), (1, 1), (10, 1), (11, 1)];
        assert_eq!(gaps(turned.to_vec(), 8), [gap(5, 1)]);
    }
}
