//! IPv6 packets to a responder, whole and broken. That requests come to the same as over IPv4 is tested in
//! `responder_runs.rs`.

use std::net::IpAddr;
use std::sync::Arc;

use dta_memory::nic::soft::{Counter, Responder, ResponderConfig};
use dta_memory::nic::{Access, Endpoint, NicError, Purpose, QueuePairRequest, Transport};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::wire::frame::{FrameRoute, Received};
use dta_proto::wire::roce::{self, BthFields, Psn, RoceRepr, compute_icrc};
use proptest::prelude::*;

const IOVA: u64 = 1 << 20;

struct World {
    responder: Responder,
    region: Arc<Region>,
    rkey: u32,
    qpn: u32,
    route: FrameRoute,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn request(peer: &str) -> QueuePairRequest {
    let access = Access { remote_write: true, remote_read: true, remote_atomic: true };
    QueuePairRequest {
        purpose: Purpose::Atomic,
        transport: Transport::Rc,
        peer: Endpoint::new(ip(peer)),
        peer_qpn: 7,
        start_psn: 0,
        access,
        receives: 0,
    }
}

fn world() -> World {
    let config = ResponderConfig {
        device: "soft".into(),
        ip: ip("fd00::1"),
        port: 4791,
        mtu: 256,
        max_dest_rd_atomic: 3,
    };
    let mut responder = Responder::new(config);
    let region = Arc::new(Region::anonymous(4096, IOVA, RegionOptions { huge_pages: false }).unwrap());
    let access = Access { remote_write: true, remote_read: true, remote_atomic: true };
    let rkey = responder.register_region(region.clone(), access).unwrap().rkey;
    let qpn = responder.create_queue_pair(&request("fd00::2")).unwrap().qpn;
    let route = FrameRoute::from_addresses(ip("fd00::2"), ip("fd00::1"), qpn).unwrap();
    World { responder, region, rkey, qpn, route }
}

impl World {
    fn place(&self, psn: u32) -> BthFields {
        BthFields { dest_qp: self.qpn, psn: Psn::new(psn), ack_req: true }
    }

    fn write(&self, psn: u32) -> Vec<u8> {
        let repr =
            RoceRepr::write(roce::Transport::Rc, self.place(psn), IOVA + 8, self.rkey, b"payload!", None);
        self.packet(&repr)
    }

    fn packet(&self, repr: &RoceRepr<'_>) -> Vec<u8> {
        let mut packet = vec![0; 200];
        let len = self.route.write_frame(repr, &mut packet).unwrap();
        packet.truncate(len);
        packet
    }

