//! Questions about keys.

use std::sync::Arc;

use dta_memory::store::Store;
use dta_proto::control::{EarlierEpoch, Epoch, EpochsRequest, EpochsResponse, MAX_EPOCHS, MAX_KEYS};
use dta_proto::key::Key;
use dta_proto::wire::dta::EpochEnd;
use dta_rpc::{Moment, QueryAnswers, Question, Series, Span};

use super::keys::{KeyAnswers, query_store};
use super::{AskError, Memory};
use crate::epochs::{Epochs, MomentError};

impl Memory {
    pub(super) fn answer_question(&self, question: &Question) -> Result<QueryAnswers, AskError> {
        let Question { keys, at, .. } = question;
        let store = self.queried_store(question)?;
        let name = &store.spec.name;
        let then = match at {
            Moment::Now => self.epochs.as_ref().and_then(|epochs| epochs.open(name)),
            Moment::UnixMillis(at) => Some(self.epochs_of(name)?.store_at_moment(name, keys, at.get())?),
        };
        let (then, epoch) = then.map_or((None, None), |(then, epoch)| (Some(then), Some(epoch)));
        let then = then.as_deref().unwrap_or(&store);
        let (mut answers, found) = self.answer_from_store(then, question, epoch)?;
        let found = found + self.look_back(&mut answers, question, name)?;
        self.count_answers(question, found);
        Ok(answers)
    }

    /// What keys had in each epoch of a span, for as many epochs as one answer holds.
    pub(super) fn answer_series(&self, question: &Question, span: Span) -> Result<Series, AskError> {
        let store = self.queried_store(question)?;
        let name = &store.spec.name;
        let mut epochs: Vec<QueryAnswers> = Vec::new();
        let most = (MAX_KEYS / question.keys.len().max(1)).clamp(1, MAX_EPOCHS);
        let of = self.epochs_of(name)?;
        let begins_empty = question.kind.primitive().epoch_end() == EpochEnd::Replaces;
        let each = |store: &Store, epoch| -> Result<(), AskError> {
            let (mut answers, found) = self.answer_from_store(store, question, Some(epoch))?;
            let earlier = match epochs.last() {
                Some(before) if begins_empty => carry_forward(of, before, &mut answers),
                Some(_) => 0,
                None => self.look_back(&mut answers, question, name)?,
            };
            self.count_answers(question, found + earlier);
            epochs.push(answers);
            Ok(())
        };
        let next = of.visit_series(name, &question.keys, span, most, each)?;
        Ok(Series { epochs, next })
    }

    /// Looks in earlier epochs for keys that are absent in the answers' epoch. Returns how many it found.
    fn look_back(
        &self,
        answers: &mut QueryAnswers,
        question: &Question,
        store: &str,
    ) -> Result<usize, AskError> {
        let (Some(epochs), Some(epoch)) = (&self.epochs, &answers.epoch) else { return Ok(0) };
        let of_keys = &mut answers.of_keys;
        let mut absent: Vec<usize> = (0..of_keys.len()).filter(|place| of_keys[*place].is_absent()).collect();
        let asked = absent.len();
        if asked == 0 {
            return Ok(0);
        }
        for earlier in epochs.earlier_stores(store, epoch.opened)? {
            let keys: Vec<Key> = absent.iter().map(|place| question.keys[*place]).collect();
            let Some(then) = earlier.read_slots_of(&keys)? else { continue };
            let found = query_store(&then, &keys, question.kind, self.roles.as_deref())?;
            for (place, answer) in absent.iter().zip(found.answers) {
                if !answer.is_absent() {
                    of_keys[*place] = answer.with_earlier_epoch(earlier.epoch);
                }
            }
            absent.retain(|place| of_keys[*place].is_absent());
            if absent.is_empty() {
                break;
            }
        }
        Ok(asked - absent.len())
    }

    /// Finds the store that a question is about.
    fn queried_store(&self, question: &Question) -> Result<Arc<Store>, AskError> {
        let store = self.find_store(&question.store, question.kind.primitive())?;
        match question.keys.len() {
            many if many > MAX_KEYS => Err(AskError::TooManyKeys(many)),
            _ => Ok(store),
        }
    }

    /// Answers from a store, with the number of keys found in it.
    fn answer_from_store(
        &self,
        store: &Store,
        question: &Question,
        epoch: Option<Epoch>,
    ) -> Result<(QueryAnswers, usize), AskError> {
        let KeyAnswers { answers: of_keys, found } =
            query_store(store, &question.keys, question.kind, self.roles.as_deref())?;
        Ok((QueryAnswers { of_keys, generation: store.generation, placement: 0, epoch }, found))
    }

    fn count_answers(&self, question: &Question, found: usize) {
        self.counters.query_counts(question.kind.primitive()).count_keys(question.keys.len(), found);
    }

    pub(super) fn list_epochs(&self, request: &EpochsRequest) -> Result<EpochsResponse, AskError> {
        let store = self.current_stores()?.get(&request.store)?;
        Ok(self.epochs_of(&store.spec.name)?.list_epochs(&store.spec.name, request)?)
    }

    pub(super) fn epochs_of(&self, store: &str) -> Result<&Epochs, MomentError> {
        self.epochs.as_deref().ok_or_else(|| MomentError::NoHistory(store.to_owned()))
    }
}

/// Fills in keys that are absent in an epoch from the answers of the previous epoch, as [`Memory::look_back`]
/// would. Returns how many keys it filled.
fn carry_forward(epochs: &Epochs, before: &QueryAnswers, answers: &mut QueryAnswers) -> usize {
    let (Some(epoch), Some(now)) = (&before.epoch, &answers.epoch) else { return 0 };
    let mut carried = 0;
    let before_epoch =
        EarlierEpoch { opened: epoch.opened, closed: epoch.flipped_from, number: epoch.number };
    for (answer, before) in answers.of_keys.iter_mut().zip(&before.of_keys) {
        let earlier = before.earlier_epoch().unwrap_or(before_epoch);
        if answer.is_absent() && !before.is_absent() && epochs.is_in_look_back(earlier.closed, now.opened) {
            *answer = before.clone().with_earlier_epoch(earlier);
            carried += 1;
        }
    }
    carried
}
