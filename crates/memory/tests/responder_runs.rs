//! WRITEs that come one after the other for one place are executed together, and come to what they come to one by one. So do
//! those over IPv6.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dta_memory::nic::soft::{Counter, Responder, ResponderConfig};
use dta_memory::nic::{Access, Endpoint, Purpose, QueuePairRequest, Transport};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::batch::PacketBatch;
use dta_proto::wire::AddressPair;
use dta_proto::wire::frame::{FrameRoute, Received};
use dta_proto::wire::roce::{Bth, Opcode, Psn, Reth, RoceRepr};
use proptest::prelude::*;

const IPV4: AddressPair =
    AddressPair::V4 { source: Ipv4Addr::new(10, 9, 0, 2), destination: Ipv4Addr::new(10, 9, 0, 1) };
const IPV6: AddressPair = AddressPair::V6 {
    source: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    destination: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
};
const LEN: u64 = 4096;

struct World {
    /// Of requests.
    addresses: AddressPair,
    responder: Responder,
    regions: [Arc<Region>; 2],
    /// Of both regions, and of none.
    rkeys: [u32; 3],
    /// Two on UC, one on UC that may not write, one on RC, none.
    qpns: [u32; 5],
}

fn world(addresses: AddressPair) -> World {
    let config = ResponderConfig {
        device: "soft".into(),
        ip: addresses.destination(),
        port: 4791,
        mtu: 256,
        max_dest_rd_atomic: 3,
    };
    let mut responder = Responder::new(config);
    let regions = [1u64, 2]
        .map(|n| Arc::new(Region::anonymous(LEN, n << 20, RegionOptions { huge_pages: false }).unwrap()));
    let keys = regions.clone().map(|region| responder.register_region(region, Access::WRITE).unwrap().rkey);
    let none = (1..).find(|key| !keys.contains(key)).unwrap();
    let [a, b, c, d] = [
        (Transport::Uc, Access::WRITE),
        (Transport::Uc, Access::WRITE),
        (Transport::Uc, Access::default()),
        (Transport::Rc, Access::WRITE),
    ]
    .map(|(transport, access)| {
        let request = QueuePairRequest {
            purpose: Purpose::Write,
            transport,
            peer: Endpoint::new(addresses.source()),
            peer_qpn: 7,
            start_psn: 0,
            access,
            receives: 0,
        };
        responder.create_queue_pair(&request).unwrap().qpn
    });
    let nobody = (2..).find(|qpn| ![a, b, c, d].contains(qpn)).unwrap();
    World { addresses, responder, regions, rkeys: [keys[0], keys[1], none], qpns: [a, b, c, d, nobody] }
}

/// A WRITE by numbers.
#[derive(Clone, Debug)]
struct Write {
    qp: usize,
    key: usize,
    offset: u64,
    /// Bytes of payload, and by how many more or fewer the RETH says.
    len: usize,
    off_by: i32,
    fill: u8,
    /// Whether it arrives with another byte than it left with.
    damaged: bool,
}

fn write() -> impl Strategy<Value = Write> {
    (
        prop_oneof![12 => Just(0usize), 4 => 1usize..5],
        prop_oneof![12 => Just(0usize), 4 => 1usize..3],
        prop_oneof![8 => (0u64..8).prop_map(|n| 16 * n), 1 => 0u64..64, 1 => LEN - 20..LEN + 4],
        prop_oneof![8 => Just(16usize), 1 => 0usize..40],
        prop_oneof![12 => Just(0i32), 1 => -1i32..2],
        any::<u8>(),
        prop::bool::weighted(0.05),
    )
        .prop_map(|(qp, key, offset, len, off_by, fill, damaged)| Write {
            qp,
            key,
            offset,
            len,
            off_by,
            fill,
            damaged,
        })
}

fn packet(world: &World, write: &Write, psn: u32) -> Vec<u8> {
    let qpn = world.qpns[write.qp];
    let opcode = if write.qp == 3 { Opcode::RcWriteOnly } else { Opcode::UcWriteOnly };
    let payload = vec![write.fill; write.len];
    let mut bth = Bth::new(opcode, qpn, Psn::new(psn), true);
    bth.pad = (write.len.wrapping_neg() & 3) as u8;
    let reth = Reth {
        va: world.regions[write.key % 2].wire_address() + write.offset,
        rkey: world.rkeys[write.key],
        length: (write.len as u32).wrapping_add_signed(write.off_by),
    };
    let repr = RoceRepr {
        bth,
        reth: Some(reth),
        atomic: None,
        aeth: None,
        atomic_ack: None,
        imm: None,
        payload: &payload,
    };
    let mut packet = vec![0; 200];
    let addresses = &world.addresses;
    let route = FrameRoute::from_addresses(addresses.source(), addresses.destination(), qpn).unwrap();
    let len = route.write_frame(&repr, &mut packet).unwrap();
    packet.truncate(len);
    packet[addresses.datagram_header_len() + 17] ^= u8::from(write.damaged);
    packet
}

/// What both worlds have to agree on.
#[derive(Debug, PartialEq)]
struct Seen {
    memory: Vec<Vec<u8>>,
    counts: Vec<(Counter, u64)>,
    /// PSN expected, and counters.
    queue_pairs: Vec<(u32, Vec<(String, u64)>)>,
    /// From their BTH to before their iCRC.
    answers: Vec<Vec<u8>>,
}

/// The writes in batches of this size.
fn run(writes: &[Write], batch: usize, addresses: AddressPair) -> Seen {
    let mut world = world(addresses);
    let mut output = world.responder.answer_batch(4);
    let mut answers = Vec::new();
    let mut take = |batch: &mut PacketBatch| {
        for packet in batch.iter() {
            let answer = Received::parse_packet(packet).unwrap().addresses;
            assert_eq!(
                (answer.source(), answer.destination()),
                (addresses.destination(), addresses.source())
            );
            answers.push(packet[addresses.datagram_header_len()..packet.len() - 4].to_vec());
        }
        batch.clear();
    };
    let mut psns = [0; 5];
    let packets: Vec<Vec<u8>> = writes
        .iter()
        .map(|write| {
            psns[write.qp] += 1;
            packet(&world, write, psns[write.qp] - 1)
        })
        .collect();
    for packets in packets.chunks(batch) {
        let mut input = PacketBatch::new(packets.len());
        packets.iter().for_each(|packet| input.push(packet, 0).unwrap());
        world.responder.process_packets(&input, &mut output, &mut take);
    }
    take(&mut output);
    let status = world.responder.queue_pairs();
    let of = |qpn: &u32| status.iter().find(|status| status.qpn == *qpn);
    let bytes = |region: &Arc<Region>| {
        let mut bytes = vec![0; LEN as usize];
        region.read(0, &mut bytes).unwrap();
        bytes
    };
    Seen {
        memory: world.regions.iter().map(bytes).collect(),
        counts: Counter::ALL.into_iter().map(|c| (c, world.responder.counts().get(c))).collect(),
        queue_pairs: world
            .qpns
            .iter()
            .filter_map(of)
            .map(|status| (status.expected_psn, status.counters.clone()))
            .collect(),
        answers,
    }
}

proptest! {
    #[test]
    fn a_batch_comes_to_what_its_packets_come_to_one_by_one(writes in prop::collection::vec(write(), 1..150)) {
        let alone = run(&writes, 1, IPV4);
        prop_assert_eq!(&run(&writes, 64, IPV4), &alone);
        prop_assert_eq!(&run(&writes, 150, IPV4), &alone);
        prop_assert_eq!(&run(&writes, 150, IPV6), &alone);
    }
}
