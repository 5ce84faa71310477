//! Questions about keys.

use std::sync::Arc;

use dta_memory::store::Store;
use dta_proto::control::{Epoch, EpochsRequest, EpochsResponse, MAX_EPOCHS, MAX_KEYS};
use dta_rpc::{Moment, QueryAnswers, Question, Series, Span};

use super::keys::query_store;
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
        let (store, epoch) = then.map_or((store, None), |(store, epoch)| (store, Some(epoch)));
        self.answer_from_store(&store, question, epoch)
    }

    /// What keys had in each epoch of a span, as many epochs as one answer takes.
    pub(super) fn answer_series(&self, question: &Question, span: Span) -> Result<Series, AskError> {
        let store = self.queried_store(question)?;
        let name = &store.spec.name;
        let mut epochs = Vec::new();
        let most = (MAX_KEYS / question.keys.len().max(1)).clamp(1, MAX_EPOCHS);
        let each = |store: &Store, epoch| -> Result<(), AskError> {
            epochs.push(self.answer_from_store(store, question, Some(epoch))?);
            Ok(())
        };
        let next = self.epochs_of(name)?.visit_series(name, &question.keys, span, most, each)?;
        Ok(Series { epochs, next })
    }

    /// The store that a question is about.
    fn queried_store(&self, question: &Question) -> Result<Arc<Store>, AskError> {
        let store = self.find_store(&question.store, question.kind.primitive())?;
        match question.keys.len() {
            many if many > MAX_KEYS => Err(AskError::TooManyKeys(many)),
            _ => Ok(store),
        }
    }

    fn answer_from_store(
        &self,
        store: &Store,
        question: &Question,
        epoch: Option<Epoch>,
    ) -> Result<QueryAnswers, AskError> {
        let Question { keys, kind, .. } = question;
        let found = query_store(store, keys, *kind, self.roles.as_deref())?;
        self.counters.query_counts(kind.primitive()).count_keys(keys.len(), found.found);
        Ok(QueryAnswers { of_keys: found.answers, generation: store.generation, placement: 0, epoch })
    }

    pub(super) fn list_epochs(&self, request: &EpochsRequest) -> Result<EpochsResponse, AskError> {
        let store = self.current_stores()?.get(&request.store)?;
        Ok(self.epochs_of(&store.spec.name)?.list_epochs(&store.spec.name, request)?)
    }

    pub(super) fn epochs_of(&self, store: &str) -> Result<&Epochs, MomentError> {
        self.epochs.as_deref().ok_or_else(|| MomentError::NoHistory(store.to_owned()))
    }
}
