use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dta_memory::nic::{
    Access, Device, Endpoint, Immediate, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState,
    Registration,
};
use dta_memory::region::{Region, RegionOptions};
use dta_memory::store::region_path;
use dta_proto::layout::append;
use dta_proto::store::{Merge, StoreKind, StoreSpec};

use super::sharing::{Share, Sharing};
use super::*;
use crate::cluster::HolderLocation;
use crate::config::MemoryBacking;

/// A NIC that does nothing but bookkeeping.
#[derive(Default)]
struct Books {
    next: AtomicU32,
    epoch: AtomicU64,
    away: AtomicBool,
    atomics: bool,
    most_pairs: usize,
    /// Fails to create the queue pair that comes this many from now.
    fails_in: AtomicU32,
    /// Loses the device this many calls from now, and brings it back at once.
    lost_in: AtomicU32,
    pairs: Mutex<Vec<QueuePairStatus>>,
    keys: Mutex<BTreeMap<u32, Access>>,
}

impl Books {
    fn new() -> Arc<Self> {
        Arc::new(Books { next: AtomicU32::new(100), atomics: true, most_pairs: 64, ..Books::default() })
    }

    fn break_pair(&self, qpn: u32, psn: u32) {
        let mut pairs = self.pairs.lock().unwrap();
        let pair = pairs.iter_mut().find(|p| p.qpn == qpn).unwrap();
        pair.state = QueuePairState::Error;
        pair.expected_psn = psn;
    }

    /// The device is gone, with everything that was made on it.
    fn lose(&self) {
        self.pairs.lock().unwrap().clear();
        self.keys.lock().unwrap().clear();
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.away.store(true, Ordering::Relaxed);
    }

    /// The device is back, and its numbers start again.
    fn come_back(&self) {
        self.next.store(100, Ordering::Relaxed);
        self.away.store(false, Ordering::Relaxed);
    }

    /// Begins a call that creates something. As with a real device, it finds a lost one reopened.
    fn begin(&self) {
        if self.lost_in.load(Ordering::Relaxed) > 0 && self.lost_in.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.lose();
            self.come_back();
        }
    }

    fn live(&self) -> (usize, usize) {
        (self.pairs.lock().unwrap().len(), self.keys.lock().unwrap().len())
    }
}

impl Nic for Books {
    fn describe_device(&self) -> Device {
        Device {
            name: "books".into(),
            endpoint: Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            mtu: 1024,
            max_dest_rd_atomic: 16,
            atomics: self.atomics,
        }
    }

    fn register_region(&self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        self.begin();
        let rkey = self.next.fetch_add(1, Ordering::Relaxed);
        self.keys.lock().unwrap().insert(rkey, access);
        Ok(Registration { iova: region.wire_address(), len: region.len(), rkey })
    }

    fn deregister(&self, rkey: u32) -> Result<(), NicError> {
        self.keys.lock().unwrap().remove(&rkey).map(|_| ()).ok_or(NicError::NoRegistration)
    }

    fn create_queue_pair(&self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        self.begin();
        let mut pairs = self.pairs.lock().unwrap();
        if pairs.len() >= self.most_pairs {
            return Err(NicError::TooManyQueuePairs { device: "books".into(), limit: self.most_pairs });
        }
        if self.fails_in.load(Ordering::Relaxed) > 0 && self.fails_in.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(NicError::Stopped { reason: "no neighbour".into() });
        }
        let qpn = self.next.fetch_add(1, Ordering::Relaxed);
        pairs.push(QueuePairStatus {
            qpn,
            request: request.clone(),
            state: QueuePairState::ReadyToReceive,
            expected_psn: request.start_psn,
            counters: Vec::new(),
        });
        Ok(QueuePairInfo { qpn, expected_psn: request.start_psn, max_dest_rd_atomic: 16 })
    }

    fn destroy_queue_pair(&self, qpn: u32) -> Result<Option<u32>, NicError> {
        let mut pairs = self.pairs.lock().unwrap();
        let at = pairs.iter().position(|p| p.qpn == qpn).ok_or(NicError::NoQueuePair { qpn })?;
        Ok(Some(pairs.remove(at).expected_psn))
    }

    fn device_epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn queue_pairs(&self) -> Result<Vec<QueuePairStatus>, NicError> {
        if self.away.load(Ordering::Relaxed) {
            return Err(NicError::Stopped { reason: "away".into() });
        }
        Ok(self.pairs.lock().unwrap().clone())
    }

    fn named_counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    fn fatal_failure(&self) -> Option<String> {
        None
    }

    fn take_immediates(&self, _: &mut Vec<Immediate>, _: Duration) -> Result<(), NicError> {
        Ok(())
    }
}

fn specs() -> Vec<StoreSpec> {
    let store = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
    vec![
        store(
            1,
            "flows",
            StoreKind::KeyWrite { slots: 64, value_len: 12, redundancy: 2, keys: Default::default() },
        ),
        store(2, "paths", StoreKind::Postcarding { slots: 64, hops: 6, redundancy: 2 }),
        store(
            3,
            "events",
            StoreKind::Append { lists: 8, ring: 4, batch_len: 64, entry_len: 4, notify: false },
        ),
        store(4, "bytes", StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 1 }),
        store(
            5,
            "packets",
            StoreKind::SketchMerge { columns: 64, rows: 2, epochs: 2, merge: Merge::Sum, expected: 2 },
        ),
    ]
}

fn stores(memory: &MemoryBacking) -> Arc<ServedStores> {
    Arc::new(ServedStores::open(&specs(), memory, RegionOptions { huge_pages: false }).unwrap())
}

struct Bench {
    nic: Arc<Books>,
    sessions: CollectorSessions,
    t0: Instant,
}

fn bench() -> Bench {
    let (nic, t0) = (Books::new(), Instant::now());
    let sessions = CollectorSessions::open_state(
        nic.clone(),
        stores(&MemoryBacking::Anonymous),
        Transport::Uc,
        None,
        t0,
    )
    .unwrap();
    Bench { nic, sessions, t0 }
}

fn request(name: &str, qpn: u32) -> OpenRequest {
    OpenRequest {
        name: name.into(),
        translator: Endpoint::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))),
        queue_pairs: vec![
            RequesterQueuePair { purpose: Purpose::Write, qpn, start_psn: 7 },
            RequesterQueuePair { purpose: Purpose::Atomic, qpn: qpn + 1, start_psn: 9 },
        ],
        lease: Some(Duration::from_secs(10)),
        stores: Vec::new(),
        lists: Vec::new(),
        fresh: false,
        sharing: None,
        caller: SessionCaller::ANYBODY,
    }
}

fn wanting(name: &str, stores: &[&str]) -> OpenRequest {
    OpenRequest { stores: stores.iter().map(|s| s.to_string()).collect(), ..request(name, 50) }
}

fn lists(mut request: OpenRequest, store: &str, first: u32, count: u32) -> OpenRequest {
    request.lists.push(dta_proto::list_range::ListRange { store: store.into(), first, count });
    request
}

/// The keys of a session's regions.
fn keys(session: &GrantedSession) -> Vec<u32> {
    session.grant.regions.iter().map(|r| r.registration.rkey).collect()
}

/// The generations of a session's queue pairs and regions.
fn generations(session: &GrantedSession) -> Vec<u64> {
    let pairs = session.grant.queue_pairs.iter().map(|q| q.generation);
    pairs.chain(session.grant.regions.iter().map(|r| r.generation)).collect()
}

fn refusal<T>(result: Result<T, SessionError>) -> String {
    result.err().expect("must be refused").to_string()
}

#[test]
fn a_session_gets_what_its_stores_need_and_no_more() {
    let b = bench();
    let session = b.sessions.open(&wanting("t", &["flows", "bytes"]), b.t0).unwrap();
    assert!(!session.resumed);
    assert_eq!(session.grant.regions.len(), 2);
    let keys = b.nic.keys.lock().unwrap();
    let access: Vec<Access> = session.grant.regions.iter().map(|r| keys[&r.registration.rkey]).collect();
    assert_eq!(access, [Access::WRITE, Access::ATOMIC]);
    let pairs = b.nic.pairs.lock().unwrap();
    let made: Vec<_> = pairs
        .iter()
        .map(|p| (p.request.transport, p.request.access, p.request.peer_qpn, p.request.start_psn))
        .collect();
    assert_eq!(
        made,
        [
            (dta_memory::nic::Transport::Uc, Access::WRITE, 50, 7),
            (dta_memory::nic::Transport::Rc, Access { remote_write: true, ..Access::ATOMIC }, 51, 9)
        ]
    );
}

