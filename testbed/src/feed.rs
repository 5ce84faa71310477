//! Feeds the testbed without overflowing any socket, however slow the machine is.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use dta_files::moment;
use dta_proto::counter::{Stage, nic, translator};
use dta_proto::program::Purpose;

use super::daemons::Daemons;
use super::journal::Journal;
use super::reporters::RUN;
use super::statistics::TestbedStatistics;
use super::switches::Switches;
use super::workload::{SwitchReport, Workload};
use crate::topology::Primitive;

/// Most kernel memory that a small datagram takes in a receive queue: buffer, bookkeeping and a margin.
const PER_DATAGRAM: u64 = 1024;
/// Linux's default limit of a receive queue, `net.core.rmem_max`.
const GRANTED: u64 = 212_992;
/// A switch must receive NACKs before the translator's window of 1,024 sequences has moved on.
const BURST: u64 = 512;
/// Reports between two checks of what waits inside the translator for room on an RC queue pair, which holds 16,384
/// operations, and in the ring to the NIC, which holds some 10,000 frames.
const INSIDE: u64 = 1024;
/// After a daemon was killed, no progress for this long means that what is missing will not come.
const STALLED: Duration = Duration::from_millis(60);
/// A switch counts a report within this time after it was sent, or never: then it was lost on the way.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// Everything is settled when no counter has moved for this long: the NIC reads its link's counters every 100 ms.
const QUIET: Duration = Duration::from_millis(260);
/// A testbed that makes no progress for this long is broken.
const SETTLE: Duration = Duration::from_secs(60);

/// The window: reports that may be in flight.
pub struct SendWindow {
    /// Reports sent since the last check of the receive queues, and of the translator's counters.
    since: [u64; 2],
    /// Reports between two checks of the queues.
    burst: u64,
    /// Bytes that may wait in the translator's and the NIC's receive queues before sending goes on. For a switch, the
    /// reports lost on the way to it.
    room: [u64; 2],
    of_switch: bool,
}

impl SendWindow {
    /// A window that fits the receive buffers granted by the kernel; a report becomes up to `copies` frames.
    pub fn new(copies: u64) -> Self {
        let granted = std::fs::read_to_string("/proc/sys/net/core/rmem_max")
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok())
            .unwrap_or(GRANTED)
            .min(8 << 20);
        Self::with_granted_buffers(granted, copies)
    }

    /// A window that fits the default receive buffers.
    pub fn with_default_buffers(copies: u64) -> Self {
        Self::with_granted_buffers(GRANTED, copies)
    }

    /// A window of the reports that one of bmv2's queues holds: each becomes up to four frames, and the 65th of a
    /// queue is silently lost.
    pub fn of_switch() -> Self {
        Self { since: [0; 2], burst: 6, room: [0; 2], of_switch: true }
    }

    fn with_granted_buffers(granted: u64, copies: u64) -> Self {
        // What may wait for the translator, plus a burst, may become frames while the NIC's process is not running.
        let datagrams = (granted / PER_DATAGRAM).clamp(64, 4096);
        let burst = (datagrams / 4 / copies.max(1)).clamp(16, BURST);
        // A run takes little more room than one datagram.
        let room = [burst * PER_DATAGRAM / RUN as u64, burst * PER_DATAGRAM];
        Self { since: [0; 2], burst, room, of_switch: false }
    }
}

/// What reports go through, and what is known about them.
pub struct Rig {
    pub switches: Switches,
    pub journal: Journal,
    pub daemons: Daemons,
    /// How many reports may be under way.
    pub window: SendWindow,
}

/// Sends reports, in order, as fast as the window allows.
pub async fn send(reports: &mut Vec<SwitchReport>, workload: &Workload, rig: &mut Rig) -> anyhow::Result<()> {
    for report in reports.drain(..) {
        // The hops of a packet report at nearly the same time: to the translator, a pause between them would look
        // like a lost postcard.
        let may_wait = report.body.primitive() == Primitive::SketchMerge;
        match may_wait {
            true => rig.switches.gather_report(report, workload, &mut rig.journal)?,
            false => rig.switches.send(report, workload, &mut rig.journal)?,
        }
        rig.window.since = rig.window.since.map(|n| n + 1);
        if may_wait {
            keep_to_window(rig).await?;
        }
    }
    rig.switches.send_gathered()?;
    keep_to_window(rig).await
}

