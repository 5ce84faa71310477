//! The contents of etcd, key by key.

use std::collections::{BTreeMap, BTreeSet};

use dta_files::moment;
use dta_proto::placement::ClusterPlacement;

use crate::{CollectorRecord, EtcdError, View};

/// How long after a placement the next one may be written merely to balance load, in milliseconds. Each
/// leaves one copy of each bucket in place; by the next one, the others should have been reported again.
const REST: u64 = 60_000;

/// How many unreadable records of collectors the log names: whoever may write to etcd must not be able to fill a disk.
const NAMED: usize = 10;
/// Most characters of an id or a reason in the log.
const LONGEST: usize = 200;

/// A placement as the value of its key.
pub(super) fn placement_json(placement: &ClusterPlacement) -> Result<Vec<u8>, EtcdError> {
    let dated = ClusterPlacement { since: moment::now(), ..placement.clone() };
    serde_json::to_vec(&dated).map_err(|error| EtcdError(error.to_string()))
}

pub(super) fn collector_key(prefix: &str, id: &str) -> String {
    format!("{prefix}collectors/{id}")
}

/// The key that marks a collector as drained.
pub(super) fn drained_key(prefix: &str, id: &str) -> String {
    format!("{prefix}drained/{id}")
}

pub(super) fn planner_key(prefix: &str) -> String {
    format!("{prefix}planner")
}

pub(super) fn placement_key(prefix: &str) -> String {
    format!("{prefix}placement")
}

/// A key's value and its origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct EtcdValue<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PlacementKeyState {
    #[default]
    Not,
    /// The placement in the view, written at this revision.
    At(i64),
    /// Something that this program cannot read, and so does not replace.
    Unreadable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planner {
    pub(super) lease: i64,
    pub(super) created: i64,
}

