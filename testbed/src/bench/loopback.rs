//! Three processes on one host: reporter, translator, collector. With everything over UDP loopback, the floor is
//! three processes that only pass on the same datagrams. With reports in runs, and frames through a ring in shared
//! memory or by UDP, the floor is both stages chained in one process (`chain`).
//!
//! In both, the sender keeps no more datagrams in flight than the sockets hold: it reads the number of arrivals from
//! the counter file of the last process, so that none is dropped and no work is wasted.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::daemons::{Daemons, Plan};
use crate::folder::Folder;
use crate::processes::Daemon;
use crate::topology::Topology;
use anyhow::{Context, anyhow};
use dta_link::shared_ring::RingUse;
use dta_link::{Link, UdpConfig, UdpLink};
use dta_memory::nic::soft::{CounterFile, CounterWatch};
use dta_proto::batch::PacketBatch;
use dta_proto::counter::{Stage, nic, ring};
use dta_proto::key::Key;
use dta_proto::random::SplitMix64;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::DtaBody;
use dta_reporter::{Config, Reporter};

use super::harness::{Rates, Scale};

const BATCH: usize = 64;
/// Most datagrams in flight: what a socket holds under the kernel's usual limit.
pub(super) const WINDOW: u64 = 256;
/// The same in runs, of which a socket holds more.
pub(super) const WINDOW_OF_RUNS: u64 = 4096;
/// Bytes of a version-1 key-write of 12 bytes, and of its RoCEv2 payload.
const REPORT: usize = 12 + 16 + 12;
const FRAME: usize = 12 + 16 + 16 + 4;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = Folder::new()?;
    let topology = bench_topology(scale)?;
    let plan =
        Plan { ring: RingUse::Off, runs: false, ..Plan::with_soft_nic(&topology, folder.folder_path()) };
    let daemons = runtime.block_on(Daemons::start_all(&plan))?;
    let mut work = Work::new(daemons.reports, counter_file(&daemons)?)?;
    let mut floor = runtime.block_on(Floor::start_processes(folder.folder_path()))?;
    let mut best = Rates { work: 0.0, floor: 0.0 };
    for _ in 0..scale.turns {
        best.floor =
            best.floor.max(best_arrival_rate(scale.turn, WINDOW, &mut floor.sender, &floor.arrived)?);
        best.work = best.work.max(best_arrival_rate(scale.turn, WINDOW, &mut work.sender, &work.arrived)?);
    }
    Ok(best)
}

pub(super) fn bench_with_ring(scale: &Scale) -> anyhow::Result<Rates> {
    beside_chain(scale, RingUse::Auto)
}

/// Frames by UDP, in runs.
pub(super) fn bench_without_ring(scale: &Scale) -> anyhow::Result<Rates> {
    beside_chain(scale, RingUse::Off)
}

/// Three processes, in turns with both stages in one process.
fn beside_chain(scale: &Scale, ring: RingUse) -> anyhow::Result<Rates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = Folder::new()?;
    let topology = bench_topology(scale)?;
    let plan = Plan { ring, ..Plan::with_soft_nic(&topology, folder.folder_path()) };
    let mut daemons = runtime.block_on(Daemons::start_all(&plan))?;
    let mut work = Work::with_runs(daemons.reports, Ipv4Addr::LOCALHOST, counter_file(&daemons)?)?;
    let best = beside_chain_of(scale, WINDOW_OF_RUNS, &mut work)?;
    // A figure of the other transport would be wrong here.
    let statistics = runtime.block_on(daemons.statistics())?;
    let through = statistics.stage_total(Stage::Nic).get(&ring::RECEIVED);
    anyhow::ensure!((through > 0) == (ring == RingUse::Auto), "{through} frames came through a ring");
    Ok(best)
}

