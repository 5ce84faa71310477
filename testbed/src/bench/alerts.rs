//! Evaluates 1,000 alert rules on flow records as they are read; the floor is reading them.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use dta_collector::alerts::{AlertEngine, AlertsConfig, RuleConfig};
use dta_export::names::Names;
use dta_memory::reader::append::{AppendReader, Lists, ReadStart};
use dta_memory::region::RegionOptions;
use dta_memory::store::{MemoryBacking, Store};
use dta_proto::flow_record::{ENTRY_LEN, FlowRecord, STORE};
use dta_proto::layout::append::{batch_offset, encode_batch, entries_per_batch};
use dta_proto::store::{StoreKind, StoreSpec};

use super::harness::{Rates, Scale, measure_rates, pin_to_current_cpu};

const RULES: u32 = 1000;
const RING: u32 = 8192;
const BATCH_LEN: u16 = 1024;
/// Batches of one call.
const STEP: u64 = 1024;
const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_795_000_000 * SECOND;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let kind = StoreKind::Append {
        lists: 1,
        ring: RING.into(),
        batch_len: BATCH_LEN,
        entry_len: ENTRY_LEN as u8,
        notify: false,
    };
    let spec = StoreSpec { id: 1, name: STORE.into(), kind };
    let store = Store::open(&spec, &MemoryBacking::Anonymous, RegionOptions { huge_pages: true })
        .context("memory for the store")?;
    let per_batch = entries_per_batch(BATCH_LEN, ENTRY_LEN as u8);
    for sequence in 1..=RING {
        let numbers = (sequence - 1) * u32::from(per_batch)..sequence * u32::from(per_batch);
        let entries: Vec<u8> = numbers.flat_map(|number| record(number).to_entry()).collect();
        let mut batch = [0; BATCH_LEN as usize];
        encode_batch(&mut batch, 0, sequence, per_batch, &entries);
        store
            .region
            .write(batch_offset(0, sequence, RING.into(), BATCH_LEN), &batch)
            .context("inside the store")?;
    }
    let lists = Lists::new(&store).context("an append store")?;
    let first = lists.open_reader(0, ReadStart::At(1)).context("list 0 is there")?;
    let mut engine = AlertEngine::new(rules()?, Arc::new(Names::empty()), NOW);
    let (mut evaluated, mut read) = (first.clone(), first.clone());
    let (mut now, mut sum) = (NOW, 0u64);
    let rates = measure_rates(
        scale,
        || {
            // As often as the collector does, at a million records a second.
            now += SECOND / 25;
            let count = read_step(&mut evaluated, &first, |entries| engine.add_flow_records(entries, 1, now));
            std::hint::black_box(engine.evaluate(now).len());
            count
        },
        || read_step(&mut read, &first, |entries| sum += u64::from(entries[0])),
    );
    std::hint::black_box(sum);
    Ok(rates)
}

/// Reads some batches, starting over after the last; returns how many entries.
fn read_step<'a>(
    reader: &mut AppendReader<'a>,
    first: &AppendReader<'a>,
    mut with: impl FnMut(&[u8]),
) -> u64 {
    let progress = reader.read(STEP, Instant::now(), |_, entries| with(entries)).expect("the store is whole");
    if reader.next_sequence() > RING {
        *reader = first.clone();
    }
    progress.entries
}

/// A record of a flow of its own, to one of 2,000 ports.
fn record(number: u32) -> FlowRecord {
    let address = |number: u32| Ipv4Addr::from_bits(0x0a00_0000 | (number % 5000)).to_ipv6_mapped();
    FlowRecord {
        // Every record counts in each window: it stays within the longest.
        received: u64::MAX,
        src: address(number),
        dst: address(number / 7),
        exporter: address(0),
        src_port: number as u16,
        dst_port: (number % (2 * RULES)) as u16,
        protocol: 6,
        packets: 10,
        bytes: 5000,
        ..FlowRecord::EMPTY
    }
}

/// One rule for each of 1,000 ports, and the default set.
fn rules() -> anyhow::Result<Vec<dta_collector::alerts::Rule>> {
    let rule = |port: u32| {
        let text = format!(
            "name = \"port{port}\"\nwhere = \"dst-port = {port} and protocol = tcp\"\ngroup = \"dst\"\nmeasure = \"bits-per-second\"\nabove = 1e12"
        );
        Ok(toml::from_str::<RuleConfig>(&text)?)
    };
    let rule = (0..RULES).map(rule).collect::<anyhow::Result<_>>()?;
    Ok(AlertsConfig { rule, ..AlertsConfig::default() }.to_rules(&Names::empty())?)
}
