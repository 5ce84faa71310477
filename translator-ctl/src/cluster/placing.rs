//! The placement in effect for each store, and the part of the collectors' grants that is used under it.
//!
//! A store without epochs takes the newest placement as soon as the collectors that get something by it have granted it. A
//! collector that does not, although etcd says that it is there, is waited for no longer than ten seconds. Reports for what it
//! has are then dropped, since nobody would look for them where they were written before. A store with epochs takes a placement
//! when the regions of all its collectors follow it: until the last of them has turned, the others' new regions wait. So what was
//! reported in one epoch is at one collector. If a collector that has something is gone, nothing is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_cluster::View;
use dta_proto::buckets::{Copies, MAX_COPIES};
use dta_proto::placement::ClusterPlacement;
use dta_proto::program::{Lists, Store};
use dta_proto::wire::dta::{Addressing, Replicas};

use super::roster::Roster;
use crate::program::Grant;

/// How long a new region waits for those of other collectors, and a placement for what they grant by it.
/// Epochs end at the same time everywhere, and each collector is heard every second.
const WAIT: Duration = Duration::from_secs(10);

/// The placement in effect for each store.
#[derive(Debug, Default)]
pub(crate) struct Placing {
    view: Arc<View>,
    roster: Roster,
    /// Placements that a store may still take, oldest first.
    recent: Vec<Arc<ClusterPlacement>>,
    of_stores: BTreeMap<String, Arc<ClusterPlacement>>,
    /// Since when regions of a store wait for others.
    waiting: BTreeMap<String, Instant>,
    /// By store, the version of a placement that waits until collectors have granted it, and since when.
    ungranted: BTreeMap<String, (u64, Instant)>,
}

impl Placing {
    /// Takes in a newer view, and the indices of its collectors.
    pub(crate) fn apply_view(&mut self, view: Arc<View>, roster: Roster) {
        view.append_recent(&mut self.recent);
        for placement in self.of_stores.values_mut() {
            *placement = view.effective_placement(placement);
        }
        (self.view, self.roster) = (view, roster);
    }

    /// The version of the placement in effect at this translator, ignoring stores that wait for an epoch.
    pub(crate) fn placement_version(&self) -> u64 {
        let waits = |name: &str| self.waiting.contains_key(name);
        let of_stores = self.of_stores.iter().filter(|(name, _)| !waits(name));
        of_stores.map(|(_, placement)| placement.version).max().unwrap_or(0)
    }

    /// Whether any store was granted, and each granted store has a placement.
    pub(crate) fn are_placed(&self, granted: &BTreeMap<u8, Grant>) -> bool {
        let mut stores = granted.values().flat_map(|grant| &grant.stores).peekable();
        stores.peek().is_some() && stores.all(|store| self.of_stores.contains_key(&store.spec.name))
    }

    /// Chooses the placement of each store from what the collectors granted last.
    pub(crate) fn choose_placements(&mut self, granted: &BTreeMap<u8, Grant>, now: Instant) {
        let names: BTreeSet<&str> =
            granted.values().flat_map(|grant| &grant.stores).map(|store| store.spec.name.as_str()).collect();
        for name in names {
            let current = self.of_stores.get(name).map_or(0, |placement| placement.version);
            let there = granted.values().filter(|grant| grant.session.is_some());
            let versions = there.filter_map(|grant| grant.goes_by.get(name));
            // For a store with epochs, the placement that all regions follow; for another store, the newest.
            let newest = versions.min().copied().unwrap_or(self.view.placement.version);
            let next = self.recent.iter().rev().find(|placement| placement.version <= newest);
            let Some(next) = next.filter(|next| next.version > current).cloned() else {
                self.ungranted.remove(name);
                continue;
            };
            if !self.is_granted(&next, name, granted) {
                let waits = self.ungranted.entry(name.to_owned()).or_insert((next.version, now));
                if waits.0 != next.version {
                    *waits = (next.version, now);
                }
                if now.duration_since(waits.1) < WAIT {
                    continue;
                }
            }
            self.ungranted.remove(name);
            self.waiting.remove(name);
            self.of_stores.insert(name.to_owned(), next);
        }
        let ahead = |name: &&String| granted.values().any(|grant| self.is_region_ahead(grant, name));
        let waiting: Vec<String> = self.of_stores.keys().filter(ahead).cloned().collect();
        self.waiting.retain(|name, _| waiting.contains(name));
        for name in waiting {
            self.waiting.entry(name).or_insert(now);
        }
        let oldest = self.of_stores.values().map(|placement| placement.version).min().unwrap_or(0);
        self.recent.retain(|placement| placement.version >= oldest);
    }

