//! Where switches, hosts and collectors are: on this machine, or on others.

use dta_rpc::Spread;
use dta_proto::control::NodeStatistics;
use dta_translator::switches::p4::counters::Counts;

use super::machines::OnMachines;
use super::one_machine::OneMachine;
use super::reporter::Filter;
use super::truth::{Frame, Traffic};
use crate::share::Share;
use crate::statistics::{OfCollector, Statistics};

/// Everything that runs.
pub(super) enum Place {
    /// Here, in a network namespace.
    OneMachine(Box<OneMachine>),
    /// On other machines.
    OnMachines(Box<OnMachines>),
}

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

    /// What each collector has.
    pub(super) fn share(&self) -> Share {
        Share::among(self.ask().members().len())
    }

    /// The NIC, and the transport of writes.
    pub(super) fn names(&self) -> (&str, &'static str) {
        with!(self, of => of.names())
    }

    /// Whether the NIC reports what it executed: an RDMA device does not.
    pub(super) fn tells_executed(&self) -> bool {
        self.names().0 == "soft"
    }

    /// Lets the reporters do what their configurations say.
    pub(super) async fn program(&mut self, traffic: &Traffic, filter: Filter) -> anyhow::Result<()> {
        with!(self, of => of.program(traffic, filter).await)
    }

    /// Sends frames, each from its host.
    pub(super) async fn send(&mut self, frames: &[Frame]) -> anyhow::Result<()> {
        with!(self, of => of.send(frames).await)
    }

    /// Packets and bytes that came in at both hosts of each reporter.
    pub(super) async fn at_hosts(&self) -> anyhow::Result<Vec<[(u64, u64); 2]>> {
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

    /// How many came back: packets of the translator to the reporters, to which hosts sent `sent`; and answers of NICs
    /// to the translator.
    pub(super) async fn came_back(&mut self, sent: u64) -> anyhow::Result<[u64; 2]> {
        with!(self, of => of.came_back(sent).await)
    }

    /// Counters of each reporter's program.
    pub(super) async fn reporters(&mut self) -> anyhow::Result<Vec<Counts>> {
        with!(self, of => of.reporters().await)
    }

    /// What the reporters count, under the names that all nodes have.
    pub(super) async fn reporter_nodes(&mut self) -> anyhow::Result<Vec<NodeStatistics>> {
        with!(self, of => of.reporter_nodes().await)
    }

    /// What the translator counts.
    pub(super) async fn translator(&mut self) -> anyhow::Result<Statistics> {
        with!(self, of => of.translator().await)
    }

    /// What collectors and NICs count.
    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        with!(self, of => of.of_collectors().await)
    }

    /// Writes of no bytes by which the translator has probed its queue pairs.
    pub(super) async fn probes(&mut self) -> anyhow::Result<u64> {
        match self {
            Place::OneMachine(here) => here.probes().await,
            // Nothing watches the switch there.
            Place::OnMachines(_) => Ok(0),
        }
    }

    /// Whether stores have epochs.
    pub(super) fn has_epochs(&self) -> bool {
        matches!(self, Place::OneMachine(here) if here.has_epochs())
    }

    /// Everything, if it is on this machine.
    pub(super) fn here(&mut self) -> Option<&mut OneMachine> {
        match self {
            Place::OneMachine(here) => Some(here),
            Place::OnMachines(_) => None,
        }
    }

    /// Makes the translator send what it holds.
    pub(super) async fn flush(&mut self) -> anyhow::Result<()> {
        with!(self, of => of.flush().await)
    }
}
