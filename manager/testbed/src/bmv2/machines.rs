//! Everything on other machines, by ssh.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dta_client::collector::Client;
use dta_client::{Ask, Member, Spread};
use dta_proto::control::NodeStatistics;
use dta_proto::counter::{Stage, Step, translator as counter};
use dta_translator::switches::p4::counters::Counts;
use serde::de::DeserializeOwned;

use super::files::stores;
use super::one_machine::both;
use super::place::OfCollector;
use super::reporter::{self, Filter, Wiring};
use super::truth::Traffic;
use crate::daemons::{Daemons, Plan};
use crate::far::config::Role;
use crate::far::machine::Machine;
use crate::far::protocol::{NodeCounters, OfSwitch, Request};
use crate::far::start::{Far, start_bmv2, write};
use crate::statistics::{Node, Statistics};
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
    collector: Client,
    pub(super) all: Spread,
    /// The NIC, and the transport of writes.
    nic: String,
    transport: &'static str,
    traffic: Arc<Machine>,
    reporter: Arc<Machine>,
    wiring: Wiring,
}

impl OnMachines {
    /// Starts all of it, and programs the translator.
    pub(super) async fn start(topology: &Topology, far: &Far, folder: &Path) -> anyhow::Result<OnMachines> {
        let (traffic, reporter) = (far.with(Role::Traffic)?, far.with(Role::Reporter)?);
        let interfaces = traffic.settings.interfaces.clone();
        traffic.call::<()>(&Request::Traffic { interfaces }).await?;
        let (settings, translator) = (&reporter.settings, far.with(Role::Translator)?);
        let switch = settings.switch.clone().context("the reporter has no table `switch`")?;
        if !settings.simple_switch.is_empty() {
            start_bmv2(&reporter, &switch).await?;
        }
        let way = settings.translator.as_ref().context("the reporter has no `translator`")?;
        let wiring = Wiring {
            switch,
            source: settings.address,
            hosts: settings.host_ports.clone().try_into().ok().context("`host_ports` are two ports")?,
            port: way.port,
            translator: translator.settings.address,
            translator_mac: way.mac.to_string(),
        };
        let topology = Topology { stores: stores()?, ..topology.clone() };
        let mut plan = Plan::plain(&topology, folder);
        plan.far = Some(far);
        // The truth counts the frames that a switch makes.
        plan.reference = true;
        plan.transport = topology.collector.transport;
        let mut daemons = Daemons::start(&plan).await?;
        let collector = daemons.client.clone();
        let member = Member { address: daemons.collector_address.clone(), ask: Arc::new(collector.clone()) };
        let before = daemons.translator_statistics().await?.node(Stage::Translator).get(&counter::RECEIVED);
        ensure!(
            before == 0,
            "the translator's switch counted {before} reports before this run: start it anew, or have it started by \
             `simple_switch`"
        );
        Ok(OnMachines {
            daemons,
            collector,
            all: Spread::new(vec![member]),
            nic: topology.collector.device.clone(),
            transport: topology.collector.transport.name(),
            traffic,
            reporter,
            wiring,
        })
    }

    pub(super) fn names(&self) -> (&str, &'static str) {
        (&self.nic, self.transport)
    }

    async fn switch<T: DeserializeOwned>(&self, what: OfSwitch) -> anyhow::Result<T> {
        let request = Request::Switch { config: CONFIG.into(), name: reporter::NAME.into(), what };
        self.reporter.call(&request).await
    }

    pub(super) async fn program(&mut self, traffic: &Traffic, filter: Filter) -> anyhow::Result<()> {
        write(&self.reporter, CONFIG, reporter::file(&self.wiring, traffic, filter)).await?;
        self.switch::<()>(OfSwitch::Setup).await?;
        if matches!(filter, Filter::None) {
            let before: u64 = self.reporter().await?.of("received").iter().sum();
            ensure!(
                before == 0,
                "the reporter's switch counted {before} packets before this run: start it anew, and see that nothing \
                 else sends at its ports"
            );
        }
        Ok(())
    }

    pub(super) async fn send(&mut self, frames: &[(u8, Vec<u8>)]) -> anyhow::Result<()> {
        self.traffic.call(&Request::Frames { frames: frames.to_vec() }).await
    }

    pub(super) async fn at_hosts(&self) -> anyhow::Result<[(u64, u64); 2]> {
        both(self.traffic.call(&Request::Received).await?)
    }

    async fn nic_counters(&self) -> anyhow::Result<Statistics> {
        let mut all = Statistics::default();
        all.add(self.collector.statistics().await?);
        Ok(all)
    }

    /// By the counters of translator and NIC, as nobody looks at the wires there.
    pub(super) async fn came(&mut self) -> anyhow::Result<[u64; 3]> {
        let hosts = async { both(self.traffic.call(&Request::Received).await?) };
        let nic = async {
            let all = self.nic_counters().await?;
            anyhow::Ok(first_frames(&all.node(Stage::Nic), self.nic == "soft"))
        };
        let (hosts, frames) = tokio::try_join!(hosts, nic)?;
        let translator = self.translator().await?;
        let packets = hosts.iter().map(|(packets, _)| packets).sum();
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
        let received: u64 = self.reporter().await?.of("received").iter().sum();
        let translator = self.translator().await?;
        Ok([received.saturating_sub(sent), answers(&translator.node(Stage::Translator))])
    }

    pub(super) async fn reporter(&mut self) -> anyhow::Result<Counts> {
        Ok(Counts(self.switch(OfSwitch::Counters).await?))
    }

    pub(super) async fn reporter_node(&mut self) -> anyhow::Result<NodeStatistics> {
        let nodes: Vec<NodeCounters> = self.switch(OfSwitch::Statistics).await?;
        let node = nodes.into_iter().next().context("the reporter's machine told no counters")?;
        Ok(node.into())
    }

    pub(super) async fn translator(&mut self) -> anyhow::Result<Statistics> {
        self.daemons.translator_statistics().await
    }

    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        Ok(vec![(self.daemons.roce.ip().to_string(), self.collector.statistics().await?)])
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