#[test]
fn the_same_translator_resumes_with_the_same_queue_pairs() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let again = b.sessions.open(&request("t", 50), b.t0).unwrap();
    assert!(again.resumed);
    assert_eq!(again.grant, first.grant);
    assert_eq!(again.lease.generation, first.lease.generation);
    assert_eq!(b.nic.live(), (2, 5));
}

#[test]
fn another_life_of_the_translator_gets_new_queue_pairs_and_keys_and_the_old_one_is_fenced() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let second = b.sessions.open(&request("t", 60), b.t0).unwrap();
    assert!(second.resumed && second.lease.generation > first.lease.generation);
    assert_eq!(second.grant.queue_pairs_in_common(&first.grant), 0);
    let old = keys(&first);
    assert!(keys(&second).iter().all(|rkey| !old.contains(rkey)));
    assert_eq!(b.nic.live(), (2, 5), "what the first had is gone");
    let error =
        refusal(b.sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], b.t0));
    assert!(error.contains("another translator has opened session"), "{error}");
    b.sessions.renew_session("t", &SessionCaller::ANYBODY, second.lease.generation, &[], b.t0).unwrap();
}

#[test]
fn a_lease_ends_unless_it_is_renewed() {
    let b = bench();
    let s = |n| b.t0 + Duration::from_secs(n);
    let g = b.sessions.open(&request("t", 50), s(0)).unwrap().lease.generation;
    b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &[], s(9)).unwrap();
    b.sessions.run_upkeep(s(18)).unwrap();
    assert_eq!(b.nic.live(), (2, 5));
    b.sessions.run_upkeep(s(19)).unwrap();
    assert_eq!(b.nic.live(), (0, 0));
    let error = refusal(b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &[], s(19)));
    assert!(error.contains("\"t\"") && error.contains("open it again"), "{error}");
    assert_eq!(b.sessions.session_counters().expired, 1);
    assert!(b.sessions.open(&request("t", 50), s(20)).unwrap().lease.generation > g);
}

#[test]
fn a_lease_without_expiry_stays() {
    let b = bench();
    b.sessions.open(&OpenRequest { lease: None, ..request("t", 50) }, b.t0).unwrap();
    b.sessions.run_upkeep(b.t0 + Duration::from_secs(1 << 30)).unwrap();
    assert_eq!(b.nic.live(), (2, 5));
}

#[test]
fn ending_gives_everything_back() {
    let b = bench();
    b.sessions.open(&request("t", 50), b.t0).unwrap();
    b.sessions.end_session("t", &SessionCaller::ANYBODY, None, b.t0).unwrap();
    assert_eq!(b.nic.live(), (0, 0));
    assert!(refusal(b.sessions.end_session("t", &SessionCaller::ANYBODY, None, b.t0)).contains("\"t\""));
}

/// One translator had only this collector. After it ends, another spreads the stores over this and a second collector.
#[test]
fn an_ended_session_claims_no_bucket_against_an_open_one_over_a_restart_too() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let (nic, directory) = (Books::new(), Some(dir.path().to_owned()));
        let now = Instant::now();
        CollectorSessions::open_state(nic, stores(&MemoryBacking::Anonymous), Transport::Uc, directory, now)
            .unwrap()
    };
    let share = |address: &str, buckets: &str| Share {
        address: address.into(),
        stores: Vec::new(),
        buckets: buckets.parse().unwrap(),
        lists: Vec::new(),
    };
    let spread = Sharing { all: vec![share("a:1", "0-127"), share("b:1", "128-254")], own: 0 };
    let both =
        |name: &str| OpenRequest { sharing: Some(spread.clone()), lease: None, ..wanting(name, &["flows"]) };
    let at_b = || HolderLocation::At("b:1".into());
    let places = |sessions: &CollectorSessions| {
        [3, 233].map(|bucket| sessions.sharing_claims().bucket_place("flows", 1, bucket))
    };
    let sessions = open();
    let t0 = Instant::now();
    sessions.open(&wanting("alone", &["flows"]), t0).unwrap();
    sessions.open(&wanting("expires", &["flows"]), t0).unwrap();
    sessions.open(&both("both"), t0).unwrap();
    assert_eq!(
        places(&sessions),
        [HolderLocation::Here, HolderLocation::Here],
        "three write it, two of them all of it"
    );
    sessions.end_session("alone", &SessionCaller::ANYBODY, None, t0).unwrap();
    assert_eq!(places(&sessions), [HolderLocation::Here, HolderLocation::Here]);
    sessions.run_upkeep(t0 + Duration::from_secs(11)).unwrap();
    assert_eq!(sessions.session_count(), Some(1));
    assert_eq!(places(&sessions), [HolderLocation::Here, at_b()]);
    drop(sessions);

    let sessions = open();
    assert_eq!((sessions.session_count(), places(&sessions)), (Some(1), [HolderLocation::Here, at_b()]));
}

#[test]
fn a_translator_ends_its_own_session_and_not_its_successors() {
    let b = bench();
    let old = b.sessions.open(&request("t", 50), b.t0).unwrap().lease.generation;
    let new = b.sessions.open(&request("t", 60), b.t0).unwrap().lease.generation;
    assert!(
        refusal(b.sessions.end_session("t", &SessionCaller::ANYBODY, Some((old, &[])), b.t0))
            .contains("another translator")
    );
    let counters = NodeCounters {
        node: "translator/t".into(),
        life: 1,
        time_us: 1,
        counters: vec![("received".into(), 5)],
    };
    b.sessions.end_session("t", &SessionCaller::ANYBODY, Some((new, &[counters])), b.t0).unwrap();
    assert_eq!(b.sessions.statistics()[0].counters, [("received".to_owned(), 5)]);
}

#[test]
fn single_writer_stores_are_refused_by_name_and_others_are_shared() {
    let b = bench();
    b.sessions.open(&request("first", 50), b.t0).unwrap();
    for (stores, what) in [
        ("paths", "store \"paths\""),
        ("packets", "store \"packets\""),
        ("events", "list 0 of store \"events\""),
    ] {
        let error = refusal(b.sessions.open(&wanting("second", &[stores]), b.t0));
        assert!(error.contains(what) && error.contains("\"first\""), "{error}");
    }
    b.sessions.open(&wanting("second", &["flows", "bytes"]), b.t0).unwrap();
    b.sessions.end_session("first", &SessionCaller::ANYBODY, None, b.t0).unwrap();
    b.sessions.open(&wanting("third", &["paths", "packets", "events"]), b.t0).unwrap();
}

#[test]
fn workers_of_one_translator_share_what_has_one_writer_and_another_certificate_does_not() {
    let b = bench();
    let by = |name: &str, who: Option<&str>| {
        let caller =
            SessionCaller { identity: who.map(str::to_owned), sessions: 9, ..SessionCaller::ANYBODY };
        OpenRequest { caller, ..request(name, 40) }
    };
    for name in ["t", "t@1", "t@15"] {
        let session = b.sessions.open(&by(name, None), b.t0).unwrap();
        assert_eq!(session.lease.stores.len(), specs().len(), "{name}");
    }
    for (name, who) in [("t2", None), ("t2@1", None), ("t@2", Some("DNS:other.example"))] {
        let error = refusal(b.sessions.open(&by(name, who), b.t0));
        assert!(error.contains("is owned by session \"t\""), "{name}: {error}");
    }
    let error = refusal(b.sessions.open(&by("t@0", None), b.t0));
    assert!(error.contains("session name"), "{error}");
}

#[test]
fn a_store_is_asked_for_by_id_too() {
    let b = bench();
    b.sessions.open(&lists(wanting("a", &["3"]), "3", 0, 4), b.t0).unwrap();
    // The session knows the store by its name, as if that had been given.
    let error = refusal(b.sessions.open(&lists(wanting("b", &["events"]), "events", 3, 1), b.t0));
    assert!(error.contains("list 3 of store \"events\"") && error.contains("\"a\""), "{error}");
    assert!(refusal(b.sessions.open(&wanting("c", &["99"]), b.t0)).contains("\"99\""));
}

