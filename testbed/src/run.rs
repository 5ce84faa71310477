//! One run of the testbed, from the first packet to the verdict.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use dta_link::fault::Faults;
use dta_link::netstat::{UdpStats, loopback_drops};
use dta_link::shared_ring::RingUse;
use dta_link::{LinkError, UdpConfig, UdpLink};
use dta_proto::counter::{Stage, translator};
use dta_proto::store::StoreSpec;

use super::accounting::{self, Gaps, LinkAccount, Waterfall};
use super::chaos::{self, Chaos, Scene};
use super::check::{CheckContext, EpochTallies, IncompleteRows, Pools, ReportEnds, StoreAnswers};
use super::daemons::{Daemons, Plan};
use super::far::FarReporters;
use super::far::config::MachineRole;
use super::far::start::TestbedMachines;
use super::feed::{self, Rig, SendWindow};
use super::folder::Folder;
use super::ground::{self, FrameIp, FrameSender, NicKind, RxeGround, SoftWire};
use super::journal::{self, Journal};
use super::maker::Maker;
use super::outcome::{EpochOutcome, LinkOutcome, PrimitiveOutcome, RunFacts, TestbedOutcome};
use super::statistics::TestbedStatistics;
use super::switches::Switches;
use super::turns::{self, Asking, Pace, Turns};
use super::workload::{SeenFlow, Workload};
use crate::capture::{self, CaptureCut, SkipCounts};
use crate::topology::{Primitive, Topology, Transport};
use crate::traffic::{Synthetic, TrafficPacket, TrafficShape};

#[derive(Clone, Debug)]
pub struct TestbedOptions {
    pub topology: Topology,
    /// Capture to play instead of synthetic traffic.
    pub capture: Option<PathBuf>,
    pub flags: Flags,
    /// The collector's gRPC address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether the collector has a page for browsers.
    pub page: bool,
    /// Whether stores have epochs that turn meanwhile.
    pub epochs: Option<Turns>,
    /// Where logs of other machines go; `None` = removed with the testbed.
    pub logs: Option<PathBuf>,
}

/// How to run it, as the command line says it.
#[derive(Clone, Debug, clap::Args)]
pub struct Flags {
    /// Make exactly this many reports, or as many as the capture gives; sketches of epochs for which there is no room
    /// are left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub reports: Option<u64>,
    /// Seed of traffic and faults: the same seed gives the same run
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Faults on every link and direction, as shares of frames: drop=P,dup=P,reorder=P,corrupt=P
    #[arg(long, value_name = "FAULTS", default_value = "none")]
    pub faults: Faults,
    /// Faults on reports and NACKs, if different from those on RoCEv2 frames and answers
    #[arg(long, value_name = "FAULTS")]
    pub report_faults: Option<Faults>,
    /// Transport of writes; atomics are always on RC
    #[arg(long, value_parser = dta_cli::one_of_names::<Transport>(&Transport::NAMES))]
    pub transport: Option<Transport>,
    /// Whether RoCEv2 frames go through a ring in shared memory (auto), or over loopback, where tshark sees them
    /// (off)
    #[arg(long, value_name = "auto|off", default_value_t)]
    pub ring: RingUse,
    /// Over loopback, frames leave one by one, so that tshark shows each, and not in runs
    #[arg(long)]
    pub no_runs: bool,
    /// Threads of the translator, 1 to 16, each with its part of the keys, lists and columns
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub workers: u8,
    /// Threads of the collector's software NIC, 1 to 16, each with its part of the queue pairs
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nic_threads: u8,
    /// Disturb the daemons in the middle of the run, and see what it costs
    #[arg(long, value_enum, value_name = "WHAT")]
    pub chaos: Option<Chaos>,
    /// Reports made while it is away; from 350,000 on, more than 65,536 of one switch if there are two in each tier
    #[arg(long, value_name = "N", default_value_t = chaos::REPORTS, value_parser = clap::value_parser!(u64).range(1..), requires = "chaos")]
    pub chaos_reports: u64,
    /// The NIC: the software one on loopback, or the kernel's soft-RoCE behind a veth pair
    #[arg(long, value_enum, default_value_t)]
    pub nic: NicKind,
    /// What sends the translator's frames
    #[arg(long, value_enum, value_name = "NIC", default_value_t)]
    pub translator_nic: FrameSender,
    /// IP version of RoCEv2 frames
    #[arg(long, value_enum, value_name = "VERSION", default_value_t)]
    pub ip: FrameIp,
}

