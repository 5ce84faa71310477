//! Merges answers of several collectors about the same keys, of which each may hold a part.
//!
//! In a cluster, a bucket moves without its data. Counts stay where they were counted; an epoch's data is at the collector
//! that had the bucket then.

use dta_proto::control::CounterAnswer;
use dta_proto::layout::key_increment::total_count;
use dta_proto::wire::dta::Replicas;

use crate::{KeyAnswer, Moment, QueryAnswers};

/// Most milliseconds between the starts of one epoch at several collectors.
pub(crate) const TOGETHER: u64 = 1000;

/// When the answers' epoch was opened, to compare it with other collectors'. Open epochs, which answer for now, do not
/// compare: a collector that started later opened its epoch later.
pub(crate) fn epoch_opened(answers: &QueryAnswers, at: Moment) -> u64 {
    match at {
        Moment::Now => u64::MAX - TOGETHER,
        Moment::UnixMillis(_) => answers.epoch.as_ref().map_or(0, |epoch| epoch.opened),
    }
}

/// Keeps those answers about one key at a moment that are from the latest epoch with an answer; of counters, all. `of`
/// returns when an answer's epoch was opened, and the answer. A collector that died answers from its last epoch up to the
/// end that was planned for it; by then others may have had the key.
pub(crate) fn keep_latest<T>(found: &mut Vec<T>, of: impl Fn(&T) -> (u64, &KeyAnswer)) {
    let says =
        |found: &T| Some(of(found)).filter(|(_, answer)| answer.completeness() > 0).map(|(opened, _)| opened);
    let latest = found.iter().filter_map(says).max().unwrap_or(0);
    found.retain(|found| {
        let (opened, answer) = of(found);
        answer.primitive().replicas() == Replicas::Counts || opened + TOGETHER >= latest
    });
}

/// Adds up what two collectors counted for a key.
fn add_counters(a: CounterAnswer, b: &CounterAnswer) -> CounterAnswer {
    if a.by_colour.is_empty() || a.by_colour.len() != b.by_colour.len() {
        return CounterAnswer { value: a.value.saturating_add(b.value), by_colour: Vec::new(), ..a };
    }
    let by_colour: Vec<u64> =
        a.by_colour.iter().zip(&b.by_colour).map(|(a, b)| a.saturating_add(*b)).collect();
    CounterAnswer { value: total_count(&by_colour), key: a.key, by_colour }
}

/// Merges two collectors' answers about a key: counters are added; otherwise the newer answer counts, then the more
/// complete one.
pub(crate) fn merge_answers(a: KeyAnswer, b: KeyAnswer) -> KeyAnswer {
    let rank = |answer: &KeyAnswer| {
        let opened = answer.earlier_epoch().map_or(u64::MAX, |earlier| earlier.opened);
        (answer.completeness() > 0, opened, answer.completeness())
    };
    match (a, b) {
        (KeyAnswer::KeyIncrement(a), KeyAnswer::KeyIncrement(b)) => add_counters(a, &b).into(),
        (a, b) if rank(&b) > rank(&a) => b,
        (a, _) => a,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::control::{EarlierEpoch, KeyWriteAnswer, PathAnswer};
    use dta_proto::layout::key_increment::CountingRole;

    #[test]
    fn of_a_moment_the_epoch_that_was_opened_last_counts() {
        let value = |opened, value: Option<u8>| {
            let value = value.map(|v| vec![v]);
            (opened, KeyAnswer::from(KeyWriteAnswer { value, ..KeyWriteAnswer::default() }))
        };
        let count =
            |opened, value| (opened, KeyAnswer::from(CounterAnswer { value, ..CounterAnswer::default() }));
        let left = |mut found: Vec<(u64, KeyAnswer)>| {
            keep_latest(&mut found, |(opened, answer)| (*opened, answer));
            found.into_iter().map(|(opened, _)| opened).collect::<Vec<_>>()
        };
        assert_eq!(left(vec![value(3000, Some(1)), value(9000, Some(2))]), [9000]);
        assert_eq!(left(vec![value(3000, Some(1)), value(9000, None)]), [3000, 9000]);
        assert_eq!(left(vec![value(3000, None), value(9000, None)]), [3000, 9000]);
        // Collectors open the same epoch within a second.
        assert_eq!(left(vec![value(9000, Some(1)), value(9010, Some(2)), value(8000, None)]), [9000, 9010]);
        assert_eq!(left(vec![count(3000, 1), count(9000, 2)]), [3000, 9000]);
    }

    #[test]
    fn counters_are_added_up_and_of_all_else_the_fuller_answer_counts() {
        let count = |value| KeyAnswer::from(CounterAnswer { value, ..CounterAnswer::default() });
        assert_eq!(merge_answers(count(3), count(4)), count(7));
        let of_colour = |colour, lanes: [u64; 4]| {
            let by_colour = CountingRole { colour, lanes: [true; 4] }.by_colour(&lanes);
            KeyAnswer::from(CounterAnswer {
                value: total_count(&by_colour),
                by_colour,
                ..CounterAnswer::default()
            })
        };
        // Colour 1 counted alone for a while, and colour 0 missed 2 of what both counted.
        let found = merge_answers(of_colour(1, [7, 4, 0, 0]), of_colour(0, [0, 5, 0, 0]));
        assert_eq!(CounterAnswer::try_from(found).unwrap().value, 11);
        let value = |value: Option<u8>| {
            KeyAnswer::from(KeyWriteAnswer { value: value.map(|v| vec![v]), ..KeyWriteAnswer::default() })
        };
        assert_eq!(merge_answers(value(None), value(Some(5))), value(Some(5)));
        assert_eq!(merge_answers(value(Some(4)), value(Some(5))), value(Some(4)));
        let earlier = |opened: u64| {
            value(Some(9)).with_earlier_epoch(EarlierEpoch { opened, ..EarlierEpoch::default() })
        };
        assert_eq!(merge_answers(earlier(7), value(Some(5))), value(Some(5)), "the newer one");
        assert_eq!(merge_answers(earlier(7), earlier(8)), earlier(8));
        assert_eq!(merge_answers(value(None), earlier(7)), earlier(7));
        let path = |present: &[bool]| {
            let found = !present.is_empty();
            KeyAnswer::from(PathAnswer { found, present: present.to_vec(), ..PathAnswer::default() })
        };
        assert_eq!(merge_answers(path(&[true, false]), path(&[true, true])), path(&[true, true]));
        assert_eq!(merge_answers(path(&[]), path(&[])), path(&[]));
    }
}
