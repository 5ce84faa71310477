//! Where switches, hosts and collectors are: on this machine, or on others.

use dta_client::Spread;
use dta_proto::control::NodeStatistics;
use dta_translator::switches::p4::counters::Counts;

use super::machines::OnMachines;
use super::one_machine::OneMachine;
use super::reporter::Filter;
use super::truth::Traffic;
use crate::statistics::Statistics;

/// Everything that runs.
pub(super) enum Place {
    /// Here, in a network namespace.
    OneMachine(Box<OneMachine>),
    /// On other machines.
    OnMachines(Box<OnMachines>),
}

/// A collector with its NIC: the NIC's address, and what both count.
pub(super) type OfCollector = (String, Vec<NodeStatistics>);

/// Does the same wherever they are.
macro_rules! with {
    ($place:expr, $of:ident => $does:expr) => {
        match $place {
            Place::OneMachine($of) => $does,
            Place::OnMachines($of) => $does,
        }
    };
}

impl Place {
    /// All collectors, queried as one.
    pub(super) fn ask(&self) -> &Spread {
        with!(self, of => &of.all)
    }

    /// How many collectors there are.
    pub(super) fn collectors(&self) -> usize {
        match self {
            Place::OneMachine(here) => here.links.len(),
            Place::OnMachines(_) => 1,
        }
    }

    /// The NIC, and the transport of writes.
    pub(super) fn names(&self) -> (&str, &'static str) {
        with!(self, of => of.names())
    }

    /// Whether the NIC reports what it executed: an RDMA device does not.
    pub(super) fn tells_executed(&self) -> bool {
        self.names().0 == "soft"
    }

    /// Lets the reporter do what its configuration says.
    pub(super) async fn program(&mut self, traffic: &Traffic, filter: Filter) -> anyhow::Result<()> {
        with!(self, of => of.program(traffic, filter).await)
    }

    /// Sends frames, each from its host.
    pub(super) async fn send(&mut self, frames: &[(u8, Vec<u8>)]) -> anyhow::Result<()> {
        with!(self, of => of.send(frames).await)
    }

    /// Packets and bytes that came in at both hosts.
    pub(super) async fn at_hosts(&self) -> anyhow::Result<[(u64, u64); 2]> {
        with!(self, of => of.at_hosts().await)
    }

    /// Arrivals so far: packets at the hosts, reports at the translator, frames at the collectors.
    pub(super) async fn came(&mut self) -> anyhow::Result<[u64; 3]> {
        with!(self, of => of.came().await)
    }

    /// Waits until nothing is in flight between translator and NIC, if these are on other machines.
    pub(super) async fn rest(&mut self) -> anyhow::Result<()> {
        match self {
            Place::OneMachine(_) => Ok(()),
            Place::OnMachines(there) => there.rest().await,
        }
    }

    /// How many came back: packets of the translator to the reporter, to which hosts sent `sent`; and answers of NICs
    /// to the translator.
    pub(super) async fn came_back(&mut self, sent: u64) -> anyhow::Result<[u64; 2]> {
        with!(self, of => of.came_back(sent).await)
    }

    /// Counters of the reporter's program.
    pub(super) async fn reporter(&mut self) -> anyhow::Result<Counts> {
        with!(self, of => of.reporter().await)
    }

    /// What the reporter counts, under the names that all nodes have.
    pub(super) async fn reporter_node(&mut self) -> anyhow::Result<NodeStatistics> {
        with!(self, of => of.reporter_node().await)
    }

    /// What the translator counts.
    pub(super) async fn translator(&mut self) -> anyhow::Result<Statistics> {
        with!(self, of => of.translator().await)
    }

    /// What collectors and NICs count.
    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        with!(self, of => of.of_collectors().await)
    }

    /// Makes the translator send what it holds.
    pub(super) async fn flush(&mut self) -> anyhow::Result<()> {
        with!(self, of => of.flush().await)
    }
}
