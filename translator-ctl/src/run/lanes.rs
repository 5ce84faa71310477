//! The workers of a translator: each is a thread with its own links, data plane and sessions.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use dta_dataplane::Engine;
use dta_dataplane::workers::{CrewView, build_crew};
use dta_link::fault::{FaultInjector, Faults};
use dta_link::{IntakeLink, IntakeOpener, Link, LinkError, RunUse, UdpConfig, UdpLink};
use dta_proto::program::Endpoint;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracing::info;

use super::TranslatorRunOptions;
use crate::cluster::following::DataPlaneSessions;
use crate::config::{ListenAddress, TranslatorConfig, XdpAddress};
use crate::packets::faults::{FaultyPath, Ledger};
use crate::packets::{
    Bell, Command, DirectPath, ExportsInTransit, IntSide, PacketPath, PacketThread, PacketThreadError,
    PacketThreadMember, RoceLink, Snapshot, steering,
};
use crate::software::InProcess;
use dta_switch::TargetError;

/// How long a stop waits for reports in transit between workers.
const BETWEEN: Duration = Duration::from_secs(1);

/// One worker, as seen by the control side.
pub(super) struct Lane {
    /// Its sessions, with the worker's version of the configuration.
    pub(super) sessions: DataPlaneSessions,
    /// Its data plane. The first worker's also knows the others.
    pub(super) target: InProcess,
}

/// The links of all workers.
pub(super) struct Links {
    reports: Vec<IntakeLink>,
    roce: Vec<(RoceLink, Endpoint)>,
    /// One per worker, or only the first worker's.
    int: Vec<IntSide>,
    /// Where reports arrive.
    pub(super) listen: String,
    /// How runs of reports are processed.
    pub(super) runs: RunUse,
    /// How runs of frames and answers are processed, if they go by UDP.
    pub(super) frames: Option<RunUse>,
    /// Where INT Telemetry Reports arrive.
    pub(super) int_addresses: Vec<String>,
    pub(super) flow_addresses: Vec<String>,
}

impl Links {
    /// Opens the links.
    ///
    /// # Errors
    /// An address that is in use or not of this host, or a missing privilege.
    pub(super) fn open(config: &TranslatorConfig, options: &TranslatorRunOptions) -> anyhow::Result<Links> {
        let mut interfaces = IntakeOpener::default();
        if let Some((interface, limits)) = config.int.events_interface() {
            interfaces.drop_unchanged_at(interface, limits);
        }
        let reports = open_report_links(config, options.nack_faults().can_corrupt(), &mut interfaces)
            .context("cannot receive reports (--listen)")?;
        let rules = config.telemetry_rules()?;
        let int = IntSide::open_for_workers(
            &config.int.listen,
            &config.int.stores,
            &rules,
            &config.flows,
            config.workers,
            &mut interfaces,
        )
        .context("cannot receive INT Telemetry Reports (--int) or flow exports (--flows, --sflow)")?;
        for (interface, datagrams) in interfaces.descriptions() {
            info!(interface, datagrams, "listening by AF_XDP");
        }
        let roce = (0..config.workers).map(|worker| RoceLink::open(&config.of_worker(worker)));
        let roce: Vec<_> = roce.collect::<anyhow::Result<_>>()?;
        let first = reports.first().context("no worker")?;
        Ok(Links {
            listen: first.describe_address(),
            runs: first.udp_link().run_use(),
            frames: roce.first().and_then(|(link, _)| link.udp_run_use()),
            int_addresses: int.first().map(IntSide::addresses).unwrap_or_default(),
            flow_addresses: int.first().map(IntSide::flow_addresses).unwrap_or_default(),
            reports,
            roce,
            int,
        })
    }

    /// Source of the first worker's frames.
    pub(super) fn frame_endpoint(&self) -> anyhow::Result<Endpoint> {
        Ok(self.roce.first().context("no worker")?.1)
    }

    /// Starts a thread for each worker.
    ///
    /// # Errors
    /// No more threads or sockets, a ledger that cannot be created, or an invalid collector address.
    pub(super) fn start_workers(
        self,
        config: &TranslatorConfig,
        options: &TranslatorRunOptions,
    ) -> anyhow::Result<Workers> {
        let Links { reports, roce, int, .. } = self;
        let exports = int.first().map(IntSide::exports_in_transit).unwrap_or_default();
        let mut int = int.into_iter();
        let count = reports.len();
        let several = count > 1;
        let (crews, view) = build_crew(count);
        let bells = Bell::open_for_workers(count).context("cannot set up the workers to wake each other")?;
        let (ended, end) = unbounded_channel();
        let life = life_number();
        let mut workers =
            Workers { lanes: Vec::new(), turns: Vec::new(), threads: Vec::new(), end, view, exports };
        let mut all_commands = Vec::new();
        let members = crews.into_iter().zip(bells);
        for (worker, ((reports, (roce, endpoint)), (crew, bell))) in
            reports.into_iter().zip(roce).zip(members).enumerate()
        {
            let config = config.of_worker(worker);
            let (commands, inbox) = mpsc::channel();
            let mut engine = Engine::new(config.engine_limits(options.ledger.is_some()));
            engine.list_reporters(&config.accepted_reporters());
            let turns = Arc::new(AtomicU64::new(0));
            let packets = PacketThread {
                engine,
                member: several.then(|| PacketThreadMember::new(crew, bell)),
                path: open_path(options, worker, reports.udp_link(), &roce)?,
                turns: turns.clone(),
                commands: inbox,
                reports,
                int: int.next(),
                roce,
            };
            let ended = ended.clone();
            let name = if several { format!("dataplane-{worker}") } else { "dataplane".into() };
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                // If the program ends for another reason, nobody waits for this result, which is not an
                // error.
                let _ = ended.send(packets.run());
            });
            workers.threads.push(thread.context("cannot start the data plane")?);
            workers.turns.push(turns);
            let target = InProcess::new(config.name.clone(), life, commands.clone()).with_rings(&config);
            let target = if worker == 0 { target } else { target.without_counters() };
            workers.lanes.push(Lane { sessions: DataPlaneSessions::new(config, endpoint)?, target });
            all_commands.push(commands);
        }
        if let Some(first) = workers.lanes.first_mut() {
            first.target = first.target.clone().with_others(all_commands.split_off(1));
        }
        Ok(workers)
    }
}

