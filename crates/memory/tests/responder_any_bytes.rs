//! Whatever comes in, the responder neither panics nor touches memory that was not granted, and
//! every packet and every answer is accounted for.

use std::net::Ipv4Addr;
use std::sync::Arc;

use dta_memory::nic::soft::{Counter, Responder, ResponderConfig};
use dta_memory::nic::{Access, Endpoint, Purpose, QueuePairRequest, Transport};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::batch::PacketBatch;
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{
    AtomicEth, Bth, ImmDt, Opcode, Psn, Reth, RoceRepr, compute_icrc, has_valid_icrc,
};
use proptest::prelude::*;
use proptest::sample::Index;

const RESPONDER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const REQUESTER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const LEN: u64 = 8192;

struct World {
    responder: Responder,
    /// Granted for everything, for reading, for nothing any more.
    regions: [Arc<Region>; 3],
    rkeys: [u32; 3],
    /// RC and UC.
    qpns: [u32; 2],
}

fn world() -> World {
    let config = ResponderConfig {
        device: "soft".into(),
        ip: RESPONDER.into(),
        port: 4791,
        mtu: 256,
        max_dest_rd_atomic: 3,
    };
    let mut responder = Responder::new(config);
    let regions = [1u64, 2, 3]
        .map(|n| Arc::new(Region::anonymous(LEN, n << 20, RegionOptions { huge_pages: false }).unwrap()));
    let all = Access { remote_write: true, remote_read: true, remote_atomic: true };
    let read = Access { remote_read: true, ..Access::default() };
    let rkeys = [(0, all), (1, read), (2, all)]
        .map(|(n, access)| responder.register_region(Arc::clone(&regions[n]), access).unwrap().rkey);
    responder.deregister(rkeys[2]).unwrap();
    let qpns = [Transport::Rc, Transport::Uc].map(|transport| {
        let request = QueuePairRequest {
            purpose: Purpose::Write,
            transport,
            peer: Endpoint::new(REQUESTER.into()),
            peer_qpn: 7,
            start_psn: 0,
            access: all,
            receives: 1,
        };
        responder.create_queue_pair(&request).unwrap().qpn
    });
    World { responder, regions, rkeys, qpns }
}

/// A packet that is nearly right, by numbers.
#[derive(Clone, Debug)]
struct Nearly {
    opcode: Index,
    transport_fits: bool,
    qp: usize,
    /// Less the one expected.
    psn: i32,
    region: usize,
    va: i64,
    length: u32,
    payload: usize,
    ack: bool,
    damage: Vec<(Index, u8)>,
    repair: bool,
    cut: Option<Index>,
    /// Comes twice.
    twice: bool,
}

fn nearly() -> impl Strategy<Value = Nearly> {
    let va = prop_oneof![
        (0i64..8).prop_map(|n| 8 * n),
        0i64..64,
        (LEN as i64 - 300)..(LEN as i64 + 20),
        -20i64..0,
        any::<i64>()
    ];
    let length = prop_oneof![4 => 0u32..300, 1 => 0u32..2000, 1 => any::<u32>()];
    let damage = prop_oneof![
        4 => Just(Vec::new()),
        1 => prop::collection::vec((any::<Index>(), any::<u8>()), 1..3)
    ];
    (
        (
            any::<Index>(),
            prop::bool::weighted(0.9),
            0usize..2,
            prop_oneof![6 => Just(0i32), 2 => -3i32..0, 1 => 1i32..4],
        ),
        (prop_oneof![4 => Just(0usize), 1 => 0usize..3], va, length, 0usize..300, any::<bool>()),
        (
            damage,
            prop::bool::weighted(0.8),
            prop::option::weighted(0.05, any::<Index>()),
            prop::bool::weighted(0.1),
        ),
    )
        .prop_map(
            |(
                (opcode, transport_fits, qp, psn),
                (region, va, length, payload, ack),
                (damage, repair, cut, twice),
            )| Nearly {
                opcode,
                transport_fits,
                qp,
                psn,
                region,
                va,
                length,
                payload,
                ack,
                damage,
                repair,
                cut,
                twice,
            },
        )
}