/// A testbed after its run, still running: its daemons end on drop.
pub struct Testbed {
    pub outcome: TestbedOutcome,
    /// What stores with epochs answered, if they have any.
    pub asked: Option<RepeatableQueries>,
    pub daemons: Daemons,
    /// The machines, if not only this one. Before the folder, which has the sockets of ssh.
    _far: Option<TestbedMachines>,
    /// Memory, logs and configuration; removed when dropped.
    pub folder: Folder,
    /// The device, if not the software NIC, and the wire, if it is on one. After the daemons, which use them.
    _ground: (Option<RxeGround>, Option<SoftWire>),
}

/// What was asked of every flow, and the answers: to ask again later.
pub struct RepeatableQueries {
    topology: Topology,
    flows: Vec<SeenFlow>,
    answers: StoreAnswers,
}

/// What stores with epochs answered again.
pub struct RepeatedAnswers {
    /// Epochs of each store that are in its history, at least.
    pub written: u64,
    /// Values and paths that were found.
    pub found: u64,
    /// What has changed, in words.
    pub changed: Option<String>,
}

/// Least seconds of the translator's lease if something is killed.
const CHAOS_LEASE: u32 = 120;

/// Packets of a capture, or endless synthetic ones.
struct PacketSource {
    packets: Box<dyn Iterator<Item = TrafficPacket>>,
    length: Option<u64>,
    cut: Option<CaptureCut>,
    skipped: SkipCounts,
}

/// Runs the testbed. Calls `progress` with the reports made so far, and about how many there will be.
pub async fn run(options: &TestbedOptions, progress: impl FnMut(u64, u64)) -> anyhow::Result<Testbed> {
    let mut topology = options.topology.clone();
    if options.flags.chaos.is_some() {
        // However much is reported meanwhile, on however slow a machine, the session must go on.
        topology.translator.lease_seconds = topology.translator.lease_seconds.max(CHAOS_LEASE);
    }
    let topology = &topology;
    anyhow::ensure!(
        options.epochs.is_none() || !topology.translator.spread_copies,
        "with spread_copies each collector ends its epochs by its own clock, and a report is in epochs of two collectors: run \
         it without epochs"
    );
    let source = open_packet_source(options)?;
    let folder = Folder::new().context("cannot make a folder for the testbed")?;
    let far = match topology.machines.is_empty() {
        true => None,
        false => {
            let logs = options.logs.as_deref().unwrap_or(folder.folder_path());
            std::fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
            Some(TestbedMachines::connect_all(topology, folder.folder_path(), logs).await?)
        }
    };
    match run_there(options, topology, &folder, source, far.as_ref(), progress).await {
        Ok((outcome, asked, daemons, ground)) => {
            Ok(Testbed { outcome, asked, daemons, _far: far, folder, _ground: ground })
        }
        Err(error) => Err(match &far {
            Some(far) => far.explain_failure(error).await,
            None => error,
        }),
    }
}

