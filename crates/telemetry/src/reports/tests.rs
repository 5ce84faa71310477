//! Sequences of reports made by hand, as the encoder writes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dta_proto::counter::FlowReason;
use dta_proto::drop_reason::DropReason;
use dta_proto::flow_record::{DIRECTION_INGRESS, FlowRecord, to_mapped_address};
use dta_proto::telemetry::{InterfaceCounter, InterfaceCounts, PATH_LEN};
use dta_proto::wire::dta::DtaBody;
use proptest::prelude::*;

use super::*;
use crate::exported::{Exported, InterfaceName, InterfaceReading, PacketDrop, TransitReading};
use crate::int::emit::{self, EmittedDatagram, Hop, Local, Stack};
use crate::int::{self, Dialect, Fill, Flags, IntSettings, IntVersion, ReportVersion};

const STORES: StoreIds =
    StoreIds { paths: Some(1), values: Some(2), events: Some(3), counters: Some(4), postcards: Some(5) };
const SECOND: u64 = 1_000_000_000;
/// The store of flow records, and the lists that this translator writes.
const RECORDS: u16 = 6;
const RECORD_LISTS: [u32; 3] = [2, 3, 7];
const EXPORTER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// What a sequence of reports left in the stores.
struct World {
    telemetry: Telemetry,
    settings: IntSettings,
    writes: HashMap<(u16, Key), Vec<u8>>,
    counts: HashMap<Key, u64>,
    entries: [Vec<TelemetryEntry>; list::COUNT as usize],
    postcards: HashMap<Key, Vec<u32>>,
    /// Each record with its list.
    records: Vec<(u32, FlowRecord)>,
}

impl World {
    fn new(rules: Rules) -> World {
        let mut telemetry = Telemetry::new(rules);
        telemetry.set_stores(STORES);
        telemetry.set_record_store(RecordStore { id: RECORDS, lists: RECORD_LISTS.into() });
        let (writes, counts, postcards) = (HashMap::new(), HashMap::new(), HashMap::new());
        World {
            telemetry,
            settings: IntSettings::default(),
            writes,
            counts,
            entries: Default::default(),
            postcards,
            records: Vec::new(),
        }
    }

    /// Processes a datagram; returns how many primitives it made.
    fn take(&mut self, now: u64, bytes: &[u8]) -> usize {
        let mut made = PrimitiveBatch::default();
        let at = ArrivalTime { now, wall: 1_700_000_000 * SECOND + now };
        self.telemetry.ingest_datagram(at, IpAddr::from([127, 0, 0, 1]), bytes, &self.settings, &mut made);
        self.note(made)
    }

    /// Processes a flow record; returns how many primitives it made.
    fn record(&mut self, now: u64, record: &FlowRecord) -> usize {
        self.exported(now, &Exported::Flow(*record))
    }

    /// As [`World::record`], for anything that an exporter says.
    fn exported(&mut self, now: u64, exported: &Exported) -> usize {
        let mut made = PrimitiveBatch::default();
        self.telemetry.ingest_exported(
            ArrivalTime { now, wall: 1_700_000_000 * SECOND + now },
            exported,
            &mut made,
        );
        self.note(made)
    }

    fn flush(&mut self) -> usize {
        let mut made = PrimitiveBatch::default();
        self.telemetry.request_flush();
        self.telemetry.write_due_counts(0, usize::MAX, &mut made);
        assert!(!self.telemetry.is_flushing());
        self.note(made)
    }

    /// Advances time to this moment.
    fn tick(&mut self, now: u64) -> usize {
        let mut made = PrimitiveBatch::default();
        self.telemetry.write_due_counts(now, usize::MAX, &mut made);
        self.note(made)
    }

    fn note(&mut self, made: PrimitiveBatch) -> usize {
        for (store, body) in made.iter() {
            match body {
                DtaBody::KeyWrite { key, value, .. } => {
                    assert_eq!(value.len(), if store == 1 { PATH_LEN } else { telemetry::VALUE_LEN });
                    self.writes.insert((store, key), value.to_vec());
                }
                DtaBody::KeyIncrement { key, delta, .. } => *self.counts.entry(key).or_default() += delta,
                DtaBody::Append { list, value } if store == RECORDS => {
                    self.records.push((list, FlowRecord::from_entry(value.try_into().unwrap())));
                }
                DtaBody::Append { list, value } => {
                    let entry = TelemetryEntry::parse_bytes(value).unwrap();
                    assert_eq!(entry.to_bytes(), value);
                    self.entries[list as usize].push(entry);
                }
                DtaBody::Postcard { key, hop, path_length, value } => {
                    let path = self.postcards.entry(key).or_default();
                    path.resize(path_length.into(), 0);
                    path[usize::from(hop)] = value;
                }
                DtaBody::SketchMerge { .. } => unreachable!(),
            }
        }
        assert_eq!(self.telemetry.int_counters().find_imbalance(), None);
        assert_eq!(self.telemetry.record_counters().find_imbalance(), None);
        made.len()
    }

    fn value(&self, key: Key) -> Option<u32> {
        self.writes.get(&(2, key)).map(|value| TimedValue::parse_bytes(value).unwrap().value)
    }

    fn path(&self, flow: Flow) -> Option<String> {
        self.writes.get(&(1, flow.to_key())).map(|path| SwitchPath::parse_bytes(path).unwrap().to_string())
    }

    /// Metric, reason, old and new of the changes since the last call.
    fn changes(&mut self) -> Vec<(Metric, Why, u64, u64)> {
        let change = |entry| match entry {
            TelemetryEntry::Change { metric, why, old, new, .. } => (metric, why, old, new),
            other => panic!("{other:?}"),
        };
        self.entries[list::CHANGES as usize].drain(..).map(change).collect()
    }

    /// Reason and path of the changes of paths since the last call.
    fn paths(&mut self) -> Vec<(Why, Option<Via>)> {
        let path = |entry| match entry {
            TelemetryEntry::Change { metric: Metric::FlowPath, why, path, .. } => Some((why, path)),
            _ => None,
        };
        self.entries[list::CHANGES as usize].drain(..).filter_map(path).collect()
    }

    fn keys(&mut self) -> Vec<(Key, Means)> {
        let key = |entry| match entry {
            TelemetryEntry::Key { key, means } => (key, means),
            other => panic!("{other:?}"),
        };
        self.entries[list::KEYS as usize].drain(..).map(key).collect()
    }
}

fn flow() -> Flow {
    "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap()
}

fn hop(switch: u32, latency: u32) -> Hop {
    Hop { switch: Some(switch), latency: Some(latency), ports: [Some(1), Some(2)], ..Hop::default() }
}

fn with_stack(flow: Flow, instructions: u16, hops: Vec<Hop>) -> Vec<u8> {
    let packet = emit::EmittedPacket::new(flow).with_stack(Stack::new(IntVersion::V10, instructions, hops));
    one(
        ReportVersion::V10,
        Flags { tracked: true, ..Flags::default() },
        Local::Nothing,
        Hop::default(),
        packet,
    )
}

