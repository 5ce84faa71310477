//! Flow exports, from datagram to memory on one core. The floor is decoding the same datagrams.
//!
//! The translator's time is that of the work alone, so that it writes as many sums in a share of the work as if it did
//! nothing else.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context as _;
use dta_memory::reader::key_increment;
use dta_proto::flow_record::FlowRecord;
use dta_proto::key::Flow;
use dta_proto::program::Primitive;
use dta_proto::telemetry;
use dta_telemetry::flows::emit::{self, FIELDS};
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::{ArrivalTime, Rules};

use super::super::harness::{Rates, Scale, Share, measure_shares, pin_to_current_cpu, thread_cpu_time};
use super::world::{COUNTERS, World};

const FLOWS: u32 = 100_000;
/// Records of a datagram, datagrams of a batch, batches of a call.
const RECORDS: u32 = 25;
const BATCH: usize = 16;
const BATCHES: usize = 25;
const SHARE: u32 = RECORDS * (BATCH * BATCHES) as u32;
const EXPORTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// A datagram, and how often it was sent.
pub(super) type Datagram = (Vec<u8>, u64);

/// All flows, once, and where a datagram has its number.
pub(super) struct FlowExportTraffic {
    datagrams: Vec<Datagram>,
    number_at: usize,
    /// Packets and bytes that a record stands for.
    counts: [u64; 2],
    next: usize,
    sent: u32,
}

fn flow_from_number(number: u32) -> Flow {
    let src = Ipv4Addr::from_bits(0x0a00_0000 | number).into();
    Flow { src, dst: Ipv4Addr::new(198, 51, 100, 7).into(), sport: 5000, dport: 443, proto: 6 }
}

/// The first bytes of a packet of a flow, from its IP header on.
fn packet_prefix(flow: &Flow) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, flow.proto, 0, 0];
    for address in [flow.src, flow.dst] {
        if let IpAddr::V4(address) = address {
            bytes.extend(address.octets());
        }
    }
    bytes.extend([flow.sport, flow.dport].map(u16::to_be_bytes).concat());
    bytes.resize(114, 0);
    bytes
}

impl FlowExportTraffic {
    fn new(number_at: usize, counts: [u64; 2], datagram: impl Fn(&[Flow]) -> Vec<u8>) -> FlowExportTraffic {
        let flows: Vec<_> = (0..FLOWS).map(flow_from_number).collect();
        let datagrams = flows.chunks(RECORDS as usize).map(|flows| (datagram(flows), 0)).collect();
        FlowExportTraffic { datagrams, number_at, counts, next: 0, sent: 0 }
    }

    pub(super) fn with_netflow() -> FlowExportTraffic {
        let template = emit::set(0, &emit::encode_template(256, &FIELDS));
        FlowExportTraffic::new(12, [7, 4200], |flows| {
            let record = |flow: &Flow| {
                emit::encode_record(&FlowRecord { out_if: 3, ..emit::unsampled_record(*flow, 7, 4200) })
            };
            let data = emit::set(256, &flows.iter().flat_map(record).collect::<Vec<_>>());
            emit::netflow_v9_datagram(0, 1, &[template.clone(), data])
        })
    }

    fn with_sflow() -> FlowExportTraffic {
        FlowExportTraffic::new(16, [1000, 1_500_000], |flows| {
            let sample = |flow: &Flow| {
                let headers = emit::sflow_header_record(11, &packet_prefix(flow));
                emit::sflow_sample(1, &[7, 3, 1000, 0, 0, 3, 4], &[headers])
            };
            emit::sflow_datagram(EXPORTER, 1, 0, &flows.iter().map(sample).collect::<Vec<_>>())
        })
    }

    pub(super) fn make_ready(&mut self) -> &[Datagram] {
        let len = BATCH * BATCHES;
        if self.next + len > self.datagrams.len() {
            self.next = 0;
        }
        let ready = &mut self.datagrams[self.next..self.next + len];
        for (datagram, times) in &mut *ready {
            *times += 1;
            datagram[self.number_at..self.number_at + 4].copy_from_slice(&self.sent.to_be_bytes());
            self.sent = self.sent.wrapping_add(1);
        }
        self.next += len;
        ready
    }
}

pub(crate) fn bench_netflow(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FlowExportTraffic::with_netflow)
}

pub(crate) fn bench_sflow(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FlowExportTraffic::with_sflow)
}

