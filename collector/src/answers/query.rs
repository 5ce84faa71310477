//! Questions about keys.

use std::sync::Arc;

use dta_client::{Answers, KeyAnswer, Moment, Policy as Wanted, Question, QuestionKind, Series, Span};
use dta_proto::control::{
    CounterAnswer, Epoch, EpochsRequest, EpochsResponse, KeyWriteAnswer, MAX_EPOCHS, MAX_KEYS, PathAnswer,
    SketchAnswer,
};
use dta_proto::key::Key;
use dta_proto::layout::key_increment::whole;
use dta_proto::layout::key_write::Policy;
use dta_proto::layout::postcarding::Path;
use dta_proto::wire::dta::Primitive;

use super::counters::Query;
use super::{AskError, Memory};
use crate::epochs::{Epochs, MomentError};
use crate::store::{Store, key_increment, key_write, postcarding, sketch_merge};

impl Memory {
    pub(super) fn answer(&self, question: &Question) -> Result<Answers, AskError> {
        let Question { keys, at, .. } = question;
        let store = self.asked(question)?;
        let name = &store.spec.name;
        let then = match at {
            Moment::Now => self.epochs.as_ref().and_then(|epochs| epochs.open(name)),
            Moment::UnixMillis(at) => Some(self.epochs_of(name)?.at(name, keys, at.get())?),
        };
        let (store, epoch) = then.map_or((store, None), |(store, epoch)| (store, Some(epoch)));
        self.of_store(&store, question, epoch)
    }

    /// What keys had in each epoch of a span, as many epochs as one answer takes.
    pub(super) fn answer_series(&self, question: &Question, span: Span) -> Result<Series, AskError> {
        let store = self.asked(question)?;
        let name = &store.spec.name;
        let mut epochs = Vec::new();
        let most = (MAX_KEYS / question.keys.len().max(1)).clamp(1, MAX_EPOCHS);
        let each = |store: &Store, epoch| -> Result<(), AskError> {
            epochs.push(self.of_store(store, question, Some(epoch))?);
            Ok(())
        };
        let next = self.epochs_of(name)?.series(name, &question.keys, span, most, each)?;
        Ok(Series { epochs, next })
    }

    /// The store that a question is about.
    fn asked(&self, question: &Question) -> Result<Arc<Store>, AskError> {
        let store = self.store(&question.store, question.kind.primitive())?;
        match question.keys.len() {
            many if many > MAX_KEYS => Err(AskError::TooManyKeys(many)),
            _ => Ok(store),
        }
    }

    fn of_store(
        &self,
        store: &Store,
        question: &Question,
        epoch: Option<Epoch>,
    ) -> Result<Answers, AskError> {
        let keys = &question.keys;
        let of_keys = match question.kind {
            QuestionKind::KeyWrite { policy, at_least } => self.values(store, keys, policy, at_least),
            QuestionKind::Postcarding => self.paths(store, keys),
            QuestionKind::KeyIncrement => self.counts(store, keys),
            QuestionKind::SketchMerge { epoch } => self.estimates(store, keys, epoch),
        };
        Ok(Answers { of_keys: of_keys?, generation: store.generation, placement: 0, epoch })
    }

    pub(super) fn list_epochs(&self, request: &EpochsRequest) -> Result<EpochsResponse, AskError> {
        let store = self.current()?.get(&request.store)?;
        Ok(self.epochs_of(&store.spec.name)?.list(&store.spec.name, request)?)
    }

    pub(super) fn epochs_of(&self, store: &str) -> Result<&Epochs, MomentError> {
        self.epochs.as_deref().ok_or_else(|| MomentError::NoHistory(store.to_owned()))
    }

