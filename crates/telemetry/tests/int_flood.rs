//! Reports of random flows, more than fit memory: each is accounted for, and memory stays flat.
//! `DTA_INT_REPORTS` sets how many; a million by default.

use std::net::IpAddr;

use dta_proto::key::Flow;
use dta_proto::wire::dta::DtaBody;
use dta_telemetry::int::emit::{EmittedDatagram, EmittedPacket, EmittedReport, Hop, Local, Stack};
use dta_telemetry::int::{Fill, Flags, IntSettings, IntVersion, ReportVersion};
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Rules, StoreIds, Telemetry};

const STORES: StoreIds =
    StoreIds { paths: Some(1), values: Some(2), events: Some(3), counters: Some(4), postcards: Some(5) };
const SECOND: u64 = 1_000_000_000;
const BATCH: u64 = 128;
/// Where what is random stands: the header's switch and sequence, the flow's addresses and ports, and the stack.
const SWITCH: usize = 4;
const IP: usize = 16 + 14;
const STACK: usize = IP + 20 + 8 + 4 + 8;
const HOP: usize = 36;

fn report() -> Vec<u8> {
    let hop = Hop {
        switch: Some(1),
        ports: [Some(1), Some(2)],
        latency: Some(1),
        queue: Fill { id: Some(1), value: Some(1) },
        ingress_time: Some(1),
        egress_time: Some(2),
        level2: [Some(1), Some(2)],
        utilization: Some(1),
        ..Hop::default()
    };
    let flow: Flow = "10.0.0.1:5000->10.0.0.2:80/udp".parse().unwrap();
    let packet = EmittedPacket::new(flow).with_stack(Stack::new(IntVersion::V10, 0xff00, vec![hop; 3]));
    let flags = Flags { tracked: true, ..Flags::default() };
    let report =
        EmittedReport { flags, local: Local::Nothing, hop, halved_queue: false, packet, ethernet: true };
    let version = ReportVersion::V10;
    EmittedDatagram { version, version_nibble: 0, switch: 9, hardware: 1, sequence: 0, reports: vec![report] }
        .to_bytes()
}

/// Any generator does; this one is xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_flood_of_random_flows_is_in_the_accounting_and_takes_no_more_memory() {
    let reports: u64 =
        std::env::var("DTA_INT_REPORTS").map_or(1_000_000, |text| text.parse().expect("a number"));
    // Smaller tables than by default, so that all of them are full soon.
    let rules = Rules { keys: 1 << 14, sources: 64, per_packet: true, ..Rules::default() };
    let keys = rules.keys as u64;
    let mut telemetry = Telemetry::new(rules);
    telemetry.set_stores(STORES);
    let (template, settings) = (report(), IntSettings::default());
    let from = IpAddr::from([127, 0, 0, 1]);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut batch = vec![template.clone(); BATCH as usize];
    let (mut made, mut taken, mut primitives, mut counted) = (PrimitiveBatch::default(), 0, 0, 0);
    let mut memory = None;
    let mut now = 0;
    while taken < reports {
        for datagram in &mut batch {
            datagram.copy_from_slice(&template);
            let bits = random.next();
            // Most from one switch with numbering, some from any.
            let switch = if bits.is_multiple_of(16) { random.next() as u32 } else { 9 };
            datagram[SWITCH..SWITCH + 4].copy_from_slice(&switch.to_be_bytes());
            datagram[SWITCH + 4..SWITCH + 8].copy_from_slice(&(taken as u32).to_be_bytes());
            datagram[IP + 12..IP + 20].copy_from_slice(&random.next().to_be_bytes());
            datagram[IP + 20..IP + 24].copy_from_slice(&random.next().to_be_bytes()[..4]);
            for hop in datagram[STACK..].chunks_exact_mut(HOP) {
                let (switch, values) = (random.next() as u32 % 100, random.next().to_be_bytes());
                hop[..4].copy_from_slice(&switch.to_be_bytes());
                hop[8..16].copy_from_slice(&values);
            }
            if bits % 32 == 1 {
                let at = IP + random.next() as usize % (datagram.len() - IP);
                datagram[at] = random.next() as u8;
            }
            taken += 1;
        }
        now += 20_000 * BATCH;
        let at = ArrivalTime { now, wall: 1_700_000_000 * SECOND + now };
        telemetry.ingest_all(at, batch.iter().map(|bytes| (from, &bytes[..])), &settings, None, &mut made);
        telemetry.write_due_counts(now, usize::MAX, &mut made);
        primitives += made.len() as u64;
        counted += increments(&made);
        made.clear();
        assert_eq!(telemetry.int_counters().find_imbalance(), None);
        if memory.is_none() && taken >= reports / 10 {
            memory = Some(resident());
        }
    }
    let after = resident();
    telemetry.request_flush();
    telemetry.write_due_counts(now, usize::MAX, &mut made);
    primitives += made.len() as u64;
    counted += increments(&made);

    let named = telemetry.named_counters();
    let count = |name: &str| named.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count);
    let dropped: u64 =
        named.iter().filter(|(name, _)| name.starts_with("int.dropped.")).map(|(_, count)| *count).sum();
    assert_eq!(count("int.reports"), taken);
    assert_eq!(taken, dropped + count("int.not_watched") + count("int.unchanged") + count("int.changed"));
    assert!(dropped > 0 && dropped < taken / 16, "{dropped}");
    assert_eq!(count("int.primitives"), primitives);
    // Each report that was taken is in the count of a flow, once.
    assert_eq!((counted, count("int.counts_held")), (taken - dropped, 0));
    // What there was no room for was counted.
    assert!(count("int.keys") <= keys && count("int.evicted") > taken, "{named:?}");
    assert!(count("int.counts_early") > 0);
    assert_eq!(count("int.sources"), 64);
    assert!(count("int.sources_beyond") > taken / 20);
    let before = memory.expect("a tenth was passed");
    assert!(after < before + 1024, "{before} KiB after a tenth of the reports, {after} KiB after all");
    println!("{taken} reports, {primitives} primitives, {dropped} dropped, {before} and {after} KiB");
}

/// What is added to the counts of flows: their keys end in zeros, those of packets and bytes in their names.
fn increments(made: &PrimitiveBatch) -> u64 {
    made.iter()
        .filter_map(|(_, body)| match body {
            DtaBody::KeyIncrement { key, delta, .. } if matches!(key.0[13..], [0, 0, 0 | 6]) => Some(delta),
            _ => None,
        })
        .sum()
}