fn one(version: ReportVersion, flags: Flags, local: Local, hop: Hop, packet: emit::EmittedPacket) -> Vec<u8> {
    let switch = hop.switch.unwrap_or(9);
    let report = emit::EmittedReport { flags, local, hop, halved_queue: false, packet, ethernet: true };
    EmittedDatagram { version, version_nibble: 0, switch, hardware: 0, sequence: 1, reports: vec![report] }
        .to_bytes()
}

const LATENCIES: u16 = 0xa000;

#[test]
fn a_new_flow_is_reported_once_and_then_only_what_changes() {
    let mut world = World::new(Rules::default());
    let report = |latency| with_stack(flow(), LATENCIES, vec![hop(4, latency), hop(5, 4), hop(6, 4)]);
    world.take(0, &report(400));
    assert_eq!(world.path(flow()).as_deref(), Some("6:5:4"));
    assert_eq!(world.value(flow().to_key()), Some(408));
    let hop4 = telemetry::hop_latency_key(&flow(), 4);
    assert_eq!(world.value(hop4), Some(400));
    let new: Vec<_> = world.changes();
    assert_eq!(new.len(), 5, "path, latency, three hops: {new:?}");
    assert!(new.iter().all(|change| change.1 == Why::New));
    assert_eq!(world.keys().len(), 5);

    // Nothing new: only the flow's count increases, and that waits.
    assert_eq!(world.take(1, &report(401)), 0);
    assert_eq!((world.value(hop4), world.changes()), (Some(400), vec![]));

    world.take(2, &report(4));
    let expected = [(Metric::HopLatency, Why::Moved, 400, 4), (Metric::FlowLatency, Why::Moved, 408, 12)];
    assert_eq!(world.changes(), expected);
    assert_eq!((world.value(hop4), world.value(flow().to_key())), (Some(4), Some(12)));
    assert!(world.keys().is_empty(), "these keys are known");
    assert_eq!((world.flush(), world.flush()), (1, 0));
    assert_eq!(world.counts[&flow().to_key()], 3);
    let counters = world.telemetry.int_counters();
    assert_eq!((counters.reports, counters.changed, counters.unchanged), (3, 2, 1));
    assert_eq!(counters.suppressed[Metric::HopLatency.index()], 3 + 2);
}

#[test]
fn counts_wait_and_are_written_at_their_time_or_at_once() {
    let report = |flow| with_stack(flow, LATENCIES, vec![hop(4, 1)]);
    let v6: Flow = "[2001:db8::1]:5000->[2001:db8::2]:5000/udp".parse().unwrap();
    for (per_packet, counters) in [(false, 1), (true, 3)] {
        let mut world = World::new(Rules { per_packet, ..Rules::default() });
        let mut bytes = 0;
        for now in 0..10 {
            world.take(now, &report(flow()));
            bytes = int::parse_reports(&report(flow()), &world.settings)
                .unwrap()
                .next()
                .unwrap()
                .unwrap()
                .packet
                .unwrap()
                .length;
        }
        assert!(world.counts.is_empty());
        assert_eq!(world.tick(SECOND / 2), 0);
        assert_eq!(
            world.telemetry.named_counters().iter().find(|(name, _)| name == "int.counts_held").unwrap().1,
            10
        );
        assert_eq!(world.tick(2 * SECOND), counters);
        assert_eq!(world.counts[&flow().to_key()], 10);
        if per_packet {
            assert_eq!(world.counts[&telemetry::packets_key(&flow())], 10);
            assert_eq!(world.counts[&telemetry::bytes_key(&flow())], 10 * u64::from(bytes));
        }
        // Packets and bytes of a flow of IPv6 are under keys that are made of the flow.
        let made = world.take(3 * SECOND, &report(v6));
        world.flush();
        assert_eq!(world.counts[&v6.to_key()], 1);
        assert_eq!(world.counts.contains_key(&telemetry::packets_key(&v6)), per_packet);
        assert!(made > 0);
    }
    let mut world = World::new(Rules { count_wait: 0, ..Rules::default() });
    world.take(0, &report(flow()));
    assert_eq!((world.take(1, &report(flow())), world.flush()), (1, 0));
    assert_eq!(world.counts[&flow().to_key()], 2);
    // Without a store they wait, and none is lost.
    let mut world = World::new(Rules::default());
    world.take(0, &report(flow()));
    world.telemetry.set_stores(StoreIds::default());
    assert_eq!((world.tick(9 * SECOND), world.flush()), (0, 0));
    world.telemetry.set_stores(STORES);
    assert_eq!((world.tick(10 * SECOND), world.counts[&flow().to_key()]), (1, 1));
}

#[test]
fn a_batch_makes_what_its_datagrams_make_one_by_one() {
    let flows = ["10.0.0.1:1->10.0.0.2:2/udp", "10.0.0.1:3->10.0.0.2:4/tcp", "[::1]:1->[::2]:2/udp"];
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for n in 0..60u32 {
        let flow = flows[n as usize % 3].parse().unwrap();
        datagrams.push(with_stack(flow, LATENCIES, vec![hop(4 + n % 5, n * n), hop(20, 1 << (n % 20))]));
        if n % 7 == 0 {
            datagrams.push(vec![0x10; n as usize]);
        }
    }
    let mut one_by_one = World::new(Rules::default());
    for bytes in &datagrams {
        one_by_one.take(5, bytes);
    }
    let mut at_once = World::new(Rules::default());
    let mut made = PrimitiveBatch::default();
    let from = IpAddr::from([127, 0, 0, 1]);
    let at = ArrivalTime { now: 5, wall: 1_700_000_000 * SECOND + 5 };
    at_once.telemetry.ingest_all(
        at,
        datagrams.iter().map(|bytes| (from, &bytes[..])),
        &at_once.settings,
        None,
        &mut made,
    );
    at_once.note(made);
    for world in [&mut one_by_one, &mut at_once] {
        world.flush();
    }
    // Only the last value of each key was written; events were made for all.
    let of = |world: &World| {
        (world.telemetry.int_counters().primitives, world.telemetry.int_counters().superseded)
    };
    let ((primitives, 0), (fewer, superseded)) = (of(&one_by_one), of(&at_once)) else {
        panic!("one by one")
    };
    assert!(superseded > 0);
    assert_eq!(primitives, fewer + superseded);
    let others = |world: &World| {
        let mut named = world.telemetry.named_counters();
        named.retain(|(name, _)| name != "int.primitives" && name != "int.superseded");
        named
    };
    assert_eq!(others(&one_by_one), others(&at_once));
    assert_eq!(one_by_one.entries, at_once.entries);
    assert_eq!(one_by_one.writes, at_once.writes);
    assert_eq!(one_by_one.counts, at_once.counts);
}

#[test]
fn what_does_not_change_is_reported_again_after_the_keep_alive() {
    let mut world = World::new(Rules::default());
    let report = with_stack(flow(), LATENCIES, vec![hop(4, 100)]);
    world.take(0, &report);
    world.changes();
    world.keys();
    assert_eq!(world.take(59 * SECOND, &report), 0);
    world.take(60 * SECOND, &report);
    assert!(world.changes().iter().all(|change| change.1 == Why::KeepAlive));
    assert_eq!(world.keys().len(), 3, "the directory, too");
    assert_eq!(world.take(61 * SECOND, &report), 0);
}