#[test]
fn lists_are_owned_by_range() {
    let b = bench();
    let events = |name| wanting(name, &["events"]);
    b.sessions.open(&lists(events("a"), "events", 0, 4), b.t0).unwrap();
    b.sessions.open(&lists(events("b"), "events", 4, 2), b.t0).unwrap();
    let error = refusal(b.sessions.open(&lists(events("c"), "events", 5, 3), b.t0));
    assert!(error.contains("list 5 of store \"events\"") && error.contains("\"b\""), "{error}");
    assert!(refusal(b.sessions.open(&events("c"), b.t0)).contains("list 0"));
    b.sessions.open(&lists(events("c"), "events", 6, 2), b.t0).unwrap();
    assert!(refusal(b.sessions.open(&lists(events("d"), "events", 7, 2), b.t0)).contains("lists 7 to 8"));
    assert!(
        refusal(b.sessions.open(&lists(events("d"), "events", u32::MAX, u32::MAX), b.t0))
            .contains("lists 0 to 7")
    );
    assert!(refusal(b.sessions.open(&lists(events("d"), "events", 0, 0), b.t0)).contains("0 lists"));
    assert!(refusal(b.sessions.open(&lists(events("d"), "flows", 0, 1), b.t0)).contains("append"));
}

#[test]
fn bad_requests_say_what_to_do() {
    let b = bench();
    let mut no_atomics = request("t", 50);
    no_atomics.queue_pairs.pop();
    assert!(refusal(b.sessions.open(&no_atomics, b.t0)).contains("\"bytes\" needs a queue pair for atomics"));
    let mut double = request("t", 50);
    double.queue_pairs[1].purpose = Purpose::Write;
    assert!(refusal(b.sessions.open(&double, b.t0)).contains("same purpose"));
    assert!(refusal(b.sessions.open(&wanting("t", &["heap"]), b.t0)).contains("flows, paths"));
    assert!(refusal(b.sessions.open(&request("", 50), b.t0)).contains("session name"));
    assert_eq!(b.nic.live(), (0, 0));
    assert_eq!(b.sessions.session_counters().refused, 4);
}

#[test]
fn what_a_refused_open_got_is_given_back() {
    let t0 = Instant::now();
    let nic = Arc::new(Books { most_pairs: 1, atomics: true, ..Books::default() });
    let sessions = CollectorSessions::open_state(
        nic.clone(),
        stores(&MemoryBacking::Anonymous),
        Transport::Uc,
        None,
        t0,
    )
    .unwrap();
    assert!(refusal(sessions.open(&request("t", 50), t0)).contains("queue pairs"));
    assert_eq!(nic.live(), (0, 0));
    assert!(sessions.list_sessions(t0).unwrap().is_empty());
}

#[test]
fn a_store_that_needs_atomics_is_refused_on_a_device_without_them() {
    let t0 = Instant::now();
    let nic = Arc::new(Books { most_pairs: 9, ..Books::default() });
    let sessions = CollectorSessions::open_state(
        nic.clone(),
        stores(&MemoryBacking::Anonymous),
        Transport::Uc,
        None,
        t0,
    )
    .unwrap();
    assert!(refusal(sessions.open(&request("t", 50), t0)).contains("\"bytes\" needs atomics"));
    sessions.open(&wanting("t", &["flows"]), t0).unwrap();
}

#[test]
fn a_broken_queue_pair_is_made_anew_and_says_how_it_ended() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let atomic = first.grant.queue_pairs[1].info.qpn;
    b.nic.break_pair(atomic, 1234);
    let renewed =
        b.sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], b.t0).unwrap();
    assert!(renewed.lease.generation > first.lease.generation);
    assert_eq!(renewed.grant.queue_pairs[0].info.qpn, first.grant.queue_pairs[0].info.qpn);
    assert_ne!(renewed.grant.queue_pairs[1].info.qpn, atomic);
    assert_eq!(
        renewed.grant.queue_pairs[1].replaced,
        Some(RetiredQueuePair { qpn: atomic, expected_psn: 1234 })
    );
    // Not where it stood, as its last answers may still be on their way.
    assert_eq!(renewed.grant.queue_pairs[1].info.expected_psn, 1234 + 65_536);
    assert_eq!(renewed.grant.regions, first.grant.regions);
    assert_eq!(b.sessions.session_counters().queue_pairs_rebuilt, 1);
    assert_eq!(b.nic.live(), (2, 5));
    // The answer may be lost: a translator that knows only the previous generation is not mistaken for
    // another one.
    let late =
        b.sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], b.t0).unwrap();
    assert_eq!(late.lease.generation, renewed.lease.generation);
    assert_eq!(late.grant.queue_pairs[1].replaced, renewed.grant.queue_pairs[1].replaced);
}

#[test]
fn each_queue_pair_and_each_region_has_a_generation_of_its_own() {
    let b = bench();
    let other = b.sessions.open(&wanting("other", &["flows"]), b.t0).unwrap();
    let first = b.sessions.open(&request("t", 60), b.t0).unwrap();
    let g = first.lease.generation;
    assert_eq!((generations(&first), g), (vec![g; 7], other.lease.generation + 1));
    // One queue pair breaks: only that one is new.
    b.nic.break_pair(first.grant.queue_pairs[1].info.qpn, 70);
    let second = b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &[], b.t0).unwrap();
    assert_eq!(second.lease.generation, g + 1);
    assert_eq!(generations(&second), [g, g + 1, g, g, g, g, g]);
    // A store gets another region: only that is new.
    b.sessions.stores.replace_memory(b.sessions.stores.successor("paths").unwrap(), false).unwrap();
    let third = b.sessions.renew_session("t", &SessionCaller::ANYBODY, g + 1, &[], b.t0).unwrap();
    assert_eq!(third.lease.generation, g + 2);
    assert_eq!(generations(&third), [g, g + 1, g, g + 2, g, g, g]);
    assert_eq!(pairs(&third), pairs(&second));
    // None of this affects another session.
    let renewed = b
        .sessions
        .renew_session("other", &SessionCaller::ANYBODY, other.lease.generation, &[], b.t0)
        .unwrap();
    assert_eq!((renewed.lease.generation, renewed.grant), (other.lease.generation, other.grant));
}

#[test]
fn a_region_that_was_replaced_comes_with_another_key_and_the_old_one_lives_until_that_is_confirmed() {
    let b = bench();
    let renew =
        |generation| b.sessions.renew_session("t", &SessionCaller::ANYBODY, generation, &[], b.t0).unwrap();
    let is_there = |rkey: u32| b.nic.keys.lock().unwrap().contains_key(&rkey);
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let g = first.lease.generation;
    let store =
        b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
    // Until then the session has what it had, though the store of that name has other memory.
    assert_eq!(b.nic.live(), (2, 5));
    let second = renew(g);
    assert_eq!(second.lease.generation, g + 1);
    assert_ne!(keys(&second)[0], keys(&first)[0]);
    assert_eq!(keys(&second)[1..], keys(&first)[1..]);
    let iova = |session: &GrantedSession| session.grant.regions[0].registration.iova;
    assert_eq!(iova(&second), store.region.wire_address());
    assert!(iova(&second).abs_diff(iova(&first)) >= store.region.len());
    assert_eq!(b.nic.keys.lock().unwrap()[&keys(&second)[0]], Access::WRITE);
    // The answer may be lost, or the translator may still have operations on their way.
    for _ in 0..3 {
        assert_eq!((renew(g).lease.generation, b.nic.live()), (g + 1, (2, 6)));
    }
    assert!(is_there(keys(&first)[0]));
    let writers = || b.sessions.store_writers("flows", store.generation - 1);
    assert_eq!(writers(), Writers::There);
    let third = renew(g + 1);
    assert_eq!(writers(), Writers::Moved);
    assert_eq!((third.lease.generation, keys(&third)), (g + 1, keys(&second)));
    assert!(!is_there(keys(&first)[0]));
    assert_eq!(b.nic.live(), (2, 5));
}

#[test]
fn memory_whose_writer_ended_without_its_word_says_so() {
    let b = bench();
    let stores = &b.sessions.stores;
    let replace = || stores.replace_memory(stores.successor("flows").unwrap(), false).unwrap().generation - 1;
    // Ended by an operator in the middle of a move; by another translator; by its own translator.
    let mut generation = b.sessions.open(&request("t", 50), b.t0).unwrap().lease.generation;
    let first = replace();
    b.sessions.renew_session("t", &SessionCaller::ANYBODY, generation, &[], b.t0).unwrap();
    b.sessions.end_session("t", &SessionCaller::ANYBODY, None, b.t0).unwrap();
    assert_eq!(b.sessions.store_writers("flows", first), Writers::Gone);
    assert_eq!(b.sessions.store_writers("flows", first + 1), Writers::Gone);
    b.sessions.open(&request("t", 50), b.t0).unwrap();
    let second = replace();
    generation = b.sessions.open(&request("t", 51), b.t0).unwrap().lease.generation;
    assert_eq!(b.sessions.store_writers("flows", second), Writers::Gone);
    let third = replace();
    b.sessions.end_session("t", &SessionCaller::ANYBODY, Some((generation, &[])), b.t0).unwrap();
    assert_eq!(b.sessions.store_writers("flows", third), Writers::Moved);
    // Earlier generations are forgotten.
    assert_eq!(b.sessions.store_writers("flows", first), Writers::Moved);
}

