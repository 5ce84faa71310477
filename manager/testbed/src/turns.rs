//! Stores whose epochs turn while traffic runs: how fast it runs, and what they answer afterwards.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use dta_history::Table;

use super::check::{Answers, Epochs};
use super::daemons::{Daemons, Plan};
use super::feed;
use super::files;
use super::journal::Journal;
use super::switches::Switches;
use crate::topology::{Primitive, Topology};
use crate::workload::SeenFlow;

/// The stores with epochs.
pub const STORES: [Primitive; 2] = [Primitive::KeyWrite, Primitive::Postcarding];
/// How often it is looked whether the translator has executed everything sent: between traffic that is spread, and in
/// traffic that is as fast as it can be, which then stops for a moment.
const LOOK: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];
/// Longest time for epochs to end and to be written, and for a collector that was started again to list them.
const PATIENCE: Duration = Duration::from_secs(60);

/// Epochs that turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// How many.
    pub count: u32,
    /// Whether traffic lasts as long as so many of them, and the checks wait until all of them are written. Otherwise
    /// nothing waits for them.
    pub spread: bool,
}

impl Turns {
    /// Length of an epoch. The shortest that a collector takes is about as long as its writers take to move, so that
    /// little is reported when none moves.
    pub fn every(self) -> Duration {
        Duration::from_secs(if self.spread { 3 } else { 2 })
    }
}

/// Spreads traffic evenly over a time.
pub struct Pace {
    begin: Instant,
    length: Duration,
    /// Packets, about.
    total: u64,
    looked: Instant,
    look: Duration,
}

impl Pace {
    /// Begins now. `total` is about how many packets there will be.
    pub fn begin(turns: Turns, total: u64) -> Self {
        let (length, look) = match turns.spread {
            true => (turns.every() * turns.count, LOOK[0]),
            false => (Duration::ZERO, LOOK[1]),
        };
        Self { begin: Instant::now(), length, total: total.max(1), looked: Instant::now(), look }
    }

    /// Waits until more than `packets` packets are due; notes now and then that everything sent is executed.
    pub async fn keep(
        &mut self,
        packets: u64,
        switches: &mut Switches,
        journal: &mut Journal,
        daemons: &mut Daemons,
    ) -> anyhow::Result<()> {
        let due = self.begin + self.length.mul_f64((packets as f64 / self.total as f64).min(1.0));
        loop {
            if self.looked.elapsed() > self.look {
                feed::note_idle(switches, journal, daemons).await?;
                self.looked = Instant::now();
            }
            let left = due.saturating_duration_since(Instant::now());
            // A timer is not finer.
            if left < Duration::from_millis(1) {
                return Ok(());
            }
            tokio::time::sleep(left.min(LOOK[0] / 4)).await;
            switches.poll(journal).await?;
        }
    }
}

/// The epochs of the stores that have them, as their collectors list them now.
async fn list(daemons: &Daemons, topology: &Topology, may_repeat: bool) -> anyhow::Result<[Epochs; 2]> {
    let mut all = Vec::new();
    for primitive in STORES {
        let store = &topology.store(primitive).name;
        let epochs = Epochs::listed(daemons.epochs(store).await?, may_repeat);
        all.push(epochs.map_err(|why| anyhow!("store {store:?}: {why}"))?);
    }
    all.try_into().ok().context("not every store with epochs lists them")
}

/// What the stores answer now: in each of their epochs, if they have any. `may_repeat`: see [`Epochs::listed`].
pub async fn ask(
    daemons: &Daemons,
    plan: &Plan<'_>,
    flows: &[SeenFlow],
    may_repeat: bool,
) -> anyhow::Result<Answers> {
    let epochs = match plan.epochs {
        Some(_) => list(daemons, plan.topology, may_repeat).await?,
        None => [(); 2].map(|()| Epochs::none(daemons.all.members().len())),
    };
    Answers::ask(&daemons.all, plan.topology, flows, epochs).await
}

/// Lists the epochs until they are as they should be: `what`, in words.
async fn until(
    daemons: &Daemons,
    topology: &Topology,
    may_repeat: bool,
    what: &str,
    is: impl Fn(&[Epochs; 2]) -> bool,
) -> anyhow::Result<[Epochs; 2]> {
    let start = Instant::now();
    loop {
        let epochs = list(daemons, topology, may_repeat).await?;
        if is(&epochs) {
            return Ok(epochs);
        }
        if start.elapsed() > PATIENCE {
            bail!("not {what} after {PATIENCE:?}: {epochs:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until all epochs that answered are over and written, and asks again, and those opened since, too. Says in words
/// if anything has changed.
pub async fn ask_when_written(
    daemons: &Daemons,
    plan: &Plan<'_>,
    flows: &[SeenFlow],
    before: &Answers,
    may_repeat: bool,
) -> anyhow::Result<(Answers, Option<String>)> {
    let are_written =
        |now: &[Epochs; 2]| before.epochs().iter().zip(now).all(|(known, now)| known.are_written_in(now));
    let epochs = until(daemons, plan.topology, may_repeat, "all epochs are written", are_written).await?;
    let answers = Answers::ask(&daemons.all, plan.topology, flows, epochs).await?;
    let changed = before.changed_in(&answers, "were written");
    Ok((answers, changed))
}

/// Kills the collector, makes one file of the epochs that each history has, starts it again, and asks the same again.
/// Says in words if anything has changed.
pub async fn ask_after_restart(
    daemons: &mut Daemons,
    plan: &Plan<'_>,
    flows: &[SeenFlow],
    before: &Answers,
) -> anyhow::Result<Option<String>> {
    daemons.kill_collector();
    let history = files::history(&daemons.memory());
    for primitive in STORES {
        let table = Table::open(Path::new(&history), plan.topology.store(primitive))?;
        table.compact(0..u64::MAX)?;
    }
    daemons.restart_collector(plan).await?;
    let again = before.ask_again(&daemons.all, plan.topology, flows).await?;
    Ok(before.changed_in(&again, "became one file and the collector was killed"))
}

/// Waits until so many epochs of each store are written; returns how many are.
pub async fn until_so_many(daemons: &Daemons, topology: &Topology, least: u32) -> anyhow::Result<u64> {
    let written = |epochs: &[Epochs; 2]| epochs.iter().map(Epochs::written).min().unwrap_or(0);
    let what = format!("{least} epochs are written");
    let epochs = until(daemons, topology, false, &what, |now| written(now) >= u64::from(least)).await?;
    Ok(written(&epochs))
}
