//! The collector on the kernel's soft-RoCE: its devices, and its sessions.
//!
//! Needs `rxe0` on `vrx` (10.9.0.1), whose other end `vtx` is this test's:
//! `testbed/rxe-guest/run-tests` runs it in a guest that has them.
#![cfg(feature = "verbs")]

#[path = "../../crates/memory/tests/rxe_switch/mod.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod rxe_switch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_collector::config::MemoryBacking;
use dta_collector::session::{CollectorSessions, OpenRequest, RequesterQueuePair, SessionCaller};
use dta_memory::nic::{Access, Nic, Purpose, Transport};
use dta_memory::region::RegionOptions;
use dta_memory::store::ServedStores;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::roce::{NakCode, RoceRepr};
use rxe_switch::{PATIENCE, SWITCH_QPN, Switch, ack, counter, nak, open, place, request};

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn the_program_lists_the_device() {
    let list = |more: &[&str]| {
        let program = env!("CARGO_BIN_EXE_dta-collector");
        let ran = std::process::Command::new(program).arg("devices").args(more).output().expect("it runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text")
    };
    let text = list(&[]);
    assert!(text.starts_with("rxe0: atomics ") || text.starts_with("rxe0 (firmware "), "{text}");
    assert!(text.contains("  port 1: active, ethernet, MTU 1024"), "{text}");
    assert!(text.contains(": 10.9.0.1 (RoCE v2)"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&list(&["-o", "json"])).expect("JSON");
    assert_eq!((&json[0]["name"], &json[0]["ports"][0]["state"]), (&"rxe0".into(), &"active".into()));
    assert!(
        json[0]["queue_pairs"].as_u64() > Some(1) && json[0]["atomics_in_flight"].as_u64() >= Some(1),
        "{json}"
    );
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn a_broken_queue_pair_is_rebuilt_and_its_translator_learns_how_it_ended() {
    let (nic, mut switch) = (Arc::new(open()), Switch::new());
    let kind = StoreKind::KeyIncrement { slots: 64, redundancy: 1, replicas: 1 };
    let specs = [StoreSpec { id: 4, name: "bytes".into(), kind }];
    let stores = Arc::new(
        ServedStores::open(&specs, &MemoryBacking::Anonymous, RegionOptions::default()).expect("one store"),
    );
    let region = stores.get("bytes").expect("it is there").region.clone();
    let now = Instant::now();
    let sessions =
        CollectorSessions::open_state(nic.clone(), stores, Transport::Uc, None, now).expect("no state");
    let pair = |purpose, qpn| RequesterQueuePair { purpose, qpn, start_psn: 100 };
    let wanted = OpenRequest {
        name: "switch".into(),
        translator: request(Transport::Rc, Access::ATOMIC, 0).peer,
        queue_pairs: vec![pair(Purpose::Write, SWITCH_QPN + 1), pair(Purpose::Atomic, SWITCH_QPN)],
        lease: Some(Duration::from_secs(60)),
        stores: Vec::new(),
        fresh: false,
        sharing: None,
        lists: Vec::new(),
        caller: SessionCaller::ANYBODY,
    };
    let first = sessions.open(&wanted, now).expect("a session");
    let (qp, to) = (first.grant.queue_pairs[1].info, first.grant.regions[0].registration);
    switch.send(&RoceRepr::fetch_add(place(&qp, 100), to.iova, to.rkey, 1));
    assert_eq!(ack(switch.hear(PATIENCE)), (100, Some(0)));
    switch.send(&RoceRepr::fetch_add(place(&qp, 101), to.iova, to.rkey ^ 0x5a, 1));
    assert_eq!(nak(switch.hear(PATIENCE)), NakCode::RemoteAccessError);

    // The collector looks once a second: seen and counted before anybody asks.
    assert_eq!(counter(&nic, "queue_pairs.errors"), 0);
    sessions.run_upkeep(now).expect("nothing to write");
    assert_eq!(counter(&nic, "queue_pairs.errors"), 1);
    let renewed = sessions
        .renew_session("switch", &SessionCaller::ANYBODY, first.lease.generation, &[], now)
        .expect("renewed");
    assert!(renewed.lease.generation > first.lease.generation);
    assert_eq!(renewed.grant.regions, first.grant.regions, "keys stay");
    assert_eq!(renewed.grant.queue_pairs[0], first.grant.queue_pairs[0], "the whole one stays");
    assert_eq!(sessions.session_counters().queue_pairs_rebuilt, 1);
    let (qp, ended) = (renewed.grant.queue_pairs[1].info, renewed.grant.queue_pairs[1].replaced);
    assert_eq!(ended.map(|ended| ended.expected_psn), Some(101), "what was refused was not executed");
    // Not where the broken one stood: its last answers may still be on their way.
    let next = 101 + 65_536;
    assert_eq!(qp.expected_psn, next);
    switch.send(&RoceRepr::fetch_add(place(&qp, next), to.iova, to.rkey, 1));
    assert_eq!(ack(switch.hear(PATIENCE)), (next, Some(1)));
    assert_eq!(region.load_u64(0).expect("inside"), 2);
    assert_eq!(nic.queue_pairs().expect("rxe0 answers").len(), 2, "the broken one is gone");
}