#[test]
fn a_region_that_is_replaced_again_waits_until_the_one_before_is_confirmed() {
    let b = bench();
    let renew =
        |generation| b.sessions.renew_session("t", &SessionCaller::ANYBODY, generation, &[], b.t0).unwrap();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let g = first.lease.generation;
    b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
    let second = renew(g);
    for _ in 0..5 {
        b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
        let again = renew(g);
        assert_eq!((again.lease.generation, keys(&again)), (g + 1, keys(&second)));
        assert_eq!(b.nic.live(), (2, 6), "one waits, and no more");
    }
    let newest = b.sessions.stores.get("flows").unwrap();
    let third = renew(g + 1);
    assert_eq!(third.lease.generation, g + 2);
    assert_eq!(third.grant.regions[0].registration.iova, newest.region.wire_address());
    assert_eq!((newest.generation, b.nic.live()), (7, (2, 6)));
    renew(g + 2);
    assert_eq!(b.nic.live(), (2, 5));
    // Whoever opens the session gets the newest region, and the one that waited longest makes room.
    b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
    let fourth = renew(g + 2);
    let newest =
        b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
    let opened = b.sessions.open(&request("t", 50), b.t0).unwrap();
    assert!(opened.lease.generation > fourth.lease.generation);
    assert_eq!(opened.grant.regions[0].registration.iova, newest.region.wire_address());
    assert_eq!(b.nic.live(), (2, 6));
    // Another translator is not concerned with what is on its way for this one.
    b.sessions.open(&request("t", 60), b.t0).unwrap();
    assert_eq!(b.nic.live(), (2, 5));
    b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
    let generation = b.sessions.lock_sessions().leases.get("t").unwrap().generation;
    renew(generation);
    assert_eq!(b.nic.live(), (2, 6));
    b.sessions.end_session("t", &SessionCaller::ANYBODY, None, b.t0).unwrap();
    assert_eq!(b.nic.live(), (0, 0));
}

#[test]
fn keys_that_wait_go_with_the_device() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let g = first.lease.generation;
    let renew = |generation| b.sessions.renew_session("t", &SessionCaller::ANYBODY, generation, &[], b.t0);
    b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
    renew(g).unwrap();
    assert_eq!(b.nic.live(), (2, 6));
    b.nic.lose();
    b.nic.come_back();
    // The earlier numbers now belong to others.
    let renewed = renew(g).unwrap();
    assert_eq!((b.nic.live(), renewed.grant.former), ((2, 5), vec![]));
    renew(renewed.lease.generation).unwrap();
    assert_eq!(b.nic.live(), (2, 5));
    // A grant that cannot be made leaves the waiting key.
    b.sessions.stores.replace_memory(b.sessions.stores.successor("flows").unwrap(), false).unwrap();
    let waits = renew(renewed.lease.generation).unwrap();
    assert_eq!(b.nic.live(), (2, 6));
    b.nic.break_pair(waits.grant.queue_pairs[0].info.qpn, 70);
    b.nic.fails_in.store(1, Ordering::Relaxed);
    assert!(refusal(renew(renewed.lease.generation)).contains("no neighbour"));
    assert_eq!(b.nic.live(), (2, 6));
    let again = renew(renewed.lease.generation).unwrap();
    assert_eq!((keys(&again), again.grant.former), (keys(&waits), waits.grant.former));
}

#[test]
fn a_translator_that_begins_anew_gets_new_rc_queue_pairs() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let numbers = |s: &GrantedSession| s.grant.queue_pairs.iter().map(|q| q.info.qpn).collect::<Vec<_>>();
    let again = b.sessions.open(&request("t", 50), b.t0).unwrap();
    assert_eq!(numbers(&again), numbers(&first));
    let fresh = b.sessions.open(&OpenRequest { fresh: true, ..request("t", 50) }, b.t0).unwrap();
    // UC cannot mix anything up.
    assert_eq!(numbers(&fresh)[0], numbers(&first)[0]);
    assert_ne!(numbers(&fresh)[1], numbers(&first)[1]);
    assert_eq!(
        fresh.grant.queue_pairs[1].replaced,
        Some(RetiredQueuePair { qpn: numbers(&first)[1], expected_psn: 9 })
    );
    assert!(fresh.lease.generation > first.lease.generation);
    assert_eq!(fresh.grant.regions, first.grant.regions);
    assert_eq!(b.nic.live(), (2, 5));
}

#[test]
fn a_device_that_was_lost_gives_everything_anew_and_nothing_of_before_is_ended_in_its_stead() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    b.nic.lose();
    // The lease goes on and counters are taken while the device is away.
    let counters = NodeCounters {
        node: "translator/t".into(),
        life: 1,
        time_us: 1,
        counters: vec![("received".into(), 5)],
    };
    let s = |n| b.t0 + Duration::from_secs(n);
    assert!(
        refusal(b.sessions.renew_session(
            "t",
            &SessionCaller::ANYBODY,
            first.lease.generation,
            &[counters],
            s(9)
        ))
        .contains("away")
    );
    assert_eq!(b.sessions.statistics()[0].counters, [("received".to_owned(), 5)]);
    b.sessions.run_upkeep(s(18)).unwrap();

    b.nic.come_back();
    let renewed =
        b.sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], s(18)).unwrap();
    assert!(renewed.lease.generation > first.lease.generation);
    // The numbers are the same as before: ending the old ones by number would end the new ones.
    let numbers = |session: &GrantedSession| pairs(session).iter().map(|pair| pair.0).collect::<Vec<_>>();
    assert_eq!(numbers(&renewed), numbers(&first));
    // Their generations tell them apart.
    assert!(generations(&renewed).iter().all(|g| *g == renewed.lease.generation));
    assert_eq!(b.nic.live(), (2, 5));
    assert_eq!(b.sessions.session_counters().queue_pairs_rebuilt, 2);
    b.sessions.end_session("t", &SessionCaller::ANYBODY, None, s(18)).unwrap();
    assert_eq!(b.nic.live(), (0, 0));
}

#[test]
fn rc_can_be_asked_for_writes() {
    let (nic, t0) = (Books::new(), Instant::now());
    let sessions =
        CollectorSessions::open_state(nic, stores(&MemoryBacking::Anonymous), Transport::Rc, None, t0)
            .unwrap();
    let session = sessions.open(&request("t", 50), t0).unwrap();
    assert!(session.grant.queue_pairs.iter().all(|p| p.transport == dta_memory::nic::Transport::Rc));
}

#[test]
fn a_new_writer_continues_where_lists_stand() {
    let b = bench();
    let stores = b.sessions.stores.clone();
    let region = stores.get("events").unwrap().region.clone();
    let mut batch = [0u8; 64];
    // Sequence 5 was lost, so its place still holds 1.
    for sequence in [1u32, 2, 3, 4, 6] {
        append::encode_batch(&mut batch, 3, sequence, 1, &[1, 2, 3, 4]);
        region.write(append::batch_offset(3, sequence, 4, 64), &batch).unwrap();
    }
    let session = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let at = |sequence| [ListPosition { store: "events".into(), list: 3, sequence }];
    assert_eq!(session.positions, at(6));
    // The next translator: batches 7 to 10 may have been sent and lost, unless its predecessor said goodbye.
    let anew = || b.sessions.open(&OpenRequest { fresh: true, ..request("t", 50) }, b.t0).unwrap();
    assert_eq!(anew().positions, at(10));
    assert_eq!(anew().positions, at(10), "the same, as nothing was written");
    b.sessions.note_leaving("t", true);
    assert_eq!(anew().positions, at(6));
    b.sessions.note_leaving("t", false);
    assert_eq!(anew().positions, at(10));
    b.sessions.end_session("t", &SessionCaller::ANYBODY, None, b.t0).unwrap();
    let of_one_list = b.sessions.open(&lists(wanting("t", &["events"]), "events", 4, 1), b.t0).unwrap();
    assert!(of_one_list.positions.is_empty());
}

