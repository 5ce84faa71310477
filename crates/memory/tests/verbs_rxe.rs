//! The verbs back end on the kernel's soft-RoCE, with frames made here: this test plays the switch.
//!
//! Needs `rxe0` on `vrx` (10.9.0.1), whose other end `vtx` is this test's:
//! `testbed/rxe-guest/run-tests` runs it in a guest that has them.
#![cfg(feature = "verbs")]

mod rxe_switch;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_memory::nic::verbs::{self, GidType, GidWish, VerbsError, VerbsNic, VerbsOptions};
use dta_memory::nic::{
    Access, Endpoint, Immediate, Nic, NicError, QueuePairInfo, QueuePairState, Registration, Transport,
};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::wire::roce::{self, NakCode, RoceRepr, Syndrome};
use rxe_switch::{COLLECTOR, COLLECTOR_MAC, PATIENCE, Switch, ack, counter, nak, open, place, request};

const IOVA: u64 = 1 << 40;
const LEN: u64 = 1 << 21;

fn region() -> Arc<Region> {
    Arc::new(Region::anonymous(LEN, IOVA, RegionOptions::default()).expect("2 MiB of memory"))
}

fn wire(transport: Transport) -> roce::Transport {
    match transport {
        Transport::Uc => roce::Transport::Uc,
        Transport::Rc => roce::Transport::Rc,
    }
}

fn write<'a>(
    transport: Transport,
    qp: &QueuePairInfo,
    psn: u32,
    to: (&Registration, u64),
    payload: &'a [u8],
    immediate: Option<u32>,
) -> RoceRepr<'a> {
    RoceRepr::write(wire(transport), place(qp, psn), to.0.iova + to.1, to.0.rkey, payload, immediate)
}

fn bytes(region: &Region, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    region.read(offset, &mut out).expect("inside the region");
    out
}

