//! Where a switch keeps what it gathers: numbers of stores, and places in the arrays that lists, rows and
//! columns share. They are assigned once and kept beside the switch: a store keeps its places when others
//! come and go.
//!
//! A list has a place at each collector that had it, since it may come back and its sequence there is recorded nowhere else.

use std::collections::BTreeMap;
use std::ops::Range;

use dta_proto::program::{DataPlaneEntry, Lists, Program};
use dta_proto::store::StoreKind;
use serde::{Deserialize, Serialize};

use super::translator::{COLUMN_STATES, LIST_STATES, ROW_STATES, STORES};
use crate::TargetError;

/// Total places in a switch, for all stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceCapacity {
    pub lists: u32,
    pub rows: u32,
    /// For columns of sketches, over all epochs.
    pub columns: u32,
}

impl PlaceCapacity {
    /// Those of the program for bmv2.
    pub const ALL: PlaceCapacity =
        PlaceCapacity { lists: LIST_STATES, rows: ROW_STATES, columns: COLUMN_STATES };
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePlaces {
    /// The number of each store, by id.
    numbers: BTreeMap<u16, PlaceRange>,
    /// Rows of the cache of each postcard store.
    rows: BTreeMap<u16, PlaceRange>,
    /// Columns of each sketch, over all epochs.
    columns: BTreeMap<u16, PlaceRange>,
    /// Places of ranges of lists, by collector.
    #[serde(with = "pairs")]
    lists: BTreeMap<ListsAt, PlaceRange>,
    /// The first place that no list has had.
    #[serde(default)]
    unused: u32,
}

/// The first of some lists at a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ListsAt {
    store: u16,
    collector: u8,
    first: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRange {
    pub first: u32,
    pub count: u32,
}

/// Serializes maps whose keys are not strings as lists.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::{ListsAt, PlaceRange};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<ListsAt, PlaceRange>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<ListsAt, PlaceRange>, D::Error> {
        Ok(Vec::deserialize(from)?.into_iter().collect())
    }
}

/// Assigns a key `count` consecutive places of `of`, at a multiple of `count` if `aligned`. An existing
/// assignment of the same size is kept.
fn take<K: Ord + Copy>(
    map: &mut BTreeMap<K, PlaceRange>,
    key: K,
    count: u32,
    of: u32,
    aligned: bool,
    what: impl Fn() -> String,
) -> Result<(), TargetError> {
    if map.get(&key).is_some_and(|place| place.count == count) {
        return Ok(());
    }
    map.remove(&key);
    let mut taken: Vec<PlaceRange> = map.values().copied().collect();
    taken.sort_by_key(|place| place.first);
    let up = |first: u32| if aligned { first.next_multiple_of(count.max(1)) } else { first };
    let mut first = 0;
    for place in taken {
        if u64::from(first) + u64::from(count) <= u64::from(place.first) {
            break;
        }
        first = up(first.max(place.first + place.count));
    }
    if u64::from(first) + u64::from(count) > u64::from(of) {
        return Err(TargetError::Refused(format!(
            "the switch has no room for {}: it needs {count} consecutive places of {of}, and no such range is free",
            what()
        )));
    }
    map.insert(key, PlaceRange { first, count });
    Ok(())
}

impl StatePlaces {
    /// The places for a program: unchanged for existing owners, new for new ones. Each postcard store has
    /// `cache_rows` rows, a power of two. Lists that are elsewhere now keep theirs as long as there is room.
    pub fn assign_places(
        &self,
        program: &Program,
        cache_rows: u32,
        room: PlaceCapacity,
    ) -> Result<StatePlaces, TargetError> {
        self.try_assign(program, cache_rows, room).or_else(|_| {
            let mut places = self.clone();
            places.forget_lists_elsewhere(program, |_, _| true);
            places.try_assign(program, cache_rows, room)
        })
    }

