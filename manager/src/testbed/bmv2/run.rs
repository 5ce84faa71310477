//! One run: a capture is replayed, and the collector is asked for everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dta_client::collector::Client;
use dta_client::{Ask, ClientOptions, Member, Spread};
use dta_link::packet::{PacketConfig, PacketLink};
use dta_link::{Batch, Link};
use dta_proto::control::{Policy, TailRequest};
use dta_proto::counter::{Stage, Step};
use dta_proto::key::Key;
use dta_proto::program::Primitive;
use dta_translator::config::Config;
use dta_translator::reporter_setup::Reporter;
use dta_translator::setup;
use dta_translator::target::p4::counters::Counts;

use super::files::{COPIES, SLOTS, TRANSLATOR, collector_file, parse, translator_file};
use super::ground::{COLLECTORS, CollectorLink, Ground, HOSTS, REPORTER_OUT, TRANSLATOR_IN, received};
use super::outcome::Outcome;
use super::reporter::{self, DROP_SESSION, FLOW_SESSION, Filter, OF_DROP, OF_FLOW};
use super::truth::{Fate, SWITCH, Traffic, Truth, Watched};
use crate::capture::{self, LinkType};
use crate::testbed::accounting::LinkAccount;
use crate::testbed::folder::Folder;
use crate::testbed::ground::NicKind;
use crate::testbed::outcome::RunFacts;
use crate::testbed::processes::Daemon;
use crate::testbed::statistics::Statistics;

/// Flow keys in one batch of a list.
const ENTRIES: u64 = 3;
/// Frames of one packet that is forwarded, or dropped, but for those of lists.
const FRAMES_OF_FLOW: u64 = 4 * COPIES as u64;
const FRAMES_OF_DROP: u64 = 2 * COPIES as u64;
/// Packets on their way at once: each becomes up to 11 frames in one of bmv2's queues, which hold 64 packets and drop
/// in silence what finds them full.
const IN_FLIGHT: usize = 4;
/// After this time without what is to come, it will not come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the capture is replayed with default filters.
const ROUNDS: u64 = 2;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The capture.
    pub capture: PathBuf,
    /// Collectors that share the keys, 1 or 2.
    pub collectors: u8,
    /// Their NIC. There is one collector on soft-RoCE.
    pub nic: NicKind,
}

/// All that runs.
struct Bed {
    /// The collectors, each by itself, and all of them as one.
    collectors: Vec<Client>,
    all: Spread,
    links: &'static [CollectorLink],
    nic: NicKind,
    folder: PathBuf,
    /// The configuration of the translator, and the reporter's control plane.
    config: Config,
    reporter: Reporter,
    control: &'static str,
    hosts: [PacketLink; 2],
    batch: Batch,
    /// What was sent and has to have come out so far.
    sent: u64,
    out: u64,
    flow_reports: u64,
    drop_reports: u64,
    /// Entries that wait in the translator for their batch, by list; full batches that left; and batches flushed.
    waiting: [u64; 2],
    batches: u64,
    _collectors: Vec<Daemon>,
    _ground: Ground,
}

/// Runs it, in the namespace that [`super::enter`] made. `progress` is told the packets sent, of how many.
pub async fn run(options: &Options, mut progress: impl FnMut(u64, u64)) -> anyhow::Result<Outcome> {
    let path = &options.capture;
    let folder = Folder::new().context("cannot make a folder for the testbed")?;
    let mut frames = Vec::new();
    capture::read(path, |packet| {
        if packet.link == LinkType::Ethernet && packet.data.len() >= 14 {
            frames.push(packet.data.to_vec());
        }
    })?;
    ensure!(!frames.is_empty(), "{} holds no Ethernet frame", path.display());
    let traffic = Traffic::of(frames);
    let network = traffic.busiest_network();
    let total = traffic.frames.len() as u64 * (1 + ROUNDS);
    let links = &COLLECTORS[..usize::from(options.collectors).clamp(1, COLLECTORS.len())];
    let mut bed = Bed::start(folder.path(), &traffic, links, options.nic).await?;
    let mut outcome = Outcome::default();
    let began = Instant::now();

    let mut truth = Truth::default();
    for some in traffic.frames.chunks(IN_FLIGHT) {
        let fates: Vec<Fate> =
            some.iter().map(|frame| truth.add(&traffic.stations, Watched::All, frame)).collect();
        bed.replay(some, &fates).await?;
        progress(bed.sent, total);
    }
    bed.flush().await?;
    bed.settle().await?;
    outcome.line(format!(
        "{}: {} packets, {} longer than 1,514 bytes; {} flows",
        path.display(),
        traffic.frames.len(),
        traffic.frames.iter().filter(|(_, frame)| frame.len() > 1514).count(),
        truth.last_length.len()
    ));
    let seconds = began.elapsed().as_secs_f64();
    outcome.run = RunFacts {
        topology: "bmv2".into(),
        capture: Some(path.display().to_string()),
        skipped: BTreeMap::from([("no-flow".to_owned(), truth.no_flow)]),
        nic: options.nic.name().into(),
        transport: "uc".into(),
        faults: "none".into(),
        report_faults: "none".into(),
        packets: traffic.frames.len() as u64,
        flows: truth.last_length.len() as u64,
        seconds,
        reports_per_second: bed.reports() as f64 / seconds.max(1e-9),
        ..RunFacts::default()
    };
    bed.account(&truth, &mut outcome).await?;
    bed.compare(&truth, &mut outcome).await?;
    bed.filtered(&traffic, network, &mut outcome, |sent| progress(sent, total)).await?;
    Ok(outcome)
}

