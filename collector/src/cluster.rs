//! A collector's place in a cluster: what it holds, and whether it may answer for it.
//!
//! It may as long as its lease in etcd holds. When etcd is unreachable or has no quorum, translators decide:
//! if one of them uses the same placement, nothing of it is written elsewhere. A collector that was frozen
//! while its buckets were given to others finds its lease expired when it wakes, and is not vouched for by
//! any translator until it has rejoined and knows the new placement.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dta_cluster::{InEffect, Lease, View};
use dta_files::moment;
use dta_proto::buckets::{Buckets, Copies};
use dta_proto::list_range::ListRange;
use dta_proto::placement::ClusterPlacement;

/// How long a translator's word counts at most. Translators renew their sessions every second.
const FRESH: Duration = Duration::from_secs(5);
/// How long a translator must have used a placement. After a standstill, renewals that were sent long ago are
/// all handled at once.
const STEADY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct ClusterMembership {
    id: String,
    /// How long a translator's word counts: not past a standstill in which others may have been given what is here.
    fresh: Duration,
    lease: OnceLock<Lease>,
    in_effect: Mutex<InEffect>,
    /// By session, the placement that its translator uses.
    words: Mutex<BTreeMap<String, Word>>,
}

/// What a translator reports with each renewal.
#[derive(Clone, Copy, Debug)]
struct Word {
    version: u64,
    first: Instant,
    last: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderLocation {
    /// Here. Without a cluster, also whatever no known collector holds.
    Here,
    /// At the collector with this address.
    At(String),
    /// At a collector that is gone, or not yet assigned.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreShare {
    /// Buckets of keys, for each copy.
    pub buckets: Copies,
    /// Ranges of lists; a sketch counts as one list.
    pub lists: Vec<ListRange>,
    /// Another collector that holds part of the store.
    pub other: Option<String>,
}

/// The collector is not in the cluster, or cannot know whether it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this collector cannot tell whether it still has its part of the stores: its etcd lease has expired, and no translator \
     uses the placement that it knows"
)]
pub struct Adrift;

impl ClusterMembership {
    /// Starts outside the cluster. `with_epochs` has the stores that get new memory with each epoch, with its length.
    pub fn new<'a>(
        id: String,
        lease: Duration,
        with_epochs: impl IntoIterator<Item = (&'a str, Duration)>,
    ) -> ClusterMembership {
        let in_millis = |(store, length): (&'a str, Duration)| (store, length.as_millis() as u64);
        let in_effect = Mutex::new(InEffect::new(with_epochs.into_iter().map(in_millis)));
        // A lease is renewed after each third of it, so at least two thirds are left when a standstill begins.
        let fresh = FRESH.min(lease * 2 / 3);
        ClusterMembership { id, fresh, lease: OnceLock::new(), in_effect, words: Mutex::default() }
    }

    /// Joins under this lease. Only the first call counts.
    pub fn set_lease(&self, lease: Lease) {
        let _ = self.lease.set(lease);
    }

    pub fn update_view(&self, view: Arc<View>) {
        self.in_effect().update_view(view, moment::now());
    }

    /// Begins an epoch of a store with this generation of its memory. The epoch is the one that contains
    /// `moment`, in milliseconds since 1970.
    pub fn begin_epoch(&self, store: &str, generation: u64, moment: u64) {
        self.in_effect().begin_epoch(store, generation, moment);
    }

    /// Notes the placement version that a session's translator uses; 0 = none.
    pub fn confirm_version(&self, session: &str, version: u64, now: Instant) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.retain(|_, word| now.saturating_duration_since(word.last) < self.fresh);
        let word = words.entry(session.to_owned()).or_insert(Word { version, first: now, last: now });
        if word.version != version {
            (word.version, word.first) = (version, now);
        }
        word.last = now;
    }

