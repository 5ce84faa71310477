//! Everything on this machine, in the namespace that [`super::enter`] made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use dta_client::collector::Client;
use dta_client::{Ask, ClientOptions, Member, Spread};
use dta_proto::control::NodeStatistics;
use dta_translator::config::Config;
use dta_translator::setup;
use dta_translator::switches::any_switch;
use dta_translator::switches::p4::counters::Counts;
use dta_translator::switches::p4::reporter::ReporterSwitch;

use super::files::{TRANSLATOR, collector_file, parse, translator_file};
use super::ground::{CollectorLink, Ground, HOSTS, REPORTER_OUT, TRANSLATOR_IN, reporter_at};
use super::hosts::{Hosts, received};
use super::reporter::{self, Filter};
use super::truth::{Frame, Traffic};
use crate::ground::NicKind;
use crate::processes::Daemon;
use crate::statistics::{OfCollector, Statistics};

/// Everything that runs.
pub(super) struct OneMachine {
    /// The collectors, individually and as one.
    collectors: Vec<Client>,
    pub(super) all: Spread,
    links: &'static [CollectorLink],
    nic: NicKind,
    folder: PathBuf,
    /// The configuration of the translator.
    config: Config,
    /// The reporter's control plane; `None` before it is programmed.
    reporter: Option<ReporterSwitch>,
    hosts: Hosts,
    _collectors: Vec<Daemon>,
    ground: Ground,
}

impl OneMachine {
    /// Starts everything, and programs the translator.
    pub(super) async fn start(
        folder: &Path,
        links: &'static [CollectorLink],
        nic: NicKind,
    ) -> anyhow::Result<OneMachine> {
        let ground = Ground::set_up(folder, links, nic).await?;
        let (mut daemons, mut addresses) = (Vec::new(), Vec::new());
        for link in links {
            let name = link.collector;
            let path = folder.join(format!("{name}.toml"));
            std::fs::write(&path, collector_file(folder, link, nic))?;
            let arguments = ["serve", "--config", &path.display().to_string()].map(String::from);
            let log = folder.join(format!("{name}.log"));
            let daemon = Daemon::start("collector", "__collector", &arguments, &log).await?;
            let address = daemon.ready()["listen"].as_str();
            addresses.push(address.context("the collector does not say where it listens")?.to_owned());
            daemons.push(daemon);
        }
        let config = parse(folder, &translator_file(folder, links, &addresses, ground.control[1])?)?;
        setup::setup(&config, TRANSLATOR).await.context("the translator cannot be programmed")?;
        let client = |address: &String| Client::connect_lazy(&ClientOptions::plain(address));
        let collectors = addresses.iter().map(client).collect::<Result<Vec<_>, _>>()?;
        let member = |(address, client): (&String, &Client)| Member {
            address: address.clone(),
            ask: Arc::new(client.clone()),
        };
        let all = Spread::new(addresses.iter().zip(&collectors).map(member).collect());
        Ok(OneMachine {
            collectors,
            all,
            links,
            nic,
            folder: folder.to_owned(),
            config,
            reporter: None,
            hosts: Hosts::open(&HOSTS.map(String::from))?,
            _collectors: daemons,
            ground,
        })
    }

    pub(super) fn names(&self) -> (&str, &'static str) {
        (self.nic.name(), "uc")
    }

    pub(super) async fn program(&mut self, traffic: &Traffic, filter: Filter) -> anyhow::Result<()> {
        let wiring = reporter_at(self.ground.control[0]);
        let config = parse(&self.folder, &reporter::file(&wiring, traffic, filter))?;
        let reporter = ReporterSwitch::of(&config, &wiring.name())?;
        let mut reporter = reporter.context("the configuration has no reporter")?;
        reporter.apply().await.context("the reporter cannot be programmed")?;
        self.reporter = Some(reporter);
        Ok(())
    }

    pub(super) async fn send(&mut self, frames: &[Frame]) -> anyhow::Result<()> {
        self.hosts.send(frames.iter().map(|frame| (frame.host, &frame.bytes)))
    }

    pub(super) async fn at_hosts(&self) -> anyhow::Result<Vec<[(u64, u64); 2]>> {
        Ok(vec![both(self.hosts.received()?)?])
    }

    pub(super) async fn came(&mut self) -> anyhow::Result<[u64; 3]> {
        let out = self.hosts.received()?.into_iter().map(|(packets, _)| packets).sum();
        let frames = self.links.iter().map(|link| Ok(received(link.collector)?.0));
        Ok([out, received(TRANSLATOR_IN)?.0, frames.sum::<anyhow::Result<u64>>()?])
    }

    pub(super) async fn came_back(&mut self, _sent: u64) -> anyhow::Result<[u64; 2]> {
        let answers = self.links.iter().map(|link| Ok(received(link.translator)?.0));
        Ok([received(REPORTER_OUT)?.0, answers.sum::<anyhow::Result<u64>>()?])
    }

    fn programmed(&mut self) -> anyhow::Result<&mut ReporterSwitch> {
        self.reporter.as_mut().context("the reporter is not programmed yet")
    }

    pub(super) async fn reporters(&mut self) -> anyhow::Result<Vec<Counts>> {
        Ok(vec![self.programmed()?.counters().await?])
    }

    pub(super) async fn reporter_nodes(&mut self) -> anyhow::Result<Vec<NodeStatistics>> {
        Ok(vec![self.programmed()?.statistics().await?])
    }

    pub(super) async fn translator(&mut self) -> anyhow::Result<Statistics> {
        let mut all = Statistics::default();
        all.add(any_switch(&self.config, TRANSLATOR)?.statistics().await?);
        Ok(all)
    }

    pub(super) async fn of_collectors(&mut self) -> anyhow::Result<Vec<OfCollector>> {
        let mut all = Vec::new();
        for (link, collector) in self.links.iter().zip(&self.collectors) {
            all.push((link.address.to_owned(), collector.statistics().await?));
        }
        Ok(all)
    }

    pub(super) async fn flush(&mut self) -> anyhow::Result<()> {
        any_switch(&self.config, TRANSLATOR)?.flush_all().await?;
        Ok(())
    }
}

/// What both hosts counted.
pub(super) fn both(hosts: Vec<(u64, u64)>) -> anyhow::Result<[(u64, u64); 2]> {
    hosts.try_into().ok().context("there must be two hosts")
}
