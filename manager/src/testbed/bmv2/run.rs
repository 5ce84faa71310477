//! One run: a capture is replayed, and the collector is asked for everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dta_client::collector::Client;
use dta_client::{Ask, ClientOptions};
use dta_link::packet::{PacketConfig, PacketLink};
use dta_link::{Batch, Link};
use dta_proto::control::{Policy, TailRequest};
use dta_proto::counter::Stage;
use dta_proto::key::Key;
use dta_translator::config::Config;
use dta_translator::setup;

use super::controller::Controller;
use super::ground::{COLLECTOR, COLLECTOR_MAC, Ground, HOSTS, TRANSLATOR_IN, received};
use super::reporter::{self, DROP_SESSION, FLOW_SESSION, OF_DROP, OF_FLOW, SERVICE};
use super::truth::{Fate, SWITCH, Traffic, Truth, Watched};
use crate::capture::{self, LinkType};
use crate::testbed::processes::{self, Daemon};
use crate::testbed::statistics::Statistics;

/// Copies of reports, and slots of each store.
const COPIES: u8 = 2;
const SLOTS: u64 = 1 << 18;
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
/// Reporter and translator are bmv2's programs; the switch's name in the configuration.
const TRANSLATOR: &str = "t1";

const REPORTER_P4INFO: &[u8] = include_bytes!("../../../../reporter-p4/compiled/v1model/reporter.p4info.bin");
const REPORTER_JSON: &[u8] = include_bytes!("../../../../reporter-p4/compiled/v1model/reporter.json");

/// What was found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What happened, one figure a line.
    lines: Vec<String>,
    /// Answers that are the truth, that may be overwritten by other keys, and all others.
    right: u64,
    overwritten: u64,
    wrong: Vec<String>,
    /// What counters do not account for.
    unexplained: Vec<String>,
}