fn emit(world: &World, n: &Nearly, expected: [u32; 2]) -> Vec<u8> {
    // Atomics and READs once more, because they can be repeated.
    let more = [Opcode::RcFetchAdd, Opcode::RcCmpSwap, Opcode::RcReadRequest, Opcode::RcReadRequest];
    let all: Vec<_> = Opcode::all_opcodes().chain(more).collect();
    let mut opcode = *n.opcode.get(&all);
    if n.transport_fits {
        let byte = opcode.to_byte() & 0x1f | if n.qp == 1 { 0x20 } else { 0 };
        opcode = Opcode::from_byte(byte).unwrap_or(opcode);
    }
    let shape = opcode.header_layout();
    let va = world.regions[n.region].wire_address().wrapping_add_signed(n.va);
    let rkey = world.rkeys[n.region];
    let payload = vec![0xee; n.payload];
    // Half of the WRITEs have the length that their payload has.
    let length = if n.ack { n.payload as u32 } else { n.length };
    let mut bth =
        Bth::new(opcode, world.qpns[n.qp], Psn::new(expected[n.qp].wrapping_add_signed(n.psn)), n.ack);
    let payload: &[u8] = if shape.payload { &payload } else { &[] };
    bth.pad = (payload.len().wrapping_neg() & 3) as u8;
    let repr = RoceRepr {
        bth,
        reth: shape.reth.then_some(Reth { va, rkey, length }),
        atomic: shape.atomic.then_some(AtomicEth { va, rkey, swap_add: 5, compare: 0 }),
        aeth: shape.aeth.then_some(dta_proto::wire::roce::Aeth {
            syndrome: dta_proto::wire::roce::Syndrome::ACK,
            msn: 1,
        }),
        atomic_ack: shape.atomic_ack.then_some(3),
        imm: shape.imm.then_some(ImmDt(9)),
        payload,
    };
    let mut packet = vec![0; 1024];
    let len =
        FrameRoute::new(REQUESTER, RESPONDER, world.qpns[n.qp]).write_frame(&repr, &mut packet).unwrap();
    packet.truncate(len);
    for (at, value) in &n.damage {
        let at = at.index(packet.len());
        packet[at] = *value;
    }
    if let Some(cut) = n.cut {
        packet.truncate(cut.index(packet.len()));
    }
    if n.repair
        && let Some(covered) = packet.len().checked_sub(4)
    {
        let crc = compute_icrc(&packet[..covered]).to_le_bytes();
        packet[covered..].copy_from_slice(&crc);
    }
    packet
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).unwrap();
    bytes
}

fn check(world: &mut World, packets: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let mut input = PacketBatch::new(packets.len().max(1));
    packets.iter().for_each(|packet| input.push(packet, 0).unwrap());
    let mut output = world.responder.answer_batch(2);
    let mut answers = Vec::new();
    let mut take = |batch: &mut PacketBatch| {
        answers.extend(batch.iter().map(<[u8]>::to_vec));
        batch.clear();
    };
    let executed = |world: &World| -> u64 {
        use Counter::{ExecutedCompareSwap, ExecutedFetchAdd, ExecutedWrite};
        [ExecutedWrite, ExecutedFetchAdd, ExecutedCompareSwap]
            .map(|c| world.responder.counts().get(c))
            .iter()
            .sum()
    };
    let sent = |world: &World| -> u64 {
        let sent = Counter::ALL.into_iter().filter(|c| c.name().starts_with("sent."));
        sent.map(|c| world.responder.counts().get(c)).sum()
    };
    let sent_before = sent(world);
    let (before, done) = (bytes(&world.regions[0]), executed(world));
    world.responder.process_packets(&input, &mut output, &mut take);
    take(&mut output);
    prop_assert_eq!(world.responder.counts().unfinished(), 0);
    prop_assert!(bytes(&world.regions[1]).iter().all(|&b| b == 0), "a region for reading was written");
    prop_assert!(bytes(&world.regions[2]).iter().all(|&b| b == 0), "an ended registration was written");
    if executed(world) == done {
        prop_assert!(bytes(&world.regions[0]) == before, "written, but not counted");
    }
    for answer in &answers {
        prop_assert!(has_valid_icrc(answer));
    }
    prop_assert_eq!(sent(world) - sent_before, answers.len() as u64);
    Ok(())
}

/// All packets, in batches, as they come.
fn run(world: &mut World, list: &[Nearly]) -> Result<(), TestCaseError> {
    for batch in list.chunks(7) {
        let status = world.responder.queue_pairs();
        let mut expected =
            world.qpns.map(|qpn| status.iter().find(|s| s.qpn == qpn).map_or(0, |s| s.expected_psn));
        let packets: Vec<_> = batch
            .iter()
            .flat_map(|n| {
                let packet = emit(world, n, expected);
                expected[n.qp] += u32::from(n.psn == 0);
                vec![packet; 1 + usize::from(n.twice)]
            })
            .collect();
        check(world, &packets)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20)) {
        check(&mut world(), &packets)?;
    }

    #[test]
    fn nearly_right_packets(list in prop::collection::vec(nearly(), 1..60)) {
        let mut world = world();
        run(&mut world, &list)?;
    }
}

/// If the packets of the property test were all refused at the door, it would show nothing.
#[test]
fn nearly_right_packets_reach_everything() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..2000 {
        let mut world = world();
        let list = prop::collection::vec(nearly(), 1..60).new_tree(&mut runner).unwrap().current();
        run(&mut world, &list).unwrap();
        seen.extend(
            Counter::ALL.into_iter().filter(|&c| world.responder.counts().get(c) > 0).map(Counter::name),
        );
    }
    let elsewhere = [
        "dropped.killed",
        "dropped.no_responder_resources",
        "dropped.permission",
        // Only for whole frames.
        "dropped.ip_checksum",
        "unsent.answer",
    ];
    let missed: Vec<_> = Counter::ALL
        .iter()
        .map(|c| c.name())
        .filter(|n| !seen.contains(n) && !elsewhere.contains(n))
        .collect();
    assert!(missed.is_empty(), "never reached: {missed:?}");
}
