//! One run: replays a capture, and queries the collector for everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dta_rpc::{Ask, AskKeys};
use dta_proto::control::TailRequest;
use dta_proto::counter::translator::PAIR_RETRANSMITTED;
use dta_proto::counter::{Stage, Step};
use dta_proto::key::Key;
use dta_proto::program::Primitive;
use dta_translator::switches::p4::counters::Counts;

use super::disturbance::Disturbance;
use super::files::{COPIES, SLOTS, with_stores};
use super::ground::COLLECTORS;
use super::machines::{OnMachines, OptionsOnMachines};
use super::one_machine::OneMachine;
use super::outcome::Outcome;
use super::place::Place;
use super::reporter::{self, DROP_SESSION, FLOW_SESSION, Filter, OF_DROP, OF_FLOW};
use super::truth::{Fate, Frame, OfReporter, Reported, Traffic, Truth, Watched};
use crate::accounting::LinkAccount;
use crate::capture::{self, LinkType};
use crate::chaos::Chaos;
use crate::check::{Ahead, Asked, Pools, Rows};
use crate::far::config::Role;
use crate::far::start::Far;
use crate::folder::Folder;
use crate::ground::NicKind;
use crate::outcome::{ChaosOutcome, EpochOutcome, RunFacts};
use crate::statistics::Statistics;
use crate::topology::Topology;
use crate::turns::{self, Asking, Pace, Turns};
use crate::workload::SeenFlow;

/// Flow keys in one batch of a list.
const ENTRIES: u64 = 3;
/// Frames per packet that is forwarded, or dropped, without those of lists.
const FRAMES_OF_FLOW: u64 = 4 * COPIES as u64;
const FRAMES_OF_DROP: u64 = 2 * COPIES as u64;
/// Packets in flight at once: each becomes up to 11 frames in one of bmv2's queues, which hold 64 packets and
/// silently drop the rest.
const IN_FLIGHT: usize = 4;
/// After waiting this long, what is missing will not come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the capture is replayed with default filters.
const ROUNDS: u64 = 2;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The capture.
    pub capture: PathBuf,
    /// Collectors that share the keys, 1 or 2.
    pub collectors: u8,
    /// Their NIC. With soft-RoCE there is one collector.
    pub nic: NicKind,
    /// Epochs of the stores of values and paths, over which the first pass is spread.
    pub epochs: Option<Turns>,
    /// What to kill in the middle of it; only with epochs.
    pub chaos: Option<Chaos>,
}

/// What runs, and its expected result.
pub(super) struct Bed {
    pub(super) place: Place,
    topology: Topology,
    /// What was sent, and its expected result so far.
    sent: u64,
    out: u64,
    flow_reports: u64,
    drop_reports: u64,
    /// Entries that wait in the translator for their batch, by list; full batches sent; and batches flushed.
    waiting: [u64; 2],
    batches: u64,
    /// Batches that lists may lack: numbers that a session which is opened again leaves out.
    pub(super) left_out: u64,
}

/// Runs it, in the namespace that [`super::enter`] made. Calls `progress` with the packets sent, and the total.
pub async fn run(options: &Options, progress: impl FnMut(u64, u64)) -> anyhow::Result<Outcome> {
    let folder = Folder::new().context("cannot make a folder for the testbed")?;
    let traffic = traffic(&options.capture, 1)?;
    let links = &COLLECTORS[..usize::from(options.collectors).clamp(1, COLLECTORS.len())];
    let here = OneMachine::start(folder.path(), links, options.nic, options.epochs.map(Turns::every)).await?;
    let topology = Topology { name: "bmv2".into(), ..with_stores(&Topology::load(None)?)? };
    play(Place::OneMachine(Box::new(here)), topology, options, &traffic, progress).await
}

