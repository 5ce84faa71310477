//! Asks the collectors about everything, over the same gRPC as anybody, compares their answers with the truth, and says where each
//! report ended. One file per primitive.
//!
//! The terms are the blueprint's: *queryable*, *superseded*, *overwritten*, *held*, *dropped*, *lost*, *unexplained*
//! for reports; *right*, *absent*, *stale*, *partial*, *over*, *incomplete*, *wrong* for answers. A report that
//! should be in memory by every record, but is not, is unexplained; it is never hidden in another number.

mod append;
mod epochs;
mod key_increment;
mod key_write;
mod occupancy;
mod pools;
mod postcarding;
mod sketch_merge;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use dta_proto::control::{MAX_READ, ReadMemoryRequest};
use dta_proto::counter::between;
use dta_proto::key::Key;
use dta_proto::store::StoreSpec;
use dta_rpc::Spread;
use dta_rpc::{Ask, ClientError};
pub use epochs::{Ahead, CollectorEpoch, EpochTallies, Epochs};
pub use pools::{DROPPED_BY_TRANSLATOR, HELD, Pools, PrimitiveLimits};
pub use postcarding::IncompleteRows;
use serde::Serialize;

use self::postcarding::PathAnswer;
use crate::journal::Journal;
use crate::share::Share;
use crate::topology::{Primitive, Topology};
use crate::workload::{EpochTruth, SeenFlow};

/// What is asked about, and what is known about it.
pub struct CheckContext<'a> {
    pub flows: &'a [SeenFlow],
    /// All sketch epochs that have ended.
    pub epochs: &'a [EpochTruth],
    pub journal: &'a Journal,
    /// What the translator did with rows of postcards.
    pub rows: IncompleteRows,
    /// What the stores that may have epochs answered.
    pub answers: &'a StoreAnswers,
}

impl CheckContext<'_> {
    /// Asks for everything in a store and says of each report of its primitive where it ended.
    pub async fn check_store(
        &self,
        all: &Spread,
        store: &StoreSpec,
        pools: &mut Pools,
    ) -> anyhow::Result<(EpochTallies, ReportEnds)> {
        let (of, share) = (self.answers, (&store.kind, self.answers.share));
        let (tally, ends) = match store.kind.primitive() {
            Primitive::KeyWrite => {
                let answers = &of.values;
                return Ok(key_write::check_answers(
                    share,
                    self.flows,
                    self.journal,
                    &of.epochs_of_values,
                    answers,
                    pools,
                ));
            }
            Primitive::Postcarding => {
                let (epochs, answers) = (&of.epochs_of_paths, &of.paths);
                let checked = postcarding::check_answers(
                    share,
                    self.flows,
                    self.journal,
                    epochs,
                    answers,
                    self.rows,
                    pools,
                );
                return Ok(checked);
            }
            Primitive::Append => append::query_and_check(self, all, store, pools).await?,
            Primitive::KeyIncrement => key_increment::query_and_check(self, all, store, pools).await?,
            Primitive::SketchMerge => sketch_merge::query_and_check(self, all, store, pools).await?,
        };
        Ok((tally.into(), ends))
    }
}

/// What the stores that may have epochs answered, by flow and epoch.
pub struct StoreAnswers {
    /// How the collectors that were asked share keys and lists.
    share: Share,
    epochs_of_values: Epochs,
    epochs_of_paths: Epochs,
    values: Vec<Vec<Option<Vec<u8>>>>,
    paths: Vec<Vec<Option<PathAnswer>>>,
}

impl StoreAnswers {
    /// Asks for the value and the path of every flow, in each of these epochs.
    pub async fn query_stores(
        all: &Spread,
        topology: &Topology,
        flows: &[SeenFlow],
        [epochs_of_values, epochs_of_paths]: [Epochs; 2],
    ) -> anyhow::Result<Self> {
        let store = |primitive| topology.store_of_primitive(primitive);
        let share = topology.share_among(all.members().len());
        let of = (all, share);
        let values =
            key_write::query_values(of, store(Primitive::KeyWrite), flows, &epochs_of_values).await?;
        let paths =
            postcarding::query_paths(of, store(Primitive::Postcarding), flows, &epochs_of_paths).await?;
        Ok(Self { share, epochs_of_values, epochs_of_paths, values, paths })
    }

    /// Asks the same once more.
    pub async fn ask_again(
        &self,
        all: &Spread,
        topology: &Topology,
        flows: &[SeenFlow],
    ) -> anyhow::Result<Self> {
        Self::query_stores(all, topology, flows, self.queried_epochs().map(Clone::clone)).await
    }

    /// The epochs that were asked, of values and of paths.
    pub fn queried_epochs(&self) -> [&Epochs; 2] {
        [&self.epochs_of_values, &self.epochs_of_paths]
    }

    /// By flow, whether any epoch has a value of it.
    pub fn has_value(&self) -> impl Iterator<Item = bool> {
        self.values.iter().map(|of| of.iter().any(Option::is_some))
    }

    /// Values and paths that were found.
    pub fn found_count(&self) -> u64 {
        let values = self.values.iter().flatten().flatten().count();
        (values + self.paths.iter().flatten().flatten().count()) as u64
    }

