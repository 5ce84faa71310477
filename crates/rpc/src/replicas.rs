//! Keys that several collectors have: all of them are asked, and their answers become one.
//!
//! Each collector has some of the copies of a key-write store. Each copy is asked for separately, and the question's
//! policy chooses among all that were found. Paths are whole at each collector. What collectors counted is
//! [merged](merge). A collector that does not answer is left out if another one has the key.

use std::collections::{BTreeMap, BTreeSet};

use dta_proto::buckets;
use dta_proto::control::{KeyWriteAnswer, PathAnswer};
use dta_proto::layout::key_write::{Choice, CombinedCopies, combine_copies};

use crate::spread::{
    CollectorGroup, GroupPlacement, KnownAnswers, StorePart, StoreParts, authoritative_part,
    invalid_argument, is_not_kept, is_unreachable, sub_question,
};
use crate::unreachable::patiently;
use crate::{
    AtLeastError, ClientError, KeyAnswer, Policy, QueryAnswers, Question, QuestionKind, epochs, merge,
};

/// The keys to ask each collector for, by their places in the question; and the copy, if one is asked for.
type Asked = BTreeMap<(usize, Option<u8>), Vec<usize>>;

/// An answer about a key. Answers are considered in the order in which their collectors started.
struct ReplicaAnswer {
    /// When its collector started; `u64::MAX` if unknown.
    started: u64,
    /// When the answer's epoch was opened ([`merge::epoch_opened`]).
    opened: u64,
    copy: Option<u8>,
    answer: KeyAnswer,
}

impl ReplicaAnswer {
    /// Whether it has the copy that was asked for; always true of what is not copied.
    fn has_copy(&self) -> bool {
        !matches!(&self.answer, KeyAnswer::KeyWrite(KeyWriteAnswer { value: None, .. }))
    }
}

