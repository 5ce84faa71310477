//! Kills a daemon, or removes the RDMA device, in the middle of a run, so that the cost is measured and not guessed.
//!
//! Nobody counts what a dead process had in its socket. So the daemon is stopped first (SIGSTOP) while reports go on:
//! everything sent to it and not received lies in that one socket. Then it is killed with -9. More reports follow,
//! into a closed port, which the kernel counts. Then it is restarted.
//!
//! With an RDMA device, what comes while the collector is stopped still lands, because the device goes on without it. Its
//! queue pairs end when the collector is killed, and then the device takes nothing until there are new ones. A device is
//! removed under load: reports go on while the collector releases it, and while it is away.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::bail;
use dta_link::netstat::{self, UdpStats};
use dta_proto::counter::nic::{self, Counter};
use dta_proto::counter::{LinkLoss, Stage, collector, reporter, translator};
use dta_rpc::Ask as _;

use super::accounting::{self, Gaps, ReporterSide};
use super::daemons::{Daemons, Plan};
use super::feed::{self, Rig};
use super::ground::{self, RxeGround, WireEnds};
use super::maker::Maker;
use super::outcome::ChaosOutcome;
use super::statistics::TestbedStatistics;
use super::turns::Asking;

/// What to do in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Chaos {
    /// Kill the collector with -9 and restart it.
    KillCollector,
    /// Kill the translator with -9 and restart it.
    KillTranslator,
    /// Remove the RDMA device and put it back; with `--nic rxe`.
    RemoveDevice,
    /// Remove the RDMA device to which the translator posts, and put it back; with `--translator-nic rxe`.
    RemoveSender,
}

impl Chaos {
    /// What was done, in words.
    fn action_description(self) -> &'static str {
        match self {
            Self::KillCollector => "collector was killed (-9)",
            Self::KillTranslator => "translator was killed (-9)",
            Self::RemoveDevice => "RDMA device was removed",
            Self::RemoveSender => "translator's RDMA device was removed",
        }
    }
}

/// Reports made while the daemon is stopped: as many as its socket holds.
pub const REPORTS: u64 = 150;
/// Least number of reports before that, and after it.
pub const AROUND: u64 = 300;
/// Longest time for the translator to settle, and to have its session again.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the run needs to continue.
pub struct Scene<'a, 'b> {
    /// How to start the collector.
    pub plan: &'a Plan<'b>,
    pub maker: &'a mut Maker,
    pub rig: &'a mut Rig,
    /// Reports made while the daemon is dead.
    pub reports: u64,
}

impl Scene<'_, '_> {
    /// Makes and sends about `count` reports, without waiting for anything.
    async fn send_burst(&mut self, count: u64) -> anyhow::Result<()> {
        let until = self.rig.journal.entries().len() as u64 + count;
        let mut reports = Vec::new();
        while (self.rig.journal.entries().len() as u64) < until && self.maker.next(&mut reports) {
            for report in reports.drain(..) {
                self.rig.switches.send(report, self.maker.workload(), &mut self.rig.journal)?;
            }
            self.rig.switches.poll(&mut self.rig.journal).await?;
        }
        Ok(())
    }
}

/// Carries out `chaos`; adds its cost to `gaps`.
pub async fn inject_chaos(
    chaos: Chaos,
    scene: &mut Scene<'_, '_>,
    gaps: &mut Gaps,
) -> anyhow::Result<ChaosOutcome> {
    feed::wait_until_settled(scene.rig).await?;
    let flows = scene.maker.workload().seen_flows().to_vec();
    let before =
        Asking::from_daemons(&scene.rig.daemons, scene.plan, &flows, true).await?.query_stores().await?;
    let sender = scene.plan.rxe.and_then(|rxe| rxe.sender.as_ref());
    let cost = match (chaos, scene.plan.rxe) {
        (Chaos::RemoveSender, _) => match sender {
            Some(sender) => remove_sender(sender, scene).await?,
            None => bail!("the translator sends without a device; use --translator-nic rxe"),
        },
        (Chaos::KillCollector, None) => kill_collector(scene, gaps).await?,
        (Chaos::KillCollector, Some(_)) => kill_collector_of_device(scene, gaps).await?,
        (Chaos::KillTranslator, _) => kill_translator(scene, gaps).await?,
        (Chaos::RemoveDevice, Some(rxe)) => remove_device(rxe, scene, gaps).await?,
        (Chaos::RemoveDevice, None) => bail!("the software NIC cannot be removed; use --nic rxe"),
    };
    let after =
        Asking::from_daemons(&scene.rig.daemons, scene.plan, &flows, true).await?.query_stores().await?;
    let kept = before.has_value().zip(after.has_value()).filter(|(before, after)| *before && *after).count();
    Ok(ChaosOutcome {
        done: chaos.action_description().into(),
        answers_before: before.has_value().filter(|has| *has).count() as u64,
        answers_after: kept as u64,
        seconds_down: cost.seconds_down,
        session_resumed: cost.session_resumed,
        frames_lost: cost.frames,
        missing_sequences: None,
    })
}