    /// Says in words if answers have changed since the epochs `were` something, such as written. `later` may have more epochs.
    pub fn changed_in(&self, later: &StoreAnswers, were: &str) -> Option<String> {
        fn count_changed<A: PartialEq>(before: &[Vec<A>], after: &[Vec<A>]) -> usize {
            let both = before.iter().zip(after).flat_map(|(before, after)| before.iter().zip(after));
            both.filter(|(before, after)| before != after).count()
        }
        let values = count_changed(&self.values, &later.values);
        let paths = count_changed(&self.paths, &later.paths);
        (values + paths > 0)
            .then(|| format!("{values} values and {paths} paths have different answers since epochs {were}"))
    }
}

fn flow_keys(flows: &[SeenFlow]) -> Vec<Key> {
    flows.iter().map(|flow| flow.key).collect()
}

/// How the answers of one primitive compare with the truth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub queried: u64,
    pub right: u64,
    /// No answer, for a known reason.
    pub absent: u64,
    /// Key-write: an older value, because the newer one was counted as lost, dropped or moved.
    pub stale: u64,
    /// Postcarding: some hops are missing.
    pub partial: u64,
    /// Counters and sketches: more than the truth, because keys share counters.
    pub over: u64,
    /// Counters and sketches: less than the truth by what was counted as lost.
    pub incomplete: u64,
    /// Never excused.
    pub wrong: u64,
    /// The first few wrong answers, in words.
    pub examples: Vec<String>,
}

/// Wrong answers described in words.
const EXAMPLES: usize = 5;

impl Tally {
    fn merged_with(mut self, other: &Self) -> Self {
        self.queried += other.queried;
        self.right += other.right;
        self.absent += other.absent;
        self.stale += other.stale;
        self.partial += other.partial;
        self.over += other.over;
        self.incomplete += other.incomplete;
        self.wrong += other.wrong;
        let room = EXAMPLES - self.examples.len();
        self.examples.extend(other.examples.iter().take(room).cloned());
        self
    }

    pub fn count_wrong(&mut self, why: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(why());
        }
    }
}

/// Where the reports of one primitive ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportEnds {
    /// In memory, and part of an answer.
    pub queryable: u64,
    /// Replaced by a newer report with the same key.
    pub superseded: u64,
    /// Replaced by other keys, a turn of the ring or a later epoch.
    pub overwritten: u64,
    /// Lost or dropped, by name.
    pub lost: BTreeMap<String, u64>,
    /// Should be in memory by every record, but is not.
    pub missing: u64,
}

/// The name of reports lost on the reporters' link.
pub const LOST_TO_TRANSLATOR: &str = between::REPORTER_TRANSLATOR.name;
/// The name of reports whose frames were lost between translator and NIC.
pub const LOST_TO_NIC: &str = between::TRANSLATOR_NIC.name;
/// The name of reports whose frames all reached the NIC damaged, and were dropped there.
pub const DAMAGED_AT_NIC: &str = "dropped.nic.icrc";

impl ReportEnds {
    fn count_loss(&mut self, name: &str) {
        match self.lost.get_mut(name) {
            Some(count) => *count += 1,
            None => {
                self.lost.insert(name.to_owned(), 1);
            }
        }
    }

    /// A missing report: explained by a drop that is known only by count, if one is left.
    fn not_found(&mut self, pools: &mut Pools) -> bool {
        let name = pools.take();
        self.lost_or_missing(name)
    }

    /// Like [`ReportEnds::not_found`], but the loss of this many frames, which carried nothing else, explains it, too.
    fn not_found_in(&mut self, frames: u64, pools: &mut Pools) -> bool {
        let name = pools.take().or_else(|| pools.take_frames(frames));
        self.lost_or_missing(name)
    }

    fn lost_or_missing(&mut self, name: Option<String>) -> bool {
        match name {
            Some(name) => {
                self.count_loss(&name);
                true
            }
            None => {
                self.missing += 1;
                false
            }
        }
    }

    pub fn total_reports(&self) -> u64 {
        self.queryable + self.superseded + self.overwritten + self.lost.values().sum::<u64>() + self.missing
    }

    pub fn add(&mut self, other: &Self) {
        self.queryable += other.queryable;
        self.superseded += other.superseded;
        self.overwritten += other.overwritten;
        self.missing += other.missing;
        for (name, count) in &other.lost {
            *self.lost.entry(name.clone()).or_default() += count;
        }
    }
}

/// The most bytes of memory that one call returns.
const MEMORY_CHUNK: u64 = MAX_READ as u64;

/// Bytes of a store's memory at one collector.
async fn read_store_memory(
    collector: &dyn Ask,
    store: &StoreSpec,
    first: u64,
    length: u64,
) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::with_capacity(length as usize);
    while (bytes.len() as u64) < length {
        let at = bytes.len() as u64;
        let chunk = MEMORY_CHUNK.min(length - at);
        let (store, offset, length) = (store.name.clone(), first + at, chunk as u32);
        bytes.extend(collector.read_memory(ReadMemoryRequest { store, offset, length }).await?.data);
    }
    Ok(bytes)
}
