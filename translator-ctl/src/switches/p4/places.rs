//! Where a switch keeps what it gathers: numbers of stores, and places in the arrays that lists, rows and
//! columns share. They are assigned once and kept beside the switch: an existing store keeps its places when
//! others come and go.

use std::collections::BTreeMap;

use dta_proto::program::{Entry, EntryKey, Program};
use dta_proto::store::StoreKind;
use serde::{Deserialize, Serialize};

use super::translator::{COLUMN_STATES, LIST_STATES, ROW_STATES, STORES};
use crate::switches::TargetError;

/// Total places in a switch, for all stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// For lists.
    pub lists: u32,
    /// For rows of postcards.
    pub rows: u32,
    /// For columns of sketches, over all epochs.
    pub columns: u32,
}

impl Room {
    /// Those of the program for bmv2.
    pub const ALL: Room = Room { lists: LIST_STATES, rows: ROW_STATES, columns: COLUMN_STATES };
}

/// Places by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The number of each store, by id.
    numbers: BTreeMap<u16, PlaceRange>,
    /// Rows of the cache of each postcard store.
    rows: BTreeMap<u16, PlaceRange>,
    /// Columns of each sketch, over all epochs.
    columns: BTreeMap<u16, PlaceRange>,
    /// Lists: store and first list.
    #[serde(with = "pairs")]
    lists: BTreeMap<(u16, u32), PlaceRange>,
}

/// A range of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRange {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Maps whose keys are not strings, as lists.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::PlaceRange;

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<(u16, u32), PlaceRange>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<(u16, u32), PlaceRange>, D::Error> {
        Ok(Vec::deserialize(from)?.into_iter().collect())
    }
}

/// Assigns `count` consecutive places of `of` to a key, at a multiple of `count` if `aligned`. An existing
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

impl Places {
    /// The places for a program: unchanged for existing owners, new for new ones. Each postcard store has
    /// `cache_rows` rows, a power of two.
    ///
    /// # Errors
    /// No room.
    pub fn of(&self, program: &Program, cache_rows: u32, room: Room) -> Result<Places, TargetError> {
        let mut places = self.clone();
        let is_there = |id: &u16| program.store(*id).is_some();
        places.numbers.retain(|id, _| is_there(id));
        places.rows.retain(|id, _| is_there(id));
        places.columns.retain(|id, _| is_there(id));
        places.lists.retain(|(store, first), _| program.get(&EntryKey::Lists(*store, *first)).is_some());
        for entry in program.entries() {
            match entry {
                Entry::Store(store) => {
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
                Entry::Lists(lists) => {
                    let what = || format!("{} lists of store {}", lists.count, lists.store);
                    take(
                        &mut places.lists,
                        (lists.store, lists.first),
                        lists.count,
                        room.lists,
                        false,
                        what,
                    )?;
                }
                _ => {}
            }
        }
        Ok(places)
    }

    /// The number of a store.
    pub fn number(&self, store: u16) -> u32 {
        self.numbers.get(&store).map_or(0, |place| place.first)
    }

    /// The store with a number.
    pub fn store_of(&self, number: u32) -> Option<u16> {
        self.numbers.iter().find(|(_, place)| place.first == number).map(|(id, _)| *id)
    }

    /// The rows of a postcard store's cache.
    pub fn rows(&self, store: u16) -> Option<PlaceRange> {
        self.rows.get(&store).copied()
    }

    /// The columns of a sketch.
    pub fn columns(&self, store: u16) -> Option<PlaceRange> {
        self.columns.get(&store).copied()
    }

    /// Where the state of lists from `first` on is.
    pub fn lists(&self, store: u16, first: u32) -> Option<PlaceRange> {
        self.lists.get(&(store, first)).copied()
    }
}

#[cfg(test)]
mod tests {
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
}