    fn try_assign(
        &self,
        program: &Program,
        cache_rows: u32,
        room: PlaceCapacity,
    ) -> Result<StatePlaces, TargetError> {
        let mut places = self.clone();
        let is_there = |id: &u16| program.first_store_part(*id).is_some();
        places.numbers.retain(|id, _| is_there(id));
        places.rows.retain(|id, _| is_there(id));
        places.columns.retain(|id, _| is_there(id));
        places.lists.retain(|at, _| program.store_part(at.store, at.collector).is_some());
        for entry in program.entries() {
            match entry {
                DataPlaneEntry::Store(store) => {
                    let (id, name) = (store.spec.id, &store.spec.name);
                    take(&mut places.numbers, id, 1, STORES, false, || format!("store {name}"))?;
                    match store.spec.kind {
                        StoreKind::Postcarding { .. } => {
                            let what = || format!("the rows of store {name}");
                            take(&mut places.rows, id, cache_rows, room.rows, true, what)?;
                        }
                        StoreKind::SketchMerge { columns, epochs, .. } => {
                            let count = columns.saturating_mul(epochs);
                            let what = || format!("the columns of store {name}");
                            take(&mut places.columns, id, count, room.columns, true, what)?;
                        }
                        _ => {}
                    }
                }
                DataPlaneEntry::Lists(lists) => {
                    let what = || format!("{} lists of store {}", lists.count, lists.store);
                    for Range { start, end } in places.without_place(lists) {
                        let at = ListsAt { store: lists.store, collector: lists.collector, first: start };
                        take(&mut places.lists, at, end - start, room.lists, false, what)?;
                        let place = places.lists[&at];
                        places.unused = places.unused.max(place.first + place.count);
                    }
                }
                _ => {}
            }
        }
        Ok(places)
    }

    pub fn store_number(&self, store: u16) -> u32 {
        self.numbers.get(&store).map_or(0, |place| place.first)
    }

    pub fn store_by_number(&self, number: u32) -> Option<u16> {
        self.numbers.iter().find(|(_, place)| place.first == number).map(|(id, _)| *id)
    }

    /// The rows of a postcard store's cache.
    pub fn row_range(&self, store: u16) -> Option<PlaceRange> {
        self.rows.get(&store).copied()
    }

    /// The columns of a sketch.
    pub fn column_range(&self, store: u16) -> Option<PlaceRange> {
        self.columns.get(&store).copied()
    }

    /// Whether some list has had a place.
    pub fn has_been_used(&self, place: u32) -> bool {
        place < self.unused
    }

    /// Where the state of lists is: each part of them, and the place of its first list.
    pub fn list_places(&self, lists: &Lists) -> Vec<(Range<u32>, u32)> {
        let mut all: Vec<(Range<u32>, u32)> = Vec::new();
        for (at, place) in self.placed_parts(lists) {
            match all.last_mut() {
                Some((part, first)) if part.end == at.first && *first + part.len() as u32 == place.first => {
                    part.end += place.count;
                }
                _ => all.push((at.first..at.first + place.count, place.first)),
            }
        }
        all
    }

    fn placed_parts(&self, lists: &Lists) -> impl Iterator<Item = (ListsAt, PlaceRange)> {
        let (store, collector, wanted) = (lists.store, lists.collector, lists.list_numbers());
        let all = ListsAt { store, collector, first: 0 }..=ListsAt { store, collector, first: u32::MAX };
        self.lists.range(all).filter_map(move |(at, place)| {
            let part = at.first.max(wanted.start)..(at.first + place.count).min(wanted.end);
            let place = PlaceRange {
                first: place.first + part.start.saturating_sub(at.first),
                count: part.len() as u32,
            };
            (!part.is_empty()).then_some((ListsAt { first: part.start, ..*at }, place))
        })
    }

