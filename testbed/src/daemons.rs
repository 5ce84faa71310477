//! Collectors and a translator for one testbed: their files, their start, their counters.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use dta_files::moment;
use dta_link::fault::Faults;
use dta_link::netstat;
use dta_link::shared_ring::RingUse;
use dta_memory::nic::ROCE_PORT;
use dta_proto::counter::{Stage, nic, ring, translator as counter};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions, Spread, SpreadMember, translator};

use super::check::Ahead;
use super::far;
use super::far::config::{self, MachineRole};
use super::far::machine::RemoteMachine;
use super::far::protocol::Request;
use super::far::start::{FarSwitch, TestbedMachines};
use super::far::tunnel::Tunnel;
use super::files::{self, CollectorPlace, TranslatorPlace};
use super::ground::{NicKind, RxeGround, SoftWire};
use super::processes::Daemon;
use super::statistics::{OfCollector, TestbedStatistics};
use crate::topology::{Topology, Transport};

/// What all daemons need to know.
pub struct Plan<'a> {
    pub topology: &'a Topology,
    /// The machines, if not this one.
    pub far: Option<&'a TestbedMachines>,
    /// Soft-RoCE, if not the software NIC on loopback.
    pub rxe: Option<&'a RxeGround>,
    /// Raw frames to the software NIC, if not sockets.
    pub wire: Option<&'a SoftWire>,
    pub transport: Transport,
    /// On the RoCEv2 frames that each sends.
    pub faults: Faults,
    /// On the NACKs that the translator sends.
    pub report_faults: Faults,
    pub seed: u64,
    /// The collector's gRPC address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether the collector has a page for browsers.
    pub page: bool,
    /// Whether frames go through a ring in shared memory.
    pub ring: RingUse,
    /// Whether frames by UDP leave in runs.
    pub runs: bool,
    pub workers: usize,
    /// Threads of the collector's software NIC.
    pub nic_threads: usize,
    /// Whether the software translator acts like a switch.
    pub reference: bool,
    /// Length of an epoch, for the stores that can have epochs; `None` = they have none.
    pub epochs: Option<Duration>,
    pub folder: &'a Path,
}

/// A free port on loopback.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl<'a> Plan<'a> {
    /// The software NIC on loopback, writes over UC, no faults.
    pub fn with_soft_nic(topology: &'a Topology, folder: &'a Path) -> Self {
        let faults = Faults::NONE;
        Self {
            topology,
            far: None,
            rxe: None,
            wire: None,
            transport: Transport::Uc,
            faults,
            report_faults: faults,
            seed: 1,
            listen: ANY_PORT,
            page: false,
            ring: RingUse::Auto,
            runs: true,
            workers: 1,
            nic_threads: 1,
            reference: false,
            epochs: None,
            folder,
        }
    }

    /// How long the translator holds what is not complete, in milliseconds; 0 = until it is asked to flush: otherwise a
    /// switch would be busy reading its places.
    pub fn flush_timeout_ms(&self) -> u64 {
        let is_switch =
            |machine: &config::Machine| machine.has_role(MachineRole::Translator) && machine.switch.is_some();
        match self.topology.machines.iter().any(is_switch) {
            true => 0,
            false => self.topology.translator.flush_ms,
        }
    }
}

/// How a translator is queried.
enum Control {
    Service(translator::RemoteTranslator),
    /// The control plane of a switch, on another machine.
    Switch(FarSwitch),
}

/// What is there only if collectors and translator are on other machines.
struct RemoteNodes {
    collectors: Vec<Arc<RemoteMachine>>,
    translator: Arc<RemoteMachine>,
    _tunnels: Vec<Tunnel>,
}

/// A collector, as it is reached from here.
struct CollectorConnection {
    /// It connects again by itself after a restart.
    client: RemoteCollector,
    /// Where its gRPC is.
    address: String,
    /// Where RoCEv2 frames go.
    roce: SocketAddr,
}

impl CollectorConnection {
    fn connect_lazy(address: String, roce: SocketAddr) -> anyhow::Result<CollectorConnection> {
        let client = RemoteCollector::connect_lazy(&ClientOptions::without_tls(&address))?;
        Ok(CollectorConnection { client, address, roce })
    }
}