fn run(scale: &Scale, traffic: fn() -> FlowExportTraffic) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    // With room for four times as many as there are, so that few buckets are full.
    let rules = Rules { keys: 16 * FLOWS as usize, trails: 4 * FLOWS as usize, ..Rules::default() };
    let wait = rules.count_wait;
    let world = RefCell::new(World::new(rules, FLOWS as usize, FLOWS as usize)?);
    let [decoder, other] = [(); 2].map(|()| RefCell::new(Decoder::new(DecoderOptions::default())));
    let [traffic, same] = [(); 2].map(|()| RefCell::new(traffic()));
    let timed = |traffic: &RefCell<FlowExportTraffic>, take: &mut dyn FnMut(&[Datagram])| -> Share {
        let mut traffic = traffic.borrow_mut();
        let ready = traffic.make_ready();
        let start = thread_cpu_time();
        ready.chunks(BATCH).for_each(take);
        (SHARE.into(), thread_cpu_time().saturating_sub(start).max(Duration::from_nanos(1)))
    };
    let now = Cell::new(0);
    let work = || {
        let mut world = world.borrow_mut();
        world.clock = Some(now.get());
        let share = timed(&traffic, &mut |batch| world.take_exports(&mut decoder.borrow_mut(), batch));
        now.set(now.get() + share.1.as_nanos() as u64);
        share
    };
    // Before the clock starts, every flow is new once, and sums are written as they will be later.
    for _ in 0..4 * FLOWS / SHARE {
        work();
        now.set(now.get() + wait * u64::from(SHARE) / u64::from(FLOWS));
    }
    let increments = || {
        let world = world.borrow();
        world.engine.engine_counters().primitives[Primitive::KeyIncrement.index()].received
    };
    let (began, before) = (now.get(), increments());
    let rates = measure_shares(scale, work, |_| {
        timed(&same, &mut |batch| {
            let mut decoder = other.borrow_mut();
            for (datagram, _) in batch {
                let from = (EXPORTER, 2055).into();
                decoder.decode_datagram(ArrivalTime::default(), from, datagram, |exported| {
                    _ = black_box(exported)
                });
            }
        })
    });
    // A sum waits for two waiting times at most.
    let waits = (now.get() - began) as f64 / (2 * wait) as f64;
    let (least, written) = (3.0 * f64::from(FLOWS) * waits, increments() - before);
    anyhow::ensure!(written as f64 > 0.8 * least, "{written} of {least:.0} increments were made in the time");
    check_records_in_memory(&mut world.borrow_mut(), &traffic.borrow(), &decoder.borrow())?;
    Ok(rates)
}

/// Every record was counted, and is in memory.
pub(super) fn check_records_in_memory(
    world: &mut World,
    traffic: &FlowExportTraffic,
    decoder: &Decoder,
) -> anyhow::Result<()> {
    world.flush_to_memory()?;
    let told = world.telemetry.record_counters();
    let sent = u64::from(traffic.sent) * u64::from(RECORDS);
    let gaps: u64 = decoder.source_gaps().map(|(_, counters)| counters.gaps).sum();
    anyhow::ensure!(
        (told.records, told.counted, gaps) == (sent, sent, 0),
        "{sent} records were sent, {} taken, {} counted, {gaps} gaps",
        told.records,
        told.counted
    );
    let counters = world.engine.engine_counters();
    let accepted: u64 = counters.primitives.iter().map(|of| of.accepted).sum();
    anyhow::ensure!(
        counters.received == accepted,
        "{accepted} of {} primitives were taken",
        counters.received
    );
    // A record counts as one, too.
    let [packets, bytes] = traffic.counts;
    let (all, incremented) = (sent * (1 + packets + bytes), world.incremented()?);
    anyhow::ensure!(incremented == all, "{incremented} is in memory of {all} records, packets and bytes");
    let reader = key_increment::KeyIncrementReader::new(world.store_by_id(COUNTERS)?)
        .context("not a store of counters")?;
    let keys: Vec<_> = (0..FLOWS).map(|number| telemetry::bytes_key(&flow_from_number(number))).collect();
    let mut counted = vec![0; keys.len()];
    reader.query_keys(&keys, &mut counted)?;
    let flows = traffic.datagrams.iter().flat_map(|(_, times)| [times * bytes; RECORDS as usize]);
    let short = counted.iter().zip(flows).filter(|(counted, bytes)| *counted < bytes).count();
    anyhow::ensure!(short == 0, "of {short} flows, bytes are missing in memory");
    Ok(())
}
