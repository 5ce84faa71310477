//! Which collector has which keys and lists, if a translator spreads stores over several collectors.
//!
//! A session's translator says which collectors it serves and what each has. A collector does not search for what it
//! lacks but names the one that has it. This is remembered beyond the session, as what was written stays.

use std::path::Path;

use bincode::{Decode, Encode};
use dta_proto::buckets::{Buckets, Copies};
use dta_proto::list_range::ListRange;

use super::state::{self, StateError};
use crate::cluster::HolderLocation;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its gRPC address, as the translator reaches it.
    pub address: String,
    /// Stores, by name; empty = all.
    pub stores: Vec<String>,
    /// Buckets of the keys of keyed stores, by copy. Stores with each key at one collector use copy 0 only.
    pub buckets: Copies,
    /// Append lists. A store that is not named here has all its lists.
    pub lists: Vec<ListRange>,
}

/// All collectors of one translator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    pub all: Vec<Share>,
    /// The index of this collector.
    pub own: usize,
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

/// What the translators of all sessions have said, including those of ended sessions.
///
/// Open sessions come first. What they leave open is decided by ended ones, the last to end first. So what
/// those wrote is found as long as nobody else writes there, but they never overrule a session that does.
#[derive(Clone, Debug, Default)]
pub struct SharingClaims {
    /// Ended ones are in the order in which they ended.
    all: Vec<SharingClaim>,
    /// Changes with every update, and with every start of the collector; never 0.
    pub version: u64,
    /// When the collector started, in milliseconds since 1970.
    pub started: u64,
}

/// What the translator of one session has said.
#[derive(Clone, Debug)]
struct SharingClaim {
    session: String,
    is_open: bool,
    stores: Vec<String>,
    /// `None` if its translator has only this collector.
    sharing: Option<Sharing>,
}

/// Most sessions to remember. All open ones fit, as there are fewer.
const MOST: usize = 1024;
const _: () = assert!(super::lease::MAX_SESSIONS < MOST);

impl SharingClaim {
    fn writes_store(&self, store: &str) -> bool {
        self.stores.iter().any(|name| name == store)
    }

    /// Where this session says that part of a store is, if it says anything.
    fn whereabouts(&self, store: &str, has: impl Fn(&Share) -> bool) -> Option<HolderLocation> {
        let Some(Sharing { all, own }) = &self.sharing else {
            return self.writes_store(store).then_some(HolderLocation::Here);
        };
        let own = all.get(*own);
        if self.writes_store(store) {
            if own.is_none_or(&has) {
                return Some(HolderLocation::Here);
            }
        } else if own.is_none_or(|own| own.has_store(store)) {
            return None;
        }
        let other =
            all.iter().find(|share| share.has_store(store) && (!self.writes_store(store) || has(share)));
        other.map(|share| HolderLocation::At(share.address.clone()))
    }
}

impl SharingClaims {
    /// Records what an open session's translator said; returns whether that is new.
    pub fn record_claim(&mut self, session: &str, stores: &[String], sharing: Option<&Sharing>) -> bool {
        let said = SharingClaim {
            session: session.to_owned(),
            is_open: true,
            stores: stores.to_vec(),
            sharing: sharing.cloned(),
        };
        match self.all.iter_mut().find(|said| said.session == session) {
            Some(known) if known.is_open && known.stores == said.stores && known.sharing == said.sharing => {
                false
            }
            Some(known) => {
                *known = said;
                true
            }
            None => {
                self.make_room();
                self.all.push(said);
                true
            }
        }
    }

    /// If the table is full, forgets an ended session: the first to end that shared nothing, or else the first to end.
    fn make_room(&mut self) {
        if self.all.len() < MOST {
            return;
        }
        let of = |alone: bool| {
            self.all.iter().position(|said| !said.is_open && (!alone || said.sharing.is_none()))
        };
        let Some(at) = of(true).or_else(|| of(false)) else { return };
        let said = self.all.remove(at);
        if said.sharing.is_some() {
            tracing::warn!(
                session = %said.session,
                "{MOST} sessions are remembered, the limit: what this ended one had at other collectors is forgotten, \
                 and queries for it here find nothing"
            );
        }
    }

