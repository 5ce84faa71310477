//! Frames made here, in runs.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_link::{Link, PacketConfig, PacketLink, RunUse, UdpConfig, UdpLink};
use dta_memory::nic::verbs::{GidWish, VerbsNic, VerbsOptions};
use dta_memory::nic::{
    Access, Endpoint, Nic, Purpose, QueuePairInfo, QueuePairRequest, Registration, Transport,
};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::frame::{FetchAddTemplate, FrameRoute, Received, WriteTemplate};
use dta_proto::wire::roce::{self, Psn, Syndrome, settle_icrc};

use crate::ground::{Ground, run};

const COLLECTOR: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);
const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 2);
const FRAMES: usize = 10_000;
/// Frames in flight: fewer than the kernel queues for a CPU, and half of what a link's ring holds.
const BATCH: usize = 200;
const SLOT: usize = 16;
const LEN: u64 = 1 << 21;
/// Where the counter is, behind all slots.
const COUNTER: u64 = LEN - 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// IPv4 ids of the packets that came to a link.
fn ids(tap: &mut PacketLink) -> Vec<u16> {
    let (mut batch, mut ids) = (PacketBatch::with_packet_capacity(BATCH, 8192), Vec::new());
    while tap.recv(&mut batch, Some(Duration::ZERO)).expect("a packet socket") > 0 {
        ids.extend(batch.iter().map(|packet| u16::from_be_bytes([packet[4], packet[5]])));
    }
    ids
}

/// What was sent, and what the device answered.
#[derive(Default)]
struct Sent {
    /// Writes on UC.
    uc: usize,
    /// PSNs of ACKs.
    acknowledged: Vec<u32>,
    /// What was in the counter before each FETCH_ADD.
    before: Vec<u64>,
    /// IPv4 ids of answers.
    ids: Vec<u16>,
}

/// UC and RC writes and FETCH_ADDs in turns, each on its queue pair. Runs come whole through a veth pair, or cut by the
/// sending end, as before a wire: the device sees one packet after another, and takes each.
fn all_frames_are_taken(cut: bool) {
    let _ground = Ground::new();
    if cut {
        assert!(run("ip netns exec switch ethtool -K vtx1 tx-udp-segmentation off"));
    }
    let nic = VerbsNic::open(&VerbsOptions {
        device: "rxe1".to_owned(),
        gid: GidWish { address: Some(COLLECTOR.into()), index: None },
        ..VerbsOptions::default()
    })
    .expect("rxe1 opens");
    assert!(nic.describe_device().endpoint.runs, "it sees ids, so any will do");
    let region = Arc::new(Region::anonymous(LEN, 1 << 40, RegionOptions::default()).expect("memory"));
    let both = Access { remote_write: true, remote_read: false, remote_atomic: true };
    let to = nic.register_region(Arc::clone(&region), both).expect("registered");
    let pairs = [
        (Transport::Uc, Purpose::Write, Access::WRITE),
        (Transport::Rc, Purpose::Write, Access::WRITE),
        (Transport::Rc, Purpose::Atomic, Access::ATOMIC),
    ]
    .map(|(transport, purpose, access)| {
        let peer = Endpoint::new(SWITCH.into());
        let peer_qpn = 0x100 + u32::from(purpose == Purpose::Atomic);
        let request =
            QueuePairRequest { purpose, transport, peer, peer_qpn, start_psn: 0, access, receives: 0 };
        nic.create_queue_pair(&request).expect("a queue pair")
    });
    let mut near = PacketLink::open(&PacketConfig::new("vrx1", [roce::PORT])).expect("raw frames");
    let mut came = Vec::new();
    let sent = std::thread::scope(|scope| {
        let switch = || {
            Ground::enter();
            send(&region, &to, &pairs)
        };
        let switch = scope.spawn(switch);
        while !switch.is_finished() {
            came.extend(ids(&mut near));
            std::thread::sleep(Duration::from_millis(1));
        }
        switch.join().expect("the switch sends")
    });
    came.extend(ids(&mut near));
    if cut {
        let numbered = came.iter().filter(|id| (1..64).contains(*id)).count();
        assert_eq!(came.len(), FRAMES);
        assert!(numbered > FRAMES * 9 / 10, "only {numbered} frames left behind others of their run");
    }

    let received = until("all are counted", || {
        let all = nic.named_counters();
        let received = all.iter().find(|(name, _)| name == "received").map_or(0, |(_, count)| *count);
        (received >= FRAMES as u64).then_some(received)
    });
    assert_eq!(received, FRAMES as u64, "{:?}", nic.named_counters());
    let mut slot = [0; SLOT];
    for number in 0..FRAMES {
        if number % 4 < 3 {
            region.read((number * SLOT) as u64, &mut slot).expect("inside");
            assert_eq!(slot, value(number), "frame {number}");
        }
    }
    assert_eq!(sent.uc, FRAMES / 2);
    // Why a translator takes answers with any id: a device counts them.
    assert!(sent.ids.iter().any(|id| *id >= 64), "{:?}", sent.ids);
    let asked = (1..).map(|nth| nth * BATCH as u32 / 4 - 1).take(FRAMES / BATCH);
    assert_eq!(sent.acknowledged, asked.collect::<Vec<_>>());
    assert_eq!(sent.before, (0..FRAMES as u64 / 4).collect::<Vec<_>>());
    assert_eq!(region.load_u64(COUNTER).expect("inside"), FRAMES as u64 / 4);
}

