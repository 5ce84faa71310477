//! INT Telemetry Reports, from frame to memory on one core: the cost of a report if nothing changes, if everything
//! changes, and if each report is written (`write = "always"`).
//!
//! The floor of the first is reading the same reports, plus one load per value, at a place that depends on the value,
//! from memory as large as the translator's table. The floor of the other two is reading the same reports, plus as
//! many key-writes through the same engine and NIC as the reports make primitives: with the store's copies for a
//! value or a path, and with one copy for an event, whose entry is written once. It does not account for entries and
//! paths being longer than values.
//!
//! `loopback`: the same reports as datagrams through the translator's sockets, compared with a bare receiver.

mod floor;
pub(crate) mod flows;
mod loopback;
mod show;
#[cfg(test)]
mod tests;
mod traffic;
mod world;

use std::cell::RefCell;
use std::time::Duration;

use dta_memory::reader::key_write;
use dta_proto::key::Key;
use dta_proto::layout::key_write::Choice;
use dta_proto::telemetry::{self, TimedValue, VALUE_LEN};
use dta_telemetry::int::{IntSettings, parse_reports};
use dta_telemetry::reports::{Detect, Rules};

use super::harness::{Rates, Scale, Share, measure_shares, pin_to_current_cpu, thread_cpu_time};
use super::{BenchCase, BenchRun, Beside};
use floor::Floor;
pub use show::render_figures;
use traffic::IntTraffic;
pub(super) use traffic::report_bytes;
use world::{VALUES, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntBenchKind {
    Unchanged,
    /// A different value in each field, and the switches of the path in a different order.
    Changed,
    /// Nothing new, but each value is written anyway.
    Always,
    /// Like [`IntBenchKind::Changed`], from a socket to the memory of a NIC in another thread.
    Loopback,
}

use IntBenchKind::{Always, Changed, Loopback, Unchanged};

/// Reports, and how many hops and flows they have.
pub(crate) struct Reports {
    kind: IntBenchKind,
    hops: usize,
    flows: usize,
}

const fn int_case(
    name: &'static str,
    what: &'static str,
    kind: IntBenchKind,
    hops: usize,
    flows: usize,
) -> BenchCase {
    let least_ratio = match kind {
        Unchanged => 0.4,
        Changed => 0.6,
        Loopback => 0.3,
        Always => 0.0,
    };
    let intcollector = match (kind, flows, hops) {
        (Unchanged, 100, 3) => Some(255.0),
        (Unchanged, 100, 6) => Some(458.0),
        _ => None,
    };
    BenchCase {
        name,
        what,
        least_ratio,
        beside: Beside::IntCollector(intcollector),
        glance: false,
        run: BenchRun::Int(Reports { kind, hops, flows }),
    }
}

/// All benchmarks, in report order: few flows are 100, many are 100,000.
pub const CASES: [BenchCase; 13] = [
    int_case("int-unchanged-3-few", "nothing changes, 3 hops, 100 flows", Unchanged, 3, 100),
    int_case("int-unchanged-6-few", "nothing changes, 6 hops, 100 flows", Unchanged, 6, 100),
    int_case("int-unchanged-3-many", "nothing changes, 3 hops, 100,000 flows", Unchanged, 3, 100_000),
    int_case("int-unchanged-6-many", "nothing changes, 6 hops, 100,000 flows", Unchanged, 6, 100_000),
    int_case("int-changed-3-few", "everything changes, 3 hops, 100 flows", Changed, 3, 100),
    int_case("int-changed-6-few", "everything changes, 6 hops, 100 flows", Changed, 6, 100),
    int_case("int-changed-3-many", "everything changes, 3 hops, 100,000 flows", Changed, 3, 100_000),
    int_case("int-changed-6-many", "everything changes, 6 hops, 100,000 flows", Changed, 6, 100_000),
    int_case("int-always-3-few", "write = \"always\", 3 hops, 100 flows", Always, 3, 100),
    int_case("int-always-6-few", "write = \"always\", 6 hops, 100 flows", Always, 6, 100),
    int_case("int-always-3-many", "write = \"always\", 3 hops, 100,000 flows", Always, 3, 100_000),
    int_case("int-always-6-many", "write = \"always\", 6 hops, 100,000 flows", Always, 6, 100_000),
    int_case("int-loopback-3-few", "everything changes, sockets, 100 flows", Loopback, 3, 100),
];

impl Reports {
    fn telemetry_rules(&self) -> Rules {
        let mut rules = Rules::default();
        // Path, flow latency and hop latencies of each flow, and the queues and links of all switches; with room for
        // four times as many, so that few buckets are full.
        rules.keys = (4 * self.flows * (2 + self.hops) + 10_000).max(rules.keys);
        for metric in &mut rules.metrics {
            metric.always = self.kind == Always;
            if matches!(self.kind, Changed | Loopback) {
                metric.detect = Detect::Any;
            }
        }
        rules
    }

    pub(crate) fn run(&self, scale: &Scale) -> anyhow::Result<Rates> {
        match self.kind {
            Loopback => loopback::run(self, scale),
            _ => self.run_on_one_core(scale),
        }
    }

    fn run_on_one_core(&self, scale: &Scale) -> anyhow::Result<Rates> {
        pin_to_current_cpu();
        let rules = self.telemetry_rules();
        // Separate traffic for each: with shared traffic, what changed between two reports of a flow would depend on which
        // of the two had those between.
        let [traffic, same] =
            [(); 2].map(|()| RefCell::new(IntTraffic::new(self.flows, self.hops, self.kind == Changed)));
        let values = traffic.borrow().values_per_report();
        let floor = RefCell::new(match self.kind {
            Unchanged => Floor::with_loads(rules.keys),
            Changed | Always | Loopback => Floor::of_writes(self.kind == Changed),
        });
        let mut world = World::new(rules, self.flows, self.flows * (1 + self.hops))?;
        let settings = IntSettings::default();
        // New values are reported before the clock starts.
        for _ in 0..=2 * self.flows as u64 / IntTraffic::READY {
            traffic.borrow_mut().make_ready().iter().for_each(|batch| world.take(batch, &settings));
        }
        let before = world.telemetry.int_counters().clone();
        let world = RefCell::new(world);
        let timed = |traffic: &RefCell<IntTraffic>,
                     run: &mut dyn FnMut(&mut World, &dta_proto::batch::PacketBatch)|
         -> Share {
            let (mut traffic, world) = (traffic.borrow_mut(), &mut *world.borrow_mut());
            let batches = traffic.make_ready();
            let start = thread_cpu_time();
            batches.iter().for_each(|batch| run(world, batch));
            (IntTraffic::READY, thread_cpu_time().saturating_sub(start).max(Duration::from_nanos(1)))
        };
        let rates = measure_shares(
            scale,
            || timed(&traffic, &mut |world, batch| world.take(batch, &settings)),
            |_| timed(&same, &mut |world, batch| floor.borrow_mut().take(batch, &settings, world)),
        );
        let mut world = world.into_inner();
        let counters = world.telemetry.int_counters();
        let taken = counters.reports - before.reports;
        let [unchanged, changed] = [counters.unchanged - before.unchanged, counters.changed - before.changed];
        let suppressed: u64 = counters.suppressed.iter().sum::<u64>() - before.suppressed.iter().sum::<u64>();
        // A key that lost its place is reported once more, which must be rare.
        let most = taken - taken / 100;
        let as_meant = match self.kind {
            Unchanged => unchanged >= most && suppressed >= most * values,
            Changed | Loopback => changed == taken && suppressed == 0,
            Always => changed == taken && suppressed >= most * values,
        };
        anyhow::ensure!(
            as_meant,
            "of {taken} reports with {values} values each, {unchanged} were unchanged, {changed} changed, and {suppressed} values were suppressed"
        );
        self.check_last_latencies(&mut traffic.borrow_mut(), &mut world, &settings)?;
        Ok(rates)
    }

    /// Takes more reports, and queries the latencies in the last of them: a reader finds them.
    fn check_last_latencies(
        &self,
        traffic: &mut IntTraffic,
        world: &mut World,
        settings: &IntSettings,
    ) -> anyhow::Result<()> {
        let batches = traffic.make_ready();
        batches.iter().for_each(|batch| world.take(batch, settings));
        world.flush_to_memory()?;
        let Some(last) = batches.last() else { anyhow::bail!("no reports were made") };
        let (mut keys, mut wanted) = (Vec::<Key>::new(), Vec::new());
        // One of each flow: earlier values of a flow are no longer in memory.
        let count = last.len().min(self.flows);
        for index in last.len() - count..last.len() {
            let Some(datagram) = last.udp_datagram(index) else {
                anyhow::bail!("a report is not a datagram")
            };
            for report in parse_reports(datagram.payload(), settings)? {
                let report = report?;
                let flow = report.packet.map(|packet| *packet.inner_flow())?;
                for (switch, hop) in report.hops_with_switches() {
                    let (Some(switch), Some(latency)) = (switch, hop.node_latency()) else { continue };
                    keys.push(telemetry::hop_latency_key(&flow, switch));
                    wanted.push(latency as u32);
                }
            }
        }
        anyhow::ensure!(keys.len() == self.hops * count, "{} hops in the last reports", keys.len());
        let Some(reader) = key_write::KeyWriteReader::new(world.store_by_id(VALUES)?) else {
            anyhow::bail!("not a key-write store")
        };
        let mut answers = vec![key_write::KeyWriteReading::default(); keys.len()];
        let mut values = vec![0; keys.len() * VALUE_LEN];
        reader.query_keys(&keys, Choice::First, &mut answers, &mut values)?;
        let read = values
            .chunks_exact(VALUE_LEN)
            .map(|value| TimedValue::parse_bytes(value).map(|value| value.value));
        let mut found = 0;
        for ((answer, read), wanted) in answers.iter().zip(read).zip(wanted) {
            if answer.found {
                anyhow::ensure!(read == Some(wanted), "{read:?} is in memory for {wanted}");
                found += 1;
            }
        }
        // If nothing changes, the values are old, and a few have lost all four copies by now.
        anyhow::ensure!(
            found * 10 >= keys.len() * 9,
            "only {found} of {} latencies are in memory",
            keys.len()
        );
        let (counters, primitives) =
            (world.engine.engine_counters(), world.telemetry.int_counters().primitives);
        let dropped = counters.received - counters.primitives.iter().map(|of| of.accepted).sum::<u64>();
        anyhow::ensure!(dropped == 0 && primitives != 0, "{dropped} primitives were dropped");
        Ok(())
    }
}