/// Waits if the window is used up.
async fn keep_to_window(rig: &mut Rig) -> anyhow::Result<()> {
    if rig.window.since[0] >= rig.window.burst {
        wait_for_room(rig).await?;
        rig.window.since[0] = 0;
    }
    if rig.window.since[1] >= INSIDE {
        wait_inside(rig).await?;
        rig.window.since[1] = 0;
    }
    Ok(())
}

/// Waits until the translator's and the NIC's receive queues are nearly empty.
async fn wait_for_room(rig: &mut Rig) -> anyhow::Result<()> {
    let Rig { switches, journal, daemons, window } = rig;
    let start = Instant::now();
    let (mut last, mut moved) = (u64::MAX, start);
    loop {
        switches.poll(journal).await?;
        let sent = switches.reporter_side().sent;
        let waiting = daemons.queued_bytes(sent).await?;
        let is_room = waiting[0] <= window.room[0] && waiting[1] <= window.room[1];
        if waiting[0] != last {
            (last, moved) = (waiting[0], Instant::now());
        }
        if window.of_switch && (is_room || moved.elapsed() > ON_THE_WAY) {
            if waiting[0] == sent {
                bail!(
                    "none of the {sent} reports sent to {} reached the switch: check the path (the port and its \
                     cable, and on the sending machine the route and the entry of `ip neigh` for that address)",
                    daemons.reports
                );
            }
            window.room[0] = waiting[0];
            return Ok(());
        }
        if is_room {
            return Ok(());
        }
        if start.elapsed() > SETTLE {
            bail!("{waiting:?} bytes have been waiting in receive queues for {SETTLE:?}");
        }
        sleep_briefly(Duration::from_micros(50)).await;
    }
}

/// A short sleep. Tokio's own are whole milliseconds, in which a small receive queue runs empty.
async fn sleep_briefly(length: Duration) {
    std::thread::sleep(length);
    tokio::task::yield_now().await;
}

/// Notes in the journal when the translator has executed everything sent, if that happens soon.
pub async fn note_idle(rig: &mut Rig) -> anyhow::Result<()> {
    let Rig { switches, journal, daemons, .. } = rig;
    let start = Instant::now();
    while journal.has_report_times() && start.elapsed() < STALLED {
        switches.poll(journal).await?;
        let asked = moment::now();
        if daemons.queued_bytes(switches.reporter_side().sent).await?[0] == 0 {
            // A worker may hand over what it has read to another: when both have answered twice, it is executed.
            daemons.translator_statistics().await?;
            if writes_under_way(&daemons.translator_statistics().await?) == 0 {
                journal.note_idle(asked);
                return Ok(());
            }
        }
        sleep_briefly(Duration::from_micros(200)).await;
    }
    Ok(())
}

/// Waits until little is waiting inside the translator and in the ring to the NIC.
async fn wait_inside(rig: &mut Rig) -> anyhow::Result<()> {
    let Rig { switches, journal, daemons, .. } = rig;
    let patience = if daemons.any_killed() { STALLED } else { SETTLE };
    let (mut last, mut moved) = (u64::MAX, Instant::now());
    loop {
        switches.poll(journal).await?;
        let statistics = daemons.statistics().await?;
        let now = waiting_inside(&statistics).max(daemons.frames_in_rings(&statistics));
        if now <= INSIDE || (now == last && moved.elapsed() > patience) {
            return Ok(());
        }
        if now != last {
            (last, moved) = (now, Instant::now());
        }
        sleep_briefly(Duration::from_micros(200)).await;
    }
}

/// Operations that wait for room on an RC queue pair.
fn waiting_inside(statistics: &TestbedStatistics) -> u64 {
    statistics
        .stage_total(Stage::Translator)
        .counters_of_definition(&translator::PAIR_WAITING)
        .map(|(_, waiting)| waiting)
        .sum()
}

