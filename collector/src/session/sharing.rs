//! Who has which keys and lists, where a translator spreads stores over several collectors.
//!
//! A session's translator says which collectors it serves and what each has. What a collector does not
//! have it need not look for: it says who has it. It is remembered beyond the session, as what was
//! written stays.

use std::collections::BTreeMap;
use std::path::Path;

use bincode::{Decode, Encode};
use dta_proto::buckets::Buckets;
use dta_proto::list_range::ListRange;

use super::state::{self, StateError};

/// What one collector has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its gRPC address, as the translator reaches it.
    pub address: String,
    /// Stores, by name; empty = all.
    pub stores: Vec<String>,
    /// Buckets of the keys of keyed stores.
    pub buckets: Buckets,
    /// Append lists; of a store that none names it has all.
    pub lists: Vec<ListRange>,
}

/// All collectors of one translator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// What each has.
    pub all: Vec<Share>,
    /// Which of them is this one.
    pub own: usize,
}

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Here, or at nobody that is known.
    Here,
    /// At the collector of this address.
    At(String),
}

impl Share {
    fn has_store(&self, store: &str) -> bool {
        self.stores.is_empty() || self.stores.iter().any(|name| name == store)
    }

    fn has_list(&self, store: &str, list: u32) -> bool {
        let mut ranges = self.lists.iter().filter(|range| range.store == store).peekable();
        ranges.peek().is_none() || ranges.any(|range| range.contains(list))
    }
}

/// What the translators of all sessions have said, by session.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    by_session: BTreeMap<String, Told>,
}

#[derive(Clone, Debug)]
struct Told {
    /// Stores of the session.
    stores: Vec<String>,
    /// Of a translator that has this collector alone, nothing.
    sharing: Option<Sharing>,
}

/// The most sessions that are remembered.
const MOST: usize = 1024;

impl Shared {
    /// Notes what the translator of a session said; whether that is anything new.
    pub fn note(&mut self, session: &str, stores: &[String], sharing: Option<&Sharing>) -> bool {
        let known = self.by_session.get(session);
        if known.is_some_and(|told| told.stores == stores && told.sharing.as_ref() == sharing) {
            return false;
        }
        if known.is_none() && self.by_session.len() >= MOST {
            return false;
        }
        let told = Told { stores: stores.to_vec(), sharing: sharing.cloned() };
        self.by_session.insert(session.to_owned(), told);
        true
    }

    /// Whether nobody shares anything.
    pub fn is_empty(&self) -> bool {
        self.by_session.values().all(|told| told.sharing.is_none())
    }

    fn of<'a>(&'a self, store: &'a str) -> impl Iterator<Item = &'a Told> {
        self.by_session.values().filter(move |told| told.stores.iter().any(|name| name == store))
    }

    fn whereabouts(&self, store: &str, has: impl Fn(&Share) -> bool) -> Whereabouts {
        let mut elsewhere = None;
        let mut is_written = false;
        for told in self.of(store) {
            is_written = true;
            let Some(Sharing { all, own }) = &told.sharing else { return Whereabouts::Here };
            if all.get(*own).is_none_or(&has) {
                return Whereabouts::Here;
            }
            let other = all.iter().find(|share| share.has_store(store) && has(share));
            elsewhere = elsewhere.or(other.map(|share| share.address.clone()));
        }
        if !is_written {
            elsewhere = self.elsewhere(store);
        }
        elsewhere.map_or(Whereabouts::Here, Whereabouts::At)
    }

    /// The collector that has a store of which no session writes anything here, because another collector
    /// has all of it.
    pub fn elsewhere(&self, store: &str) -> Option<String> {
        if self.of(store).next().is_some() {
            return None;
        }
        let others = |sharing: &Sharing| {
            let own = sharing.all.get(sharing.own)?;
            let other = sharing.all.iter().find(|share| share.has_store(store))?;
            (!own.has_store(store)).then(|| other.address.clone())
        };
        self.by_session.values().filter_map(|told| told.sharing.as_ref()).find_map(others)
    }

    /// Where the keys of a bucket of a keyed store are.
    pub fn bucket(&self, store: &str, bucket: u8) -> Whereabouts {
        self.whereabouts(store, |share| share.buckets.contains(bucket))
    }

    /// Where a sketch is, which is at one collector.
    pub fn sketch(&self, store: &str) -> Whereabouts {
        self.whereabouts(store, |share| share.has_store(store))
    }

    /// Where a list of an append store is.
    pub fn list(&self, store: &str, list: u32) -> Whereabouts {
        self.whereabouts(store, |share| share.has_list(store, list))
    }

    /// Buckets and lists of a store that are here; all if nobody shares it.
    pub fn here(&self, store: &str) -> (Buckets, Vec<ListRange>) {
        let mut here: Option<(Buckets, Vec<ListRange>)> = None;
        for told in self.of(store) {
            let Some(share) = told.sharing.as_ref().and_then(|s| s.all.get(s.own)) else {
                return (Buckets::ALL, Vec::new());
            };
            let (buckets, lists) = here.get_or_insert((Buckets::NONE, Vec::new()));
            *buckets = buckets.or(share.buckets);
            lists.extend(share.lists.iter().filter(|range| range.store == store).cloned());
        }
        here.unwrap_or((Buckets::ALL, Vec::new()))
    }
}

/// Address, stores, ranges of buckets, lists (name of the store, first, how many).
type StoredShare = (String, Vec<String>, Vec<(u8, u8)>, Vec<(String, u32, u32)>);

