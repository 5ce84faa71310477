//! What is known of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dta_proto::placement::plan::PlacementMember;
use dta_proto::placement::{ClusterPlacement, plan};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A collector's own description. In etcd this is JSON; readers ignore fields that they do not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorRecord {
    pub address: String,
    /// Where its metrics are scraped, as `HOST:PORT`; empty = nowhere that others can reach.
    #[serde(default)]
    pub metrics: String,
    /// Its NIC, as named in its configuration.
    pub device: String,
    /// The failure domain it belongs to, such as a rack; empty = its own.
    #[serde(default)]
    pub zone: String,
    /// Bytes of memory that it has for stores, which determine its share of the load.
    pub free_memory: u64,
    /// How many copies of each key, at different collectors, its stores want. The highest number of all
    /// collectors counts.
    pub copies: u8,
    /// Its stores that are placed by lists, with the number of lists of each; a sketch has one.
    #[serde(default)]
    pub lists: BTreeMap<String, u32>,
    /// Increases with each of its lives: a later life replaces an earlier one with the same id.
    pub generation: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The collectors that are present, by id.
    pub collectors: BTreeMap<String, CollectorRecord>,
    /// The ids of collectors that are to hold nothing.
    pub drained: BTreeSet<String>,
    /// Who holds what. It may name collectors that are no longer present.
    pub placement: ClusterPlacement,
    /// Earlier placements, oldest first: as many as etcd still had when this was first read, but no more than
    /// may still be in effect for stores with epochs. [`read`](crate::read) leaves them out.
    pub earlier: Arc<[Earlier]>,
}

/// A placement before the newest one. Version 0 stands for the time before there was any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    pub placement: Arc<ClusterPlacement>,
    /// Whether all of its holders have been present since before the next one was written, so that nobody
    /// took another placement because a holder was gone.
    pub is_waited_for: bool,
}

/// The newest view. While etcd is unreachable, it is the last one received.
#[derive(Debug)]
pub struct Views {
    newest: watch::Receiver<Arc<View>>,
    task: JoinHandle<()>,
}

impl Views {
    #[cfg(feature = "etcd")]
    pub(crate) fn new(newest: watch::Receiver<Arc<View>>, task: JoinHandle<()>) -> Views {
        Views { newest, task }
    }

    pub fn now(&self) -> Arc<View> {
        self.newest.borrow().clone()
    }

