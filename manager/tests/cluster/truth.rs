//! What was reported, and when: what answers are compared with.

use std::num::NonZeroU64;
use std::ops::Range;

use dta_files::moment;
use dta_proto::buckets::{self, Buckets};
use dta_proto::control::{Epoch, EpochsRequest, KeyWriteAnswer};
use dta_rpc::{
    Ask, AskKeys, Key, KeyAnswer, Moment, Policy, QueryAnswers, Question, QuestionKind, Span, Spread,
};

/// What was reported.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// Number of keys, each reported in each round.
    keys: u32,
    /// When each round began and ended, in milliseconds since 1970. All keys are reported in each.
    rounds: Vec<[u64; 2]>,
    /// Rounds that may be lost, as the translator was killed.
    doubtful: Vec<Range<usize>>,
    /// Buckets whose collector died, and the moment from which on nothing more went there.
    lost: Vec<(Buckets, u64)>,
}

/// The key of a number.
pub(crate) fn key(n: u32) -> Key {
    let mut key = Key::default();
    key.0[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
    key
}

/// The value that a key has in a round: it names both.
pub(crate) fn value(n: u32, round: u32) -> [u8; 12] {
    let mut value = [0; 12];
    for (at, word) in [n, round, !round].into_iter().enumerate() {
        value[4 * at..4 * at + 4].copy_from_slice(&word.to_be_bytes());
    }
    value
}

impl Truth {
    /// About so many keys.
    pub(crate) fn of(keys: u32) -> Truth {
        Truth { keys, ..Truth::default() }
    }

    /// The keys of the load.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        (0..self.keys).map(key)
    }

    /// How many rounds there were.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.len() as u32
    }

    /// A key, another one in each round.
    pub(crate) fn key_of(&self, round: u32) -> Key {
        key(round % self.keys)
    }

    fn question(&self, store: &str, kind: QuestionKind, at: Moment) -> Question {
        Question { store: store.into(), keys: self.keys().collect(), kind, at }
    }

    pub(crate) fn begin_round(&mut self) -> u32 {
        let now = moment::now();
        self.rounds.push([now, now]);
        self.rounds.len() as u32 - 1
    }

    /// A translator in software has taken all of the last round.
    pub(crate) fn end_round(&mut self) {
        self.rounds.last_mut().expect("it has begun")[1] = moment::now();
    }

    /// What was reported in the last second may be lost.
    pub(crate) fn doubt_last(&mut self) {
        let since = moment::now() - 1000;
        let first = self.rounds.iter().position(|[_, end]| *end >= since).unwrap_or(self.rounds.len());
        self.doubtful.push(first..self.rounds.len());
    }

    /// What these buckets had until now died with a collector.
    pub(crate) fn lost(&mut self, buckets: Buckets) {
        self.lost.push((buckets, moment::now()));
    }

    /// What is not as it was reported last.
    pub(crate) async fn lacks(&self, spread: &Spread, stores: &[&str]) -> Vec<String> {
        let last = self.rounds.len() as u32 - 1;
        let mut lacks = Vec::new();
        for store in stores {
            match self.values(spread, store, Moment::Now).await {
                Err(error) => lacks.push(format!("{store}: {error}")),
                Ok((_, values)) => {
                    for (n, found) in (0..).zip(values) {
                        if found.as_deref() != Some(&value(n, last)[..]) {
                            lacks.push(format!("{store}: key {n} has {found:?}, not that of round {last}"));
                        }
                    }
                }
            }
        }
        lacks
    }

    /// Counts that are not those of all reports.
    pub(crate) async fn lacks_counts(&self, spread: &Spread, store: &str) -> Vec<String> {
        let last = self.rounds.len() as u32 - 1;
        let mut lacks = Vec::new();
        match self.counts(spread, store).await {
            Err(error) => lacks.push(format!("{store}: {error}")),
            Ok(counts) => {
                for (n, count) in
                    counts.into_iter().enumerate().filter(|(_, count)| *count != u64::from(last) + 1)
                {
                    lacks.push(format!("{store}: key {n} has {count}, not {}", last + 1));
                }
            }
        }
        lacks
    }

    /// Compares what all keys had in each epoch that is over. Returns how many answers were compared, and how many of
    /// them lack what died with a collector.
    pub(crate) async fn compare_epochs(&self, spread: &Spread) -> (usize, usize) {
        let request = EpochsRequest { store: "timed".into(), ..EpochsRequest::default() };
        let all = spread.fetch_epochs(request).await.unwrap().epochs;
        let mut moments: Vec<u64> =
            all.iter().filter(|epoch| epoch.flipped_from != 0).map(|epoch| epoch.flipped_from - 1).collect();
        moments.sort_unstable();
        moments.dedup_by_key(|moment| *moment / 3000);
        let (mut compared, mut lost) = (0, 0);
        for at in moments {
            let (epoch, values) =
                self.values(spread, "timed", Moment::UnixMillis(NonZeroU64::new(at).unwrap())).await.unwrap();
            let Some(epoch) = epoch else { continue };
            let Some(rounds) = self.of_epoch(&epoch, &all) else { continue };
            for (n, found) in (0..).zip(values) {
                compared += 1;
                lost += usize::from(self.lacks_at(n, found.as_deref(), &epoch, rounds));
            }
        }
        let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
        let (keys, whole): (Vec<Key>, _) = (self.keys().collect(), Span::default());
        let series = spread.series_of::<KeyWriteAnswer>("timed", &keys, kind, whole).await.unwrap();
        assert!(series.is_sorted_by_key(|(epoch, _)| epoch.opened));
        let before = compared;
        for (epoch, answers) in series.iter().filter(|(epoch, _)| epoch.flipped_from != 0) {
            let Some(rounds) = self.of_epoch(epoch, &all) else { continue };
            for KeyWriteAnswer { key, value, earlier, .. } in answers {
                // What an earlier epoch has is compared there.
                let value = value.as_ref().filter(|_| earlier.is_none());
                let n = keys.iter().position(|known| known.0[..] == key[..]).expect("one of them") as u32;
                compared += 1;
                lost += usize::from(self.lacks_at(n, value.map(Vec::as_slice), epoch, rounds));
            }
        }
        assert!(compared - before >= keys.len(), "all keys in one epoch at least, not {}", compared - before);
        (compared, lost)
    }

    /// Asserts that a key has what was reported in an epoch. Whether it lacks what died with a collector.
    fn lacks_at(&self, n: u32, found: Option<&[u8]>, epoch: &Epoch, rounds: Rounds) -> bool {
        let Rounds { first, surely, possibly } = rounds;
        let is = |round: u32| found == Some(&value(n, round)[..]);
        if (surely..=possibly).any(is) {
            return false;
        }
        let is_lost = self.is_lost(n, epoch) && (found.is_none() || (first..surely).any(is));
        assert!(is_lost, "key {n} has {found:?}, not that of a round {surely} to {possibly}: {epoch:#?}");
        true
    }

    async fn values(&self, spread: &Spread, store: &str, at: Moment) -> Result<Values, dta_rpc::ClientError> {
        let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
        let QueryAnswers { epoch, of_keys, .. } = spread.query_keys(self.question(store, kind, at)).await?;
        let value = |answer| match answer {
            KeyAnswer::KeyWrite(answer) => {
                answer.value.filter(|_| at == Moment::Now || answer.earlier.is_none())
            }
            other => panic!("{other:?}"),
        };
        Ok((epoch, of_keys.into_iter().map(value).collect()))
    }

    async fn counts(&self, spread: &Spread, store: &str) -> Result<Vec<u64>, dta_rpc::ClientError> {
        let answers =
            spread.query_keys(self.question(store, QuestionKind::KeyIncrement, Moment::Now)).await?;
        let count = |answer| match answer {
            KeyAnswer::KeyIncrement(answer) => answer.value,
            other => panic!("{other:?}"),
        };
        Ok(answers.of_keys.into_iter().map(count).collect())
    }

    /// Whether a collector that died had a key in an epoch.
    fn is_lost(&self, n: u32, epoch: &Epoch) -> bool {
        let bucket = buckets::bucket_of_key(&key(n));
        self.lost.iter().any(|(buckets, until)| buckets.contains(bucket) && epoch.opened <= *until)
    }

    /// The rounds of an epoch, one of `all`; `None` if too little is known of it.
    fn of_epoch(&self, epoch: &Epoch, all: &[Epoch]) -> Option<Rounds> {
        let is_sure = |round: &usize| !self.doubtful.iter().any(|doubtful| doubtful.contains(round));
        let is_in = |round: &usize| self.rounds[*round][1] < epoch.flipped_from;
        let surely = (0..self.rounds.len()).rev().filter(is_sure).find(is_in)?;
        // Writers move to an epoch within a second after it was opened, or later on a busy machine.
        let is_before = |other: &&Epoch| other.flipped_from.abs_diff(epoch.opened) < 1500;
        let moved = all.iter().filter(is_before).map(|other| other.flipped_to).max().unwrap_or(0);
        if self.rounds[surely][0] < moved.max(epoch.opened + 1500) {
            return None;
        }
        let first = self.rounds.iter().position(|[_, end]| *end >= epoch.opened)?;
        // Of a collector that died before it knew, writers may have moved during the next epoch.
        let late = if epoch.confirmed { 100 } else { 3000 };
        let possibly = self.rounds.iter().rposition(|[begin, _]| *begin <= epoch.flipped_to + late)?;
        Some(Rounds { first: first as u32, surely: surely as u32, possibly: possibly as u32 })
    }
}

/// The first round in an epoch, and the last one: for sure, and possibly.
#[derive(Clone, Copy)]
struct Rounds {
    first: u32,
    surely: u32,
    possibly: u32,
}

type Values = (Option<Epoch>, Vec<Option<Vec<u8>>>);