/// Runs it in a folder, on this machine or on others.
async fn run_there(
    options: &TestbedOptions,
    topology: &Topology,
    folder: &Folder,
    source: PacketSource,
    far: Option<&TestbedMachines>,
    mut progress: impl FnMut(u64, u64),
) -> anyhow::Result<(TestbedOutcome, Option<RepeatableQueries>, Daemons, (Option<RxeGround>, Option<SoftWire>))>
{
    let flags = &options.flags;
    let report_faults = flags.report_faults.unwrap_or(flags.faults);
    let report_faults = match far {
        None => supported_faults(report_faults),
        // A machine that cannot damage them says so.
        Some(_) => report_faults,
    };
    let (rxe, soft_wire) = match (flags.nic, flags.translator_nic, flags.ip) {
        (NicKind::Soft, FrameSender::Soft, FrameIp::V4) => (None, None),
        (NicKind::Soft, FrameSender::Soft, FrameIp::V6) => (None, Some(SoftWire::set_up()?)),
        (nic, sender, ip) => (Some(RxeGround::set_up(nic, sender, ip, flags.faults.drop_share())?), None),
    };
    let plan = Plan {
        topology,
        far,
        rxe: rxe.as_ref(),
        wire: soft_wire.as_ref(),
        report_faults,
        transport: flags.transport.unwrap_or(topology.collector.transport),
        // Nobody but the wire can do anything to a device's frames.
        faults: if flags.translator_nic == FrameSender::Rxe { Faults::NONE } else { flags.faults },
        seed: flags.seed,
        listen: options.listen,
        page: options.page,
        ring: flags.ring,
        runs: !flags.no_runs,
        workers: flags.workers.into(),
        nic_threads: flags.nic_threads.into(),
        reference: false,
        epochs: options.epochs.map(Turns::epoch_length),
        folder: folder.folder_path(),
    };
    let daemons = Daemons::start_all(&plan).await?;
    let (kernel, loopback) = (UdpStats::read()?, loopback_drops()?);
    // The kernel counts a run as one when it delivers it, and when its port is closed.
    let runs = rxe.is_none() && flags.chaos.is_none();
    let switches = match far {
        None => Switches::open(topology, daemons.reports, report_faults, flags.seed, runs)?,
        Some(far) => {
            let count = topology.network.tiers.iter().sum();
            let hosts = far.machines_with_role(MachineRole::Host);
            let reporters =
                FarReporters::open(hosts, count, daemons.reports, report_faults, flags.seed).await?;
            Switches::with_remote_reporters(topology, reporters)
        }
    };
    let journal = if options.epochs.is_some() { Journal::with_times() } else { Journal::default() };
    let window = match (far, daemons.is_switch()) {
        (None, _) => SendWindow::new(most_copies(topology)),
        (Some(_), false) => SendWindow::with_default_buffers(most_copies(topology)),
        (Some(_), true) => SendWindow::of_switch(),
    };
    let mut rig = Rig { switches, journal, daemons, window };

    let wanted = flags.reports.or(options.capture.is_none().then_some(topology.run.reports));
    // A packet makes one report of each primitive and one per hop.
    let of_packets = source.length.map(|n| n * (topology.network.tiers.len() as u64 + 2));
    let total = wanted.into_iter().chain(of_packets).min().unwrap_or(0);
    let (cut, skipped) = (source.cut, source.skipped);
    let mut maker = Maker::new(topology, source.packets, wanted);
    let chaos_at = match flags.chaos {
        Some(_) => Some(disturbance_point(total, wanted.map(|_| maker.workload().epoch_cost()), options)?),
        None => None,
    };
    // A queue pair on RC that is replaced sends again what it does not know to be executed.
    let may_repeat = plan.transport == Transport::Rc
        && matches!(flags.chaos, Some(Chaos::KillCollector | Chaos::RemoveDevice | Chaos::RemoveSender));
    let packets = of_epochs(topology, maker.workload(), wanted).into_iter().chain(source.length).min();
    let mut pace =
        options.epochs.map(|turns| Pace::new(turns, packets.unwrap_or(0), rig.daemons.is_switch()));
    let start = Instant::now();
    let (mut reports, mut gaps, mut chaos) = (Vec::new(), Gaps::default(), None);
    while maker.next(&mut reports) {
        feed::send(&mut reports, maker.workload(), &mut rig).await?;
        let made = rig.journal.entries().len() as u64;
        progress(made, total.max(made));
        if let (Some(what), Some(at)) = (flags.chaos, chaos_at)
            && chaos.is_none()
            && made >= at
        {
            let reports = flags.chaos_reports;
            let mut scene = Scene { plan: &plan, maker: &mut maker, rig: &mut rig, reports };
            chaos = Some(chaos::inject_chaos(what, &mut scene, &mut gaps).await?);
        }
        if let Some(pace) = &mut pace {
            pace.wait_until_due(maker.workload().packet_count(), topology, &mut rig).await?;
        }
    }
    let fed = start.elapsed();
    let mut wire = ground::wire_counts(rxe.as_ref())?;
    let statistics = loop {
        let statistics = feed::wait_until_settled(&mut rig).await?;
        // A device may send again, and have answered, what the daemons do not see.
        let now = ground::wire_counts(rxe.as_ref())?;
        if now == wire {
            break statistics;
        }
        wire = now;
    };
    let Rig { mut daemons, switches, mut journal, .. } = rig;
    if let Some(outcome) = &mut chaos
        && flags.chaos == Some(Chaos::KillTranslator)
        && flags.faults.is_none()
    {
        outcome.missing_sequences = Some(chaos::missing_sequences(&statistics));
    }
    let kernel = UdpStats::read()?.increase_since(&kernel);
    let side = switches.reporter_side();
    gaps.receive_buffer_errors = kernel.rcvbuf_errors;
    gaps.loopback_dropped = loopback_drops()?.wrapping_sub(loopback);
    gaps.reports_in_runs = far.is_none() && runs;
    gaps.frames_in_runs = plan.runs && rxe.is_none() && soft_wire.is_none();
    gaps.raw_frames = soft_wire.is_some();
    if rxe.is_some() {
        gaps.wire = wire;
        let answers = gaps.wire.map_or(0, |wire| wire.received);
        if flags.nic == NicKind::Rxe {
            gaps.device_dropped =
                accounting::device_dropped(&statistics, &side, kernel.in_datagrams.saturating_sub(answers));
        }
        // On RC the device sends again.
        let lost = gaps.wire.filter(|_| plan.transport == Transport::Uc);
        gaps.lost_on_wire = lost.map_or(0, |wire| wire.dropped[0]);
    }

    let made = journal.entries().len() as u64;
    progress(made, made);
    for ledger in daemons.ledger_files().await? {
        journal::read_ledger(&ledger, &mut journal)?;
    }
    let links = accounting::account_links(&statistics, &side, &gaps);
    let workload = maker.workload();
    let mut contradictions = accounting::node_contradictions(&statistics);
    let flows = workload.seen_flows();
    let asking = Asking::from_daemons(&daemons, &plan, flows, may_repeat).await?;
    let mut answers = asking.query_stores().await?;
    if options.epochs.is_some_and(|turns| turns.spread) {
        let (written, changed) = asking.ask_when_written(&answers).await?;
        answers = written;
        contradictions.extend(changed);
    }
    let found =
        compare_answers(&daemons, &plan, workload, &journal, &statistics, &answers, (&links, &gaps)).await?;
    if options.epochs.is_some_and(|turns| turns.spread) && daemons.are_all_local() {
        contradictions.extend(turns::ask_after_restart(&mut daemons, &plan, flows, &answers).await?);
    }
    // The requester gives up a queue pair that stays unanswered for long, and cannot know then what was executed.
    if !matches!(flags.chaos, Some(Chaos::KillCollector | Chaos::RemoveDevice | Chaos::RemoveSender)) {
        contradictions.extend(accounting::lost_on_rc(&statistics, plan.transport));
    }
    let run = RunFacts {
        topology: topology.name.clone(),
        capture: options.capture.as_ref().map(|path| path.display().to_string()),
        cut: cut.map(|cut| cut.to_string()),
        skipped: skipped.0.iter().map(|(why, count)| (why.to_string(), *count)).collect(),
        seed: flags.seed,
        nic: far.map_or(flags.nic.name(), |_| &topology.collector.device).into(),
        transport: plan.transport.canonical_name().into(),
        faults: flags.faults.to_string(),
        report_faults: report_faults.to_string(),
        packets: workload.packet_count(),
        flows: workload.seen_flows().len() as u64,
        seconds: fed.as_secs_f64(),
        reports_per_second: made as f64 / fed.as_secs_f64().max(1e-9),
        retransmitted: switches.reporter_side().retransmitted,
        epochs: options.epochs.filter(|turns| turns.spread).map(|turns| turns.count),
        chaos,
    };
    let most = most_reports(topology);
    let outcome = build_outcome(found, &statistics, links, &journal, run, contradictions, most);
    let remembered = RepeatableQueries { topology: topology.clone(), flows: flows.to_vec(), answers };
    Ok((outcome, options.epochs.map(|_| remembered), daemons, (rxe, soft_wire)))
}

