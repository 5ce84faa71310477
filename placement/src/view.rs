//! What is known of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use dta_proto::placement::plan::Member;
use dta_proto::placement::{Placement, plan};
use serde::{Deserialize, Serialize};

/// A collector, as it says itself. In etcd this is JSON; fields that a reader does not know are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collector {
    /// Its gRPC address.
    pub address: String,
    /// Where its metrics are scraped, as `HOST:PORT`; empty = nowhere that others reach.
    #[serde(default)]
    pub metrics: String,
    /// Its NIC, as its configuration names it.
    pub device: String,
    /// What fails as a whole with it, such as a rack; empty = nothing else.
    #[serde(default)]
    pub zone: String,
    /// Bytes of memory that it has for stores: its part of the load.
    pub free_memory: u64,
    /// Copies of each key, at different collectors, that its stores are to have. The highest number of all collectors
    /// decides.
    pub copies: u8,
    /// Its stores that are placed by lists, and how many lists each has; a sketch has one.
    #[serde(default)]
    pub lists: BTreeMap<String, u32>,
    /// Increases with each of its lives: a later life replaces an earlier one of the same id.
    pub generation: u64,
}

/// Who is there, and who has what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The collectors that are there, by id.
    pub collectors: BTreeMap<String, Collector>,
    /// The ids of those that are to have nothing.
    pub drained: BTreeSet<String>,
    /// Who has what. It may name collectors that are no longer there.
    pub placement: Placement,
}

impl View {
    /// The gRPC address of a collector that is there.
    pub fn address(&self, id: &str) -> Option<&str> {
        self.collectors.get(id).map(|collector| collector.address.as_str())
    }

    /// Whether all who have something by a placement are still there, so that those who go by it can wait before they
    /// take another one.
    pub fn can_wait(&self, placement: &Placement) -> bool {
        let of_keys = placement.keys.iter().flat_map(BTreeMap::keys);
        placement.version != 0
            && of_keys.chain(placement.lists.keys()).all(|id| self.collectors.contains_key(id))
    }

    /// What follows from who is there: [`plan::next`].
    pub fn next(&self) -> Placement {
        let member = |(id, collector): (&String, &Collector)| Member {
            id: id.clone(),
            zone: collector.zone.clone(),
            weight: collector.free_memory,
            drained: self.drained.contains(id),
            lists: collector.lists.clone(),
        };
        let members: Vec<Member> = self.collectors.iter().map(member).collect();
        let copies = self.collectors.values().map(|collector| collector.copies).max().unwrap_or(1).max(1);
        plan::next(&self.placement, &members, copies.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::buckets::Buckets;

    impl Collector {
        fn of_test(copies: u8) -> Collector {
            Collector {
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
        pub(crate) fn of_test(ids: &[&str], placement: Placement) -> View {
            let collectors = ids.iter().map(|id| ((*id).to_owned(), Collector::of_test(1))).collect();
            View { collectors, placement, ..View::default() }
        }
    }

    #[test]
    fn the_next_placement_follows_from_who_is_there() {
        let mut view = View::default();
        assert_eq!(view.next(), view.placement);
        view.collectors = ["a", "b", "c"].map(|id| (id.to_owned(), Collector::of_test(1))).into();
        view.placement = view.next();
        assert_eq!((view.placement.version, view.placement.keys.len()), (1, 1));
        // One store with two copies is enough.
        view.collectors.insert("c".into(), Collector::of_test(2));
        view.drained.insert("b".into());
        let next = view.next();
        assert_eq!((next.version, next.keys.len(), next.buckets(0, "b")), (2, 2, Buckets::NONE));
    }
}
