//! The stores that the engine holds, and what is kept of each.

use dta_proto::program::Store;
use dta_proto::store::StoreKind;

use super::Limits;
use crate::append::AppendState;
use crate::gathers::Gathers;
use crate::increment::KeyIncrementShape;
use crate::key_write::KeyWriteShape;
use crate::postcarding::PostcardState;
use crate::sketch::SketchState;

/// What is kept of a store, by its primitive.
pub(super) enum State {
    KeyWrite(KeyWriteShape),
    KeyIncrement(KeyIncrementShape),
    Append(AppendState),
    Postcarding(PostcardState),
    SketchMerge(Box<SketchState>),
}

impl State {
    /// The state that a new store begins with.
    fn new(store: &Store, limits: &Limits, reference: bool) -> State {
        let names = limits.name_reports;
        let mut state = match store.spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy } => {
                State::KeyWrite(KeyWriteShape { slots, value_len, copies: redundancy })
            }
            StoreKind::KeyIncrement { slots, redundancy } => {
                State::KeyIncrement(KeyIncrementShape { slots, copies: redundancy })
            }
            StoreKind::Append { lists, ring, batch_len, entry_len, notify } => {
                State::Append(AppendState::new(lists, ring, batch_len, entry_len, notify))
            }
            StoreKind::Postcarding { slots, hops, redundancy } => {
                State::Postcarding(PostcardState::new(slots, hops, redundancy, limits.postcard_rows, names))
            }
            StoreKind::SketchMerge { columns, rows, epochs, merge, expected } => {
                State::SketchMerge(Box::new(SketchState::new(columns, rows, epochs, merge, expected, names)))
            }
        };
        if reference {
            state.set_reference(true);
        }
        state
    }

    /// Sets whether what is gathered follows the rules of a switch.
    pub(super) fn set_reference(&mut self, reference: bool) {
        match self {
            State::KeyWrite(_) | State::KeyIncrement(_) | State::Append(_) => {}
            State::Postcarding(state) => state.set_reference(reference),
            State::SketchMerge(state) => state.set_reference(reference),
        }
    }

    /// Whether what is written to the store can wake a reader.
    pub(super) fn wakes(&self) -> bool {
        matches!(self, State::Append(state) if state.wakes())
    }

    /// The part that gathers reports; `None` where each leaves as it comes.
    pub(super) fn gathers(&self) -> Option<&dyn Gathers> {
        match self {
            State::KeyWrite(_) | State::KeyIncrement(_) => None,
            State::Append(state) => Some(state),
            State::Postcarding(state) => Some(state),
            State::SketchMerge(state) => Some(&**state),
        }
    }

    /// [`State::gathers`], to be changed.
    pub(super) fn gathers_mut(&mut self) -> Option<&mut dyn Gathers> {
        match self {
            State::KeyWrite(_) | State::KeyIncrement(_) => None,
            State::Append(state) => Some(state),
            State::Postcarding(state) => Some(state),
            State::SketchMerge(state) => Some(&mut **state),
        }
    }
}

/// A store of the program.
pub(super) struct InstalledStore {
    pub(super) entry: Store,
    pub(super) state: State,
}

/// All stores. Each has a place, which it keeps for as long as it is installed.
pub(super) struct Stores {
    places: Vec<Option<InstalledStore>>,
    /// Place + 1 by store id; 0 = none.
    by_id: Vec<u16>,
}

impl Stores {
    pub(super) fn new() -> Stores {
        Stores { places: Vec::new(), by_id: vec![0; 1 << 16] }
    }

    /// The store of an id, and its place.
    #[inline]
    pub(super) fn find(&mut self, id: u16) -> Option<(usize, &mut InstalledStore)> {
        let place = usize::from(self.by_id[usize::from(id)]).checked_sub(1)?;
        Some((place, self.places[place].as_mut()?))
    }

    /// The ids of all stores, the least first.
    pub(super) fn ids(&self) -> Vec<u16> {
        let mut ids: Vec<u16> = self.iter().map(|(_, store)| store.entry.spec.id).collect();
        ids.sort_unstable();
        ids
    }

    /// All stores with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &InstalledStore)> {
        self.places.iter().enumerate().filter_map(|(place, store)| Some((place, store.as_ref()?)))
    }

    /// All stores with their places, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut InstalledStore)> {
        self.places.iter_mut().enumerate().filter_map(|(place, store)| Some((place, store.as_mut()?)))
    }

    /// The entries by place; `None` where no store is.
    pub(super) fn entries(&self) -> Vec<Option<&Store>> {
        self.places.iter().map(|store| store.as_ref().map(|s| &s.entry)).collect()
    }

    /// Installs a store whose id is free.
    pub(super) fn insert(&mut self, entry: &Store, limits: &Limits, reference: bool) {
        let store =
            Some(InstalledStore { entry: entry.clone(), state: State::new(entry, limits, reference) });
        let place = match self.places.iter().position(Option::is_none) {
            Some(place) => {
                self.places[place] = store;
                place
            }
            None => {
                self.places.push(store);
                self.places.len() - 1
            }
        };
        self.by_id[usize::from(entry.spec.id)] = place as u16 + 1;
    }

    /// Takes a store out; gives the place that it had, and the store.
    pub(super) fn remove(&mut self, id: u16) -> Option<(usize, InstalledStore)> {
        let place = usize::from(std::mem::take(&mut self.by_id[usize::from(id)])).checked_sub(1)?;
        Some((place, self.places[place].take()?))
    }
}