/// Whether a placement differs from the previous one only to balance load: the same collectors hold something.
fn is_for_load(before: &ClusterPlacement, next: &ClusterPlacement) -> bool {
    let ids = |placement: &ClusterPlacement| -> BTreeSet<String> {
        placement.keys.iter().flat_map(BTreeMap::keys).cloned().collect()
    };
    (before.keys.len(), &before.lists) == (next.keys.len(), &next.lists) && ids(before) == ids(next)
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// The contents of etcd; its placement is the last readable one.
#[derive(Clone, Debug, Default)]
pub(super) struct EtcdCluster {
    pub(super) view: View,
    /// The revision since which each collector has been present.
    pub(super) since: BTreeMap<String, i64>,
    pub(super) placed: PlacementKeyState,
    pub(super) planner: Option<Planner>,
    /// Ids of unreadable records, as far as the log names them.
    pub(super) ignored: BTreeSet<String>,
    pub(super) revision: i64,
}

impl EtcdCluster {
    /// Applies a key, given without its prefix: its value, or `None` if it was deleted.
    pub(super) fn apply_key(&mut self, key: &str, value: Option<EtcdValue<'_>>) {
        if let Some(id) = key.strip_prefix("collectors/") {
            match value.map(|value| (value.created, serde_json::from_slice::<CollectorRecord>(value.bytes))) {
                Some((created, Ok(collector))) => {
                    self.ignored.remove(&cut(id));
                    self.since.insert(id.to_owned(), created);
                    self.view.collectors.insert(id.to_owned(), collector);
                }
                unreadable => {
                    if let Some((_, Err(error))) = unreadable {
                        self.warn_of_ignored(id, &error);
                    }
                    self.since.remove(id);
                    self.view.remove_collector(id);
                }
            }
        } else if let Some(id) = key.strip_prefix("drained/") {
            match value {
                Some(_) => self.view.drained.insert(id.to_owned()),
                None => self.view.drained.remove(id),
            };
        } else if key == "planner" {
            self.planner = value.map(|value| Planner { lease: value.lease, created: value.created });
        } else if key == "placement" {
            // If it was deleted or is unreadable, the last one is still in effect for everybody.
            self.placed = match value.map(|value| (value.modified, serde_json::from_slice(value.bytes))) {
                Some((at, Ok(placement))) => {
                    self.view.replace_placement(placement);
                    PlacementKeyState::At(at)
                }
                Some((_, Err(error))) => {
                    tracing::warn!(
                        "the placement in etcd is ignored, version {} stays: {error}",
                        self.view.placement.version
                    );
                    PlacementKeyState::Unreadable
                }
                None => PlacementKeyState::Not,
            };
        }
    }

    /// Warns once about each of the first [`NAMED`] ids, and once about all others together.
    fn warn_of_ignored(&mut self, id: &str, error: &serde_json::Error) {
        if self.ignored.len() > NAMED || !self.ignored.insert(cut(id)) {
            return;
        }
        match self.ignored.len() <= NAMED {
            true => {
                let (id, error) = (cut(id), cut(&error.to_string()));
                tracing::warn!("the collector {id:?} in etcd is ignored: {error}");
            }
            false => tracing::warn!("more than {NAMED} collectors in etcd are ignored: others are not named"),
        }
    }

    /// The placement to write, and the revision of the one it replaces; 0 = none.
    pub(super) fn next_placement(&self) -> Option<(ClusterPlacement, i64)> {
        let mut next = self.view.next();
        match self.placed {
            PlacementKeyState::Unreadable => None,
            PlacementKeyState::At(at) => {
                let before = &self.view.placement;
                let rests =
                    || moment::now() < before.since.saturating_add(REST) && is_for_load(before, &next);
                (next != *before && !rests()).then_some((next, at))
            }
            PlacementKeyState::Not if next.keys.is_empty() => None,
            PlacementKeyState::Not => {
                // Above all versions there ever were, because each was written after the revision it was derived from.
                next.version = next.version.max(self.revision.unsigned_abs() + 1);
                Some((next, 0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &str, modified: i64) -> Option<EtcdValue<'_>> {
        Some(EtcdValue { bytes: bytes.as_bytes(), created: 3, modified, lease: 7 })
    }

    const COLLECTOR: &str = r#"{"address":"10.0.0.1:40050","device":"soft","free_memory":1,"copies":1,"generation":1,"later":[]}"#;

    #[test]
    fn a_placement_is_planned_from_what_etcd_says() {
        let mut cluster = EtcdCluster { revision: 41, ..EtcdCluster::default() };
        assert_eq!(cluster.next_placement(), None);
        cluster.apply_key("collectors/a", value(COLLECTOR, 40));
        cluster.apply_key("collectors/b", value("{}", 41));
        cluster.apply_key("planner", value("a", 41));
        assert_eq!(cluster.view.collectors.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(cluster.planner, Some(Planner { lease: 7, created: 3 }));
        let (first, replaces) = cluster.next_placement().unwrap();
        assert_eq!((first.version, replaces, first.buckets_of_copy(0, "a").contains_all()), (42, 0, true));
        let written = serde_json::to_string(&first).unwrap();
        cluster.apply_key("placement", value(&written, 42));
        assert_eq!(cluster.next_placement(), None);
        cluster.apply_key("collectors/b", value(COLLECTOR, 43));
        assert_eq!(cluster.next_placement().map(|(next, replaces)| (next.version, replaces)), Some((43, 42)));
        // A drained collector is as good as gone.
        cluster.apply_key("drained/b", value("", 44));
        assert_eq!(cluster.next_placement(), None);
        cluster.apply_key("drained/b", None);
        cluster.apply_key("collectors/b", None);
        assert_eq!(cluster.next_placement(), None);
        cluster.apply_key("planner", None);
        assert_eq!(cluster.planner, None);
    }

    #[test]
    fn any_number_of_unreadable_records_is_a_few_lines_of_log() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let writer = std::sync::Arc::new(log.reopen().unwrap());
        // With one subscriber, tracing caches what the first thread to reach a line says; threads of other tests have none.
        let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        let mut cluster = EtcdCluster::default();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 {
                for n in 0..20_000 {
                    cluster.apply_key(&format!("collectors/c{n}"), value("garbage", n));
                }
                cluster.apply_key(&format!("collectors/{}", "x".repeat(100_000)), value("garbage", 1));
            }
        });
        let log = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(log.lines().count(), NAMED + 1, "{log}");
        assert!(log.contains("the collector \"c9\" in etcd is ignored: expected value"), "{log}");
        assert!(
            log.ends_with("more than 10 collectors in etcd are ignored: others are not named\n"),
            "{log}"
        );
        assert!(log.len() < 4000 && cluster.view.collectors.is_empty());
    }

    #[test]
    fn equal_load_alone_is_no_reason_for_a_placement_soon_after_another() {
        let mut cluster = EtcdCluster { revision: 50, ..EtcdCluster::default() };
        cluster.apply_key("collectors/a", value(COLLECTOR, 1));
        cluster.apply_key("collectors/b", value(COLLECTOR, 1));
        let placed = |cluster: &mut EtcdCluster, since: u64| {
            let text = format!(r#"{{"version":9,"since":{since},"keys":[{{"a":"0-9","b":"10-255"}}]}}"#);
            cluster.apply_key("placement", value(&text, 9));
        };
        placed(&mut cluster, moment::now());
        assert_eq!(cluster.next_placement(), None);
        // Collectors that come or go do not wait.
        for (key, there) in [("collectors/c", value(COLLECTOR, 60)), ("drained/b", value("", 61))] {
            let mut other = cluster.clone();
            other.apply_key(key, there);
            assert!(other.next_placement().is_some(), "{key}");
        }
        let mut alone = cluster.clone();
        alone.apply_key("collectors/b", None);
        assert!(alone.next_placement().is_some());
        placed(&mut cluster, moment::now() - REST);
        let held = cluster.next_placement().map(|(next, _)| next.buckets_of_copy(0, "a").iter().count());
        assert_eq!(held, Some(128));
    }

    #[test]
    fn a_placement_that_was_lost_or_spoilt_is_still_what_everybody_goes_by() {
        let mut cluster = EtcdCluster { revision: 50, ..EtcdCluster::default() };
        cluster.apply_key("collectors/a", value(COLLECTOR, 1));
        cluster.apply_key("placement", value(r#"{"version":9,"keys":[{"a":"0-255"}]}"#, 9));
        for (spoilt, replaces) in [(value("{}", 50), None), (None, Some(0))] {
            cluster.apply_key("placement", spoilt);
            assert_eq!(cluster.view.placement.version, 9);
            assert_eq!(cluster.next_placement().map(|(_, replaces)| replaces), replaces);
        }
        // It gets a version that no placement has had.
        assert_eq!(cluster.next_placement().map(|(next, _)| next.version), Some(51));
    }
}
