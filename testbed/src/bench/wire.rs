//! Three processes in two network namespaces: reporter and collector in one, the translator in the other, so that
//! reports and frames cross a veth pair. The floor is both stages chained in one process (`chain`).
//!
//! A veth pair passes runs on whole. Where they are cut, each report and frame leaves the sending end by itself, as on a
//! wire, and the receiving end joins what it can (GRO), or does not.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::daemons::Plan;
use crate::files::{self, CollectorPlace, TranslatorPlace};
use crate::folder::Folder;
use crate::ground::Alone;
use crate::ground::run_command;
use crate::processes::Daemon;
use anyhow::{Context, ensure};
use aya::maps::Array;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use dta_dataplane::{Engine, EngineLimits, EngineOutput};
use dta_link::packet::NetworkInterface;
use dta_link::shared_ring::RingUse;
use dta_link::xdp::{EventLimits, EventTables, ReportForm};
use dta_link::{IntakeLink, IntakeOpener, Link, RunUse, UdpConfig, UdpLink};
use dta_memory::nic::soft::CounterFile;
use dta_proto::batch::PacketBatch;
use dta_proto::key::Key;
use dta_proto::wire::datagram::{encode_header, fill_udp_checksum};
use dta_proto::wire::dta::{self, DtaBody, DtaReport};
use dta_proto::wire::roce;
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Rules, SharedTables, StoreIds, Telemetry};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::harness::{Rates, Scale, pin_to_current_cpu, thread_cpu_time};
use super::int::report_bytes as int_report;
use super::loopback::{WINDOW, WINDOW_OF_RUNS, Work, bench_topology, beside_chain_of, counter_file_in};

/// The namespaces, and the ends of the pair in them.
const SIDES: [(&str, &str); 2] = [("dta-bench-here", "dta-bench-a"), ("dta-bench-there", "dta-bench-b")];
/// Addresses of the ends, for testing devices (RFC 2544): no host has them.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 12, 1), Ipv4Addr::new(198, 18, 12, 2)];

/// The ends of a further pair, and their addresses.
const FURTHER: [&str; 2] = ["dta-bench-c", "dta-bench-d"];
const FURTHER_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 13, 1), Ipv4Addr::new(198, 18, 13, 2)];

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
    /// It cuts them before it passes them on; `joined` says whether they are joined again behind it.
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

/// The same, but not joined.
pub(super) fn cut_without_gro(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FrameTransport::Sockets { runs: true }, PairRunMode::Cut { joined: false })
}

/// Frames by AF_XDP, reports in runs.
pub(super) fn bench_xdp(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, FrameTransport::Xdp, PairRunMode::Whole)
}

/// Reports that arrive one by one, taken by AF_XDP; the floor is the same with a socket, over another pair. The kernel
/// makes the frames, as a device does, without a sender's work. One thread has them delivered and receives them: rates
/// are per second of its CPU time, less the time to make the frames.
pub(super) fn bench_reports_by_xdp(scale: &Scale) -> anyhow::Result<Rates> {
    let body = DtaBody::KeyWrite { redundancy: 0, key: Key([7; 16]), value: &[7; 12] };
    let mut payload = [0; 64];
    // Longer than any such report.
    let len = DtaReport { reporter: 1, ..DtaReport::new(1, body) }.encode_into(&mut payload).unwrap_or(0);
    bench_single_datagrams(scale, &payload[..len], None, |_| {
        let (mut engine, mut out) = (Engine::new(EngineLimits::default()), EngineOutput::default());
        Box::new(move |_: Option<u32>, batch: &PacketBatch| {
            engine.ingest_packets(0, batch.iter(), &mut out);
            out.clear();
        })
    })
}

/// INT reports that arrive one by one and say nothing new: the program at the interface drops all but the first. The
/// floor is the same with a socket.
pub(super) fn bench_unchanged_int(scale: &Scale) -> anyhow::Result<Rates> {
    let rules = Rules::default();
    let limits = EventLimits { values: rules.value_capacity() as u32, reports: 1024, sources: 64 };
    let payload = int_report(1, 6);
    bench_single_datagrams(scale, &payload, Some(limits), |tables| {
        let mut telemetry = Telemetry::new(Rules::default());
        telemetry.set_stores(StoreIds {
            paths: Some(1),
            values: Some(2),
            events: Some(3),
            counters: Some(4),
            postcards: Some(5),
        });
        if let Some(EventTables { words, .. }) = tables {
            let tables = SharedTables {
                generation: Box::new(words.generation),
                buckets: Box::new(words.buckets),
                templates: Box::new(words.templates),
                slots: Box::new(words.slots),
            };
            // No keep-alive ever becomes due.
            telemetry.share_with_program(tables, u64::MAX);
        }
        let mut made = PrimitiveBatch::default();
        Box::new(move |program: Option<u32>, batch: &PacketBatch| {
            let datagrams = (0..batch.len()).filter_map(|index| {
                let datagram = batch.udp_datagram(index)?;
                Some((IpAddr::V4(*datagram.source().ip()), datagram.payload()))
            });
            let at = ArrivalTime { now: 1, wall: 1 };
            telemetry.ingest_all(at, datagrams, &IntSettings::default(), program, &mut made);
            made.clear();
        })
    })
}

