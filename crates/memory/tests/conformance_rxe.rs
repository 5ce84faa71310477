//! The conformance list, put before the kernel's soft-RoCE through the verbs back end.
//!
//! Needs `rxe0` on `vrx` (10.9.0.1), whose other end `vtx` is this test's:
//! `testbed/rxe-guest/run-tests` runs it in a guest that has them.
#![cfg(feature = "verbs")]

mod conformance;

use std::sync::Arc;
use std::time::Duration;

use conformance::list::{ImmediateSeen, QpState};
use conformance::setup::{Device, Memory, REQUESTER, RESPONDER, set_up};
use conformance::{Answer, Backend, Case, Handles, State, cases, run};
use dta_link::{Link, PacketConfig, PacketLink};
use dta_memory::nic::verbs::{VerbsNic, VerbsOptions};
use dta_memory::nic::{
    self, Access, Endpoint, Nic, NicError, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState,
    Registration,
};
use dta_memory::region::Region;
use dta_proto::batch::PacketBatch;
use dta_proto::wire::frame::{FrameRoute, Received};
use dta_proto::wire::roce::{self, BthFields, Psn, RoceRepr};

/// From the switch's side to the collector's, IPv4.
const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];

/// Peer of the queue pair that shows when the device is done with everything sent before.
const FENCE_PEER: u32 = 0x777;
/// For the answer of the fence: it comes in microseconds, unless the machine is very busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// After the fence's answer, how long others may still come.
const QUIET: Duration = Duration::from_millis(20);

/// The device, and the other end of its wire.
struct Rxe {
    nic: VerbsNic,
    link: PacketLink,
    memory: Memory,
    qpn: u32,
    fence: Fence,
}

/// A queue pair of its own. The device handles frames in the order of their coming, so when a write
/// here is answered, what came before has been handled.
struct Fence {
    qpn: u32,
    psn: Psn,
}

impl Device for VerbsNic {
    fn register(&mut self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        Nic::register_region(self, region, access)
    }

    fn deregister(&mut self, rkey: u32) -> Result<(), NicError> {
        Nic::deregister(self, rkey)
    }

    fn create_queue_pair(&mut self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        Nic::create_queue_pair(self, request)
    }
}

fn open(resources: u8) -> (VerbsNic, Fence) {
    let nic = VerbsNic::open(&VerbsOptions {
        device: "rxe0".to_owned(),
        max_dest_rd_atomic: Some(resources),
        ..VerbsOptions::default()
    })
    .expect("rxe0 opens");
    assert_eq!(nic.describe_device().mtu, 1024, "the list is written for a path MTU of 1024");
    let request = QueuePairRequest {
        purpose: Purpose::Write,
        transport: nic::Transport::Rc,
        peer: Endpoint::new(REQUESTER.into()),
        peer_qpn: FENCE_PEER,
        start_psn: 0,
        access: Access::WRITE,
        receives: 0,
    };
    let qpn = nic.create_queue_pair(&request).expect("the fence").qpn;
    (nic, Fence { qpn, psn: Psn::new(0) })
}

impl Rxe {
    fn new() -> Rxe {
        let link = PacketLink::open(&PacketConfig::new("vtx", [roce::PORT])).expect("raw frames on vtx");
        let (nic, fence) = open(16);
        Rxe { nic, link, memory: Memory::default(), qpn: 0, fence }
    }

    fn push(batch: &mut PacketBatch, packet: &[u8]) {
        batch.push(packet, 0).expect("room");
        batch.set_ethernet(batch.len() - 1, &ETHERNET);
    }
}

impl Backend for Rxe {
    fn set_up(&mut self, case: &Case) -> Handles {
        // Everything from scratch: this ends whatever the last case did to the device's objects.
        (self.nic, self.fence) = open(case.resources);
        let (memory, handles) = set_up(&mut self.nic, case);
        (self.memory, self.qpn) = (memory, handles.qpn);
        handles
    }

    fn send(&mut self, packets: &[Vec<u8>]) -> Vec<Answer> {
        let mut batch = PacketBatch::with_packet_capacity(packets.len() + 1, 4200);
        for packet in packets {
            Rxe::push(&mut batch, packet);
        }
        let place = BthFields { dest_qp: self.fence.qpn, psn: self.fence.psn, ack_req: true };
        let probe = RoceRepr::write(roce::Transport::Rc, place, 0, 0, &[], None);
        let mut frame = [0; 128];
        let len =
            FrameRoute::new(REQUESTER, RESPONDER, self.fence.qpn).write_frame(&probe, &mut frame).unwrap();
        Rxe::push(&mut batch, &frame[..len]);
        self.fence.psn = self.fence.psn.next();
        let count = batch.len();
        assert_eq!(self.link.send(&mut batch).expect("vtx sends"), count);

        let mut answers = Vec::new();
        let mut fenced = false;
        let mut input = PacketBatch::with_packet_capacity(64, 4200);
        while self.link.recv(&mut input, Some(if fenced { QUIET } else { PATIENCE })).expect("vtx hears") > 0
        {
            for packet in input.iter() {
                let to_fence = |r: &Received<'_>| r.roce.base_header().dest_qp == FENCE_PEER;
                match Received::parse_packet(packet) {
                    Ok(received) if to_fence(&received) => fenced = true,
                    // Neighbour discovery and the like.
                    _ if packet.first() != Some(&0x45) => {}
                    _ => answers.push(packet.to_vec()),
                }
            }
        }
        assert!(fenced, "the device does not answer its fence");
        answers
    }

    fn memory(&mut self, region: &str) -> Vec<u8> {
        self.memory.bytes(region)
    }

    fn state(&mut self) -> State {
        let all = self.nic.queue_pairs().expect("rxe0 answers");
        let status = all.iter().find(|q| q.qpn == self.qpn).expect("it is listed");
        let state = match status.state {
            QueuePairState::ReadyToReceive => QpState::Rtr,
            QueuePairState::Error => QpState::Error,
        };
        State { state, expected_psn: status.expected_psn }
    }

    fn immediates(&mut self) -> Vec<ImmediateSeen> {
        let mut seen = Vec::new();
        self.nic.read_immediates(&mut seen, Duration::ZERO).expect("rxe0 answers");
        seen.iter().map(|i| ImmediateSeen { value: i.value, len: i.len }).collect()
    }

    fn fates(&mut self) -> Option<Vec<String>> {
        None
    }
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn every_case_of_the_list() {
    let only = std::env::var("DTA_CONFORMANCE_ONLY").ok();
    let mut rxe = Rxe::new();
    let (mut failed, mut same, mut known, mut skipped) = (Vec::new(), 0, 0, 0);
    for case in cases() {
        if only.as_ref().is_some_and(|name| !case.name.contains(name)) {
            continue;
        }
        if let Some(reason) = &case.rxe_skip {
            skipped += 1;
            println!("skipped  {}: {reason}", case.name);
            continue;
        }
        let differences = run(&mut rxe, &case);
        match (&case.rxe_differs, differences.is_empty()) {
            (None, true) => same += 1,
            (None, false) => failed.extend(differences.into_iter().map(|d| format!("{}: {d}", case.name))),
            (Some(reason), false) => {
                known += 1;
                println!("differs  {}: {reason}", case.name);
            }
            (Some(_), true) => {
                failed.push(format!("{}: does not differ any more: strike its reason", case.name))
            }
        }
    }
    println!("{same} cases as the list has them, {known} known to differ, {skipped} skipped");
    assert!(failed.is_empty(), "{} differences:\n{}", failed.len(), failed.join("\n"));
}
