//! Checks that memory stays flat: a long run of all primitives, watching the processes' resident memory without their
//! stores.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use anyhow::Context;
use dta_proto::counter::{Stage, Step, translator};
use dta_proto::key::Key;
use dta_proto::random::SplitMix64;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::Body;
use dta_reporter::{Config, Options, Reporter};
use crate::daemons::{Daemons, Plan};
use crate::folder::Folder;
use crate::topology::{Primitive, Topology};
use serde::Serialize;

use super::loopback::counter_file;

/// Reports between two reads of the counters: what the translator's socket holds.
const BURST: u64 = 192;
/// Samples of memory over the run.
const SAMPLES: u64 = 50;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryFigure {
    /// Reports made.
    pub reports: u64,
    /// Reports that the translator accepted.
    pub accepted: u64,
    /// Operations that the NIC executed.
    pub executed: u64,
    /// Seconds.
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
    pub fn is_flat(&self) -> bool {
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
    let plan = Plan::plain(&topology, folder.path());
    let mut daemons = runtime.block_on(Daemons::start(&plan))?;
    let arrived = super::loopback::Arrived::new(&counter_file(&daemons)?)?;
    let config = Config::new(daemons.reports).bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    let mut reporter = Reporter::open(Config { reporter: 1, ..config })?;
    let mut mix = Mix::new(&topology);
    let (start, mut made, mut early) = (Instant::now(), 0, [0; 3]);
    let mut most = [0; 3];
    while made < reports {
        for _ in 0..BURST {
            mix.report(&mut reporter)?;
        }
        reporter.flush()?;
        made += BURST;
        // This process learns what the translator has taken only from what it sends: about half a frame per report.
        if made % (BURST * 8) == 0 {
            runtime.block_on(quiet(&mut daemons, made))?;
        } else {
            pause(&arrived)?;
        }
        if (made / BURST).is_multiple_of((reports / BURST / SAMPLES).max(1)) {
            let now = resident(&daemons)?;
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
        accepted: statistics.node(Stage::Translator).get(&translator::ACCEPTED),
        executed: statistics.node(Stage::Nic).sum(Step::Executed),
        seconds: start.elapsed().as_secs_f64(),
        collector: pair(0),
        translator: pair(1),
        reporter: pair(2),
    })
}

/// Waits until the translator has received all but a burst of `made` reports.
async fn quiet(daemons: &mut Daemons, made: u64) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let received = daemons.statistics().await?.node(Stage::Translator).get(&translator::RECEIVED);
        // A report that the kernel dropped will not come; this is not a test for that.
        if received + BURST >= made || start.elapsed().as_millis() > 20 {
            return Ok(());
        }
    }
}

/// Waits until frames come in again, or no more do.
fn pause(arrived: &super::loopback::Arrived) -> anyhow::Result<()> {
    let before = arrived.count()?;
    for _ in 0..50 {
        if arrived.count()? > before + BURST / 4 {
            return Ok(());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Resident kilobytes of collector, translator and this process, without shared memory, which is the stores.
fn resident(daemons: &Daemons) -> anyhow::Result<[u64; 3]> {
    let [collector, translator] = daemons.pids();
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
        let (columns, rows) = match topology.store(Primitive::SketchMerge).kind {
            StoreKind::SketchMerge { columns, rows, .. } => (columns, rows.into()),
            _ => unreachable!("looked up by its kind"),
        };
        Self {
            random: SplitMix64(9),
            count: 0,
            stores: Primitive::ALL.map(|p| topology.store(p).id),
            columns,
            rows,
        }
    }

    fn report(&mut self, reporter: &mut Reporter) -> anyhow::Result<()> {
        let draw = self.random.draw();
        let mut key = Key([0; 16]);
        key.0[..4].copy_from_slice(&(draw as u32).to_be_bytes());
        let column = (self.count / 5) as u32;
        let value = [draw as u8; 16];
        let body = match self.count % 5 {
            0 => Body::KeyWrite { redundancy: 0, key, value: &value[..12] },
            1 => Body::Append { list: draw as u32 & 1, value: &value },
            2 => Body::KeyIncrement { redundancy: 0, key, delta: 1 },
            3 => Body::Postcard { key, hop: (draw >> 40) as u8 % 5, path_length: 5, value: draw as u32 },
            _ => Body::SketchMerge {
                epoch: 1 + column / self.columns,
                column: column % self.columns,
                cells: &value[..4 * self.rows],
            },
        };
        self.count += 1;
        let options = Options { retransmittable: draw & 1 == 1, immediate: false };
        reporter.report_with(self.stores[body.primitive().index()], body, options)?;
        Ok(())
    }
}