/// Sequences of all reporters that their translators know to be missing.
pub fn missing_sequences(statistics: &TestbedStatistics) -> u64 {
    statistics
        .stage_nodes(Stage::Reporter)
        .map(|node| node.get(&reporter::GAPS) - node.get(&reporter::GAPS_FILLED))
        .sum()
}

struct Cost {
    seconds_down: f64,
    session_resumed: bool,
    /// Frames, or for the translator datagrams, that nobody took.
    frames: u64,
}

/// Kills a collector with the software NIC, which dies with it.
async fn kill_collector(scene: &mut Scene<'_, '_>, gaps: &mut Gaps) -> anyhow::Result<Cost> {
    scene.rig.daemons.freeze_collector()?;
    scene.send_burst(REPORTS).await?;
    wait_until_quiet(scene).await?;
    let ports = UdpStats::read()?;
    scene.rig.daemons.kill_collector();
    let killed = Instant::now();
    scene.send_burst(scene.reports).await?;
    wait_until_quiet(scene).await?;
    let (sent_by_then, closed_by_then) = at_one_moment(&mut scene.rig.daemons, &ports).await?;
    scene.rig.daemons.restart_collector(scene.plan).await?;
    let seconds_down = killed.elapsed().as_secs_f64();
    let closed = UdpStats::read()?.increase_since(&ports).no_ports;
    // What the NIC has received now, except for frames sent again since its return, is what it had received when it
    // was killed.
    let statistics = scene.rig.daemons.statistics().await?;
    let nic = statistics.stage_total(Stage::Nic);
    let received = nic.get(&nic::RECEIVED) - nic.get_by_name(Counter::DroppedUnknownQueuePair.name());
    gaps.nic_socket += sent_by_then.saturating_sub(
        closed_by_then
            + received
            + nic.get_with_parts(&nic::LINK_LOST, &[LinkLoss::ReceiveQueue.name_at_nic()]),
    );
    gaps.nic_port_closed += closed;
    let session_resumed = wait_for_resumption(&mut scene.rig.daemons).await?;
    Ok(Cost { seconds_down, session_resumed, frames: gaps.nic_socket + gaps.nic_port_closed })
}

/// Kills a collector with an RDMA device: the device stays, without queue pairs until the translator's session is
/// resumed.
async fn kill_collector_of_device(scene: &mut Scene<'_, '_>, gaps: &mut Gaps) -> anyhow::Result<Cost> {
    let before = not_taken(scene.plan, &scene.rig.daemons.statistics().await?)?;
    scene.rig.daemons.freeze_collector()?;
    scene.send_burst(REPORTS).await?;
    wait_until_quiet(scene).await?;
    scene.rig.daemons.kill_collector();
    let killed = Instant::now();
    scene.send_burst(scene.reports).await?;
    wait_until_quiet(scene).await?;
    scene.rig.daemons.restart_collector(scene.plan).await?;
    let seconds_down = killed.elapsed().as_secs_f64();
    let session_resumed = wait_for_resumption(&mut scene.rig.daemons).await?;
    // The device's counters are some milliseconds old: nothing may move meanwhile.
    let settled = feed::wait_until_settled(scene.rig).await?;
    let frames = not_taken(scene.plan, &settled)?.saturating_sub(before);
    gaps.no_queue_pair += frames;
    Ok(Cost { seconds_down, session_resumed, frames })
}

/// Frames that left the translator, or the device that sends for it, but that no queue pair of the device took.
fn not_taken(plan: &Plan<'_>, statistics: &TestbedStatistics) -> anyhow::Result<u64> {
    let sent = match ground::wire_counts(plan.rxe)? {
        Some(wire) => wire.sent - wire.dropped[0],
        None => statistics.link_sent(),
    };
    Ok(sent.saturating_sub(statistics.stage_total(Stage::Nic).get(&nic::RECEIVED)))
}

