//! A collector and a translator for one testbed: their files, their start, their counters.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use dta_client::collector::Client;
use dta_client::{Ask, ClientOptions, translator};
use dta_collector::nic::ROCE_PORT;
use dta_link::fault::Faults;
use dta_link::shared_ring::RingUse;
use dta_proto::counter::Stage;
use serde::Serialize;

use super::ground::RxeGround;
use super::processes::Daemon;
use super::statistics::Statistics;
use crate::topology::{Topology, Transport};

/// What both daemons need to know.
pub struct Plan<'a> {
    /// Stores and settings.
    pub topology: &'a Topology,
    /// Soft-RoCE, if not the software NIC on loopback.
    pub rxe: Option<&'a RxeGround>,
    /// Of writes.
    pub transport: Transport,
    /// On the RoCEv2 frames that each of them sends.
    pub faults: Faults,
    /// On the NACKs that the translator sends.
    pub report_faults: Faults,
    /// Of the faults.
    pub seed: u64,
    /// Where the collector's gRPC listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether frames go through a ring in shared memory.
    pub ring: RingUse,
    /// Threads of the translator.
    pub workers: usize,
    /// Threads of the collector's software NIC.
    pub nic_threads: usize,
    /// Where files go.
    pub folder: &'a Path,
}

/// A free port on loopback.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl<'a> Plan<'a> {
    /// The software NIC on loopback, writes over UC, no faults.
    pub fn plain(topology: &'a Topology, folder: &'a Path) -> Self {
        let faults = Faults::NONE;
        Self {
            topology,
            rxe: None,
            transport: Transport::Uc,
            faults,
            report_faults: faults,
            seed: 1,
            listen: ANY_PORT,
            ring: RingUse::Auto,
            workers: 1,
            nic_threads: 1,
            folder,
        }
    }
}

/// A running collector and translator.
pub struct Daemons {
    collector: Option<Daemon>,
    translator: Option<Daemon>,
    /// Client of the collector; it connects again by itself after a restart.
    pub client: Client,
    /// Client of the translator.
    control: translator::Client,
    /// Where the collector's gRPC is.
    pub collector_address: String,
    /// Where RoCEv2 frames go.
    pub roce: SocketAddrV4,
    /// Where reports go.
    pub reports: SocketAddrV4,
    /// The translator's gRPC.
    pub control_address: String,
    folder: PathBuf,
    /// Threads of the translator, each with a ledger of its own.
    workers: usize,
    /// What translators that were killed had counted.
    earlier: Option<Statistics>,
    /// How many were.
    killed: u32,
}

/// The collector's configuration file, as far as a testbed needs it.
#[derive(Serialize)]
struct CollectorFile<'a> {
    collector: CollectorTable<'a>,
    soft: SoftTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbs: Option<VerbsTable>,
    metrics: MetricsTable,
    store: &'a [dta_proto::store::StoreSpec],
}

#[derive(Serialize)]
struct MetricsTable {
    listen: &'static str,
}

#[derive(Serialize)]
struct CollectorTable<'a> {
    name: &'static str,
    listen: String,
    memory: String,
    device: &'a str,
    transport: &'static str,
}

#[derive(Serialize)]
struct VerbsTable {
    address: String,
}

#[derive(Serialize)]
struct SoftTable {
    address: String,
    port: u16,
}

impl Daemons {
    /// Starts both and waits until they are ready.
    pub async fn start(plan: &Plan<'_>) -> anyhow::Result<Self> {
        let folder = plan.folder.to_owned();
        let collector = start_collector(plan, &plan.listen.to_string(), 0).await?;
        let collector_address = said(&collector, "listen")?.to_owned();
        let roce: SocketAddrV4 =
            said(&collector, "roce")?.parse().context("the collector's RoCEv2 address")?;
        let addresses = ["127.0.0.1:0"; 2];
        let translator = start_translator(plan, &collector_address, addresses, &ledger(&folder, 0)).await?;
        let reports = said(&translator, "listen")?.parse().context("the translator's address of reports")?;
        let control_address = said(&translator, "control")?.to_owned();
        let client = Client::connect_lazy(&ClientOptions::plain(&collector_address))?;
        let control = translator::Client::connect_lazy(&control_address)?;
        Ok(Self {
            collector: Some(collector),
            translator: Some(translator),
            client,
            control,
            collector_address,
            roce,
            reports,
            control_address,
            folder,
            workers: plan.workers,
            earlier: None,
            killed: 0,
        })
    }

