//! Queries about the past, in a cluster.
//!
//! Buckets and lists move without their data: an epoch's data is at the collector that had the bucket or the list then. So all
//! collectors are asked, even those that have nothing of the store now.

use std::num::NonZeroU64;
use std::sync::Arc;

use dta_proto::control::{EntriesRequest, EpochsRequest, EpochsResponse, TailResponse};
use futures_util::stream;

use crate::merge::{self, TOGETHER};
use crate::spread::{CollectorGroup, StoreParts, fewer_keys, is_not_kept, is_unreachable};
use crate::{Ask, ClientError, KeyAnswer, QueryAnswers, Question, Series, Span, TailMessages, epochs};

impl CollectorGroup {
    /// Queries all collectors of a cluster for all keys: each may have a part of the answer. A collector with nothing for the
    /// moment was not there then; all others must answer.
    pub(crate) async fn query_all_members(
        &self,
        parts: &StoreParts<'_>,
        question: &Question,
    ) -> Result<QueryAnswers, ClientError> {
        let question = Question { store: parts.name.to_owned(), ..question.clone() };
        let asked = |ask: Arc<dyn Ask>| {
            let question = question.clone();
            async move {
                match ask.query_keys(question).await {
                    Err(error) if is_not_kept(&error) => Ok(Err(error)),
                    answer => answer.map(Ok),
                }
            }
        };
        let answered = self.query_with_coverage(asked, 1).await?;
        let mut found: Vec<Vec<(u64, KeyAnswer)>> = vec![Vec::new(); question.keys.len()];
        let (mut epochs, mut not_kept) = (Vec::new(), None);
        for (_, answers) in answered {
            let answers = match answers {
                Ok(answers) if answers.of_keys.len() == question.keys.len() => answers,
                Ok(_) => return Err(fewer_keys()),
                Err(error) => {
                    not_kept = Some(error);
                    continue;
                }
            };
            let opened = epoch_start_time(&answers);
            epochs.push(answers.epoch);
            for (found, answer) in found.iter_mut().zip(answers.of_keys) {
                let opened = answer.earlier_epoch().map_or(opened, |earlier| earlier.opened);
                found.push((opened, answer));
            }
        }
        if epochs.is_empty() {
            return Err(not_kept.unwrap_or_else(fewer_keys));
        }
        let of_keys = found.into_iter().filter_map(|mut found| {
            merge::keep_latest(&mut found, |(opened, answer)| (*opened, answer));
            found.into_iter().map(|(_, answer)| answer).reduce(merge::merge_answers)
        });
        let of_keys = of_keys.collect();
        Ok(QueryAnswers { of_keys, generation: 0, placement: 0, epoch: epochs::in_common(epochs) })
    }

    /// What keys had in each epoch of a span. Epochs that collectors opened together count as one.
    pub(crate) async fn series_of_all(
        &self,
        parts: &StoreParts<'_>,
        question: &Question,
        span: Span,
    ) -> Result<Series, ClientError> {
        let question = Question { store: parts.name.to_owned(), ..question.clone() };
        let asked = |ask: Arc<dyn Ask>| {
            let question = question.clone();
            async move { ask.query_keys_in_span(question, span).await }
        };
        let answered = self.query_with_coverage(asked, parts.replica_count()).await?;
        let next = answered
            .iter()
            .filter_map(|(_, series)| series.next)
            .min()
            .map(|next| continuation_start(next, span));
        let mut found = Vec::new();
        for (member, series) in answered {
            for answers in series.epochs {
                if answers.of_keys.len() != question.keys.len() {
                    return Err(fewer_keys());
                }
                found.push((member, answers));
            }
        }
        let mut epochs = merge_by_epoch(found);
        epochs.retain(|answers| next.is_none_or(|next| epoch_start_time(answers) < next.get()));
        Ok(Series { epochs, next })
    }

    /// The epochs of a store, with their collectors' addresses.
    pub(crate) async fn epochs_of_all(
        &self,
        request: EpochsRequest,
        replicas: usize,
    ) -> Result<EpochsResponse, ClientError> {
        let asked = |ask: Arc<dyn Ask>| {
            let request = request.clone();
            async move { ask.fetch_epochs(request).await }
        };
        let answered = self.query_with_coverage(asked, replicas).await?;
        let address = |member: usize| self.members[member].address.as_str();
        Ok(epochs::merge_epoch_lists(
            answered.into_iter().map(|(member, answer)| (address(member), answer)).collect(),
        ))
    }

