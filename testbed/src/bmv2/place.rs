//! Where switches, hosts and collectors are: on this machine, or on others.

use dta_proto::control::NodeStatistics;
use dta_rpc::Spread;
use dta_switch::counters::SwitchCounts;

use super::machines::OnMachines;
use super::one_machine::OneMachine;
use super::reporter::Filter;
use super::truth::{CapturedTraffic, Frame};
use crate::share::Share;
use crate::statistics::{OfCollector, TestbedStatistics};

pub(super) enum SwitchTestbed {
    /// Here, in a network namespace.
    OneMachine(Box<OneMachine>),
    OnMachines(Box<OnMachines>),
}

/// Does the same wherever they are.
macro_rules! with {
    ($place:expr, $of:ident => $does:expr) => {
        match $place {
            SwitchTestbed::OneMachine($of) => $does,
            SwitchTestbed::OnMachines($of) => $does,
        }
    };
}

impl SwitchTestbed {
    pub(super) fn all_collectors(&self) -> &Spread {
        with!(self, of => &of.all)
    }

    pub(super) fn collector_share(&self) -> Share {
        Share::with_collectors(self.all_collectors().members().len())
    }

    pub(super) fn nic_and_transport(&self) -> (&str, &'static str) {
        with!(self, of => of.nic_and_transport())
    }

    /// Whether the NIC reports what it executed: an RDMA device does not.
    pub(super) fn reports_executed(&self) -> bool {
        self.nic_and_transport().0 == "soft"
    }

    /// Lets the reporters do what their configurations say.
    pub(super) async fn program_reporters(
        &mut self,
        traffic: &CapturedTraffic,
        filter: Filter,
    ) -> anyhow::Result<()> {
        with!(self, of => of.program_reporters(traffic, filter).await)
    }

    /// Sends frames, each from its host.
    pub(super) async fn send(&mut self, frames: &[Frame]) -> anyhow::Result<()> {
        with!(self, of => of.send(frames).await)
    }

    /// Packets and bytes that came in at both hosts of each reporter.
    pub(super) async fn host_arrivals(&self) -> anyhow::Result<Vec<[(u64, u64); 2]>> {
        with!(self, of => of.host_arrivals().await)
    }

    /// Arrivals so far: packets at the hosts, reports at the translator, frames at the collectors.
    pub(super) async fn arrival_counts(&mut self) -> anyhow::Result<[u64; 3]> {
        with!(self, of => of.arrival_counts().await)
    }

    /// Waits until nothing is in flight between translator and NIC, if these are on other machines.
    pub(super) async fn wait_until_idle(&mut self) -> anyhow::Result<()> {
        match self {
            SwitchTestbed::OneMachine(_) => Ok(()),
            SwitchTestbed::OnMachines(there) => there.wait_until_idle().await,
        }
    }

    /// How many came back: packets of the translator to the reporters, to which hosts sent `sent`; and answers of NICs
    /// to the translator.
    pub(super) async fn came_back(&mut self, sent: u64) -> anyhow::Result<[u64; 2]> {
        with!(self, of => of.came_back(sent).await)
    }

    /// Counters of each reporter's program.
    pub(super) async fn reporters(&mut self) -> anyhow::Result<Vec<SwitchCounts>> {
        with!(self, of => of.reporters().await)
    }

    /// What the reporters count, under the names that all nodes have.
    pub(super) async fn reporter_nodes(&mut self) -> anyhow::Result<Vec<NodeStatistics>> {
        with!(self, of => of.reporter_nodes().await)
    }

    pub(super) async fn translator(&mut self) -> anyhow::Result<TestbedStatistics> {
        with!(self, of => of.translator().await)
    }

    /// What collectors and NICs count.
    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        with!(self, of => of.of_collectors().await)
    }

    /// Zero-length writes by which the translator has probed its queue pairs.
    pub(super) async fn probe_count(&mut self) -> anyhow::Result<u64> {
        match self {
            SwitchTestbed::OneMachine(here) => here.probe_count().await,
            // Nothing watches the switch there.
            SwitchTestbed::OnMachines(_) => Ok(0),
        }
    }

    pub(super) fn has_epochs(&self) -> bool {
        matches!(self, SwitchTestbed::OneMachine(here) if here.has_epochs())
    }

    /// Everything, if it is on this machine.
    pub(super) fn local_machine(&mut self) -> Option<&mut OneMachine> {
        match self {
            SwitchTestbed::OneMachine(here) => Some(here),
            SwitchTestbed::OnMachines(_) => None,
        }
    }

    pub(super) async fn flush_translator(&mut self) -> anyhow::Result<()> {
        with!(self, of => of.flush_translator().await)
    }
}
