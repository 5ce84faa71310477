//! Which collector has what when several share stores: a placement as data, and the [`plan`](plan::next) of the next
//! one.
//!
//! Keys are placed by [bucket](crate::buckets), with an ordered list of collectors for each: copy `n` of a key is at
//! the `n`-th. Lists of append stores are placed by range, each at one collector. A sketch, which is whole at one
//! collector, counts as one list.

mod colours;
mod layer;
pub mod plan;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::buckets::{Buckets, Copies, MAX_COPIES};
use crate::layout::key_increment::{COLOURS, CountingRole};
use crate::list_range::ListRange;

pub use colours::{Colours, usual_colour};

/// Which collector has what. The default, with version 0, places nothing.
///
/// As JSON: `{"version": 2, "keys": [{"a": "0-127", "b": "128-255"}], "lists": {"a": [{"store": "events", "first": 0,
/// "count": 4}]}}`. Readers ignore fields that they do not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct ClusterPlacement {
    /// Increases with every change.
    pub version: u64,
    /// When it was written, in milliseconds since 1970, by the clock of whoever wrote it; 0 = long ago.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: u64,
    /// For each copy of a key, the buckets of each collector by its id. Every bucket appears once per copy, at a
    /// different collector in each.
    pub keys: Vec<BTreeMap<String, Buckets>>,
    /// The lists of each collector by its id; no list appears twice.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lists: BTreeMap<String, Vec<ListRange>>,
    /// The colours of collectors, where keys have several copies.
    #[serde(skip_serializing_if = "Colours::is_empty")]
    pub colours: Colours,
}

const _: () = assert!(COLOURS <= MAX_COPIES, "lanes are copies");

/// A placement as read, not yet checked.
#[derive(Deserialize)]
struct Unchecked {
    version: u64,
    #[serde(default)]
    since: u64,
    keys: Vec<BTreeMap<String, Buckets>>,
    #[serde(default)]
    lists: BTreeMap<String, Vec<ListRange>>,
    #[serde(default)]
    colours: Colours,
}

/// How a placement contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the placement cannot be used: {0}")]
pub struct PlacementError(String);

impl TryFrom<Unchecked> for ClusterPlacement {
    type Error = PlacementError;