    /// The entries of a list, one epoch after another. If a list moved within an epoch, one collector's entries come after the
    /// other's.
    pub(crate) async fn entries_of_all(&self, request: EntriesRequest) -> Result<TailMessages, ClientError> {
        let (mut lists, mut not_kept) = (Vec::new(), None);
        // One at a time and always in this order: collectors admit few readers, and readers must not wait for each other in a
        // circle.
        for (n, member) in self.members.iter().enumerate() {
            match member.ask.stream_entries(request.clone()).await {
                Ok(messages) => {
                    let mut list = MemberEntries { messages, next: None, opened: 0 };
                    list.read().await?;
                    lists.push(list);
                }
                Err(error) if is_not_kept(&error) => not_kept = Some(error),
                Err(error) if is_unreachable(&error) => return Err(self.is_silent(n, &error).into()),
                Err(error) => return Err(error),
            }
        }
        if let (true, Some(error)) = (lists.is_empty(), not_kept) {
            return Err(error);
        }
        Ok(TailMessages::new(stream::try_unfold(lists, async |mut lists| {
            let there = lists.iter_mut().filter(|list| list.next.is_some());
            let Some(oldest) = there.min_by_key(|list| list.opened) else { return Ok(None) };
            let message = oldest.next.take().unwrap_or_default();
            oldest.read().await?;
            Ok(Some((message, lists)))
        })))
    }

    /// Whether all collectors that had a key may be among the `away` missing ones, if each key should be at `replicas`.
    pub(crate) fn may_be_all(&self, away: usize, replicas: usize) -> bool {
        away >= replicas.min(self.members.len())
    }

    /// What all collectors return for `ask`. Some may be missing, as long as each key is at one that answers.
    pub(crate) async fn query_with_coverage<T, F>(
        &self,
        ask: impl Fn(Arc<dyn Ask>) -> F,
        replicas: usize,
    ) -> Result<Vec<(usize, T)>, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        match self.query_members(ask).await? {
            (answered, Some(away)) if self.may_be_all(self.members.len() - answered.len(), replicas) => {
                Err(away.into())
            }
            (answered, _) => Ok(answered),
        }
    }
}

/// Where to continue a series whose next epoch some collector opened at `next`: others may have opened theirs a little earlier.
fn continuation_start(next: NonZeroU64, span: Span) -> NonZeroU64 {
    let before = next.get().checked_sub(TOGETHER).filter(|before| *before > span.since);
    before.and_then(NonZeroU64::new).unwrap_or(next)
}

/// One collector's entries of a list.
struct MemberEntries {
    messages: TailMessages,
    /// The next message; `None` at the end.
    next: Option<TailResponse>,
    /// When that message's epoch was opened.
    opened: u64,
}

impl MemberEntries {
    async fn read(&mut self) -> Result<(), ClientError> {
        self.next = self.messages.next_message().await?;
        if let Some(epoch) = self.next.as_ref().and_then(|message| message.epoch.as_ref()) {
            self.opened = epoch.opened;
        }
        Ok(())
    }
}

fn epoch_start_time(answers: &QueryAnswers) -> u64 {
    answers.epoch.as_ref().map_or(0, |epoch| epoch.opened)
}

/// When the epoch ended; never, if it is open.
fn epoch_end_time(answers: &QueryAnswers) -> u64 {
    answers.epoch.as_ref().map(|epoch| epoch.flipped_from).filter(|end| *end != 0).unwrap_or(u64::MAX)
}

/// Whether two collectors' epochs are the same: opened together, and ended together if both are over.
fn are_same_epoch(a: &QueryAnswers, b: &QueryAnswers) -> bool {
    let is_open = epoch_end_time(a).max(epoch_end_time(b)) == u64::MAX;
    epoch_start_time(a).abs_diff(epoch_start_time(b)) <= TOGETHER
        && (is_open || epoch_end_time(a).abs_diff(epoch_end_time(b)) <= TOGETHER)
}