/// Operations on RC queue pairs that were acknowledged.
fn acknowledged_operations(statistics: &TestbedStatistics) -> u64 {
    let node = statistics.stage_total(Stage::Translator);
    node.counters_of_definition(&translator::PAIR_ACKNOWLEDGED).map(|(_, acknowledged)| acknowledged).sum()
}

/// Operations on an RC queue pair that are not acknowledged: they may be sent again.
fn unacknowledged(statistics: &TestbedStatistics) -> u64 {
    let out = statistics.stage_total(Stage::Translator).counters_of_definition(&translator::PAIR_OUTSTANDING);
    waiting_inside(statistics) + out.map(|(_, outstanding)| outstanding).sum::<u64>()
}

/// Writes on RC that may still leave, or leave again, for the region of that moment.
fn writes_under_way(statistics: &TestbedStatistics) -> u64 {
    let node = statistics.stage_total(Stage::Translator);
    let counted = node
        .counters_of_definition(&translator::PAIR_WAITING)
        .chain(node.counters_of_definition(&translator::PAIR_OUTSTANDING));
    counted.filter(|(found, _)| found.last_value() == Purpose::Write.name()).map(|(_, writes)| writes).sum()
}

/// Waits until nothing moves any more, answering NACKs meanwhile; then the translator holds nothing, either.
pub async fn wait_until_settled(rig: &mut Rig) -> anyhow::Result<TestbedStatistics> {
    let Rig { switches, journal, daemons, .. } = rig;
    // On RC, each operation is acknowledged once, but with many faults that takes as long as it takes.
    let (mut acknowledged, mut progressed) = (0, Instant::now());
    let mut last = TestbedStatistics::default();
    let mut own = (0, 0);
    let mut moved = Instant::now();
    loop {
        switches.poll(journal).await?;
        let now = daemons.statistics().await?;
        let side = switches.reporter_side();
        let moves = progress_counters(&now) != progress_counters(&last) || (side.sent, side.received) != own;
        // The kernel or a ring may hold what a process that does not run has not taken.
        let waits = side.faults.held > 0
            || daemons.frames_in_rings(&now) > 0
            || !daemons.is_switch() && daemons.queued_bytes(side.sent).await? != [0; 2];
        if moves || waits {
            moved = Instant::now();
        }
        (last, own) = (now, (side.sent, side.received));
        let before = std::mem::replace(&mut acknowledged, acknowledged_operations(&last));
        if acknowledged > before {
            progressed = Instant::now();
        }
        if moved.elapsed() > QUIET && unacknowledged(&last) == 0 {
            // These counters lack what the translator has flushed by its own clock since they were read, and this
            // flush does not find it any more.
            if daemons.flush_translator().await? == 0
                && progress_counters(&daemons.statistics().await?) == progress_counters(&last)
            {
                journal.note_settled();
                // The counters from before: between reading the collector's and the translator's, a frame that requires
                // an answer may be sent.
                return Ok(last);
            }
            moved = Instant::now();
        }
        if progressed.elapsed() > SETTLE {
            ensure!(
                acknowledged > 0,
                "collector and translator did not settle within {SETTLE:?}; {} operations wait to be sent or acknowledged",
                unacknowledged(&last)
            );
            bail!(
                "collector and translator did not settle within {SETTLE:?} after the last acknowledgement; {} operations are \
                 not acknowledged",
                unacknowledged(&last)
            );
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The counters that show whether reports or frames still move.
fn progress_counters(statistics: &TestbedStatistics) -> [u64; 8] {
    let (node, nic) = (statistics.stage_total(Stage::Translator), statistics.stage_total(Stage::Nic));
    [
        node.get(&translator::RECEIVED),
        node.get(&translator::FRAMES),
        node.get(&translator::HELD),
        node.get(&translator::NACKS),
        node.get_with_parts(&translator::LINK_RECEIVED, &[translator::ROCE]),
        nic.get(&nic::RECEIVED),
        nic.get(&nic::LINK_RECEIVED),
        nic.get(&nic::LINK_SENT),
    ]
}