    /// Whether all collectors that have part of a store under a placement have granted it.
    fn is_granted(&self, placement: &ClusterPlacement, store: &str, granted: &BTreeMap<u8, Grant>) -> bool {
        let has = |id: &str| {
            let mut lists = placement.lists.get(id).into_iter().flatten();
            placement.collector_copies(MAX_COPIES, id) != Copies::NONE
                || lists.any(|range| range.store == store)
        };
        self.roster.iter().filter(|(id, _)| has(id)).all(|(_, index)| {
            let grant = granted.get(&index).filter(|grant| grant.session.is_some());
            grant.is_some_and(|grant| grant.stores.iter().any(|of| of.spec.name == store))
        })
    }

    /// Whether a collector's region of a store follows a later placement than the store.
    fn is_region_ahead(&self, grant: &Grant, store: &str) -> bool {
        let version = self.of_stores.get(store).map_or(0, |placement| placement.version);
        version != 0 && grant.goes_by.get(store).is_some_and(|goes_by| *goes_by > version)
    }

    /// The part of a collector's grant to use, given the part that was `used` before; and whether it includes
    /// all new regions.
    pub(crate) fn restrict_grant(
        &self,
        granted: &Grant,
        used: Option<&Grant>,
        index: u8,
        now: Instant,
    ) -> (Grant, bool) {
        let id = self.roster.iter().find(|(_, of)| *of == index).map(|(id, _)| id);
        let (mut stores, mut is_whole) = (Vec::new(), true);
        for store in &granted.stores {
            let name = &store.spec.name;
            let Some(placement) = self.of_stores.get(name) else { continue };
            let is_patient = self.waiting.get(name).is_some_and(|since| now.duration_since(*since) < WAIT);
            let of_store = |of: &&Store| of.spec.name == *name && of.buckets != Copies::NONE;
            let former = used.and_then(|used| used.stores.iter().find(of_store));
            let region = match former {
                Some(former)
                    if is_patient && self.is_region_ahead(granted, name) && former.spec == store.spec =>
                {
                    is_whole &= former.generation == store.generation;
                    former
                }
                _ => store,
            };
            stores.extend(id.map(|id| placed_store(region, store.buckets.copy_count(), placement, id)));
        }
        let lists = granted.lists.iter().flat_map(|lists| self.placed_lists(lists, &stores, id)).collect();
        (Grant { stores, lists, ..granted.clone() }, is_whole)
    }

    /// The lists of a granted range that are placed at a collector.
    fn placed_lists(&self, granted: &Lists, stores: &[Store], id: Option<&str>) -> Vec<Lists> {
        let store = stores.iter().find(|store| store.spec.id == granted.store);
        let Some((store, id)) = store.zip(id) else { return Vec::new() };
        let name = &store.spec.name;
        let ranges =
            self.of_stores.get(name).and_then(|placement| placement.lists.get(id)).into_iter().flatten();
        let end = u64::from(granted.first) + u64::from(granted.count);
        let both = |range: &dta_proto::list_range::ListRange| {
            let first = range.first.max(granted.first);
            let count = range.end_of_lists().min(end).checked_sub(first.into()).filter(|count| *count > 0)?;
            let positions = granted.positions.iter().filter(|(list, _)| range.contains(*list));
            Some(Lists { first, count: count as u32, positions: positions.copied().collect(), ..*granted })
        };
        ranges.filter(|range| range.store == *name).filter_map(both).collect()
    }
}