    /// Counters of all nodes, now.
    pub async fn statistics(&mut self) -> anyhow::Result<Statistics> {
        let mut all = Statistics::default();
        all.add(self.client.statistics().await.map_err(|error| self.explain(error.into()))?);
        // What the translator says itself is newer than what it told the collector.
        self.ask_translator(&mut all).await?;
        Ok(all)
    }

    /// Counters of the translator and the reporters that it hears, without asking the collector.
    pub async fn translator_statistics(&mut self) -> anyhow::Result<Statistics> {
        let mut all = Statistics::default();
        self.ask_translator(&mut all).await?;
        Ok(all)
    }

    /// Puts what the translator and its reporters count over what `all` has of them, earlier lives included.
    async fn ask_translator(&mut self, all: &mut Statistics) -> anyhow::Result<()> {
        let answer = self.control.statistics().await;
        let mut now = Statistics::default();
        now.add(answer.map_err(|error| self.explain(error.into()))?);
        if let Some(earlier) = &self.earlier {
            now.add_earlier(Stage::Translator, earlier);
            now.add_earlier(Stage::Reporter, earlier);
        }
        all.replace(now);
        Ok(())
    }

    /// Makes the translator send everything that it holds.
    pub async fn flush(&mut self) -> anyhow::Result<u64> {
        let answer = self.control.flush().await;
        answer.map_err(|error| self.explain(error.into()))
    }

    /// If a daemon has died, that is the better explanation of a failed call.
    fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        for daemon in [&mut self.collector, &mut self.translator].into_iter().flatten() {
            if let Err(died) = daemon.check() {
                return died.into();
            }
        }
        error
    }

    /// Process ids of collector and translator.
    pub fn pids(&self) -> [Option<u32>; 2] {
        [self.collector.as_ref().map(Daemon::pid), self.translator.as_ref().map(Daemon::pid)]
    }

    /// Stops the collector without ending it, as a debugger does: what is sent to it waits in its socket.
    pub fn freeze_collector(&self) -> anyhow::Result<()> {
        match &self.collector {
            Some(collector) => collector.freeze().context("cannot stop the collector"),
            None => Ok(()),
        }
    }

    /// Ends the collector with SIGKILL.
    pub fn kill_collector(&mut self) {
        if let Some(collector) = self.collector.take() {
            collector.kill();
        }
    }

    /// Starts the collector again, at its old addresses and on its old memory.
    pub async fn restart_collector(&mut self, plan: &Plan<'_>) -> anyhow::Result<()> {
        let collector = start_collector(plan, &self.collector_address, self.roce.port()).await?;
        self.collector = Some(collector);
        Ok(())
    }

    /// Stops the translator without ending it.
    pub fn freeze_translator(&self) -> anyhow::Result<()> {
        match &self.translator {
            Some(translator) => translator.freeze().context("cannot stop the translator"),
            None => Ok(()),
        }
    }

    /// Ends the translator with SIGKILL. `last` is what it had counted.
    pub fn kill_translator(&mut self, last: Statistics) {
        if let Some(translator) = self.translator.take() {
            translator.kill();
            // It holds the sums of its own earlier lives.
            self.earlier = Some(last);
            self.killed += 1;
        }
    }

    /// Starts the translator again, at its old addresses.
    pub async fn restart_translator(&mut self, plan: &Plan<'_>) -> anyhow::Result<()> {
        let addresses = [&*self.reports.to_string(), &*self.control_address];
        let ledger = ledger(&self.folder, self.killed);
        let translator = start_translator(plan, &self.collector_address, addresses, &ledger).await?;
        self.translator = Some(translator);
        Ok(())
    }

    /// Where the translators wrote what they know to be lost, each worker of each its own.
    pub fn ledgers(&self) -> impl Iterator<Item = PathBuf> + '_ {
        (0..=self.killed).flat_map(move |life| {
            let first = ledger(&self.folder, life);
            let of = {
                let first = first.clone();
                move |worker| PathBuf::from(format!("{}.{worker}", first.display()))
            };
            std::iter::once(first).chain((1..self.workers).map(of))
        })
    }

    /// The folder of memory, logs and configuration.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

