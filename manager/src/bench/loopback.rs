//! Three processes over UDP loopback: reporter, translator, collector. The floor is three processes
//! that pass the same datagrams on and do nothing with them.
//!
//! In both, the sender keeps no more datagrams on the way than the sockets hold: it reads how many
//! have arrived from the counter file of the last process, so that none is dropped and none is
//! worked on in vain.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use dta_collector::nic::soft::CounterFile;
use dta_link::{Batch, Link, UdpConfig, UdpLink};
use dta_proto::counter::nic;
use dta_proto::key::Key;
use dta_proto::store::StoreKind;
use dta_proto::wire::dta::Body;
use dta_reporter::{Config, Reporter};

use super::harness::{Rates, Scale};
use crate::testbed::daemons::{Daemons, Plan};
use crate::testbed::processes::{self, Daemon};
use crate::topology::Topology;
use crate::traffic::SplitMix;

/// Datagrams per batch.
const BATCH: usize = 64;
/// Datagrams on their way at most: what a socket takes under the kernel's usual limit.
const WINDOW: u64 = 256;
/// Bytes of a version-1 key-write of 12 bytes, and of the RoCEv2 payload that it becomes.
const REPORT: usize = 12 + 16 + 12;
const FRAME: usize = 12 + 16 + 16 + 4;

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = processes::scratch()?;
    let mut topology = Topology::load(None)?;
    for store in &mut topology.stores {
        if let StoreKind::KeyWrite { slots, redundancy, .. } = &mut store.kind {
            (*slots, *redundancy) = (scale.memory / 64, 1);
        }
    }
    let plan = Plan::plain(&topology, folder.path());
    let daemons = runtime.block_on(Daemons::start(&plan))?;
    let mut work = Work::new(daemons.reports, counter_file(&daemons)?)?;
    let mut floor = runtime.block_on(Floor::start(folder.path()))?;
    let mut best = Rates { work: 0.0, floor: 0.0 };
    for _ in 0..scale.turns {
        best.floor = best.floor.max(turn(scale.turn, &mut floor.sender, &floor.arrived)?);
        best.work = best.work.max(turn(scale.turn, &mut work.sender, &work.arrived)?);
    }
    Ok(best)
}

/// The file in which the collector's NIC counts.
pub(super) fn counter_file(daemons: &Daemons) -> anyhow::Result<PathBuf> {
    let memory = daemons.folder().join("memory");
    let entries = std::fs::read_dir(&memory).with_context(|| format!("cannot read {}", memory.display()))?;
    let found = entries.flatten().map(|entry| entry.path()).find(|path| CounterFile::read(path).is_ok());
    found.ok_or_else(|| anyhow!("the collector keeps no counters in {}", memory.display()))
}

/// How many datagrams came to the end of the chain: read from a counter file.
pub(super) struct Arrived(PathBuf);

impl Arrived {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn count(&self) -> anyhow::Result<u64> {
        let (_, counters) = CounterFile::read(&self.0)?;
        counters
            .into_iter()
            .find(|(name, _)| name == nic::RECEIVED.name)
            .map(|(_, count)| count)
            .ok_or_else(|| anyhow!("{} counts nothing received", self.0.display()))
    }
}

/// Something that sends a batch of datagrams.
type Sender = Box<dyn FnMut() -> anyhow::Result<u64>>;

/// Sends for `length`, window by window, and gives the best rate of arrivals over a tenth of it.
fn turn(length: Duration, send: &mut Sender, arrived: &Arrived) -> anyhow::Result<f64> {
    let before = arrived.count()?;
    let (start, mut sent, mut best) = (Instant::now(), 0, 0f64);
    let mut stretch = (Instant::now(), 0);
    while start.elapsed() < length {
        let here = wait(sent, before, WINDOW - BATCH as u64, arrived)?;
        while sent < here + WINDOW {
            sent += send()?;
        }
        if stretch.0.elapsed() > length / 10 {
            best = best.max((here - stretch.1) as f64 / stretch.0.elapsed().as_secs_f64());
            stretch = (Instant::now(), here);
        }
    }
    let here = wait(sent, before, 0, arrived)?;
    anyhow::ensure!(here == sent, "{sent} datagrams were sent, {here} arrived");
    Ok(best.max(here as f64 / start.elapsed().as_secs_f64()))
}

/// Waits until at most `left` of `sent` are on their way; gives how many have arrived.
pub(super) fn wait(sent: u64, before: u64, left: u64, arrived: &Arrived) -> anyhow::Result<u64> {
    let start = Instant::now();
    loop {
        let here = arrived.count()? - before;
        if sent <= here + left {
            return Ok(here);
        }
        anyhow::ensure!(
            start.elapsed() < Duration::from_secs(5),
            "{} datagrams of {sent} did not arrive",
            sent - here
        );
        std::thread::yield_now();
    }
}

struct Work {
    sender: Sender,
    arrived: Arrived,
}

impl Work {
    fn new(translator: SocketAddrV4, counters: PathBuf) -> anyhow::Result<Self> {
        let config = Config::new(translator).bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        let mut reporter = Reporter::open(Config { reporter: 1, batch: BATCH, backup: 0, ..config })?;
        let mut random = SplitMix(3);
        let sender = move || {
            for _ in 0..BATCH {
                let mut key = Key([0; 16]);
                key.0[..8].copy_from_slice(&random.next().to_be_bytes());
                let value = [7; 12];
                reporter.report(1, Body::KeyWrite { redundancy: 0, key, value: &value })?;
            }
            reporter.flush()?;
            Ok(BATCH as u64)
        };
        Ok(Self { sender: Box::new(sender), arrived: Arrived::new(counters) })
    }
}

struct Floor {
    sender: Sender,
    arrived: Arrived,
    _processes: [Daemon; 2],
}

impl Floor {
    async fn start(folder: &Path) -> anyhow::Result<Self> {
        let (counters, log) = (folder.join("sink"), folder.join("floor.log"));
        let sink = Daemon::start("sink", "__sink", &[counters.display().to_string()], &log).await?;
        let listen = |daemon: &Daemon| daemon.ready()["listen"].as_str().unwrap_or_default().to_owned();
        let forward =
            Daemon::start("forwarder", "__forward", &[listen(&sink), FRAME.to_string()], &log).await?;
        let to: SocketAddrV4 = listen(&forward).parse().context("the forwarder's address")?;
        let mut link =
            UdpLink::open(&UdpConfig::reports(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into(), false))?;
        let from = link.local_addr();
        let mut batch = Batch::with_packet_capacity(BATCH, 512);
        let payload = [0x5a; REPORT];
        let sender = move || {
            for _ in 0..BATCH {
                batch.push_udp(from, to, &payload, 0)?;
            }
            link.send(&mut batch)?;
            Ok(BATCH as u64)
        };
        Ok(Self { sender: Box::new(sender), arrived: Arrived::new(counters), _processes: [forward, sink] })
    }
}
