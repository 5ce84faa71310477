//! What is known of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use dta_proto::buckets::Buckets;
use dta_proto::list_range::ListRange;
use dta_proto::placement::plan::Member;
use dta_proto::placement::{Placement, PlacementError, plan};
use serde::{Deserialize, Serialize};

/// A collector, as it says itself. In etcd this is JSON; fields that a reader does not know are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collector {
    /// Its gRPC address.
    pub address: String,
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
    /// The view of a configuration that says which buckets and lists each collector has, by its address. Nothing is
    /// known of the collectors beyond that.
    ///
    /// # Errors
    /// A bucket or list is at two of them, or a bucket at none.
    pub fn configured(
        parts: impl IntoIterator<Item = (String, Buckets, Vec<ListRange>)>,
    ) -> Result<View, PlacementError> {
        let (mut keys, mut lists) = (BTreeMap::new(), BTreeMap::new());
        for (address, buckets, ranges) in parts {
            if !ranges.is_empty() {
                lists.insert(address.clone(), ranges);
            }
            keys.insert(address, buckets);
        }
        Ok(View { placement: Placement::new(1, vec![keys], lists)?, ..View::default() })
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

    #[test]
    fn a_configuration_is_a_placement_that_places_everything_once() {
        let part = |address: &str, buckets: &str, lists: &[(u32, u32)]| {
            let range = |(first, count): &(u32, u32)| ListRange {
                store: "events".into(),
                first: *first,
                count: *count,
            };
            (address.to_owned(), buckets.parse().unwrap(), lists.iter().map(range).collect())
        };
        let view = View::configured([part("a:1", "0-127", &[(0, 4)]), part("b:1", "128-255", &[])]).unwrap();
        assert_eq!(view.placement.of_bucket(200).collect::<Vec<_>>(), ["b:1"]);
        assert_eq!(view.placement.of_list("events", 3), Some("a:1"));
        for (twice, told) in [
            (part("b:1", "127-255", &[]), "copy 0 of bucket 127 is at two collectors"),
            (part("b:1", "129-255", &[]), "copy 0 of bucket 128 is at no collector"),
            (part("b:1", "128-255", &[(3, 1)]), "list 3 of store \"events\" is placed twice"),
        ] {
            let error = View::configured([part("a:1", "0-127", &[(0, 4)]), twice]).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn the_next_placement_follows_from_who_is_there() {
        let collector = |copies| Collector {
            address: "10.0.0.1:40050".into(),
            device: "soft".into(),
            zone: String::new(),
            free_memory: 1 << 30,
            copies,
            lists: BTreeMap::new(),
            generation: 1,
        };
        let mut view = View::default();
        assert_eq!(view.next(), view.placement);
        view.collectors = ["a", "b", "c"].map(|id| (id.to_owned(), collector(1))).into();
        view.placement = view.next();
        assert_eq!((view.placement.version, view.placement.keys.len()), (1, 1));
        // One store with two copies is enough.
        view.collectors.insert("c".into(), collector(2));
        view.drained.insert("b".into());
        let next = view.next();
        assert_eq!((next.version, next.keys.len(), next.buckets(0, "b")), (2, 2, Buckets::NONE));
    }
}