/// What to do with a batch; the number is that of the listener whose program passed it on.
type TakeBatch = Box<dyn FnMut(Option<u32>, &PacketBatch)>;

/// Datagrams with this payload that arrive one by one, by AF_XDP and by a socket; with `limits`, the program drops unchanged reports.
fn bench_single_datagrams(
    scale: &Scale,
    payload: &[u8],
    limits: Option<EventLimits>,
    take: impl Fn(Option<EventTables>) -> TakeBatch,
) -> anyhow::Result<Rates> {
    // With GRO, a pair receives frames as drivers do.
    let pair = PairRunMode::Cut { joined: true };
    let namespaces = Namespaces::set_up(pair)?;
    namespaces.add_pair(&FURTHER, FURTHER_ADDRESSES, pair)?;
    namespaces.enter_namespace(1)?;
    let here = SocketAddr::from((ADDRESSES[1], 0));
    let socket = UdpLink::open(&UdpConfig { runs: RunUse::NONE, ..UdpConfig::for_reports(here, false) })?;
    let socket = IntakeLink::from(socket);
    let mut opener = IntakeOpener::default();
    limits.iter().for_each(|limits| opener.drop_unchanged_at(FURTHER[1], *limits));
    let xdp = opener.open_for_events(FURTHER[1], 0, false, limits.map(|_| ReportForm::Guessed))?;
    let tables = opener.take_event_tables();
    let far = [SIDES[1].1, FURTHER[1]].map(NetworkInterface::lookup_by_name);
    namespaces.enter_namespace(0)?;
    let [to_socket, to_xdp] = far;
    let near = NetworkInterface::lookup_by_name;
    let (to_socket, to_xdp) = (
        frame_with(payload, &near(SIDES[0].1)?, ADDRESSES[0], &to_socket?, socket.local_addr()),
        frame_with(
            payload,
            &near(FURTHER[0])?,
            FURTHER_ADDRESSES[0],
            &to_xdp?,
            SocketAddrV4::new(FURTHER_ADDRESSES[1], xdp.local_addr().port()),
        ),
    );
    pin_to_current_cpu();
    let mut source = FrameSource::new()?;
    let mut all = [
        OneThread::new(0, to_socket.clone(), None, take(None)),
        OneThread::new(near(SIDES[0].1)?.index, to_socket, Some(socket), take(None)),
        OneThread::new(near(FURTHER[0])?.index, to_xdp, Some(xdp), take(tables)),
    ];
    let mut least = [Duration::MAX; 3];
    for _ in 0..scale.turns {
        for (one, least) in all.iter_mut().zip(&mut least) {
            *least = (*least).min(one.least_cost(&mut source, scale.turn)?);
        }
    }
    let [alone, floor, work] = least.map(|cost| cost.as_secs_f64());
    Ok(Rates { work: 1.0 / (work - alone), floor: 1.0 / (floor - alone) })
}

/// An Ethernet frame with a datagram.
fn frame_with(
    payload: &[u8],
    near: &NetworkInterface,
    from: Ipv4Addr,
    far: &NetworkInterface,
    to: SocketAddrV4,
) -> Vec<u8> {
    let header = encode_header(SocketAddrV4::new(from, dta::PORT), to, payload.len());
    let mut packet = [&header[..], payload].concat();
    fill_udp_checksum(&mut packet);
    [&far.mac[..], &near.mac, &[8, 0], &packet].concat()
}

/// Frames that the kernel makes.
struct FrameSource(Ebpf);

impl FrameSource {
    /// Frames of one call, which are delivered in batches.
    const FRAMES: u32 = 1024;
    const BATCH: u32 = 64;

    /// In a namespace on whose loopback nothing arrives.
    fn new() -> anyhow::Result<Self> {
        let object = aya::include_bytes_aligned!("../../ebpf/forward.bpf.o");
        let mut program = EbpfLoader::new().btf(None).load(object).context("cannot load a program")?;
        let forward = Self::forward_program(&mut program)?;
        forward.load()?;
        // If the program is not attached, the kernel patches it into its code for each call. That stops all processors, and takes
        // several times as long as the call's frames.
        forward.attach("lo", XdpMode::Skb).context("cannot attach a program to loopback")?;
        Ok(Self(program))
    }

    fn forward_program(program: &mut Ebpf) -> anyhow::Result<&mut Xdp> {
        Ok(program.program_mut("forward").context("the object has no program")?.try_into()?)
    }