    /// Records that the session has ended; returns whether that is new.
    pub fn end_session(&mut self, session: &str) -> bool {
        let Some(at) = self.all.iter().position(|said| said.session == session && said.is_open) else {
            return false;
        };
        let said = self.all.remove(at);
        self.all.push(SharingClaim { is_open: false, ..said });
        true
    }

    /// Whether anything of a session is remembered.
    pub fn has_session(&self, session: &str) -> bool {
        self.all.iter().any(|said| said.session == session)
    }

    /// After a restart, marks only these sessions as open.
    pub fn set_open_sessions(&mut self, is_open: impl Fn(&str) -> bool) {
        self.all.iter_mut().for_each(|said| said.is_open = is_open(&said.session));
    }

    pub fn is_empty(&self) -> bool {
        self.all.iter().all(|said| said.sharing.is_none())
    }

    /// Whether an open session writes a store here.
    pub fn is_written(&self, store: &str) -> bool {
        self.all.iter().any(|said| said.is_open && said.writes_store(store))
    }

    fn whereabouts(&self, store: &str, has: impl Fn(&Share) -> bool) -> HolderLocation {
        let mut elsewhere = None;
        for said in self.all.iter().filter(|said| said.is_open) {
            match said.whereabouts(store, &has) {
                Some(HolderLocation::Here) => return HolderLocation::Here,
                // Sessions that write the store know better than those that do not.
                Some(at) if elsewhere.is_none() || said.writes_store(store) => elsewhere = Some(at),
                _ => {}
            }
        }
        let ended = || {
            let mut ended = self.all.iter().rev().filter(|said| !said.is_open);
            ended.find_map(|said| said.whereabouts(store, &has))
        };
        elsewhere.or_else(ended).unwrap_or(HolderLocation::Here)
    }

    /// The collector that has a whole store, if no session writes any of it here.
    pub fn elsewhere(&self, store: &str) -> Option<String> {
        let deciding = self.deciding_claims(store);
        if deciding.iter().any(|said| said.writes_store(store)) {
            return None;
        }
        deciding.into_iter().find_map(|said| match said.whereabouts(store, |_| true) {
            Some(HolderLocation::At(address)) => Some(address),
            _ => None,
        })
    }

    /// The sessions that decide which part of a store is here: the open sessions concerned with it or,
    /// without any, the last ended one that was.
    fn deciding_claims(&self, store: &str) -> Vec<&SharingClaim> {
        let concerns =
            |said: &&SharingClaim| said.writes_store(store) || said.whereabouts(store, |_| true).is_some();
        let open: Vec<_> = self.all.iter().filter(|said| said.is_open).filter(concerns).collect();
        if !open.is_empty() {
            return open;
        }
        let mut ended = self.all.iter().rev().filter(|said| !said.is_open).filter(concerns);
        let last = ended.next();
        // Workers of one translator, and translators with the same collectors, end one after another.
        let same = ended.take_while(|said| last.is_some_and(|last| last.sharing == said.sharing));
        last.into_iter().chain(same).collect()
    }

    /// Where the keys of a bucket are, in a keyed store with this many replicas of each key.
    pub fn bucket_place(&self, store: &str, replicas: usize, bucket: u8) -> HolderLocation {
        self.whereabouts(store, |share| share.buckets.first_copies(replicas).of_bucket(bucket).is_some())
    }

    /// Where a sketch is; it is at a single collector.
    pub fn sketch_place(&self, store: &str) -> HolderLocation {
        self.whereabouts(store, |share| share.has_store(store))
    }

    /// Where a list of an append store is.
    pub fn list_place(&self, store: &str, list: u32) -> HolderLocation {
        self.whereabouts(store, |share| share.has_list(store, list))
    }

