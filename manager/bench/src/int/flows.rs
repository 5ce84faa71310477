//! Flow exports, from datagram to memory on one core. The floor is decoding the same datagrams.

use std::cell::RefCell;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context as _;
use dta_collector::store::key_increment;
use dta_dataplane::int::Rules;
use dta_flows::Decoder;
use dta_flows::emit::{self, FIELDS};
use dta_proto::flow_record::FlowRecord;
use dta_proto::key::Flow;
use dta_proto::telemetry;

use super::super::harness::{Rates, Scale, Share, cpu_time, measure_shares, pin};
use super::world::{COUNTERS, World};

const FLOWS: u32 = 100_000;
/// Records of a datagram, datagrams of a batch, batches of a call.
const RECORDS: u32 = 25;
const BATCH: usize = 16;
const BATCHES: usize = 25;
const EXPORTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// All flows, once, and where a datagram has its number.
struct Traffic {
    datagrams: Vec<Vec<u8>>,
    number_at: usize,
    next: usize,
    sent: u32,
}

fn flow(number: u32) -> Flow {
    let src = Ipv4Addr::from_bits(0x0a00_0000 | number).into();
    Flow { src, dst: Ipv4Addr::new(198, 51, 100, 7).into(), sport: 5000, dport: 443, proto: 6 }
}

/// The first bytes of a packet of a flow, from its IP header on.
fn packet(flow: &Flow) -> Vec<u8> {
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

impl Traffic {
    fn of(number_at: usize, datagram: impl Fn(&[Flow]) -> Vec<u8>) -> Traffic {
        let flows: Vec<_> = (0..FLOWS).map(flow).collect();
        let datagrams = flows.chunks(RECORDS as usize).map(datagram).collect();
        Traffic { datagrams, number_at, next: 0, sent: 0 }
    }

    fn netflow() -> Traffic {
        let template = emit::set(0, &emit::template(256, &FIELDS));
        Traffic::of(12, |flows| {
            let record =
                |flow: &Flow| emit::record(&FlowRecord { egress: Some(3), ..emit::of(*flow, 7, 4200) });
            let data = emit::set(256, &flows.iter().flat_map(record).collect::<Vec<_>>());
            emit::v9(0, 1, &[template.clone(), data])
        })
    }

    fn sflow() -> Traffic {
        Traffic::of(16, |flows| {
            let sample = |flow: &Flow| {
                let headers = emit::headers(11, &packet(flow));
                emit::sample(1, &[7, 3, 1000, 0, 0, 3, 4], &[headers])
            };
            emit::sflow(EXPORTER, 1, 0, &flows.iter().map(sample).collect::<Vec<_>>())
        })
    }

    /// The next batches, numbered.
    fn make_ready(&mut self) -> &[Vec<u8>] {
        let len = BATCH * BATCHES;
        if self.next + len > self.datagrams.len() {
            self.next = 0;
        }
        let ready = &mut self.datagrams[self.next..self.next + len];
        for datagram in &mut *ready {
            datagram[self.number_at..self.number_at + 4].copy_from_slice(&self.sent.to_be_bytes());
            self.sent = self.sent.wrapping_add(1);
        }
        self.next += len;
        ready
    }
}

/// NetFlow v9.
pub(crate) fn netflow(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, Traffic::netflow)
}

/// Samples of packets by sFlow.
pub(crate) fn sflow(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, Traffic::sflow)
}

fn run(scale: &Scale, traffic: fn() -> Traffic) -> anyhow::Result<Rates> {
    pin();
    let rules = Rules { keys: 32 * FLOWS as usize, trails: 4 * FLOWS as usize, ..Rules::default() };
    let world = RefCell::new(World::new(rules, FLOWS as usize, FLOWS as usize)?);
    let [decoder, other] = [(); 2].map(|()| RefCell::new(Decoder::new(16)));
    let [traffic, same] = [(); 2].map(|()| RefCell::new(traffic()));
    let timed = |traffic: &RefCell<Traffic>, take: &mut dyn FnMut(&[Vec<u8>])| -> Share {
        let mut traffic = traffic.borrow_mut();
        let ready = traffic.make_ready();
        let start = cpu_time();
        ready.chunks(BATCH).for_each(take);
        let records = ready.len() as u64 * u64::from(RECORDS);
        (records, cpu_time().saturating_sub(start).max(Duration::from_nanos(1)))
    };
    let work =
        || timed(&traffic, &mut |batch| world.borrow_mut().take_exports(&mut decoder.borrow_mut(), batch));
    // Every flow is new once, before the clock starts.
    for _ in 0..FLOWS as usize / (RECORDS as usize * BATCH * BATCHES) {
        work();
    }
    let rates = measure_shares(scale, work, |_| {
        timed(&same, &mut |batch| {
            let mut decoder = other.borrow_mut();
            for datagram in batch {
                decoder.decode(0, EXPORTER, datagram, |exported| _ = black_box(exported));
            }
        })
    });
    check(&mut world.borrow_mut(), &traffic.borrow(), &decoder.borrow())?;
    Ok(rates)
}

/// Every record was counted, and a reader finds bytes of each flow.
fn check(world: &mut World, traffic: &Traffic, decoder: &Decoder) -> anyhow::Result<()> {
    world.finish()?;
    let told = world.int.records();
    let sent = u64::from(traffic.sent) * u64::from(RECORDS);
    let gaps: u64 = decoder.sources().map(|(_, counters)| counters.gaps).sum();
    anyhow::ensure!(
        (told.records, told.counted, gaps) == (sent, sent, 0),
        "{sent} records were sent, {} taken, {} counted, {gaps} gaps",
        told.records,
        told.counted
    );
    let counters = world.engine.counters();
    let accepted: u64 = counters.primitives.iter().map(|of| of.accepted).sum();
    anyhow::ensure!(
        counters.received == accepted,
        "{accepted} of {} primitives were taken",
        counters.received
    );
    let reader = key_increment::Reader::new(world.store(COUNTERS)?).context("not a store of counters")?;
    let keys: Vec<_> = (0..FLOWS).step_by(100).map(|number| telemetry::bytes_key(&flow(number))).collect();
    let mut counted = vec![0; keys.len()];
    reader.query(&keys, &mut counted)?;
    anyhow::ensure!(counted.iter().all(|bytes| *bytes != 0), "a flow is not in memory");
    Ok(())
}