/// Removes the device while reports go on, and puts it back.
async fn remove_device(rxe: &RxeGround, scene: &mut Scene<'_, '_>, gaps: &mut Gaps) -> anyhow::Result<Cost> {
    let statistics = scene.rig.daemons.statistics().await?;
    let rebuilt = |statistics: &TestbedStatistics| {
        statistics.stage_total(Stage::Collector).get(&collector::SESSION_QUEUE_PAIRS_REBUILT)
    };
    let (before, rebuilt_before) = (not_taken(scene.plan, &statistics)?, rebuilt(&statistics));
    let ports = UdpStats::read()?;
    let start = Instant::now();
    let mut removal = rxe.spawn_removal()?;
    wait_for_removal(&mut removal, start, scene, REPORTS / 10).await?;
    scene.send_burst(scene.reports).await?;
    wait_until_quiet(scene).await?;
    rxe.restore_device()?;
    let seconds_down = start.elapsed().as_secs_f64();
    let back = Instant::now();
    let mut session_resumed = false;
    while !session_resumed && back.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
        session_resumed = rebuilt(&scene.rig.daemons.statistics().await?) > rebuilt_before;
    }
    // Kernels with a port 4791 per device refuse what comes while there is none.
    let closed = UdpStats::read()?.increase_since(&ports).no_ports;
    let settled = feed::wait_until_settled(scene.rig).await?;
    let frames = not_taken(scene.plan, &settled)?.saturating_sub(before);
    gaps.nic_port_closed += closed;
    gaps.no_queue_pair += frames.saturating_sub(closed);
    Ok(Cost { seconds_down, session_resumed, frames })
}

/// Removes the device that sends for the translator, and puts it back. Meanwhile frames wait in the translator or are lost
/// there, by its own count.
async fn remove_sender(sender: &WireEnds, scene: &mut Scene<'_, '_>) -> anyhow::Result<Cost> {
    let resumed = |statistics: &TestbedStatistics| {
        statistics.stage_total(Stage::Collector).get(&collector::SESSION_RESUMED)
    };
    let unsent = |statistics: &TestbedStatistics| accounting::unsent_frames(statistics);
    let before = scene.rig.daemons.statistics().await?;
    let start = Instant::now();
    let mut removal = sender.spawn_removal()?;
    wait_for_removal(&mut removal, start, scene, 0).await?;
    scene.send_burst(scene.reports).await?;
    wait_until_quiet(scene).await?;
    sender.restore_device()?;
    let seconds_down = start.elapsed().as_secs_f64();
    let back = Instant::now();
    let mut session_resumed = false;
    while !session_resumed && back.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = scene.rig.daemons.statistics().await?;
        if resumed(&now) > resumed(&before) {
            // It must also send: a queue pair without a peer is not a session.
            scene.send_burst(REPORTS / 10).await?;
            wait_until_quiet(scene).await?;
            session_resumed = unsent(&scene.rig.daemons.statistics().await?) == unsent(&now);
        }
    }
    let settled = feed::wait_until_settled(scene.rig).await?;
    Ok(Cost { seconds_down, session_resumed, frames: unsent(&settled) - unsent(&before) })
}

