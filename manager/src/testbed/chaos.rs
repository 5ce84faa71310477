//! Killing the collector in the middle of a run, so that what it costs is known and not guessed.
//!
//! The frames that a dead process had in its socket are counted by nobody. So the collector is stopped first (SIGSTOP) and
//! reports go on; when the translator has sent its frames, all that were sent and not received lie in that one socket. Then it
//! is killed with -9. More reports follow, into a port that nobody has open, which the kernel counts. Then it is started again.

use std::time::{Duration, Instant};

use anyhow::bail;
use dta_link::netstat::UdpStats;

use super::accounting::Gaps;
use super::daemons::{Daemons, Plan};
use super::journal::Journal;
use super::outcome::ChaosOutcome;
use super::statistics::Statistics;
use super::switches::Switches;
use super::workload::Workload;
use super::{collect, feed};
use crate::topology::{Primitive, Topology};

/// What to do in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Chaos {
    /// Kill the collector with -9 and start it again.
    KillCollector,
}

/// Reports made while the collector is stopped, and again while it is dead.
pub const REPORTS: u64 = 150;
/// Longest time for the translator to come to rest, and to have its session again.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the run needs to go on with.
pub struct Scene<'a, 'b> {
    /// Stores.
    pub topology: &'a Topology,
    /// How to start the collector.
    pub plan: &'a Plan<'b>,
    /// Switches.
    pub switches: &'a mut Switches,
    /// Truth.
    pub journal: &'a mut Journal,
    /// Processes.
    pub daemons: &'a mut Daemons,
}

/// Kills the collector and starts it again. `make` makes and sends about as many reports as it is told.
pub async fn kill_collector(
    scene: &mut Scene<'_, '_>,
    workload: &mut Workload,
    gaps: &mut Gaps,
    mut make: impl FnMut(u64, &mut Workload, &mut Switches, &mut Journal) -> anyhow::Result<()>,
) -> anyhow::Result<ChaosOutcome> {
    feed::settle(scene.switches, scene.journal, scene.daemons).await?;
    let store = scene.topology.store(Primitive::KeyWrite);
    let flows = workload.flows().to_vec();
    let before = collect::key_write(&mut scene.daemons.client, store, &flows).await?;

    scene.daemons.freeze_collector();
    make(REPORTS, workload, scene.switches, scene.journal)?;
    rest(scene).await?;
    let ports = UdpStats::read()?;
    scene.daemons.kill_collector();
    let killed = Instant::now();
    make(REPORTS, workload, scene.switches, scene.journal)?;
    rest(scene).await?;
    let (sent_by_then, closed_by_then) = at_one_moment(scene.daemons, &ports).await?;
    scene.daemons.restart_collector(scene.plan)?;
    let seconds_down = killed.elapsed().as_secs_f64();
    let closed = UdpStats::read()?.since(&ports).no_ports;
    // What the NIC has received now, but for probes since it is back, is what it had received when it was killed.
    let statistics = scene.daemons.statistics().await?;
    let nic = statistics.node("nic/");
    let received = nic.get("received") - nic.get("dropped.unknown_queue_pair");
    gaps.nic_socket +=
        sent_by_then.saturating_sub(closed_by_then + received + nic.get("link.lost.receive_queue"));
    gaps.nic_port_closed += closed;
    let after = collect::key_write(&mut scene.daemons.client, store, &flows).await?;
    let session_resumed = resumed(scene.daemons).await?;

    let answers = |all: &[Option<Vec<u8>>]| all.iter().flatten().count() as u64;
    let kept =
        before.iter().zip(&after).filter(|(before, after)| before.is_some() && after.is_some()).count();
    Ok(ChaosOutcome {
        killed: "collector".into(),
        answers_before: answers(&before),
        answers_after: kept as u64,
        seconds_down,
        session_resumed,
        frames_lost: gaps.nic_socket + gaps.nic_port_closed,
    })
}

/// Waits until the translator has sent everything that it will send now; gives the frames that have left it.
async fn rest(scene: &mut Scene<'_, '_>) -> anyhow::Result<u64> {
    let (start, mut last, mut moved) = (Instant::now(), [0; 3], Instant::now());
    loop {
        scene.switches.poll(scene.journal)?;
        let statistics: Statistics = scene.daemons.translator_statistics().await?;
        let node = statistics.node("translator/");
        let now = [node.get("received"), node.get("link.roce.sent"), scene.switches.side().sent];
        if now != last {
            (last, moved) = (now, Instant::now());
        }
        if moved.elapsed() > Duration::from_millis(50) && now[0] > 0 {
            return Ok(now[1]);
        }
        if start.elapsed() > PATIENCE {
            bail!("the translator goes on sending though nothing is reported");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Frames that have left the translator, and datagrams to closed ports since `ports`, of one moment: probes of RC queue pairs
/// may leave at any time.
async fn at_one_moment(daemons: &mut Daemons, ports: &UdpStats) -> anyhow::Result<(u64, u64)> {
    loop {
        let before = daemons.translator_statistics().await?.node("translator/").get("link.roce.sent");
        let closed = UdpStats::read()?.since(ports).no_ports;
        let after = daemons.translator_statistics().await?.node("translator/").get("link.roce.sent");
        if before == after {
            return Ok((after, closed));
        }
    }
}

/// Waits until the translator has queue pairs again; whether the collector resumed its session.
async fn resumed(daemons: &mut Daemons) -> anyhow::Result<bool> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let statistics = daemons.statistics().await?;
        let collector = statistics.node("collector");
        // Renewing a session that a killed collector had, and opening it again, both resume it.
        if collector.get("session.renewed") + collector.get("session.resumed") > 0 {
            return Ok(true);
        }
        if collector.get("session.opened") > 0 {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}
