//! Feeding the testbed without overflowing any socket, however slow the machine is.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::daemons::Daemons;
use super::journal::Journal;
use super::statistics::Statistics;
use super::switches::Switches;
use super::workload::{Report, Workload};

/// Kernel memory that one small datagram takes in a receive queue, at most: buffer, bookkeeping and room to spare.
const PER_DATAGRAM: u64 = 1024;
/// A switch has to hear what is asked of it before the translator's window of 1,024 sequences has moved on.
const BURST: u64 = 512;
/// No progress for this long means that what is missing will not come.
const STALLED: Duration = Duration::from_millis(60);
/// Everything has come to rest when no counter has moved for this long: the NIC reads its link's counters every 100 ms.
const QUIET: Duration = Duration::from_millis(260);
/// A testbed that does not come to rest within this is broken.
const SETTLE: Duration = Duration::from_secs(60);

/// The window: reports that may be on their way.
pub struct Window {
    /// Reports sent since the last look at the counters.
    since: u64,
    /// Reports between two looks.
    burst: u64,
    /// Frames that may wait at a receiver before more is sent.
    room: u64,
    /// Datagrams and frames that never came, in earlier looks.
    written_off: [u64; 2],
}

impl Window {
    /// A window that fits the receive buffers which the kernel grants.
    pub fn new(copies: u64) -> Self {
        let granted = std::fs::read_to_string("/proc/sys/net/core/rmem_max")
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok())
            .unwrap_or(212_992)
            .min(8 << 20);
        let room = (granted / PER_DATAGRAM).clamp(64, 4096);
        Self { since: 0, burst: (room / copies.max(1)).clamp(32, BURST), room: room / 4, written_off: [0; 2] }
    }
}

/// Sends reports, in order, as fast as the window allows.
pub async fn send(
    reports: &mut Vec<Report>,
    workload: &Workload,
    switches: &mut Switches,
    journal: &mut Journal,
    daemons: &mut Daemons,
    window: &mut Window,
) -> anyhow::Result<()> {
    for report in reports.drain(..) {
        switches.send(report, workload.flows(), journal)?;
        window.since += 1;
        if window.since >= window.burst {
            wait_for_room(switches, journal, daemons, window).await?;
            window.since = 0;
        }
    }
    Ok(())
}

/// Waits until most of what was sent has been executed.
async fn wait_for_room(
    switches: &mut Switches,
    journal: &mut Journal,
    daemons: &mut Daemons,
    window: &mut Window,
) -> anyhow::Result<()> {
    let mut last = [u64::MAX; 2];
    let mut moved = Instant::now();
    loop {
        switches.poll(journal)?;
        let now = on_the_way(switches, &daemons.statistics().await?);
        let ahead: [u64; 2] = std::array::from_fn(|n| now[n].saturating_sub(window.written_off[n]));
        if ahead.iter().all(|n| *n <= window.room) {
            return Ok(());
        }
        if now != last {
            (last, moved) = (now, Instant::now());
        } else if moved.elapsed() > STALLED {
            window.written_off = now;
            return Ok(());
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

/// Datagrams on their way to the translator; frames on their way to the NIC, or waiting for room on an RC queue pair.
fn on_the_way(switches: &Switches, statistics: &Statistics) -> [u64; 2] {
    let translator = statistics.node("translator/");
    let sent = switches.side().sent;
    let received = translator.get("link.reports.received");
    let made = translator.get("operations") + translator.get("idle_frames");
    let gone =
        translator.get("lost_operations.queue_full") + translator.get("lost_operations.queue_pair_down");
    let waiting = made.saturating_sub(translator.get("frames") + gone);
    let frames = translator.get("link.roce.sent").saturating_sub(statistics.node("nic/").get("received"));
    [sent.saturating_sub(received), frames + waiting]
}

/// Waits until nothing moves any more, answering NACKs meanwhile; then nothing is held in the translator either.
pub async fn settle(
    switches: &mut Switches,
    journal: &mut Journal,
    daemons: &mut Daemons,
) -> anyhow::Result<Statistics> {
    let start = Instant::now();
    let mut last = Statistics::default();
    let mut own = (0, 0);
    let mut moved = Instant::now();
    loop {
        switches.poll(journal)?;
        let now = daemons.statistics().await?;
        let side = switches.side();
        if moving(&now) != moving(&last) || (side.sent, side.received) != own || side.faults.held > 0 {
            moved = Instant::now();
        }
        (last, own) = (now, (side.sent, side.received));
        if moved.elapsed() > QUIET {
            if daemons.flush().await? == 0 {
                return daemons.statistics().await;
            }
            moved = Instant::now();
        }
        if start.elapsed() > SETTLE {
            bail!(
                "collector and translator did not come to rest within {SETTLE:?}; their counters still move"
            );
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The counters by which it is seen whether reports or frames still move.
fn moving(statistics: &Statistics) -> [u64; 8] {
    let (translator, nic) = (statistics.node("translator/"), statistics.node("nic/"));
    [
        translator.get("received"),
        translator.get("frames"),
        translator.get("held"),
        translator.get("nacks"),
        translator.get("link.roce.received"),
        nic.get("received"),
        nic.get("link.received"),
        nic.get("link.sent"),
    ]
}
