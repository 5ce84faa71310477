//! The four queries by key.

use std::sync::Arc;

use dta_proto::control::{
    self, CounterAnswer, KeyWriteAnswer, PathAnswer, QueryCounterRequest, QueryCounterResponse,
    QueryKeyWriteRequest, QueryKeyWriteResponse, QueryPathRequest, QueryPathResponse, QuerySketchRequest,
    QuerySketchResponse, SketchAnswer,
};
use dta_proto::layout::key_write::Policy;
use dta_proto::layout::postcarding::Path;
use tonic::Status;

use super::{Service, convert, status};
use crate::store::{Store, key_increment, key_write, postcarding, sketch_merge};

impl Service {
    pub(super) fn key_write(&self, request: QueryKeyWriteRequest) -> Result<QueryKeyWriteResponse, Status> {
        let store = self.store(&request.store, "key-write")?;
        let reader = of_its_kind(key_write::Reader::new(&store))?;
        let policy = policy(&request, reader.copies())?;
        let keys = convert::keys(&request.keys)?;
        let mut answers = vec![key_write::Answer::default(); keys.len()];
        let mut values = vec![0u8; keys.len() * reader.value_len()];
        reader.query(&keys, policy, &mut answers, &mut values);
        self.counters.key_write.keys.add(keys.len() as u64);
        self.counters.key_write.found.add(answers.iter().filter(|a| a.found).count() as u64);
        let answers = request.keys.into_iter().zip(answers).zip(values.chunks_exact(reader.value_len()));
        Ok(QueryKeyWriteResponse {
            answers: answers
                .map(|((key, answer), value)| KeyWriteAnswer {
                    key,
                    value: answer.found.then(|| value.to_vec()),
                    agreeing: answer.agreeing.into(),
                    differing: answer.differing.into(),
                    copies: reader.copies().into(),
                })
                .collect(),
            generation: store.generation,
        })
    }

    pub(super) fn path(&self, request: QueryPathRequest) -> Result<QueryPathResponse, Status> {
        let store = self.store(&request.store, "postcarding")?;
        let reader = of_its_kind(postcarding::Reader::new(&store))?;
        let keys = convert::keys(&request.keys)?;
        let mut answers = vec![postcarding::Answer::default(); keys.len()];
        reader.query(&keys, &mut answers).map_err(status::access)?;
        self.counters.path.keys.add(keys.len() as u64);
        self.counters.path.found.add(answers.iter().filter(|a| a.path.is_some()).count() as u64);
        Ok(QueryPathResponse {
            answers: request
                .keys
                .into_iter()
                .zip(answers)
                .map(|(key, answer)| path_answer(key, &answer))
                .collect(),
            generation: store.generation,
        })
    }

    pub(super) fn counter(&self, request: QueryCounterRequest) -> Result<QueryCounterResponse, Status> {
        let store = self.store(&request.store, "key-increment")?;
        let reader = of_its_kind(key_increment::Reader::new(&store))?;
        let keys = convert::keys(&request.keys)?;
        let mut answers = vec![0; keys.len()];
        reader.query(&keys, &mut answers).map_err(status::access)?;
        self.counters.counter.keys.add(keys.len() as u64);
        self.counters.counter.found.add(answers.iter().filter(|a| **a != 0).count() as u64);
        Ok(QueryCounterResponse {
            answers: request
                .keys
                .into_iter()
                .zip(answers)
                .map(|(key, value)| CounterAnswer { key, value })
                .collect(),
            generation: store.generation,
        })
    }

    pub(super) fn sketch(&self, request: QuerySketchRequest) -> Result<QuerySketchResponse, Status> {
        let store = self.store(&request.store, "sketch-merge")?;
        let reader = of_its_kind(sketch_merge::Reader::new(&store))?;
        let keys = convert::keys(&request.keys)?;
        let mut answers = vec![sketch_merge::Answer::default(); keys.len()];
        reader.query(&keys, request.epoch, &mut answers).map_err(status::access)?;
        self.counters.sketch.keys.add(keys.len() as u64);
        self.counters.sketch.found.add(answers.iter().filter(|a| a.estimate.is_some()).count() as u64);
        Ok(QuerySketchResponse {
            answers: request
                .keys
                .into_iter()
                .zip(answers)
                .map(|(key, answer)| SketchAnswer {
                    key,
                    estimate: answer.estimate.map(u64::from),
                    merged: answer.merged.into(),
                    expected: answer.expected.into(),
                })
                .collect(),
            generation: store.generation,
        })
    }

    /// A store of the primitive, with the memory that it has now.
    pub(super) fn store(&self, name: &str, primitive: &'static str) -> Result<Arc<Store>, Status> {
        self.stores.of_primitive(name, primitive).map_err(status::store)
    }
}

/// The reader of a store whose primitive was asked for.
pub(super) fn of_its_kind<R>(reader: Option<R>) -> Result<R, Status> {
    reader.ok_or_else(|| Status::internal("a store of this primitive has another layout"))
}

fn policy(request: &QueryKeyWriteRequest, copies: u8) -> Result<Policy, Status> {
    match control::Policy::try_from(request.policy) {
        Ok(control::Policy::First) => Ok(Policy::First),
        Ok(control::Policy::Plurality) => Ok(Policy::Plurality),
        Ok(control::Policy::AtLeast) => match u8::try_from(request.at_least) {
            Ok(least) if (1..=copies).contains(&least) => Ok(Policy::AtLeast(least)),
            _ => Err(Status::invalid_argument(format!(
                "`at_least` is {}, but this store has {copies} copies: ask for 1 to {copies}",
                request.at_least
            ))),
        },
        Err(_) => Err(Status::invalid_argument(format!("policy {} is unknown", request.policy))),
    }
}

fn path_answer(key: Vec<u8>, answer: &postcarding::Answer) -> PathAnswer {
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
