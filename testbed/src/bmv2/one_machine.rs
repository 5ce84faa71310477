//! Everything on this machine, in the namespace that [`super::enter_own_namespace`] made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dta_proto::control::NodeStatistics;
use dta_proto::counter::{Stage, collector};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions, Spread, SpreadMember};
use dta_switch::P4Switch;
use dta_switch::Target;
use dta_switch::counters::SwitchCounts;
use dta_switch::reporter::ReporterSwitch;
use dta_switch::translator::PROBE;
use dta_translator::config::Config;
use dta_translator::setup;
use dta_translator::targets::{any_switch, p4_switch, reporter_switch};

use super::files::{TRANSLATOR, collector_file, history_path, parse_switch_config, translator_file};
use super::ground::{CollectorLink, Ground, HOSTS, REPORTER_OUT, TRANSLATOR_IN, reporter_at};
use super::hosts::{Hosts, received_counts};
use super::reporter::{self, Filter};
use super::truth::{CapturedTraffic, Frame};
use crate::ground::NicKind;
use crate::processes::Daemon;
use crate::statistics::{OfCollector, TestbedStatistics};
use crate::topology::Topology;
use crate::turns;

/// Where the translator's configuration is.
const CONFIG: &str = "translator.toml";
/// Longest time for a session to go on.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct OneMachine {
    /// The collectors, individually and as one.
    collectors: Vec<RemoteCollector>,
    pub(super) all: Spread,
    links: &'static [CollectorLink],
    nic: NicKind,
    /// Length of an epoch of the stores that have epochs, if any do.
    epochs: Option<Duration>,
    folder: PathBuf,
    /// The configuration of the translator, and its counters: it is programmed by others.
    config: Config,
    translator: P4Switch,
    /// The reporter's control plane; `None` before it is programmed.
    reporter: Option<ReporterSwitch>,
    hosts: Hosts,
    /// `dta-translator watch`, which moves the translator to the memory of the next epochs.
    watch: Option<Daemon>,
    daemons: Vec<Daemon>,
    /// Where the collectors' gRPC is.
    addresses: Vec<String>,
    ground: Ground,
}

impl OneMachine {
    /// Starts everything, and programs the translator.
    pub(super) async fn start_testbed(
        folder: &Path,
        links: &'static [CollectorLink],
        nic: NicKind,
        epochs: Option<Duration>,
    ) -> anyhow::Result<OneMachine> {
        let ground = Ground::set_up(folder, links, nic).await?;
        let (mut daemons, mut addresses) = (Vec::new(), Vec::new());
        for link in links {
            let daemon = start_collector(folder, link, nic, "127.0.0.1:0", epochs).await?;
            let address = daemon.ready_line()["listen"].as_str();
            addresses.push(address.context("the collector does not say where it listens")?.to_owned());
            daemons.push(daemon);
        }
        let text = translator_file(folder, links, &addresses, ground.control[1])?;
        let config = parse_switch_config(folder, &text)?;
        let translator = p4_switch(&config, TRANSLATOR)?.context("the translator is not a P4 switch")?;
        std::fs::write(folder.join(CONFIG), text)?;
        let client = |address: &String| RemoteCollector::connect_lazy(&ClientOptions::without_tls(address));
        let collectors = addresses.iter().map(client).collect::<Result<Vec<_>, _>>()?;
        let member = |(address, client): (&String, &RemoteCollector)| SpreadMember {
            address: address.clone(),
            ask: Arc::new(client.clone()),
        };
        let all = Spread::new(addresses.iter().zip(&collectors).map(member).collect());
        let mut here = OneMachine {
            collectors,
            all,
            links,
            nic,
            epochs,
            folder: folder.to_owned(),
            config,
            translator,
            reporter: None,
            hosts: Hosts::open(&HOSTS.map(String::from))?,
            watch: None,
            daemons,
            addresses,
            ground,
        };
        match epochs {
            Some(_) => here.start_watch().await?,
            None => drop(
                setup::program_switch(&here.config, TRANSLATOR)
                    .await
                    .context("the translator cannot be programmed")?,
            ),
        }
        Ok(here)
    }

    /// Programs the translator, and keeps it in step with its collectors from then on.
    pub(super) async fn start_watch(&mut self) -> anyhow::Result<()> {
        let config = self.folder.join(CONFIG).display().to_string();
        let arguments = ["watch", "--ready", "--switch", TRANSLATOR, "--config", &config].map(String::from);
        let log = self.folder.join("translator.log");
        self.watch = Some(
            Daemon::spawn_until_ready("translator's control plane", "__translator", &arguments, &log).await?,
        );
        Ok(())
    }

