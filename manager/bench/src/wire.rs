//! Three processes in two network namespaces: reporter and collector in one, the translator in the other, so that
//! reports and frames cross a veth pair. The floor is both stages chained in one process (`chain`).
//!
//! A veth pair passes runs on whole. Where they are cut, each report and frame leaves the sending end by itself, as on a
//! wire, and the receiving end joins what it can (GRO).

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use dta_collector::nic::soft::CounterFile;
use dta_link::shared_ring::RingUse;
use dta_testbed::alone::Alone;
use dta_testbed::daemons::Plan;
use dta_testbed::files::{self, CollectorPlace, TranslatorPlace};
use dta_testbed::folder::Folder;
use dta_testbed::ground::step;
use dta_testbed::processes::Daemon;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::harness::{Rates, Scale};
use super::loopback::{WINDOW, WINDOW_OF_RUNS, Work, beside_chain_of, counter_file_in, topology};

/// The namespaces, and the ends of the pair in them.
const SIDES: [(&str, &str); 2] = [("dta-bench-here", "dta-bench-a"), ("dta-bench-there", "dta-bench-b")];
/// Addresses of the ends, for testing devices (RFC 2544): no host has them.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 12, 1), Ipv4Addr::new(198, 18, 12, 2)];

/// Reports and frames in runs.
pub(super) fn in_runs(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, true, false)
}

/// Frames one by one.
pub(super) fn plain(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, false, false)
}

/// Reports and frames in runs, which are cut before they cross the pair.
pub(super) fn cut(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, true, true)
}

fn run(scale: &Scale, runs: bool, cut: bool) -> anyhow::Result<Rates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = Folder::new()?;
    let topology = topology(scale)?;
    let plan = Plan { ring: RingUse::Off, runs, ..Plan::plain(&topology, folder.path()) };
    let namespaces = Namespaces::set_up(cut)?;
    let (counters, reports, _daemons) = runtime.block_on(start(&plan, &namespaces))?;
    namespaces.enter(0)?;
    let mut work = Work::in_runs(reports, ADDRESSES[0], counters.clone())?;
    let window = if runs && !cut { WINDOW_OF_RUNS } else { WINDOW };
    let rates = beside_chain_of(scale, window, &mut work)?;
    // Frames that arrived, but with a wrong iCRC, would be no rate of writes.
    let counted = CounterFile::read(&counters)?.1;
    let dropped = counted.iter().filter(|(name, count)| name.starts_with("dropped.") && *count > 0);
    let dropped: Vec<_> = dropped.collect();
    ensure!(dropped.is_empty(), "the NIC dropped frames: {dropped:?}");
    Ok(rates)
}

/// Starts collector and translator; returns the counter file of the NIC, and where reports go. This thread is in the
/// namespace of the translator afterwards.
async fn start(
    plan: &Plan<'_>,
    namespaces: &Namespaces,
) -> anyhow::Result<(PathBuf, SocketAddrV4, [Daemon; 2])> {
    let path = |name: &str| plan.folder.join(name);
    let said = |daemon: &Daemon, field: &str| daemon.ready()[field].as_str().unwrap_or_default().to_owned();
    namespaces.enter(0)?;
    let place = CollectorPlace {
        number: 0,
        listen: SocketAddr::from((ADDRESSES[0], 0)).to_string(),
        memory: path("memory").display().to_string(),
        address: ADDRESSES[0],
        port: 0,
        device: &plan.topology.collector.device,
        verbs: None,
        link: None,
    };
    std::fs::write(path("collector.toml"), files::collector(plan, &place)?)?;
    let mut arguments = files::collector_arguments(plan, path("collector.toml").display().to_string());
    // Nobody else is on the pair.
    arguments.push("--insecure".into());
    let collector = Daemon::start("collector", "__collector", &arguments, &path("collector.log")).await?;
    namespaces.enter(1)?;
    let place = TranslatorPlace {
        listen: SocketAddr::from((ADDRESSES[1], 0)).to_string(),
        control: "127.0.0.1:0".into(),
        collectors: vec![said(&collector, "listen")],
        source: ADDRESSES[1],
        source_port: 0,
        ring: plan.ring.to_string(),
    };
    std::fs::write(path("translator.toml"), files::translator(plan, &place))?;
    let (config, ledger) = (path("translator.toml"), path("ledger"));
    let arguments =
        files::translator_arguments(plan, config.display().to_string(), ledger.display().to_string());
    let translator = Daemon::start("translator", "__translator", &arguments, &path("translator.log")).await?;
    let reports = said(&translator, "listen").parse().context("the translator's address of reports")?;
    let counters = counter_file_in(&path("memory"))?;
    Ok((counters, reports, [collector, translator]))
}

/// Two namespaces with a veth pair; gone with this.
struct Namespaces {
    files: Vec<File>,
    _alone: Alone,
}

impl Namespaces {
    /// `cut`: whether the ends of the pair send each datagram of a run by itself.
    fn set_up(cut: bool) -> anyhow::Result<Namespaces> {
        let alone = Alone::with(SIDES[0].0)?;
        // Possible leftovers of a killed run.
        take_down();
        let mut namespaces = Namespaces { files: Vec::new(), _alone: alone };
        let [(here, near), (there, far)] = SIDES;
        let ip =
            |arguments: String| step("ip", &arguments).context("cannot make namespaces, which needs root");
        ip(format!("netns add {here}"))?;
        ip(format!("netns add {there}"))?;
        ip(format!("-n {here} link add {near} type veth peer name {far} netns {there}"))?;
        for ((space, end), address) in SIDES.iter().zip(ADDRESSES) {
            ip(format!("-n {space} address add {address}/24 dev {end}"))?;
            ip(format!("-n {space} link set lo up"))?;
            ip(format!("-n {space} link set {end} up"))?;
            if cut {
                step("ip", &format!("netns exec {space} ethtool -K {end} tx-udp-segmentation off gro on"))?;
            }
            namespaces.files.push(File::open(format!("/run/netns/{space}"))?);
        }
        Ok(namespaces)
    }

    /// Moves this thread into one of them; processes that it starts are there, too.
    fn enter(&self, side: usize) -> anyhow::Result<()> {
        let file = self.files[side].as_fd();
        move_into_link_name_space(file, Some(LinkNameSpaceType::Network))
            .with_context(|| format!("cannot enter the namespace {}", SIDES[side].0))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        take_down();
    }
}

/// Removes the namespaces; it is no error if they do not exist.
fn take_down() {
    for (space, _) in SIDES {
        let _ = step("ip", &format!("netns delete {space}"));
    }
}