/// The processes behind `work`, in turns with both stages in one process.
pub(super) fn beside_chain_of(scale: &Scale, window: u64, work: &mut Work) -> anyhow::Result<Rates> {
    let mut best = Rates { work: 0.0, floor: 0.0 };
    // A few turns each time, so that both see the same machine.
    let turns = Scale { turns: scale.turns.div_ceil(2), ..*scale };
    for _ in 0..2 {
        // On its own thread, because it pins it.
        let chained = std::thread::scope(|scope| scope.spawn(|| super::chain::run(&turns)).join());
        best.floor = best.floor.max(chained.map_err(|_| anyhow!("the chain panicked"))??.work);
        for _ in 0..turns.turns {
            best.work =
                best.work.max(best_arrival_rate(scale.turn, window, &mut work.sender, &work.arrived)?);
        }
    }
    Ok(best)
}

pub(super) fn bench_topology(scale: &Scale) -> anyhow::Result<Topology> {
    let mut topology = Topology::load(None)?;
    for store in &mut topology.stores {
        if let StoreKind::KeyWrite { slots, redundancy, .. } = &mut store.kind {
            (*slots, *redundancy) = (scale.memory / 64, 1);
        }
    }
    Ok(topology)
}

/// The counter file of the collector's NIC.
pub(super) fn counter_file(daemons: &Daemons) -> anyhow::Result<PathBuf> {
    counter_file_in(&daemons.working_folder().join("memory"))
}

/// The counter file of a collector's NIC, beside its memory.
pub(super) fn counter_file_in(memory: &Path) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(memory).with_context(|| format!("cannot read {}", memory.display()))?;
    let found = entries.flatten().map(|entry| entry.path()).find(|path| CounterFile::read(path).is_ok());
    found.ok_or_else(|| anyhow!("the collector keeps no counters in {}", memory.display()))
}

/// How many datagrams reached the end of the chain, from a counter file.
pub(super) struct Arrived(CounterWatch);

impl Arrived {
    pub(super) fn new(path: &Path) -> anyhow::Result<Self> {
        let watch = CounterFile::watch_counter(path, nic::RECEIVED.name)?;
        watch.map(Self).ok_or_else(|| anyhow!("{} counts nothing received", path.display()))
    }

    pub(super) fn read_count(&self) -> anyhow::Result<u64> {
        Ok(self.0.load()?)
    }
}

/// Something that sends a batch of datagrams.
type Sender = Box<dyn FnMut() -> anyhow::Result<u64>>;

/// Sends for `length`, window by window, and returns the best rate of arrivals over a tenth of it.
fn best_arrival_rate(
    length: Duration,
    window: u64,
    send: &mut Sender,
    arrived: &Arrived,
) -> anyhow::Result<f64> {
    let ArrivalRates { best, mean } = arrival_rates(length, window, send, arrived)?;
    Ok(best.max(mean))
}

struct ArrivalRates {
    /// Over a tenth of the time.
    best: f64,
    /// Over all of it.
    mean: f64,
}

fn arrival_rates(
    length: Duration,
    window: u64,
    send: &mut Sender,
    arrived: &Arrived,
) -> anyhow::Result<ArrivalRates> {
    let before = arrived.read_count()?;
    let (start, mut sent, mut best) = (Instant::now(), 0, 0f64);
    let mut stretch = (Instant::now(), 0);
    while start.elapsed() < length {
        // A quarter of the window at a time: reading counters has a cost, too.
        let here = wait_for_arrivals(sent, before, window - window / 4, arrived)?;
        while sent < here + window {
            sent += send()?;
        }
        if stretch.0.elapsed() > length / 10 {
            best = best.max((here - stretch.1) as f64 / stretch.0.elapsed().as_secs_f64());
            stretch = (Instant::now(), here);
        }
    }
    let here = wait_for_arrivals(sent, before, 0, arrived)?;
    anyhow::ensure!(here == sent, "{sent} datagrams were sent, {here} arrived");
    Ok(ArrivalRates { best, mean: here as f64 / start.elapsed().as_secs_f64() })
}