    /// Kills what keeps the translator in step (SIGKILL). The switch goes on as it is.
    pub(super) fn kill_watch(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.kill_abruptly();
        }
    }

    /// Kills all collectors (SIGKILL), compacts each history into one file if `compacted` is given, starts the collectors
    /// again, and waits until their sessions go on.
    pub(super) async fn restart_collectors(&mut self, compacted: Option<&Topology>) -> anyhow::Result<()> {
        for (number, link) in self.links.iter().enumerate() {
            self.daemons.remove(number).kill_abruptly();
            if let Some(topology) = compacted {
                turns::compact_history(&history_path(&self.folder, link), topology)?;
            }
            let address = &self.addresses[number];
            let daemon = start_collector(&self.folder, link, self.nic, address, self.epochs).await?;
            self.daemons.insert(number, daemon);
        }
        self.until_renewed().await
    }

    /// Waits until the translator holds what all collectors grant: until its sessions have been renewed twice since the
    /// collectors started, because what the first renewal brings is written before the second.
    pub(super) async fn until_renewed(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let mut renewed = true;
            for (_, nodes) in self.of_collectors().await? {
                let mut all = TestbedStatistics::default();
                all.add(nodes);
                renewed &= all.stage_total(Stage::Collector).get(&collector::SESSION_RENEWED) >= 2;
            }
            let sessions = self.all.fetch_sessions().await?.sessions;
            if renewed && sessions.iter().all(|session| !session.queue_pairs.is_empty()) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "not all sessions have resumed after {PATIENCE:?}: {sessions:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) fn has_epochs(&self) -> bool {
        self.epochs.is_some()
    }

    /// Zero-length writes by which the translator has probed its queue pairs.
    pub(super) async fn probe_count(&mut self) -> anyhow::Result<u64> {
        // Nothing else probes.
        match self.has_epochs() {
            true => Ok(self
                .translator
                .runtime_mut()
                .read_counters()
                .await?
                .count_at("commands", usize::from(PROBE))),
            false => Ok(0),
        }
    }

    pub(super) fn nic_and_transport(&self) -> (&str, &'static str) {
        (self.nic.name(), "uc")
    }

    pub(super) async fn program_reporters(
        &mut self,
        traffic: &CapturedTraffic,
        filter: Filter,
    ) -> anyhow::Result<()> {
        let wiring = reporter_at(self.ground.control[0]);
        let config = parse_switch_config(&self.folder, &reporter::reporter_table(&wiring, traffic, filter))?;
        let reporter = reporter_switch(&config, &wiring.config_name())?;
        let mut reporter = reporter.context("the configuration has no reporter")?;
        reporter.apply_settings().await.context("the reporter cannot be programmed")?;
        self.reporter = Some(reporter);
        Ok(())
    }

    pub(super) async fn send(&mut self, frames: &[Frame]) -> anyhow::Result<()> {
        self.hosts.send(frames.iter().map(|frame| (frame.host, &frame.bytes)))
    }

    pub(super) async fn host_arrivals(&self) -> anyhow::Result<Vec<[(u64, u64); 2]>> {
        Ok(vec![two_host_counts(self.hosts.received_counts()?)?])
    }

    pub(super) async fn arrival_counts(&mut self) -> anyhow::Result<[u64; 3]> {
        let out = self.hosts.received_counts()?.into_iter().map(|(packets, _)| packets).sum();
        let frames = self.links.iter().map(|link| Ok(received_counts(link.collector)?.0));
        Ok([out, received_counts(TRANSLATOR_IN)?.0, frames.sum::<anyhow::Result<u64>>()?])
    }

    pub(super) async fn came_back(&mut self, _sent: u64) -> anyhow::Result<[u64; 2]> {
        let answers = self.links.iter().map(|link| Ok(received_counts(link.translator)?.0));
        Ok([received_counts(REPORTER_OUT)?.0, answers.sum::<anyhow::Result<u64>>()?])
    }

    fn programmed(&mut self) -> anyhow::Result<&mut ReporterSwitch> {
        self.reporter.as_mut().context("the reporter is not programmed yet")
    }

    pub(super) async fn reporters(&mut self) -> anyhow::Result<Vec<SwitchCounts>> {
        Ok(vec![self.programmed()?.read_counters().await?])
    }

    pub(super) async fn reporter_nodes(&mut self) -> anyhow::Result<Vec<NodeStatistics>> {
        Ok(vec![self.programmed()?.statistics().await?])
    }

    pub(super) async fn translator(&mut self) -> anyhow::Result<TestbedStatistics> {
        let mut all = TestbedStatistics::default();
        all.add(self.translator.statistics().await?);
        Ok(all)
    }

    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        let mut all = Vec::new();
        for (link, collector) in self.links.iter().zip(&self.collectors) {
            all.push((link.address.to_owned(), collector.statistics().await?));
        }
        Ok(all)
    }

    pub(super) async fn flush_translator(&mut self) -> anyhow::Result<()> {
        any_switch(&self.config, TRANSLATOR)?.flush_all().await?;
        Ok(())
    }
}

async fn start_collector(
    folder: &Path,
    link: &CollectorLink,
    nic: NicKind,
    listen: &str,
    epochs: Option<Duration>,
) -> anyhow::Result<Daemon> {
    let name = link.collector;
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, collector_file(folder, link, nic, listen, epochs))?;
    let arguments = ["serve", "--config", &path.display().to_string()].map(String::from);
    let log = folder.join(format!("{name}.log"));
    Daemon::spawn_until_ready("collector", "__collector", &arguments, &log).await
}

pub(super) fn two_host_counts(hosts: Vec<(u64, u64)>) -> anyhow::Result<[(u64, u64); 2]> {
    hosts.try_into().ok().context("there must be two hosts")
}
