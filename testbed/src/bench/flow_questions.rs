//! Questions about flow records in memory, on one core; the floor is copying and checking the batches.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::Context;
use dta_memory::reader::flow_scan::tally_flows;
use dta_memory::region::RegionOptions;
use dta_memory::store::{MemoryBacking, Store};
use dta_proto::flow_query::{FlowFilter, FlowQuestion, FlowSum, FlowSums};
use dta_proto::flow_record::{self, ENTRY_LEN, FlowRecord, to_mapped_address};
use dta_proto::key::Flow;
use dta_proto::layout::append::{RingBatch, batch_offset, decode_batch, encode_batch};
use dta_proto::store::{StoreKind, StoreSpec};

use super::harness::{Rates, Scale, measure_rates, pin_to_current_cpu};

const BATCH_LEN: u16 = 1024;
const PER_BATCH: u32 = 5;

/// The ten largest of as many flows as there are records.
pub(super) fn bench_largest(scale: &Scale) -> anyhow::Result<Rates> {
    let question = FlowQuestion { group: FlowQuestion::parse_group("flow")?, ..FlowQuestion::default() };
    run(scale, &question, |records| records)
}

/// The records of one flow among them.
pub(super) fn bench_one_flow(scale: &Scale) -> anyhow::Result<Rates> {
    let filter = FlowFilter::from_flow(&flow_from_number(17));
    run(scale, &FlowQuestion { filter, ..FlowQuestion::default() }, |_| 1)
}

fn flow_from_number(number: u32) -> Flow {
    let src = Ipv4Addr::from_bits(0x0a00_0000 | number).into();
    Flow { src, dst: Ipv4Addr::new(198, 51, 100, 7).into(), sport: 5000, dport: 443, proto: 6 }
}

/// `expected`: how many of the store's records count.
fn run(scale: &Scale, question: &FlowQuestion, expected: fn(u64) -> u64) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    // A third of the memory: 1.7 million records of a gigabyte.
    let ring = (scale.memory / 2 / u64::from(BATCH_LEN)).next_power_of_two();
    let batches = (ring * 2 / 3) as u32;
    let store = filled_store(ring, batches)?;
    let records = u64::from(batches * PER_BATCH);
    let rates = measure_rates(
        scale,
        || {
            let (tally, scanned) = tally_flows(&store, question, false, 1).expect("the store is whole");
            let FlowSums { flows, .. } = tally.rank_groups(FlowSum::Bytes, 10).total;
            assert_eq!((scanned.batches, flows), (batches.into(), expected(records)));
            records
        },
        || {
            let mut batch = [0; BATCH_LEN as usize];
            for sequence in 1..=batches {
                let read = store.region.read(batch_offset(0, sequence, ring, BATCH_LEN), &mut batch);
                read.expect("inside the store");
                assert!(matches!(
                    black_box(decode_batch(&batch, 0, ENTRY_LEN as u8)),
                    RingBatch::Valid { .. }
                ));
            }
            records
        },
    );
    Ok(rates)
}

/// One list with this many batches, in which each record has its own flow.
fn filled_store(ring: u64, batches: u32) -> anyhow::Result<Store> {
    let entry_len = ENTRY_LEN as u8;
    let kind = StoreKind::Append { lists: 1, ring, batch_len: BATCH_LEN, entry_len, notify: false };
    let spec = StoreSpec { id: 1, name: flow_record::STORE.into(), kind };
    let store = Store::open(&spec, &MemoryBacking::Anonymous, RegionOptions { huge_pages: true })
        .context("memory for the store")?;
    let mut batch = [0; BATCH_LEN as usize];
    for sequence in 1..=batches {
        let numbers = (sequence - 1) * PER_BATCH..sequence * PER_BATCH;
        let entries: Vec<u8> = numbers.flat_map(|number| record_from_number(number).to_entry()).collect();
        encode_batch(&mut batch, 0, sequence, PER_BATCH as u8, &entries);
        store.region.write(batch_offset(0, sequence, ring, BATCH_LEN), &batch).context("inside the store")?;
    }
    Ok(store)
}

fn record_from_number(number: u32) -> FlowRecord {
    let flow = flow_from_number(number);
    let size = 1 + u64::from(number.wrapping_mul(2_654_435_761) >> 20);
    FlowRecord {
        received: 1_790_000_000_000_000_000 + u64::from(number) * 2000,
        bytes: size * 700,
        packets: size,
        exporter: to_mapped_address(IpAddr::from([192, 0, 2, 1])),
        src: to_mapped_address(flow.src),
        dst: to_mapped_address(flow.dst),
        src_port: flow.sport,
        dst_port: flow.dport,
        protocol: flow.proto,
        ..FlowRecord::EMPTY
    }
}
