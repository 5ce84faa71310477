//! Questions about keys.

use std::sync::Arc;

use dta_rpc::{Answers, Moment, Question, Series, Span};
use dta_proto::control::{Epoch, EpochsRequest, EpochsResponse, MAX_EPOCHS, MAX_KEYS};

use super::{AskError, Memory};
use crate::epochs::{Epochs, MomentError};
use crate::reader;
use crate::store::Store;

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
        let Question { keys, kind, .. } = question;
        let found = reader::query(store, keys, *kind, self.roles.as_deref())?;
        self.counters.query(kind.primitive()).count(keys.len(), found.found);
        Ok(Answers { of_keys: found.answers, generation: store.generation, placement: 0, epoch })
    }

    pub(super) fn list_epochs(&self, request: &EpochsRequest) -> Result<EpochsResponse, AskError> {
        let store = self.current()?.get(&request.store)?;
        Ok(self.epochs_of(&store.spec.name)?.list(&store.spec.name, request)?)
    }

    pub(super) fn epochs_of(&self, store: &str) -> Result<&Epochs, MomentError> {
        self.epochs.as_deref().ok_or_else(|| MomentError::NoHistory(store.to_owned()))
    }
}
