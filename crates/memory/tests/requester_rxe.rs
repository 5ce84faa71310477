//! The software NIC on raw frames, and as its peer a real requester: the kernel's soft-RoCE through
//! libibverbs.
//!
//! Needs `rxe0` on `vrx` (10.9.0.1), at whose other end `vtx` the software NIC listens:
//! `testbed/rxe-guest/run-tests` runs it in a guest that has them. The NIC has an address for which
//! the guest's kernel has no neighbour entry: that a requester reaches it at all is ARP answered by
//! the NIC.
#![cfg(feature = "verbs-requester")]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_link::fault::Faults;
use dta_memory::nic::soft::{SoftNic, SoftNicConfig};
use dta_memory::nic::verbs::VerbsOptions;
use dta_memory::nic::verbs::requester::{CompletionStatus, RdmaOperation, Requester, SendCompletion, Work};
use dta_memory::nic::{
    Access, Immediate, Nic, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState, Registration, Transport,
};
use dta_memory::region::{Region, RegionOptions};

const NIC: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 3);
const LEN: u64 = 1 << 16;
const IOVA: u64 = 1 << 40;
/// Where the requester's own memory is: not where the NIC's is, so that one is not taken for the other.
const OWN_IOVA: u64 = 1 << 36;
/// Payload of five packets at a path MTU of 1024, the last neither full nor a multiple of 4.
const FIVE_PACKETS: u32 = 4 * 1024 + 501;
const PSN: u32 = 0xff_fffe;
/// Operations posted at once.
const DEPTH: u32 = 64;
/// Without a limit: the requester resends nothing that was not refused, so packets can be counted however long the
/// guest's one CPU is away.
const TIMEOUT: u8 = 0;
/// Expected events take milliseconds, unless the machine is very busy.
const PATIENCE: Duration = Duration::from_secs(60);
const ALL: Access = Access { remote_write: true, remote_read: true, remote_atomic: true };

fn region(iova: u64) -> Arc<Region> {
    Arc::new(Region::anonymous(LEN, iova, RegionOptions { huge_pages: false }).expect("64 KiB of memory"))
}

fn soft(faults: Faults) -> SoftNic {
    let mut config = SoftNicConfig::new(SocketAddrV4::new(NIC, 4791));
    (config.faults, config.seed) = (faults, 3);
    SoftNic::with_wire(config, &"packet:vtx".parse().unwrap()).expect("raw frames on vtx")
}

/// What a queue pair of the software NIC is made with.
#[derive(Clone, Copy)]
struct Wanted {
    transport: Transport,
    /// Of the region.
    region: Access,
    /// Of the queue pair.
    queue_pair: Access,
    receives: u32,
    timeout: u8,
}

const RC: Wanted =
    Wanted { transport: Transport::Rc, region: ALL, queue_pair: ALL, receives: 0, timeout: TIMEOUT };

/// A requester on rxe0, connected to a queue pair of the NIC with a region of its own.
struct Pair<'a> {
    nic: &'a SoftNic,
    requester: Requester,
    /// The requester's memory.
    own: Arc<Region>,
    /// The NIC's.
    region: Arc<Region>,
    to: Registration,
    queue_pair: QueuePairInfo,
    next: u64,
}

