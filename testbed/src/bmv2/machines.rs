//! Everything on other machines, by ssh.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dta_proto::control::NodeStatistics;
use dta_proto::counter::{CounterStep, Stage, translator as counter};
use dta_rpc::Spread;
use dta_switch::counters::SwitchCounts;
use serde::de::DeserializeOwned;

use super::files::with_stores;
use super::one_machine::two_host_counts;
use super::reporter::{self, Filter, Wiring};
use super::truth::{CapturedTraffic, Frame};
use crate::daemons::{Daemons, Plan};
use crate::far::config::MachineRole;
use crate::far::machine::RemoteMachine;
use crate::far::protocol::{OfSwitch, Request};
use crate::far::start::{TestbedMachines, start_bmv2, write_remote_file};
use crate::statistics::{NodeCounters, OfCollector, TestbedStatistics};
use crate::topology::Topology;

/// The reporter's configuration on its machine.
const CONFIG: &str = "reporter.toml";
/// How long the last frames and answers may be in flight.
const REST: Duration = Duration::from_secs(5);

/// What to run on other machines.
#[derive(Clone, Debug)]
pub struct OptionsOnMachines {
    pub topology: Topology,
    pub capture: PathBuf,
    /// Where logs of the machines go; `None` = removed with the testbed.
    pub logs: Option<PathBuf>,
}

pub(super) struct OnMachines {
    daemons: Daemons,
    pub(super) all: Spread,
    /// The NIC, and the transport of writes.
    nic: String,
    transport: &'static str,
    reporters: Vec<RemoteReporter>,
}

/// A reporter, and the machine with its hosts.
struct RemoteReporter {
    machine: Arc<RemoteMachine>,
    traffic: Arc<RemoteMachine>,
    wiring: Wiring,
}

impl RemoteReporter {
    /// Opens the interfaces of its hosts, and starts it, if it is a bmv2.
    async fn start_with_hosts(
        far: &TestbedMachines,
        number: usize,
        machine: Arc<RemoteMachine>,
    ) -> anyhow::Result<RemoteReporter> {
        let settings = &machine.settings;
        let traffic = far.machines_with_role(MachineRole::Traffic).into_iter().find(|traffic| {
            traffic.settings.reporter.as_ref().is_none_or(|reporter| *reporter == settings.name)
        });
        let traffic = traffic.with_context(|| format!("no machine has the hosts of {}", settings.name))?;
        let interfaces = traffic.settings.interfaces.clone();
        traffic.call::<()>(&Request::Traffic { interfaces }).await?;
        let switch = settings.switch.clone().context("the reporter has no table `switch`")?;
        if !settings.simple_switch.is_empty() {
            start_bmv2(&machine, &switch).await?;
        }
        let way = settings.translator.as_ref().context("the reporter has no `translator`")?;
        let wiring = Wiring {
            number,
            switch,
            source: settings.address,
            hosts: settings.host_ports.clone().try_into().ok().context("`host_ports` are two ports")?,
            port: way.port,
            translator: far.machine_with_role(MachineRole::Translator)?.settings.address,
            translator_mac: way.mac.to_string(),
        };
        Ok(RemoteReporter { machine, traffic, wiring })
    }

    async fn call_switch<T: DeserializeOwned>(&self, what: OfSwitch) -> anyhow::Result<T> {
        let request = Request::Switch { config: CONFIG.into(), name: self.wiring.config_name(), what };
        self.machine.call(&request).await
    }

    async fn program_reporter(&self, traffic: &CapturedTraffic, filter: Filter) -> anyhow::Result<()> {
        write_remote_file(&self.machine, CONFIG, reporter::reporter_table(&self.wiring, traffic, filter))
            .await?;
        self.call_switch::<()>(OfSwitch::Setup).await?;
        if matches!(filter, Filter::None) {
            let before: u64 = self.read_counters().await?.counts_named("received").iter().sum();
            ensure!(
                before == 0,
                "{}: the reporter's switch counted {before} packets before this run: restart it, and make sure that nothing \
                 else sends to its ports",
                self.machine.settings.name
            );
        }
        Ok(())
    }

    async fn read_counters(&self) -> anyhow::Result<SwitchCounts> {
        Ok(SwitchCounts(self.call_switch(OfSwitch::Counters).await?))
    }

    /// Packets and bytes that came in at its hosts.
    async fn host_arrivals(&self) -> anyhow::Result<[(u64, u64); 2]> {
        two_host_counts(self.traffic.call(&Request::Received).await?)
    }
}

