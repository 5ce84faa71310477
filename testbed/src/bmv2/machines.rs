//! Everything on other machines, by ssh.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dta_rpc::Spread;
use dta_proto::control::NodeStatistics;
use dta_proto::counter::{Stage, Step, translator as counter};
use dta_translator::switches::p4::counters::Counts;
use serde::de::DeserializeOwned;

use super::files::with_stores;
use super::one_machine::both;
use super::reporter::{self, Filter, Wiring};
use super::truth::{Frame, Traffic};
use crate::daemons::{Daemons, Plan};
use crate::far::config::Role;
use crate::far::machine::RemoteMachine;
use crate::far::protocol::{OfSwitch, Request};
use crate::far::start::{Far, start_bmv2, write};
use crate::statistics::{Node, OfCollector, Statistics};
use crate::topology::Topology;

/// The reporter's configuration on its machine.
const CONFIG: &str = "reporter.toml";
/// How long the last frames and answers may be in flight.
const REST: Duration = Duration::from_secs(5);

/// What to run on other machines.
#[derive(Clone, Debug)]
pub struct OptionsOnMachines {
    /// The machines.
    pub topology: Topology,
    /// The capture.
    pub capture: PathBuf,
    /// Where logs of the machines go; `None` = removed with the testbed.
    pub logs: Option<PathBuf>,
}

/// Everything that runs.
pub(super) struct OnMachines {
    daemons: Daemons,
    pub(super) all: Spread,
    /// The NIC, and the transport of writes.
    nic: String,
    transport: &'static str,
    reporters: Vec<Reporter>,
}

/// A reporter, and the machine with its hosts.
struct Reporter {
    machine: Arc<RemoteMachine>,
    traffic: Arc<RemoteMachine>,
    wiring: Wiring,
}

impl Reporter {
    /// Opens the interfaces of its hosts, and starts it, if it is a bmv2.
    async fn start(far: &Far, number: usize, machine: Arc<RemoteMachine>) -> anyhow::Result<Reporter> {
        let settings = &machine.settings;
        let traffic = far.all_with(Role::Traffic).into_iter().find(|traffic| {
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
            translator: far.with(Role::Translator)?.settings.address,
            translator_mac: way.mac.to_string(),
        };
        Ok(Reporter { machine, traffic, wiring })
    }

    async fn switch<T: DeserializeOwned>(&self, what: OfSwitch) -> anyhow::Result<T> {
        let request = Request::Switch { config: CONFIG.into(), name: self.wiring.name(), what };
        self.machine.call(&request).await
    }

    async fn program(&self, traffic: &Traffic, filter: Filter) -> anyhow::Result<()> {
        write(&self.machine, CONFIG, reporter::file(&self.wiring, traffic, filter)).await?;
        self.switch::<()>(OfSwitch::Setup).await?;
        if matches!(filter, Filter::None) {
            let before: u64 = self.counts().await?.of("received").iter().sum();
            ensure!(
                before == 0,
                "{}: the reporter's switch counted {before} packets before this run: start it anew, and see that nothing \
                 else sends at its ports",
                self.machine.settings.name
            );
        }
        Ok(())
    }

    async fn counts(&self) -> anyhow::Result<Counts> {
        Ok(Counts(self.switch(OfSwitch::Counters).await?))
    }

    /// Packets and bytes that came in at its hosts.
    async fn at_hosts(&self) -> anyhow::Result<[(u64, u64); 2]> {
        both(self.traffic.call(&Request::Received).await?)
    }
}

impl OnMachines {
    /// Starts all of it, and programs the translator.
    pub(super) async fn start(topology: &Topology, far: &Far, folder: &Path) -> anyhow::Result<OnMachines> {
        let mut reporters = Vec::new();
        for (number, machine) in far.all_with(Role::Reporter).into_iter().enumerate() {
            reporters.push(Reporter::start(far, number, machine).await?);
        }
        let topology = with_stores(topology)?;
        let mut plan = Plan::plain(&topology, folder);
        plan.far = Some(far);
        // The truth counts the frames that a switch makes.
        plan.reference = true;
        plan.transport = topology.collector.transport;
        let mut daemons = Daemons::start(&plan).await?;
        let before = daemons.translator_statistics().await?.node(Stage::Translator).get(&counter::RECEIVED);
        ensure!(
            before == 0,
            "the translator's switch counted {before} reports before this run: start it anew, or have it started by \
             `simple_switch`"
        );
        Ok(OnMachines {
            all: daemons.all.clone(),
            daemons,
            nic: topology.collector.device.clone(),
            transport: topology.collector.transport.name(),
            reporters,
        })
    }

