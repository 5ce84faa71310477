//! Checks that memory stays flat: a long run of all primitives, watching the processes' resident memory without their
//! stores.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use crate::daemons::{Daemons, Plan};
use crate::folder::Folder;
use crate::topology::{Primitive, Topology};
use anyhow::Context;
use dta_proto::counter::{CounterStep, Stage, translator};
use dta_proto::key::Key;
use dta_proto::random::SplitMix64;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::DtaBody;
use dta_reporter::{Config, ReportOptions, Reporter};
use serde::Serialize;

use super::loopback::counter_file;

/// Reports between two reads of the counters: what the translator's socket holds.
const BURST: u64 = 192;
/// Samples of memory over the run.
const SAMPLES: u64 = 50;

#[derive(Clone, Debug, Serialize)]
pub struct MemoryFigure {
    pub reports: u64,
    /// Reports that the translator accepted.
    pub accepted: u64,
    /// Operations that the NIC executed.
    pub executed: u64,
    pub seconds: f64,
    /// Kilobytes of the collector without its stores: after a tenth of the run, and the maximum after that.
    pub collector: [u64; 2],
    /// The same of the translator.
    pub translator: [u64; 2],
    /// The same of the reporter, this process.
    pub reporter: [u64; 2],
}

impl MemoryFigure {
    /// Whether no process grew by more than a twentieth and 1 MiB.
    pub fn is_memory_flat(&self) -> bool {
        [self.collector, self.translator, self.reporter]
            .iter()
            .all(|[early, most]| *most <= early + early / 20 + 1024)
    }
}

/// Runs `reports` reports of all primitives through three processes. `progress` gets the number made.
pub fn run(reports: u64, mut progress: impl FnMut(u64)) -> anyhow::Result<MemoryFigure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = Folder::new()?;
    let topology = Topology::load(None)?;
    let plan = Plan::with_soft_nic(&topology, folder.folder_path());
    let mut daemons = runtime.block_on(Daemons::start_all(&plan))?;
    let arrived = super::loopback::Arrived::new(&counter_file(&daemons)?)?;
    let config = Config::new(daemons.reports).bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    let mut reporter = Reporter::open(Config { reporter: 1, ..config })?;
    let mut mix = Mix::new(&topology);
    let (start, mut made, mut early) = (Instant::now(), 0, [0; 3]);
    let mut most = [0; 3];
    while made < reports {
        for _ in 0..BURST {
            mix.report_next(&mut reporter)?;
        }
        reporter.flush()?;
        made += BURST;
        // This process learns what the translator has taken only from what it sends: about half a frame per report.
        if made % (BURST * 8) == 0 {
            runtime.block_on(wait_for_receipt(&mut daemons, made))?;
        } else {
            wait_for_frames(&arrived)?;
        }
        if (made / BURST).is_multiple_of((reports / BURST / SAMPLES).max(1)) {
            let now = resident_kilobytes(&daemons)?;
            if made * 10 < reports {
                early = now;
            }
            most = std::array::from_fn(|n| if made * 10 < reports { 0 } else { most[n].max(now[n]) });
        }
        progress(made.min(reports));
    }
    let statistics = runtime.block_on(daemons.statistics())?;
    let pair = |n: usize| [early[n], most[n]];
    Ok(MemoryFigure {
        reports: made,
        accepted: statistics.stage_total(Stage::Translator).get(&translator::ACCEPTED),
        executed: statistics.stage_total(Stage::Nic).sum(CounterStep::Executed),
        seconds: start.elapsed().as_secs_f64(),
        collector: pair(0),
        translator: pair(1),
        reporter: pair(2),
    })
}

/// Waits until the translator has received all but a burst of `made` reports.
async fn wait_for_receipt(daemons: &mut Daemons, made: u64) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let received = daemons.statistics().await?.stage_total(Stage::Translator).get(&translator::RECEIVED);
        // A report that the kernel dropped will not come; this is not a test for that.
        if received + BURST >= made || start.elapsed().as_millis() > 20 {
            return Ok(());
        }
    }
}

/// Waits until frames come in again, or no more do.
fn wait_for_frames(arrived: &super::loopback::Arrived) -> anyhow::Result<()> {
    let before = arrived.read_count()?;
    for _ in 0..50 {
        if arrived.read_count()? > before + BURST / 4 {
            return Ok(());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Resident kilobytes of collector, translator and this process, without shared memory, which is the stores.
fn resident_kilobytes(daemons: &Daemons) -> anyhow::Result<[u64; 3]> {
    let [collector, translator] = daemons.process_ids();
    let of = |pid: Option<u32>| {
        let pid = pid.context("a daemon is gone")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        anyhow::Ok(field("RssAnon:").unwrap_or(0) + field("RssFile:").unwrap_or(0))
    };
    Ok([of(collector)?, of(translator)?, of(Some(std::process::id()))?])
}

/// Reports of five primitives in turn, as a busy switch makes them.
struct Mix {
    random: SplitMix64,
    count: u64,
    stores: [u16; Primitive::ALL.len()],
    columns: u32,
    rows: usize,
}

impl Mix {
    fn new(topology: &Topology) -> Self {
        let (columns, rows) = match topology.store_of_primitive(Primitive::SketchMerge).kind {
            StoreKind::SketchMerge { columns, rows, .. } => (columns, rows.into()),
            _ => unreachable!("looked up by its kind"),
        };
        Self {
            random: SplitMix64(9),
            count: 0,
            stores: Primitive::ALL.map(|p| topology.store_of_primitive(p).id),
            columns,
            rows,
        }
    }

    fn report_next(&mut self, reporter: &mut Reporter) -> anyhow::Result<()> {
        let draw = self.random.next_u64();
        let mut key = Key([0; 16]);
        key.0[..4].copy_from_slice(&(draw as u32).to_be_bytes());
        let column = (self.count / 5) as u32;
        let value = [draw as u8; 16];
        let body = match self.count % 5 {
            0 => DtaBody::KeyWrite { redundancy: 0, key, value: &value[..12] },
            1 => DtaBody::Append { list: draw as u32 & 1, value: &value },
            2 => DtaBody::KeyIncrement { redundancy: 0, key, delta: 1 },
            3 => DtaBody::Postcard { key, hop: (draw >> 40) as u8 % 5, path_length: 5, value: draw as u32 },
            _ => DtaBody::SketchMerge {
                epoch: 1 + column / self.columns,
                column: column % self.columns,
                cells: &value[..4 * self.rows],
            },
        };
        self.count += 1;
        let options = ReportOptions { retransmittable: draw & 1 == 1, immediate: false };
        reporter.report_with(self.stores[body.primitive().index()], body, options)?;
        Ok(())
    }
}
