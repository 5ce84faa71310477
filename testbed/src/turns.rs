//! Stores whose epochs turn while traffic runs: how fast it runs, and what they answer afterwards.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use dta_history::EpochTable;

use dta_rpc::Spread;

use super::check::{Ahead, CollectorEpoch, Epochs, StoreAnswers};
use super::daemons::{Daemons, Plan};
use super::feed::{self, Rig};
use super::files;
use crate::topology::{Primitive, Topology};
use crate::workload::SeenFlow;

pub const STORES: [Primitive; 2] = [Primitive::KeyWrite, Primitive::Postcarding];
/// Time between two checks whether the translator has executed everything sent: for traffic that is spread; and for
/// traffic at full speed, which each check stops for a moment, or to a switch, which takes long to answer.
const CHECK_INTERVALS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(250)];
/// The least time between two checks, as a multiple of how long one takes: a busy emulated machine needs 200 ms, and
/// traffic would do nothing but wait for checks.
const CHECK_SHARE: u32 = 5;
/// Longest time for epochs to end and to be written, and for a collector that was started again to list them.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    pub count: u32,
    /// Whether traffic lasts for `count` epochs, and the checks wait until all of them are written. Otherwise nothing
    /// waits for them.
    pub spread: bool,
}

impl Turns {
    /// Length of an epoch. The shortest that a collector takes is about as long as its writers take to move, so that
    /// little is reported when none moves.
    pub fn epoch_length(self) -> Duration {
        Duration::from_secs(if self.spread { 3 } else { 2 })
    }
}

/// Spreads traffic evenly over a time, and over epochs: it has one part per epoch, and each part waits until an epoch has
/// ended since the part before it began, however slow the machine is.
pub struct Pace {
    begin: Instant,
    length: Duration,
    total: u64,
    next_check: Instant,
    check_interval: Duration,
    parts: u64,
    begun: u64,
    /// Epochs that had ended when the first part began, once that is known.
    before: Option<u64>,
}

impl Pace {
    /// Begins now. `total` is about how many packets there will be.
    pub fn new(turns: Turns, total: u64, to_switch: bool) -> Self {
        let length = if turns.spread { turns.epoch_length() * turns.count } else { Duration::ZERO };
        let check_interval = CHECK_INTERVALS[usize::from(!turns.spread || to_switch)];
        let parts = if turns.spread { turns.count.into() } else { 1 };
        let (begin, total) = (Instant::now(), total.max(1));
        let next_check = begin + check_interval;
        Self { begin, length, total, next_check, check_interval, parts, begun: 1, before: None }
    }

    /// When more than `packets` packets are due.
    pub fn due_instant(&self, packets: u64) -> Instant {
        self.begin + self.length.mul_f64((packets as f64 / self.total as f64).min(1.0))
    }

    /// Waits until more than `packets` packets are due; notes now and then that everything sent is executed.
    pub async fn wait_until_due(
        &mut self,
        packets: u64,
        topology: &Topology,
        rig: &mut Rig,
    ) -> anyhow::Result<()> {
        let due = self.due_instant(packets);
        let since = due.max(Instant::now());
        loop {
            let start = Instant::now();
            if start > self.next_check {
                feed::note_idle(rig).await?;
                self.next_check = Instant::now() + self.check_interval.max(CHECK_SHARE * start.elapsed());
            }
            let left = due.saturating_duration_since(Instant::now());
            // Timers are no finer.
            if left < Duration::from_millis(1) && self.may_begin(packets, topology, &rig.daemons).await? {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                bail!("no epoch has ended for {PATIENCE:?}");
            }
            tokio::time::sleep(left.clamp(Duration::from_millis(1), CHECK_INTERVALS[0] / 4)).await;
            rig.switches.poll(&mut rig.journal).await?;
        }
    }

    /// Whether the part of the traffic that comes after this many packets may begin.
    async fn may_begin(
        &mut self,
        packets: u64,
        topology: &Topology,
        daemons: &Daemons,
    ) -> anyhow::Result<bool> {
        let part = (1 + packets * self.parts / self.total).min(self.parts);
        if self.parts == 1 || self.before.is_some() && part <= self.begun {
            return Ok(true);
        }
        let ended = count_ended_epochs(&daemons.all, topology).await?;
        let before = *self.before.get_or_insert(ended);
        let may = ended.saturating_sub(before) >= part - 1;
        if may {
            self.begun = part;
        }
        Ok(may)
    }
}

/// How many epochs all writers have left: the least number of any store and collector.
async fn count_ended_epochs(all: &Spread, topology: &Topology) -> anyhow::Result<u64> {
    let mut least = u64::MAX;
    for primitive in STORES {
        for collector in all.members().iter() {
            let epochs = collector.ask.all_epochs(&topology.store_of_primitive(primitive).name, 0, 0).await?;
            // A writer that was killed confirms nothing, but has left an epoch when the next one ends.
            let next_ends = epochs.iter().skip_while(|epoch| epoch.flipped_from == 0).skip(1);
            let confirmed = epochs.iter().filter(|epoch| epoch.flipped_to != 0).count();
            least = least.min(confirmed.max(next_ends.count()) as u64);
        }
    }
    Ok(least)
}