    /// The buckets and lists of a store that are here, given its number of replicas; all of them if it is not shared.
    pub fn local_share(&self, store: &str, replicas: usize) -> (Copies, Vec<ListRange>) {
        let mut here: Option<(Copies, Vec<ListRange>)> = None;
        for said in self.deciding_claims(store).into_iter().filter(|said| said.writes_store(store)) {
            let Some(share) = said.sharing.as_ref().and_then(|s| s.all.get(s.own)) else {
                return (Copies::default(), Vec::new());
            };
            let (buckets, lists) = here.get_or_insert((Copies::NONE, Vec::new()));
            *buckets = buckets.union(share.buckets.first_copies(replicas));
            lists.extend(share.lists.iter().filter(|range| range.store == store).cloned());
        }
        here.unwrap_or((Copies::default(), Vec::new()))
    }
}

/// Address, stores, ranges of buckets with [`NEXT_COPY`] between copies, and lists (store, first, how many).
type StoredShare = (String, Vec<String>, Vec<(u8, u8)>, Vec<(String, u32, u32)>);

/// Not a range: separates the ranges of two copies.
const NEXT_COPY: (u8, u8) = (u8::MAX, 0);

#[derive(Encode, Decode)]
struct Stored {
    session: String,
    stores: Vec<String>,
    sharing: Option<(Vec<StoredShare>, u16)>,
}

const FILE: &str = "sharing.bin";

pub(super) fn save_sharing(dir: &Path, shared: &SharingClaims) -> Result<(), StateError> {
    let share = |share: &Share| {
        let lists = share.lists.iter().map(|l| (l.store.clone(), l.first, l.count)).collect();
        let of_copies: Vec<_> =
            (0..share.buckets.copy_count()).map(|n| share.buckets.buckets_of_copy(n).to_ranges()).collect();
        (share.address.clone(), share.stores.clone(), of_copies.join(&NEXT_COPY), lists)
    };
    let stored = |said: &SharingClaim| Stored {
        session: said.session.clone(),
        stores: said.stores.clone(),
        sharing: said.sharing.as_ref().map(|s| (s.all.iter().map(share).collect(), s.own as u16)),
    };
    let all: Vec<Stored> = shared.all.iter().map(stored).collect();
    state::save_state(&dir.join(FILE), &all)
}