#[test]
fn a_restarted_collector_knows_its_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let memory = MemoryBacking::Directory(dir.path().to_owned());
    let open = || {
        let nic = Books::new();
        let sessions = CollectorSessions::open_state(
            nic.clone(),
            stores(&memory),
            Transport::Uc,
            Some(dir.path().to_owned()),
            Instant::now(),
        );
        (nic, sessions.unwrap())
    };
    let (_, sessions) = open();
    let t0 = Instant::now();
    let first = sessions.open(&request("t", 50), t0).unwrap();
    let counters = NodeCounters {
        node: "translator/t".into(),
        life: 1,
        time_us: 1,
        counters: vec![("received".into(), 5)],
    };
    sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[counters], t0).unwrap();
    sessions.run_upkeep(t0).unwrap();
    // Nothing is shut down in order, as with a kill.
    drop(sessions);
    assert!(region_path(dir.path(), "flows").exists());

    let (nic, sessions) = open();
    let t1 = Instant::now();
    assert_eq!(nic.live(), (0, 0));
    assert_eq!(sessions.list_sessions(t1).unwrap()[0].lease.name, "t");
    assert_eq!(sessions.statistics()[0].counters, [("received".to_owned(), 5)]);
    assert!(refusal(sessions.open(&wanting("other", &["paths"]), t1)).contains("\"t\""));
    let resumed =
        sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], t1).unwrap();
    assert!(resumed.lease.generation > first.lease.generation);
    assert_eq!(nic.live(), (2, 5));
    assert_eq!(sessions.session_counters().queue_pairs_rebuilt, 2);
    // A lease has its full time again after the restart.
    sessions.run_upkeep(t1 + Duration::from_secs(11)).unwrap();
    assert_eq!(nic.live(), (0, 0));
    drop(sessions);

    let (_, sessions) = open();
    assert!(sessions.list_sessions(Instant::now()).unwrap().is_empty(), "an expired session stays away");
}

#[test]
fn queue_pairs_begin_elsewhere_where_nobody_knows_how_far_the_ones_before_had_got() {
    let (t0, dir) = (Instant::now(), tempfile::tempdir().unwrap());
    let (_, sessions) = sessions_with_rc(Some(dir.path().to_owned()), t0);
    let first = sessions.open(&request("t", 50), t0).unwrap();
    let psns = |session: &GrantedSession| pairs(session).iter().map(|pair| pair.1).collect::<Vec<_>>();
    assert_eq!(psns(&first), [7, 9]);
    drop(sessions);
    // Both by a renewal and by an open of the same translator.
    let mut seen = psns(&first);
    for opens in [false, true] {
        let (_, sessions) = sessions_with_rc(Some(dir.path().to_owned()), t0);
        let again = match opens {
            false => {
                sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], t0).unwrap()
            }
            true => sessions.open(&request("t", 50), t0).unwrap(),
        };
        seen.extend(psns(&again));
    }
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 6, "{seen:?}");
    assert!(seen.iter().all(|psn| *psn < 1 << 24));
}

#[test]
fn a_preview_gives_and_changes_nothing() {
    let b = bench();
    let s = |n| b.t0 + Duration::from_secs(n);
    let seen = b.sessions.preview_open(&request("t", 50), b.t0).unwrap();
    assert!(!seen.resumed);
    assert_eq!(keys(&seen), [0; 5]);
    assert!(seen.grant.regions.iter().all(|r| r.registration.len != 0));
    assert!(seen.grant.queue_pairs.iter().all(|q| q.info.qpn == 0));
    assert_eq!(generations(&seen), [0; 7]);
    assert_eq!(b.nic.live(), (0, 0));
    assert!(b.sessions.list_sessions(b.t0).unwrap().is_empty());

    // For an existing session: what it holds, whichever address asks, for however long.
    let opened = b.sessions.open(&OpenRequest { lease: None, ..request("t", 50) }, b.t0).unwrap();
    let elsewhere = Endpoint::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)));
    let seen =
        b.sessions.preview_open(&OpenRequest { translator: elsewhere, ..request("t", 70) }, s(1)).unwrap();
    assert!(seen.resumed);
    assert_eq!(seen.grant, opened.grant);
    assert_eq!(seen.lease, opened.lease);
    assert_eq!(b.sessions.list_sessions(s(1_000_000)).unwrap()[0].lease, opened.lease);
    assert_eq!(b.nic.live(), (2, 5));

    // What another session owns is refused, as it would be.
    let error = refusal(b.sessions.preview_open(&wanting("u", &["paths"]), s(1)));
    assert!(error.contains("owned by session \"t\""), "{error}");
    assert_eq!(b.sessions.session_counters().opened, 1);
}

#[test]
fn a_list_asked_for_twice_is_refused_by_name() {
    let b = bench();
    let twice = |first, count| {
        let request = lists(wanting("t", &["events"]), "events", 2, 3);
        b.sessions.open(&lists(request, "events", first, count), b.t0)
    };
    for (first, count, list) in [(2, 3, 2), (0, 3, 2), (4, 1, 4), (0, 8, 2)] {
        assert!(refusal(twice(first, count)).contains(&format!("list {list} of store \"events\"")));
    }
    assert_eq!(b.nic.live(), (0, 0));
    assert_eq!(twice(5, 3).unwrap().lease.lists.len(), 2);
}

#[test]
fn a_translator_that_was_replaced_is_refused_with_the_address_of_the_other() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let elsewhere = Endpoint::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)));
    b.sessions.open(&OpenRequest { translator: elsewhere, ..request("t", 50) }, b.t0).unwrap();
    let error =
        refusal(b.sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], b.t0));
    assert!(error.contains("another translator has opened session \"t\", from 127.0.0.3:4791"), "{error}");
}

#[test]
fn a_session_is_its_openers_alone() {
    let b = bench();
    let caller = |name: &str, operator| SessionCaller {
        identity: Some(name.into()),
        operator,
        sessions: 2,
        address: None,
    };
    let (tor1, tor2, ops) =
        (caller("tor1.example", false), caller("tor2.example", false), caller("ops.example", true));
    let opened = |caller: &SessionCaller| {
        b.sessions.open(&OpenRequest { caller: caller.clone(), ..request("t", 50) }, b.t0)
    };
    let g = opened(&tor1).unwrap().lease.generation;
    // Another owner cannot take it over, renew it or end it, whatever it knows.
    for other in [&tor2, &ops] {
        assert!(refusal(opened(other)).contains("belongs to \"tor1.example\""));
        assert!(refusal(b.sessions.renew_session("t", other, g, &[], b.t0)).contains("tor1.example"));
        assert!(refusal(b.sessions.end_session("t", other, Some((g, &[])), b.t0)).contains("tor1.example"));
    }
    assert!(refusal(b.sessions.end_session("t", &tor2, None, b.t0)).contains("operators"));
    assert_eq!(b.sessions.renew_session("t", &tor1, g, &[], b.t0).unwrap().lease.generation, g);
    // An operator may end it; then the name is free.
    b.sessions.end_session("t", &ops, None, b.t0).unwrap();
    let g = opened(&tor2).unwrap().lease.generation;
    b.sessions.end_session("t", &tor2, Some((g, &[])), b.t0).unwrap();
    // Without TLS, everybody is anybody.
    opened(&tor1).unwrap();
    b.sessions.end_session("t", &SessionCaller::ANYBODY, None, b.t0).unwrap();
}

#[test]
fn one_address_without_tls_leaves_room_for_others() {
    let (stores, now) = (specs(), Instant::now());
    let stores: Vec<&StoreSpec> = stores.iter().collect();
    let mut leases = Leases::default();
    let from = |last: u8| SessionCaller { address: Some([192, 0, 2, last].into()), ..SessionCaller::ANYBODY };
    let ask = |name: String, last| OpenRequest {
        stores: vec!["flows".into()],
        caller: from(last),
        ..request(&name, 50)
    };
    for n in 0..lease::MAX_FROM {
        let lease = leases.prepare_lease(&ask(format!("t{n}"), 1), &stores, now).unwrap();
        leases.insert(lease);
    }
    let refused = leases.prepare_lease(&ask("more".into(), 1), &stores, now).unwrap_err();
    assert!(matches!(&refused, LeaseError::TooMany(why) if why.contains("for one address")), "{refused}");
    // Its own session it may open again, and others still get in.
    leases.prepare_lease(&ask("t0".into(), 1), &stores, now).unwrap();
    leases.prepare_lease(&ask("more".into(), 2), &stores, now).unwrap();
}

