//! Asking the collector about everything, over the same gRPC as anybody.

use dta_collector::client::{Client, ClientError};
use dta_proto::control::{Policy, TailRequest};
use dta_proto::key::Key;
use dta_proto::layout::sketch_merge::{self, Column};
use dta_proto::store::{StoreKind, StoreSpec};

use super::check::{PathAnswer, SketchAnswers, TailAnswer};
use super::workload::{EpochTruth, SeenFlow};

/// Bytes of memory that one call gives at most.
const MEMORY_CHUNK: u64 = 64 << 10;

fn keys(flows: &[SeenFlow]) -> Vec<Key> {
    flows.iter().map(|flow| flow.key).collect()
}

/// The value of every flow.
pub async fn key_write(
    client: &mut Client,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<Option<Vec<u8>>>, ClientError> {
    let answers = client.key_write(&store.name, &keys(flows), Policy::First, 0).await?;
    Ok(answers.into_iter().map(|answer| answer.value).collect())
}

/// The path of every flow.
pub async fn paths(
    client: &mut Client,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<Option<PathAnswer>>, ClientError> {
    let answers = client.path(&store.name, &keys(flows)).await?;
    let path = |answer: dta_proto::control::PathAnswer| {
        let hops = answer.hops.iter().zip(&answer.present).map(|(value, present)| present.then_some(*value));
        answer.found.then(|| PathAnswer { hops: hops.collect(), length: answer.path_length })
    };
    Ok(answers.into_iter().map(path).collect())
}

/// The counter of every flow.
pub async fn counters(
    client: &mut Client,
    store: &StoreSpec,
    flows: &[SeenFlow],
) -> Result<Vec<u64>, ClientError> {
    let answers = client.counter(&store.name, &keys(flows)).await?;
    Ok(answers.into_iter().map(|answer| answer.value).collect())
}

/// Every list from its first batch to its end.
pub async fn lists(client: &mut Client, store: &StoreSpec) -> Result<Vec<TailAnswer>, ClientError> {
    let StoreKind::Append { lists, .. } = store.kind else { return Ok(Vec::new()) };
    let mut answers = Vec::new();
    for list in 0..lists {
        let request = TailRequest {
            store: store.name.clone(),
            list,
            until_caught_up: true,
            from_sequence: 1,
            ..TailRequest::default()
        };
        let mut stream = client.tail(request).await?;
        let mut answer = TailAnswer::default();
        while let Some(message) = stream.message().await? {
            answer.overwritten_batches += message.overwritten_batches;
            answer.missing_batches += message.missing_batches + message.damaged_batches;
            answer.entries.extend(message.entries);
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// All columns in memory, and the estimate of every flow of every epoch that is still kept.
pub async fn sketches(
    client: &mut Client,
    store: &StoreSpec,
    flows: &[SeenFlow],
    truth: &[EpochTruth],
) -> Result<SketchAnswers, ClientError> {
    let StoreKind::SketchMerge { columns, rows, epochs, .. } = store.kind else {
        return Ok(SketchAnswers::default());
    };
    let length = u64::from(columns) * sketch_merge::column_len(rows);
    let mut answers = SketchAnswers::default();
    for place in 0..u64::from(epochs) {
        let mut bytes = Vec::with_capacity(length as usize);
        while (bytes.len() as u64) < length {
            let at = place * length + bytes.len() as u64;
            let chunk = MEMORY_CHUNK.min(length - bytes.len() as u64);
            bytes.extend(client.read_memory(&store.name, at, chunk as u32).await?.data);
        }
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
            let found = client.sketch(&store.name, &keys, epoch.epoch).await?;
            estimates.extend(found.into_iter().map(|answer| answer.estimate));
        }
        answers.estimates.push(estimates);
    }
    Ok(answers)
}