impl Bed {
    async fn start(
        folder: &Path,
        traffic: &Traffic,
        links: &'static [CollectorLink],
        nic: NicKind,
    ) -> anyhow::Result<Bed> {
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
        let config = parse(folder, &translator_file(folder, links, &addresses, ground.control[1]))?;
        setup::setup(&config, TRANSLATOR).await.context("the translator cannot be programmed")?;
        let reporter = program(folder, ground.control[0], traffic, Filter::None).await?;
        let client = |address: &String| Client::connect_lazy(&ClientOptions::plain(address));
        let collectors = addresses.iter().map(client).collect::<Result<Vec<_>, _>>()?;
        let member = |(address, client): (&String, &Client)| Member {
            address: address.clone(),
            ask: Arc::new(client.clone()),
        };
        let all = Spread::new(addresses.iter().zip(&collectors).map(member).collect());
        let host = |name: &str| PacketLink::open(&PacketConfig::new(name, []));
        Ok(Bed {
            collectors,
            all,
            links,
            nic,
            folder: folder.to_owned(),
            config,
            reporter,
            control: ground.control[0],
            hosts: [host(HOSTS[0])?, host(HOSTS[1])?],
            batch: Batch::with_packet_capacity(1, usize::from(u16::MAX)),
            sent: 0,
            out: 0,
            flow_reports: 0,
            drop_reports: 0,
            waiting: [0; 2],
            batches: 0,
            _collectors: daemons,
            _ground: ground,
        })
    }

    /// Sends frames, and waits until all that they become has come out.
    async fn replay(&mut self, frames: &[(u8, Vec<u8>)], fates: &[Fate]) -> anyhow::Result<()> {
        self.send(frames, fates.iter().map(|fate| fate.out).sum())?;
        self.reported(
            fates.iter().map(|fate| fate.flow_reports).sum(),
            fates.iter().map(|fate| fate.drop_reports).sum(),
        );
        self.settle().await
    }

    fn send(&mut self, frames: &[(u8, Vec<u8>)], out: u64) -> anyhow::Result<()> {
        for (port, frame) in frames {
            self.batch.push_frame(frame, 0)?;
            let host = &mut self.hosts[usize::from(*port) - 1];
            ensure!(host.send(&mut self.batch)? == 1, "a frame of {} bytes cannot be sent", frame.len());
        }
        self.sent += frames.len() as u64;
        self.out += out;
        Ok(())
    }

    /// Adds what the reporter reports.
    fn reported(&mut self, flows: u64, drops: u64) {
        self.flow_reports += flows;
        self.drop_reports += drops;
        for (waiting, more) in self.waiting.iter_mut().zip([flows, drops]) {
            *waiting += more;
            self.batches += *waiting / ENTRIES;
            *waiting %= ENTRIES;
        }
    }

    fn reports(&self) -> u64 {
        self.flow_reports * OF_FLOW + self.drop_reports * OF_DROP
    }

    fn frames(&self) -> u64 {
        self.flow_reports * FRAMES_OF_FLOW + self.drop_reports * FRAMES_OF_DROP + self.batches
    }

