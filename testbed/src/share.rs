//! What each of several collectors has: keys by their buckets, lists by ranges, and a sketch at the first, whole. A key may
//! be at two of them.

use std::ops::Range;

use dta_proto::buckets;
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::store::{StoreKind, StoreSpec};

/// The most collectors that a translator serves.
pub const MOST: usize = 16;

/// The part to which a place belongs, if `of` consecutive places are divided among `parts` parts as evenly as
/// possible.
pub fn part_of_place(place: usize, of: usize, parts: usize) -> usize {
    place * parts / of.max(1)
}

/// The places of a part; see [`part_of_place`].
fn places_of_part(part: usize, of: usize, parts: usize) -> Range<usize> {
    (part * of).div_ceil(parts)..((part + 1) * of).div_ceil(parts)
}

/// How collectors, numbered from 0, share everything. One alone has it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    collectors: usize,
    /// How many of them have each key.
    replicas: usize,
}

impl Share {
    pub const ALONE: Share = Share { collectors: 1, replicas: 1 };

    /// `collectors` of them, 1 to [`MOST`], each key at one.
    pub fn with_collectors(collectors: usize) -> Share {
        Share { collectors: collectors.clamp(1, MOST), replicas: 1 }
    }

    /// The same with each key at this many of them: copies of values are spread, and everything else is written to each.
    pub fn with_replicas(self, replicas: usize) -> Share {
        Share { replicas, ..self }
    }

    pub fn collectors(self) -> usize {
        self.collectors
    }

    /// How many of them have each key.
    pub fn replicas(self) -> usize {
        self.replicas
    }

    /// The collector that has a key; the first, if there are several.
    pub fn collector_of_key(self, key: &Key) -> usize {
        part_of_place(buckets::bucket_of_key(key).into(), 256, self.collectors)
    }

    /// The number of a slot of the `replica`-th collector of a key, counted across all collectors.
    fn global_slot(self, key: &Key, replica: usize, slot: u64, slots: u64) -> u64 {
        ((self.collector_of_key(key) + replica) % self.collectors) as u64 * slots + slot
    }

    /// The collector that has a list of a store with `lists` lists.
    pub fn collector_of_list(self, list: u32, lists: u32) -> usize {
        part_of_place(list as usize, lists as usize, self.collectors)
    }

    /// The slots of a value by [`hash::key_slots`], numbered across all collectors: values at different collectors
    /// never share a slot.
    pub fn slots_of_value(self, key: &Key, redundancy: u8, slots: u64) -> Vec<u64> {
        let own = hash::key_slots(key, redundancy, slots);
        let slots =
            own.iter().enumerate().map(|(n, slot)| self.global_slot(key, n % self.replicas, *slot, slots));
        slots.collect()
    }

    /// The slots of a counter, numbered like [`Share::slots_of_value`]: those of each replica are its own.
    pub fn slots_of_counters(self, key: &Key, redundancy: u8, slots: u64) -> Vec<u64> {
        let own = hash::key_slots(key, redundancy * self.replicas as u8, slots);
        let at = |(n, slot): (usize, &u64)| self.global_slot(key, n / usize::from(redundancy), *slot, slots);
        own.iter().enumerate().map(at).collect()
    }

    /// The slots of a path, numbered like [`Share::slots_of_value`]: all at one collector, then all at the next that
    /// has the key.
    pub fn slots_of_each(self, key: &Key, redundancy: u8, slots: u64) -> Vec<u64> {
        let own = hash::key_slots(key, redundancy, slots);
        let at = |replica| own.iter().map(move |slot| self.global_slot(key, replica, *slot, slots));
        (0..self.replicas).flat_map(at).collect()
    }

    /// The stores of which a collector has any part.
    pub fn stores_at_collector(self, collector: usize, stores: &[StoreSpec]) -> Vec<&StoreSpec> {
        let has = |store: &&StoreSpec| match store.kind {
            StoreKind::Append { lists, .. } => {
                !places_of_part(collector, lists as usize, self.collectors).is_empty()
            }
            StoreKind::SketchMerge { .. } => collector == 0,
            _ => true,
        };
        stores.iter().filter(has).collect()
    }

    /// The tables of the collectors in the configuration of a translator; `addresses` are where it reaches them.
    pub fn collector_tables(self, addresses: &[String], stores: &[StoreSpec]) -> String {
        addresses
            .iter()
            .enumerate()
            .map(|(collector, address)| self.collector_table(collector, address, stores))
            .collect()
    }