#[test]
fn always_writes_and_reports_no_more() {
    let mut rules = Rules::default();
    rules.metrics[Metric::HopLatency.index()].always = true;
    let mut world = World::new(rules);
    world.take(0, &with_stack(flow(), LATENCIES, vec![hop(4, 100)]));
    world.changes();
    assert_eq!(world.take(1, &with_stack(flow(), LATENCIES, vec![hop(4, 101)])), 1);
    assert_eq!(world.value(telemetry::hop_latency_key(&flow(), 4)), Some(101));
    assert_eq!(world.changes(), []);
}

#[test]
fn another_path_and_a_loop_are_reported() {
    let mut world = World::new(Rules::default());
    let report = |switches: &[u32]| with_stack(flow(), 0x8000, switches.iter().map(|s| hop(*s, 0)).collect());
    world.take(0, &report(&[3, 2, 1]));
    world.changes();
    world.take(1, &report(&[3, 4, 1]));
    assert_eq!(world.changes(), [(Metric::FlowPath, Why::Moved, 3, 3)]);
    world.take(2, &report(&[2, 3, 4, 3, 1]));
    let looped = 0x100 | 5;
    let expected = [(Metric::FlowPath, Why::Moved, 3, looped), (Metric::FlowPath, Why::Loop, 3, looped)];
    assert_eq!(world.changes(), expected);
    assert_eq!(world.path(flow()).as_deref(), Some("1:3:4:3:2"));
    assert!(SwitchPath::parse_bytes(&world.writes[&(1, flow().to_key())]).unwrap().looped);
    // Each event has its own path, whatever came after it.
    for (n, switch) in [7, 0x11, 7].into_iter().enumerate() {
        world.take(10 + n as u64, &report(&[switch]));
    }
    let said: Vec<_> = world.paths().into_iter().map(|(why, via)| (why, via.unwrap())).collect();
    let path = |switches: &[u32]| Via::Path(SwitchPath::from_switches(switches));
    assert_eq!(said[said.len() - 3..], [7, 17, 7].map(|switch| (Why::Moved, path(&[switch]))));
    // More hops than an event has room for: the digest of what is in the store.
    world.take(20, &report(&[8, 7, 6, 5, 4, 3, 2, 1]));
    let stored = SwitchPath::parse_bytes(&world.writes[&(1, flow().to_key())]).unwrap();
    assert_eq!(world.paths(), [(Why::Moved, Some(Via::Digest(stored.path_digest())))]);
    // More hops than a path holds.
    let long: Vec<u32> = (0..20).collect();
    world.take(3, &report(&long));
    assert_eq!(world.path(flow()).unwrap(), "19:18:17:16:15:14:13:12:11:10:9:8:7:6:...");
}

#[test]
fn queues_and_links_are_by_port() {
    let mut world = World::new(Rules::default());
    let mut at = hop(4, 10);
    at.queue = Fill { id: Some(5), value: Some(600) };
    at.utilization = Some(77);
    world.take(0, &with_stack(flow(), 0xf100, vec![at]));
    assert_eq!(world.value(telemetry::queue_occupancy_key(4, Some(2), Some(5))), Some(600));
    assert_eq!(world.value(telemetry::link_utilization_key(4, Some(2))), Some(77));
    // What is not available is not written.
    at.queue = Fill { id: Some(6), value: None };
    at.utilization = None;
    let before = world.writes.len();
    world.take(1, &with_stack(flow(), 0xf100, vec![at]));
    assert_eq!(world.writes.len(), before);
}

#[test]
fn drops_are_reported_and_counted_by_switch_and_by_flow() {
    let mut world = World::new(Rules::default());
    let flags = Flags { dropped: true, ..Flags::default() };
    let hop = Hop { switch: Some(4), drop: (Some(3), 71), ports: [Some(1), Some(2)], ..Hop::default() };
    let report = one(ReportVersion::V05, flags, Local::Drop, hop, emit::EmittedPacket::new(flow()));
    world.take(0, &report);
    world.take(1, &report);
    let drops = std::mem::take(&mut world.entries[list::DROPS as usize]);
    assert_eq!(drops.len(), 2);
    let place = Location { switch: Some(4), port: Some(2), queue: Some(3) };
    let time = 1_700_000_000 * SECOND;
    assert_eq!(
        drops[0],
        TelemetryEntry::Drop {
            time,
            key: flow().to_key(),
            place,
            ingress_port: Some(1),
            reason: DropReason::from_int(71)
        }
    );
    assert_eq!(world.counts[&telemetry::drops_key(4, DropReason::from_int(71))], 2);
    assert_eq!(world.counts[&telemetry::flow_drops_key(&flow(), DropReason::from_int(71))], 2);
    assert_eq!(world.keys().len(), 2, "each key once");
    // A packet that cannot be read: the switch's count and the entry are made all the same.
    let mut bytes = report;
    let ethertype = 12 + 12 + 12;
    bytes[ethertype..ethertype + 2].copy_from_slice(&[0x88, 0x99]);
    world.take(2, &bytes);
    assert_eq!(world.counts[&telemetry::drops_key(4, DropReason::from_int(71))], 3);
    assert!(
        matches!(world.entries[list::DROPS as usize][0], TelemetryEntry::Drop { key, .. } if key == Key::default())
    );
}

#[test]
fn a_path_of_switches_that_report_for_themselves() {
    let mut world = World::new(Rules::default());
    let report = |switch, congested| {
        let flags = Flags { tracked: true, congested, ..Flags::default() };
        let queue = Fill { id: Some(1), value: Some(9) };
        let (ingress_time, egress_time) = (Some(u64::from(u32::MAX) - 4), Some(95));
        let hop = Hop { switch: Some(switch), queue, ingress_time, egress_time, ..hop(switch, 0) };
        one(ReportVersion::V05, flags, Local::SwitchLocal, hop, emit::EmittedPacket::new(flow()))
    };
    world.take(0, &report(1, false));
    world.take(1, &report(3, false));
    world.take(2, &report(2, true));
    assert_eq!(world.postcards[&flow().to_key()], [1, 3, 2]);
    assert_eq!(world.value(telemetry::hop_latency_key(&flow(), 3)), Some(100), "over the wrap of 32 bits");
    assert!(world.path(flow()).is_none() && world.value(flow().to_key()).is_none());
    let place = Location { switch: Some(2), port: Some(2), queue: Some(1) };
    let congestion = &world.entries[list::CONGESTION as usize];
    let time = 1_700_000_000 * SECOND + 2;
    let (key, occupancy, latency) = (flow().to_key(), Some(9), Some(100));
    assert_eq!(congestion[..], [TelemetryEntry::Congestion { time, key, place, occupancy, latency }]);
    assert_eq!(world.take(3, &report(3, false)), 0, "known");
    let counters = world.telemetry.int_counters();
    assert_eq!((counters.xd, counters.mx, counters.reports), (4, 0, 4));
}