impl Pair<'_> {
    fn new(nic: &SoftNic, wanted: Wanted) -> Pair<'_> {
        let (own, region) = (region(OWN_IOVA), region(IOVA));
        let to = nic.register_region(Arc::clone(&region), wanted.region).expect("registered");
        let options = VerbsOptions { device: "rxe0".to_owned(), ..VerbsOptions::default() };
        let requester =
            Requester::open(&options, wanted.transport, DEPTH, Arc::clone(&own)).expect("rxe0 opens");
        let queue_pair = nic
            .create_queue_pair(&QueuePairRequest {
                purpose: Purpose::Write,
                transport: wanted.transport,
                peer: requester.local_endpoint(),
                peer_qpn: requester.queue_pair_number(),
                start_psn: PSN,
                access: wanted.queue_pair,
                receives: wanted.receives,
            })
            .expect("a queue pair");
        let resources = queue_pair.max_dest_rd_atomic;
        requester
            .connect_peer(&nic.describe_device().endpoint, queue_pair.qpn, PSN, resources, wanted.timeout)
            .expect("connected");
        Pair { nic, requester, own, region, to, queue_pair, next: 0 }
    }

    /// Posts an operation between offset `local` of the requester's memory and offset `remote` of the NIC's.
    fn post(&mut self, operation: RdmaOperation, local: u64, len: u32, remote: u64) -> u64 {
        self.next += 1;
        let (remote, rkey) = (self.to.iova + remote, self.to.rkey);
        let work = Work { id: self.next, operation, local, len, remote, rkey };
        self.requester.post_operation(&work).expect("posted");
        self.next
    }

    /// The completions of `count` operations, in order.
    fn completed(&self, count: usize) -> Vec<SendCompletion> {
        let (mut all, end) = (Vec::new(), Instant::now() + PATIENCE);
        while all.len() < count {
            assert!(
                Instant::now() < end,
                "{} of {count} completed: {:?}",
                all.len(),
                self.nic.named_counters()
            );
            self.requester.completed(&mut all, PATIENCE).expect("rxe0 answers");
        }
        all
    }

    /// Runs one operation to its end.
    fn run(&mut self, operation: RdmaOperation, local: u64, len: u32, remote: u64) -> CompletionStatus {
        let id = self.post(operation, local, len, remote);
        let completed = self.completed(1);
        assert_eq!((completed.len(), completed[0].id), (1, id));
        completed[0].status
    }

    /// State of the NIC's queue pair and the PSN that it expects.
    fn state(&self) -> (QueuePairState, u32) {
        let all = self.nic.queue_pairs().expect("it answers");
        let one = all.iter().find(|q| q.qpn == self.queue_pair.qpn).expect("it is listed");
        (one.state, one.expected_psn)
    }
}

/// Bytes that differ from place to place and from one `seed` to another.
fn pattern(seed: u8, len: u32) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(7).wrapping_add((n >> 8) as u8).wrapping_add(seed) | 1).collect()
}

fn bytes(region: &Region, offset: u64, len: u32) -> Vec<u8> {
    let mut out = vec![0; len as usize];
    region.read(offset, &mut out).expect("inside the region");
    out
}

fn counter(nic: &SoftNic, name: &str) -> u64 {
    nic.named_counters().iter().find(|(n, _)| n == name).map_or(0, |&(_, v)| v)
}

/// The counters that `names` names, in their order.
fn counters<const N: usize>(nic: &SoftNic, names: [&str; N]) -> [u64; N] {
    names.map(|name| counter(nic, name))
}