impl OnMachines {
    /// Starts all of it, and programs the translator.
    pub(super) async fn start_testbed(
        topology: &Topology,
        far: &TestbedMachines,
        folder: &Path,
    ) -> anyhow::Result<OnMachines> {
        let mut reporters = Vec::new();
        for (number, machine) in far.machines_with_role(MachineRole::Reporter).into_iter().enumerate() {
            reporters.push(RemoteReporter::start_with_hosts(far, number, machine).await?);
        }
        let topology = with_stores(topology)?;
        let mut plan = Plan::with_soft_nic(&topology, folder);
        plan.far = Some(far);
        // The truth counts the frames that a switch makes.
        plan.reference = true;
        plan.transport = topology.collector.transport;
        let mut daemons = Daemons::start_all(&plan).await?;
        let before =
            daemons.translator_statistics().await?.stage_total(Stage::Translator).get(&counter::RECEIVED);
        ensure!(
            before == 0,
            "the translator's switch counted {before} reports before this run: restart it, or have it started by \
             `simple_switch`"
        );
        Ok(OnMachines {
            all: daemons.all.clone(),
            daemons,
            nic: topology.collector.device.clone(),
            transport: topology.collector.transport.canonical_name(),
            reporters,
        })
    }

    pub(super) fn nic_and_transport(&self) -> (&str, &'static str) {
        (&self.nic, self.transport)
    }

    pub(super) async fn program_reporters(
        &mut self,
        traffic: &CapturedTraffic,
        filter: Filter,
    ) -> anyhow::Result<()> {
        for reporter in &self.reporters {
            reporter.program_reporter(traffic, filter).await?;
        }
        Ok(())
    }

    pub(super) async fn send(&mut self, frames: &[Frame]) -> anyhow::Result<()> {
        for (number, reporter) in self.reporters.iter().enumerate() {
            let mine = frames.iter().filter(|frame| frame.reporter == number);
            let frames: Vec<_> = mine.map(|frame| (frame.host, frame.bytes.clone())).collect();
            if !frames.is_empty() {
                reporter.traffic.call::<()>(&Request::Frames { frames }).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn host_arrivals(&self) -> anyhow::Result<Vec<[(u64, u64); 2]>> {
        let mut all = Vec::new();
        for reporter in &self.reporters {
            all.push(reporter.host_arrivals().await?);
        }
        Ok(all)
    }

    async fn nic_counters(&mut self) -> anyhow::Result<TestbedStatistics> {
        let mut all = TestbedStatistics::default();
        all.add_collectors(self.daemons.of_collectors().await?);
        Ok(all)
    }

    /// From the counters of translator and NICs, because nobody looks at the wires there.
    pub(super) async fn arrival_counts(&mut self) -> anyhow::Result<[u64; 3]> {
        let nics = self.nic_counters().await?;
        let frames = first_frames(&nics.stage_total(Stage::Nic), self.nic == "soft");
        let hosts = self.host_arrivals().await?;
        let translator = self.translator().await?;
        let packets = hosts.iter().flatten().map(|(packets, _)| packets).sum();
        Ok([packets, translator.stage_total(Stage::Translator).get(&counter::RECEIVED), frames])
    }

    pub(super) async fn wait_until_idle(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + REST;
        while Instant::now() < until {
            let (nic, translator) = (self.nic_counters().await?, self.translator().await?);
            let (nic, translator) = (nic.stage_total(Stage::Nic), translator.stage_total(Stage::Translator));
            let frames = translator.get(&counter::FRAMES);
            if frames == nic.get_by_name("received")
                && count_nic_answers(&translator) >= nic.sum(CounterStep::Answered)
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Whatever is still in flight then is reported as not adding up.
        Ok(())
    }

    pub(super) async fn came_back(&mut self, sent: u64) -> anyhow::Result<[u64; 2]> {
        // Whatever no host sent to the reporter came from the translator.
        let reporters = self.reporters().await?;
        let received: u64 = reporters.iter().flat_map(|counts| counts.counts_named("received")).sum();
        let translator = self.translator().await?;
        Ok([received.saturating_sub(sent), count_nic_answers(&translator.stage_total(Stage::Translator))])
    }

    pub(super) async fn reporters(&mut self) -> anyhow::Result<Vec<SwitchCounts>> {
        let mut all = Vec::new();
        for reporter in &self.reporters {
            all.push(reporter.read_counters().await?);
        }
        Ok(all)
    }

    pub(super) async fn reporter_nodes(&mut self) -> anyhow::Result<Vec<NodeStatistics>> {
        let mut all = Vec::new();
        for reporter in &self.reporters {
            all.extend(reporter.call_switch::<Vec<NodeStatistics>>(OfSwitch::Statistics).await?);
        }
        Ok(all)
    }

    pub(super) async fn translator(&mut self) -> anyhow::Result<TestbedStatistics> {
        self.daemons.translator_statistics().await
    }

    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        self.daemons.of_collectors().await
    }

    pub(super) async fn flush_translator(&mut self) -> anyhow::Result<()> {
        self.daemons.flush_translator().await?;
        Ok(())
    }
}

/// Frames that reached a NIC, without those that a translator sent again.
fn first_frames(nic: &NodeCounters<'_>, reports_executed: bool) -> u64 {
    match reports_executed {
        true => nic.get_by_name("executed.write") + nic.get_by_name("executed.fetch_add"),
        false => nic.get_by_name("received"),
    }
}

fn count_nic_answers(translator: &NodeCounters<'_>) -> u64 {
    translator.get_with_parts(&counter::LINK_RECEIVED, &[counter::ROCE])
}