#[test]
fn a_path_that_is_learned_switch_by_switch_has_not_changed() {
    let mut world = World::new(Rules { trails: 2, ..Rules::default() });
    let of = |flow: &Flow, switch| {
        let flags = Flags { tracked: true, ..Flags::default() };
        one(ReportVersion::V05, flags, Local::SwitchLocal, hop(switch, 0), emit::EmittedPacket::new(*flow))
    };
    let mut reported = |now, flow: &Flow, switch| {
        world.take(now, &of(flow, switch));
        world.paths()
    };
    let path = |switches: &[u32]| Some(Via::Path(SwitchPath::from_switches(switches)));
    assert_eq!(reported(0, &flow(), 7), [(Why::New, path(&[7]))]);
    assert_eq!(reported(4 * SECOND, &flow(), 5), [(Why::Learning, path(&[7, 5]))]);
    assert_eq!(reported(8 * SECOND, &flow(), 3), [(Why::Learning, path(&[7, 5, 3]))]);
    assert_eq!(reported(9 * SECOND, &flow(), 3), []);
    // It has settled: another switch is another path, and what comes right after belongs to that.
    assert_eq!(reported(20 * SECOND, &flow(), 9), [(Why::Moved, path(&[7, 5, 3, 9]))]);
    assert_eq!(reported(21 * SECOND, &flow(), 8), [(Why::Learning, path(&[7, 5, 3, 9, 8]))]);
    // An evicted flow is learned again, and did not change.
    for port in [1, 2] {
        assert_eq!(reported(30 * SECOND, &Flow { sport: port, ..flow() }, 7)[0].0, Why::New);
    }
    assert_eq!(reported(31 * SECOND, &flow(), 7), [(Why::Learning, path(&[7]))]);
    assert_eq!(reported(32 * SECOND, &flow(), 5), [(Why::Learning, path(&[7, 5]))]);
}

#[test]
fn where_a_flow_leaves_a_switch_is_reported_with_and_without_a_latency() {
    let mut world = World::new(Rules::default());
    let at = |port, latency| Hop { ports: [Some(1), port], ..hop(4, latency) };
    let key = telemetry::hop_latency_key(&flow(), 4);
    let wall = 1_700_000_000 * SECOND;
    let leaves =
        |port, time| (key, Means::Leaves { flow: flow().to_key(), switch: 4, port, time: wall + time });
    let mut reported = |now, instructions, hop| {
        world.take(now, &with_stack(flow(), instructions, vec![hop]));
        let ports = world.keys().into_iter().filter(|(_, means)| matches!(means, Means::Leaves { .. }));
        (ports.collect::<Vec<_>>(), world.changes().iter().filter(|c| c.0 == Metric::HopLatency).count())
    };
    // Switch, ports and latency: another port is reported though the latency stays in its interval.
    assert_eq!(reported(0, 0xe000, at(Some(3), 400)), (vec![leaves(Some(3), 0)], 1));
    assert_eq!(reported(1, 0xe000, at(Some(3), 401)), (vec![], 0));
    assert_eq!(reported(2, 0xe000, at(Some(4), 400)), (vec![leaves(Some(4), 2)], 0));
    assert_eq!(reported(3, 0xe000, at(Some(4), 400)), (vec![], 0));
    assert_eq!(reported(4, 0xe000, at(Some(5), 4)), (vec![leaves(Some(5), 4)], 1), "both at once");
    assert_eq!(reported(5, 0xe000, at(Some(5), 4)), (vec![], 0));
    // Switch and ports alone.
    let mut world = World::new(Rules::default());
    let mut reported = |now, port| {
        world.take(now, &with_stack(flow(), 0xc000, vec![at(port, 0)]));
        let mut keys = world.keys();
        keys.retain(|(_, means)| matches!(means, Means::Leaves { .. }));
        keys
    };
    assert_eq!(reported(0, Some(3)), [leaves(Some(3), 0)]);
    assert_eq!(reported(1, Some(3)), []);
    assert_eq!(reported(2, Some(4)), [leaves(Some(4), 2)]);
    assert_eq!(reported(62 * SECOND, Some(4)), [leaves(Some(4), 62 * SECOND)]);
    assert_eq!(reported(63 * SECOND, None), [], "nothing is said");
}

#[test]
fn the_moment_is_the_arrival_or_the_switch_s() {
    let wall = 1_700_000_000 * SECOND;
    let hop = |time: u64| Hop { egress_time: Some(time), ..hop(4, 10) };
    for (mode, sent, written) in [
        (TimeMode::Arrival, 5, wall),
        (TimeMode::Raw, 0x5ad9_f940, 0x5ad9_f940),
        (TimeMode::Switch, (wall - 1000) as u32, wall - 1000),
        (TimeMode::Switch, (wall + 7) as u32, wall + 7),
        (TimeMode::Switch, wall.wrapping_sub(1 << 30) as u32, wall - (1 << 30)),
    ] {
        let mut world = World::new(Rules { time: mode, ..Rules::default() });
        world.take(0, &with_stack(flow(), 0xa400, vec![hop(sent.into())]));
        let key = telemetry::hop_latency_key(&flow(), 4);
        let value = TimedValue::parse_bytes(&world.writes[&(2, key)]).unwrap();
        assert_eq!((value.value, value.time), (10, written), "{mode:?} {sent:#x}");
    }
}

#[test]
fn the_watchlist_keeps_others_out() {
    let watch = vec!["192.168.0.0/16".parse().unwrap(), flow().to_string().parse().unwrap()];
    let mut world = World::new(Rules { watch, ..Rules::default() });
    let report = |text: &str| with_stack(text.parse().unwrap(), LATENCIES, vec![hop(4, 1)]);
    assert_eq!(world.take(0, &report("10.0.0.1:5001->10.0.0.2:5000/udp")), 0);
    assert!(world.take(1, &report("10.0.0.1:5000->10.0.0.2:5000/udp")) > 0);
    assert!(world.take(2, &report("10.0.0.1:5001->192.168.1.2:5000/udp")) > 0);
    let counters = world.telemetry.int_counters();
    assert_eq!((counters.not_watched, counters.changed), (1, 2));
}

#[test]
fn the_flow_in_a_tunnel_is_the_flow() {
    let mut outer = emit::EmittedPacket::new("10.9.0.1:2152->10.9.0.2:2152/udp".parse().unwrap());
    outer.tunnel = Some((int::TunnelKind::GtpU(7), Box::new(emit::EmittedPacket::new(flow()))));
    let flags = Flags { tracked: true, ..Flags::default() };
    let mut world = World::new(Rules { per_packet: true, ..Rules::default() });
    world.take(0, &one(ReportVersion::V05, flags, Local::SwitchLocal, hop(4, 0), outer));
    assert_eq!(world.flush(), 3);
    assert_eq!(world.counts[&flow().to_key()], 1);
    assert_eq!(world.counts[&telemetry::packets_key(&flow())], 1);
    assert!(world.counts[&telemetry::bytes_key(&flow())] > 28);
}