async fn start_collector(plan: &Plan<'_>, listen: &str, port: u16) -> anyhow::Result<Daemon> {
    let file = CollectorFile {
        collector: CollectorTable {
            name: "testbed",
            listen: listen.to_owned(),
            memory: plan.folder.join("memory").display().to_string(),
            device: plan.rxe.map_or(&plan.topology.collector.device, |rxe| rxe.device),
            transport: plan.transport.name(),
        },
        soft: SoftTable { address: Ipv4Addr::LOCALHOST.to_string(), port },
        verbs: plan.rxe.map(|rxe| VerbsTable { address: rxe.collector.to_string() }),
        metrics: MetricsTable { listen: "off" },
        store: &plan.topology.stores,
    };
    let path = plan.folder.join("collector.toml");
    std::fs::write(&path, toml::to_string(&file)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let arguments = [
        "serve".into(),
        "--config".into(),
        path.display().to_string(),
        "--soft-faults".into(),
        plan.faults.to_string(),
        "--soft-fault-seed".into(),
        (plan.seed ^ 0xacac).to_string(),
        "--soft-threads".into(),
        plan.nic_threads.to_string(),
    ];
    Ok(Daemon::start("collector", "__collector", &arguments, &plan.folder.join("collector.log")).await?)
}

/// The ledger of the translator after so many were killed.
fn ledger(folder: &Path, killed: u32) -> PathBuf {
    folder.join(format!("ledger{killed}"))
}

/// `[listen, control]` are where it takes reports and serves gRPC.
async fn start_translator(
    plan: &Plan<'_>,
    collector: &str,
    [listen, control]: [&str; 2],
    ledger: &Path,
) -> anyhow::Result<Daemon> {
    let flush = plan.topology.translator.flush_ms;
    // An address of its own in 127/8, so that testbeds can run side by side: RoCEv2 source ports
    // are not free to choose.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let loopback = Ipv4Addr::new(127, 64 + (a & 63), b, c.clamp(1, 254));
    let (source, source_port) = plan.rxe.map_or((loopback, 0), |rxe| (rxe.translator, ROCE_PORT));
    let text = format!(
        "[translator]\nname = \"testbed\"\nlisten = \"{listen}\"\ncontrol = \"{control}\"\nmetrics = \"off\"\n\
         collector = \"http://{collector}\"\nsource = \"{source}\"\nsource_port = {source_port}\nring = \"{}\"\nworkers = {}\nlease_seconds = {}\n\n\
         [translator.flush]\nappend_ms = {flush}\npostcarding_ms = {flush}\nsketch_merge_ms = {flush}\n",
        plan.ring, plan.workers, plan.topology.translator.lease_seconds,
    );
    let path = plan.folder.join("translator.toml");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let mut arguments = vec![
        "run".into(),
        "--config".into(),
        path.display().to_string(),
        "--ready".into(),
        "--faults".into(),
        plan.faults.to_string(),
        "--nack-faults".into(),
        plan.report_faults.to_string(),
        "--seed".into(),
        (plan.seed ^ 0x7a7a).to_string(),
        "--ledger".into(),
        ledger.display().to_string(),
    ];
    if let Some(rxe) = plan.rxe {
        // The device sends its answers without faults, so they act where those come in.
        arguments.extend([
            "--link".into(),
            rxe.link.into(),
            "--answer-faults".into(),
            plan.faults.to_string(),
        ]);
    }
    Ok(Daemon::start("translator", "__translator", &arguments, &plan.folder.join("translator.log")).await?)
}

/// A field of a daemon's ready line.
fn said<'a>(daemon: &'a Daemon, field: &str) -> anyhow::Result<&'a str> {
    daemon.ready()[field].as_str().ok_or_else(|| anyhow!("the ready line {} has no {field}", daemon.ready()))
}