#[derive(Encode, Decode)]
struct Stored {
    session: String,
    stores: Vec<String>,
    sharing: Option<(Vec<StoredShare>, u16)>,
}

const FILE: &str = "sharing.bin";

pub(super) fn save(dir: &Path, shared: &Shared) -> Result<(), StateError> {
    let share = |share: &Share| {
        let lists = share.lists.iter().map(|l| (l.store.clone(), l.first, l.count)).collect();
        (share.address.clone(), share.stores.clone(), share.buckets.ranges(), lists)
    };
    let stored = |(session, told): (&String, &Told)| Stored {
        session: session.clone(),
        stores: told.stores.clone(),
        sharing: told.sharing.as_ref().map(|s| (s.all.iter().map(share).collect(), s.own as u16)),
    };
    let all: Vec<Stored> = shared.by_session.iter().map(stored).collect();
    state::save(&dir.join(FILE), &all)
}

pub(super) fn load(dir: &Path) -> Result<Shared, StateError> {
    let share = |(address, stores, buckets, lists): StoredShare| Share {
        address,
        stores,
        buckets: buckets.into_iter().fold(Buckets::NONE, |all, (a, b)| all.or(Buckets::range(a, b))),
        lists: lists.into_iter().map(|(store, first, count)| ListRange { store, first, count }).collect(),
    };
    let told = |stored: Stored| {
        let sharing = stored
            .sharing
            .map(|(all, own)| Sharing { all: all.into_iter().map(share).collect(), own: own.into() });
        (stored.session, Told { stores: stored.stores, sharing })
    };
    let all = state::load::<Vec<Stored>>(&dir.join(FILE))?.unwrap_or_default();
    Ok(Shared { by_session: all.into_iter().map(told).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(address: &str, buckets: &str, lists: &[(u32, u32)]) -> Share {
        let range = |&(first, count): &(u32, u32)| ListRange { store: "events".into(), first, count };
        Share {
            address: address.into(),
            stores: Vec::new(),
            buckets: buckets.parse().unwrap(),
            lists: lists.iter().map(range).collect(),
        }
    }

    fn sharing(own: usize) -> Sharing {
        Sharing { all: vec![share("a:1", "0-127", &[(0, 4)]), share("b:1", "128-254", &[(4, 4)])], own }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn what_another_collector_has_is_told_with_its_address() {
        let mut shared = Shared::default();
        assert_eq!(shared.bucket("flows", 200), Whereabouts::Here);
        assert!(shared.note("tor1", &names(&["flows", "events"]), Some(&sharing(0))));
        assert!(!shared.note("tor1", &names(&["flows", "events"]), Some(&sharing(0))));
        let at_b = || Whereabouts::At("b:1".into());
        let of = |buckets: [u8; 5]| buckets.map(|bucket| shared.bucket("flows", bucket));
        // What nobody has is here as well as anywhere.
        assert_eq!(
            of([0, 127, 128, 254, 255]),
            [Whereabouts::Here, Whereabouts::Here, at_b(), at_b(), Whereabouts::Here]
        );
        assert_eq!(
            [0, 3, 4, 7].map(|list| shared.list("events", list)),
            [Whereabouts::Here, Whereabouts::Here, at_b(), at_b()]
        );
        // A store that the session does not write, or another session writes whole, is here.
        assert_eq!(shared.bucket("others", 200), Whereabouts::Here);
        assert_eq!(shared.here("flows"), (Buckets::range(0, 127), Vec::new()));
        assert_eq!(shared.here("events").1.len(), 1);
        assert!(shared.note("tor2", &names(&["flows"]), None));
        assert_eq!((shared.bucket("flows", 200), shared.here("flows").0), (Whereabouts::Here, Buckets::ALL));
        assert_eq!(shared.list("events", 4), at_b());
    }

    #[test]
    fn a_store_that_is_wanted_of_another_collector_alone_is_there() {
        let mut all = sharing(1);
        all.all[1].stores = names(&["flows", "events"]);
        let mut shared = Shared::default();
        shared.note("tor1", &names(&["flows", "events"]), Some(&all));
        let at_a = || Whereabouts::At("a:1".into());
        assert_eq!((shared.sketch("sketch"), shared.elsewhere("sketch")), (at_a(), Some("a:1".into())));
        assert_eq!((shared.bucket("counts", 200), shared.elsewhere("flows")), (at_a(), None));
        assert_eq!(shared.bucket("flows", 200), Whereabouts::Here);
        // Where another session writes it here, it is here.
        shared.note("tor2", &names(&["sketch"]), None);
        assert_eq!((shared.sketch("sketch"), shared.elsewhere("sketch")), (Whereabouts::Here, None));
        // What nobody says to have is looked for here.
        let mut both = sharing(0);
        both.all.iter_mut().for_each(|share| share.stores = names(&["flows"]));
        let mut shared = Shared::default();
        shared.note("tor1", &names(&["flows"]), Some(&both));
        assert_eq!((shared.sketch("sketch"), shared.elsewhere("sketch")), (Whereabouts::Here, None));
    }

    #[test]
    fn it_outlives_the_collector() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(dir.path()).unwrap().is_empty());
        let mut shared = Shared::default();
        shared.note("tor1", &names(&["flows"]), Some(&sharing(1)));
        shared.note("tor2", &names(&["others"]), None);
        save(dir.path(), &shared).unwrap();
        let again = load(dir.path()).unwrap();
        assert_eq!(again.bucket("flows", 5), Whereabouts::At("a:1".into()));
        assert_eq!(again.bucket("flows", 128), Whereabouts::Here);
        assert_eq!(format!("{again:?}"), format!("{shared:?}"));
    }
}