fn collector_spread(collectors: &[CollectorConnection]) -> Spread {
    let member = |collector: &CollectorConnection| SpreadMember {
        address: collector.address.clone(),
        ask: Arc::new(collector.client.clone()),
    };
    Spread::new(collectors.iter().map(member).collect())
}

/// Running collectors and a translator. On this machine there is one collector.
pub struct Daemons {
    collector: Option<Daemon>,
    translator: Option<Daemon>,
    away: Option<RemoteNodes>,
    collectors: Vec<CollectorConnection>,
    /// All collectors, asked as one.
    pub all: Spread,
    control: Control,
    pub reports: SocketAddrV4,
    /// The translator's gRPC.
    pub control_address: String,
    folder: PathBuf,
    /// Threads of the translator, each with its own ledger.
    workers: usize,
    /// The counts of killed translators.
    earlier: Option<TestbedStatistics>,
    killed: u32,
    /// Whether a daemon was killed: it may have taken counts along.
    any_killed: bool,
}

impl Daemons {
    /// Starts all of them and waits until they are ready.
    pub async fn start_all(plan: &Plan<'_>) -> anyhow::Result<Self> {
        if let Some(far) = plan.far {
            return Self::start_away(plan, far).await;
        }
        let folder = plan.folder.to_owned();
        let collector = start_collector(plan, &plan.listen.to_string(), 0).await?;
        let collector_address = ready_text(&collector, "/listen")?.to_owned();
        let roce = ready_text(&collector, "/roce")?.parse().context("the collector's RoCEv2 address")?;
        let addresses = ["127.0.0.1:0"; 2];
        let translator =
            start_translator(plan, &collector_address, addresses, &ledger_path(&folder, 0)).await?;
        let reports =
            ready_text(&translator, "/listen")?.parse().context("the translator's address of reports")?;
        let control_address = ready_text(&translator, "/control")?.to_owned();
        let control = Control::Service(translator::RemoteTranslator::connect_lazy(&control_address)?);
        let collectors = vec![CollectorConnection::connect_lazy(collector_address, roce)?];
        Ok(Self {
            collector: Some(collector),
            translator: Some(translator),
            away: None,
            all: collector_spread(&collectors),
            collectors,
            control,
            reports,
            control_address,
            folder,
            workers: plan.workers,
            earlier: None,
            killed: 0,
            any_killed: false,
        })
    }

    async fn start_away(plan: &Plan<'_>, far: &TestbedMachines) -> anyhow::Result<Self> {
        let started = far::start::start_remote_nodes(plan, far).await?;
        let (mut collectors, mut machines, mut tunnels) = (Vec::new(), Vec::new(), Vec::new());
        for collector in started.collectors {
            collectors.push(CollectorConnection::connect_lazy(
                collector.control.address.to_string(),
                collector.roce.into(),
            )?);
            machines.push(collector.machine);
            tunnels.push(collector.control);
        }
        let (control, control_address) = match started.translator {
            far::start::FarTranslator::Software(tunnel) => {
                let address = tunnel.address.to_string();
                tunnels.push(tunnel);
                (Control::Service(translator::RemoteTranslator::connect_lazy(&address)?), address)
            }
            far::start::FarTranslator::Switch(switch) => (Control::Switch(switch), String::new()),
        };
        Ok(Self {
            collector: None,
            translator: None,
            away: Some(RemoteNodes {
                collectors: machines,
                translator: started.translator_machine,
                _tunnels: tunnels,
            }),
            all: collector_spread(&collectors),
            collectors,
            control,
            reports: started.reports,
            control_address,
            folder: plan.folder.to_owned(),
            workers: plan.workers,
            earlier: None,
            killed: 0,
            any_killed: false,
        })
    }