#[test]
fn one_certificate_has_so_many_sessions_and_no_more() {
    let b = bench();
    let caller = |name: &str| SessionCaller {
        identity: Some(name.into()),
        operator: false,
        sessions: 2,
        address: None,
    };
    let open = |caller: SessionCaller, name: &str, qpn| {
        let stores = vec!["flows".to_owned()];
        b.sessions.open(&OpenRequest { caller, stores, ..request(name, qpn) }, b.t0)
    };
    open(caller("DNS:tor1.example"), "a", 50).unwrap();
    open(caller("DNS:tor1.example"), "b", 60).unwrap();
    let error = refusal(open(caller("DNS:tor1.example"), "c", 70));
    assert!(error.contains("has 2 sessions") && error.contains("sessions_per_certificate"), "{error}");
    // It may open its own again, and another owner's do not count.
    open(caller("DNS:tor1.example"), "b", 60).unwrap();
    open(caller("DNS:tor2.example"), "c", 70).unwrap();
    b.sessions.end_session("a", &caller("DNS:tor1.example"), None, b.t0).unwrap();
    open(caller("DNS:tor1.example"), "d", 80).unwrap();
    // Without TLS callers cannot be told apart.
    for n in 0..5 {
        open(SessionCaller::ANYBODY, &format!("n{n}"), 100 + 10 * n).unwrap();
    }
}

#[test]
fn owners_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = |t0| {
        let directory = Some(dir.path().to_owned());
        CollectorSessions::open_state(
            Books::new(),
            stores(&MemoryBacking::Anonymous),
            Transport::Uc,
            directory,
            t0,
        )
        .unwrap()
    };
    let (t0, tor1) = (
        Instant::now(),
        SessionCaller { identity: Some("DNS:tor1.example".into()), sessions: 2, ..SessionCaller::ANYBODY },
    );
    let first = open(t0).open(&OpenRequest { caller: tor1.clone(), ..request("t", 50) }, t0).unwrap();
    let again = open(t0);
    let tor2 =
        SessionCaller { identity: Some("DNS:tor2.example".into()), sessions: 2, ..SessionCaller::ANYBODY };
    assert!(refusal(again.end_session("t", &tor2, None, t0)).contains("tor1.example"));
    assert!(again.renew_session("t", &tor1, first.lease.generation, &[], t0).is_ok());
}

#[test]
fn a_device_lost_in_the_middle_of_a_grant_keeps_nothing_that_nobody_holds() {
    // Five keys and two queue pairs: lost in each of the calls that make them.
    for call in 1..=7 {
        let b = bench();
        b.nic.lost_in.store(call, Ordering::Relaxed);
        let g = b.sessions.open(&request("t", 50), b.t0).map(|s| s.lease.generation);
        let g = match g {
            Ok(generation) => generation,
            Err(_) => b.sessions.open(&request("t", 50), b.t0).unwrap().lease.generation,
        };
        b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &[], b.t0).unwrap();
        assert_eq!(b.nic.live(), (2, 5), "lost in call {call} of the open");

        b.nic.lose();
        b.nic.come_back();
        b.nic.lost_in.store(call, Ordering::Relaxed);
        if b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &[], b.t0).is_err() {
            b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &[], b.t0).unwrap();
        }
        b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &[], b.t0).unwrap();
        assert_eq!(b.nic.live(), (2, 5), "lost in call {call} of the renewal");
        b.sessions.end_session("t", &SessionCaller::ANYBODY, None, b.t0).unwrap();
        assert_eq!(b.nic.live(), (0, 0));
    }
}

/// Reporters `of`, each of which has been heard `received` times.
fn reporters(of: std::ops::Range<u32>, received: u64) -> Vec<NodeCounters> {
    of.map(|id| NodeCounters {
        node: format!("reporter/{id}"),
        life: 1,
        time_us: 1,
        counters: vec![("received".into(), received), ("newest".into(), 7)],
    })
    .collect()
}

/// What all nodes of the sessions received, together.
fn received(sessions: &CollectorSessions) -> u64 {
    let nodes = sessions.statistics();
    nodes.iter().flat_map(|n| &n.counters).filter(|(name, _)| name == "received").map(|(_, n)| n).sum()
}

#[test]
fn no_statistics_refuse_a_renewal_and_what_has_no_room_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let t0 = Instant::now();
    let open = || {
        let (directory, stores) = (Some(dir.path().to_owned()), stores(&MemoryBacking::Anonymous));
        CollectorSessions::open_state(Books::new(), stores, Transport::Uc, directory, t0).unwrap()
    };
    // In several calls, as translators do.
    let renew = |sessions: &CollectorSessions, name, generation, nodes: &[NodeCounters]| {
        for call in nodes.chunks(8192) {
            sessions.renew_session(name, &SessionCaller::ANYBODY, generation, call, t0).unwrap();
        }
    };
    let sessions = open();
    let first = sessions.open(&wanting("first", &["flows"]), t0).unwrap().lease.generation;
    let second = sessions.open(&wanting("second", &["flows"]), t0).unwrap().lease.generation;
    // As many as fit, and then some more.
    let (many, more) = (reporters(0..1 << 16, 1), reporters(1 << 16..(1 << 16) + 9000, 1));
    renew(&sessions, "first", first, &many);
    assert_eq!(sessions.session_counters().statistics_no_room, 0);
    renew(&sessions, "second", second, &many);
    assert_eq!(sessions.session_counters().statistics_no_room, (1 << 16) - 256);
    renew(&sessions, "first", first, &more);
    assert_eq!(sessions.session_counters().statistics_no_room, (1 << 16) - 256 + 9000);
    assert_eq!(received(&sessions), (1 << 16) + 256);
    // However often they hand them in, and however high they count.
    renew(&sessions, "second", second, &reporters(0..1 << 16, 1));
    renew(&sessions, "second", second, &reporters(0..1 << 16, 3));
    assert_eq!(received(&sessions), (1 << 16) + 3 * 256);
    sessions.run_upkeep(t0).unwrap();
    drop(sessions);

    let sessions = open();
    assert_eq!(received(&sessions), (1 << 16) + 3 * 256);
    // When there is room again, nothing is counted twice.
    sessions.end_session("first", &SessionCaller::ANYBODY, None, t0).unwrap();
    renew(&sessions, "second", second, &reporters(0..1 << 16, 4));
    let left_out = sessions.session_counters().statistics_no_room;
    assert!(left_out <= 1, "one place is the sum of what has ended");
    assert_eq!(received(&sessions), 5 * (1 << 16) - 4 * left_out);
}

#[test]
fn a_node_whose_names_are_none_refuses_no_renewal() {
    let b = bench();
    let g = b.sessions.open(&request("t", 50), b.t0).unwrap().lease.generation;
    let mut nodes = reporters(0..2, 5);
    nodes[0].node = "two words".into();
    b.sessions.renew_session("t", &SessionCaller::ANYBODY, g, &nodes, b.t0).unwrap();
    assert_eq!(received(&b.sessions), 5);
}

#[test]
fn sessions_that_ended_are_folded_into_sums() {
    let b = bench();
    let sessions = 1000;
    for n in 0..sessions {
        let name = format!("t{n}");
        let g = b.sessions.open(&wanting(&name, &["flows"]), b.t0).unwrap().lease.generation;
        let nodes = [
            NodeCounters {
                node: format!("translator/{name}"),
                life: 1,
                time_us: 1,
                counters: vec![("received".into(), 10), ("held".into(), 1)],
            },
            reporters(n..n + 1, 3).remove(0),
        ];
        b.sessions.end_session(&name, &SessionCaller::ANYBODY, Some((g, &nodes)), b.t0).unwrap();
    }
    let statistics = b.sessions.statistics();
    assert!(statistics.len() < 600, "{} nodes of sessions that ended", statistics.len());
    let of = |kind: &str, counter: &str| -> u64 {
        let nodes = statistics.iter().filter(|n| n.node.starts_with(kind));
        nodes.flat_map(|n| &n.counters).filter(|(name, _)| name == counter).map(|(_, n)| n).sum()
    };
    assert_eq!(of("translator/", "received"), 10 * u64::from(sessions));
    assert_eq!(of("reporter/", "received"), 3 * u64::from(sessions));
    assert_eq!(
        of("translator/", "held") + of("translator/", "discarded.held_at_restart"),
        u64::from(sessions)
    );
    // The sessions that ended last are still listed individually.
    assert!(statistics.iter().any(|n| n.session == "t999" && n.node == "translator/t999"));
}

