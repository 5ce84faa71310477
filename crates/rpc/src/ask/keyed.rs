//! Queries of any number of keys.

use std::num::NonZeroU64;

use dta_proto::control::{CounterAnswer, Epoch, KeyWriteAnswer, MAX_KEYS, PathAnswer, Policy, SketchAnswer};
use dta_proto::key::Key;

use super::{Ask, KeyAnswer, QueryAnswers, Question, QuestionKind, Series, Span};
use crate::ClientError;

/// Queries of any number of keys, answered in order, for every [`Ask`]. An empty store name stands for the only store of the
/// primitive.
#[tonic::async_trait]
pub trait AskKeys: Ask {
    /// Answers about keys, some keys at a time, each time with the epoch that they are from
    /// ([`QueryAnswers::epoch`](super::QueryAnswers::epoch)).
    async fn ask_by_epoch<A>(
        &self,
        store: &str,
        keys: &[Key],
        kind: QuestionKind,
    ) -> Result<Vec<(Option<Epoch>, Vec<A>)>, ClientError>
    where
        A: TryFrom<KeyAnswer, Error = ClientError> + Send,
    {
        let mut all = Vec::new();
        for keys in keys.chunks(MAX_KEYS) {
            let answers = self.query_keys(Question::now(store, keys, kind)).await?;
            let of_keys = answers.of_keys.into_iter().map(A::try_from).collect::<Result<_, _>>()?;
            all.push((answers.epoch, of_keys));
        }
        Ok(all)
    }

    /// What keys had in each epoch of a span of time, oldest first. With many keys or several collectors, an epoch's answers
    /// come in parts, each with its own keys.
    async fn series_of<A>(
        &self,
        store: &str,
        keys: &[Key],
        kind: QuestionKind,
        span: Span,
    ) -> Result<Vec<(Epoch, Vec<A>)>, ClientError>
    where
        A: TryFrom<KeyAnswer, Error = ClientError> + Send,
    {
        let mut all = Vec::new();
        // Half of what fits leaves room for at least two epochs in an answer: collectors open theirs one after another, and
        // each answer must go further than that.
        for keys in keys.chunks(MAX_KEYS / 2) {
            let (mut rest, mut from) = (span, 0);
            loop {
                let Series { epochs, next } =
                    self.query_keys_in_span(Question::now(store, keys, kind), rest).await?;
                for QueryAnswers { of_keys, epoch, .. } in epochs {
                    // Another collector's epoch may have been opened earlier, and was in the previous answer.
                    if let Some(epoch) = epoch.filter(|epoch| epoch.opened >= from) {
                        all.push((epoch, of_keys.into_iter().map(A::try_from).collect::<Result<_, _>>()?));
                    }
                }
                // Each answer must go further, or this would not end.
                match next.map(NonZeroU64::get) {
                    Some(next) if next > rest.since => (rest.since, from) = (next, next),
                    _ => break,
                }
            }
        }
        all.sort_by_key(|(epoch, _)| epoch.opened);
        Ok(all)
    }

    /// Queries keys, with answers of type `A`.
    async fn query_typed<A>(
        &self,
        store: &str,
        keys: &[Key],
        kind: QuestionKind,
    ) -> Result<Vec<A>, ClientError>
    where
        A: TryFrom<KeyAnswer, Error = ClientError> + Send,
    {
        let by_epoch = self.ask_by_epoch(store, keys, kind).await?;
        Ok(by_epoch.into_iter().flat_map(|(_, answers)| answers).collect())
    }

    /// Queries values. `at_least` is for [`Policy::AtLeast`].
    async fn key_write(
        &self,
        store: &str,
        keys: &[Key],
        policy: Policy,
        at_least: u32,
    ) -> Result<Vec<KeyWriteAnswer>, ClientError> {
        self.query_typed(store, keys, QuestionKind::KeyWrite { policy, at_least }).await
    }

    /// Queries paths.
    async fn query_paths(&self, store: &str, keys: &[Key]) -> Result<Vec<PathAnswer>, ClientError> {
        self.query_typed(store, keys, QuestionKind::Postcarding).await
    }

    /// Queries counters.
    async fn query_counters(&self, store: &str, keys: &[Key]) -> Result<Vec<CounterAnswer>, ClientError> {
        self.query_typed(store, keys, QuestionKind::KeyIncrement).await
    }

    /// Queries estimates in one epoch.
    async fn query_sketches(
        &self,
        store: &str,
        keys: &[Key],
        epoch: u32,
    ) -> Result<Vec<SketchAnswer>, ClientError> {
        self.query_typed(store, keys, QuestionKind::SketchMerge { epoch }).await
    }
}

impl<T: Ask + ?Sized> AskKeys for T {}