/// Waits until the region holds `wanted` at `offset`, or says what it holds.
fn lands(region: &Region, offset: u64, wanted: &[u8]) {
    let end = Instant::now() + PATIENCE;
    while bytes(region, offset, wanted.len()) != wanted {
        assert!(Instant::now() < end, "at {offset}: {:?}", bytes(region, offset, wanted.len()));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn state(nic: &VerbsNic, qp: &QueuePairInfo) -> (QueuePairState, u32) {
    let all = nic.queue_pairs().expect("rxe0 answers");
    let one = all.iter().find(|q| q.qpn == qp.qpn).expect("it is listed");
    (one.state, one.expected_psn)
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn the_device_is_described() {
    let devices = verbs::list_devices().expect("RDMA is there");
    let rxe = devices.iter().find(|d| d.name == "rxe0").expect("rxe0 is listed");
    assert_eq!(rxe.ports.len(), 1);
    assert_eq!((rxe.ports[0].state, rxe.ports[0].link), ("active", "ethernet"));
    let gid =
        rxe.ports[0].gids.iter().find(|g| g.ip_address() == IpAddr::V4(COLLECTOR)).expect("a GID of vrx");
    assert_eq!((gid.kind, gid.interface.as_deref()), (GidType::RoceV2, Some("vrx")));
    assert!(rxe.limits.rd_atomic >= 1 && rxe.limits.queue_pairs > 1, "{:?}", rxe.limits);

    let nic = open();
    let device = nic.describe_device();
    assert_eq!(device.endpoint.ip, IpAddr::V4(COLLECTOR));
    assert_eq!(device.endpoint.mac, COLLECTOR_MAC);
    assert_eq!(device.endpoint.to_gid(), COLLECTOR.to_ipv6_mapped().octets());
    assert!(device.atomics && device.mtu >= 1024, "{device:?}");
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn what_is_not_there_is_named() {
    let open = |options: VerbsOptions| VerbsNic::open(&options).err().expect("refused");
    let device = || "rxe0".to_owned();
    let error = open(VerbsOptions { device: "mlx5_0".to_owned(), ..VerbsOptions::default() });
    assert!(matches!(&error, VerbsError::Away(why) if why.contains("there are: rxe0.")), "{error}");
    let error = open(VerbsOptions { device: device(), port: Some(2), ..VerbsOptions::default() });
    assert!(matches!(&error, VerbsError::Unusable(why) if why.contains("ports 1 to 1, not 2")), "{error}");
    let gid = GidWish { address: None, index: Some(200) };
    let error = open(VerbsOptions { device: device(), gid, ..VerbsOptions::default() });
    assert!(matches!(&error, VerbsError::Away(why) if why.contains("no GID at index 200")), "{error}");

    let nic =
        VerbsNic::open(&VerbsOptions { device: device(), ..VerbsOptions::default() }).expect("rxe0 opens");
    let mut stranger = request(Transport::Rc, Access::WRITE, 0);
    stranger.peer = Endpoint::new("10.9.0.77".parse().expect("an address"));
    let error = nic.create_queue_pair(&stranger).expect_err("nobody answers ARP");
    let NicError::Verbs(VerbsError::Away(why)) = error else { panic!("{error}") };
    assert!(why.starts_with("the peer 10.9.0.77 cannot be reached"), "{why}");
    assert!(matches!(nic.destroy_queue_pair(0x7777), Err(NicError::NoQueuePair { qpn: 0x7777 })));
    assert!(matches!(nic.deregister(1), Err(NicError::NoRegistration)));
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn uc_writes_land_and_errors_do_no_harm() {
    let (nic, mut switch, region) = (open(), Switch::new(), region());
    let to = nic.register_region(region.clone(), Access::WRITE).expect("registered");
    assert_eq!((to.iova, to.len), (IOVA, LEN));
    let qp = nic.create_queue_pair(&request(Transport::Uc, Access::WRITE, 0)).expect("a queue pair");
    assert_eq!(qp.max_dest_rd_atomic, 0);
    assert_eq!(state(&nic, &qp).0, QueuePairState::ReadyToReceive);

    switch.send(&write(Transport::Uc, &qp, 100, (&to, 64), b"first write.", None));
    lands(&region, 64, b"first write.");
    // Ahead, behind, again: UC accepts them all.
    for (n, psn) in [(1, 500), (2, 7), (3, 7)] {
        let payload = [n; 8];
        switch.send(&write(Transport::Uc, &qp, psn, (&to, 128), &payload, None));
        lands(&region, 128, &payload);
    }
    // The last bytes of the region, then one byte further, then a key that is none.
    switch.send(&write(Transport::Uc, &qp, 8, (&to, LEN - 8), b"the end.", None));
    lands(&region, LEN - 8, b"the end.");
    switch.send(&write(Transport::Uc, &qp, 9, (&to, LEN - 4), b"too far.", None));
    let stranger = Registration { rkey: to.rkey ^ 0x5a, ..to };
    switch.send(&write(Transport::Uc, &qp, 10, (&stranger, 192), b"no such.", None));
    switch.send(&write(Transport::Uc, &qp, 11, (&to, 256), b"sentinel", None));
    lands(&region, 256, b"sentinel");
    assert_eq!(bytes(&region, LEN - 8, 8), b"the end.");
    assert_eq!(bytes(&region, 192, 8), [0; 8]);
    assert_eq!(state(&nic, &qp).0, QueuePairState::ReadyToReceive);
    assert_eq!(switch.hear(Duration::from_millis(100)), None, "UC never answers");
    assert!(counter(&nic, "received") >= 8, "{:?}", nic.named_counters());
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn rc_acknowledges_adds_and_falls_into_error() {
    let (nic, mut switch, region) = (open(), Switch::new(), region());
    let both = Access { remote_write: true, remote_read: false, remote_atomic: true };
    let to = nic.register_region(region.clone(), both).expect("registered");
    let qp = nic.create_queue_pair(&request(Transport::Rc, both, 0)).expect("a queue pair");
    assert!(qp.max_dest_rd_atomic >= 1);

    switch.send(&write(Transport::Rc, &qp, 100, (&to, 0), b"acknowledged", None));
    assert_eq!(ack(switch.hear(PATIENCE)), (100, None));
    assert_eq!(bytes(&region, 0, 12), b"acknowledged");
    assert_eq!(state(&nic, &qp), (QueuePairState::ReadyToReceive, 101));

    region.store_u64(64, 40).expect("inside");
    switch.send(&RoceRepr::fetch_add(place(&qp, 101), to.iova + 64, to.rkey, 2));
    assert_eq!(ack(switch.hear(PATIENCE)), (101, Some(40)));
    // A counter is in the host's byte order: the reader's native load gives the sum.
    assert_eq!(region.load_u64(64).expect("inside"), 42);
    // Repeated, it is answered and not added.
    switch.send(&RoceRepr::fetch_add(place(&qp, 101), to.iova + 64, to.rkey, 2));
    assert_eq!(ack(switch.hear(PATIENCE)), (101, Some(40)));
    assert_eq!(region.load_u64(64).expect("inside"), 42);
    switch.send(&RoceRepr::compare_swap(place(&qp, 102), to.iova + 64, to.rkey, 42, 7));
    assert_eq!(ack(switch.hear(PATIENCE)), (102, Some(42)));
    assert_eq!(region.load_u64(64).expect("inside"), 7);

    // A gap, then the probe of a requester that wants to know where it stands.
    switch.send(&write(Transport::Rc, &qp, 110, (&to, 0), b"from later..", None));
    assert_eq!(nak(switch.hear(PATIENCE)), NakCode::PsnSequenceError);
    switch.send(&write(Transport::Rc, &qp, 90, (&Registration { iova: 0, rkey: 0, ..to }, 0), b"", None));
    assert_eq!(ack(switch.hear(PATIENCE)).0, 102);
    assert_eq!(bytes(&region, 0, 12), b"acknowledged");

    let stranger = Registration { rkey: to.rkey ^ 0x5a, ..to };
    switch.send(&write(Transport::Rc, &qp, 103, (&stranger, 0), b"no such key.", None));
    assert_eq!(nak(switch.hear(PATIENCE)), NakCode::RemoteAccessError);
    assert_eq!(state(&nic, &qp).0, QueuePairState::Error);
    assert_eq!(counter(&nic, "queue_pairs.errors"), 1);
    state(&nic, &qp);
    assert_eq!(counter(&nic, "queue_pairs.errors"), 1, "counted once");
    switch.send(&write(Transport::Rc, &qp, 103, (&to, 0), b"is deaf now.", None));
    assert_eq!(switch.hear(Duration::from_millis(200)), None);

    // Rebuilt, it works, over the same region and key.
    nic.destroy_queue_pair(qp.qpn).expect("ended");
    let qp = nic.create_queue_pair(&request(Transport::Rc, both, 0)).expect("a new queue pair");
    switch.send(&write(Transport::Rc, &qp, 100, (&to, 0), b"works again.", None));
    assert_eq!(ack(switch.hear(PATIENCE)).0, 100);
    assert_eq!(bytes(&region, 0, 12), b"works again.");
    // A key whose registration ended is worth nothing.
    nic.deregister(to.rkey).expect("ended");
    switch.send(&write(Transport::Rc, &qp, 101, (&to, 0), b"not any more", None));
    assert_eq!(nak(switch.hear(PATIENCE)), NakCode::RemoteAccessError);
    assert_eq!(bytes(&region, 0, 12), b"works again.");
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn rights_are_the_least() {
    let (nic, mut switch) = (open(), Switch::new());
    let everything = Access { remote_write: true, remote_read: true, remote_atomic: true };
    // The region's rights decide, whatever the queue pair has.
    for (access, writes, adds) in [(Access::WRITE, true, false), (Access::ATOMIC, false, true)] {
        let region = region();
        let to = nic.register_region(region.clone(), access).expect("registered");
        let fresh = || nic.create_queue_pair(&request(Transport::Rc, everything, 0)).expect("a queue pair");
        let qp = fresh();
        switch.send(&write(Transport::Rc, &qp, 100, (&to, 8), b"may land", None));
        let (aeth, ..) = switch.hear(PATIENCE).expect("an answer");
        assert_eq!(matches!(aeth.syndrome, Syndrome::Ack { .. }), writes, "write with {access:?}: {aeth:?}");
        assert_eq!(bytes(&region, 8, 8) == b"may land", writes);
        let qp = fresh();
        switch.send(&RoceRepr::fetch_add(place(&qp, 100), to.iova + 64, to.rkey, 1));
        let (aeth, ..) = switch.hear(PATIENCE).expect("an answer");
        assert_eq!(matches!(aeth.syndrome, Syndrome::Ack { .. }), adds, "add with {access:?}: {aeth:?}");
        assert_eq!(region.load_u64(64).expect("inside"), u64::from(adds));
        let qp = fresh();
        switch.send(&RoceRepr::read(place(&qp, 100), to.iova, to.rkey, 8));
        assert_eq!(nak(switch.hear(PATIENCE)), NakCode::RemoteAccessError, "nobody may read with {access:?}");
    }
    // And the queue pair's, whatever the region has.
    let region = region();
    let to = nic.register_region(region.clone(), everything).expect("registered");
    let qp = nic.create_queue_pair(&request(Transport::Rc, Access::WRITE, 0)).expect("a queue pair");
    switch.send(&RoceRepr::fetch_add(place(&qp, 100), to.iova, to.rkey, 1));
    assert_eq!(nak(switch.hear(PATIENCE)), NakCode::InvalidRequest);
    assert_eq!(region.load_u64(0).expect("inside"), 0);
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn immediates_wake_a_reader() {
    let (nic, mut switch, region) = (open(), Switch::new(), region());
    let to = nic.register_region(region.clone(), Access::WRITE).expect("registered");
    let deaf = nic.create_queue_pair(&request(Transport::Rc, Access::WRITE, 0)).expect("a queue pair");
    switch.send(&write(Transport::Rc, &deaf, 100, (&to, 0), b"no receive", Some(1)));
    let (aeth, ..) = switch.hear(PATIENCE).expect("an answer");
    assert!(matches!(aeth.syndrome, Syndrome::RnrNak { .. }), "{aeth:?}");
    assert_eq!(bytes(&region, 0, 10), [0; 10]);

    let qp = nic.create_queue_pair(&request(Transport::Rc, Access::WRITE, 4)).expect("a queue pair");
    let mut heard = Vec::new();
    let start = Instant::now();
    nic.take_immediates(&mut heard, Duration::from_millis(50)).expect("rxe0 answers");
    assert!(heard.is_empty() && start.elapsed() >= Duration::from_millis(50));
    // Far more than there are receives: they are refilled.
    for n in 0..40u32 {
        let payload = n.to_be_bytes();
        switch.send(&write(Transport::Rc, &qp, 100 + n, (&to, 64), &payload, Some(0xa000_0000 + n)));
        assert_eq!(ack(switch.hear(PATIENCE)).0, 100 + n);
        heard.clear();
        nic.take_immediates(&mut heard, PATIENCE).expect("rxe0 answers");
        assert_eq!(heard, [Immediate { qpn: qp.qpn, value: 0xa000_0000 + n, len: 4 }]);
        assert_eq!(bytes(&region, 64, 4), payload);
    }
    // Several in one batch, and a waiter that is woken while it waits.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut heard = Vec::new();
            while heard.len() < 3 {
                let before = heard.len();
                nic.take_immediates(&mut heard, PATIENCE).expect("rxe0 answers");
                assert!(heard.len() > before, "woken in time");
            }
            heard
        });
        std::thread::sleep(Duration::from_millis(50));
        for n in 0..3 {
            switch.send(&write(Transport::Rc, &qp, 140 + n, (&to, 64), b"wake", Some(n)));
        }
        let heard = waiter.join().expect("the waiter ends");
        assert_eq!(heard.iter().map(|i| i.value).collect::<Vec<_>>(), [0, 1, 2]);
    });
    assert_eq!(counter(&nic, "immediates"), 43);

    // A call that does not wait is not delayed by one that does, and one that waits does so for its whole timeout.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut heard = Vec::new();
            nic.take_immediates(&mut heard, PATIENCE).map(|()| heard)
        });
        std::thread::sleep(Duration::from_millis(50));
        for time in [Duration::ZERO, Duration::from_millis(20)] {
            let (start, mut heard) = (Instant::now(), Vec::new());
            nic.take_immediates(&mut heard, time).expect("rxe0 answers");
            assert!(heard.is_empty() && (time..PATIENCE / 2).contains(&start.elapsed()), "{heard:?}");
        }
        switch.send(&write(Transport::Rc, &qp, 143, (&to, 64), b"wake", Some(143)));
        let heard = waiter.join().expect("the waiter ends").expect("rxe0 answers");
        assert_eq!(heard.iter().map(|i| i.value).collect::<Vec<_>>(), [143]);
    });
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn too_much_locked_memory_names_the_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let nic = open();
    let (limit, rights) = (getrlimit(Resource::Memlock), capabilities(None).expect("capabilities"));
    let mut fewer = rights;
    fewer.effective.remove(CapabilitySet::IPC_LOCK);
    setrlimit(Resource::Memlock, Rlimit { current: Some(1 << 20), maximum: limit.maximum })
        .expect("a lower limit");
    set_capabilities(None, fewer).expect("fewer rights");
    let refused = nic.register_region(region(), Access::WRITE);
    set_capabilities(None, rights).expect("the rights of before");
    setrlimit(Resource::Memlock, limit).expect("the limit of before");
    let error = refused.expect_err("2 MiB are more than 1 MiB");
    let wanted = format!("cannot pin {LEN} bytes for the RDMA device `rxe0` on top of 0 already pinned");
    assert!(
        error.to_string().starts_with(&wanted) && error.to_string().contains("may lock 1048576 "),
        "{error}"
    );
    nic.register_region(region(), Access::WRITE).expect("with the right to lock, it works");
}

