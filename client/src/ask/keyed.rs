//! Queries of any number of keys.

use dta_proto::control::{CounterAnswer, KeyWriteAnswer, MAX_KEYS, PathAnswer, Policy, SketchAnswer};
use dta_proto::key::Key;

use super::{Ask, KeyAnswer, Question, QuestionKind};
use crate::ClientError;

/// Queries of any number of keys, answered in order, for every [`Ask`]. An empty store name stands for the only store
/// of the primitive.
#[tonic::async_trait]
pub trait AskKeys: Ask {
    /// What the stores of a primitive say.
    async fn ask_all<A>(&self, store: &str, keys: &[Key], kind: QuestionKind) -> Result<Vec<A>, ClientError>
    where
        A: TryFrom<KeyAnswer, Error = ClientError> + Send,
    {
        let mut answers = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_KEYS) {
            for answer in self.ask(Question::now(store, keys, kind)).await?.of_keys {
                answers.push(answer.try_into()?);
            }
        }
        Ok(answers)
    }

    /// Values. `at_least` is for [`Policy::AtLeast`].
    async fn key_write(
        &self,
        store: &str,
        keys: &[Key],
        policy: Policy,
        at_least: u32,
    ) -> Result<Vec<KeyWriteAnswer>, ClientError> {
        self.ask_all(store, keys, QuestionKind::KeyWrite { policy, at_least }).await
    }

    /// Paths.
    async fn path(&self, store: &str, keys: &[Key]) -> Result<Vec<PathAnswer>, ClientError> {
        self.ask_all(store, keys, QuestionKind::Postcarding).await
    }

    /// Counters.
    async fn counter(&self, store: &str, keys: &[Key]) -> Result<Vec<CounterAnswer>, ClientError> {
        self.ask_all(store, keys, QuestionKind::KeyIncrement).await
    }

    /// Estimates in one epoch.
    async fn sketch(&self, store: &str, keys: &[Key], epoch: u32) -> Result<Vec<SketchAnswer>, ClientError> {
        self.ask_all(store, keys, QuestionKind::SketchMerge { epoch }).await
    }
}

impl<T: Ask + ?Sized> AskKeys for T {}