    /// Whether a translator vouches that a placement is in effect.
    fn is_vouched(&self, version: u64, now: Instant) -> bool {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.values().any(|word| {
            let is_fresh = now.saturating_duration_since(word.last) < self.fresh;
            is_fresh && word.version == version && word.last.saturating_duration_since(word.first) >= STEADY
        })
    }

    /// Checks whether the collector may answer for what it holds, at this moment of its own clock.
    pub fn check_vouched(&self, now: Instant) -> Result<(), Adrift> {
        let version = self.in_effect().newest_view().placement.version;
        let is_in = version != 0 && self.lease.get().is_some_and(Lease::is_in_cluster);
        if is_in || version != 0 && self.is_vouched(version, now) { Ok(()) } else { Err(Adrift) }
    }

    /// Where a bucket is, for a store with this many replicas of each key: here, if any copy is.
    pub fn locate_bucket(&self, store: &str, replicas: usize, bucket: u8) -> HolderLocation {
        let in_effect = self.in_effect();
        let placement = in_effect.store_placement(store);
        let is_here = placement.of_bucket(bucket).take(replicas).any(|id| id == self.id);
        let holder = if is_here { Some(self.id.as_str()) } else { placement.of_bucket(bucket).next() };
        self.locate_holder(in_effect.newest_view(), holder)
    }

    /// Where a list of a store is; a sketch is list 0.
    pub fn locate_list(&self, store: &str, list: u32) -> HolderLocation {
        let in_effect = self.in_effect();
        let holder = in_effect.store_placement(store).list_collector(store, list);
        self.locate_holder(in_effect.newest_view(), holder)
    }

    fn locate_holder(&self, view: &View, holder: Option<&str>) -> HolderLocation {
        match holder {
            Some(id) if id == self.id => HolderLocation::Here,
            Some(id) => view
                .grpc_address(id)
                .map_or(HolderLocation::Gone, |address| HolderLocation::At(address.to_owned())),
            None => HolderLocation::Gone,
        }
    }