/// Sends reports until a device is gone, which the kernel delays until nobody has it open.
async fn wait_for_removal(
    removal: &mut Child,
    start: Instant,
    scene: &mut Scene<'_, '_>,
    reports: u64,
) -> anyhow::Result<()> {
    loop {
        scene.send_burst(reports).await?;
        scene.rig.switches.poll(&mut scene.rig.journal).await?;
        match removal.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("the RDMA device cannot be removed ({status})"),
            None if start.elapsed() > PATIENCE => {
                bail!("the RDMA device is not gone after {PATIENCE:?}: some process still has it open")
            }
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Kills the translator. Everything that it took has left it by then; reports are lost until it is back.
async fn kill_translator(scene: &mut Scene<'_, '_>, gaps: &mut Gaps) -> anyhow::Result<Cost> {
    let resumed = |statistics: &TestbedStatistics| {
        statistics.stage_total(Stage::Collector).get(&collector::SESSION_RESUMED)
    };
    let statistics = last_word(scene).await?;
    let resumed_before = resumed(&statistics);
    scene.rig.daemons.freeze_translator()?;
    let first = scene.rig.journal.entries().len();
    let start = (scene.rig.switches.reporter_side(), kernel_drops(&scene.rig.daemons)?);
    scene.send_burst(REPORTS).await?;
    wait_until_all_sent(scene).await?;
    let frozen = (scene.rig.switches.reporter_side(), kernel_drops(&scene.rig.daemons)?);
    // A datagram damaged on the way counts as damaged, and the kernel would not have delivered it.
    let damaged = |side: &ReporterSide| if side.checksum { side.faults.corrupted } else { 0 };
    let sent = (frozen.0.sent - start.0.sent) - (damaged(&frozen.0) - damaged(&start.0));
    let dropped = frozen.1 - start.1;
    gaps.reports_dropped += dropped;
    gaps.reports_socket += sent.saturating_sub(dropped);

    let ports = UdpStats::read()?;
    scene.rig.daemons.kill_translator(statistics);
    let killed = Instant::now();
    scene.send_burst(scene.reports).await?;
    wait_until_all_sent(scene).await?;
    let closed = UdpStats::read()?.increase_since(&ports).no_ports;
    gaps.reports_dropped += closed;
    scene.rig.journal.lost_since(first);
    scene.rig.daemons.restart_translator(scene.plan).await?;
    let seconds_down = killed.elapsed().as_secs_f64();
    let session_resumed = resumed(&scene.rig.daemons.statistics().await?) > resumed_before;
    Ok(Cost { seconds_down, session_resumed, frames: gaps.reports_socket + gaps.reports_dropped })
}

/// Waits until the translator has reported all its counters to the collector; returns them.
async fn last_word(scene: &mut Scene<'_, '_>) -> anyhow::Result<TestbedStatistics> {
    let renewed = |statistics: &TestbedStatistics| {
        statistics.stage_total(Stage::Collector).get(&collector::SESSION_RENEWED)
    };
    let before = renewed(&scene.rig.daemons.statistics().await?);
    // Workers renew their sessions in turns, and one of them reports for all.
    let enough = before + 2 * scene.plan.workers as u64 - 1;
    let start = Instant::now();
    loop {
        let statistics = scene.rig.daemons.statistics().await?;
        if renewed(&statistics) >= enough {
            return Ok(statistics);
        }
        if start.elapsed() > PATIENCE {
            bail!("the translator does not renew its session");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Datagrams that the kernel dropped at the translator's socket of reports.
fn kernel_drops(daemons: &Daemons) -> anyhow::Result<u64> {
    Ok(netstat::socket_drops(daemons.reports)?.unwrap_or(0))
}

/// Waits until the faults hold back no report.
async fn wait_until_all_sent(scene: &mut Scene<'_, '_>) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        scene.rig.switches.poll(&mut scene.rig.journal).await?;
        if scene.rig.switches.reporter_side().faults.held == 0 {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            bail!("the fault injector of a reporter holds reports back forever");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the translator has sent everything that it will send now; returns the number of frames that have left
/// it.
async fn wait_until_quiet(scene: &mut Scene<'_, '_>) -> anyhow::Result<u64> {
    let (start, mut last, mut moved) = (Instant::now(), [0; 3], Instant::now());
    loop {
        scene.rig.switches.poll(&mut scene.rig.journal).await?;
        let statistics: TestbedStatistics = scene.rig.daemons.translator_statistics().await?;
        let received = statistics.stage_total(Stage::Translator).get(&translator::RECEIVED);
        let now = [received, statistics.link_sent(), scene.rig.switches.reporter_side().sent];
        if now != last {
            (last, moved) = (now, Instant::now());
        }
        if moved.elapsed() > Duration::from_millis(50) && now[0] > 0 {
            return Ok(now[1]);
        }
        if start.elapsed() > PATIENCE {
            bail!("the translator keeps sending although nothing is reported");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Frames that have left the translator, and datagrams to closed ports since `ports`, at one time: RC queue pairs may
/// send again at any time.
async fn at_one_moment(daemons: &mut Daemons, ports: &UdpStats) -> anyhow::Result<(u64, u64)> {
    loop {
        let before = daemons.translator_statistics().await?.link_sent();
        let closed = UdpStats::read()?.increase_since(ports).no_ports;
        let after = daemons.translator_statistics().await?.link_sent();
        if before == after {
            return Ok((after, closed));
        }
    }
}

/// Waits until the translator has queue pairs again; returns whether the collector resumed its session.
async fn wait_for_resumption(daemons: &mut Daemons) -> anyhow::Result<bool> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let statistics = daemons.statistics().await?;
        let node = statistics.stage_total(Stage::Collector);
        // Renewing a session of a killed collector, and reopening it, both resume it.
        if node.get(&collector::SESSION_RENEWED) + node.get(&collector::SESSION_RESUMED) > 0 {
            // Each worker of the translator has a session.
            let sessions = daemons.all.fetch_sessions().await?.sessions;
            if sessions.iter().all(|session| !session.queue_pairs.is_empty()) {
                return Ok(true);
            }
        }
        if node.get(&collector::SESSION_OPENED) > 0 {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}