impl CollectorGroup {
    /// Queries all collectors that have the keys, or with `everywhere` all there are, as keys may have moved. Also
    /// returns whether the placement of one has changed since `placement`.
    pub(crate) async fn ask_replicas(
        &self,
        placement: &GroupPlacement,
        parts: &StoreParts<'_>,
        question: &Question,
        everywhere: bool,
    ) -> Result<(KnownAnswers, bool), ClientError> {
        let (asked, mut missing) = match everywhere {
            true => (self.asked_everywhere(parts, question)?, None),
            false => self.asked_of_replicas(parts, question)?,
        };
        // Those that did not answer lately are asked only if there is nobody else.
        let some_are_there = asked.keys().any(|(member, _)| self.away.unreachable_reason(*member).is_none());
        let answered = patiently(asked.iter().map(|(&(member, copy), places)| {
            let kind = match (question.kind, copy) {
                (QuestionKind::KeyWrite { .. }, Some(copy)) => {
                    QuestionKind::KeyWrite { policy: Policy::OneCopy, at_least: copy.into() }
                }
                (kind, _) => kind,
            };
            let question = Question { kind, ..sub_question(question, parts.name, places) };
            async move {
                match self.away.unreachable_reason(member).filter(|_| some_are_there) {
                    Some(why) => Err(why.into()),
                    None => self.members[member].ask.query_keys(question).await,
                }
            }
        }));
        let mut of_keys: Vec<Vec<ReplicaAnswer>> = question.keys.iter().map(|_| Vec::new()).collect();
        let (mut is_old, mut epochs) = (false, Vec::new());
        let (mut away, mut not_kept) = (BTreeSet::new(), None);
        for ((&(member, copy), places), answers) in asked.iter().zip(answered.await) {
            let answers = match answers {
                Ok(answers) => answers,
                Err(error) if is_unreachable(&error) => {
                    if self.away.unreachable_reason(member).is_none() {
                        self.away.record_outcome(member, error.status().cloned());
                    }
                    missing = Some(self.is_silent(member, &error).into());
                    away.insert(member);
                    continue;
                }
                // It was down at the moment asked about.
                Err(error) if is_not_kept(&error) => {
                    not_kept.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.away.record_outcome(member, None);
            is_old |= !everywhere && answers.placement != placement.versions[member];
            let opened = merge::epoch_opened(&answers, question.at);
            epochs.push(answers.epoch);
            let started = placement.started[member].wrapping_sub(1);
            for (place, answer) in places.iter().zip(answers.of_keys) {
                let opened = answer.earlier_epoch().map_or(opened, |earlier| earlier.opened);
                of_keys[*place].push(ReplicaAnswer { started, opened, copy, answer });
            }
        }
        // Any of them may have had a key then.
        if let Some(error) =
            missing.take_if(|_| everywhere && self.may_be_all(away.len(), parts.replica_count()))
        {
            return Err(error);
        }
        let answer = |found: Vec<ReplicaAnswer>| match (found.is_empty(), not_kept.take()) {
            (true, Some(error)) if missing.is_none() => Err(error),
            (true, _) => Ok(None),
            (false, error) => {
                not_kept = error;
                merge_replicas(question.kind, found).map(Some)
            }
        };
        let of_keys = of_keys.into_iter().map(answer).collect::<Result<_, _>>()?;
        let rest = QueryAnswers { epoch: epochs::in_common(epochs), ..QueryAnswers::default() };
        Ok((KnownAnswers::from_each_key(of_keys, missing, rest)?, is_old))
    }

    /// All copies of all keys, from all collectors, even those that have nothing of the store now.
    fn asked_everywhere(&self, parts: &StoreParts<'_>, question: &Question) -> Result<Asked, ClientError> {
        let places: Vec<usize> = (0..question.keys.len()).collect();
        let copies = parts.all.first().and_then(|part| part.spec.redundancy()).unwrap_or(1);
        let copies = copies_at(question.kind, copies, 0, 1)?;
        let each = (0..self.members.len()).flat_map(|member| copies.iter().map(move |copy| (member, *copy)));
        Ok(each.map(|asked| (asked, places.clone())).collect())
    }

    /// The copies of keys at the collectors that have them, and why no collector that answers has one.
    fn asked_of_replicas(
        &self,
        parts: &StoreParts<'_>,
        question: &Question,
    ) -> Result<(Asked, Option<ClientError>), ClientError> {
        let replicas = parts.replica_count();
        let (mut asked, mut missing) = (Asked::new(), None);
        for (place, key) in question.keys.iter().enumerate() {
            let bucket = buckets::bucket_of_key(key);
            let mut is_there = false;
            for replica in 0..replicas {
                let has = |part: &&StorePart| part.buckets.buckets_of_copy(replica).contains(bucket);
                let part = match authoritative_part(parts.all.iter().copied().filter(has)) {
                    Ok(part) => part,
                    // Its collector did not say what it has.
                    Err(None) => continue,
                    Err(Some(two)) => return Err(self.two_holders_error(&format!("bucket {bucket}"), two)),
                };
                is_there = true;
                let copies = part.spec.redundancy().unwrap_or(1);
                for copy in copies_at(question.kind, copies, replica, replicas)? {
                    asked.entry((part.member, copy)).or_default().push(place);
                }
            }
            if !is_there {
                match self.no_holder_error(&format!("bucket {bucket}, of {key},"), parts) {
                    error if is_unreachable(&error) => missing = Some(error),
                    error => return Err(error),
                }
            }
        }
        Ok((asked, missing))
    }
}

/// The copies to ask of the `replica`-th collector of a key; a single `None` = all that it has.
fn copies_at(
    kind: QuestionKind,
    copies: u8,
    replica: usize,
    replicas: usize,
) -> Result<Vec<Option<u8>>, ClientError> {
    let (policy, at_least) = match kind {
        QuestionKind::KeyWrite { policy, at_least } => (policy, at_least),
        _ => return Ok(vec![None]),
    };
    if policy == Policy::AtLeast && !(1..=u32::from(copies)).contains(&at_least) {
        return Err(invalid_argument(AtLeastError { at_least, copies }.to_string()));
    }
    let is_there = |copy: &u8| usize::from(*copy) % replicas == replica;
    let is_asked = |copy: &u8| policy != Policy::OneCopy || u32::from(*copy) == at_least;
    Ok((0..copies).filter(is_there).filter(is_asked).map(Some).collect())
}

/// Merges answers about one key, at least one.
fn merge_replicas(kind: QuestionKind, mut found: Vec<ReplicaAnswer>) -> Result<KeyAnswer, ClientError> {
    merge::keep_latest(&mut found, |found| (found.opened, &found.answer));
    found.sort_by_key(|found| (found.started, found.copy));
    // If several were asked for a copy, those that have it count.
    let mut known: BTreeSet<Option<u8>> = found.iter().filter(|f| f.has_copy()).map(|f| f.copy).collect();
    found.retain(|found| found.has_copy() || known.insert(found.copy));
    let answers = found.into_iter().map(|found| found.answer);
    Ok(match kind {
        QuestionKind::KeyWrite { policy, at_least } => {
            choose_value(policy, at_least, &convert_answers(answers)?).into()
        }
        QuestionKind::Postcarding => choose_path(convert_answers(answers)?).into(),
        _ => answers.reduce(merge::merge_answers).unwrap_or_else(|| kind.answer_of_none()),
    })
}

fn convert_answers<A: TryFrom<KeyAnswer, Error = ClientError>>(
    answers: impl Iterator<Item = KeyAnswer>,
) -> Result<Vec<A>, ClientError> {
    answers.map(A::try_from).collect()
}

/// The value that the policy chooses among single copies.
fn choose_value(policy: Policy, at_least: u32, copies: &[KeyWriteAnswer]) -> KeyWriteAnswer {
    let values: Vec<Option<&[u8]>> = copies.iter().map(|copy| copy.value.as_deref()).collect();
    let choice = match policy {
        Policy::First | Policy::OneCopy => Choice::First,
        Policy::Plurality => Choice::Plurality,
        Policy::AtLeast => Choice::AtLeast(u8::try_from(at_least).unwrap_or(u8::MAX)),
    };
    let (value, agreeing, differing) = match combine_copies(choice, &values) {
        CombinedCopies::Absent => (None, 0, 0),
        CombinedCopies::Undecided { agreeing, differing } => (None, agreeing, differing),
        CombinedCopies::Found { value, agreeing, differing } => (Some(value.to_vec()), agreeing, differing),
    };
    KeyWriteAnswer {
        key: copies.first().map(|copy| copy.key.clone()).unwrap_or_default(),
        value,
        agreeing: agreeing.into(),
        differing: differing.into(),
        copies: copies.len() as u32,
        earlier: copies.iter().find(|copy| copy.value.is_some()).and_then(|copy| copy.earlier),
    }
}

/// The most complete path; among equals, the first.
fn choose_path(answers: Vec<PathAnswer>) -> PathAnswer {
    let known = |answer: &PathAnswer| {
        (answer.found, answer.complete, answer.present.iter().filter(|present| **present).count())
    };
    let Some(best) = answers.iter().rev().max_by_key(|answer| known(answer)).cloned() else {
        return PathAnswer::default();
    };
    let is_same = |other: &&PathAnswer| {
        (&other.hops, &other.present, other.path_length) == (&best.hops, &best.present, best.path_length)
    };
    let (same, others): (Vec<&PathAnswer>, Vec<&PathAnswer>) = answers.iter().partition(is_same);
    let agreeing = same.iter().map(|answer| answer.agreeing).sum();
    let differing = same.iter().map(|answer| answer.differing).sum::<u32>()
        + others.iter().map(|answer| answer.agreeing + answer.differing).sum::<u32>();
    let copies = answers.iter().map(|answer| answer.copies).sum();
    PathAnswer { agreeing, differing, copies, ..best }
}

#[cfg(test)]
mod tests {
    use dta_proto::control::CounterAnswer;
    use dta_proto::layout::key_increment::{CountingRole, total_count};

    use super::*;

    fn found(started: u64, answer: impl Into<KeyAnswer>) -> ReplicaAnswer {
        ReplicaAnswer { started, opened: 0, copy: None, answer: answer.into() }
    }

    #[test]
    fn a_counter_is_the_most_that_two_collectors_have_counted_together() {
        let count = |colour, lanes: [u64; 4]| {
            let by_colour = CountingRole { colour, lanes: [true; 4] }.by_colour(&lanes);
            found(1, CounterAnswer { key: vec![9], value: total_count(&by_colour), by_colour })
        };
        let of = |answers| {
            CounterAnswer::try_from(merge_replicas(QuestionKind::KeyIncrement, answers).unwrap())
                .unwrap()
                .value
        };
        let moved = vec![count(1, [3, 0, 4, 0]), count(0, [0, 2, 0, 0]), count(2, [0, 5, 0, 0])];
        assert_eq!(of(moved), 8);
    }

    #[test]
    fn of_a_copy_that_several_were_asked_for_it_counts_who_has_it() {
        let kind = QuestionKind::KeyWrite { policy: Policy::AtLeast, at_least: 2 };
        let copy = |started, copy, value: Option<u8>| ReplicaAnswer {
            copy: Some(copy),
            ..found(started, KeyWriteAnswer { value: value.map(|v| vec![v]), ..KeyWriteAnswer::default() })
        };
        let of = |answers| KeyWriteAnswer::try_from(merge_replicas(kind, answers).unwrap()).unwrap();
        let moved = of(vec![copy(1, 0, None), copy(1, 1, Some(7)), copy(2, 0, Some(7)), copy(2, 1, None)]);
        assert_eq!((moved.value, moved.agreeing, moved.copies), (Some(vec![7]), 2, 2));
        let none = of(vec![copy(1, 0, None), copy(1, 1, None), copy(2, 0, None), copy(2, 1, None)]);
        assert_eq!((none.value, none.copies), (None, 2));
    }

    #[test]
    fn of_a_moment_the_epoch_that_was_opened_last_comes_before_the_collector_that_runs_longest() {
        let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
        let copy = |started, opened, copy, value: Option<u8>| {
            let answer = KeyWriteAnswer { value: value.map(|v| vec![v]), ..KeyWriteAnswer::default() };
            ReplicaAnswer { copy: Some(copy), opened, ..found(started, answer) }
        };
        let of = |answers| KeyWriteAnswer::try_from(merge_replicas(kind, answers).unwrap()).unwrap();
        // The first was down, and is back; its clock says that it has been running longest.
        let moved = of(vec![copy(1, 3000, 0, Some(7)), copy(2, 9000, 0, None), copy(2, 9000, 1, Some(8))]);
        assert_eq!((moved.value, moved.differing, moved.copies), (Some(vec![8]), 0, 2));
        let alone = of(vec![copy(1, 3000, 0, Some(7)), copy(2, 9000, 1, None)]);
        assert_eq!(alone.value, Some(vec![7]));
    }

    #[test]
    fn a_path_is_the_one_of_which_most_is_known() {
        let path = |hops: &[Option<u32>], complete, copies| PathAnswer {
            found: copies > 0,
            hops: hops.iter().map(|hop| hop.unwrap_or(0)).collect(),
            present: hops.iter().map(Option::is_some).collect(),
            complete,
            agreeing: copies,
            copies: 2,
            ..PathAnswer::default()
        };
        let of = |answers: Vec<ReplicaAnswer>| {
            PathAnswer::try_from(merge_replicas(QuestionKind::Postcarding, answers).unwrap()).unwrap()
        };
        let (whole, part) = (path(&[Some(1), Some(2)], true, 1), path(&[Some(1), None], false, 2));
        let none = PathAnswer::default();
        let best = of(vec![found(1, none.clone()), found(2, part.clone()), found(3, whole.clone())]);
        assert_eq!(best, PathAnswer { differing: 2, copies: 4, ..whole.clone() });
        assert_eq!(of(vec![found(1, part.clone()), found(2, none.clone())]), part);
        assert_eq!(of(vec![found(1, none.clone())]), none);
        // Of two complete paths, the one from the collector that has been running longest.
        let other = path(&[Some(3), Some(4)], true, 1);
        let both = of(vec![found(5, other.clone()), found(4, whole.clone()), found(6, whole.clone())]);
        assert_eq!(both, PathAnswer { agreeing: 2, differing: 1, copies: 6, ..whole });
        assert_eq!(of(vec![found(4, other.clone()), found(5, none)]), other);
    }
}