/// Who is asked about what.
pub struct Asking<'a> {
    pub all: &'a Spread,
    /// How far the clock of each is ahead.
    pub ahead: Vec<Ahead>,
    pub topology: &'a Topology,
    pub flows: &'a [SeenFlow],
    pub has_epochs: bool,
    /// See [`Epochs::try_from_lists`].
    pub may_repeat: bool,
}

impl<'a> Asking<'a> {
    /// Asks daemons about flows.
    pub async fn from_daemons(
        daemons: &'a Daemons,
        plan: &Plan<'a>,
        flows: &'a [SeenFlow],
        may_repeat: bool,
    ) -> anyhow::Result<Asking<'a>> {
        let ahead = daemons.clock_offsets().await?;
        let (topology, has_epochs) = (plan.topology, plan.epochs.is_some());
        Ok(Asking { all: &daemons.all, ahead, topology, flows, has_epochs, may_repeat })
    }

    /// The epochs of the stores that have them, as their collectors list them now.
    async fn list_epochs(&self) -> anyhow::Result<[Epochs; 2]> {
        let mut all = Vec::new();
        for primitive in STORES {
            let (store, mut of) = (&self.topology.store_of_primitive(primitive).name, Vec::new());
            for (collector, ahead) in self.all.members().iter().zip(&self.ahead) {
                let epochs = collector.ask.all_epochs(store, 0, 0).await?;
                of.push(
                    epochs
                        .iter()
                        .rev()
                        .map(|epoch| CollectorEpoch::from_control_epoch(epoch, *ahead))
                        .collect(),
                );
            }
            let epochs = Epochs::try_from_lists(of, self.may_repeat);
            all.push(epochs.map_err(|why| anyhow!("store {store:?}: {why}"))?);
        }
        all.try_into().ok().context("not every store with epochs lists them")
    }

    /// What the stores answer now: in each of their epochs, if they have any.
    pub async fn query_stores(&self) -> anyhow::Result<StoreAnswers> {
        let epochs = match self.has_epochs {
            true => self.list_epochs().await?,
            false => [(); 2].map(|()| Epochs::without_epochs(self.all.members().len())),
        };
        StoreAnswers::query_stores(self.all, self.topology, self.flows, epochs).await
    }

    /// Waits until all epochs that answered are over and written, then asks them again, and those opened since. Says in
    /// words if anything has changed.
    pub async fn ask_when_written(
        &self,
        before: &StoreAnswers,
    ) -> anyhow::Result<(StoreAnswers, Option<String>)> {
        let are_written = |now: &[Epochs; 2]| {
            before.queried_epochs().iter().zip(now).all(|(known, now)| known.are_written_in(now))
        };
        let epochs = self.list_when("not all epochs are written", are_written).await?;
        let answers = StoreAnswers::query_stores(self.all, self.topology, self.flows, epochs).await?;
        let changed = before.changed_in(&answers, "were written");
        Ok((answers, changed))
    }

    /// Waits until at least this many epochs of each store are written; returns how many are.
    pub async fn until_so_many(&self, least: u32) -> anyhow::Result<u64> {
        let written = |epochs: &[Epochs; 2]| epochs.iter().map(Epochs::written_count).min().unwrap_or(0);
        let is_enough = |epochs: &[Epochs; 2]| written(epochs) >= u64::from(least);
        Ok(written(&self.list_when("too few epochs are written", is_enough).await?))
    }

    /// Lists the epochs again and again until `are_so` accepts them.
    async fn list_when(
        &self,
        otherwise: &str,
        are_so: impl Fn(&[Epochs; 2]) -> bool,
    ) -> anyhow::Result<[Epochs; 2]> {
        let start = Instant::now();
        loop {
            let epochs = self.list_epochs().await?;
            if are_so(&epochs) {
                return Ok(epochs);
            }
            if start.elapsed() > PATIENCE {
                bail!("{otherwise} after {PATIENCE:?}: {epochs:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Kills the collector, compacts each history into one file, starts the collector again, and asks the same again. Says
/// in words if anything has changed.
pub async fn ask_after_restart(
    daemons: &mut Daemons,
    plan: &Plan<'_>,
    flows: &[SeenFlow],
    before: &StoreAnswers,
) -> anyhow::Result<Option<String>> {
    daemons.kill_collector();
    compact_history(&files::history_path(&daemons.memory_folder()), plan.topology)?;
    daemons.restart_collector(plan).await?;
    changed_by_restart(&daemons.all, plan.topology, flows, before).await
}

/// Compacts the epochs of each store in a history into one file.
pub fn compact_history(history: &str, topology: &Topology) -> anyhow::Result<()> {
    for primitive in STORES {
        let table = EpochTable::open(Path::new(history), topology.store_of_primitive(primitive))?;
        table.compact_span(0..u64::MAX)?;
    }
    Ok(())
}

/// Asks the same again after the collector was killed and its history compacted. Says in words if anything has changed.
pub async fn changed_by_restart(
    all: &Spread,
    topology: &Topology,
    flows: &[SeenFlow],
    before: &StoreAnswers,
) -> anyhow::Result<Option<String>> {
    let again = before.ask_again(all, topology, flows).await?;
    Ok(before.changed_in(&again, "became one file and the collector was killed"))
}