    /// Waits for a view other than the last one returned by this call.
    pub async fn next_view(&mut self) -> Arc<View> {
        if self.newest.changed().await.is_err() {
            // There will be no more views.
            std::future::pending::<()>().await;
        }
        self.newest.borrow_and_update().clone()
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Most earlier placements to keep. If more were written during one epoch, the first of them are unknown.
#[cfg(any(test, feature = "etcd"))]
pub(crate) const EARLIER: usize = 64;

/// The collectors that hold something in a placement.
pub(crate) fn placement_holders(placement: &ClusterPlacement) -> impl Iterator<Item = &String> {
    placement.keys.iter().flat_map(BTreeMap::keys).chain(placement.lists.keys())
}

impl View {
    /// The gRPC address of a collector that is present.
    pub fn grpc_address(&self, id: &str) -> Option<&str> {
        self.collectors.get(id).map(|collector| collector.address.as_str())
    }

    /// Whether all holders in a placement are still present, so that those who use it can wait before they
    /// take another one.
    pub(crate) fn can_wait(&self, placement: &ClusterPlacement) -> bool {
        placement.version != 0 && placement_holders(placement).all(|id| self.collectors.contains_key(id))
    }

    /// Replaces the placement.
    #[cfg(any(test, feature = "etcd"))]
    pub(crate) fn replace_placement(&mut self, placement: ClusterPlacement) {
        let former = std::mem::replace(&mut self.placement, placement);
        if former.version != self.placement.version {
            let former = Earlier { is_waited_for: self.can_wait(&former), placement: Arc::new(former) };
            let too_many = (self.earlier.len() + 1).saturating_sub(EARLIER);
            self.earlier = self.earlier.iter().skip(too_many).cloned().chain([former]).collect();
        }
    }

    /// Removes a collector. Those who use a placement in which it holds something take the next one.
    #[cfg(any(test, feature = "etcd"))]
    pub(crate) fn remove_collector(&mut self, id: &str) {
        self.collectors.remove(id);
        let gone = |of: &Earlier| placement_holders(&of.placement).any(|holder| holder == id);
        if self.earlier.iter().any(|of| of.is_waited_for && gone(of)) {
            let still = |of: &Earlier| Earlier { is_waited_for: of.is_waited_for && !gone(of), ..of.clone() };
            self.earlier = self.earlier.iter().map(still).collect();
        }
    }

    /// The placement now in effect for stores with epochs that used this one: the same, unless a holder has been gone.
    pub fn effective_placement(&self, placement: &Arc<ClusterPlacement>) -> Arc<ClusterPlacement> {
        let newest = || Arc::new(self.placement.clone());
        match self.earlier.iter().position(|earlier| earlier.placement.version == placement.version) {
            _ if placement.version == 0 => newest(),
            Some(at) => self.waited_for_from(at).map_or_else(newest, Arc::clone),
            None if self.can_wait(placement) => placement.clone(),
            None => newest(),
        }
    }

    /// Adds the placements that are later than the last of these.
    pub fn append_recent(&self, all: &mut Vec<Arc<ClusterPlacement>>) {
        let last = all.last().map_or(0, |last| last.version);
        let earlier = self.earlier.iter().map(|earlier| &earlier.placement);
        all.extend(earlier.filter(|placement| placement.version > last).cloned());
        if self.placement.version > all.last().map_or(0, |last| last.version) {
            all.push(Arc::new(self.placement.clone()));
        }
    }

    fn waited_for_from(&self, place: usize) -> Option<&Arc<ClusterPlacement>> {
        self.earlier[place..].iter().find(|earlier| earlier.is_waited_for).map(|earlier| &earlier.placement)
    }

    /// The placement in effect for stores whose epoch took the newest one written by this moment, in
    /// milliseconds since 1970; `None` if that is the newest of all or unknown.
    pub(crate) fn placement_taken_by(&self, moment: u64) -> Option<&Arc<ClusterPlacement>> {
        if self.placement.since <= moment {
            return None;
        }
        let taken = self.earlier.iter().rposition(|earlier| earlier.placement.since <= moment)?;
        self.waited_for_from(taken)
    }

    /// The placement that follows from the present collectors: [`plan::next`].
    pub fn next(&self) -> ClusterPlacement {
        let member = |(id, collector): (&String, &CollectorRecord)| PlacementMember {
            id: id.clone(),
            zone: collector.zone.clone(),
            weight: collector.free_memory,
            drained: self.drained.contains(id),
            lists: collector.lists.clone(),
        };
        let members: Vec<PlacementMember> = self.collectors.iter().map(member).collect();
        let copies = self.collectors.values().map(|collector| collector.copies).max().unwrap_or(1).max(1);
        plan::next(&self.placement, &members, copies.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::buckets::Buckets;

    impl CollectorRecord {
        fn of_test(copies: u8) -> CollectorRecord {
            CollectorRecord {
                address: "10.0.0.1:40050".into(),
                metrics: String::new(),
                device: "soft".into(),
                zone: String::new(),
                free_memory: 1 << 30,
                copies,
                lists: BTreeMap::new(),
                generation: 1,
            }
        }
    }

    impl View {
        pub(crate) fn of_test(ids: &[&str], placement: ClusterPlacement) -> View {
            let collectors = ids.iter().map(|id| ((*id).to_owned(), CollectorRecord::of_test(1))).collect();
            View { collectors, placement, ..View::default() }
        }
    }

    #[test]
    fn what_came_before_is_known_however_seldom_somebody_looks() {
        let placed = |version, ids: &[&str]| {
            let buckets = |(n, id): (usize, &&str)| {
                ((*id).to_owned(), Buckets::from_range(128 * n as u8, 127 + 128 * n as u8))
            };
            let keys = vec![ids.iter().enumerate().map(buckets).collect()];
            let placement = ClusterPlacement::new(version, keys, BTreeMap::new()).unwrap();
            ClusterPlacement { since: 1000 * version, ..placement }
        };
        let two = |version| placed(version, &["a", "b"]);
        let still = |view: &View, version| view.effective_placement(&Arc::new(two(version))).version;
        let mut view = View::of_test(&["a", "b", "c"], ClusterPlacement::default());
        (3..6).for_each(|version| view.replace_placement(two(version)));
        assert_eq!([3, 4, 5].map(|version| still(&view, version)), [3, 4, 5]);
        assert_eq!([2000, 3000, 4999].map(|by| view.placement_taken_by(by).unwrap().version), [3, 3, 4]);
        assert_eq!(
            (view.placement_taken_by(5000), view.effective_placement(&Arc::default()).version),
            (None, 5)
        );
        let mut recent = vec![Arc::new(two(3))];
        view.append_recent(&mut recent);
        assert_eq!(recent.iter().map(|of| of.version).collect::<Vec<_>>(), [3, 4, 5]);
        // One was gone, but is back before anybody looks.
        let b = view.collectors["b"].clone();
        view.remove_collector("b");
        view.replace_placement(placed(6, &["a", "c"]));
        view.collectors.insert("b".into(), b);
        view.replace_placement(two(7));
        assert_eq!([3, 5, 6, 7].map(|version| still(&view, version)), [6, 6, 6, 7]);
        (8..100).for_each(|version| view.replace_placement(two(version)));
        assert_eq!((view.earlier.len(), view.earlier[0].placement.version), (EARLIER, 99 - EARLIER as u64));
    }

    #[test]
    fn the_next_placement_follows_from_who_is_there() {
        let mut view = View::default();
        assert_eq!(view.next(), view.placement);
        view.collectors = ["a", "b", "c"].map(|id| (id.to_owned(), CollectorRecord::of_test(1))).into();
        view.placement = view.next();
        assert_eq!((view.placement.version, view.placement.keys.len()), (1, 1));
        // A single store that wants two copies is enough.
        view.collectors.insert("c".into(), CollectorRecord::of_test(2));
        view.drained.insert("b".into());
        let next = view.next();
        assert_eq!((next.version, next.keys.len(), next.buckets_of_copy(0, "b")), (2, 2, Buckets::NONE));
    }
}