    fn answers(&mut self, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut output = self.responder.answer_batch(16);
        self.responder.process_packets(packets, &mut output, &mut |_| panic!("no more than 16 answers"));
        output.iter().map(<[u8]>::to_vec).collect()
    }
}

fn with_icrc(mut packet: Vec<u8>) -> Vec<u8> {
    let covered = packet.len() - 4;
    let icrc = compute_icrc(&packet[..covered]);
    packet[covered..].copy_from_slice(&icrc.to_le_bytes());
    packet
}

#[test]
fn writes_adds_and_reads_are_executed_and_answered() {
    let mut world = world();
    world.region.store_u64(64, 7).unwrap();
    let add = RoceRepr::fetch_add(world.place(1), IOVA + 64, world.rkey, 5);
    let read = RoceRepr::read(world.place(2), IOVA + 8, world.rkey, 8);
    // With padding behind it, as of Ethernet.
    let write = [world.write(0), vec![0; 3]].concat();
    let packets = [write, world.packet(&add), world.packet(&read)];
    let answers = world.answers(&packets);
    let answers: Vec<_> = answers.iter().map(|answer| Received::parse_packet(answer).unwrap()).collect();
    assert_eq!(answers.len(), 3);
    for answer in &answers {
        assert_eq!(
            (answer.addresses.source(), answer.addresses.destination()),
            (ip("fd00::1"), ip("fd00::2"))
        );
        assert_eq!(answer.udp.destination_port(), 4791);
        assert_eq!(answer.roce.base_header().dest_qp, 7);
    }
    assert_eq!(answers[1].roce.atomic_ack(), Some(7));
    assert_eq!(answers[2].roce.payload(), b"payload!");
    assert_eq!(world.region.load_u64(64).unwrap(), 12);
}

#[test]
fn what_is_broken_or_for_others_is_counted() {
    let patched = |at: usize, byte: u8| {
        move |world: &World| {
            let mut packet = world.write(0);
            packet[at] = byte;
            packet
        }
    };
    let cut = |len: usize| move |world: &World| world.write(0)[..len].to_vec();
    type Make = Box<dyn Fn(&World) -> Vec<u8>>;
    let cases: Vec<(&str, Counter, Make)> = vec![
        ("IPv4", Counter::DroppedNotRoce, Box::new(patched(0, 0x45))),
        ("TCP", Counter::DroppedNotRoce, Box::new(patched(6, 6))),
        ("a fragment", Counter::DroppedFragment, Box::new(patched(6, 44))),
        ("another port", Counter::DroppedNotRoce, Box::new(patched(43, 1))),
        ("no IPv6 header", Counter::DroppedLength, Box::new(cut(39))),
        ("no UDP header", Counter::DroppedLength, Box::new(cut(47))),
        ("cut", Counter::DroppedLength, Box::new(cut(80))),
        ("longer than its IPv6 packet", Counter::DroppedLength, Box::new(patched(5, 20))),
        ("no room for a BTH", Counter::DroppedLength, Box::new(patched(45, 20))),
        ("a UDP checksum", Counter::DroppedUdpChecksum, Box::new(patched(47, 1))),
        ("a flipped bit", Counter::DroppedIcrc, Box::new(patched(80, 0xff))),
        (
            "another address",
            Counter::DroppedDestination,
            Box::new(move |world: &World| with_icrc(patched(39, 9)(world))),
        ),
        (
            "another peer",
            Counter::DroppedPeer,
            Box::new(move |world: &World| with_icrc(patched(23, 9)(world))),
        ),
        (
            "a later transport",
            Counter::DroppedVersion,
            Box::new(move |world: &World| with_icrc(patched(49, 1)(world))),
        ),
    ];
    for (name, counter, make) in cases {
        let mut world = world();
        let packet = make(&world);
        assert!(world.answers(&[packet]).is_empty(), "{name}");
        assert_eq!(world.responder.counts().get(counter), 1, "{name}");
        // Nothing of it stays: the request itself is executed.
        let good = world.write(0);
        assert_eq!(world.answers(&[good]).len(), 1, "{name}");
    }
    // Fields that may change on the way.
    let mut world = world();
    let mut packet = world.write(0);
    (packet[0], packet[1], packet[7]) = (0x6a, 0x5a, 3);
    assert_eq!(world.answers(&[packet]).len(), 1);
}

#[test]
fn a_peer_of_the_other_ip_version_is_refused() {
    let error = world().responder.create_queue_pair(&request("10.9.0.2")).unwrap_err();
    assert!(matches!(error, NicError::Request { field: "peer", .. }), "{error}");
    assert!(error.to_string().contains("same IP version"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes(at in 0usize..110, bytes in prop::collection::vec(any::<u8>(), 1..20), cut in 0usize..110, fix: bool) {
        let mut world = world();
        let mut packet = world.write(0);
        packet.iter_mut().skip(at).zip(&bytes).for_each(|(to, from)| *to = *from);
        packet.truncate(packet.len().saturating_sub(cut).max(4));
        let packet = if fix { with_icrc(packet) } else { packet };
        for answer in world.answers(&[packet]) {
            prop_assert!(Received::parse_packet(&answer).is_ok());
        }
    }
}