    /// Bytes that wait in the receive queues of the translator and of the fullest NIC. A switch has no queue: its number
    /// is that of the reports among those `sent` that it has not taken yet, as bytes.
    pub async fn queued_bytes(&mut self, sent: u64) -> anyhow::Result<[u64; 2]> {
        let Some(away) = &self.away else {
            let of = |socket| netstat::socket_backlog(socket).map(|waiting| waiting.unwrap_or(0));
            let at_nic = match self.collectors[0].roce {
                SocketAddr::V4(socket) => of(socket)?,
                // The testbed sends frames over IPv6 without sockets.
                SocketAddr::V6(_) => 0,
            };
            return Ok([of(self.reports)?, at_nic]);
        };
        let of = |machine: &Arc<RemoteMachine>, socket| {
            let machine = Arc::clone(machine);
            async move { machine.call::<u64>(&Request::Backlog { socket }).await }
        };
        if matches!(self.control, Control::Service(_)) {
            let mut at_nic = 0;
            for (machine, collector) in away.collectors.iter().zip(&self.collectors) {
                let SocketAddr::V4(socket) = collector.roce else { continue };
                at_nic = at_nic.max(of(machine, socket).await?);
            }
            return Ok([of(&away.translator, self.reports).await?, at_nic]);
        }
        let taken =
            self.translator_statistics().await?.stage_total(Stage::Translator).get(&counter::RECEIVED);
        Ok([sent.saturating_sub(taken), 0])
    }

    /// Whether a daemon was killed, which may have taken counts along.
    pub fn any_killed(&self) -> bool {
        self.any_killed
    }

    /// Frames in rings between the translator and the NIC, if these are on this machine and none was killed.
    pub fn frames_in_rings(&self, statistics: &TestbedStatistics) -> u64 {
        let has_ring = statistics.stage_total(Stage::Translator).get(&ring::SENT) > 0;
        if self.away.is_some() || self.any_killed || !has_ring {
            return 0;
        }
        let at_nic = statistics.stage_total(Stage::Nic);
        let lost: u64 = at_nic.counters_of_definition(&nic::LINK_LOST).map(|(_, lost)| lost).sum();
        statistics.link_sent().saturating_sub(at_nic.get(&nic::RECEIVED) + lost)
    }

    pub fn is_switch(&self) -> bool {
        matches!(self.control, Control::Switch(_))
    }

    /// Current counters of all nodes.
    pub async fn statistics(&mut self) -> anyhow::Result<TestbedStatistics> {
        let mut all = TestbedStatistics::default();
        all.add_collectors(self.of_collectors().await?);
        self.ask_translator(&mut all).await?;
        Ok(all)
    }