/// Merges several collectors' answers about the same keys, in order of time: epochs that were opened together become one. A key
/// that is not in an epoch itself is left out if another collector had an epoch then, which may have it.
fn merge_by_epoch(mut all: Vec<(usize, QueryAnswers)>) -> Vec<QueryAnswers> {
    all.sort_by_key(|(member, answers)| (epoch_start_time(answers), *member));
    let spans: Vec<(usize, u64, u64)> = all
        .iter()
        .map(|(member, answers)| (*member, epoch_start_time(answers), epoch_end_time(answers)))
        .collect();
    let mut groups: Vec<Vec<(usize, QueryAnswers)>> = Vec::new();
    for (member, answers) in all {
        match groups.last_mut() {
            Some(group)
                if group.iter().all(|(other, with)| *other != member && are_same_epoch(with, &answers)) =>
            {
                group.push((member, answers));
            }
            _ => groups.push(vec![(member, answers)]),
        }
    }
    let one = |group: Vec<(usize, QueryAnswers)>| {
        let members: Vec<usize> = group.iter().map(|(member, _)| *member).collect();
        let both = |a: QueryAnswers, b: QueryAnswers| QueryAnswers {
            of_keys: a.of_keys.into_iter().zip(b.of_keys).map(|(a, b)| merge::merge_answers(a, b)).collect(),
            generation: 0,
            placement: 0,
            epoch: epochs::in_common(vec![a.epoch, b.epoch]),
        };
        let mut answers = group.into_iter().map(|(_, answers)| answers).reduce(both)?;
        let end = epoch_end_time(&answers);
        // The previous epochs may end a little later at other collectors.
        let begin =
            epoch_start_time(&answers) + TOGETHER.min(end.saturating_sub(epoch_start_time(&answers)) / 2);
        let is_other =
            |(member, from, to): &(usize, u64, u64)| !members.contains(member) && *from < end && *to > begin;
        if spans.iter().any(is_other) {
            answers.of_keys.retain(|answer| answer.completeness() > 0 && answer.earlier_epoch().is_none());
        }
        (!answers.of_keys.is_empty()).then_some(QueryAnswers { placement: 0, ..answers })
    };
    groups.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use dta_proto::control::{Epoch, KeyWriteAnswer};

    use super::*;

    /// A collector's answer about two keys in one epoch.
    fn of(member: usize, [opened, end]: [u64; 2], values: [Option<u8>; 2]) -> (usize, QueryAnswers) {
        let answer = |(key, value): (u8, Option<u8>)| {
            let value = value.map(|value| vec![value]);
            KeyAnswer::from(KeyWriteAnswer { key: vec![key], value, ..KeyWriteAnswer::default() })
        };
        let of_keys = [1, 2].into_iter().zip(values).map(answer).collect();
        let epoch = Epoch { generation: 7, opened, flipped_from: end, flipped_to: end, ..Epoch::default() };
        (member, QueryAnswers { of_keys, generation: 7, placement: 9, epoch: Some(epoch) })
    }

    type Values = Vec<(u8, Option<u8>)>;

    /// When each epoch was opened, with its keys and their values.
    fn merged(all: Vec<(usize, QueryAnswers)>) -> Vec<(u64, Values)> {
        let of_key = |answer: &KeyAnswer| match answer {
            KeyAnswer::KeyWrite(answer) => (answer.key[0], answer.value.as_ref().map(|value| value[0])),
            other => panic!("{other:?}"),
        };
        let epochs = merge_by_epoch(all);
        assert!(epochs.iter().all(|answers| answers.placement == 0));
        epochs
            .iter()
            .map(|answers| (epoch_start_time(answers), answers.of_keys.iter().map(of_key).collect()))
            .collect()
    }

    #[test]
    fn epochs_that_are_opened_together_are_one_wherever_a_key_was() {
        let all = vec![
            of(0, [60_000, 120_000], [Some(1), None]),
            of(0, [120_000, 180_000], [None, None]),
            of(1, [60_010, 120_010], [None, Some(2)]),
            of(1, [120_010, 180_010], [Some(3), None]),
        ];
        let both = [(60_010, vec![(1, Some(1)), (2, Some(2))]), (120_010, vec![(1, Some(3)), (2, None)])];
        assert_eq!(merged(all), both);
        // All epochs of a single collector are separate.
        let short = vec![of(0, [1000, 1500], [Some(1), None]), of(0, [1500, 2000], [None, Some(2)])];
        assert_eq!(merged(short).len(), 2);
        assert_eq!(merged(Vec::new()), []);
    }

    #[test]
    fn what_an_epoch_lacks_is_unknown_while_another_collector_had_an_epoch_of_its_own() {
        // The second collector was restarted in the middle of an epoch.
        let restarted = vec![
            of(0, [60_000, 120_000], [Some(1), None]),
            of(1, [60_000, 80_000], [None, Some(2)]),
            of(1, [85_000, 120_000], [None, Some(3)]),
            of(1, [120_000, 0], [None, None]),
        ];
        let known = [
            (60_000, vec![(1, Some(1))]),
            (60_000, vec![(2, Some(2))]),
            (85_000, vec![(2, Some(3))]),
            (120_000, vec![(1, None), (2, None)]),
        ];
        assert_eq!(merged(restarted), known);
        // It started shortly before an epoch ended, and again shortly before the next one ended.
        let short = vec![
            of(0, [60_000, 120_000], [Some(1), None]),
            of(1, [119_400, 120_010], [None, None]),
            of(0, [120_000, 180_000], [Some(2), None]),
            of(1, [120_010, 121_000], [None, Some(3)]),
            of(1, [179_900, 180_010], [None, Some(4)]),
        ];
        let known = [
            (60_000, vec![(1, Some(1))]),
            (120_000, vec![(1, Some(2))]),
            (120_010, vec![(2, Some(3))]),
            (179_900, vec![(2, Some(4))]),
        ];
        assert_eq!(merged(short), known);
    }
}