    /// Parts of lists that have no place at their collector.
    fn without_place(&self, lists: &Lists) -> Vec<Range<u32>> {
        let (mut gaps, mut first) = (Vec::new(), lists.first);
        for (part, _) in self.list_places(lists) {
            gaps.push(first..part.start);
            first = part.end;
        }
        gaps.push(first..lists.list_numbers().end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// Gives up the places of lists at collectors where a program does not have them, for stores and
    /// collectors where `is_it` says so.
    pub fn forget_lists_elsewhere(&mut self, program: &Program, is_it: impl Fn(u16, u8) -> bool) {
        let mut kept = self.lists.clone();
        kept.retain(|at, _| !is_it(at.store, at.collector));
        for entry in program.entries() {
            if let DataPlaneEntry::Lists(lists) = entry
                && is_it(lists.store, lists.collector)
            {
                kept.extend(self.placed_parts(lists));
            }
        }
        self.lists = kept;
    }

    /// Gives up the places of lists that `other` does not have too.
    pub fn keep_lists_of(&mut self, other: &StatePlaces) {
        let mut kept = BTreeMap::new();
        for (at, place) in &self.lists {
            let ListsAt { store, collector, first } = *at;
            let all = Lists { store, collector, first, count: place.count, positions: Vec::new() };
            let is_same = |(part, to): &(ListsAt, PlaceRange)| to.first == place.first + (part.first - first);
            kept.extend(other.placed_parts(&all).filter(is_same));
        }
        self.lists = kept;
    }
}

#[cfg(test)]
mod tests {
    use dta_proto::program::{EntryKey, Store};

    use super::*;

    #[test]
    fn places_stay_where_they_are_and_gaps_are_filled() {
        let mut map = BTreeMap::new();
        let what = || "x".to_owned();
        for (key, count) in [(1, 16), (2, 16), (3, 32)] {
            take(&mut map, key, count, 64, true, what).unwrap();
        }
        assert_eq!(map[&3], PlaceRange { first: 32, count: 32 });
        assert!(take(&mut map, 4, 16, 64, true, what).is_err());
        map.remove(&1);
        take(&mut map, 4, 8, 64, true, what).unwrap();
        take(&mut map, 5, 8, 64, true, what).unwrap();
        assert_eq!((map[&4].first, map[&5].first, map[&2].first), (0, 8, 16));
        // A place of another size is another place.
        take(&mut map, 4, 4, 64, true, what).unwrap();
        assert_eq!(map[&4], PlaceRange { first: 0, count: 4 });
        let error = take(&mut map, 6, 64, 64, true, what).unwrap_err().to_string();
        assert!(error.contains("no room for x"), "{error}");
    }

    #[test]
    fn a_list_has_its_place_at_each_collector_that_had_it() {
        let sample: Program =
            serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
        let Some(store) = sample.first_store_part(2) else { panic!() };
        let lists =
            |collector, first, count| Lists { store: 2, collector, first, count, positions: Vec::new() };
        let program = |of: &[Lists]| {
            let parts = [0, 1].map(|collector| DataPlaneEntry::Store(Store { collector, ..store.clone() }));
            Program::from(
                parts.into_iter().chain(of.iter().cloned().map(DataPlaneEntry::Lists)).collect::<Vec<_>>(),
            )
        };
        let room = PlaceCapacity { lists: 8, ..PlaceCapacity::ALL };
        let of = |places: &StatePlaces, program: &Program| places.assign_places(program, 64, room).unwrap();
        let at = |places: &StatePlaces, lists: &Lists| places.list_places(lists);
        let all = lists(0, 0, 4);
        let first = of(&StatePlaces::default(), &program(std::slice::from_ref(&all)));
        assert_eq!(at(&first, &all), [(0..4, 0)]);
        // Two of them move, and what they had stays where it was.
        let (here, there) = (lists(0, 0, 2), lists(1, 2, 2));
        let moved_program = program(&[here.clone(), there.clone()]);
        let moved = of(&first, &moved_program);
        assert_eq!(
            (at(&moved, &here), at(&moved, &there), at(&moved, &all)),
            (vec![(0..2, 0)], vec![(2..4, 4)], vec![(0..4, 0)])
        );
        assert_eq!(of(&moved, &program(std::slice::from_ref(&all))), moved, "it comes back");
        // Lists added in between have a place of their own.
        let more = of(&moved, &program(&[lists(0, 0, 2), lists(1, 1, 3)]));
        assert_eq!(at(&more, &lists(1, 0, 9)), [(1..2, 6), (2..4, 4)]);
        let mut both = more.clone();
        both.keep_lists_of(&moved);
        assert_eq!(both.lists, moved.lists);
        assert!(both.has_been_used(6) && !both.has_been_used(7) && !moved.has_been_used(6));
        // Another life of a collector ends what is no longer there.
        let mut left = moved.clone();
        left.forget_lists_elsewhere(&moved_program, |_, collector| collector == 0);
        assert_eq!((at(&left, &all), at(&left, &there)), (vec![(0..2, 0)], vec![(2..4, 4)]));
        // So does a lack of room.
        let full = of(&moved, &program(&[lists(0, 0, 1), lists(1, 1, 5)]));
        let parts = vec![(1..2, 1), (2..4, 4), (4..6, 2)];
        assert_eq!((at(&full, &all), at(&full, &lists(1, 1, 5))), (vec![(0..1, 0)], parts));
        assert!(full.assign_places(&program(&[lists(0, 0, 8), lists(1, 8, 1)]), 64, room).is_err());
        // Without a part of the store there, nothing is kept.
        let mut alone = program(&[lists(0, 0, 2)]);
        alone.remove(&EntryKey::Store(2, 1));
        assert_eq!(at(&of(&moved, &alone), &there), []);
    }
}
