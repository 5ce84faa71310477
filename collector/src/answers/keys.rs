//! Looks up keys in a store, and answers in the messages of the control plane.

use dta_memory::reader::key_increment::{KeyIncrementReader, total_of_lanes};
use dta_memory::reader::key_write::{KeyWriteReader, KeyWriteReading};
use dta_memory::reader::postcarding::{PostcardingReader, PostcardingReading};
use dta_memory::reader::sketch_merge::{SketchMergeReader, SketchMergeReading};
use dta_memory::store::{MemoryError, Store};
use dta_proto::control::{CounterAnswer, KeyWriteAnswer, PathAnswer, SketchAnswer};
use dta_proto::key::Key;
use dta_proto::layout::key_increment::{CountingRole, total_count};
use dta_proto::layout::key_write::Choice;
use dta_proto::layout::postcarding::PostcardPath;
use dta_rpc::{AtLeastError, KeyAnswer, Policy, QuestionKind};

/// How this collector counts each of these keys in a store (given by name) that two collectors count; `None`
/// if it does not know.
pub type Roles = dyn Fn(&str, &[Key]) -> Option<Vec<CountingRole>> + Send + Sync;

/// Why a store does not answer a question about keys.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// More copies must agree than there are, or none.
    #[error(transparent)]
    AtLeast(#[from] AtLeastError),
    /// A copy that keys of the store do not have.
    #[error("copy {copy} was asked for, but this store has copies 0 to {}", copies - 1)]
    NoCopy {
        copy: u32,
        /// Copies per key in this store.
        copies: u8,
    },
    /// The store does not match its description.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The store's layout is not that of its primitive.
    #[error("a store of this primitive has another layout")]
    Layout,
}

pub(super) struct KeyAnswers {
    /// One for each key, in their order.
    pub(super) answers: Vec<KeyAnswer>,
    /// How many keys have something in the store.
    pub(super) found: usize,
}

/// Answers a question about keys in a store; `roles` says how this collector counts each key.
pub(super) fn query_store(
    store: &Store,
    keys: &[Key],
    kind: QuestionKind,
    roles: Option<&Roles>,
) -> Result<KeyAnswers, QueryError> {
    match kind {
        QuestionKind::KeyWrite { policy, at_least } => query_values(store, keys, policy, at_least),
        QuestionKind::Postcarding => query_paths(store, keys),
        QuestionKind::KeyIncrement => query_counts(store, keys, roles),
        QuestionKind::SketchMerge { epoch } => query_estimates(store, keys, epoch),
    }
}

/// The last value of each key.
fn query_values(
    store: &Store,
    keys: &[Key],
    policy: Policy,
    at_least: u32,
) -> Result<KeyAnswers, QueryError> {
    let reader = KeyWriteReader::new(store).ok_or(QueryError::Layout)?;
    let policy = match (policy, u8::try_from(at_least)) {
        (Policy::First, _) => Choice::First,
        (Policy::Plurality, _) => Choice::Plurality,
        (Policy::AtLeast, Ok(least)) if (1..=reader.copy_count()).contains(&least) => Choice::AtLeast(least),
        (Policy::OneCopy, Ok(copy)) if copy < reader.copy_count() => Choice::Copy(copy),
        (Policy::OneCopy, _) => {
            return Err(QueryError::NoCopy { copy: at_least, copies: reader.copy_count() });
        }
        (Policy::AtLeast, _) => return Err(AtLeastError { at_least, copies: reader.copy_count() }.into()),
    };
    let mut answers = vec![KeyWriteReading::default(); keys.len()];
    let mut values = vec![0u8; keys.len() * reader.value_len()];
    reader
        .query_keys(keys, policy, &mut answers, &mut values)
        .map_err(|error| store.outside_region(error))?;
    let found = answers.iter().filter(|answer| answer.found).count();
    let answers = keys.iter().zip(answers).zip(values.chunks_exact(reader.value_len()));
    let answer = |((key, answer), value): ((&Key, KeyWriteReading), &[u8])| KeyWriteAnswer {
        key: key.0.to_vec(),
        value: answer.found.then(|| value.to_vec()),
        agreeing: answer.agreeing.into(),
        differing: answer.differing.into(),
        copies: reader.copy_count().into(),
        earlier: None,
    };
    Ok(KeyAnswers { answers: answers.map(|it| KeyAnswer::from(answer(it))).collect(), found })
}