/// Waits until at most `left` of `sent` are in flight; returns how many have arrived.
pub(super) fn wait_for_arrivals(sent: u64, before: u64, left: u64, arrived: &Arrived) -> anyhow::Result<u64> {
    let start = Instant::now();
    loop {
        let here = arrived.read_count()? - before;
        if sent <= here + left {
            return Ok(here);
        }
        anyhow::ensure!(
            start.elapsed() < Duration::from_secs(60),
            "{} datagrams of {sent} did not arrive",
            sent - here
        );
        std::thread::yield_now();
    }
}

/// A reporter, and what has arrived of its reports.
pub(super) struct Work {
    sender: Sender,
    arrived: Arrived,
}

/// A reporter at an address, which keeps no reports.
fn open_reporter(translator: SocketAddrV4, here: Ipv4Addr) -> anyhow::Result<Reporter> {
    let config = Config::new(translator).bind(SocketAddrV4::new(here, 0));
    Ok(Reporter::open(Config { reporter: 1, batch: BATCH, backup: 0, ..config })?)
}

impl Work {
    /// Sends for `length` with at most `window` reports in flight; returns arrivals per second.
    pub(super) fn mean_arrival_rate(&mut self, length: Duration, window: u64) -> anyhow::Result<f64> {
        Ok(arrival_rates(length, window, &mut self.sender, &self.arrived)?.mean)
    }

    fn new(translator: SocketAddrV4, counters: PathBuf) -> anyhow::Result<Self> {
        let (mut reporter, mut random) = (open_reporter(translator, Ipv4Addr::LOCALHOST)?, SplitMix64(3));
        let sender = move || {
            for _ in 0..BATCH {
                let mut key = Key([0; 16]);
                key.0[..8].copy_from_slice(&random.next_u64().to_be_bytes());
                let value = [7; 12];
                reporter.report(1, DtaBody::KeyWrite { redundancy: 0, key, value: &value })?;
            }
            reporter.flush()?;
            Ok(BATCH as u64)
        };
        Ok(Self { sender: Box::new(sender), arrived: Arrived::new(&counters)? })
    }

    /// The same with reports in runs, from an address of this host.
    pub(super) fn with_runs(
        translator: SocketAddrV4,
        here: Ipv4Addr,
        counters: PathBuf,
    ) -> anyhow::Result<Self> {
        let (mut reporter, mut random) = (open_reporter(translator, here)?, SplitMix64(3));
        let like = DtaBody::KeyWrite { redundancy: 0, key: Key([0; 16]), value: &[7; 12] };
        let sender = move || {
            reporter.report_many(1, like, BATCH, |_, fields| {
                fields.key[..8].copy_from_slice(&random.next_u64().to_be_bytes());
            })?;
            reporter.flush()?;
            Ok(BATCH as u64)
        };
        Ok(Self { sender: Box::new(sender), arrived: Arrived::new(&counters)? })
    }
}

struct Floor {
    sender: Sender,
    arrived: Arrived,
    _processes: [Daemon; 2],
}

impl Floor {
    async fn start_processes(folder: &Path) -> anyhow::Result<Self> {
        let (counters, log) = (folder.join("sink"), folder.join("floor.log"));
        let sink =
            Daemon::spawn_until_ready("sink", "__sink", &[counters.display().to_string()], &log).await?;
        let listen = |daemon: &Daemon| daemon.ready_line()["listen"].as_str().unwrap_or_default().to_owned();
        let forward =
            Daemon::spawn_until_ready("forwarder", "__forward", &[listen(&sink), FRAME.to_string()], &log)
                .await?;
        let to: SocketAddrV4 = listen(&forward).parse().context("the forwarder's address")?;
        let mut link =
            UdpLink::open(&UdpConfig::for_reports(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into(), false))?;
        let from = link.local_addr();
        let mut batch = PacketBatch::with_packet_capacity(BATCH, 512);
        let payload = [0x5a; REPORT];
        let sender = move || {
            for _ in 0..BATCH {
                batch.push_datagram(from, to, &payload, 0)?;
            }
            link.send(&mut batch)?;
            Ok(BATCH as u64)
        };
        Ok(Self { sender: Box::new(sender), arrived: Arrived::new(&counters)?, _processes: [forward, sink] })
    }
}