impl Testbed {
    /// Asks the stores with epochs the same again, once at least `least` epochs of each are written.
    ///
    /// # Errors
    /// No store has epochs; a collector does not answer, or its epochs do not turn.
    pub async fn ask_again(&self, least: u32) -> anyhow::Result<RepeatedAnswers> {
        let RepeatableQueries { topology, flows, answers } =
            self.asked.as_ref().context("no store has epochs")?;
        let (all, ahead) = (&self.daemons.all, self.daemons.clock_offsets().await?);
        let asking = Asking { all, ahead, topology, flows, has_epochs: true, may_repeat: false };
        let written = asking.until_so_many(least).await?;
        let again = answers.ask_again(all, topology, flows).await?;
        Ok(RepeatedAnswers {
            written,
            found: again.found_count(),
            changed: answers.changed_in(&again, "were written"),
        })
    }
}

/// About how many packets make the `wanted` reports, counting the packets and columns of each sketch epoch.
fn of_epochs(topology: &Topology, workload: &Workload, wanted: Option<u64>) -> Option<u64> {
    let packets = topology.run.epoch_packets;
    let reports = packets * (topology.network.tiers.len() as u64 + 2) + workload.epoch_cost();
    wanted.map(|wanted| (u128::from(wanted) * u128::from(packets) / u128::from(reports.max(1))) as u64)
}