/// Runs it on the machines of a topology.
pub async fn run_on_machines(
    options: &OptionsOnMachines,
    progress: impl FnMut(u64, u64),
) -> anyhow::Result<Outcome> {
    let reporters = options.topology.machines.iter().filter(|machine| machine.has(Role::Reporter)).count();
    let traffic = traffic(&options.capture, reporters)?;
    let folder = Folder::new().context("cannot make a folder for the testbed")?;
    let logs = options.logs.as_deref().unwrap_or(folder.path());
    std::fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let topology = &options.topology;
    let far = Far::connect(topology, folder.path(), logs).await?;
    let run = async {
        let there = OnMachines::start(topology, &far, folder.path()).await?;
        let options = Options {
            capture: options.capture.clone(),
            collectors: 0,
            nic: NicKind::default(),
            epochs: None,
            chaos: None,
        };
        play(Place::OnMachines(Box::new(there)), with_stores(topology)?, &options, &traffic, progress).await
    };
    match run.await {
        Ok(outcome) => Ok(outcome),
        Err(error) => Err(far.explain(error).await),
    }
}

/// The frames of a capture, some of which switches can report, each for one of so many reporters.
fn traffic(path: &Path, reporters: usize) -> anyhow::Result<Traffic> {
    let mut frames = Vec::new();
    capture::read(path, |packet| {
        if packet.link == LinkType::Ethernet && packet.data.len() >= 14 {
            frames.push(packet.data.to_vec());
        }
    })?;
    ensure!(!frames.is_empty(), "{} holds no Ethernet frame", path.display());
    let traffic = Traffic::of(frames, reporters);
    ensure!(
        traffic.has_flows(),
        "switches report only IPv4 flows, and never those of DTA and RoCEv2: none of the {} frames of {} would be \
         reported. Without --switch, run-testbed takes IPv6 too; docs/switches.md says what switches would need for it",
        traffic.frames.len(),
        path.display()
    );
    Ok(traffic)
}

/// Replays it, queries, and compares: first with each packet reported, then with default filters.
async fn play(
    place: Place,
    topology: Topology,
    options: &Options,
    traffic: &Traffic,
    mut progress: impl FnMut(u64, u64),
) -> anyhow::Result<Outcome> {
    let (packets, path) = (traffic.frames.len() as u64, &options.capture);
    let total = packets * (1 + ROUNDS);
    let mut bed = Bed {
        place,
        topology,
        sent: 0,
        out: 0,
        flow_reports: 0,
        drop_reports: 0,
        waiting: [0; 2],
        batches: 0,
        left_out: 0,
    };
    bed.place.program(traffic, Filter::None).await?;
    let mut outcome = Outcome::default();
    let began = Instant::now();
    let pace = options.epochs.map(|turns| Pace::begin(turns, packets, true));
    let mut disturbance = Disturbance::of(options.chaos);

    let mut truth = Truth::of(traffic.stations.len());
    for some in traffic.frames.chunks(IN_FLIGHT) {
        if let Some(pace) = &pace {
            tokio::time::sleep_until(pace.due(bed.sent).into()).await;
        }
        if bed.sent >= packets / 2 {
            disturbance.go_on(&mut bed, &truth).await?;
        }
        let fates: Vec<Fate> = some.iter().map(|frame| truth.add(traffic, Watched::All, frame)).collect();
        bed.replay(some, &fates).await?;
        truth.reported.journal.note_settled();
        progress(bed.sent, total);
    }
    let chaos = disturbance.end(&mut bed, &truth).await?;
    outcome.missed.extend(chaos.iter().flat_map(ChaosOutcome::failures));
    bed.flush().await?;
    bed.settle().await?;
    outcome.line(format!(
        "{}: {} packets, {} longer than 1,514 bytes, {} of no IPv4 flow; {} flows",
        path.display(),
        traffic.frames.len(),
        traffic.frames.iter().filter(|frame| frame.bytes.len() > 1514).count(),
        truth.no_flow(),
        truth.reported.flows.len()
    ));
    let seconds = began.elapsed().as_secs_f64();
    let (nic, transport) = bed.place.names();
    outcome.run = RunFacts {
        topology: bed.topology.name.clone(),
        capture: Some(path.display().to_string()),
        skipped: BTreeMap::from([("no-flow".to_owned(), truth.no_flow())]),
        nic: nic.into(),
        transport: transport.into(),
        faults: "none".into(),
        report_faults: "none".into(),
        packets,
        flows: truth.reported.flows.len() as u64,
        seconds,
        reports_per_second: bed.reports() as f64 / seconds.max(1e-9),
        epochs: options.epochs.map(|turns| turns.count),
        chaos,
        ..RunFacts::default()
    };
    bed.account(&truth, &mut outcome).await?;
    bed.compare(&truth, &mut outcome).await?;
    bed.filtered(traffic, &mut outcome, |sent| progress(sent, total)).await?;
    Ok(outcome)
}