fn query_paths(store: &Store, keys: &[Key]) -> Result<KeyAnswers, QueryError> {
    let reader = PostcardingReader::new(store).ok_or(QueryError::Layout)?;
    let mut answers = vec![PostcardingReading::default(); keys.len()];
    reader.query_keys(keys, &mut answers).map_err(|error| store.outside_region(error))?;
    let found = answers.iter().filter(|answer| answer.path.is_some()).count();
    let copies = store.spec.redundancy().unwrap_or(1);
    let answers =
        keys.iter().zip(&answers).map(|(key, answer)| path_answer(key, answer, copies).into()).collect();
    Ok(KeyAnswers { answers, found })
}

fn path_answer(key: &Key, answer: &PostcardingReading, copies: u8) -> PathAnswer {
    let (key, copies) = (key.0.to_vec(), copies.into());
    let Some(path) = &answer.path else {
        return PathAnswer { key, copies, ..PathAnswer::default() };
    };
    // As many hops as the path has or, if its length is unknown, up to the last one present.
    let last = u16::BITS - path.bitmap.leading_zeros();
    let hops = last.max(path.length.into()) as u8;
    let hop = |h| PostcardPath::hop_value(path, h);
    PathAnswer {
        key,
        found: true,
        hops: (0..hops).map(|h| hop(h).unwrap_or_default()).collect(),
        present: (0..hops).map(|h| hop(h).is_some()).collect(),
        path_length: path.length.into(),
        complete: path.is_complete(),
        agreeing: answer.agreeing.into(),
        differing: answer.differing.into(),
        copies,
        earlier: None,
    }
}

/// The count of each key. In stores that two collectors count, `roles` says which counts are this collector's.
fn query_counts(store: &Store, keys: &[Key], roles: Option<&Roles>) -> Result<KeyAnswers, QueryError> {
    let reader = KeyIncrementReader::new(store).ok_or(QueryError::Layout)?;
    let mut lanes = vec![0; keys.len() * reader.lane_count()];
    reader.query_keys(keys, &mut lanes).map_err(|error| store.outside_region(error))?;
    let of_keys = roles.filter(|_| reader.lane_count() > 1).and_then(|roles| roles(&store.spec.name, keys));
    let answer = |(n, (key, lanes)): (usize, (&Key, &[u64]))| {
        let key = key.0.to_vec();
        let Some(roles) = &of_keys else {
            return CounterAnswer { key, value: total_of_lanes(lanes), by_colour: Vec::new() };
        };
        let by_colour = roles[n].by_colour(lanes);
        CounterAnswer { key, value: total_count(&by_colour), by_colour }
    };
    let answers = keys.iter().zip(lanes.chunks(reader.lane_count())).enumerate();
    let answers: Vec<CounterAnswer> = answers.map(answer).collect();
    let found = answers.iter().filter(|answer| answer.value != 0).count();
    Ok(KeyAnswers { answers: answers.into_iter().map(Into::into).collect(), found })
}

fn query_estimates(store: &Store, keys: &[Key], epoch: u32) -> Result<KeyAnswers, QueryError> {
    let reader = SketchMergeReader::new(store).ok_or(QueryError::Layout)?;
    let mut answers = vec![SketchMergeReading::default(); keys.len()];
    reader.query_keys(keys, epoch, &mut answers).map_err(|error| store.outside_region(error))?;
    let found = answers.iter().filter(|answer| answer.estimate.is_some()).count();
    let answer = |(key, answer): (&Key, SketchMergeReading)| SketchAnswer {
        key: key.0.to_vec(),
        estimate: answer.estimate.map(u64::from),
        merged: answer.merged.into(),
        expected: answer.expected.into(),
    };
    Ok(KeyAnswers { answers: keys.iter().zip(answers).map(|it| answer(it).into()).collect(), found })
}