/// Asks until there is an answer.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn a_device_that_is_removed_is_let_go_and_used_again_when_it_is_back() {
    let (nic, mut switch, region) = (open(), Switch::new(), region());
    let to = nic.register_region(region.clone(), Access::WRITE).expect("registered");
    let qp = nic.create_queue_pair(&request(Transport::Uc, Access::WRITE, 4)).expect("a queue pair");
    for psn in 100..110 {
        switch.send(&write(Transport::Uc, &qp, psn, (&to, 0), b"first life", None));
    }
    lands(&region, 0, b"first life");
    let received = 10;

    // It is taken away under a reader that waits. The kernel waits until everything made of it is given up.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| nic.take_immediates(&mut Vec::new(), Duration::from_millis(500)));
        let mut removal =
            std::process::Command::new("rdma").args(["link", "delete", "rxe0"]).spawn().expect("rdma runs");
        let gone = until("the loss is seen", || nic.queue_pairs().err());
        assert!(matches!(&gone, NicError::Verbs(error) if error.is_transient()), "{gone}");
        let status = until("the removal ends", || removal.try_wait().expect("it can be asked"));
        assert!(status.success(), "{status}");
        waiter.join().expect("the waiter ends").expect("a loss is not its error");
    });
    assert_eq!((nic.device_epoch(), counter(&nic, "device_lost")), (1, 1));
    assert_eq!(bytes(&region, 0, 10), b"first life");
    assert_eq!(counter(&nic, "received"), received, "counted to the end: {:?}", nic.named_counters());
    switch.send(&write(Transport::Uc, &qp, 110, (&to, 0), b"to nobody.", None));
    assert!(nic.create_queue_pair(&request(Transport::Uc, Access::WRITE, 0)).is_err());

    let added = std::process::Command::new("rdma")
        .args(["link", "add", "rxe0", "type", "rxe", "netdev", "vrx"])
        .status()
        .expect("rdma runs");
    assert!(added.success());
    assert!(until("the device is found", || nic.queue_pairs().ok()).is_empty());
    assert_eq!(nic.device_epoch(), 1);
    assert_eq!(nic.describe_device().endpoint.ip, IpAddr::V4(COLLECTOR));
    assert_eq!(bytes(&region, 0, 10), b"first life");
    let again = nic.register_region(region.clone(), Access::WRITE).expect("registered");
    assert_eq!((again.iova, again.len), (to.iova, to.len));
    let qp = nic.create_queue_pair(&request(Transport::Uc, Access::WRITE, 0)).expect("a queue pair");
    switch.send(&write(Transport::Uc, &qp, 100, (&again, 0), b"other life", None));
    lands(&region, 0, b"other life");
    until("both lives are counted", || (counter(&nic, "received") == received + 1).then_some(()));
}