impl Bed {
    /// Sends frames, and waits until all that they become has come out.
    async fn replay(&mut self, frames: &[Frame], fates: &[Fate]) -> anyhow::Result<()> {
        self.send(frames, fates.iter().map(|fate| fate.out).sum()).await?;
        self.reported(
            fates.iter().map(|fate| fate.flow_reports).sum(),
            fates.iter().map(|fate| fate.drop_reports).sum(),
        );
        self.settle().await
    }

    async fn send(&mut self, frames: &[Frame], out: u64) -> anyhow::Result<()> {
        self.place.send(frames).await?;
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

    /// Waits until the expected packets have come out at the hosts, the translator and the collector.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let wanted = [self.out, self.reports(), self.frames()];
        let until = Instant::now() + PATIENCE;
        loop {
            let came = self.place.came().await?;
            if came.iter().zip(wanted).all(|(came, wanted)| *came >= wanted)
                && came[2] >= wanted[2] + self.place.probes().await?
            {
                return Ok(());
            }
            if Instant::now() > until {
                bail!(
                    "after {} packets, {wanted:?} packets, reports and frames were expected, and {came:?} came",
                    self.sent
                );
            }
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }

    /// Makes the translator send what it holds.
    async fn flush(&mut self) -> anyhow::Result<()> {
        self.place.flush().await?;
        for waiting in &mut self.waiting {
            self.batches += u64::from(*waiting > 0);
            *waiting = 0;
        }
        Ok(())
    }

    /// Waits until the reporters have forwarded or dropped all that was sent.
    async fn handled(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let reporters = self.place.reporters().await?;
            let handled: u64 = reporters.iter().map(handled).sum();
            if handled >= self.sent {
                return Ok(());
            }
            ensure!(Instant::now() < until, "of {} packets the reporters handled {handled}", self.sent);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Compares the counters of every hop with the truth.
    async fn account(&mut self, truth: &Truth, outcome: &mut Outcome) -> anyhow::Result<()> {
        self.place.rest().await?;
        let reporters = self.place.reporters().await?;
        let hosts = self.place.at_hosts().await?;
        for (number, ((counts, hosts), truth)) in
            reporters.iter().zip(hosts).zip(&truth.reporters).enumerate()
        {
            let name = match reporters.len() {
                1 => "the reporter".to_owned(),
                _ => format!("reporter {}", number + 1),
            };
            account_of_reporter(&name, truth, counts, hosts, outcome);
        }
        let reports: u64 = reporters.iter().map(|counts| sum(counts, "sent")).sum();
        let [_, came, came_to_collectors] = self.place.came().await?;
        outcome.same("reports that came to the translator", self.reports(), came);
        let probes = self.place.probes().await?;
        outcome.same("frames that came to the collectors", self.frames() + probes, came_to_collectors);
        let (mut taken, mut executed, mut answered) = (0, 0, 0);
        let share = self.place.share();
        let collectors = self.place.of_collectors().await?;
        for (number, (address, nodes)) in collectors.iter().enumerate() {
            let mut of_one = Statistics::default();
            of_one.add(nodes.clone());
            let nic = of_one.node(Stage::Nic);
            let here = nic.named("executed.write") + nic.named("executed.fetch_add");
            if collectors.len() > 1 {
                outcome.line(format!("NIC at {address}: {here} frames executed"));
                let wanted = u64::from(truth.reaches(number, share));
                let what = format!("NIC at {address} that executed some of the frames");
                outcome.same(&what, wanted, u64::from(here > 0));
            }
            taken += nic.named("received");
            executed += here;
            answered += nic.sum(Step::Answered);
        }
        outcome.nodes.add_collectors(collectors);
        let [nacks, answers] = self.place.came_back(self.sent).await?;
        let of_translator = self.place.translator().await?;
        let translator = of_translator.node(Stage::Translator);
        // What a software translator does not see answered in time, it sends again.
        let repeated: u64 = translator.each(&PAIR_RETRANSMITTED).map(|(_, frames)| frames).sum();
        let wanted = self.frames() + repeated + probes;
        outcome.same("frames that the NICs received", wanted, taken);
        if self.place.tells_executed() {
            outcome.same("frames that the NICs executed", self.frames(), executed);
        }
        outcome.nodes.add(self.place.reporter_nodes().await?);
        outcome.same("reports that the translator received", self.reports(), translator.named("received"));
        for name in ["dropped", "lost.queue_pair_down", "nacks"] {
            outcome.same(&format!("the translator's {name}"), 0, translator.named(name));
        }
        let frames = translator.named("frames");
        outcome.same("frames that it sent", wanted, frames);
        let link = |name, sent, received| LinkAccount { name, sent, received, ..LinkAccount::default() };
        outcome.links = vec![
            link("reporter-translator", reports, came),
            link("translator-reporter", translator.named("nacks"), nacks),
            link("translator-nic", frames, taken),
            link("nic-translator", answered, answers),
        ];
        for primitive in Primitive::ALL {
            let name = primitive.name();
            outcome.operations.insert(primitive, translator.named(&format!("{name}.operations")));
        }
        let (flows, drops) = truth.reports();
        outcome.sent = BTreeMap::from([
            (Primitive::KeyWrite, flows),
            (Primitive::Postcarding, flows),
            (Primitive::Append, flows + drops),
            (Primitive::KeyIncrement, 2 * flows + 2 * drops),
        ]);
        let by_nic = match self.place.tells_executed() {
            true => format!("NIC: {executed} executed"),
            false => format!("NIC: {taken} received"),
        };
        outcome.line(format!(
            "translator: {} reports received, {frames} frames; {by_nic}",
            translator.named("received"),
        ));
        outcome.nodes.replace(of_translator);
        Ok(())
    }

    /// What is asked of flows.
    pub(super) fn asking<'a>(&'a self, flows: &'a [SeenFlow]) -> Asking<'a> {
        let (all, topology, has_epochs) = (self.place.ask(), &self.topology, self.place.has_epochs());
        let ahead = vec![Ahead::default(); all.members().len()];
        Asking { all, ahead, topology, flows, has_epochs, may_repeat: false }
    }

    /// Queries the collector for everything, and compares it with the truth.
    async fn compare(&mut self, truth: &Truth, outcome: &mut Outcome) -> anyhow::Result<()> {
        let Reported { flows, journal, .. } = &truth.reported;
        let asking = self.asking(flows);
        let has_epochs = self.place.has_epochs();
        let mut answers = asking.ask().await?;
        if has_epochs {
            let (written, changed) = asking.ask_when_written(&answers).await?;
            answers = written;
            outcome.missed.extend(changed);
        }
        let asked = Asked { flows, epochs: &[], journal, rows: Rows::default(), answers: &answers };
        let mut epochs = Vec::new();
        for (primitive, of) in turns::STORES.into_iter().zip(answers.epochs()) {
            let store = self.topology.store(primitive);
            let (tallies, ends) = asked.of(self.place.ask(), store, &mut Pools::default()).await?;
            epochs.extend(EpochOutcome::of(&store.name, of, &tallies));
            outcome.checked(primitive, tallies.sum(), ends);
        }
        outcome.epochs = has_epochs.then_some(epochs);
        if let Some(here) = self.place.here().filter(|_| has_epochs) {
            here.restart_collectors(Some(&self.topology)).await?;
            let (all, topology) = (self.place.ask(), &self.topology);
            outcome.missed.extend(turns::changed_by_restart(all, topology, flows, &answers).await?);
        }
        let share = self.place.share();
        let counters = truth.answers(COPIES, SLOTS, share);
        let keys: Vec<Key> = counters.keys().copied().collect();
        let answers = self.place.ask().counter("counters", &keys).await?;
        for (key, answer) in keys.iter().zip(answers) {
            let what = || format!("counter of {key}: {}, not {}", answer.value, counters[key]);
            outcome.judge(Primitive::KeyIncrement, answer.value == counters[key], what);
        }
        for (list, wanted) in truth.listed.iter().enumerate() {
            let found = self.list(list as u32).await?;
            for key in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
                let (wanted, found) = (wanted.get(key), found.get(key));
                let what = || format!("list {list}, {key}: {wanted:?} times expected, {found:?} listed");
                outcome.judge(Primitive::Append, wanted == found, what);
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
        let mut stream = self.place.ask().tail(request).await?;
        let (mut found, mut missing) = (BTreeMap::new(), 0);
        while let Some(message) = stream.message().await? {
            missing += message.missing_batches;
            let trouble = message.overwritten_batches + message.damaged_batches;
            ensure!(
                trouble == 0 && missing <= self.left_out,
                "list {list} has batches that are missing: {message:?}"
            );
            for entry in message.entries {
                let bytes: [u8; 16] = entry.try_into().ok().context("an entry of a list is no key")?;
                *found.entry(Key(bytes)).or_default() += 1;
            }
        }
        Ok(found)
    }

    /// Runs with a switch's default filters. Rounds are further apart than an interval, so each of them must report
    /// each watched flow.
    async fn filtered(
        &mut self,
        traffic: &Traffic,
        outcome: &mut Outcome,
        mut progress: impl FnMut(u64),
    ) -> anyhow::Result<()> {
        let network = traffic.busiest_network();
        self.place.program(traffic, Filter::Network(network)).await?;
        let watched = Watched::Network(network);
        let (mut flows_before, mut drops_before) = (self.flow_reports, self.drop_reports);
        let mut before = self.list(0).await?;
        let (mut packets, mut reports) = (0, 0);
        for round in 1..=ROUNDS {
            tokio::time::sleep(Duration::from_nanos(1 << reporter::INTERVAL) + Duration::from_millis(100))
                .await;
            let mut truth = Truth::of(traffic.stations.len());
            for some in traffic.frames.chunks(IN_FLIGHT) {
                let fates: Vec<Fate> = some.iter().map(|frame| truth.add(traffic, watched, frame)).collect();
                self.send(some, fates.iter().map(|fate| fate.out).sum()).await?;
                // When all of them had their fate, the programs say how many they report.
                self.handled().await?;
                let (mut flows, mut drops) = (0, 0);
                for counts in self.place.reporters().await? {
                    let (of_flows, of_drops) = cloned(&counts);
                    (flows, drops) = (flows + of_flows, drops + of_drops);
                }
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
                    _ => outcome.reported += 1,
                }
            }
            for key in now.keys().filter(|key| new(key) > 0 && !truth.listed[0].contains_key(*key)) {
                outcome.missed.push(format!("round {round}: {key} is not watched, and was reported"));
            }
            packets += truth.reports().0;
            reports += now.keys().map(new).sum::<u64>();
            before = now;
        }
        outcome.line(format!(
            "default filters, {network}/24 watched, {ROUNDS} rounds: {packets} packets of watched flows, {reports} flow reports"
        ));
        Ok(())
    }
}

/// Compares the counters of a reporter, and what came out at its hosts, with the truth.
fn account_of_reporter(
    name: &str,
    truth: &OfReporter,
    counts: &Counts,
    hosts: [(u64, u64); 2],
    outcome: &mut Outcome,
) {
    let counted = |counter: &str| sum(counts, counter);
    let (received, forwarded) = (counted("received"), counted("forwarded"));
    outcome.same(&format!("packets that {name} received"), truth.packets, received);
    outcome.same(&format!("packets that {name} forwarded"), truth.forwarded(), forwarded);
    let dropped = counts.of("dropped").iter().zip(counts.of("egress_dropped")).map(|(a, b)| a + b);
    let dropped: Vec<u64> = dropped.collect();
    for (reason, packets) in dropped.iter().enumerate() {
        let wanted = truth.dropped.get(&(reason as u8)).copied().unwrap_or(0);
        outcome.same(&format!("packets that {name} dropped for reason {reason}"), wanted, *packets);
    }
    outcome.same(&format!("packets at {name} without a flow"), truth.no_flow, counted("no_flow"));
    for (host, ((packets, bytes), wanted)) in (1..).zip(hosts.into_iter().zip(truth.out)) {
        outcome.same(&format!("packets at host {host} of {name}"), wanted.0, packets);
        outcome.same(&format!("bytes at host {host} of {name}"), wanted.1, bytes);
    }
    let (flows, drops) = cloned(counts);
    outcome.same(&format!("packets that {name} reported as flows"), truth.flow_reports, flows);
    outcome.same(&format!("packets that {name} reported as dropped"), truth.drop_reports, drops);
    let reports = truth.flow_reports * OF_FLOW + truth.drop_reports * OF_DROP;
    outcome.same(&format!("reports that {name} sent"), reports, counted("sent"));
    outcome.line(format!(
        "{}: {received} packets received, {forwarded} forwarded, {} dropped; {} reports",
        name.trim_start_matches("the "),
        dropped.iter().sum::<u64>(),
        counted("sent"),
    ));
}

/// Packets that a reporter forwarded or dropped.
fn handled(counts: &Counts) -> u64 {
    ["dropped", "egress_dropped", "forwarded"].iter().map(|name| sum(counts, name)).sum()
}

/// All of a counter.
fn sum(counts: &Counts, counter: &str) -> u64 {
    counts.of(counter).iter().sum()
}

/// Packets that are reported: flows, and drops.
fn cloned(counts: &Counts) -> (u64, u64) {
    let drops = counts.at("mirrored", DROP_SESSION) + sum(counts, "ingress_mirrored");
    (counts.at("mirrored", FLOW_SESSION), drops)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pcap file of Ethernet frames.
    fn pcap(frames: &[Vec<u8>]) -> tempfile::NamedTempFile {
        let mut bytes = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
        for frame in frames {
            bytes.extend([0, 0, frame.len() as u32, frame.len() as u32].map(u32::to_le_bytes).concat());
            bytes.extend(frame);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, bytes).unwrap();
        file
    }

    #[test]
    fn a_capture_that_switches_cannot_report_is_refused_before_the_run() {
        let frame = |kind: [u8; 2], packet: &[u8]| {
            [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, packet, &[0; 40]].concat()
        };
        let ipv6 = frame([0x86, 0xdd], &[&[0x60, 0, 0, 0, 0, 40, 17, 64][..], &[1; 32]].concat());
        let to_port = |port: u8| {
            let udp = [&[0x13, 0x88, 0, port][..], &[0, 8, 0, 0]].concat();
            frame(
                [8, 0],
                &[&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..], &udp].concat(),
            )
        };
        let error = traffic(pcap(&[ipv6.clone(), ipv6.clone()]).path(), 1).unwrap_err().to_string();
        assert!(error.contains("none of the 2 frames") && error.contains("only IPv4 flows"), "{error}");
        let some = traffic(pcap(&[ipv6, to_port(9)]).path(), 1).unwrap();
        assert_eq!(some.frames.len(), 2);
    }
}
