//! The four queries by key.

use dta_proto::control::{
    self, CounterAnswer, KeyWriteAnswer, MAX_KEYS, PathAnswer, QueryCounterRequest, QueryCounterResponse,
    QueryKeyWriteRequest, QueryKeyWriteResponse, QueryPathRequest, QueryPathResponse, QuerySketchRequest,
    QuerySketchResponse, SketchAnswer,
};
use dta_proto::key::Key;
use dta_proto::layout::key_write::Policy;
use dta_proto::layout::postcarding::Path;

use super::counters::Query;
use super::{AskError, Memory};
use crate::store::{key_increment, key_write, postcarding, sketch_merge};

impl Memory {
    pub(super) fn key_write(&self, request: QueryKeyWriteRequest) -> Result<QueryKeyWriteResponse, AskError> {
        let store = self.store(&request.store, "key-write")?;
        let reader = key_write::Reader::new(&store).ok_or(AskError::Layout)?;
        let policy = policy(&request, reader.copies())?;
        let keys = keys(&request.keys)?;
        let mut answers = vec![key_write::Answer::default(); keys.len()];
        let mut values = vec![0u8; keys.len() * reader.value_len()];
        reader.query(&keys, policy, &mut answers, &mut values).map_err(|error| store.outside(error))?;
        self.counters.key_write.count(&answers, |answer| answer.found);
        let answers = keys.iter().zip(answers).zip(values.chunks_exact(reader.value_len()));
        Ok(QueryKeyWriteResponse {
            answers: answers
                .map(|((key, answer), value)| KeyWriteAnswer {
                    key: key.0.to_vec(),
                    value: answer.found.then(|| value.to_vec()),
                    agreeing: answer.agreeing.into(),
                    differing: answer.differing.into(),
                    copies: reader.copies().into(),
                })
                .collect(),
            generation: store.generation,
        })
    }

    pub(super) fn path(&self, request: QueryPathRequest) -> Result<QueryPathResponse, AskError> {
        let store = self.store(&request.store, "postcarding")?;
        let reader = postcarding::Reader::new(&store).ok_or(AskError::Layout)?;
        let keys = keys(&request.keys)?;
        let mut answers = vec![postcarding::Answer::default(); keys.len()];
        reader.query(&keys, &mut answers).map_err(|error| store.outside(error))?;
        self.counters.path.count(&answers, |answer| answer.path.is_some());
        let answers = keys.iter().zip(&answers);
        Ok(QueryPathResponse {
            answers: answers.map(|(key, answer)| path_answer(key, answer)).collect(),
            generation: store.generation,
        })
    }

    pub(super) fn counter(&self, request: QueryCounterRequest) -> Result<QueryCounterResponse, AskError> {
        let store = self.store(&request.store, "key-increment")?;
        let reader = key_increment::Reader::new(&store).ok_or(AskError::Layout)?;
        let keys = keys(&request.keys)?;
        let mut answers = vec![0; keys.len()];
        reader.query(&keys, &mut answers).map_err(|error| store.outside(error))?;
        self.counters.counter.count(&answers, |answer| *answer != 0);
        let answers = keys.iter().zip(answers);
        Ok(QueryCounterResponse {
            answers: answers.map(|(key, value)| CounterAnswer { key: key.0.to_vec(), value }).collect(),
            generation: store.generation,
        })
    }

    pub(super) fn sketch(&self, request: QuerySketchRequest) -> Result<QuerySketchResponse, AskError> {
        let store = self.store(&request.store, "sketch-merge")?;
        let reader = sketch_merge::Reader::new(&store).ok_or(AskError::Layout)?;
        let keys = keys(&request.keys)?;
        let mut answers = vec![sketch_merge::Answer::default(); keys.len()];
        reader.query(&keys, request.epoch, &mut answers).map_err(|error| store.outside(error))?;
        self.counters.sketch.count(&answers, |answer| answer.estimate.is_some());
        let answers = keys.iter().zip(answers);
        Ok(QuerySketchResponse {
            answers: answers
                .map(|(key, answer)| SketchAnswer {
                    key: key.0.to_vec(),
                    estimate: answer.estimate.map(u64::from),
                    merged: answer.merged.into(),
                    expected: answer.expected.into(),
                })
                .collect(),
            generation: store.generation,
        })
    }
}

impl Query {
    fn count<A>(&self, answers: &[A], found: impl Fn(&A) -> bool) {
        self.keys.add(answers.len() as u64);
        self.found.add(answers.iter().filter(|answer| found(answer)).count() as u64);
    }
}

/// Keys of 16 bytes, at most [`MAX_KEYS`].
fn keys(keys: &[Vec<u8>]) -> Result<Vec<Key>, AskError> {
    if keys.len() > MAX_KEYS {
        return Err(AskError::TooManyKeys(keys.len()));
    }
    let key = |key: &Vec<u8>| key.as_slice().try_into().map(Key).map_err(|_| AskError::KeyLength(key.len()));
    keys.iter().map(key).collect()
}

fn policy(request: &QueryKeyWriteRequest, copies: u8) -> Result<Policy, AskError> {
    match control::Policy::try_from(request.policy) {
        Ok(control::Policy::First) => Ok(Policy::First),
        Ok(control::Policy::Plurality) => Ok(Policy::Plurality),
        Ok(control::Policy::AtLeast) => match u8::try_from(request.at_least) {
            Ok(least) if (1..=copies).contains(&least) => Ok(Policy::AtLeast(least)),
            _ => Err(AskError::AtLeast { at_least: request.at_least, copies }),
        },
        Err(_) => Err(AskError::Policy(request.policy)),
    }
}

fn path_answer(key: &Key, answer: &postcarding::Answer) -> PathAnswer {
    let key = key.0.to_vec();
    let Some(path) = &answer.path else {
        return PathAnswer { key, ..PathAnswer::default() };
    };
    // As many as the path has or, if nobody told, up to the last that is there.
    let last = u16::BITS - path.bitmap.leading_zeros();
    let hops = last.max(path.length.into()) as u8;
    let hop = |h| Path::hop(path, h);
    PathAnswer {
        key,
        found: true,
        hops: (0..hops).map(|h| hop(h).unwrap_or_default()).collect(),
        present: (0..hops).map(|h| hop(h).is_some()).collect(),
        path_length: path.length.into(),
        complete: path.is_complete(),
        agreeing: answer.agreeing.into(),
        differing: answer.differing.into(),
    }
}