/// Loads all claims as ended; [`SharingClaims::set_open_sessions`] then marks the open ones.
pub(super) fn load(dir: &Path) -> Result<SharingClaims, StateError> {
    let of_ranges = |ranges: &[(u8, u8)]| {
        ranges.iter().fold(Buckets::NONE, |all, (a, b)| all.union(Buckets::from_range(*a, *b)))
    };
    let share = |(address, stores, buckets, lists): StoredShare| Share {
        address,
        stores,
        buckets: buckets.split(|range| *range == NEXT_COPY).map(of_ranges).collect(),
        lists: lists.into_iter().map(|(store, first, count)| ListRange { store, first, count }).collect(),
    };
    let said = |stored: Stored| {
        let sharing = stored
            .sharing
            .map(|(all, own)| Sharing { all: all.into_iter().map(share).collect(), own: own.into() });
        SharingClaim { session: stored.session, is_open: false, stores: stored.stores, sharing }
    };
    let all = state::load::<Vec<Stored>>(&dir.join(FILE))?.unwrap_or_default();
    Ok(SharingClaims { all: all.into_iter().map(said).collect(), ..SharingClaims::default() })
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
    fn what_another_collector_has_is_given_with_its_address() {
        let mut shared = SharingClaims::default();
        assert_eq!(shared.bucket_place("flows", 1, 200), HolderLocation::Here);
        assert!(shared.record_claim("tor1", &names(&["flows", "events"]), Some(&sharing(0))));
        assert!(!shared.record_claim("tor1", &names(&["flows", "events"]), Some(&sharing(0))));
        let at_b = || HolderLocation::At("b:1".into());
        let of = |buckets: [u8; 5]| buckets.map(|bucket| shared.bucket_place("flows", 1, bucket));
        // Whatever nobody has is queried here.
        assert_eq!(
            of([0, 127, 128, 254, 255]),
            [HolderLocation::Here, HolderLocation::Here, at_b(), at_b(), HolderLocation::Here]
        );
        assert_eq!(
            [0, 3, 4, 7].map(|list| shared.list_place("events", list)),
            [HolderLocation::Here, HolderLocation::Here, at_b(), at_b()]
        );
        // A store that this session does not write, or that another session writes completely, is here.
        assert_eq!(shared.bucket_place("others", 1, 200), HolderLocation::Here);
        assert_eq!(shared.local_share("flows", 1), (Buckets::from_range(0, 127).into(), Vec::new()));
        assert_eq!(shared.local_share("events", 1).1.len(), 1);
        assert!(shared.record_claim("tor2", &names(&["flows"]), None));
        assert_eq!(
            (shared.bucket_place("flows", 1, 200), shared.local_share("flows", 1).0),
            (HolderLocation::Here, Copies::default())
        );
        assert_eq!(shared.list_place("events", 4), at_b());
    }

    #[test]
    fn a_bucket_is_here_with_any_of_the_copies_that_its_store_has() {
        let dir = tempfile::tempdir().unwrap();
        let mut both = sharing(0);
        both.all[0].buckets =
            ["0-127", "200-255"].map(|text| text.parse::<Buckets>().unwrap()).into_iter().collect();
        let mut shared = SharingClaims::default();
        shared.record_claim("tor1", &names(&["flows"]), Some(&both));
        let at_b = HolderLocation::At("b:1".into());
        assert_eq!(
            [1, 2].map(|replicas| shared.bucket_place("flows", replicas, 200)),
            [at_b.clone(), HolderLocation::Here]
        );
        assert_eq!(shared.bucket_place("flows", 2, 199), at_b);
        assert_eq!(shared.local_share("flows", 1).0, Buckets::from_range(0, 127).into());
        assert_eq!(shared.local_share("flows", 2).0, both.all[0].buckets);
        save_sharing(dir.path(), &shared).unwrap();
        assert_eq!(load(dir.path()).unwrap().local_share("flows", 4).0, both.all[0].buckets);
    }

    #[test]
    fn a_store_that_is_wanted_of_another_collector_alone_is_there() {
        let mut all = sharing(1);
        all.all[1].stores = names(&["flows", "events"]);
        let mut shared = SharingClaims::default();
        shared.record_claim("tor1", &names(&["flows", "events"]), Some(&all));
        let at_a = || HolderLocation::At("a:1".into());
        assert_eq!((shared.sketch_place("sketch"), shared.elsewhere("sketch")), (at_a(), Some("a:1".into())));
        assert_eq!((shared.bucket_place("counts", 1, 200), shared.elsewhere("flows")), (at_a(), None));
        assert_eq!(shared.bucket_place("flows", 1, 200), HolderLocation::Here);
        // If another session writes it here, it is here.
        shared.record_claim("tor2", &names(&["sketch"]), None);
        assert_eq!((shared.sketch_place("sketch"), shared.elsewhere("sketch")), (HolderLocation::Here, None));
        // Whatever nobody claims is looked up here.
        let mut both = sharing(0);
        both.all.iter_mut().for_each(|share| share.stores = names(&["flows"]));
        let mut shared = SharingClaims::default();
        shared.record_claim("tor1", &names(&["flows"]), Some(&both));
        assert_eq!((shared.sketch_place("sketch"), shared.elsewhere("sketch")), (HolderLocation::Here, None));
    }

    #[test]
    fn ended_sessions_claim_nothing_against_open_ones_and_what_they_wrote_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (flows, at_b) = (names(&["flows"]), || HolderLocation::At("b:1".into()));
        let mut shared = SharingClaims::default();
        shared.record_claim("alone", &flows, None);
        assert!(shared.end_session("alone") && !shared.end_session("alone") && !shared.is_written("flows"));
        assert_eq!(shared.bucket_place("flows", 1, 233), HolderLocation::Here);
        shared.record_claim("both", &flows, Some(&sharing(0)));
        shared.record_claim("both@1", &flows, Some(&sharing(0)));
        let is_spread = |shared: &SharingClaims| {
            (shared.bucket_place("flows", 1, 233), shared.bucket_place("flows", 1, 3))
                == (at_b(), HolderLocation::Here)
                && shared.local_share("flows", 1).0 == Buckets::from_range(0, 127).into()
        };
        assert!(is_spread(&shared) && shared.is_written("flows"));
        // An ended session may have what no open one has.
        assert_eq!(shared.bucket_place("flows", 1, 255), HolderLocation::Here);
        // It stays so across a restart, and also when the newer ones have ended.
        save_sharing(dir.path(), &shared).unwrap();
        let mut again = load(dir.path()).unwrap();
        again.set_open_sessions(|name| name.starts_with("both"));
        assert!(is_spread(&again));
        for session in ["both", "both@1"] {
            shared.end_session(session);
        }
        assert!(is_spread(&shared));
        save_sharing(dir.path(), &shared).unwrap();
        let mut shared = load(dir.path()).unwrap();
        assert!(is_spread(&shared));
        // The first one comes back.
        shared.record_claim("alone", &flows, None);
        assert_eq!(
            (shared.bucket_place("flows", 1, 233), shared.local_share("flows", 1).0),
            (HolderLocation::Here, Copies::default())
        );
        // A session that writes other lists does not make the lists of ended ones absent.
        let events = names(&["events"]);
        let mut shared = SharingClaims::default();
        shared.record_claim("tor1", &events, Some(&sharing(0)));
        shared.end_session("tor1");
        let others = Sharing { all: vec![share("a:1", "0-254", &[(8, 4)])], own: 0 };
        shared.record_claim("tor2", &events, Some(&others));
        assert_eq!(
            (shared.list_place("events", 5), shared.list_place("events", 8)),
            (at_b(), HolderLocation::Here)
        );
    }

    #[test]
    fn a_newcomer_is_noted_however_many_there_were() {
        let mut shared = SharingClaims::default();
        let flows = names(&["flows"]);
        for n in 0..MOST + 100 {
            // Most of them shared nothing; those are forgotten first.
            let sharing = sharing(0);
            assert!(shared.record_claim(&format!("s{n}"), &flows, (n < 20).then_some(&sharing)));
            assert!(shared.end_session(&format!("s{n}")));
        }
        assert_eq!(shared.all.len(), MOST);
        assert_eq!(shared.all.iter().filter(|said| said.sharing.is_some()).count(), 20);
        assert!(shared.record_claim("newcomer", &flows, Some(&sharing(0))));
        assert_eq!(shared.bucket_place("flows", 1, 200), HolderLocation::At("b:1".into()));
    }

    #[test]
    fn what_is_forgotten_for_want_of_room_is_logged_if_others_had_a_part_of_it() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let writer = std::sync::Arc::new(log.reopen().unwrap());
        // With one subscriber, tracing caches what the first thread to reach a line says; threads of other tests have none.
        let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut shared = SharingClaims::default();
            let flows = names(&["flows"]);
            let mut come_and_go = |name: &str, sharing: Option<&Sharing>| {
                shared.record_claim(name, &flows, sharing);
                shared.end_session(name);
            };
            (1..MOST).for_each(|n| come_and_go(&format!("spread{n}"), Some(&sharing(0))));
            come_and_go("alone", None);
            come_and_go("takes the place of alone", Some(&sharing(0)));
            assert_eq!(std::fs::read_to_string(log.path()).unwrap(), "");
            come_and_go("takes the place of spread1", None);
            let logged = std::fs::read_to_string(log.path()).unwrap();
            assert!(logged.contains("WARN") && logged.contains("session=spread1\n"), "{logged}");
            assert!(logged.contains(&format!("{MOST} sessions are remembered")), "{logged}");
            assert_eq!(logged.lines().count(), 1, "{logged}");
        });
    }

    #[test]
    fn it_outlives_the_collector() {
        let dir = tempfile::tempdir().unwrap();
        assert!(load(dir.path()).unwrap().is_empty());
        let mut shared = SharingClaims::default();
        shared.record_claim("tor1", &names(&["flows"]), Some(&sharing(1)));
        shared.record_claim("tor2", &names(&["others"]), None);
        save_sharing(dir.path(), &shared).unwrap();
        let mut again = load(dir.path()).unwrap();
        again.set_open_sessions(|_| true);
        assert_eq!(again.bucket_place("flows", 1, 5), HolderLocation::At("a:1".into()));
        assert_eq!(again.bucket_place("flows", 1, 128), HolderLocation::Here);
        assert_eq!(format!("{again:?}"), format!("{shared:?}"));
    }
}