const WRITE: RdmaOperation = RdmaOperation::Write { immediate: None };

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn rc_write_of_one_packet_and_of_five() {
    let nic = soft(Faults::NONE);
    let mut pair = Pair::new(&nic, RC);
    let (mut packets, mut messages) = (0, 0);
    for (seed, len, at) in [(1, 1, 8), (2, 8, 64), (3, 1024, 3), (4, FIVE_PACKETS, 1001), (5, 5 * 1024, 0)] {
        pair.region.write(0, &vec![0; LEN as usize]).expect("inside the region");
        let sent = pattern(seed, len);
        pair.own.write(128, &sent).expect("inside the region");
        assert_eq!(pair.run(WRITE, 128, len, at), CompletionStatus::Success, "{len} bytes");
        assert_eq!(bytes(&pair.region, at, len), sent, "{len} bytes");
        // And nothing else.
        let around = bytes(&pair.region, 0, LEN as u32);
        let (before, rest) = around.split_at(at as usize);
        assert!(before.iter().chain(&rest[len as usize..]).all(|&b| b == 0), "{len} bytes");
        packets += u64::from(len.div_ceil(1024));
        messages += 1;
        assert_eq!(
            counters(&nic, ["received", "executed.write", "sent.ack"]),
            [packets, packets, messages],
            "{len} bytes: {:?}",
            nic.named_counters()
        );
    }
    assert_eq!(packets, 1 + 1 + 1 + 5 + 5);
    // PSNs went through 2^24.
    assert_eq!(pair.state(), (QueuePairState::ReadyToReceive, packets as u32 - 2));
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn rc_write_with_immediate_wakes_a_reader() {
    let nic = soft(Faults::NONE);
    let mut pair = Pair::new(&nic, Wanted { receives: 2, ..RC });
    let sent = pattern(9, FIVE_PACKETS);
    pair.own.write(0, &sent).expect("inside the region");
    let qpn = pair.queue_pair.qpn;
    for (value, len) in [(0xdead_0001, 4), (0xdead_0002, FIVE_PACKETS)] {
        let write = RdmaOperation::Write { immediate: Some(value) };
        assert_eq!(pair.run(write, 0, len, 0), CompletionStatus::Success);
        let mut heard = Vec::new();
        nic.take_immediates(&mut heard, PATIENCE).expect("it answers");
        assert_eq!(heard, [Immediate { qpn, value, len }]);
        assert_eq!(bytes(&pair.region, 0, len), sent[..len as usize]);
    }
    assert_eq!(counters(&nic, ["executed.write", "immediates", "sent.ack"]), [6, 2, 2]);

    // Three for two receives: the third is sent again until the reader has taken the first.
    for value in 1..=3 {
        pair.post(RdmaOperation::Write { immediate: Some(value) }, 0, 8, 8 * u64::from(value));
    }
    let first = pair.completed(2);
    assert!(first.iter().all(|c| c.status == CompletionStatus::Success), "{first:?}");
    let end = Instant::now() + PATIENCE;
    while counter(&nic, "sent.nak.receiver_not_ready") < 2 {
        assert!(
            Instant::now() < end,
            "the requester tries again after an RNR NAK: {:?}",
            nic.named_counters()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bytes(&pair.region, 24, 8), sent[24..32], "the third is not written yet");
    assert_eq!(counter(&nic, "immediates"), 4);
    let mut heard = Vec::new();
    nic.take_immediates(&mut heard, PATIENCE).expect("it answers");
    assert_eq!(heard.iter().map(|i| i.value).collect::<Vec<_>>(), [1, 2]);
    let third = pair.completed(1);
    assert_eq!((third[0].id, third[0].status), (pair.next, CompletionStatus::Success));
    heard.clear();
    nic.take_immediates(&mut heard, PATIENCE).expect("it answers");
    assert_eq!(heard, [Immediate { qpn, value: 3, len: 8 }]);
    assert_eq!(bytes(&pair.region, 24, 8), sent[..8]);
    assert_eq!(counters(&nic, ["immediates", "executed.write"]), [5, 9]);
    assert_eq!(counter(&nic, "dropped.no_receive"), counter(&nic, "sent.nak.receiver_not_ready"));
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn rc_atomics_change_memory_and_bring_the_value_before() {
    let nic = soft(Faults::NONE);
    let mut pair = Pair::new(&nic, RC);
    let value = |pair: &Pair<'_>| pair.region.load_u64(256).expect("inside");
    let before = |pair: &Pair<'_>| pair.own.load_u64(64).expect("inside");
    let mut expected = 0x0123_4567_89ab_cdefu64;
    pair.region.store_u64(256, expected).expect("inside");
    for add in [1, 0x1_0000_0000, u64::MAX, 0] {
        assert_eq!(pair.run(RdmaOperation::FetchAdd { add }, 64, 8, 256), CompletionStatus::Success);
        assert_eq!(before(&pair), expected);
        expected = expected.wrapping_add(add);
        assert_eq!(value(&pair), expected);
    }
    let swap = RdmaOperation::CompareSwap { compare: expected, swap: 77 };
    assert_eq!(pair.run(swap, 64, 8, 256), CompletionStatus::Success);
    assert_eq!((before(&pair), value(&pair)), (expected, 77));
    let swap = RdmaOperation::CompareSwap { compare: expected, swap: 78 };
    assert_eq!(pair.run(swap, 64, 8, 256), CompletionStatus::Success);
    assert_eq!((before(&pair), value(&pair)), (77, 77), "it was not what it had to be");
    assert_eq!(
        counters(&nic, ["executed.fetch_add", "executed.compare_swap", "sent.atomic_ack", "received"]),
        [4, 2, 6, 6]
    );

    // Many in flight: each brings the value that the one before left.
    let places: Vec<u64> = (0..u64::from(DEPTH)).map(|n| 1024 + 8 * n).collect();
    for &place in &places {
        pair.post(RdmaOperation::FetchAdd { add: 3 }, place, 8, 512);
    }
    let completed = pair.completed(places.len());
    assert!(completed.iter().all(|c| c.status == CompletionStatus::Success), "{completed:?}");
    let before: Vec<u64> = places.iter().map(|&place| pair.own.load_u64(place).expect("inside")).collect();
    assert_eq!(before, (0..u64::from(DEPTH)).map(|n| 3 * n).collect::<Vec<_>>());
    assert_eq!(pair.region.load_u64(512).expect("inside"), 3 * u64::from(DEPTH));
    assert_eq!(counter(&nic, "executed.fetch_add"), 4 + u64::from(DEPTH));
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn rc_read_of_one_packet_and_of_five() {
    let nic = soft(Faults::NONE);
    let mut pair = Pair::new(&nic, RC);
    let kept = pattern(17, LEN as u32);
    pair.region.write(0, &kept).expect("inside");
    let mut packets = 0;
    for (nth, (len, at)) in [(8, 64), (1023, 5), (FIVE_PACKETS, 333), (5 * 1024, 0)].into_iter().enumerate() {
        pair.own.write(0, &vec![0; LEN as usize]).expect("inside");
        assert_eq!(pair.run(RdmaOperation::Read, 2048, len, at), CompletionStatus::Success, "{len} bytes");
        let got = bytes(&pair.own, 0, LEN as u32);
        assert_eq!(got[2048..][..len as usize], kept[at as usize..][..len as usize], "{len} bytes");
        assert!(got[..2048].iter().chain(&got[2048 + len as usize..]).all(|&b| b == 0), "{len} bytes");
        packets += u64::from(len.div_ceil(1024));
        assert_eq!(counters(&nic, ["executed.read", "sent.read_response"]), [nth as u64 + 1, packets]);
    }
    assert_eq!(bytes(&pair.region, 0, LEN as u32), kept, "reading changes nothing");
    assert_eq!(counter(&nic, "received"), 4);
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn uc_write_of_one_packet_and_of_five() {
    let nic = soft(Faults::NONE);
    let mut pair = Pair::new(&nic, Wanted { transport: Transport::Uc, ..RC });
    let mut packets = 0;
    for (seed, len, at) in [(1, 8, 64), (2, FIVE_PACKETS, 4096), (3, 64, 8)] {
        let sent = pattern(seed, len);
        pair.own.write(0, &sent).expect("inside");
        assert_eq!(pair.run(WRITE, 0, len, at), CompletionStatus::Success, "{len} bytes");
        packets += u64::from(len.div_ceil(1024));
        // It completes when it was sent; the NIC has it a little later.
        let end = Instant::now() + PATIENCE;
        while counter(&nic, "executed.write") < packets {
            assert!(Instant::now() < end, "{len} bytes: {:?}", nic.named_counters());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(bytes(&pair.region, at, len), sent, "{len} bytes");
    }
    let sent: u64 =
        nic.named_counters().iter().filter(|(name, _)| name.starts_with("sent.")).map(|(_, n)| n).sum();
    assert_eq!((counter(&nic, "received"), packets, sent), (7, 7, 0));

    // A write that is refused says nothing, and the next one lands.
    let good = pair.to;
    pair.to.rkey ^= 0x55;
    assert_eq!(pair.run(WRITE, 0, 8, 1024), CompletionStatus::Success);
    pair.to = good;
    assert_eq!(pair.run(WRITE, 0, 8, 2048), CompletionStatus::Success);
    let end = Instant::now() + PATIENCE;
    while counter(&nic, "executed.write") < packets + 1 {
        assert!(Instant::now() < end, "{:?}", nic.named_counters());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(counter(&nic, "dropped.rkey"), 1);
    assert_eq!(bytes(&pair.region, 1024, 8), [0; 8]);
    assert_eq!(bytes(&pair.region, 2048, 8), pattern(3, 8));
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn what_is_not_granted_is_refused() {
    let nic = soft(Faults::NONE);
    let add = RdmaOperation::FetchAdd { add: 1 };
    let swap = RdmaOperation::CompareSwap { compare: 0, swap: 1 };
    let region = |region| Wanted { region, ..RC };
    let queue_pair = |queue_pair| Wanted { queue_pair, ..RC };
    let (access, request) = (CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequest);
    let nothing_wrong = |_: &mut Pair<'_>| {};
    type Spoil = fn(&mut Pair<'_>);
    let cases: [(&str, Wanted, Spoil, RdmaOperation, CompletionStatus, &str); 10] = [
        ("wrong key", RC, |pair| pair.to.rkey ^= 0x55, WRITE, access, "dropped.rkey"),
        ("wrong key, atomic", RC, |pair| pair.to.rkey ^= 0x55, add, access, "dropped.rkey"),
        ("wrong key, read", RC, |pair| pair.to.rkey ^= 0x55, RdmaOperation::Read, access, "dropped.rkey"),
        ("behind the end", RC, |pair| pair.to.iova += LEN - 4, WRITE, access, "dropped.range"),
        // A region of a key-write store takes WRITEs and nothing else, one of counters takes atomics.
        ("add, rights to write", region(Access::WRITE), nothing_wrong, add, access, "dropped.permission"),
        ("swap, rights to write", region(Access::WRITE), nothing_wrong, swap, access, "dropped.permission"),
        (
            "read, rights to write",
            region(Access::WRITE),
            nothing_wrong,
            RdmaOperation::Read,
            access,
            "dropped.permission",
        ),
        ("write, rights to add", region(Access::ATOMIC), nothing_wrong, WRITE, access, "dropped.permission"),
        (
            "add, queue pair to write",
            queue_pair(Access::WRITE),
            nothing_wrong,
            add,
            request,
            "dropped.permission",
        ),
        (
            "write, queue pair to add",
            queue_pair(Access::ATOMIC),
            nothing_wrong,
            WRITE,
            request,
            "dropped.permission",
        ),
    ];
    for (what, wanted, spoil, operation, status, reason) in cases {
        let mut pair = Pair::new(&nic, wanted);
        pair.own.write(0, &[0xee; 64]).expect("inside");
        let good = pair.to;
        spoil(&mut pair);
        let naks = ["sent.nak.remote_access", "sent.nak.invalid_request", "queue_pair_errors"];
        let (dropped, refused) = (counter(&nic, reason), counters(&nic, naks));
        assert_eq!(pair.run(operation, 0, 8, 0), status, "{what}");
        assert_eq!(counter(&nic, reason), dropped + 1, "{what}: {:?}", nic.named_counters());
        let access_nak = u64::from(status == access);
        assert_eq!(
            counters(&nic, naks),
            [refused[0] + access_nak, refused[1] + 1 - access_nak, refused[2] + 1]
        );
        assert!(bytes(&pair.region, 0, LEN as u32).iter().all(|&b| b == 0), "{what}: nothing is written");
        assert_eq!(bytes(&pair.own, 0, 64), [0xee; 64], "{what}: and nothing came");
        assert_eq!(pair.state().0, QueuePairState::Error, "{what}");
        // The requester's queue pair broke as well.
        assert_eq!(pair.run(WRITE, 0, 8, 0), CompletionStatus::Flushed, "{what}");
        nic.destroy_queue_pair(pair.queue_pair.qpn).expect("ended");
        nic.deregister(good.rkey).expect("ended");
    }
    // A rebuilt queue pair works, with the same requester's device and the same NIC.
    let mut pair = Pair::new(&nic, RC);
    assert_eq!(pair.run(add, 0, 8, 0), CompletionStatus::Success);
    assert_eq!(pair.region.load_u64(0).expect("inside"), 1);
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn lost_answers_are_asked_for_again_and_nothing_is_done_twice() {
    const ROUNDS: u64 = 8;
    let nic = soft("drop=0.05".parse().expect("faults"));
    // 17 ms, a few ticks of the guest's kernel: each lost answer at the end of a round costs that.
    let mut pair = Pair::new(&nic, Wanted { timeout: 12, ..RC });
    pair.region.write(4096, &pattern(5, 4096)).expect("inside");
    let mut adds = 0;
    for round in 0..ROUNDS {
        // Adds, writes and reads in turns, 63 in flight.
        for n in 0..u64::from(DEPTH) / 3 {
            pair.post(RdmaOperation::FetchAdd { add: 1 }, 8 * n, 8, 0);
            let mark = round * 1000 + n + 1;
            pair.own.store_u64(1024 + 8 * n, mark).expect("inside");
            pair.post(WRITE, 1024 + 8 * n, 8, 1024 + 8 * n);
            pair.post(RdmaOperation::Read, 8192 + 512 * n, 512, 4096 + 64 * n);
        }
        let completed = pair.completed(DEPTH as usize / 3 * 3);
        assert!(
            completed.iter().all(|c| c.status == CompletionStatus::Success),
            "{completed:?}: {:?}",
            nic.named_counters()
        );
        for n in 0..u64::from(DEPTH) / 3 {
            assert_eq!(pair.own.load_u64(8 * n).expect("inside"), adds, "round {round}, add {n}");
            adds += 1;
            assert_eq!(pair.region.load_u64(1024 + 8 * n).expect("inside"), round * 1000 + n + 1);
            let expected = bytes(&pair.region, 4096 + 64 * n, 512);
            assert_eq!(bytes(&pair.own, 8192 + 512 * n, 512), expected, "round {round}, read {n}");
        }
    }
    assert_eq!(pair.region.load_u64(0).expect("inside"), adds);
    assert_eq!(counter(&nic, "executed.fetch_add"), adds);
    // That answers were lost, and that the requester did ask again, or this test shows nothing. The
    // link's counters come every 100 ms.
    let until = Instant::now() + Duration::from_secs(60);
    while counter(&nic, "faults.dropped") == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let again: u64 = counters(&nic, ["duplicate.write", "duplicate.atomic", "duplicate.read"]).iter().sum();
    assert!(again > 0 && counter(&nic, "faults.dropped") > 0, "{:?}", nic.named_counters());
    assert_eq!(pair.state().0, QueuePairState::ReadyToReceive);
}
