//! Asking the collectors about everything that a store holds, and comparing it with the truth.

use dta_client::{ClientError, Spread};
use dta_proto::counter::{Stage, translator};
use dta_proto::store::StoreSpec;

use super::check::{self, Ends, Pools, Tally};
use super::collect;
use super::journal::Journal;
use super::share::Share;
use super::statistics::Statistics;
use super::workload::{EpochTruth, SeenFlow};
use crate::topology::Primitive;

/// What is asked about, and what is known of it.
pub struct Asked<'a> {
    /// All flows.
    pub flows: &'a [SeenFlow],
    /// All sketch epochs that have ended.
    pub epochs: &'a [EpochTruth],
    /// All reports.
    pub journal: &'a Journal,
    /// What every node counted.
    pub statistics: &'a Statistics,
}

impl Asked<'_> {
    /// Asks for everything in a store and says of each report of its primitive where it ended.
    pub async fn of(
        &self,
        all: &Spread,
        store: &StoreSpec,
        pools: &mut Pools,
    ) -> Result<(Tally, Ends), ClientError> {
        let (kind, flows, journal) = (&store.kind, self.flows, self.journal);
        let shared = (kind, Share::among(all.members().len()));
        Ok(match kind.primitive() {
            Primitive::KeyWrite => {
                let answers = collect::key_write(all, store, flows).await?;
                check::key_write(shared, flows, journal, &answers, pools)
            }
            Primitive::Postcarding => {
                let answers = collect::paths(all, store, flows).await?;
                let evicted = self.statistics.node(Stage::Translator).get(&translator::PARTIAL_ROWS);
                check::postcarding(shared, flows, journal, &answers, evicted, pools)
            }
            Primitive::Append => {
                let answers = collect::lists(all, store).await?;
                check::append(kind, flows, journal, &answers, pools)
            }
            Primitive::KeyIncrement => {
                let answers = collect::counters(all, store, flows).await?;
                check::key_increment(shared, flows, journal, &answers, pools)
            }
            Primitive::SketchMerge => {
                let answers = collect::sketches(all, store, flows, self.epochs).await?;
                check::sketch_merge(kind, flows, self.epochs, journal, &answers, pools)
            }
        })
    }
}