/// The link for reports of each worker; `corrupt` says whether NACKs may be corrupted.
fn open_report_links(
    config: &TranslatorConfig,
    corrupt: bool,
    interfaces: &mut IntakeOpener,
) -> Result<Vec<IntakeLink>, LinkError> {
    let steering = steering::steering_program(config.workers);
    match (&config.listen, config.workers) {
        (ListenAddress::Udp(address), 1) => {
            UdpLink::open(&UdpConfig::for_reports(*address, corrupt)).map(|link| vec![link.into()])
        }
        (ListenAddress::Udp(address), workers) => {
            let group = UdpLink::open_group(&UdpConfig::for_reports(*address, corrupt), workers, &steering)?;
            Ok(group.into_iter().map(IntakeLink::from).collect())
        }
        (ListenAddress::Xdp(XdpAddress { interface, port }), 1) => {
            interfaces.open(interface, *port, corrupt).map(|link| vec![link])
        }
        (ListenAddress::Xdp(XdpAddress { interface, port }), workers) => {
            interfaces.open_group(interface, *port, corrupt, workers, &steering)
        }
    }
}

pub(super) struct Workers {
    /// What the control side has of each.
    pub(super) lanes: Vec<Lane>,
    /// Per worker, a counter that increases while it makes progress.
    pub(super) turns: Vec<Arc<AtomicU64>>,
    /// Returns how a worker ended.
    pub(super) end: UnboundedReceiver<Result<(), PacketThreadError>>,
    threads: Vec<JoinHandle<()>>,
    view: CrewView,
    exports: ExportsInTransit,
}

impl Workers {
    /// The data plane of all workers.
    pub(super) fn combined_target(&self) -> anyhow::Result<InProcess> {
        Ok(self.lanes.first().context("no worker")?.target.clone())
    }

    /// Processes what has arrived and what is in transit between workers, sends what is held, and ends.
    /// Returns the last counters.
    pub(super) async fn stop_workers(&self, all: &InProcess) -> Result<Box<Snapshot>, TargetError> {
        all.send_to_workers(Command::Quiesce).await?;
        let until = Instant::now() + BETWEEN;
        // A report takes two steps at most, and one more before them if it is of a flow export, so rings seen empty several times
        // are empty.
        let mut empty = 0;
        while empty < 4 && Instant::now() < until {
            empty = if self.exports.is_empty() && self.view.is_empty() { empty + 1 } else { 0 };
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        all.combined_snapshot(Command::Stop).await
    }

    /// Waits for the threads, which must have been stopped.
    pub(super) fn join_threads(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// The path of a worker's packets: with the faults and the ledger that a testbed asks for, or none.
fn open_path(
    options: &TranslatorRunOptions,
    worker: usize,
    reports: &UdpLink,
    roce: &RoceLink,
) -> anyhow::Result<Box<dyn PacketPath>> {
    let faults = [options.faults, options.nack_faults(), options.answer_faults];
    if let RoceLink::Device(_) = roce
        && !(options.faults.is_none() && options.answer_faults.is_none())
    {
        bail!(
            "an RDMA device makes the frames and takes the answers, so no faults can act on them here: leave out --faults \
             (--nack-faults acts on NACKs) and --answer-faults, or --device"
        );
    }
    if options.ledger.is_none() && faults.iter().all(Faults::is_none) {
        return Ok(Box::new(DirectPath));
    }
    let ledger = options.ledger.as_ref().map(|path| {
        let path = match worker {
            0 => path.clone(),
            _ => format!("{}.{worker}", path.display()).into(),
        };
        Ledger::create(&path).with_context(|| format!("cannot create the ledger {}", path.display()))
    });
    // Different faults for each worker.
    let seed = options.seed ^ (worker as u64) << 32;
    let [roce_faults, nack_faults, answer_faults] = faults;
    Ok(Box::new(FaultyPath::new(
        FaultInjector::new(roce_faults, seed, roce.corruption_scope()),
        FaultInjector::new(nack_faults, seed ^ 0x4e41_434b, reports.corruption_scope()),
        FaultInjector::new(answer_faults, seed ^ 0x4143_4b53, roce.corruption_scope()),
        ledger.transpose()?,
    )))
}

/// A number that differs for each start of this program.
fn life_number() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
}