#[test]
fn queue_pairs_that_are_broken_again_and_again_are_made_anew_at_intervals() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let mut atomic = first.grant.queue_pairs[1].info.qpn;
    let mut rebuilt = 0;
    // For a minute, somebody breaks the queue pair whenever it works, and the translator renews every 100 ms.
    for n in 0..600u32 {
        let now = b.t0 + Duration::from_millis(100 * u64::from(n));
        b.nic.break_pair(atomic, n);
        let nodes = reporters(0..1, u64::from(n));
        let renewed = b
            .sessions
            .renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &nodes, now)
            .unwrap();
        let pair = renewed.grant.queue_pairs[1].info.qpn;
        rebuilt += u32::from(pair != atomic);
        atomic = pair;
        assert_eq!(received(&b.sessions), u64::from(n), "its counters are taken all the same");
    }
    assert!((10..=20).contains(&rebuilt), "{rebuilt} rebuilds");
    let counted = b.sessions.session_counters();
    assert_eq!(counted.queue_pairs_rebuilt, u64::from(rebuilt));
    assert_eq!(counted.rebuilds_held_back, u64::from(600 - rebuilt));
    // When this stops, the pair works again after a few seconds, and what broke is given back.
    let later = b.t0 + Duration::from_secs(66);
    b.sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], later).unwrap();
    let pairs = b.nic.pairs.lock().unwrap();
    assert!(pairs.iter().all(|p| p.state == QueuePairState::ReadyToReceive));
}

/// The numbers and places of a session's queue pairs.
fn pairs(session: &GrantedSession) -> Vec<(u32, u32, Option<RetiredQueuePair>)> {
    session.grant.queue_pairs.iter().map(|q| (q.info.qpn, q.info.expected_psn, q.replaced)).collect()
}

fn sessions_with_rc(directory: Option<PathBuf>, t0: Instant) -> (Arc<Books>, CollectorSessions) {
    let nic = Books::new();
    let stores = stores(&MemoryBacking::Anonymous);
    let sessions = CollectorSessions::open_state(nic.clone(), stores, Transport::Rc, directory, t0).unwrap();
    (nic, sessions)
}

#[test]
fn a_grant_that_fails_half_way_ends_nothing() {
    let t0 = Instant::now();
    let (nic, sessions) = sessions_with_rc(None, t0);
    let first = sessions.open(&request("t", 50), t0).unwrap();
    let fresh = OpenRequest { fresh: true, ..request("t", 50) };
    let renew = || sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], t0);

    nic.fails_in.store(2, Ordering::Relaxed);
    assert!(refusal(sessions.open(&fresh, t0)).contains("no neighbour"));
    assert_eq!(pairs(&renew().unwrap()), pairs(&first));
    assert_eq!(renew().unwrap().lease.generation, first.lease.generation);

    // Also in a renewal: both broke, and the second cannot be made.
    for (qpn, ..) in pairs(&first) {
        nic.break_pair(qpn, 70);
    }
    nic.fails_in.store(2, Ordering::Relaxed);
    assert!(refusal(renew()).contains("no neighbour"));
    assert_eq!(nic.live(), (2, 5));
    assert_eq!(sessions.session_counters().queue_pairs_rebuilt, 0);
    let renewed = renew().unwrap();
    for (new, old) in pairs(&renewed).into_iter().zip(pairs(&first)) {
        assert_ne!(new.0, old.0);
        assert_eq!((new.1, new.2), (70 + 65_536, Some(RetiredQueuePair { qpn: old.0, expected_psn: 70 })));
    }
    assert_eq!(nic.live(), (2, 5));
    assert_eq!(sessions.session_counters().queue_pairs_rebuilt, 2);
}

#[test]
fn a_grant_that_cannot_be_kept_ends_nothing() {
    let (t0, dir) = (Instant::now(), tempfile::tempdir().unwrap());
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let (nic, sessions) = sessions_with_rc(Some(state.clone()), t0);
    let first = sessions.open(&request("t", 50), t0).unwrap();
    let fresh = OpenRequest { fresh: true, ..request("t", 50) };
    let renew = || sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], t0);

    let away = dir.path().join("away");
    std::fs::rename(&state, &away).unwrap();
    assert!(refusal(sessions.open(&fresh, t0)).contains("cannot keep the session"));
    assert_eq!(pairs(&renew().unwrap()), pairs(&first));
    nic.break_pair(pairs(&first)[1].0, 70);
    assert!(refusal(renew()).contains("cannot keep the session"));
    assert_eq!(nic.live(), (2, 5));

    std::fs::rename(&away, &state).unwrap();
    let renewed = renew().unwrap();
    assert_eq!(pairs(&renewed)[0], pairs(&first)[0]);
    assert_eq!(pairs(&renewed)[1].2, Some(RetiredQueuePair { qpn: pairs(&first)[1].0, expected_psn: 70 }));
    assert_eq!(nic.live(), (2, 5));
}

#[test]
fn an_open_that_resumes_makes_no_more_queue_pairs_anew_than_renewals_may() {
    let b = bench();
    let first = b.sessions.open(&request("t", 50), b.t0).unwrap();
    let fresh = OpenRequest { fresh: true, lease: Some(Duration::from_secs(2)), ..request("t", 50) };
    let (mut atomic, mut rebuilt, mut held_back) = (pairs(&first)[1].0, 0, 0);
    // For a minute, somebody breaks the queue pair or silences it, and the translator reopens its session
    // every 500 ms.
    for n in 0..120u32 {
        let now = b.t0 + Duration::from_millis(500 * u64::from(n));
        if n % 2 == 0 {
            b.nic.break_pair(atomic, n);
        }
        match b.sessions.open(&fresh, now) {
            Ok(session) => {
                rebuilt += 1;
                assert_ne!(pairs(&session)[1].0, atomic);
                atomic = pairs(&session)[1].0;
            }
            Err(error) => {
                held_back += 1;
                assert!(matches!(error, SessionError::HeldBack { .. }), "{error}");
                assert_eq!(b.nic.live(), (2, 5), "all is as it was");
            }
        }
    }
    assert!((10..=20).contains(&rebuilt), "{rebuilt} rebuilds");
    let counted = b.sessions.session_counters();
    assert_eq!((counted.queue_pairs_rebuilt, counted.rebuilds_held_back), (rebuilt, held_back));
    assert_eq!((counted.opened, counted.resumed, counted.expired), (1, rebuilt, 0));
    // Renewals have no more rebuilds left than opens.
    let now = b.t0 + Duration::from_millis(59_500);
    let generation = b.sessions.lock_sessions().leases.get("t").unwrap().generation;
    b.nic.break_pair(atomic, 1);
    let renewed = b.sessions.renew_session("t", &SessionCaller::ANYBODY, generation, &[], now).unwrap();
    assert_eq!(pairs(&renewed)[1].0, atomic);
    // A renewal that needs nothing new gets its session, and after a while everybody does.
    b.sessions.open(&fresh, now + rebuilds::EVERY).unwrap();
    b.sessions.open(&OpenRequest { fresh: false, ..fresh }, now + rebuilds::EVERY).unwrap();
}

#[test]
fn many_ranges_of_lists_are_compared_in_no_time() {
    let kind = StoreKind::Append { lists: 1 << 17, ring: 4, batch_len: 64, entry_len: 4, notify: false };
    let spec = StoreSpec { id: 1, name: "events".into(), kind };
    let t0 = Instant::now();
    // Every other list, from the last one down.
    let ranges = |name, from: u32, of: u32| {
        (0..of).rev().fold(wanting(name, &["events"]), |r, n| lists(r, "events", from + 2 * n, 1))
    };
    let mut leases = Leases::default();
    leases.insert(leases.prepare_lease(&ranges("other", 1, 60_000), &[&spec], t0).unwrap());
    let quickest = |of| {
        let request = ranges("t", 0, of);
        let once = || {
            let began = Instant::now();
            assert_eq!(leases.prepare_lease(&request, &[&spec], t0).unwrap().lists.len(), of as usize);
            began.elapsed()
        };
        (0..5).map(|_| once()).min().unwrap()
    };
    // Ten times as many ranges make a hundred times as many pairs, and each is compared with what others
    // have. A machine under load takes a while to show it.
    let mut seen = Vec::new();
    let grows_little = (0..20).any(|_| {
        seen.push((quickest(6_000), quickest(60_000)));
        seen.last().is_some_and(|(few, many)| *many < *few * 40)
    });
    assert!(grows_little, "for 6,000 ranges, and for 60,000: {seen:?}");
    // Overlaps are still found, and the first one reported.
    let error = |request| leases.prepare_lease(&request, &[&spec], t0).unwrap_err().to_string();
    let twice = error(lists(ranges("t", 0, 60_000), "events", 500, 9));
    assert!(twice.contains("list 500 of store \"events\" is asked for twice"), "{twice}");
    let owned = error(lists(wanting("t", &["events"]), "events", 500, 9));
    assert!(owned.contains("list 501 of store \"events\" is owned by session \"other\""), "{owned}");
    assert!(
        leases.prepare_lease(&lists(wanting("t", &["events"]), "events", 120_000, 9), &[&spec], t0).is_ok()
    );
}

