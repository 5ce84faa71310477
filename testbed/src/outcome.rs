//! The result of a run, as in JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::accounting::LinkAccount;
use super::check::{CollectorEpoch, EpochTallies, Epochs, Tally};
use super::statistics::TestbedStatistics;

#[derive(Clone, Debug, Serialize)]
pub struct TestbedOutcome {
    pub sent: u64,
    /// Reports in memory and part of an answer.
    pub queryable: u64,
    /// Reports replaced by a newer one with the same key.
    pub superseded: u64,
    /// Reports replaced by other keys, a turn of a ring or a later epoch.
    pub overwritten: u64,
    /// Reports still in the translator.
    pub held: u64,
    /// Frames without a counter, and reports without a record, not counting those in such frames twice.
    pub unexplained: u64,
    /// Reports lost or dropped, by `dropped.<hop>.<reason>` or `lost.<link>`.
    pub losses: BTreeMap<String, u64>,
    /// One entry per primitive, in the order of the blueprint's table.
    pub primitives: Vec<PrimitiveOutcome>,
    /// One entry per epoch of stores with epochs, by store and collector, the oldest first; `None` = without epochs.
    pub epochs: Option<Vec<EpochOutcome>>,
    /// Frames of each link in each direction.
    pub links: Vec<LinkOutcome>,
    /// What does not add up within a node, and what did not come back as it should, in words; empty when all is well.
    pub contradictions: Vec<String>,
    pub run: RunFacts,
    /// Counters of all nodes, by node and name.
    pub nodes: TestbedStatistics,
}

#[derive(Clone, Debug, Serialize)]
pub struct PrimitiveOutcome {
    /// `key-write`, `postcarding`, `append`, `key-increment` or `sketch-merge`.
    pub name: &'static str,
    pub sent: u64,
    /// RDMA operations that the translator made of them, copies included.
    pub operations: u64,
    /// Answers, compared with the truth.
    #[serde(flatten)]
    pub answers: Tally,
}

/// One epoch of a store at a collector.
#[derive(Clone, Debug, Serialize)]
pub struct EpochOutcome {
    pub store: String,
    /// The collector, from 0.
    pub collector: usize,
    /// What the collector says of it.
    #[serde(flatten)]
    pub epoch: CollectorEpoch,
    /// Its answers, compared with what was reported in it.
    #[serde(flatten)]
    pub answers: Tally,
}

impl EpochOutcome {
    /// Those of a store; none if it has no epochs.
    pub fn from_tallies(store: &str, epochs: &Epochs, tallies: &EpochTallies) -> Vec<Self> {
        let by_collector = epochs.by_collector().iter().zip(tallies.by_collector()).enumerate();
        let all =
            by_collector.filter(|_| epochs.has_real_epochs()).flat_map(|(collector, (epochs, tallies))| {
                epochs.iter().zip(tallies).map(move |(epoch, tally)| Self {
                    store: store.to_owned(),
                    collector,
                    epoch: epoch.clone(),
                    answers: tally.clone(),
                })
            });
        all.collect()
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct LinkOutcome {
    /// Counters of both ends, the faults and the kernel.
    #[serde(flatten)]
    pub account: LinkAccount,
    pub unexplained: i64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RunFacts {
    pub topology: String,
    pub capture: Option<String>,
    /// Where the capture ended early.
    pub cut: Option<String>,
    /// Packets without a flow, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Seed of traffic and faults.
    pub seed: u64,
    /// The NIC: `soft` or `rxe`.
    pub nic: String,
    pub transport: String,
    /// Faults on every link, as given.
    pub faults: String,
    /// Those that act on reports and NACKs: damage there needs CAP_NET_RAW.
    pub report_faults: String,
    /// Packets that crossed the network.
    pub packets: u64,
    pub flows: u64,
    /// Seconds from the first report to the last one executed.
    pub seconds: f64,
    pub reports_per_second: f64,
    /// Reports sent again after a NACK.
    pub retransmitted: u64,
    /// Over how many epochs the traffic was spread.
    pub epochs: Option<u32>,
    /// How the daemons were disturbed, and what it cost.
    pub chaos: Option<ChaosOutcome>,
}

/// A daemon was killed, or the device removed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChaosOutcome {
    /// What was done, in words.
    pub done: String,
    /// Keys that had an answer just before.
    pub answers_before: u64,
    /// Those that had an answer as soon as it was back.
    pub answers_after: u64,
    /// Seconds until it was back.
    pub seconds_down: f64,
    /// Whether the translator's session went on, with working queue pairs.
    pub session_resumed: bool,
    /// Frames lost in the gap: on the way to the NIC, or for a translator on the way to it.
    pub frames_lost: u64,
    /// For a killed translator, without faults: sequences that it knows to be missing when its reporters go on.
    pub missing_sequences: Option<u64>,
}

impl TestbedOutcome {
    /// Whether nothing is wrong, nothing unexplained, and everything adds up.
    pub fn is_success(&self) -> bool {
        self.unexplained == 0 && self.wrong_answers() == 0 && self.contradictions.is_empty()
    }

    pub fn wrong_answers(&self) -> u64 {
        self.primitives.iter().map(|p| p.answers.wrong).sum()
    }
}

impl ChaosOutcome {
    /// What did not come back as it should.
    pub fn failure_messages(&self) -> Vec<String> {
        let mut failures = Vec::new();
        if !self.session_resumed {
            failures.push(format!("the {}, but the session did not continue", self.done));
        }
        if let Some(missing) = self.missing_sequences
            && missing != self.frames_lost
        {
            failures.push(format!(
                "the {}, which cost {} reports, but by the reporters' sequences {missing} are missing",
                self.done, self.frames_lost
            ));
        }
        if self.answers_after != self.answers_before {
            failures.push(format!(
                "the {}, and of {} earlier answers {} remain",
                self.done, self.answers_before, self.answers_after
            ));
        }
        failures
    }
}