#[test]
fn ipv6_flows_and_large_switch_numbers_are_kept_apart_and_named() {
    let v6: Flow = "[2001:db8::1]:5000->[2001:db8::2]:5000/udp".parse().unwrap();
    let mut world = World::new(Rules::default());
    for (n, flow) in [flow(), v6].into_iter().enumerate() {
        // Equal in the lowest 24 bits.
        let hops = vec![hop(0x0100_0004, 10), hop(4, 1000), hop(0x0200_0004, 100_000)];
        world.take(n as u64, &with_stack(flow, LATENCIES, hops));
        for (switch, latency) in [(0x0100_0004, 10), (4, 1000), (0x0200_0004, 100_000)] {
            let key = telemetry::hop_latency_key(&flow, switch);
            assert_eq!(world.value(key), Some(latency));
            assert_eq!(&key.0[12..], b"hlat");
        }
        assert_eq!(world.changes().len(), 5);
    }
    let keys = world.keys();
    let means = |key| keys.iter().find(|(of, _)| *of == key).map(|(_, means)| *means);
    assert_eq!(means(flow().to_key()), Some(Means::Itself));
    assert_eq!(means(v6.to_key()), Some(Means::Flow(v6)));
    let time = 1_700_000_000 * SECOND + 1;
    let leaves = Means::Leaves { flow: v6.to_key(), switch: 4, port: None, time };
    assert_eq!(means(telemetry::hop_latency_key(&v6, 4)), Some(leaves));
}

#[test]
fn reports_that_cannot_be_read_are_counted_by_reason() {
    let mut world = World::new(Rules::default());
    world.settings = IntSettings { dialect: Dialect::IntCollector, ..IntSettings::default() };
    let good = with_stack(flow(), LATENCIES, vec![hop(4, 1)]);
    let mut of_no_version = good.clone();
    // INT's header of 8 bytes, before a hop of 8.
    of_no_version[good.len() - 16] = 0xf0;
    for (bytes, reason) in [
        (&good[..10], IntReason::Header),
        (&good[..30], IntReason::Packet),
        (&of_no_version, IntReason::Stack),
        (&[][..], IntReason::Header),
    ] {
        let before = world.telemetry.int_counters().dropped_reports(reason);
        assert_eq!(world.take(0, bytes), 0);
        assert_eq!(world.telemetry.int_counters().dropped_reports(reason), before + 1, "{reason:?}");
    }
    // INT that is cut off leaves the flow readable.
    world.take(0, &good[..good.len() - 1]);
    let counters = world.telemetry.int_counters();
    assert_eq!((counters.unread, counters.changed + counters.unchanged), (1, 1));
    world.settings = IntSettings::default();
    world.take(0, &[0xf0, 0, 0, 0]);
    assert_eq!(world.telemetry.int_counters().dropped_reports(IntReason::Version), 1);
}

/// A length that contradicts what it counts causes one refusal, whatever follows: here, MAC addresses that
/// would be reports of drops.
#[test]
fn behind_a_wrong_length_of_v20_nothing_is_read() {
    let macs = [0x0200_0080, 0x0002_0080, 0x0000_0080, 0x0800_4500];
    for head in [
        0x1300_0020, // INT in no words
        0x0300_0020, // a packet in no words
        0x1302_0020, // INT and a packet in the words of INT
        0x1302_0120, // metadata beyond the report
        0x1101_0020, // the same
        0x1103_0020, // TLVs that end in one's middle
        0x1309_0020, // more words than there are
    ] {
        let mut world = World::new(Rules::default());
        world.take(0, &of_node(3, &[&[head, 0, 0, 0x1004_0000][..], &macs].concat()[..8]));
        let counters = world.telemetry.int_counters();
        let counts = (counters.reports, counters.dropped_reports(IntReason::Header));
        assert_eq!(counts, (1, 1), "{head:08x}");
        assert_eq!(world.entries.iter().map(Vec::len).sum::<usize>(), 0, "{head:08x}");
    }
}