#[test]
fn a_refusal_before_the_counters_are_read_is_counted() {
    let b = bench();
    assert!(refusal(b.sessions.may_renew("t", &SessionCaller::ANYBODY)).contains("no session"));
    assert_eq!(b.sessions.session_counters().refused, 1);
    b.sessions.open(&request("t", 50), b.t0).unwrap();
    b.sessions.may_renew("t", &SessionCaller::ANYBODY).unwrap();
    assert_eq!(b.sessions.session_counters().refused, 1);
}

/// Where a test of this module finds a disk that it may freeze.
const DISK: &str = "DTA_SESSIONS_ON_A_DISK";

/// Reruns a test of this module in a mount namespace with a disk of its own. Whatever happens to the test,
/// the disk thaws after a while.
fn on_a_disk(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mount = "set -e; cd \"$DTA_SESSIONS_ON_A_DISK\"; truncate -s 8M disk; mkfs.ext4 -q disk; mkdir at
        mount -o loop disk at
        (n=0; while [ $n -lt 120 ] && kill -0 $$; do sleep 1; n=$((n + 1)); done; fsfreeze -u at) </dev/null >/dev/null 2>&1 &
        exec \"$@\"";
    let status = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", mount, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("session::tests::{test}"), "--include-ignored", "--nocapture"])
        .env(DISK, folder.path())
        .status()
        .unwrap();
    assert!(status.success());
}

/// A file system that accepts no writes until this is dropped.
struct Frozen(std::path::PathBuf);

impl Frozen {
    fn freeze(folder: &Path) -> Self {
        let status = std::process::Command::new("fsfreeze").arg("-f").arg(folder).status().unwrap();
        assert!(status.success());
        Self(folder.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::process::Command::new("fsfreeze").arg("-u").arg(&self.0).status();
    }
}

#[test]
#[ignore = "mounts a file system and freezes it, which takes root"]
fn sessions_do_not_wait_for_a_disk_that_statistics_and_ended_ones_are_written_to() {
    let Some(folder) = std::env::var_os(DISK) else {
        return on_a_disk("sessions_do_not_wait_for_a_disk_that_statistics_and_ended_ones_are_written_to");
    };
    let folder = Path::new(&folder).join("at");
    let t0 = Instant::now();
    let open = || {
        let stores = stores(&MemoryBacking::Anonymous);
        CollectorSessions::open_state(Books::new(), stores, Transport::Uc, Some(folder.clone()), t0).unwrap()
    };
    let sessions = Arc::new(open());
    let generation = sessions.open(&wanting("t", &["flows"]), t0).unwrap().lease.generation;
    sessions
        .open(&OpenRequest { lease: Some(Duration::from_secs(5)), ..wanting("short", &["flows"]) }, t0)
        .unwrap();
    let renew = move |sessions: &CollectorSessions, value| {
        let now = t0 + Duration::from_secs(6);
        sessions
            .renew_session("t", &SessionCaller::ANYBODY, generation, &reporters(0..2, value), now)
            .unwrap();
    };
    let frozen = Frozen::freeze(&folder);
    let (ticking, renewing) = (sessions.clone(), sessions.clone());
    // The short lease has run out.
    let ticks = std::thread::spawn(move || ticking.run_upkeep(t0 + Duration::from_secs(6)).unwrap());
    let (sender, renewed) = std::sync::mpsc::channel();
    let renews = std::thread::spawn(move || {
        for value in 1..=20 {
            renew(&renewing, value);
            renewing.list_sessions(t0).unwrap();
            sender.send(value).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let last = (0..20).map_while(|_| renewed.recv_timeout(Duration::from_secs(30)).ok()).last();
    let waits = !ticks.is_finished();
    drop(frozen);
    ticks.join().unwrap();
    renews.join().unwrap();
    assert_eq!((last, waits), (Some(20), true));
    // All of it is on disk after the next second.
    sessions.run_upkeep(t0).unwrap();
    drop(sessions);
    let sessions = open();
    assert_eq!(received(&sessions), 40);
    assert_eq!(sessions.list_sessions(t0).unwrap().len(), 1);
}

#[test]
#[ignore = "mounts a file system and freezes it, which takes root"]
fn sessions_do_not_wait_for_a_disk_that_another_is_opened_on() {
    let Some(folder) = std::env::var_os(DISK) else {
        return on_a_disk("sessions_do_not_wait_for_a_disk_that_another_is_opened_on");
    };
    let folder = Path::new(&folder).join("at");
    let t0 = Instant::now();
    let (nic, sessions) = sessions_with_rc(Some(folder.clone()), t0);
    let sessions = Arc::new(sessions);
    let first = sessions.open(&wanting("t", &["flows"]), t0).unwrap();
    let broken = sessions.open(&wanting("broken", &["bytes"]), t0).unwrap();
    nic.break_pair(pairs(&broken)[0].0, 70);

    let frozen = Frozen::freeze(&folder);
    // One is opened, and one gets another queue pair when it renews.
    let (opening, rebuilding) = (sessions.clone(), sessions.clone());
    let opens = std::thread::spawn(move || opening.open(&wanting("slow", &["packets"]), t0));
    let generation = broken.lease.generation;
    let rebuilds = std::thread::spawn(move || {
        rebuilding.renew_session("broken", &SessionCaller::ANYBODY, generation, &[], t0)
    });
    let (sender, counts) = std::sync::mpsc::channel();
    let (renewing, generation) = (sessions.clone(), first.lease.generation);
    let renews = std::thread::spawn(move || {
        while renewing.list_sessions(t0).unwrap().len() < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        for n in 1..=20 {
            // Later than the leases of those two last.
            let now = t0 + Duration::from_secs(n);
            renewing.renew_session("t", &SessionCaller::ANYBODY, generation, &[], now).unwrap();
            renewing.preview_open(&wanting("u", &["paths"]), now).unwrap();
            // The slow session has a key to it, which its translator does not know yet.
            let memory = renewing.stores.get("packets").unwrap().generation;
            assert_eq!(renewing.store_writers("packets", memory), Writers::There);
            sender.send(renewing.list_sessions(now).unwrap().len()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let answers: Vec<_> = (0..20).map_while(|_| counts.recv_timeout(Duration::from_secs(30)).ok()).collect();
    let wait = [opens.is_finished(), rebuilds.is_finished()];
    drop(frozen);
    renews.join().unwrap();
    let slow = opens.join().unwrap().unwrap();
    let rebuilt = rebuilds.join().unwrap().unwrap();
    assert_eq!((answers, wait), (vec![3; 20], [false; 2]));
    assert_eq!(pairs(&rebuilt)[0].2, Some(RetiredQueuePair { qpn: pairs(&broken)[0].0, expected_psn: 70 }));
    assert_eq!((slow.resumed, nic.live()), (false, (6, 3)));
    assert_eq!(sessions.session_counters().queue_pairs_rebuilt, 1);
    // Both are on disk, and expire like any other from now on.
    drop(sessions);
    let (_, sessions) = sessions_with_rc(Some(folder.clone()), t0);
    let known: Vec<_> =
        sessions.list_sessions(t0).unwrap().into_iter().map(|s| (s.lease.name, s.lease.generation)).collect();
    let generation = |session: &GrantedSession| session.lease.generation;
    let expected = [("broken", &rebuilt), ("slow", &slow), ("t", &first)];
    assert_eq!(known, expected.map(|(name, session)| (name.to_owned(), generation(session))));
    assert_eq!(sessions.list_sessions(t0 + Duration::from_secs(60)).unwrap().len(), 0);
}

#[test]
fn who_cannot_be_written_down_leaves_nothing_behind_while_others_go_on() {
    let (t0, dir) = (Instant::now(), tempfile::tempdir().unwrap());
    let (nic, sessions) = sessions_with_rc(Some(dir.path().to_owned()), t0);
    let first = sessions.open(&wanting("t", &["flows"]), t0).unwrap();
    let in_the_way = dir.path().join("sessions.bin.new");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(refusal(sessions.open(&wanting("u", &["packets"]), t0)).contains("cannot keep the session"));
    assert_eq!((sessions.list_sessions(t0).unwrap().len(), nic.live()), (1, (2, 1)));
    std::fs::remove_dir(&in_the_way).unwrap();
    // Its name is free, and so is everything it had asked for.
    sessions.open(&OpenRequest { fresh: true, ..wanting("v", &["packets"]) }, t0).unwrap();
    assert!(!sessions.open(&wanting("u", &["bytes"]), t0).unwrap().resumed);
    sessions.renew_session("t", &SessionCaller::ANYBODY, first.lease.generation, &[], t0).unwrap();
}