    /// Sends them by the interface with this index; 0 drops them.
    fn send_by(&mut self, interface: u32) -> anyhow::Result<()> {
        let map = self.0.map_mut("interface").context("the program has no map")?;
        Ok(Array::<_, u32>::try_from(map)?.set(0, interface, 0)?)
    }

    /// Sends copies of a frame; returns how many.
    fn send(&mut self, frame: &[u8]) -> anyhow::Result<u64> {
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.repeat = Self::FRAMES;
        options.attrs = TestRunAttrs::new().xdp_live_frames(Self::BATCH);
        Self::forward_program(&mut self.0)?
            .test_run(options)
            .context("cannot send frames (Linux 5.18 or newer can)")?;
        Ok(Self::FRAMES.into())
    }
}

/// A translator's link, what takes its batches, and the frame sent to it, in one thread.
struct OneThread {
    interface: u32,
    frame: Vec<u8>,
    /// `None` = frames arrive nowhere.
    link: Option<IntakeLink>,
    take: TakeBatch,
    batch: PacketBatch,
}

impl OneThread {
    fn new(interface: u32, frame: Vec<u8>, link: Option<IntakeLink>, take: TakeBatch) -> Self {
        Self { interface, frame, link, take, batch: PacketBatch::with_packet_capacity(128, 2032) }
    }

    /// The least CPU time of a report, over tenths of `length`.
    fn least_cost(&mut self, source: &mut FrameSource, length: Duration) -> anyhow::Result<Duration> {
        source.send_by(self.interface)?;
        let (start, mut least) = (Instant::now(), Duration::MAX);
        while start.elapsed() < length {
            let (before, mut reports) = (thread_cpu_time(), 0);
            let mut took = Duration::ZERO;
            while took < length / 10 {
                let received = self.received();
                let sent = source.send(&self.frame)?;
                self.receive_until(received + sent)?;
                reports += sent;
                took = thread_cpu_time() - before;
            }
            least = least.min(took.div_f64(reports as f64));
        }
        Ok(least)
    }

    /// Datagrams that came so far, including those that the program dropped.
    fn received(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.link_counters().received)
    }

    /// Receives until all of them have come.
    fn receive_until(&mut self, all: u64) -> anyhow::Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let start = Instant::now();
        while link.link_counters().received < all {
            // Nobody is woken for what the program drops.
            let received = link.recv(&mut self.batch, Some(Duration::from_millis(1)))?;
            let is_late = received == 0 && start.elapsed() > Duration::from_secs(60);
            ensure!(!is_late, "{all} datagrams were sent, {} came", link.link_counters().received);
            (self.take)(link.events_of_last_batch(), &self.batch);
            link.confirm_processed();
        }
        Ok(())
    }
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
    // If frames were dropped on arrival, say for a wrong iCRC, the rate would not be one of writes.
    let counted = CounterFile::read(&counters)?.1;
    let dropped = counted.iter().filter(|(name, count)| name.starts_with("dropped.") && *count > 0);
    let dropped: Vec<_> = dropped.collect();
    ensure!(dropped.is_empty(), "the NIC dropped frames: {dropped:?}");
    Ok(rates)
}

/// Starts collector and translator; returns the counter file of the NIC, and where reports go. Leaves this thread in
/// the translator's namespace.
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
        address: ADDRESSES[0].into(),
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
        source: ADDRESSES[1].into(),
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

/// Two namespaces with a veth pair; removed on drop.
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
        for (space, _) in SIDES {
            run_command("ip", &format!("netns add {space}"))
                .context("cannot make namespaces, which needs root")?;
            run_command("ip", &format!("-n {space} link set lo up"))?;
            namespaces.files.push(File::open(format!("/run/netns/{space}"))?);
        }
        namespaces.add_pair(&SIDES.map(|(_, end)| end), ADDRESSES, pair)?;
        Ok(namespaces)
    }

    /// Makes a pair between them.
    fn add_pair(&self, ends: &[&str; 2], addresses: [Ipv4Addr; 2], pair: PairRunMode) -> anyhow::Result<()> {
        let [(here, _), (there, _)] = SIDES;
        let [near, far] = ends;
        let ip = |arguments: String| run_command("ip", &arguments);
        ip(format!("-n {here} link add {near} type veth peer name {far} netns {there}"))?;
        for ((space, end), address) in [here, there].iter().zip(ends).zip(addresses) {
            ip(format!("-n {space} address add {address}/24 dev {end}"))?;
            ip(format!("-n {space} link set {end} up"))?;
            if let PairRunMode::Cut { joined } = pair {
                let gro = if joined { "on" } else { "off" };
                // A pair joins nothing that comes from an end with TCP segmentation.
                let features = format!("tx-udp-segmentation off tso off gro {gro}");
                run_command("ip", &format!("netns exec {space} ethtool -K {end} {features}"))?;
            }
        }
        Ok(())
    }

    /// Moves this thread into one of them, where it then also starts processes.
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