impl Outcome {
    /// Whether nothing is wrong and nothing unexplained.
    pub fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.unexplained.is_empty()
    }

    fn line(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    /// Two numbers that have to be equal.
    fn same(&mut self, what: &str, wanted: u64, found: u64) {
        if wanted != found {
            self.unexplained.push(format!("{what}: {wanted} by the truth, {found} counted"));
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        for line in self.wrong.iter().chain(&self.unexplained).take(20) {
            writeln!(f, "  {line}")?;
        }
        write!(
            f,
            "answers: {} right, {} overwritten by other keys, {} wrong; unexplained: {}",
            self.right,
            self.overwritten,
            self.wrong.len(),
            self.unexplained.len()
        )
    }
}

/// All that runs.
struct Bed {
    collector: Client,
    config: Config,
    reporter: Controller,
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
    _collector: Daemon,
    _ground: Ground,
}

/// Runs it, in the namespace that [`super::enter`] made. `progress` is told the packets sent, of how many.
pub async fn run(path: &Path, mut progress: impl FnMut(u64, u64)) -> anyhow::Result<Outcome> {
    let folder = processes::scratch().context("cannot make a folder for the testbed")?;
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
    let mut bed = Bed::start(folder.path(), &traffic).await?;
    let mut outcome = Outcome::default();

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
    bed.account(&truth, &mut outcome).await?;
    bed.compare(&truth, &mut outcome).await?;
    bed.filtered(&traffic, network, &mut outcome, |sent| progress(sent, total)).await?;
    Ok(outcome)
}

impl Bed {
    async fn start(folder: &Path, traffic: &Traffic) -> anyhow::Result<Bed> {
        let ground = Ground::set_up(folder).await?;
        let path = folder.join("collector.toml");
        std::fs::write(&path, collector_file(folder))?;
        let arguments = ["serve", "--config", &path.display().to_string()].map(String::from);
        let collector =
            Daemon::start("collector", "__collector", &arguments, &folder.join("collector.log")).await?;
        let address =
            collector.ready()["listen"].as_str().context("the collector does not say where it listens")?;
        let text = translator_file(folder, address, ground.control[1]);
        let (config, _) = Config::parse(&text, &folder.join("translator.toml"))?;
        config.check()?;
        setup::setup(&config, TRANSLATOR).await.context("the translator cannot be programmed")?;
        let mut reporter = Controller::load(ground.control[0], REPORTER_P4INFO, REPORTER_JSON)
            .await
            .context("the reporter cannot be programmed")?;
        reporter::fill(&mut reporter, traffic).await.context("the reporter cannot be programmed")?;
        let host = |name: &str| PacketLink::open(&PacketConfig::new(name, []));
        Ok(Bed {
            collector: Client::connect_lazy(&ClientOptions::plain(address))?,
            config,
            reporter,
            hosts: [host(HOSTS[0])?, host(HOSTS[1])?],
            batch: Batch::with_packet_capacity(1, usize::from(u16::MAX)),
            sent: 0,
            out: 0,
            flow_reports: 0,
            drop_reports: 0,
            waiting: [0; 2],
            batches: 0,
            _collector: collector,
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
            let came = [out, received(TRANSLATOR_IN)?.0, received(COLLECTOR)?.0];
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
            let mut handled = 0;
            for counter in ["Arrival.dropped", "Departure.egress_dropped", "Departure.forwarded"] {
                handled += self.sum(counter).await?;
            }
            if handled >= self.sent {
                return Ok(());
            }
            ensure!(Instant::now() < until, "of {} packets the reporter handled {handled}", self.sent);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn sum(&mut self, counter: &str) -> anyhow::Result<u64> {
        Ok(self.reporter.counters(counter).await?.iter().sum())
    }

    /// Compares the counters of every hop with the truth.
    async fn account(&mut self, truth: &Truth, outcome: &mut Outcome) -> anyhow::Result<()> {
        let sent = self.sum("Arrival.received").await?;
        outcome.same("packets that the reporter received", self.sent, sent);
        let forwarded = self.sum("Departure.forwarded").await?;
        outcome.same("packets that it forwarded", self.out, forwarded);
        let mut dropped = self.reporter.counters("Arrival.dropped").await?;
        for (cell, more) in dropped.iter_mut().zip(self.reporter.counters("Departure.egress_dropped").await?)
        {
            *cell += more;
        }
        for (reason, packets) in dropped.iter().enumerate() {
            let wanted = truth.dropped.get(&(reason as u8)).copied().unwrap_or(0);
            outcome.same(&format!("packets dropped for reason {reason}"), wanted, *packets);
        }
        outcome.same("packets without a flow", truth.no_flow, self.sum("Arrival.no_flow").await?);
        for (port, host) in HOSTS.iter().enumerate() {
            let (packets, bytes) = received(host)?;
            outcome.same(&format!("packets at {host}"), truth.out[port].0, packets);
            outcome.same(&format!("bytes at {host}"), truth.out[port].1, bytes);
        }
        let mirrored = self.reporter.counters("Departure.mirrored").await?;
        outcome.same("packets reported as flows", truth.flow_reports, mirrored[FLOW_SESSION]);
        let drops = self.sum("ingress_mirrored").await? + mirrored[DROP_SESSION];
        outcome.same("packets reported as dropped", truth.drop_reports, drops);
        outcome.same("reports that the reporter sent", self.reports(), self.sum("make_report.sent").await?);
        outcome.same("reports that came to the translator", self.reports(), received(TRANSLATOR_IN)?.0);
        let nodes = setup::statistics(&self.config, TRANSLATOR).await?;
        let mut all = Statistics::default();
        all.add(nodes);
        let translator = all.node(Stage::Translator);
        outcome.same("reports that the translator received", self.reports(), translator.named("received"));
        for name in ["dropped", "lost.queue_pair_down", "nacks"] {
            outcome.same(&format!("the translator's {name}"), 0, translator.named(name));
        }
        outcome.same("frames that it sent", self.frames(), translator.named("frames"));
        outcome.same("frames that came to the collector", self.frames(), received(COLLECTOR)?.0);
        let mut all = Statistics::default();
        all.add(self.collector.statistics().await?);
        let nic = all.node(Stage::Nic);
        outcome.same("frames that the NIC received", self.frames(), nic.named("received"));
        let executed = nic.named("executed.write") + nic.named("executed.fetch_add");
        outcome.same("frames that the NIC executed", self.frames(), executed);
        outcome.line(format!(
            "reporter: {sent} packets received, {forwarded} forwarded, {} dropped; {} reports\n\
             translator: {} reports received, {} frames; NIC: {executed} executed",
            dropped.iter().sum::<u64>(),
            self.reports(),
            translator.named("received"),
            translator.named("frames"),
        ));
        Ok(())
    }

    /// Asks the collector for everything, and compares it with the truth.
    async fn compare(&mut self, truth: &Truth, outcome: &mut Outcome) -> anyhow::Result<()> {
        let may_be_overwritten = truth.may_be_overwritten(COPIES, SLOTS);
        let flows: Vec<Key> = truth.last_length.keys().copied().collect();
        let mut judge = |what: &str, key: &Key, is_right: bool, answer: &dyn fmt::Debug| match is_right {
            true => outcome.right += 1,
            false if may_be_overwritten.contains(key) => outcome.overwritten += 1,
            false => outcome.wrong.push(format!("{what} of {key}: {answer:?}")),
        };
        let answers = self.collector.key_write("lengths", &flows, Policy::First, 0).await?;
        for (key, answer) in flows.iter().zip(answers) {
            let wanted = truth.last_length[key].to_be_bytes().to_vec();
            judge(
                "length of the last packet",
                key,
                answer.value.as_ref() == Some(&wanted),
                &(&answer.value, wanted),
            );
        }
        let answers = self.collector.path("paths", &flows).await?;
        for (key, answer) in flows.iter().zip(answers) {
            let is_right = answer.found && answer.path_length == 1 && answer.hops.first() == Some(&SWITCH);
            judge("path", key, is_right, &answer);
        }
        let counters = truth.answers(COPIES, SLOTS);
        let keys: Vec<Key> = counters.keys().copied().collect();
        let answers = self.collector.counter("counters", &keys).await?;
        for (key, answer) in keys.iter().zip(answers) {
            judge("counter", key, answer.value == counters[key], &(answer.value, counters[key]));
        }
        for (list, wanted) in truth.listed.iter().enumerate() {
            let found = self.list(list as u32).await?;
            for key in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
                let (wanted, found) = (wanted.get(key), found.get(key));
                match wanted == found {
                    true => outcome.right += 1,
                    false => outcome
                        .wrong
                        .push(format!("list {list}, {key}: {wanted:?} times by the truth, {found:?} listed")),
                }
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
        let mut stream = self.collector.tail(request).await?;
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
        reporter::filter(&mut self.reporter, network).await?;
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
                let mirrored = self.reporter.counters("Departure.mirrored").await?;
                let flows = mirrored[FLOW_SESSION];
                let drops = mirrored[DROP_SESSION] + self.sum("ingress_mirrored").await?;
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
                        .wrong
                        .push(format!("round {round}: {key} is watched and active, and was not reported")),
                    _ => outcome.right += 1,
                }
            }
            for key in now.keys().filter(|key| new(key) > 0 && !truth.listed[0].contains_key(*key)) {
                outcome.wrong.push(format!("round {round}: {key} is not watched, and was reported"));
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

fn collector_file(folder: &Path) -> String {
    let memory = folder.join("memory");
    let store = |id: u16, name: &str, rest: &str| format!("[[store]]\nid = {id}\nname = '{name}'\n{rest}\n");
    [
        format!(
            "[collector]\nname = 'testbed'\nlisten = '127.0.0.1:0'\nmemory = '{}'\n[metrics]\nlisten = 'off'\n\
             [soft]\naddress = '198.18.9.1'\nport = 4791\nlink = 'packet:{COLLECTOR}'\n",
            memory.display()
        ),
        store(reporter::LENGTHS, "lengths", &format!("kind = 'key-write'\nslots = {SLOTS}\nvalue_len = 4\nredundancy = {COPIES}")),
        store(reporter::PATHS, "paths", &format!("kind = 'postcarding'\nslots = {SLOTS}\nhops = 6\nredundancy = {COPIES}")),
        store(reporter::FLOWS, "flows", "kind = 'append'\nlists = 2\nring = 8192\nbatch_len = 64\nentry_len = 16"),
        store(reporter::COUNTERS, "counters", &format!("kind = 'key-increment'\nslots = {SLOTS}\nredundancy = {COPIES}")),
    ]
    .concat()
}

fn translator_file(folder: &Path, collector: &str, control: &str) -> String {
    let mac = |value: u64| {
        value.to_be_bytes()[2..].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
    };
    format!(
        "[translator]\ncollector = 'http://{collector}'\nlisten = '{SERVICE}:40040'\nsource = '{SERVICE}'\nmac = '{}'\n\
         [switch.{TRANSLATOR}]\ntype = 'bmv2'\ncontrol = '{control}'\nstate = '{}'\ncollector_ports = [2]\npostcard_rows = 256\n\
         collector_macs = ['{COLLECTOR_MAC}']\nstations = [{{ mac = '{}', port = 1 }}]\n",
        mac(reporter::TRANSLATOR_MAC),
        folder.join("switch.json").display(),
        mac(reporter::REPORTER_MAC),
    )
}