    /// Waits until as many packets have come out at the hosts, the translator and the collector as have to.
    async fn settle(&self) -> anyhow::Result<()> {
        let wanted = [self.out, self.reports(), self.frames()];
        let until = Instant::now() + PATIENCE;
        loop {
            let out = received(HOSTS[0])?.0 + received(HOSTS[1])?.0;
            let came = [out, received(TRANSLATOR_IN)?.0, self.came_to_collectors()?];
            if came.iter().zip(wanted).all(|(came, wanted)| *came >= wanted) {
                return Ok(());
            }
            if Instant::now() > until {
                bail!(
                    "packets, reports and frames that have to have come out after {} packets: {wanted:?}; those that came: {came:?}",
                    self.sent
                );
            }
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }

    /// Frames that came to the collectors, by the kernel's count.
    fn came_to_collectors(&self) -> anyhow::Result<u64> {
        self.links.iter().map(|link| Ok(received(link.collector)?.0)).sum()
    }

    /// Lets the translator send what it holds.
    async fn flush(&mut self) -> anyhow::Result<()> {
        setup::flush(&self.config, TRANSLATOR).await?;
        for waiting in &mut self.waiting {
            self.batches += u64::from(*waiting > 0);
            *waiting = 0;
        }
        Ok(())
    }

    /// Waits until the reporter has forwarded or dropped all that was sent.
    async fn handled(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let counts = self.reporter.counters().await?;
            let handled = ["dropped", "egress_dropped", "forwarded"].map(|name| sum(&counts, name));
            let handled: u64 = handled.iter().sum();
            if handled >= self.sent {
                return Ok(());
            }
            ensure!(Instant::now() < until, "of {} packets the reporter handled {handled}", self.sent);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Compares the counters of every hop with the truth.
    async fn account(&mut self, truth: &Truth, outcome: &mut Outcome) -> anyhow::Result<()> {
        let counts = self.reporter.counters().await?;
        let counted = |name: &str| sum(&counts, name);
        let (sent, forwarded) = (counted("received"), counted("forwarded"));
        outcome.same("packets that the reporter received", self.sent, sent);
        outcome.same("packets that it forwarded", self.out, forwarded);
        let dropped = counts.of("dropped").iter().zip(counts.of("egress_dropped")).map(|(a, b)| a + b);
        let dropped: Vec<u64> = dropped.collect();
        for (reason, packets) in dropped.iter().enumerate() {
            let wanted = truth.dropped.get(&(reason as u8)).copied().unwrap_or(0);
            outcome.same(&format!("packets dropped for reason {reason}"), wanted, *packets);
        }
        outcome.same("packets without a flow", truth.no_flow, counted("no_flow"));
        for (port, host) in HOSTS.iter().enumerate() {
            let (packets, bytes) = received(host)?;
            outcome.same(&format!("packets at {host}"), truth.out[port].0, packets);
            outcome.same(&format!("bytes at {host}"), truth.out[port].1, bytes);
        }
        let (flows, drops) = cloned(&counts);
        outcome.same("packets reported as flows", truth.flow_reports, flows);
        outcome.same("packets reported as dropped", truth.drop_reports, drops);
        let reports = counted("sent");
        outcome.same("reports that the reporter sent", self.reports(), reports);
        let came = received(TRANSLATOR_IN)?.0;
        outcome.same("reports that came to the translator", self.reports(), came);
        let nodes = setup::statistics(&self.config, TRANSLATOR).await?;
        outcome.nodes.add(nodes);
        outcome.nodes.add(vec![self.reporter.statistics().await?]);
        let all = outcome.nodes.clone();
        let translator = all.node(Stage::Translator);
        outcome.same("reports that the translator received", self.reports(), translator.named("received"));
        for name in ["dropped", "lost.queue_pair_down", "nacks"] {
            outcome.same(&format!("the translator's {name}"), 0, translator.named(name));
        }
        let frames = translator.named("frames");
        outcome.same("frames that it sent", self.frames(), frames);
        let came_to_collectors = self.came_to_collectors()?;
        outcome.same("frames that came to the collectors", self.frames(), came_to_collectors);
        let (mut taken, mut executed, mut answered) = (0, 0, 0);
        for (link, collector) in self.links.iter().zip(&self.collectors) {
            let mut of_one = Statistics::default();
            of_one.add(collector.statistics().await?);
            let nic = of_one.node(Stage::Nic);
            let here = nic.named("executed.write") + nic.named("executed.fetch_add");
            if self.links.len() > 1 {
                outcome.line(format!("NIC at {}: {here} frames executed", link.address));
                // Both have a part of the keys.
                let has_some = u64::from(here > 0);
                outcome.same(
                    &format!("NIC at {} that executed some of the frames", link.address),
                    1,
                    has_some,
                );
            }
            taken += nic.named("received");
            executed += here;
            answered += nic.sum(Step::Answered);
            let mut nodes = collector.statistics().await?;
            nodes.retain(|node| matches!(Stage::of(&node.node), Stage::Nic | Stage::Collector));
            if self.links.len() > 1 {
                for node in &mut nodes {
                    node.node = format!("{}@{}", node.node, link.address);
                }
            }
            outcome.nodes.add(nodes);
        }
        outcome.same("frames that the NICs received", self.frames(), taken);
        // An RDMA device does not tell what it executed.
        if self.nic == NicKind::Soft {
            outcome.same("frames that the NICs executed", self.frames(), executed);
        }
        let answers: u64 =
            self.links.iter().map(|link| Ok(received(link.translator)?.0)).sum::<anyhow::Result<u64>>()?;
        let link = |name, sent, received| LinkAccount { name, sent, received, ..LinkAccount::default() };
        outcome.links = vec![
            link("reporter-translator", reports, came),
            link("translator-reporter", translator.named("nacks"), received(REPORTER_OUT)?.0),
            link("translator-nic", frames, came_to_collectors),
            link("nic-translator", answered, answers),
        ];
        for primitive in Primitive::ALL {
            let name = primitive.name();
            outcome.operations.insert(primitive, translator.named(&format!("{name}.operations")));
        }
        let (flows, drops) = (truth.flow_reports, truth.drop_reports);
        outcome.sent = BTreeMap::from([
            (Primitive::KeyWrite, flows),
            (Primitive::Postcarding, flows),
            (Primitive::Append, flows + drops),
            (Primitive::KeyIncrement, 2 * flows + 2 * drops),
        ]);
        let by_nic = match self.nic {
            NicKind::Soft => format!("NIC: {executed} executed"),
            NicKind::Rxe => format!("NIC: {taken} received"),
        };
        outcome.line(format!(
            "reporter: {sent} packets received, {forwarded} forwarded, {} dropped; {} reports\n\
             translator: {} reports received, {frames} frames; {by_nic}",
            dropped.iter().sum::<u64>(),
            self.reports(),
            translator.named("received"),
        ));
        Ok(())
    }

    /// Asks the collector for everything, and compares it with the truth.
    async fn compare(&mut self, truth: &Truth, outcome: &mut Outcome) -> anyhow::Result<()> {
        let collectors = self.links.len();
        let may_be_overwritten = truth.may_be_overwritten(COPIES, SLOTS, collectors);
        let flows: Vec<Key> = truth.last_length.keys().copied().collect();
        let answers = self.all.key_write("lengths", &flows, Policy::First, 0).await?;
        for (key, answer) in flows.iter().zip(answers) {
            let wanted = truth.last_length[key].to_be_bytes().to_vec();
            let is_right = answer.value.as_ref() == Some(&wanted);
            let what = || format!("length of the last packet of {key}: {:?}, not {wanted:?}", answer.value);
            outcome.judge(Primitive::KeyWrite, is_right, may_be_overwritten.contains(key), what);
        }
        let answers = self.all.path("paths", &flows).await?;
        for (key, answer) in flows.iter().zip(answers) {
            let is_right = answer.found && answer.path_length == 1 && answer.hops.first() == Some(&SWITCH);
            let what = || format!("path of {key}: {answer:?}");
            outcome.judge(Primitive::Postcarding, is_right, may_be_overwritten.contains(key), what);
        }
        let counters = truth.answers(COPIES, SLOTS, collectors);
        let keys: Vec<Key> = counters.keys().copied().collect();
        let answers = self.all.counter("counters", &keys).await?;
        for (key, answer) in keys.iter().zip(answers) {
            let what = || format!("counter of {key}: {}, not {}", answer.value, counters[key]);
            outcome.judge(Primitive::KeyIncrement, answer.value == counters[key], false, what);
        }
        for (list, wanted) in truth.listed.iter().enumerate() {
            let found = self.list(list as u32).await?;
            for key in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
                let (wanted, found) = (wanted.get(key), found.get(key));
                let what = || format!("list {list}, {key}: {wanted:?} times by the truth, {found:?} listed");
                outcome.judge(Primitive::Append, wanted == found, false, what);
            }
        }
        Ok(())
    }

    /// How often each key is in a list.
    async fn list(&mut self, list: u32) -> anyhow::Result<BTreeMap<Key, u64>> {
        let request = TailRequest {
            store: "flows".into(),
            list,
            until_caught_up: true,
            from_sequence: 1,
            ..TailRequest::default()
        };
        let mut stream = self.all.tail(request).await?;
        let mut found = BTreeMap::new();
        while let Some(message) = stream.message().await? {
            let trouble = message.overwritten_batches + message.missing_batches + message.damaged_batches;
            ensure!(trouble == 0, "list {list} has batches that are missing: {message:?}");
            for entry in message.entries {
                let bytes: [u8; 16] = entry.try_into().ok().context("an entry of a list is no key")?;
                *found.entry(Key(bytes)).or_default() += 1;
            }
        }
        Ok(found)
    }

    /// Runs with the filters that a switch has by default. Rounds are further apart than an interval, so in each of
    /// them each watched flow has to be reported.
    async fn filtered(
        &mut self,
        traffic: &Traffic,
        network: std::net::Ipv4Addr,
        outcome: &mut Outcome,
        mut progress: impl FnMut(u64),
    ) -> anyhow::Result<()> {
        self.reporter = program(&self.folder, self.control, traffic, Filter::Network(network)).await?;
        let watched = Watched::Network(network);
        let (mut flows_before, mut drops_before) = (self.flow_reports, self.drop_reports);
        let mut before = self.list(0).await?;
        let (mut packets, mut reports) = (0, 0);
        for round in 1..=ROUNDS {
            tokio::time::sleep(Duration::from_nanos(1 << reporter::INTERVAL) + Duration::from_millis(100))
                .await;
            let mut truth = Truth::default();
            for some in traffic.frames.chunks(IN_FLIGHT) {
                let fates: Vec<Fate> =
                    some.iter().map(|frame| truth.add(&traffic.stations, watched, frame)).collect();
                self.send(some, fates.iter().map(|fate| fate.out).sum())?;
                // When all of them had their fate, the program says how many it reports.
                self.handled().await?;
                let (flows, drops) = cloned(&self.reporter.counters().await?);
                self.reported(flows - flows_before, drops - drops_before);
                (flows_before, drops_before) = (flows, drops);
                self.settle().await?;
                progress(self.sent);
            }
            self.flush().await?;
            self.settle().await?;
            let now = self.list(0).await?;
            let new = |key: &Key| now.get(key).copied().unwrap_or(0) - before.get(key).copied().unwrap_or(0);
            for key in truth.listed[0].keys() {
                match new(key) {
                    0 => outcome
                        .missed
                        .push(format!("round {round}: {key} is watched and active, and was not reported")),
                    _ => outcome.right += 1,
                }
            }
            for key in now.keys().filter(|key| new(key) > 0 && !truth.listed[0].contains_key(*key)) {
                outcome.missed.push(format!("round {round}: {key} is not watched, and was reported"));
            }
            packets += truth.flow_reports;
            reports += now.keys().map(new).sum::<u64>();
            before = now;
        }
        outcome.line(format!(
            "default filters, {network}/24 watched, {ROUNDS} rounds: {packets} packets of watched flows, {reports} flow reports"
        ));
        Ok(())
    }
}

/// All of a counter.
fn sum(counts: &Counts, counter: &str) -> u64 {
    counts.of(counter).iter().sum()
}

/// Packets of which reports are made: of flows, and of drops.
fn cloned(counts: &Counts) -> (u64, u64) {
    let drops = counts.at("mirrored", DROP_SESSION) + sum(counts, "ingress_mirrored");
    (counts.at("mirrored", FLOW_SESSION), drops)
}

/// Lets the reporter do what the configuration says.
async fn program(
    folder: &Path,
    control: &str,
    traffic: &Traffic,
    filter: Filter,
) -> anyhow::Result<Reporter> {
    let config = parse(folder, &reporter::file(control, traffic, filter))?;
    let reporter = Reporter::of(&config, reporter::NAME)?;
    let mut reporter = reporter.context("the configuration has no reporter")?;
    reporter.setup().await.context("the reporter cannot be programmed")?;
    Ok(reporter)
}