    /// This collector's share of a store with this many replicas of each key.
    pub fn store_share(&self, store: &str, replicas: usize) -> StoreShare {
        let in_effect = self.in_effect();
        let placement: &ClusterPlacement = in_effect.store_placement(store);
        let of_store = |id: &str| {
            let ranges = placement.lists.get(id).into_iter().flatten();
            ranges.filter(|range| range.store == store).cloned().collect::<Vec<_>>()
        };
        let others = in_effect.newest_view().collectors.iter().filter(|(id, _)| **id != self.id);
        let has_some =
            |id: &str| !of_store(id).is_empty() || placement.buckets_of_copy(0, id) != Buckets::NONE;
        let other = others.into_iter().find(|(id, _)| has_some(id));
        StoreShare {
            buckets: placement.collector_copies(replicas, &self.id),
            lists: of_store(&self.id),
            other: other.map(|(_, collector)| collector.address.clone()),
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn newest_view(&self) -> Arc<View> {
        self.in_effect().newest_view().clone()
    }

    pub fn placement_version(&self) -> u64 {
        self.newest_view().placement.version
    }

    /// Changes with each placement that takes effect for any store.
    pub fn version_stamp(&self) -> u64 {
        self.in_effect().combined_version()
    }

    /// The version in effect for a generation of a store with epochs; `None` for other stores.
    pub fn version_of(&self, store: &str, generation: u64) -> Option<u64> {
        self.in_effect().version_in_generation(store, generation)
    }

    fn in_effect(&self) -> MutexGuard<'_, InEffect> {
        self.in_effect.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_cluster::CollectorRecord;

    fn view(version: u64, keys: &str) -> Arc<View> {
        let placement = format!(
            r#"{{"version":{version},"keys":[{keys}],"lists":{{"b":[{{"store":"events","first":0,"count":4}}]}}}}"#
        );
        let collector = |id: &str| CollectorRecord { address: format!("{id}:40050"), ..Default::default() };
        let collectors = ["a", "b"].map(|id| (id.to_owned(), collector(id))).into();
        Arc::new(View { collectors, placement: serde_json::from_str(&placement).unwrap(), ..View::default() })
    }

    #[test]
    fn what_it_has_follows_from_the_placement() {
        let cluster = ClusterMembership::new("a".into(), Duration::from_secs(10), []);
        assert_eq!(
            (cluster.locate_bucket("flows", 1, 3), cluster.placement_version()),
            (HolderLocation::Gone, 0)
        );
        cluster.update_view(view(7, r#"{"a":"0-99","b":"100-199","gone":"200-255"}"#));
        let at_b = HolderLocation::At("b:40050".into());
        assert_eq!(
            [3, 100, 200].map(|bucket| cluster.locate_bucket("flows", 1, bucket)),
            [HolderLocation::Here, at_b.clone(), HolderLocation::Gone]
        );
        assert_eq!(
            (cluster.locate_list("events", 3), cluster.locate_list("events", 4)),
            (at_b, HolderLocation::Gone)
        );
        let part = cluster.store_share("events", 1);
        assert_eq!((part.lists, part.other), (Vec::new(), Some("b:40050".into())));
        assert_eq!((part.buckets.to_string().as_str(), cluster.placement_version()), ("0-99", 7));
        cluster.update_view(view(8, r#"{"a":"0-127","b":"128-255"},{"a":"128-255","b":"0-127"}"#));
        let at_b = HolderLocation::At("b:40050".into());
        assert_eq!(
            [1, 2].map(|replicas| cluster.locate_bucket("flows", replicas, 200)),
            [at_b, HolderLocation::Here]
        );
        let copies = [1, 2].map(|replicas| cluster.store_share("flows", replicas).buckets.to_string());
        assert_eq!(copies, ["0-127", "0-127; copy 1 of 128-255"]);
    }

    #[test]
    fn without_a_lease_the_word_of_a_steady_translator_counts() {
        let cluster = ClusterMembership::new("a".into(), Duration::from_secs(10), []);
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        cluster.update_view(view(7, r#"{"a":"0-127","b":"128-255"}"#));
        assert_eq!(cluster.check_vouched(at(0)), Err(Adrift));
        for seconds in 0..=3 {
            cluster.confirm_version("tor1", 7, at(seconds));
            assert_eq!(cluster.check_vouched(at(seconds)).is_ok(), seconds >= 2, "{seconds}");
        }
        // The translator uses another placement, or is silent.
        cluster.confirm_version("tor1", 8, at(4));
        assert_eq!(cluster.check_vouched(at(4)), Err(Adrift));
        (4..=6).for_each(|seconds| cluster.confirm_version("tor2", 7, at(seconds)));
        assert_eq!((cluster.check_vouched(at(10)), cluster.check_vouched(at(11))), (Ok(()), Err(Adrift)));
        // Renewals sent before a standstill but handled after it prove nothing.
        cluster.confirm_version("tor2", 7, at(60));
        cluster.confirm_version("tor2", 7, at(61));
        assert_eq!(cluster.check_vouched(at(61)), Err(Adrift));
    }

    #[test]
    fn no_word_counts_beyond_a_standstill_for_which_a_short_lease_does_not_last() {
        let cluster = ClusterMembership::new("a".into(), Duration::from_secs(3), []);
        let begin = Instant::now();
        cluster.update_view(view(7, r#"{"a":"0-127","b":"128-255"}"#));
        let at = |tenths: u64| begin + Duration::from_millis(100 * tenths);
        (0..=30).step_by(10).for_each(|tenths| cluster.confirm_version("tor1", 7, at(tenths)));
        assert_eq!(cluster.check_vouched(at(30)), Ok(()));
        cluster.confirm_version("tor1", 7, at(50));
        assert_eq!(cluster.check_vouched(at(50)), Err(Adrift));
    }
}
