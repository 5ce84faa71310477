//! Flow exports, from datagram to memory on one core. The floor is decoding the same datagrams.

use std::cell::RefCell;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use dta_memory::reader::flow_scan::tally_flows;
use dta_proto::flow_query::{FlowQuestion, FlowSum, FlowSums};
use dta_proto::flow_record::FlowRecord;
use dta_proto::key::Flow;
use dta_proto::program::Primitive;
use dta_telemetry::flows::emit::{self, FIELDS};
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::reports::{ArrivalTime, Rules};

use super::super::harness::{Rates, Scale, Share, measure_shares, pin_to_current_cpu, thread_cpu_time};
use super::world::{RECORD_STORE, World};

const FLOWS: u32 = 100_000;
/// Records of a datagram, datagrams of a batch, batches of a call.
const RECORDS: u32 = 25;
const BATCH: usize = 16;
const BATCHES: usize = 25;
const SHARE: u32 = RECORDS * (BATCH * BATCHES) as u32;
const EXPORTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// All flows, once each, and where a datagram has its number.
pub(super) struct FlowExportTraffic {
    datagrams: Vec<Vec<u8>>,
    number_at: usize,
    /// Where its records have their sources, if each record is to have its own flow.
    sources_at: Vec<usize>,
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
        let datagrams = flows.chunks(RECORDS as usize).map(datagram).collect();
        FlowExportTraffic { datagrams, number_at, sources_at: Vec::new(), counts, next: 0, sent: 0 }
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

    /// NetFlow v9, each record of a new flow.
    fn with_distinct_flows() -> FlowExportTraffic {
        let mut traffic = FlowExportTraffic::with_netflow();
        let first = &traffic.datagrams[0];
        let source_at = |number: u32| {
            let wanted = (0x0a00_0000 | number).to_be_bytes();
            first.windows(4).position(|bytes| bytes == wanted)
        };
        traffic.sources_at = (0..RECORDS).filter_map(source_at).collect();
        assert_eq!(traffic.sources_at.len(), RECORDS as usize, "a record has no source address");
        traffic
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

    pub(super) fn make_ready(&mut self) -> &[Vec<u8>] {
        let len = BATCH * BATCHES;
        if self.next + len > self.datagrams.len() {
            self.next = 0;
        }
        let ready = &mut self.datagrams[self.next..self.next + len];
        for datagram in &mut *ready {
            datagram[self.number_at..self.number_at + 4].copy_from_slice(&self.sent.to_be_bytes());
            for (record, at) in (0..).zip(&self.sources_at) {
                let flow = self.sent.wrapping_mul(RECORDS).wrapping_add(record);
                datagram[*at..at + 4].copy_from_slice(&flow.to_be_bytes());
            }
            self.sent = self.sent.wrapping_add(1);
        }
        self.next += len;
        ready
    }
}

/// NetFlow v9, each record of a new flow.
pub(crate) fn bench_distinct_flows(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FlowExportTraffic::with_distinct_flows)
}

pub(crate) fn bench_netflow(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FlowExportTraffic::with_netflow)
}

pub(crate) fn bench_sflow(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FlowExportTraffic::with_sflow)
}

fn run(scale: &Scale, traffic: fn() -> FlowExportTraffic) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let world = RefCell::new(World::new(Rules::default(), 1 << 10, 1 << 10)?);
    let [decoder, other] = [(); 2].map(|()| RefCell::new(Decoder::new(DecoderOptions::default())));
    let [traffic, same] = [(); 2].map(|()| RefCell::new(traffic()));
    let timed = |traffic: &RefCell<FlowExportTraffic>, take: &mut dyn FnMut(&[Vec<u8>])| -> Share {
        let mut traffic = traffic.borrow_mut();
        let ready = traffic.make_ready();
        let start = thread_cpu_time();
        ready.chunks(BATCH).for_each(take);
        (SHARE.into(), thread_cpu_time().saturating_sub(start).max(Duration::from_nanos(1)))
    };
    let work = || {
        let mut world = world.borrow_mut();
        timed(&traffic, &mut |batch| world.take_exports(&mut decoder.borrow_mut(), batch))
    };
    let rates = measure_shares(scale, work, |_| {
        timed(&same, &mut |batch| {
            let mut decoder = other.borrow_mut();
            for datagram in batch {
                let from = (EXPORTER, 2055).into();
                decoder.decode_datagram(ArrivalTime::default(), from, datagram, |exported| {
                    _ = black_box(exported)
                });
            }
        })
    });
    check_records_in_memory(&mut world.borrow_mut(), &traffic.borrow(), &decoder.borrow())?;
    Ok(rates)
}

/// Checks that every record was appended, and that memory has as many of them as the ring holds.
pub(super) fn check_records_in_memory(
    world: &mut World,
    traffic: &FlowExportTraffic,
    decoder: &Decoder,
) -> anyhow::Result<()> {
    world.flush_to_memory()?;
    let taken = world.telemetry.record_counters();
    let sent = u64::from(traffic.sent) * u64::from(RECORDS);
    let gaps: u64 = decoder.source_gaps().map(|(_, counters)| counters.gaps).sum();
    anyhow::ensure!(
        (taken.records, taken.appended, gaps) == (sent, sent, 0),
        "{sent} records were sent, {} taken, {} appended, {gaps} gaps",
        taken.records,
        taken.appended
    );
    let counters = &world.engine.engine_counters().primitives[Primitive::Append.index()];
    anyhow::ensure!(
        (counters.received, counters.accepted, counters.emitted) == (sent, sent, sent),
        "of {sent} records, {} were taken and {} sent",
        counters.accepted,
        counters.emitted
    );
    let store = world.store_by_id(RECORD_STORE)?;
    let (tally, scanned) = tally_flows(store, &FlowQuestion::default(), false, 1)?;
    let FlowSums { bytes, packets, flows } = tally.rank_groups(FlowSum::Bytes, 1).total;
    let batches = counters.operations.min(world.record_ring()?);
    let of_record = traffic.counts.map(|count| count * flows);
    anyhow::ensure!(
        scanned.batches == batches && scanned.torn + scanned.missing == 0 && [packets, bytes] == of_record,
        "{batches} batches were to be in memory; found {scanned:?} with {flows} records of {packets} packets and {bytes} bytes"
    );
    anyhow::ensure!(
        flows == sent || counters.operations > batches,
        "{flows} of {sent} records are in memory"
    );
    Ok(())
}