    fn values(
        &self,
        store: &Store,
        keys: &[Key],
        policy: Wanted,
        at_least: u32,
    ) -> Result<Vec<KeyAnswer>, AskError> {
        let reader = key_write::Reader::new(store).ok_or(AskError::Layout)?;
        let policy = match (policy, u8::try_from(at_least)) {
            (Wanted::First, _) => Policy::First,
            (Wanted::Plurality, _) => Policy::Plurality,
            (Wanted::AtLeast, Ok(least)) if (1..=reader.copies()).contains(&least) => Policy::AtLeast(least),
            (Wanted::OneCopy, Ok(copy)) if copy < reader.copies() => Policy::Copy(copy),
            (Wanted::OneCopy, _) => return Err(AskError::NoCopy { copy: at_least, copies: reader.copies() }),
            (Wanted::AtLeast, _) => return Err(AskError::AtLeast { at_least, copies: reader.copies() }),
        };
        let mut answers = vec![key_write::Answer::default(); keys.len()];
        let mut values = vec![0u8; keys.len() * reader.value_len()];
        reader.query(keys, policy, &mut answers, &mut values).map_err(|error| store.outside(error))?;
        self.counters.query(Primitive::KeyWrite).count(&answers, |answer| answer.found);
        let answers = keys.iter().zip(answers).zip(values.chunks_exact(reader.value_len()));
        let answer = |((key, answer), value): ((&Key, key_write::Answer), &[u8])| KeyWriteAnswer {
            key: key.0.to_vec(),
            value: answer.found.then(|| value.to_vec()),
            agreeing: answer.agreeing.into(),
            differing: answer.differing.into(),
            copies: reader.copies().into(),
        };
        Ok(answers.map(|it| answer(it).into()).collect())
    }

    fn paths(&self, store: &Store, keys: &[Key]) -> Result<Vec<KeyAnswer>, AskError> {
        let reader = postcarding::Reader::new(store).ok_or(AskError::Layout)?;
        let mut answers = vec![postcarding::Answer::default(); keys.len()];
        reader.query(keys, &mut answers).map_err(|error| store.outside(error))?;
        self.counters.query(Primitive::Postcarding).count(&answers, |answer| answer.path.is_some());
        Ok(keys.iter().zip(&answers).map(|(key, answer)| path_answer(key, answer).into()).collect())
    }

    fn counts(&self, store: &Store, keys: &[Key]) -> Result<Vec<KeyAnswer>, AskError> {
        let reader = key_increment::Reader::new(store).ok_or(AskError::Layout)?;
        let mut lanes = vec![0; keys.len() * reader.lanes()];
        reader.query(keys, &mut lanes).map_err(|error| store.outside(error))?;
        let of_keys = self.roles.as_ref().filter(|_| reader.lanes() > 1);
        let of_keys = of_keys.and_then(|roles| roles(&store.spec.name, keys));
        let answer = |(n, (key, lanes)): (usize, (&Key, &[u64]))| {
            let key = key.0.to_vec();
            let Some(roles) = &of_keys else {
                return CounterAnswer { key, value: key_increment::counted(lanes), by_colour: Vec::new() };
            };
            let by_colour = roles[n].by_colour(lanes);
            CounterAnswer { key, value: whole(&by_colour), by_colour }
        };
        let answers = keys.iter().zip(lanes.chunks(reader.lanes())).enumerate();
        let answers: Vec<CounterAnswer> = answers.map(answer).collect();
        self.counters.query(Primitive::KeyIncrement).count(&answers, |answer| answer.value != 0);
        Ok(answers.into_iter().map(Into::into).collect())
    }

    fn estimates(&self, store: &Store, keys: &[Key], epoch: u32) -> Result<Vec<KeyAnswer>, AskError> {
        let reader = sketch_merge::Reader::new(store).ok_or(AskError::Layout)?;
        let mut answers = vec![sketch_merge::Answer::default(); keys.len()];
        reader.query(keys, epoch, &mut answers).map_err(|error| store.outside(error))?;
        self.counters.query(Primitive::SketchMerge).count(&answers, |answer| answer.estimate.is_some());
        let answer = |(key, answer): (&Key, sketch_merge::Answer)| SketchAnswer {
            key: key.0.to_vec(),
            estimate: answer.estimate.map(u64::from),
            merged: answer.merged.into(),
            expected: answer.expected.into(),
        };
        Ok(keys.iter().zip(answers).map(|it| answer(it).into()).collect())
    }
}

impl Query {
    fn count<A>(&self, answers: &[A], found: impl Fn(&A) -> bool) {
        self.keys.add(answers.len() as u64);
        self.found.add(answers.iter().filter(|answer| found(answer)).count() as u64);
    }
}

fn path_answer(key: &Key, answer: &postcarding::Answer) -> PathAnswer {
    let key = key.0.to_vec();
    let Some(path) = &answer.path else {
        return PathAnswer { key, ..PathAnswer::default() };
    };
    // As many as the path has or, if its length is unknown, up to the last hop present.
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