fn value(number: usize) -> [u8; SLOT] {
    [(number % 255) as u8 + 1; SLOT]
}

fn send(region: &Region, to: &Registration, pairs: &[QueuePairInfo; 3]) -> Sent {
    let config = UdpConfig::roce_in_runs(SocketAddrV4::new(SWITCH, roce::PORT).into());
    let mut link = UdpLink::open(&config).expect("a socket");
    let mut far = PacketLink::open(&PacketConfig::new("vtx1", [roce::PORT])).expect("raw frames");
    let (mut batch, mut answers) = (PacketBatch::new(BATCH), PacketBatch::new(BATCH));
    let mut psns = [0u32; 3];
    let mut sent = Sent::default();
    for first in (0..FRAMES).step_by(BATCH) {
        for number in first..first + BATCH {
            let which = [0, 0, 1, 2][number % 4];
            let (qpn, psn) = (pairs[which].qpn, Psn::new(psns[which]));
            psns[which] += 1;
            let route = FrameRoute::new(SWITCH, COLLECTOR, qpn);
            let addresses = Addresses::from_route(&route, true);
            if which == 2 {
                let template = FetchAddTemplate::new(&route, qpn).expect("a template");
                let slot = batch.add_datagram(template.frame_len(), addresses, 0);
                template.write_frame(psn, true, to.iova + COUNTER, to.rkey, 1, slot).expect("a frame");
                continue;
            }
            let transport = [roce::Transport::Uc, roce::Transport::Rc][which];
            let template = WriteTemplate::new(&route, transport, qpn, SLOT).expect("a template");
            let slot = batch.add_datagram(template.frame_len(), addresses, 0);
            let ack = which == 1 && psns[1].is_multiple_of(BATCH as u32 / 4);
            let va = to.iova + (number * SLOT) as u64;
            template.write_frame(psn, ack, va, to.rkey, &value(number), slot).expect("a frame");
            sent.uc += usize::from(which == 0);
        }
        assert_eq!(link.send(&mut batch).expect("sent"), BATCH);
        let adds = psns[2] as usize;
        until("answers", || {
            link.recv(&mut answers, Some(Duration::ZERO)).expect("a socket");
            for index in 0..answers.len() {
                if answers.id_unknown(index) {
                    settle_icrc(answers.packet_mut(index));
                }
                let answer = Received::parse_packet(answers.packet(index)).expect("a whole answer");
                let aeth = answer.roce.ack_header().expect("known").expect("answers have one");
                assert!(matches!(aeth.syndrome, Syndrome::Ack { .. }), "{aeth:?}");
                match answer.roce.atomic_ack() {
                    Some(before) => sent.before.push(before),
                    None => sent.acknowledged.push(answer.roce.base_header().psn.get()),
                }
            }
            sent.ids.extend(ids(&mut far));
            (sent.before.len() >= adds && sent.acknowledged.len() > first / BATCH).then_some(())
        });
        let last = (first..first + BATCH).rfind(|number| number % 4 < 2).expect("a write on UC");
        let mut slot = [0; SLOT];
        until("the last write", || {
            region.read((last * SLOT) as u64, &mut slot).expect("inside");
            (slot == value(last)).then_some(())
        });
    }
    assert_eq!(link.run_use(), RunUse::BOTH, "they were not refused");
    sent
}

fn until<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(it) = there() {
            return it;
        }
        assert!(Instant::now() < end, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "needs soft-RoCE: run by testbed/rxe-guest/run-tests"]
fn runs_that_are_cut_before_the_wire() {
    all_frames_are_taken(true);
}

#[test]
#[ignore = "needs soft-RoCE: run by testbed/rxe-guest/run-tests"]
fn runs_that_come_whole() {
    all_frames_are_taken(false);
}
