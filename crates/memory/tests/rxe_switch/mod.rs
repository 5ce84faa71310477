//! The switch at the other end of `rxe0`, with frames made here.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use dta_link::{Link, PacketConfig, PacketLink};
use dta_memory::nic::verbs::{VerbsNic, VerbsOptions};
use dta_memory::nic::{Access, Endpoint, Nic, Purpose, QueuePairInfo, QueuePairRequest, Transport};
use dta_proto::batch::PacketBatch;
use dta_proto::wire::ethernet::Mac;
use dta_proto::wire::frame::{FrameRoute, Received};
use dta_proto::wire::roce::{self, Aeth, BthFields, NakCode, Psn, RoceRepr, Syndrome};

pub(crate) const COLLECTOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(crate) const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(crate) const COLLECTOR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const SWITCH_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub(crate) const SWITCH_QPN: u32 = 0x123;
/// Long enough for emulation next to other work; expected events take microseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn open() -> VerbsNic {
    let options = VerbsOptions { device: "rxe0".to_owned(), ..VerbsOptions::default() };
    VerbsNic::open(&options).expect("rxe0 opens")
}

/// What the switch at the other end sends and hears.
pub(crate) struct Switch {
    link: PacketLink,
    batch: PacketBatch,
}

impl Switch {
    pub(crate) fn new() -> Switch {
        let link = PacketLink::open(&PacketConfig::new("vtx", [roce::PORT])).expect("raw frames on vtx");
        Switch { link, batch: PacketBatch::with_packet_capacity(8, 4200) }
    }

    pub(crate) fn send(&mut self, packet: &RoceRepr<'_>) {
        let route = FrameRoute {
            ethernet: Some((COLLECTOR_MAC, SWITCH_MAC)),
            ..FrameRoute::new(SWITCH, COLLECTOR, packet.bth.dest_qp)
        };
        let mut frame = vec![0; route.buffer_len(packet)];
        route.write_frame(packet, &mut frame).expect("a frame");
        self.batch.clear();
        self.batch.push_frame(&frame, 0).expect("room");
        assert_eq!(self.link.send(&mut self.batch).expect("vtx sends"), 1);
    }

    /// The next answer within `time`: its AETH, PSN and, for an atomic, the value before.
    pub(crate) fn hear(&mut self, time: Duration) -> Option<(Aeth, u32, Option<u64>)> {
        let end = Instant::now() + time;
        while self
            .link
            .recv(&mut self.batch, Some(end.saturating_duration_since(Instant::now())))
            .expect("vtx hears")
            > 0
        {
            for packet in self.batch.iter() {
                let Ok(received) = Received::parse_packet(packet) else { continue };
                assert_eq!(received.addresses.destination(), SWITCH);
                assert_eq!(received.roce.base_header().dest_qp, SWITCH_QPN);
                let aeth =
                    received.roce.ack_header().expect("a known syndrome").expect("answers have an AETH");
                return Some((aeth, received.roce.base_header().psn.get(), received.roce.atomic_ack()));
            }
        }
        None
    }
}

pub(crate) fn request(transport: Transport, access: Access, receives: u32) -> QueuePairRequest {
    let mut peer = Endpoint::new(IpAddr::V4(SWITCH));
    peer.mac = SWITCH_MAC;
    let purpose = if access.remote_atomic { Purpose::Atomic } else { Purpose::Write };
    QueuePairRequest { purpose, transport, peer, peer_qpn: SWITCH_QPN, start_psn: 100, access, receives }
}

pub(crate) fn place(qp: &QueuePairInfo, psn: u32) -> BthFields {
    BthFields { dest_qp: qp.qpn, psn: Psn::new(psn), ack_req: true }
}

pub(crate) fn counter(nic: &VerbsNic, name: &str) -> u64 {
    nic.named_counters().iter().find(|(n, _)| n == name).map_or(0, |&(_, v)| v)
}

pub(crate) fn ack(answer: Option<(Aeth, u32, Option<u64>)>) -> (u32, Option<u64>) {
    let (aeth, psn, before) = answer.expect("an answer");
    assert!(matches!(aeth.syndrome, Syndrome::Ack { .. }), "{aeth:?}");
    (psn, before)
}

pub(crate) fn nak(answer: Option<(Aeth, u32, Option<u64>)>) -> NakCode {
    let (aeth, ..) = answer.expect("an answer");
    match aeth.syndrome {
        Syndrome::Nak(code) => code,
        other => panic!("{other:?}"),
    }
}