/// The faults that can act on reports and NACKs here: a damaged datagram with its old UDP checksum can only
/// leave through a raw socket, so without the right to open one there is no damage on these links.
fn supported_faults(faults: Faults) -> Faults {
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let refused = faults.can_corrupt()
        && matches!(UdpLink::open(&UdpConfig::for_reports(bind, true)), Err(LinkError::NeedsNetRaw(_)));
    if !refused {
        return faults;
    }
    let text = faults.to_string();
    let rest: Vec<_> = text.split(',').filter(|fault| !fault.starts_with("corrupt=")).collect();
    rest.join(",").parse().unwrap_or(Faults::NONE)
}

/// After how many reports of `total` the daemons are disturbed: so that as many come before as after, not counting
/// the columns of the last epoch.
fn disturbance_point(total: u64, columns: Option<u64>, options: &TestbedOptions) -> anyhow::Result<u64> {
    let of_packets = total.saturating_sub(columns.unwrap_or(0));
    let meanwhile = chaos::REPORTS + options.flags.chaos_reports;
    let least = meanwhile + 2 * chaos::AROUND;
    if of_packets < least {
        anyhow::bail!(
            "this run makes about {of_packets} reports of packets; with --chaos and {meanwhile} reports while something is away, \
             it has to make at least {least}"
        );
    }
    Ok((of_packets - meanwhile) / 2)
}

/// The most reports that one frame carries, except for coalesced increments: RC does not lose them with a frame.
fn most_reports(topology: &Topology) -> u64 {
    topology.stores.iter().map(StoreSpec::reports_per_element).max().unwrap_or(1).into()
}

/// The most operations that one report of any store becomes.
fn most_copies(topology: &Topology) -> u64 {
    let copies = topology.stores.iter().filter_map(|store| store.redundancy()).max().unwrap_or(1);
    u64::from(copies) * topology.collector_share().replicas() as u64
}

fn open_packet_source(options: &TestbedOptions) -> anyhow::Result<PacketSource> {
    match &options.capture {
        Some(path) => of_capture(path),
        None => {
            let traffic = options.topology.traffic;
            let shape =
                TrafficShape { flows: traffic.flows, exponent: traffic.exponent, seed: options.flags.seed };
            Ok(PacketSource {
                packets: Box::new(Synthetic::new(shape)),
                length: None,
                cut: None,
                skipped: SkipCounts::default(),
            })
        }
    }
}

fn of_capture(path: &Path) -> anyhow::Result<PacketSource> {
    let (mut packets, mut skipped) = (Vec::new(), SkipCounts::default());
    let summary = capture::read(path, |packet| match capture::decode_packet(&packet) {
        Ok(decoded) => packets.push(TrafficPacket { packet: decoded, time_ns: packet.time_ns }),
        Err(why) => skipped.add(why),
    })?;
    if let (0, Some(cut)) = (summary.packets, &summary.cut) {
        anyhow::bail!("{} holds no readable packet: it is {cut}", path.display());
    }
    if packets.is_empty() {
        anyhow::bail!("{} holds {} packets, none of them IPv4 or IPv6", path.display(), summary.packets);
    }
    let length = Some(packets.len() as u64);
    Ok(PacketSource { packets: Box::new(packets.into_iter()), length, cut: summary.cut, skipped })
}