    pub(super) fn names(&self) -> (&str, &'static str) {
        (&self.nic, self.transport)
    }

    pub(super) async fn program(&mut self, traffic: &Traffic, filter: Filter) -> anyhow::Result<()> {
        for reporter in &self.reporters {
            reporter.program(traffic, filter).await?;
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

    pub(super) async fn at_hosts(&self) -> anyhow::Result<Vec<[(u64, u64); 2]>> {
        let mut all = Vec::new();
        for reporter in &self.reporters {
            all.push(reporter.at_hosts().await?);
        }
        Ok(all)
    }

    async fn nic_counters(&mut self) -> anyhow::Result<Statistics> {
        let mut all = Statistics::default();
        all.add_collectors(self.daemons.of_collectors().await?);
        Ok(all)
    }

    /// By the counters of translator and NICs, as nobody looks at the wires there.
    pub(super) async fn came(&mut self) -> anyhow::Result<[u64; 3]> {
        let nics = self.nic_counters().await?;
        let frames = first_frames(&nics.node(Stage::Nic), self.nic == "soft");
        let hosts = self.at_hosts().await?;
        let translator = self.translator().await?;
        let packets = hosts.iter().flatten().map(|(packets, _)| packets).sum();
        Ok([packets, translator.node(Stage::Translator).get(&counter::RECEIVED), frames])
    }

    pub(super) async fn rest(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + REST;
        while Instant::now() < until {
            let (nic, translator) = (self.nic_counters().await?, self.translator().await?);
            let (nic, translator) = (nic.node(Stage::Nic), translator.node(Stage::Translator));
            let frames = translator.get(&counter::FRAMES);
            if frames == nic.named("received") && answers(&translator) >= nic.sum(Step::Answered) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // What is still in flight then is reported as what does not add up.
        Ok(())
    }

    pub(super) async fn came_back(&mut self, sent: u64) -> anyhow::Result<[u64; 2]> {
        // What no host sent to the reporter is the translator's.
        let reporters = self.reporters().await?;
        let received: u64 = reporters.iter().flat_map(|counts| counts.of("received")).sum();
        let translator = self.translator().await?;
        Ok([received.saturating_sub(sent), answers(&translator.node(Stage::Translator))])
    }

    pub(super) async fn reporters(&mut self) -> anyhow::Result<Vec<Counts>> {
        let mut all = Vec::new();
        for reporter in &self.reporters {
            all.push(reporter.counts().await?);
        }
        Ok(all)
    }

    pub(super) async fn reporter_nodes(&mut self) -> anyhow::Result<Vec<NodeStatistics>> {
        let mut all = Vec::new();
        for reporter in &self.reporters {
            all.extend(reporter.switch::<Vec<NodeStatistics>>(OfSwitch::Statistics).await?);
        }
        Ok(all)
    }

    pub(super) async fn translator(&mut self) -> anyhow::Result<Statistics> {
        self.daemons.translator_statistics().await
    }

    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        self.daemons.of_collectors().await
    }

    pub(super) async fn flush(&mut self) -> anyhow::Result<()> {
        self.daemons.flush().await?;
        Ok(())
    }
}

/// Frames that reached a NIC, without those that a translator sent again.
fn first_frames(nic: &Node<'_>, tells_executed: bool) -> u64 {
    match tells_executed {
        true => nic.named("executed.write") + nic.named("executed.fetch_add"),
        false => nic.named("received"),
    }
}

/// Answers of NICs that reached the translator.
fn answers(translator: &Node<'_>) -> u64 {
    translator.of(&counter::LINK_RECEIVED, &[counter::ROCE])
}