/// A datagram of one v2.0 report: these words after the group header.
fn of_node(node: u32, words: &[u32]) -> Vec<u8> {
    [2 << 28, node].iter().chain(words).flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn reports_about_ioam_are_counted_under_their_own_name() {
    let mut world = World::new(Rules::default());
    world.take(0, &of_node(3, &[0x2402_0020, 7, 8]));
    let counters = world.telemetry.int_counters();
    assert_eq!(
        (counters.dropped_reports(IntReason::Ioam), counters.dropped_reports(IntReason::Header)),
        (1, 0)
    );
    world.take(1, &of_node(3, &[0x9402_0020, 7, 8]));
    assert_eq!(world.telemetry.int_counters().dropped_reports(IntReason::Header), 1);
}

/// INT-MX: each switch reports for itself, and the packet that it saw has INT's own UDP port.
#[test]
fn int_mx_makes_a_path_of_switches_and_values_of_the_senders_flow() {
    let mut world = World::new(Rules::default());
    let ip = [0x4500_0034, 0x0001_0000, 0x4011_0000, 0x0a00_0001, 0x0a00_0002];
    let udp_and_mx = [0x1388_7ffe, 0x0020_0000, 0x3403_1388, 0x2000_0000, 0xa000_0000, 0];
    let of = |node: u32, flags: u32, latency: u32| {
        let head = [0x14ff_0100 | flags, 0x2000_0000, 0, latency];
        of_node(node, &[&head[..], &ip, &udp_and_mx, &[7, 8, 9]].concat())
    };
    let tracked = 0x20;
    world.take(0, &of(4, tracked, 400));
    // What the packet asked for is about its flow, whether the report has the flag of a tracked flow or not.
    world.take(1, &of(5, 0, 8));
    // One that cannot provide what was requested is still on the path.
    let silent = [&[0x14ff_0020, 0, 0][..], &ip, &udp_and_mx, &[7, 8, 9]].concat();
    world.take(2, &of_node(6, &silent));
    assert_eq!(world.postcards.get(&flow().to_key()), Some(&vec![4, 5, 6]));
    assert_eq!(world.value(telemetry::hop_latency_key(&flow(), 4)), Some(400));
    assert_eq!(world.value(telemetry::hop_latency_key(&flow(), 5)), Some(8));
    // No packet reported all hops.
    assert_eq!((world.path(flow()), world.value(flow().to_key())), (None, None));
    let counters = world.telemetry.int_counters();
    assert_eq!((counters.mx, counters.xd, counters.reports), (3, 0, 3));
}

#[test]
fn without_a_store_nothing_is_made_of_it() {
    let mut world = World::new(Rules::default());
    world.telemetry.set_stores(StoreIds { counters: Some(4), ..StoreIds::default() });
    assert_eq!(world.take(0, &with_stack(flow(), LATENCIES, vec![hop(4, 1)])), 0);
    assert_eq!((world.flush(), world.counts.len()), (1, 1));
}

#[test]
fn every_counter_is_defined() {
    let mut world = World::new(Rules::default());
    world.take(0, &[0xf0]);
    for (name, _) in world.telemetry.named_counters() {
        let found = dta_proto::counter::CounterNode::Translator.find_counter(&name);
        assert!(found.is_some_and(|found| found.known), "{name}");
    }
}

proptest! {
    /// Against a model without bounds or keys: a value that must be reported is in the store, whatever the
    /// table had room for.
    #[test]
    fn what_is_in_the_stores_is_what_changed_last(
        steps in prop::collection::vec((0u16..40, 0u32..6, 0u32..2000), 1..150),
        keys in prop_oneof![Just(4usize), Just(1 << 12)],
    ) {
        let mut world = World::new(Rules { keys, ..Rules::default() });
        let mut model: HashMap<(u16, u32), u32> = HashMap::new();
        for (n, (sport, switch, latency)) in steps.into_iter().enumerate() {
            let flow = Flow { sport, ..flow() };
            world.take(n as u64, &with_stack(flow, LATENCIES, vec![hop(switch, latency)]));
            let reported = model.get(&(sport, switch)).copied();
            let written = world.value(telemetry::hop_latency_key(&flow, switch)).unwrap();
            match reported {
                Some(reported) if !Detect::Powers.is_change(reported.into(), latency.into()) => {
                    // It need not be written; after an eviction it is.
                    prop_assert!(written == reported || written == latency);
                }
                _ => prop_assert_eq!(written, latency),
            }
            model.insert((sport, switch), written);
            prop_assert_eq!(world.path(flow), Some(switch.to_string()));
        }
    }
}

fn record(flow: Flow) -> FlowRecord {
    FlowRecord {
        bytes: 300,
        packets: 3,
        exporter: EXPORTER.to_ipv6_mapped(),
        src: to_mapped_address(flow.src),
        dst: to_mapped_address(flow.dst),
        sampling_rate: 1,
        src_port: flow.sport,
        dst_port: flow.dport,
        protocol: flow.proto,
        direction: DIRECTION_INGRESS,
        ..FlowRecord::EMPTY
    }
}

#[test]
fn every_record_is_an_entry_of_its_exporters_list() {
    let mut world = World::new(Rules::default());
    let v6: Flow = "[2001:db8::1]:5000->[2001:db8::2]:5000/udp".parse().unwrap();
    let exporters = (1..=40).map(|n| Ipv4Addr::new(10, 9, 0, n).to_ipv6_mapped());
    let mut expected: BTreeMap<Ipv6Addr, Vec<FlowRecord>> = BTreeMap::new();
    for (n, exporter) in (0..).zip(exporters.cycle().take(200)) {
        let flow = if n % 3 == 0 { v6 } else { flow() };
        let one = FlowRecord { exporter, bytes: n, sampling_rate: n as u32 % 2 * 100, ..record(flow) };
        assert_eq!(world.record(n, &one), 1, "one primitive, and no state");
        expected.entry(exporter).or_default().push(one);
    }
    let mut lists_of: BTreeMap<Ipv6Addr, BTreeSet<u32>> = BTreeMap::new();
    let mut found: BTreeMap<Ipv6Addr, Vec<FlowRecord>> = BTreeMap::new();
    for (list, record) in &world.records {
        lists_of.entry(record.exporter).or_default().insert(*list);
        found.entry(record.exporter).or_default().push(*record);
    }
    assert_eq!(found, expected, "each exporter's records in order");
    assert!(lists_of.values().all(|lists| lists.len() == 1));
    let used: BTreeSet<u32> = lists_of.into_values().flatten().collect();
    assert_eq!(used.into_iter().collect::<Vec<_>>(), RECORD_LISTS);
    assert!(world.counts.is_empty() && world.writes.is_empty() && world.keys().is_empty());
    let counters = world.telemetry.record_counters();
    assert_eq!((counters.records, counters.appended, counters.sampled, counters.counted), (200, 200, 100, 0));
}

#[test]
fn flows_on_the_watchlist_are_counted_too() {
    let mut world = World::new(Rules { watch: vec!["10.0.0.0/24".parse().unwrap()], ..Rules::default() });
    let other: Flow = "192.0.2.1:1->192.0.2.2:2/udp".parse().unwrap();
    let sampled = FlowRecord { sampling_rate: 100, ..record(flow()) };
    assert_eq!([world.record(0, &sampled), world.record(1, &record(flow()))], [3, 3]);
    assert_eq!(world.record(2, &record(other)), 1);
    let keys = [telemetry::packets_key(&flow()), telemetry::bytes_key(&flow())];
    assert_eq!(keys.map(|key| world.counts[&key]), [303, 30_300]);
    assert_eq!(world.counts.len(), 2);
    let counters = world.telemetry.record_counters();
    assert_eq!((counters.records, counters.appended, counters.counted, counters.not_watched), (3, 3, 2, 0));
}

#[test]
fn records_without_a_place_or_room_are_dropped_and_counted() {
    let mut world = World::new(Rules { watch: vec!["10.0.0.0/24".parse().unwrap()], ..Rules::default() });
    world.telemetry.set_record_room(RecordRoom { records: 2, counts: 8 });
    let made: Vec<_> = (0..3).map(|n| world.record(n, &record(flow()))).collect();
    assert_eq!(made, [3, 1, 0], "a record costs one operation, its counts eight");
    let counters = world.telemetry.record_counters();
    assert_eq!((counters.counted, counters.uncounted), (1, 1));
    let dropped = |world: &World, reason| world.telemetry.record_counters().dropped_records(reason);
    assert_eq!(dropped(&world, FlowReason::Congested), 1);
    world.telemetry.set_record_room(RecordRoom::default());
    world.telemetry.set_record_store(RecordStore::default());
    assert_eq!((world.record(3, &record(flow())), dropped(&world, FlowReason::NoStore)), (0, 1));
    FlowReason::ALL.iter().for_each(|reason| world.telemetry.drop_record(*reason));
    let counters = world.telemetry.record_counters();
    assert_eq!(
        (counters.appended, counters.records, counters.find_imbalance()),
        (2, 4 + FlowReason::ALL.len() as u64, None)
    );
}

#[test]
fn queue_and_latency_of_a_sampled_packet_are_those_of_a_hop() {
    let mut world = World::new(Rules::default());
    let transit = |latency, depth| {
        Exported::Transit(TransitReading {
            flow: flow(),
            exporter: EXPORTER.into(),
            egress: Some(4),
            queue: Some(5),
            latency,
            depth,
        })
    };
    let switch = EXPORTER.to_bits();
    let values = |world: &World| {
        let queue = telemetry::queue_occupancy_key(switch, Some(4), Some(5));
        [telemetry::hop_latency_key(&flow(), switch), queue].map(|key| world.value(key))
    };
    world.exported(0, &transit(Some(700), Some(9000)));
    assert_eq!(values(&world), [Some(700), Some(9000)]);
    assert_eq!(world.exported(1, &transit(Some(701), Some(9001))), 0, "no change that is reported");
    world.exported(2, &transit(Some(90_000), None));
    assert_eq!(values(&world), [Some(90_000), Some(9000)]);
    let mut world = World::new(Rules { watch: vec!["192.0.2.0/24".parse().unwrap()], ..Rules::default() });
    assert_eq!(world.exported(0, &transit(Some(700), Some(9000))), 0, "the flow is not watched");
}

#[test]
fn names_of_interfaces_are_in_the_key_directory() {
    let mut world = World::new(Rules::default());
    let exporter = Ipv4Addr::new(10, 9, 0, 1);
    let named = |name: &str| {
        Exported::Name(InterfaceName {
            exporter: exporter.into(),
            interface: 3,
            name: dta_proto::trace::TraceName::new(name),
        })
    };
    let key = telemetry::interface_name_key(exporter.to_bits(), 3);
    for (at, name, is_entered) in [
        (0, "Gi0/3", true),
        (1, "Gi0/3", false),
        (2, "uplink", true),
        (61, "uplink", false),
        (62, "uplink", true),
    ] {
        world.exported(at * SECOND, &named(name));
        let means = Means::Name(dta_proto::trace::TraceName::new(name));
        assert_eq!(world.keys(), if is_entered { vec![(key, means)] } else { vec![] }, "{at} s");
    }
}

#[test]
fn a_notice_of_a_drop_is_what_a_report_about_one_is() {
    let mut world = World::new(Rules { watch: vec!["10.0.0.0/24".parse().unwrap()], ..Rules::default() });
    let exporter = Ipv4Addr::new(10, 9, 0, 1);
    let reason = DropReason::from_sflow(269);
    let drop = PacketDrop {
        flow: Some(flow()),
        exporter: exporter.into(),
        ingress: Some(3),
        egress: Some(4),
        reason,
    };
    let switch = exporter.to_bits();
    let (by_switch, by_flow) =
        (telemetry::drops_key(switch, reason), telemetry::flow_drops_key(&flow(), reason));
    world.exported(0, &Exported::Drop(drop));
    world.exported(SECOND, &Exported::Drop(PacketDrop { flow: None, ..drop }));
    assert_eq!((world.counts[&by_switch], world.counts[&by_flow]), (2, 1));
    let entry = |time, key| TelemetryEntry::Drop {
        time: 1_700_000_000 * SECOND + time,
        key,
        place: Location { switch: Some(switch), port: Some(4), queue: None },
        ingress_port: Some(3),
        reason,
    };
    assert_eq!(
        world.entries[list::DROPS as usize],
        [entry(0, flow().to_key()), entry(SECOND, Key::default())]
    );
    let keys = [(by_switch, Means::Itself), (by_flow, Means::Hop(flow().to_key(), reason.to_bits()))];
    assert_eq!(world.keys(), keys);
    let other = "192.0.2.1:1->192.0.2.2:2/udp".parse().unwrap();
    assert_eq!(world.exported(SECOND, &Exported::Drop(PacketDrop { flow: Some(other), ..drop })), 0);
    let counters = world.telemetry.record_counters();
    assert_eq!((counters.records, counters.drops, counters.not_watched), (3, 2, 1));
}

#[test]
fn counters_of_an_interface_are_the_utilisation_of_its_link() {
    let mut world = World::new(Rules::default());
    let exporter = Ipv4Addr::new(10, 9, 0, 1);
    let of = |octets| {
        let mut counts = InterfaceCounts::default();
        counts[InterfaceCounter::OutOctets as usize] = Some(octets);
        Exported::Interface(InterfaceReading {
            exporter: exporter.into(),
            interface: 3,
            speed: Some(1_000_000_000),
            counts,
        })
    };
    let key = telemetry::link_utilization_key(exporter.to_bits(), Some(3));
    assert_eq!(world.exported(0, &of(1 << 40)), 0, "nothing to compare with");
    // 25 MB in 20 s are 10 Mbit/s: 1 % of a gigabit.
    world.exported(20 * SECOND, &of((1 << 40) + 25_000_000));
    assert_eq!(world.value(key), Some(100));
    // A repeat says nothing, and what follows is counted from the one before.
    assert_eq!(world.exported(20 * SECOND + 1, &of((1 << 40) + 25_000_000)), 0);
    world.exported(40 * SECOND, &of((1 << 40) + 2_525_000_000));
    assert_eq!(world.value(key), Some(10_000));
    assert_eq!(
        world.changes(),
        [(Metric::LinkUtilization, Why::New, 0, 100), (Metric::LinkUtilization, Why::Moved, 100, 10_000),]
    );
    // The exporter restarted, and numbers beyond any link.
    assert_eq!(world.exported(60 * SECOND, &of(5)), 0);
    world.exported(80 * SECOND, &of(u64::MAX / 2));
    assert_eq!(world.value(key), Some(u32::MAX));
}

#[test]
fn counters_of_an_interface_are_counted_from_one_reading_to_the_next() {
    let mut world = World::new(Rules::default());
    let exporter = Ipv4Addr::new(10, 9, 0, 1);
    let key = |counter| telemetry::interface_counter_key(exporter.to_bits(), 3, counter);
    let reading = |errors, discards, octets| {
        let mut counts = InterfaceCounts::default();
        counts[InterfaceCounter::InErrors as usize] = errors;
        counts[InterfaceCounter::OutDiscards as usize] = Some(discards);
        counts[InterfaceCounter::InOctets as usize] = Some(octets);
        // Its speed is not known, and so not the utilisation.
        Exported::Interface(InterfaceReading { exporter: exporter.into(), interface: 3, speed: None, counts })
    };
    assert_eq!(world.exported(0, &reading(Some(7), u64::from(u32::MAX), 1 << 40)), 0);
    // One of 32 bits wraps around; what did not move is not written.
    assert_eq!(world.exported(20 * SECOND, &reading(Some(7), 4, (1 << 40) + 1500)), 2);
    assert_eq!(world.exported(20 * SECOND + 1, &reading(Some(9), 6, (1 << 40) + 1600)), 0, "a repeat");
    assert_eq!(world.exported(40 * SECOND, &reading(None, 6, (1 << 40) + 1600)), 2);
    // The exporter restarted.
    assert_eq!(world.exported(60 * SECOND, &reading(Some(12), 0, 10)), 1);
    let counted = [InterfaceCounter::InErrors, InterfaceCounter::OutDiscards, InterfaceCounter::InOctets];
    assert_eq!(counted.map(|counter| world.counts[&key(counter)]), [5, 7, 1600]);
    assert_eq!(world.changes(), []);
}

/// Takes a report that an XDP program with this listener's number passed on.
fn take_from_program(world: &mut World, now: u64, bytes: &[u8]) {
    let mut made = PrimitiveBatch::default();
    let at = ArrivalTime { now, wall: 1_700_000_000 * SECOND + now };
    let from = IpAddr::from([127, 0, 0, 1]);
    let settings = world.settings;
    world.telemetry.ingest_all(at, [(from, bytes)], &settings, Some(3), &mut made);
    world.note(made);
}

#[test]
fn reports_that_a_program_dropped_count_as_if_they_had_come() {
    let shared = |words: usize| -> Arc<[AtomicU64]> { (0..words).map(|_| AtomicU64::new(0)).collect() };
    let (generation, buckets, templates, slots) = (shared(1), shared(16), shared(16 * 129), shared(64 * 3));
    let mut world = World::new(Rules { keys: 64, ..Rules::default() });
    world.telemetry.share_with_program(
        SharedTables {
            generation: Box::new(Arc::clone(&generation)),
            buckets: Box::new(Arc::clone(&buckets)),
            templates: Box::new(Arc::clone(&templates)),
            slots: Box::new(Arc::clone(&slots)),
        },
        1000,
    );
    let report = |latency| with_stack(flow(), LATENCIES, vec![hop(4, latency), hop(5, 4), hop(6, 4)]);
    let used = || buckets.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
    let slot_of = |first: u64| {
        let slot = slots.chunks_exact(3).find(|slot| slot[0].load(Ordering::Relaxed) as u32 == first as u32);
        slot.map(|slot| [0, 1, 2].map(|word| slot[word].load(Ordering::Relaxed)))
    };
    take_from_program(&mut world, 5, &report(400));
    let untils: Vec<_> =
        slots.chunks_exact(3).map(|slot| [1, 2].map(|word| slot[word].load(Ordering::Relaxed))).collect();
    assert!(untils.iter().all(|[until, tag]| (*until == 0) == (*tag == 0)), "{untils:?}");
    // What was new has no template, but its values are known: 256 to 511 for a minute.
    assert_eq!(used(), 0);
    assert_eq!(slot_of(256), Some([256 | 255 << 32, 5 + 1000 + 60 * SECOND, 1]));
    take_from_program(&mut world, 6, &report(401));
    assert_eq!((used(), generation[0].load(Ordering::Relaxed) % 2), (1, 0));
    let place = buckets.iter().find(|place| place.load(Ordering::Relaxed) != 0).unwrap();
    place.fetch_add(7, Ordering::Relaxed);
    let mut made = PrimitiveBatch::default();
    world.telemetry.count_dropped_reports(SECOND, false, &mut made);
    assert_eq!((made.len(), place.load(Ordering::Relaxed) as u32), (0, 0));
    world.flush();
    assert_eq!(world.counts[&flow().to_key()], 9);
    let counters = world.telemetry.int_counters();
    assert_eq!((counters.reports, counters.datagrams, counters.unchanged), (9, 9, 8));
    let suppressed = [Metric::FlowPath, Metric::FlowLatency, Metric::HopLatency].map(Metric::index);
    assert_eq!(suppressed.map(|metric| counters.suppressed[metric]), [8, 8, 24]);
    // A change moves the interval, under the same template.
    let before = place.load(Ordering::Relaxed);
    take_from_program(&mut world, 2 * SECOND, &report(4));
    assert_eq!(slot_of(256), None, "neither the hop's nor, at 12, the flow's");
    take_from_program(&mut world, 2 * SECOND, &report(5));
    assert_eq!((used(), place.load(Ordering::Relaxed)), (1, before));
    // Another path is in another template at the same place; what was dropped by the old one is not lost.
    place.fetch_add(2, Ordering::Relaxed);
    let moved = with_stack(flow(), LATENCIES, vec![hop(4, 4), hop(7, 4), hop(6, 4)]);
    (0..2).for_each(|_| take_from_program(&mut world, 3 * SECOND, &moved));
    assert_ne!(place.load(Ordering::Relaxed), before);
    assert_eq!(world.telemetry.int_counters().reports, 9 + 2 + 2 + 2);
    // The numbers of all these are the program's to follow.
    assert_eq!(world.telemetry.int_sources().iter().count(), 0);
    // It does not read v2.0.
    let of_others = emit::EmittedPacket::new(flow());
    let tracked = Flags { tracked: true, ..Flags::default() };
    let v20 = one(ReportVersion::V20, tracked, Local::Nothing, hop(4, 4), of_others);
    take_from_program(&mut world, 3 * SECOND, &v20);
    assert_eq!(world.telemetry.int_sources().iter().count(), 1);
}

/// At a stop, the last reports are counted once nothing more is dropped, though they are written nowhere.
#[test]
fn a_program_that_has_stopped_dropping_is_counted_to_the_last_report() {
    let shared = |words: usize| -> Arc<[AtomicU64]> { (0..words).map(|_| AtomicU64::new(0)).collect() };
    let (generation, buckets) = (shared(1), shared(16));
    let mut world = World::new(Rules { keys: 64, ..Rules::default() });
    let stores = StoreIds { counters: None, ..world.telemetry.stores };
    world.telemetry.set_stores(stores);
    world.telemetry.share_with_program(
        SharedTables {
            generation: Box::new(Arc::clone(&generation)),
            buckets: Box::new(Arc::clone(&buckets)),
            templates: Box::new(shared(16 * 129)),
            slots: Box::new(shared(64 * 3)),
        },
        0,
    );
    let report = |latency| with_stack(flow(), LATENCIES, vec![hop(4, latency), hop(5, 4)]);
    let is_odd = || generation[0].load(Ordering::Relaxed) % 2 == 1;
    (0..2).for_each(|now| take_from_program(&mut world, now, &report(400)));
    let count = |world: &mut World, now| {
        let mut made = PrimitiveBatch::default();
        world.telemetry.count_dropped_reports(now, false, &mut made);
        assert!(made.is_empty());
        world.telemetry.int_counters().reports
    };
    let place = buckets.iter().find(|place| place.load(Ordering::Relaxed) != 0).unwrap();
    place.fetch_add(7, Ordering::Relaxed);
    assert_eq!((count(&mut world, 10), is_odd()), (2 + 7, false));
    place.fetch_add(5, Ordering::Relaxed);
    assert_eq!(count(&mut world, 20), 2 + 7, "not so soon again");
    world.telemetry.stop_dropping();
    // It may have been about to drop one.
    for more in 1..3 {
        assert_eq!((count(&mut world, 20), is_odd()), (2 + 7 + 5 + more - 1, true));
        place.fetch_add(1, Ordering::Relaxed);
    }
    // A change, and another kind of report, which has a template of its own.
    take_from_program(&mut world, 30, &report(4));
    (0..2).for_each(|now| {
        take_from_program(&mut world, 40 + now, &with_stack(flow(), LATENCIES, vec![hop(9, 4)]))
    });
    assert!(is_odd(), "nothing is dropped again");
}

#[test]
fn what_a_program_cannot_recognize_has_no_template() {
    let shared = |words: usize| -> Arc<[AtomicU64]> { (0..words).map(|_| AtomicU64::new(0)).collect() };
    let tracked = Flags { tracked: true, ..Flags::default() };
    let stack = || Stack::new(IntVersion::V10, LATENCIES, vec![hop(4, 400)]);
    let packet = |flow: &str| emit::EmittedPacket::new(flow.parse().unwrap());
    let v10 = |flags, packet| one(ReportVersion::V10, flags, Local::Nothing, Hop::default(), packet);
    let plain = "10.0.0.1:5000->10.0.0.2:5000/tcp";
    let cases = [
        (true, v10(tracked, packet(plain).with_stack(stack()))),
        (false, v10(tracked, packet(plain))),
        (false, v10(tracked, packet("[::1]:5000->[::2]:5000/tcp").with_stack(stack()))),
        (false, v10(tracked, packet("10.0.0.1:5000->10.0.0.2:4789/udp").with_stack(stack()))),
        (false, v10(tracked, emit::EmittedPacket { vlans: vec![5], ..packet(plain).with_stack(stack()) })),
        (
            false,
            v10(tracked, emit::EmittedPacket { ip_options: vec![1; 4], ..packet(plain).with_stack(stack()) }),
        ),
        (false, v10(tracked, packet(plain).with_stack(Stack { version: IntVersion::V21, ..stack() }))),
    ];
    for (has_template, report) in cases {
        let mut world = World::new(Rules::default());
        let buckets = shared(64);
        world.telemetry.share_with_program(
            SharedTables {
                generation: Box::new(shared(1)),
                buckets: Box::new(Arc::clone(&buckets)),
                templates: Box::new(shared(64 * 129)),
                slots: Box::new(shared(world.telemetry.rules.value_capacity() * 3)),
            },
            0,
        );
        (0..3).for_each(|now| take_from_program(&mut world, now, &report));
        assert!(world.telemetry.int_counters().unchanged >= 2, "{report:x?}");
        let used = buckets.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
        assert_eq!(used, usize::from(has_template), "{report:x?}");
    }
}