    fn collector_table(self, collector: usize, address: &str, stores: &[StoreSpec]) -> String {
        let all = format!("[[translator.collector]]\naddress = \"http://{address}\"\n");
        if self == Self::ALONE {
            return all;
        }
        let (mut names, mut lists) = (Vec::new(), Vec::new());
        for store in self.stores_at_collector(collector, stores) {
            names.push(format!("\"{}\"", store.name));
            if let StoreKind::Append { lists: of, .. } = store.kind {
                let Range { start, end } = places_of_part(collector, of as usize, self.collectors);
                let count = end - start;
                lists.push(format!("{{ store = \"{}\", first = {start}, count = {count} }}", store.name));
            }
        }
        let buckets = |replica: usize| {
            let first = (collector + self.collectors - replica) % self.collectors;
            let Range { start, end } = places_of_part(first, 256, self.collectors);
            format!("\"{start}-{}\"", end - 1)
        };
        let buckets: Vec<String> = (0..self.replicas).map(buckets).collect();
        let buckets = if self.replicas == 1 { buckets.concat() } else { format!("[{}]", buckets.join(", ")) };
        format!("{all}stores = [{}]\nbuckets = {buckets}\nlists = [{}]\n", names.join(", "), lists.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dta_proto::buckets::Buckets;
    use dta_translator::config::Config;

    use super::*;
    use crate::topology::Topology;

    #[test]
    fn each_part_has_as_many_places_as_the_others_as_far_as_they_go() {
        let parts = |of| (0..10).map(|place| part_of_place(place, 10, of)).collect::<Vec<_>>();
        assert_eq!(parts(1), [0; 10]);
        assert_eq!(parts(3), [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(parts(10), (0..10).collect::<Vec<_>>());
        assert!(parts(20).into_iter().all(|part| part < 20));
        for (of, among) in [(10, 3), (256, 7), (2, 3), (1, 16)] {
            let all: Vec<_> =
                (0..among).flat_map(|n| places_of_part(n, of, among).map(move |place| (place, n))).collect();
            assert_eq!(
                all,
                (0..of).map(|place| (place, part_of_place(place, of, among))).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn each_key_list_and_sketch_is_at_one_collector_as_the_translator_is_configured() {
        let stores = Topology::load(None).unwrap().stores;
        for count in [1, 2, 3, 16] {
            let share = Share::with_collectors(count);
            let addresses: Vec<String> = (1..=count).map(|n| format!("127.0.0.1:{n}")).collect();
            let text = format!("[translator]\n{}", share.collector_tables(&addresses, &stores));
            let (config, _) = Config::parse(&text, Path::new("t.toml")).unwrap();
            config.check_values().unwrap();
            let collectors: Vec<_> = config.translator.collector.iter().collect();
            assert_eq!(collectors.len(), count);
            if count == 1 {
                assert!(collectors[0].stores.is_empty() && collectors[0].buckets.is_none());
                continue;
            }
            let mut all = Buckets::NONE;
            let mut sketches = 0;
            for (n, collector) in collectors.into_iter().enumerate() {
                let buckets = collector.buckets.unwrap();
                for bucket in buckets.buckets_of_copy(0).iter() {
                    assert_eq!(part_of_place(bucket.into(), 256, count), n);
                }
                all = all.union(buckets.buckets_of_copy(0));
                let names: Vec<_> =
                    share.stores_at_collector(n, &stores).iter().map(|store| &store.name).collect();
                assert_eq!(collector.stores.iter().collect::<Vec<_>>(), names);
                sketches += usize::from(collector.stores.contains(&"packets".to_owned()));
                for list in 0..2 {
                    let is_here = collector.lists.iter().any(|range| range.contains(list));
                    assert_eq!(
                        is_here,
                        share.collector_of_list(list, 2) == n,
                        "list {list}, collector {n} of {count}"
                    );
                }
            }
            assert!(all.contains_all() && sketches == 1);
        }
    }

    #[test]
    fn keys_of_two_collectors_never_have_the_same_slot() {
        let share = Share::with_collectors(2);
        let key = |n: u8| Key([n; 16]);
        let collectors: Vec<usize> = (0..50).map(|n| share.collector_of_key(&key(n))).collect();
        assert!(collectors.contains(&0) && collectors.contains(&1));
        for n in 0..50 {
            let slots = share.slots_of_value(&key(n), 2, 8);
            assert!(slots.iter().all(|slot| *slot / 8 == collectors[usize::from(n)] as u64));
            assert_eq!(Share::ALONE.slots_of_value(&key(n), 2, 8), hash::key_slots(&key(n), 2, 8)[..]);
        }
    }

    #[test]
    fn each_key_is_at_as_many_collectors_as_the_translator_is_configured_to_write_it_to() {
        let stores = Topology::load(None).unwrap().stores;
        let share = Share::with_collectors(3).with_replicas(2);
        let addresses: Vec<String> = (1..=3).map(|n| format!("127.0.0.1:{n}")).collect();
        let text = format!("[translator]\n{}", share.collector_tables(&addresses, &stores));
        let (config, _) = Config::parse(&text, Path::new("t.toml")).unwrap();
        config.check_values().unwrap();
        let copies: Vec<_> = config.translator.collector.iter().map(|c| c.buckets.unwrap()).collect();
        for n in 0..50 {
            let key = Key([n; 16]);
            let at = |copy: usize| {
                copies
                    .iter()
                    .position(|copies| copies.buckets_of_copy(copy).contains(buckets::bucket_of_key(&key)))
                    .unwrap() as u64
            };
            let own = hash::key_slots(&key, 3, 8);
            let slots = [at(0) * 8 + own[0], at(1) * 8 + own[1], at(0) * 8 + own[2]];
            assert_eq!(
                (at(0) as usize, share.slots_of_value(&key, 3, 8)),
                (share.collector_of_key(&key), slots.to_vec())
            );
            let each = [0, 1].map(|copy| own.iter().map(move |slot| (copy, *slot))).into_iter().flatten();
            let each: Vec<u64> = each.map(|(copy, slot)| at(copy) * 8 + slot).collect();
            assert_eq!(share.slots_of_each(&key, 3, 8), each);
            let own = hash::key_slots(&key, 4, 8);
            let counters = [at(0) * 8 + own[0], at(0) * 8 + own[1], at(1) * 8 + own[2], at(1) * 8 + own[3]];
            assert_eq!(share.slots_of_counters(&key, 2, 8), counters);
        }
    }
}