/// What the checks of all primitives found.
struct CheckResults {
    tallies: Vec<(Primitive, EpochTallies)>,
    /// One for each epoch of stores that have any.
    epochs: Vec<EpochOutcome>,
    ends: ReportEnds,
    left: Pools,
    uncounted: u64,
}

/// Queries everything and compares it with the truth.
async fn compare_answers(
    daemons: &Daemons,
    plan: &Plan<'_>,
    workload: &Workload,
    journal: &Journal,
    statistics: &TestbedStatistics,
    answers: &StoreAnswers,
    (links, gaps): (&[LinkAccount; 4], &Gaps),
) -> anyhow::Result<CheckResults> {
    let topology = plan.topology;
    let expected = journal.entries().len() as u64 - journal.not_arrived();
    let (mut pools, uncounted) = accounting::loss_pools(statistics, links, gaps, expected);
    let mut found = Vec::new();
    let (flows, rows) =
        (workload.seen_flows(), IncompleteRows::from_statistics(statistics, plan.flush_timeout_ms()));
    for primitive in Primitive::IN_TABLES {
        let store = topology.store_of_primitive(primitive);
        pools.of_primitive(accounting::primitive_limits(statistics, primitive, plan.transport));
        let asked = CheckContext { flows, epochs: workload.ended_epochs(), journal, rows, answers };
        let result = asked.check_store(&daemons.all, store, &mut pools).await?;
        found.push((primitive, result));
    }
    let mut ends = ReportEnds::default();
    let tallies: Vec<_> = found
        .into_iter()
        .map(|(primitive, (tally, its))| {
            ends.add(&its);
            (primitive, tally)
        })
        .collect();
    let epochs = turns::STORES.iter().zip(answers.queried_epochs()).flat_map(|(primitive, epochs)| {
        let of = tallies.iter().find(|(of, _)| of == primitive).map(|(_, tallies)| tallies);
        let store = &topology.store_of_primitive(*primitive).name;
        of.into_iter()
            .flat_map(|tallies| EpochOutcome::from_tallies(store, epochs, tallies))
            .collect::<Vec<_>>()
    });
    Ok(CheckResults { epochs: epochs.collect(), tallies, ends, left: pools, uncounted })
}

fn build_outcome(
    found: CheckResults,
    statistics: &TestbedStatistics,
    links: [LinkAccount; 4],
    journal: &Journal,
    run: RunFacts,
    mut contradictions: Vec<String>,
    most_reports: u64,
) -> TestbedOutcome {
    let sent = journal.entries().len() as u64;
    let all = Waterfall::new(sent, &found.ends, &found.left.remaining_reports(), found.uncounted);
    if let Some(chaos) = &run.chaos {
        contradictions.extend(chaos.failure_messages());
    }
    if all.total_reports() != sent {
        contradictions.push(format!("{sent} reports were made, and {} ended", all.total_reports()));
    }
    let frames: u64 = links.iter().map(|link| link.unexplained().unsigned_abs()).sum();
    // Reports in unaccounted frames are not counted twice.
    let covered =
        links[0].unexplained().unsigned_abs() + links[2].unexplained().unsigned_abs() * most_reports;
    let unexplained = frames + all.unexplained.saturating_sub(covered);
    let node = statistics.stage_total(Stage::Translator);
    let primitives = found
        .tallies
        .into_iter()
        .map(|(primitive, answers)| PrimitiveOutcome {
            name: primitive.canonical_name(),
            sent: journal.count_reports(primitive),
            operations: node.get_with_parts(&translator::OF_OPERATIONS, &[primitive.canonical_name()]),
            answers: answers.sum(),
        })
        .collect();
    TestbedOutcome {
        sent,
        queryable: all.queryable,
        superseded: all.superseded,
        overwritten: all.overwritten,
        held: all.held,
        unexplained,
        losses: all.losses,
        primitives,
        epochs: (!found.epochs.is_empty()).then_some(found.epochs),
        links: links.map(|account| LinkOutcome { unexplained: account.unexplained(), account }).into(),
        contradictions,
        run,
        nodes: statistics.clone(),
    }
}