    /// What collectors and NICs count, without asking the translator.
    pub async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        let mut all = Vec::new();
        for index in 0..self.collectors.len() {
            let CollectorConnection { client, roce, .. } = &self.collectors[index];
            let (address, nodes) = (roce.ip().to_string(), client.statistics().await);
            all.push((address, nodes.map_err(|error| self.explain_failure(error.into()))?));
        }
        Ok(all)
    }

    /// How far the clock of each collector is ahead.
    pub async fn clock_offsets(&self) -> anyhow::Result<Vec<Ahead>> {
        let Some(away) = &self.away else { return Ok(vec![Ahead::default(); self.collectors.len()]) };
        let mut all = Vec::new();
        for machine in &away.collectors {
            all.push(measure_clock_offset(machine).await?);
        }
        Ok(all)
    }

    /// Where the collectors' gRPC is, as `--collector` takes it.
    pub fn collector_addresses(&self) -> String {
        self.collectors.iter().map(|collector| &*collector.address).collect::<Vec<_>>().join(",")
    }

    /// The address of the collector's page for browsers, if it has one.
    pub fn page_url(&self) -> Option<&str> {
        self.collector.as_ref()?.ready_line()["web"].as_str()
    }

    /// Counters of the translator and the reporters that it hears, without asking the collector.
    pub async fn translator_statistics(&mut self) -> anyhow::Result<TestbedStatistics> {
        let mut all = TestbedStatistics::default();
        self.ask_translator(&mut all).await?;
        Ok(all)
    }

    /// Overwrites in `all` the counters of the translator and its reporters, earlier lives included.
    async fn ask_translator(&mut self, all: &mut TestbedStatistics) -> anyhow::Result<()> {
        let answer = match &mut self.control {
            Control::Service(client) => client.statistics().await.map_err(anyhow::Error::from),
            Control::Switch(switch) => switch.statistics().await,
        };
        let mut now = TestbedStatistics::default();
        now.add(answer.map_err(|error| self.explain_failure(error))?);
        if let Some(earlier) = &self.earlier {
            now.add_earlier(Stage::Translator, earlier);
            now.add_earlier(Stage::Reporter, earlier);
        }
        all.replace_nodes(now);
        Ok(())
    }

    /// Makes the translator send everything that it holds.
    pub async fn flush_translator(&mut self) -> anyhow::Result<u64> {
        let answer = match &mut self.control {
            Control::Service(client) => client.flush_reports().await.map_err(anyhow::Error::from),
            Control::Switch(switch) => switch.flush_switch().await,
        };
        answer.map_err(|error| self.explain_failure(error))
    }

    /// If a daemon has died, that explains a failed call better.
    fn explain_failure(&mut self, error: anyhow::Error) -> anyhow::Error {
        for daemon in [&mut self.collector, &mut self.translator].into_iter().flatten() {
            if let Err(died) = daemon.check_running() {
                return died;
            }
        }
        error
    }

    pub fn process_ids(&self) -> [Option<u32>; 2] {
        [self.collector.as_ref().map(Daemon::process_id), self.translator.as_ref().map(Daemon::process_id)]
    }

    /// Stops the collector without ending it, as a debugger does: what is sent to it waits in its socket.
    pub fn freeze_collector(&self) -> anyhow::Result<()> {
        match &self.collector {
            Some(collector) => collector.freeze_process().context("cannot stop the collector"),
            None => Ok(()),
        }
    }

    /// Kills the collector with SIGKILL.
    pub fn kill_collector(&mut self) {
        if let Some(collector) = self.collector.take() {
            collector.kill_abruptly();
            self.any_killed = true;
        }
    }

    /// Restarts the collector, at its old addresses and on its old memory.
    pub async fn restart_collector(&mut self, plan: &Plan<'_>) -> anyhow::Result<()> {
        let CollectorConnection { address, roce, .. } = &self.collectors[0];
        let collector = start_collector(plan, address, roce.port()).await?;
        self.collector = Some(collector);
        Ok(())
    }

    /// Stops the translator without ending it.
    pub fn freeze_translator(&self) -> anyhow::Result<()> {
        match &self.translator {
            Some(translator) => translator.freeze_process().context("cannot stop the translator"),
            None => Ok(()),
        }
    }

    /// Kills the translator with SIGKILL. `last` is what it had counted.
    pub fn kill_translator(&mut self, last: TestbedStatistics) {
        if let Some(translator) = self.translator.take() {
            translator.kill_abruptly();
            // It includes the sums of its own earlier lives.
            self.earlier = Some(last);
            self.killed += 1;
            self.any_killed = true;
        }
    }

    /// Restarts the translator, at its old addresses.
    pub async fn restart_translator(&mut self, plan: &Plan<'_>) -> anyhow::Result<()> {
        let addresses = [&*self.reports.to_string(), &*self.control_address];
        let ledger = ledger_path(&self.folder, self.killed);
        let translator = start_translator(plan, &self.collectors[0].address, addresses, &ledger).await?;
        self.translator = Some(translator);
        Ok(())
    }

    /// The translators' records of what they know to be lost, one per worker. Those of another machine are copied
    /// here. A switch writes none.
    pub async fn ledger_files(&self) -> anyhow::Result<Vec<PathBuf>> {
        if self.is_switch() {
            return Ok(Vec::new());
        }
        let lives = (0..=self.killed).map(|life| ledger_path(&self.folder, life));
        let of = |first: PathBuf| {
            let others = (1..self.workers).map(|n| PathBuf::from(format!("{}.{n}", first.display())));
            std::iter::once(first.clone()).chain(others.collect::<Vec<_>>())
        };
        let paths: Vec<PathBuf> = lives.flat_map(of).collect();
        if let Some(away) = &self.away {
            for path in &paths {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let bytes: Vec<u8> = away.translator.call(&Request::Read { name }).await?;
                std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(paths)
    }

    /// The memory of the collector on this machine.
    pub fn memory_folder(&self) -> String {
        memory_folder(&self.folder)
    }

    /// Whether all run on this machine.
    pub fn are_all_local(&self) -> bool {
        self.away.is_none()
    }

    /// The folder of memory, logs and configuration.
    pub fn working_folder(&self) -> &Path {
        &self.folder
    }
}

async fn start_collector(plan: &Plan<'_>, listen: &str, port: u16) -> anyhow::Result<Daemon> {
    let link = plan.wire.map(|wire| format!("packet:{}", wire.ends[0]));
    let mut place = CollectorPlace {
        number: 0,
        listen: listen.to_owned(),
        memory: memory_folder(plan.folder),
        address: plan.wire.map_or(Ipv4Addr::LOCALHOST.into(), |wire| wire.addresses[0]),
        port: if plan.wire.is_some() { ROCE_PORT } else { port },
        device: &plan.topology.collector.device,
        verbs: None,
        link: link.as_deref(),
    };
    let near = plan.rxe.map(|rxe| format!("packet:{}", rxe.near));
    if let Some(rxe) = plan.rxe {
        match rxe.nic {
            NicKind::Rxe => (place.device, place.verbs) = (rxe.device, Some(rxe.collector)),
            NicKind::Soft => {
                (place.device, place.link) = (NicKind::Soft.name(), near.as_deref());
                (place.address, place.port) = (rxe.collector, ROCE_PORT);
            }
        }
    }
    let path = plan.folder.join("collector.toml");
    std::fs::write(&path, files::collector(plan, &place)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let arguments = files::collector_arguments(plan, path.display().to_string());
    Daemon::spawn_until_ready("collector", "__collector", &arguments, &plan.folder.join("collector.log"))
        .await
}

/// How far a machine's clock is ahead of this one's.
async fn measure_clock_offset(machine: &Arc<RemoteMachine>) -> anyhow::Result<Ahead> {
    let before = moment::now();
    let there: u64 = machine.call(&Request::Clock).await?;
    Ok(Ahead::from_clock_reading(there, before..=moment::now()))
}

/// The folder of the collector's memory.
fn memory_folder(folder: &Path) -> String {
    folder.join("memory").display().to_string()
}

/// The ledger of the translator after this many were killed.
fn ledger_path(folder: &Path, killed: u32) -> PathBuf {
    folder.join(format!("ledger{killed}"))
}

/// `[listen, control]` are its addresses for reports and gRPC.
async fn start_translator(
    plan: &Plan<'_>,
    collector: &str,
    [listen, control]: [&str; 2],
    ledger: &Path,
) -> anyhow::Result<Daemon> {
    let own = plan.rxe.map(|rxe| rxe.translator).or(plan.wire.map(|wire| wire.addresses[1]));
    let (source, source_port) = own.map_or((own_loopback_address().into(), 0), |own| (own, ROCE_PORT));
    let place = TranslatorPlace {
        listen: listen.to_owned(),
        control: control.to_owned(),
        collectors: vec![collector.to_owned()],
        source,
        source_port,
        ring: plan.ring.to_string(),
    };
    let path = plan.folder.join("translator.toml");
    std::fs::write(&path, files::translator(plan, &place))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let (config, ledger) = (path.display().to_string(), ledger.display().to_string());
    let mut arguments = files::translator_arguments(plan, config, ledger);
    if let Some(sender) = plan.rxe.and_then(|rxe| rxe.sender.as_ref()) {
        arguments.extend(["--device".into(), sender.device.into()]);
    } else if let Some(wire) = plan.wire {
        arguments.extend(["--link".into(), wire.ends[1].into()]);
    } else if let Some(rxe) = plan.rxe {
        // The device sends its answers without faults, so they act on arrival.
        arguments.extend([
            "--link".into(),
            rxe.link.into(),
            "--answer-faults".into(),
            plan.faults.to_string(),
        ]);
    }
    Daemon::spawn_until_ready("translator", "__translator", &arguments, &plan.folder.join("translator.log"))
        .await
}

/// An address in 127/8 for this process, so that testbeds can run side by side: RoCEv2 source ports cannot be chosen freely.
pub(crate) fn own_loopback_address() -> Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + (a & 63), b, c.clamp(1, 254))
}

/// What a JSON pointer finds in a daemon's ready line.
pub(crate) fn ready_text<'a>(daemon: &'a Daemon, pointer: &str) -> anyhow::Result<&'a str> {
    let found = daemon.ready_line().pointer(pointer).and_then(|value| value.as_str());
    found.ok_or_else(|| anyhow!("the ready line {} has no {pointer}", daemon.ready_line()))
}