    fn try_from(read: Unchecked) -> Result<ClusterPlacement, PlacementError> {
        let placement = ClusterPlacement::new(read.version, read.keys, read.lists)?;
        Ok(ClusterPlacement { since: read.since, colours: read.colours, ..placement })
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ClusterPlacement {
    /// Makes a placement, after checking its parts.
    ///
    /// # Errors
    /// A bucket or list is at two collectors, two copies of a bucket are at one, or a copy is at none.
    pub fn new(
        version: u64,
        mut keys: Vec<BTreeMap<String, Buckets>>,
        lists: BTreeMap<String, Vec<ListRange>>,
    ) -> Result<ClusterPlacement, PlacementError> {
        keys.iter_mut().for_each(|of_copy| of_copy.retain(|_, buckets| *buckets != Buckets::NONE));
        let mut of_collectors: BTreeMap<&str, Buckets> = BTreeMap::new();
        for (copy, of_copy) in keys.iter().enumerate() {
            let mut placed = Buckets::NONE;
            for (id, buckets) in of_copy {
                if let Some(bucket) = placed.intersection(*buckets).lowest_bucket() {
                    return Err(PlacementError(format!(
                        "copy {copy} of bucket {bucket} is at two collectors"
                    )));
                }
                placed = placed.union(*buckets);
                let of_collector = of_collectors.entry(id).or_insert(Buckets::NONE);
                if let Some(bucket) = of_collector.intersection(*buckets).lowest_bucket() {
                    return Err(PlacementError(format!("two copies of bucket {bucket} are at {id}")));
                }
                *of_collector = of_collector.union(*buckets);
            }
            if let Some(bucket) = placed.complement().lowest_bucket() {
                return Err(PlacementError(format!("copy {copy} of bucket {bucket} is at no collector")));
            }
        }
        let ranges: Vec<&ListRange> = lists.values().flatten().collect();
        for (n, range) in ranges.iter().enumerate() {
            let ListRange { store, first, count } = range;
            if *count == 0 || range.end_of_lists() > 1 << 32 {
                return Err(PlacementError(format!(
                    "{count} lists of store {store:?} from {first} are not a range"
                )));
            }
            if let Some(other) = ranges[..n].iter().find(|other| other.overlaps(range)) {
                let list = first.max(&other.first);
                return Err(PlacementError(format!("list {list} of store {store:?} is placed twice")));
            }
        }
        Ok(ClusterPlacement { version, keys, lists, ..ClusterPlacement::default() })
    }

    /// The collectors of a bucket: copy `n` is at the `n`-th.
    pub fn of_bucket(&self, bucket: u8) -> impl Iterator<Item = &str> {
        self.keys.iter().filter_map(move |of_copy| {
            of_copy.iter().find(|(_, buckets)| buckets.contains(bucket)).map(|(id, _)| id.as_str())
        })
    }

    /// The buckets of which a collector holds this copy.
    pub fn buckets_of_copy(&self, copy: usize, id: &str) -> Buckets {
        self.keys.get(copy).and_then(|of_copy| of_copy.get(id)).copied().unwrap_or(Buckets::NONE)
    }

    /// A collector's part of a store whose keys are at `replicas` collectors, or at all if there are fewer.
    pub fn collector_copies(&self, replicas: usize, id: &str) -> Copies {
        (0..replicas).map(|copy| self.buckets_of_copy(copy, id)).collect()
    }

    /// A collector's part of a counter store: its buckets by [lane](crate::layout::key_increment), if two collectors are
    /// to count each key. The lane is that of the other one's colour; while there is no other one, or none of another
    /// colour, the first counts in the lane of its own.
    pub fn collector_lanes(&self, replicas: usize, id: &str) -> Copies {
        if replicas < 2 {
            return self.collector_copies(replicas, id);
        }
        let mut lanes = [Buckets::NONE; COLOURS];
        for copy in 0..2 {
            for bucket in self.buckets_of_copy(copy, id).iter() {
                if let Some(lane) = self.counting_lane(copy, bucket) {
                    lanes[lane] = lanes[lane].union(Buckets::from_range(bucket, bucket));
                }
            }
        }
        lanes.into_iter().collect()
    }

    /// The lane in which a bucket's first (0) or second (1) collector counts.
    fn counting_lane(&self, copy: usize, bucket: u8) -> Option<usize> {
        let colour = |copy| self.colour_in_bucket(self.of_bucket(bucket).nth(copy)?, bucket);
        match (colour(copy), colour(1 - copy)) {
            (own, Some(other)) if own != Some(other) => Some(other),
            (own, _) => own.filter(|_| copy == 0),
        }
    }

    /// The colour of a collector in a bucket; `None` if it never had the bucket. The [usual one](usual_colour) where the
    /// placement records none.
    fn colour_in_bucket(&self, id: &str, bucket: u8) -> Option<usize> {
        let copy = || self.of_bucket(bucket).take(2).position(|holder| holder == id);
        self.colours.colour_in_bucket(id, bucket).or_else(|| copy().map(usual_colour))
    }

    /// How a collector counts a bucket's keys, or counted them; in no lane if it never had the bucket.
    pub fn counting_role(&self, id: &str, bucket: u8) -> CountingRole {
        let Some(colour) = self.colour_in_bucket(id, bucket) else { return CountingRole::default() };
        let now = (0..2).find(|copy| self.buckets_of_copy(*copy, id).contains(bucket));
        let mut lanes = [false; COLOURS];
        self.colours.of_others(id, bucket).for_each(|lane| lanes[lane] = true);
        lanes[colour] = self.colours.was_alone(id, bucket);
        if let Some(lane) = now.and_then(|copy| self.counting_lane(copy, bucket)) {
            lanes[lane] = true;
        }
        CountingRole { colour, lanes }
    }

    /// The collector of a list.
    pub fn list_collector(&self, store: &str, list: u32) -> Option<&str> {
        let has = |range: &ListRange| range.store == store && range.contains(list);
        self.lists.iter().find(|(_, ranges)| ranges.iter().any(has)).map(|(id, _)| id.as_str())
    }

    /// Copies of buckets at another collector than in `before`, without those that `before` did not place.
    pub fn moved_since(&self, before: &ClusterPlacement) -> usize {
        let of_copy = |(copy, old): (usize, &BTreeMap<String, Buckets>)| -> usize {
            let gone = |(id, had): (&String, &Buckets)| {
                had.intersection(self.buckets_of_copy(copy, id).complement()).iter().count()
            };
            old.iter().map(gone).sum()
        };
        before.keys.iter().take(self.keys.len()).enumerate().map(of_copy).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"version":2,"keys":[{"a":"0-127","b":"128-255"},{"a":"128-255","b":"0-127"}],"lists":{"b":[{"store":"events","first":0,"count":4}]}}"#;

    #[test]
    fn a_placement_is_read_as_it_is_written() {
        let placement: ClusterPlacement = serde_json::from_str(JSON).unwrap();
        assert_eq!(serde_json::to_string(&placement).unwrap(), JSON);
        assert_eq!(placement.of_bucket(127).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(placement.of_bucket(128).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(placement.buckets_of_copy(1, "a").to_string(), "128-255");
        let of_a = [1, 2, 3].map(|replicas| placement.collector_copies(replicas, "a").to_string());
        assert_eq!(of_a, ["0-127", "0-127; copy 1 of 128-255", "0-127; copy 1 of 128-255"]);
        let lanes = [1, 2].map(|replicas| placement.collector_lanes(replicas, "a").to_string());
        assert_eq!(lanes, ["0-127", "0-127; copy 1 of 128-255"]);
        assert_eq!(
            (placement.buckets_of_copy(2, "a"), placement.buckets_of_copy(0, "c")),
            (Buckets::NONE, Buckets::NONE)
        );
        let of_list = |store, list| placement.list_collector(store, list);
        assert_eq!(
            (of_list("events", 3), of_list("events", 4), of_list("other", 0)),
            (Some("b"), None, None)
        );
        let coloured = JSON.replace(
            r#""lists""#,
            r#""colours":{"of":[{"a":"0"},{"a":"1","b":"0"},{},{"b":"1"}],"alone":{"a":"0"}},"lists""#,
        );
        let coloured: ClusterPlacement = serde_json::from_str(&coloured).unwrap();
        assert_eq!(
            serde_json::from_str::<ClusterPlacement>(&serde_json::to_string(&coloured).unwrap()).unwrap(),
            coloured
        );
        let role = |colour, lanes: [u8; 4]| CountingRole { colour, lanes: lanes.map(|lane| lane == 1) };
        assert_eq!(
            [0, 1, 2].map(|bucket| coloured.counting_role("a", bucket)),
            [role(0, [1, 1, 0, 0]), role(1, [0, 0, 0, 1]), role(1, [1, 0, 0, 0])]
        );
        assert_eq!(
            (coloured.counting_role("b", 1), coloured.counting_role("c", 1)),
            (role(3, [0, 1, 0, 0]), CountingRole::default())
        );
        assert_eq!(
            coloured.collector_lanes(2, "a").to_string(),
            "2-127; copy 1 of 0,128-255; copy 2 of none; copy 3 of 1"
        );
        // A later version may add fields.
        let more = JSON.replacen('{', r#"{"later":"2026-01-01","#, 1);
        assert_eq!(serde_json::from_str::<ClusterPlacement>(&more).unwrap(), placement);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let list = |first: u32, count: u32| format!(r#"{{"store":"s","first":{first},"count":{count}}}"#);
        for (keys, lists, expected) in [
            (r#"[{"a":"0-254"}]"#, String::new(), "copy 0 of bucket 255 is at no collector"),
            (r#"[{"a":"0-255","b":"7"}]"#, String::new(), "copy 0 of bucket 7 is at two collectors"),
            (
                r#"[{"a":"0-255"},{"a":"9","b":"0-8,10-255"}]"#,
                String::new(),
                "two copies of bucket 9 are at a",
            ),
            ("[]", format!("{},{}", list(0, 4), list(3, 2)), r#"list 3 of store "s" is placed twice"#),
            ("[]", list(0, 0), r#"0 lists of store "s" from 0 are not a range"#),
            ("[]", list(9, u32::MAX), r#"4294967295 lists of store "s" from 9 are not a range"#),
        ] {
            let json = format!(r#"{{"version":1,"keys":{keys},"lists":{{"a":[{lists}]}}}}"#);
            let error = serde_json::from_str::<ClusterPlacement>(&json).unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
        for (colours, expected) in [
            (r#"{"a":"0-9"},{"a":"9"}"#, "a has two colours in bucket 9"),
            ("{},{},{},{},{}", "5 colours, and there are 4"),
        ] {
            let json = format!(r#"{{"version":1,"keys":[],"colours":{{"of":[{colours}]}}}}"#);
            let error = serde_json::from_str::<ClusterPlacement>(&json).unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn what_moved_is_counted_by_copy() {
        let before: ClusterPlacement = serde_json::from_str(JSON).unwrap();
        let swapped =
            ClusterPlacement { keys: before.keys.iter().rev().cloned().collect(), ..before.clone() };
        let one = ClusterPlacement { keys: before.keys[..1].to_vec(), ..before.clone() };
        assert_eq!((swapped.moved_since(&before), before.moved_since(&before)), (512, 0));
        assert_eq!((one.moved_since(&before), before.moved_since(&one)), (0, 0));
        assert_eq!(before.moved_since(&ClusterPlacement::default()), 0);
    }
}
