//! Three processes in two network namespaces: reporter and collector in one, the translator in the other, so that
//! reports and frames cross a veth pair. The floor is both stages chained in one process (`chain`).
//!
//! A veth pair passes runs on whole. Where they are cut, each report and frame leaves the sending end by itself, as on a
//! wire, and the receiving end joins what it can (GRO), or does not.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::daemons::Plan;
use crate::files::{self, CollectorPlace, TranslatorPlace};
use crate::folder::Folder;
use crate::ground::Alone;
use crate::ground::run_command;
use crate::processes::Daemon;
use anyhow::{Context, ensure};
use dta_link::shared_ring::RingUse;
use dta_memory::nic::soft::CounterFile;
use dta_proto::wire::roce;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::harness::{Rates, Scale};
use super::loopback::{WINDOW, WINDOW_OF_RUNS, Work, bench_topology, beside_chain_of, counter_file_in};

/// The namespaces, and the ends of the pair in them.
const SIDES: [(&str, &str); 2] = [("dta-bench-here", "dta-bench-a"), ("dta-bench-there", "dta-bench-b")];
/// Addresses of the ends, for testing devices (RFC 2544): no host has them.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 12, 1), Ipv4Addr::new(198, 18, 12, 2)];

#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameTransport {
    Sockets {
        runs: bool,
    },
    /// Past the kernel's network stack.
    Xdp,
}

/// What the pair does with runs of reports and frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PairRunMode {
    Whole,
    /// Cuts them before it passes them on; says whether they are joined behind it.
    Cut {
        joined: bool,
    },
}

/// Reports and frames in runs.
pub(super) fn bench_in_runs(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FrameTransport::Sockets { runs: true }, PairRunMode::Whole)
}

pub(super) fn bench_single_frames(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FrameTransport::Sockets { runs: false }, PairRunMode::Whole)
}

/// Reports and frames in runs, which are cut before they cross the pair, and joined behind it.
pub(super) fn bench_cut_runs(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FrameTransport::Sockets { runs: true }, PairRunMode::Cut { joined: true })
}

/// The same, not joined behind it.
pub(super) fn cut_without_gro(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FrameTransport::Sockets { runs: true }, PairRunMode::Cut { joined: false })
}

/// Frames by AF_XDP, reports in runs.
pub(super) fn bench_xdp(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FrameTransport::Xdp, PairRunMode::Whole)
}

fn run(scale: &Scale, frames: FrameTransport, pair: PairRunMode) -> anyhow::Result<Rates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = Folder::new()?;
    let topology = bench_topology(scale)?;
    let runs = frames != FrameTransport::Sockets { runs: false };
    let plan = Plan { ring: RingUse::Off, runs, ..Plan::with_soft_nic(&topology, folder.folder_path()) };
    let namespaces = Namespaces::set_up(pair)?;
    let (counters, reports, _daemons) = runtime.block_on(start_daemons(&plan, frames, &namespaces))?;
    namespaces.enter_namespace(0)?;
    let mut work = Work::with_runs(reports, ADDRESSES[0], counters.clone())?;
    // With an XDP program, each end of a pair holds 256 frames.
    let whole = frames == FrameTransport::Sockets { runs: true } && pair == PairRunMode::Whole;
    let window = if whole { WINDOW_OF_RUNS } else { WINDOW };
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
async fn start_daemons(
    plan: &Plan<'_>,
    frames: FrameTransport,
    namespaces: &Namespaces,
) -> anyhow::Result<(PathBuf, SocketAddrV4, [Daemon; 2])> {
    let path = |name: &str| plan.folder.join(name);
    let said =
        |daemon: &Daemon, field: &str| daemon.ready_line()[field].as_str().unwrap_or_default().to_owned();
    let links = SIDES.map(|(_, end)| (frames == FrameTransport::Xdp).then(|| format!("xdp:{end}")));
    // Only a socket can have a port that the kernel chooses.
    let port = if frames == FrameTransport::Xdp { roce::PORT } else { 0 };
    namespaces.enter_namespace(0)?;
    let place = CollectorPlace {
        number: 0,
        listen: SocketAddr::from((ADDRESSES[0], 0)).to_string(),
        memory: path("memory").display().to_string(),
        address: ADDRESSES[0],
        port,
        device: &plan.topology.collector.device,
        verbs: None,
        link: links[0].as_deref(),
    };
    std::fs::write(path("collector.toml"), files::collector(plan, &place)?)?;
    let mut arguments = files::collector_arguments(plan, path("collector.toml").display().to_string());
    // Nobody else is on the pair.
    arguments.push("--insecure".into());
    let collector =
        Daemon::spawn_until_ready("collector", "__collector", &arguments, &path("collector.log")).await?;
    namespaces.enter_namespace(1)?;
    let place = TranslatorPlace {
        listen: SocketAddr::from((ADDRESSES[1], 0)).to_string(),
        control: "127.0.0.1:0".into(),
        collectors: vec![said(&collector, "listen")],
        source: ADDRESSES[1],
        source_port: port,
        ring: plan.ring.to_string(),
    };
    std::fs::write(path("translator.toml"), files::translator(plan, &place))?;
    let (config, ledger) = (path("translator.toml"), path("ledger"));
    let mut arguments =
        files::translator_arguments(plan, config.display().to_string(), ledger.display().to_string());
    arguments.extend(links[1].iter().flat_map(|link| ["--link".into(), link.clone()]));
    let translator =
        Daemon::spawn_until_ready("translator", "__translator", &arguments, &path("translator.log")).await?;
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
    fn set_up(pair: PairRunMode) -> anyhow::Result<Namespaces> {
        let alone = Alone::acquire_for(SIDES[0].0)?;
        // Possible leftovers of a killed run.
        take_down();
        let mut namespaces = Namespaces { files: Vec::new(), _alone: alone };
        let [(here, near), (there, far)] = SIDES;
        let ip = |arguments: String| {
            run_command("ip", &arguments).context("cannot make namespaces, which needs root")
        };
        ip(format!("netns add {here}"))?;
        ip(format!("netns add {there}"))?;
        ip(format!("-n {here} link add {near} type veth peer name {far} netns {there}"))?;
        for ((space, end), address) in SIDES.iter().zip(ADDRESSES) {
            ip(format!("-n {space} address add {address}/24 dev {end}"))?;
            ip(format!("-n {space} link set lo up"))?;
            ip(format!("-n {space} link set {end} up"))?;
            if let PairRunMode::Cut { joined } = pair {
                let gro = if joined { "on" } else { "off" };
                // A pair joins nothing that comes from an end with segmentation of TCP.
                let features = format!("tx-udp-segmentation off tso off gro {gro}");
                run_command("ip", &format!("netns exec {space} ethtool -K {end} {features}"))?;
            }
            namespaces.files.push(File::open(format!("/run/netns/{space}"))?);
        }
        Ok(namespaces)
    }

    /// Moves this thread into one of them; processes that it starts are there, too.
    fn enter_namespace(&self, side: usize) -> anyhow::Result<()> {
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
        let _ = run_command("ip", &format!("netns delete {space}"));
    }
}