/// A store whose keys are at `replicas` collectors, with the part of it that one collector has. A collector
/// that has nothing keeps its region, so that what is in flight to it is not lost.
fn placed_store(store: &Store, replicas: usize, placement: &ClusterPlacement, id: &str) -> Store {
    let name = &store.spec.name;
    let mut lists = placement.lists.get(id).into_iter().flatten();
    let primitive = store.spec.kind.primitive();
    let buckets = match primitive.addressing() {
        Addressing::Key if primitive.replicas() == Replicas::Counts => {
            placement.collector_lanes(replicas, id)
        }
        Addressing::Key => placement.collector_copies(replicas, id),
        Addressing::List | Addressing::Column if lists.any(|range| range.store == *name) => Copies::default(),
        Addressing::List | Addressing::Column => Copies::NONE,
    };
    Store { buckets, ..store.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::program::{ProgramSession, Purpose, Rkey};
    use dta_proto::store::{Merge, StoreKind, StoreSpec};

    /// The view of these collectors, with all keys placed as given, and lists 0 to 3 and the sketch at the last one.
    fn view(version: u64, ids: &[&str], keys: &str) -> (Arc<View>, Roster) {
        let collector =
            |id: &str| dta_cluster::CollectorRecord { address: format!("{id}:1"), ..Default::default() };
        let last = ids.last().unwrap();
        let range = |store| format!(r#"{{"store":"{store}","first":0,"count":4}}"#);
        let lists = format!(r#"{{"{last}":[{},{}]}}"#, range("events"), range("sketch"));
        let placement = format!(r#"{{"version":{version},"keys":[{keys}],"lists":{lists}}}"#);
        let collectors = ids.iter().map(|id| ((*id).to_owned(), collector(id))).collect();
        let placement = serde_json::from_str(&placement).unwrap();
        let view = View { collectors, placement, ..View::default() };
        let roster = Roster::default().next(&view, 4).0;
        (Arc::new(view), roster)
    }

    /// What a collector grants: `timed` has epochs, and its memory of this generation follows this version.
    fn grant(collector: u8, generation: u64, goes_by: u64) -> Grant {
        let store = |id, name: &str, kind: StoreKind| Store {
            collector,
            spec: StoreSpec { id, name: name.into(), kind },
            buckets: Copies::default(),
            address: 0,
            length: 1024,
            rkey: Rkey(7),
            generation: if name == "timed" { generation } else { 1 },
            queue_pair: Purpose::Write,
        };
        let keyed = StoreKind::KeyWrite { slots: 64, value_len: 12, redundancy: 1, keys: Default::default() };
        let append = StoreKind::Append { lists: 8, ring: 16, batch_len: 32, entry_len: 8, notify: false };
        let sketch =
            StoreKind::SketchMerge { columns: 1, rows: 2, epochs: 2, merge: Merge::Sum, expected: 1 };
        let stores = vec![
            store(1, "flows", keyed.clone()),
            store(2, "timed", keyed),
            store(3, "events", append),
            store(4, "sketch", sketch),
        ];
        let positions = (0..8).map(|list| (list, 9)).collect();
        Grant {
            session: Some(ProgramSession { collector, generation }),
            queue_pairs: Vec::new(),
            stores,
            goes_by: [("timed".to_owned(), goes_by)].into(),
            lists: vec![Lists { store: 3, collector, first: 0, count: 8, positions }],
        }
    }

    /// The buckets of `flows` and `timed` at a collector, and the generation of `timed`.
    fn parts(grant: &Grant) -> (String, String, u64) {
        let of = |name: &str| grant.stores.iter().find(|store| store.spec.name == name);
        let buckets = |name| of(name).map_or("none".into(), |store| store.buckets.to_string());
        (buckets("flows"), buckets("timed"), of("timed").map_or(0, |store| store.generation))
    }

    #[test]
    fn stores_move_when_they_are_granted_and_those_with_epochs_when_all_have_turned() {
        let now = Instant::now();
        let mut placing = Placing::default();
        let (one, roster) = view(1, &["a"], r#"{"a":"0-255"}"#);
        placing.apply_view(one, roster);
        let mut granted = BTreeMap::from([(0, grant(0, 5, 1))]);
        assert!(!placing.are_placed(&granted) && !placing.are_placed(&BTreeMap::new()));
        placing.choose_placements(&granted, now);
        assert!(placing.are_placed(&granted));
        let (a, is_whole) = placing.restrict_grant(&granted[&0], None, 0, now);
        assert_eq!(
            (parts(&a), is_whole, placing.placement_version()),
            (("0-255".into(), "0-255".into(), 5), true, 1)
        );

        // A second one comes. Nothing moves before it has granted what it gets.
        let (two, roster) = view(2, &["a", "b"], r#"{"a":"0-127","b":"128-255"}"#);
        placing.apply_view(two, roster);
        placing.choose_placements(&granted, now);
        assert_eq!(parts(&placing.restrict_grant(&granted[&0], Some(&a), 0, now).0), parts(&a));
        granted.insert(1, grant(1, 3, 1));
        placing.choose_placements(&granted, now);
        let used =
            |placing: &Placing, granted: &BTreeMap<u8, Grant>, index: u8, before: Option<&Grant>, at| {
                let (used, is_whole) = placing.restrict_grant(&granted[&index], before, index, at);
                (parts(&used), is_whole)
            };
        let (a, _) = placing.restrict_grant(&granted[&0], Some(&a), 0, now);
        let (b, _) = placing.restrict_grant(&granted[&1], None, 1, now);
        assert_eq!(parts(&a), ("0-127".into(), "0-255".into(), 5));
        assert_eq!((parts(&b), placing.placement_version()), (("128-255".into(), "none".into(), 3), 2));
        // Lists and the sketch are only where they are placed.
        let has = |grant: &Grant, id| {
            grant.stores.iter().any(|store| store.spec.id == id && store.buckets != Copies::NONE)
        };
        assert_eq!((has(&a, 3), has(&a, 4), a.lists.len()), (false, false, 0));
        assert_eq!((has(&b, 3), has(&b, 4)), (true, true));
        assert_eq!(
            b.lists[0],
            Lists {
                store: 3,
                collector: 1,
                first: 0,
                count: 4,
                positions: vec![(0, 9), (1, 9), (2, 9), (3, 9)]
            }
        );

        // The first one turns: its new memory waits for the other one's, but not for ever.
        granted.insert(0, grant(0, 6, 2));
        placing.choose_placements(&granted, now);
        assert_eq!(used(&placing, &granted, 0, Some(&a), now), (("0-127".into(), "0-255".into(), 5), false));
        let later = now + WAIT;
        assert_eq!(used(&placing, &granted, 0, Some(&a), later), (("0-127".into(), "0-255".into(), 6), true));
        granted.insert(1, grant(1, 4, 2));
        placing.choose_placements(&granted, now);
        assert_eq!(used(&placing, &granted, 0, Some(&a), now), (("0-127".into(), "0-127".into(), 6), true));
        assert_eq!(
            used(&placing, &granted, 1, Some(&b), now),
            (("128-255".into(), "128-255".into(), 4), true)
        );
    }

    #[test]
    fn a_collector_that_loses_everything_keeps_its_part_for_what_is_in_flight() {
        let now = Instant::now();
        let mut placing = Placing::default();
        let (two, roster) = view(1, &["a", "b"], r#"{"a":"0-127","b":"128-255"}"#);
        placing.apply_view(two, roster);
        let granted = BTreeMap::from([(0, grant(0, 5, 1)), (1, grant(1, 3, 1))]);
        placing.choose_placements(&granted, now);
        let (b, _) = placing.restrict_grant(&granted[&1], None, 1, now);
        assert_eq!(parts(&b), ("128-255".into(), "128-255".into(), 3));
        // It is drained, and stays.
        let (drained, _) = view(2, &["a", "b"], r#"{"a":"0-255"}"#);
        let mut drained = View::clone(&drained);
        drained.placement.lists = [("a".to_owned(), drained.placement.lists.remove("b").unwrap())].into();
        let roster = placing.roster.next(&drained, 4).0;
        placing.apply_view(Arc::new(drained), roster);
        placing.choose_placements(&granted, now);
        let (b, _) = placing.restrict_grant(&granted[&1], Some(&b), 1, now);
        assert_eq!((b.stores.len(), b.lists.len()), (granted[&1].stores.len(), 0));
        assert_eq!(parts(&b), ("none".into(), "128-255".into(), 3));
        assert!(b.stores.iter().filter(|store| store.spec.id > 2).all(|store| store.buckets == Copies::NONE));
    }

    #[test]
    fn nothing_is_waited_for_when_a_collector_is_gone() {
        let now = Instant::now();
        let mut placing = Placing::default();
        let (two, roster) = view(2, &["a", "b"], r#"{"a":"0-127","b":"128-255"}"#);
        placing.apply_view(two, roster);
        let mut granted = BTreeMap::from([(0, grant(0, 5, 2)), (1, grant(1, 3, 2))]);
        placing.choose_placements(&granted, now);
        let (a, _) = placing.restrict_grant(&granted[&0], None, 0, now);
        assert_eq!(parts(&a), ("0-127".into(), "0-127".into(), 5));
        let (one, roster) = view(3, &["a"], r#"{"a":"0-255"}"#);
        placing.apply_view(one, roster);
        granted.remove(&1);
        placing.choose_placements(&granted, now);
        let (a, is_whole) = placing.restrict_grant(&granted[&0], Some(&a), 0, now);
        assert_eq!(
            (parts(&a), is_whole, placing.placement_version()),
            (("0-255".into(), "0-255".into(), 5), true, 3)
        );
    }

    #[test]
    fn a_collector_that_grants_nothing_is_not_waited_for_for_ever() {
        let now = Instant::now();
        let mut placing = Placing::default();
        let (one, roster) = view(1, &["a"], r#"{"a":"0-255"}"#);
        placing.apply_view(one, roster);
        let granted = BTreeMap::from([(0, grant(0, 5, 1))]);
        placing.choose_placements(&granted, now);
        let (two, roster) = view(2, &["a", "b"], r#"{"a":"0-127","b":"128-255"}"#);
        placing.apply_view(two, roster);
        let used = |placing: &mut Placing, elapsed| {
            let now = now + Duration::from_secs(elapsed);
            placing.choose_placements(&granted, now);
            parts(&placing.restrict_grant(&granted[&0], None, 0, now).0).0
        };
        assert_eq!([0, 9].map(|elapsed| used(&mut placing, elapsed)), ["0-255", "0-255"]);
        // Each placement is waited for separately.
        let (three, roster) = view(3, &["a", "b", "c"], r#"{"a":"0-99","b":"100-199","c":"200-255"}"#);
        placing.apply_view(three, roster);
        let ranges = [9, 11, 18, 19, 20].map(|elapsed| used(&mut placing, elapsed));
        assert_eq!(ranges, ["0-255", "0-255", "0-255", "0-99", "0-99"]);
    }

    #[test]
    fn copies_are_where_the_placement_has_them_for_stores_that_take_several() {
        let now = Instant::now();
        let mut placing = Placing::default();
        let (two, roster) =
            view(1, &["a", "b"], r#"{"a":"0-127","b":"128-255"},{"a":"128-255","b":"0-127"}"#);
        placing.apply_view(two, roster);
        let mut granted = BTreeMap::from([(0, grant(0, 5, 1)), (1, grant(1, 3, 1))]);
        granted.values_mut().for_each(|grant| grant.stores[0].buckets = Copies::with_all_buckets(2));
        placing.choose_placements(&granted, now);
        let (a, _) = placing.restrict_grant(&granted[&0], None, 0, now);
        assert_eq!(parts(&a), ("0-127; copy 1 of 128-255".into(), "0-127".into(), 5));
        // What is used of an earlier grant says nothing about how many copies there may be.
        let (one, roster) = view(2, &["a"], r#"{"a":"0-255"}"#);
        placing.apply_view(one, roster);
        granted.remove(&1);
        placing.choose_placements(&granted, now);
        let (a, _) = placing.restrict_grant(&granted[&0], Some(&a), 0, now);
        assert_eq!(parts(&a).0, "0-255");
    }

    #[test]
    fn counters_have_the_lane_of_the_other_collectors_colour() {
        let counters = StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 2 };
        let mut store = grant(0, 5, 1).stores[0].clone();
        store.spec.kind = counters;
        let buckets = |(view, _): (Arc<View>, Roster)| {
            placed_store(&store, 2, &view.placement, "a").buckets.to_string()
        };
        assert_eq!(buckets(view(1, &["a"], r#"{"a":"0-255"}"#)), "none; copy 1 of 0-255");
        let two = r#"{"a":"0-127","b":"128-255"},{"a":"128-255","b":"0-127"}"#;
        assert_eq!(buckets(view(2, &["a", "b"], two)), "0-127; copy 1 of 128-255");
    }
}
