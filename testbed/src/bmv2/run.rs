//! One run: replays a capture, and queries the collector for everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dta_proto::control::TailRequest;
use dta_proto::counter::translator::PAIR_RETRANSMITTED;
use dta_proto::counter::{CounterStep, Stage};
use dta_proto::key::Key;
use dta_proto::program::Primitive;
use dta_rpc::{Ask, AskKeys};
use dta_switch::counters::SwitchCounts;

use super::disturbance::Disturbance;
use super::files::{COPIES, SLOTS, with_stores};
use super::ground::COLLECTORS;
use super::machines::{OnMachines, OptionsOnMachines};
use super::one_machine::OneMachine;
use super::outcome::SwitchRunOutcome;
use super::place::SwitchTestbed;
use super::reporter::{self, DROP_SESSION, FLOW_SESSION, Filter, OF_DROP, OF_FLOW};
use super::truth::{CapturedTraffic, Frame, FrameOutcome, OfReporter, Reported, Truth, WatchedFlows};
use crate::accounting::LinkAccount;
use crate::capture::{self, LinkType};
use crate::chaos::Chaos;
use crate::check::{Ahead, CheckContext, IncompleteRows, Pools};
use crate::far::config::MachineRole;
use crate::far::start::TestbedMachines;
use crate::folder::Folder;
use crate::ground::NicKind;
use crate::outcome::{ChaosOutcome, EpochOutcome, RunFacts};
use crate::statistics::TestbedStatistics;
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

#[derive(Clone, Debug)]
pub struct SwitchRunOptions {
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
    pub(super) place: SwitchTestbed,
    topology: Topology,
    /// What was sent, and its expected result so far.
    sent: u64,
    out: u64,
    flow_reports: u64,
    drop_reports: u64,
    /// Entries that wait in the translator for their batch, by list; full batches sent; and batches flushed.
    waiting: [u64; 2],
    batches: u64,
    /// Batches that lists may lack: a session that is opened again skips their numbers.
    pub(super) left_out: u64,
}

/// Runs it, in the namespace that [`super::enter_own_namespace`] made. Calls `progress` with the packets sent, and the total.
pub async fn run(
    options: &SwitchRunOptions,
    progress: impl FnMut(u64, u64),
) -> anyhow::Result<SwitchRunOutcome> {
    let folder = Folder::new().context("cannot make a folder for the testbed")?;
    let traffic = read_traffic(&options.capture, 1)?;
    let links = &COLLECTORS[..usize::from(options.collectors).clamp(1, COLLECTORS.len())];
    let here = OneMachine::start_testbed(
        folder.folder_path(),
        links,
        options.nic,
        options.epochs.map(Turns::epoch_length),
    )
    .await?;
    let topology = Topology { name: "bmv2".into(), ..with_stores(&Topology::load(None)?)? };
    replay_and_compare(SwitchTestbed::OneMachine(Box::new(here)), topology, options, &traffic, progress).await
}

pub async fn run_on_machines(
    options: &OptionsOnMachines,
    progress: impl FnMut(u64, u64),
) -> anyhow::Result<SwitchRunOutcome> {
    let reporters =
        options.topology.machines.iter().filter(|machine| machine.has_role(MachineRole::Reporter)).count();
    let traffic = read_traffic(&options.capture, reporters)?;
    let folder = Folder::new().context("cannot make a folder for the testbed")?;
    let logs = options.logs.as_deref().unwrap_or(folder.folder_path());
    std::fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let topology = &options.topology;
    let far = TestbedMachines::connect_all(topology, folder.folder_path(), logs).await?;
    let run = async {
        let there = OnMachines::start_testbed(topology, &far, folder.folder_path()).await?;
        let options = SwitchRunOptions {
            capture: options.capture.clone(),
            collectors: 0,
            nic: NicKind::default(),
            epochs: None,
            chaos: None,
        };
        replay_and_compare(
            SwitchTestbed::OnMachines(Box::new(there)),
            with_stores(topology)?,
            &options,
            &traffic,
            progress,
        )
        .await
    };
    match run.await {
        Ok(outcome) => Ok(outcome),
        Err(error) => Err(far.explain_failure(error).await),
    }
}

/// The frames of a capture, some of which switches can report, each for one of so many reporters.
fn read_traffic(path: &Path, reporters: usize) -> anyhow::Result<CapturedTraffic> {
    let mut frames = Vec::new();
    capture::read(path, |packet| {
        if packet.link == LinkType::Ethernet && packet.data.len() >= 14 {
            frames.push(packet.data.to_vec());
        }
    })?;
    ensure!(!frames.is_empty(), "{} holds no Ethernet frame", path.display());
    let traffic = CapturedTraffic::from_frames(frames, reporters);
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
async fn replay_and_compare(
    place: SwitchTestbed,
    topology: Topology,
    options: &SwitchRunOptions,
    traffic: &CapturedTraffic,
    mut progress: impl FnMut(u64, u64),
) -> anyhow::Result<SwitchRunOutcome> {
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
    bed.place.program_reporters(traffic, Filter::None).await?;
    let mut outcome = SwitchRunOutcome::default();
    let began = Instant::now();
    let pace = options.epochs.map(|turns| Pace::new(turns, packets, true));
    let mut disturbance = Disturbance::from_chaos(options.chaos);

    let mut truth = Truth::with_reporters(traffic.stations.len());
    for some in traffic.frames.chunks(IN_FLIGHT) {
        if let Some(pace) = &pace {
            tokio::time::sleep_until(pace.due_instant(bed.sent).into()).await;
        }
        if bed.sent >= packets / 2 {
            disturbance.advance_if_due(&mut bed, &truth).await?;
        }
        let fates: Vec<FrameOutcome> =
            some.iter().map(|frame| truth.add(traffic, WatchedFlows::All, frame)).collect();
        bed.replay_frames(some, &fates).await?;
        truth.reported.journal.note_settled();
        progress(bed.sent, total);
    }
    let chaos = disturbance.wait_for_outcome(&mut bed, &truth).await?;
    outcome.missed.extend(chaos.iter().flat_map(ChaosOutcome::failure_messages));
    bed.flush_translator().await?;
    bed.wait_until_settled().await?;
    outcome.push_line(format!(
        "{}: {} packets, {} longer than 1,514 bytes, {} of no IPv4 flow; {} flows",
        path.display(),
        traffic.frames.len(),
        traffic.frames.iter().filter(|frame| frame.bytes.len() > 1514).count(),
        truth.packets_without_flow(),
        truth.reported.flows.len()
    ));
    let seconds = began.elapsed().as_secs_f64();
    let (nic, transport) = bed.place.nic_and_transport();
    outcome.run = RunFacts {
        topology: bed.topology.name.clone(),
        capture: Some(path.display().to_string()),
        skipped: BTreeMap::from([("no-flow".to_owned(), truth.packets_without_flow())]),
        nic: nic.into(),
        transport: transport.into(),
        faults: "none".into(),
        report_faults: "none".into(),
        packets,
        flows: truth.reported.flows.len() as u64,
        seconds,
        reports_per_second: bed.expected_reports() as f64 / seconds.max(1e-9),
        epochs: options.epochs.map(|turns| turns.count),
        chaos,
        ..RunFacts::default()
    };
    bed.check_counters(&truth, &mut outcome).await?;
    bed.compare_answers(&truth, &mut outcome).await?;
    bed.run_with_filters(traffic, &mut outcome, |sent| progress(sent, total)).await?;
    Ok(outcome)
}

impl Bed {
    /// Sends frames, and waits until everything that they become has come out.
    async fn replay_frames(&mut self, frames: &[Frame], fates: &[FrameOutcome]) -> anyhow::Result<()> {
        self.send(frames, fates.iter().map(|fate| fate.out).sum()).await?;
        self.add_reported(
            fates.iter().map(|fate| fate.flow_reports).sum(),
            fates.iter().map(|fate| fate.drop_reports).sum(),
        );
        self.wait_until_settled().await
    }

    async fn send(&mut self, frames: &[Frame], out: u64) -> anyhow::Result<()> {
        self.place.send(frames).await?;
        self.sent += frames.len() as u64;
        self.out += out;
        Ok(())
    }

    fn add_reported(&mut self, flows: u64, drops: u64) {
        self.flow_reports += flows;
        self.drop_reports += drops;
        for (waiting, more) in self.waiting.iter_mut().zip([flows, drops]) {
            *waiting += more;
            self.batches += *waiting / ENTRIES;
            *waiting %= ENTRIES;
        }
    }

    fn expected_reports(&self) -> u64 {
        self.flow_reports * OF_FLOW + self.drop_reports * OF_DROP
    }

    fn expected_frames(&self) -> u64 {
        self.flow_reports * FRAMES_OF_FLOW + self.drop_reports * FRAMES_OF_DROP + self.batches
    }

    /// Waits until the expected packets have come out at the hosts, the translator and the collector.
    async fn wait_until_settled(&mut self) -> anyhow::Result<()> {
        let wanted = [self.out, self.expected_reports(), self.expected_frames()];
        let until = Instant::now() + PATIENCE;
        loop {
            let came = self.place.arrival_counts().await?;
            if came.iter().zip(wanted).all(|(came, wanted)| *came >= wanted)
                && came[2] >= wanted[2] + self.place.probe_count().await?
            {
                return Ok(());
            }
            if Instant::now() > until {
                bail!(
                    "after {} packets, {wanted:?} packets, reports and frames were expected, but {came:?} arrived",
                    self.sent
                );
            }
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }

    async fn flush_translator(&mut self) -> anyhow::Result<()> {
        self.place.flush_translator().await?;
        for waiting in &mut self.waiting {
            self.batches += u64::from(*waiting > 0);
            *waiting = 0;
        }
        Ok(())
    }

    /// Waits until the reporters have forwarded or dropped all that was sent.
    async fn wait_until_handled(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let reporters = self.place.reporters().await?;
            let handled: u64 = reporters.iter().map(handled_packets).sum();
            if handled >= self.sent {
                return Ok(());
            }
            ensure!(Instant::now() < until, "of {} packets the reporters handled only {handled}", self.sent);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Compares the counters of every hop with the truth.
    async fn check_counters(&mut self, truth: &Truth, outcome: &mut SwitchRunOutcome) -> anyhow::Result<()> {
        self.place.wait_until_idle().await?;
        let reporters = self.place.reporters().await?;
        let hosts = self.place.host_arrivals().await?;
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
        let [_, came, came_to_collectors] = self.place.arrival_counts().await?;
        outcome.expect_equal("reports that reached the translator", self.expected_reports(), came);
        let probes = self.place.probe_count().await?;
        outcome.expect_equal(
            "frames that reached the collectors",
            self.expected_frames() + probes,
            came_to_collectors,
        );
        let (mut taken, mut executed, mut answered) = (0, 0, 0);
        let share = self.place.collector_share();
        let collectors = self.place.of_collectors().await?;
        for (number, (address, nodes)) in collectors.iter().enumerate() {
            let mut of_one = TestbedStatistics::default();
            of_one.add(nodes.clone());
            let nic = of_one.stage_total(Stage::Nic);
            let here = nic.get_by_name("executed.write") + nic.get_by_name("executed.fetch_add");
            if collectors.len() > 1 {
                outcome.push_line(format!("NIC at {address}: {here} frames executed"));
                let wanted = u64::from(truth.reaches_collector(number, share));
                let what = format!("NIC at {address} that executed some of the frames");
                outcome.expect_equal(&what, wanted, u64::from(here > 0));
            }
            taken += nic.get_by_name("received");
            executed += here;
            answered += nic.sum(CounterStep::Answered);
        }
        outcome.nodes.add_collectors(collectors);
        let [nacks, answers] = self.place.came_back(self.sent).await?;
        let of_translator = self.place.translator().await?;
        let translator = of_translator.stage_total(Stage::Translator);
        // A software translator sends again what is not answered in time.
        let repeated: u64 =
            translator.counters_of_definition(&PAIR_RETRANSMITTED).map(|(_, frames)| frames).sum();
        let wanted = self.expected_frames() + repeated + probes;
        outcome.expect_equal("frames that the NICs received", wanted, taken);
        if self.place.reports_executed() {
            outcome.expect_equal("frames that the NICs executed", self.expected_frames(), executed);
        }
        outcome.nodes.add(self.place.reporter_nodes().await?);
        outcome.expect_equal(
            "reports that the translator received",
            self.expected_reports(),
            translator.get_by_name("received"),
        );
        for name in ["dropped", "lost.queue_pair_down", "nacks"] {
            outcome.expect_equal(&format!("the translator's {name}"), 0, translator.get_by_name(name));
        }
        let frames = translator.get_by_name("frames");
        outcome.expect_equal("frames that it sent", wanted, frames);
        let link = |name, sent, received| LinkAccount { name, sent, received, ..LinkAccount::default() };
        outcome.links = vec![
            link("reporter-translator", reports, came),
            link("translator-reporter", translator.get_by_name("nacks"), nacks),
            link("translator-nic", frames, taken),
            link("nic-translator", answered, answers),
        ];
        for primitive in Primitive::ALL {
            let name = primitive.canonical_name();
            outcome.operations.insert(primitive, translator.get_by_name(&format!("{name}.operations")));
        }
        let (flows, drops) = truth.reported_packets();
        outcome.sent = BTreeMap::from([
            (Primitive::KeyWrite, flows),
            (Primitive::Postcarding, flows),
            (Primitive::Append, flows + drops),
            (Primitive::KeyIncrement, 2 * flows + 2 * drops),
        ]);
        let by_nic = match self.place.reports_executed() {
            true => format!("NIC: {executed} executed"),
            false => format!("NIC: {taken} received"),
        };
        outcome.push_line(format!(
            "translator: {} reports received, {frames} frames; {by_nic}",
            translator.get_by_name("received"),
        ));
        outcome.nodes.replace_nodes(of_translator);
        Ok(())
    }

    pub(super) fn asking_about<'a>(&'a self, flows: &'a [SeenFlow]) -> Asking<'a> {
        let (all, topology, has_epochs) =
            (self.place.all_collectors(), &self.topology, self.place.has_epochs());
        let ahead = vec![Ahead::default(); all.members().len()];
        Asking { all, ahead, topology, flows, has_epochs, may_repeat: false }
    }

    /// Queries the collector for everything, and compares it with the truth.
    async fn compare_answers(&mut self, truth: &Truth, outcome: &mut SwitchRunOutcome) -> anyhow::Result<()> {
        let Reported { flows, journal, .. } = &truth.reported;
        let asking = self.asking_about(flows);
        let has_epochs = self.place.has_epochs();
        let mut answers = asking.query_stores().await?;
        if has_epochs {
            let (written, changed) = asking.ask_when_written(&answers).await?;
            answers = written;
            outcome.missed.extend(changed);
        }
        let asked =
            CheckContext { flows, epochs: &[], journal, rows: IncompleteRows::default(), answers: &answers };
        let mut epochs = Vec::new();
        for (primitive, of) in turns::STORES.into_iter().zip(answers.queried_epochs()) {
            let store = self.topology.store_of_primitive(primitive);
            let (tallies, ends) =
                asked.check_store(self.place.all_collectors(), store, &mut Pools::default()).await?;
            epochs.extend(EpochOutcome::from_tallies(&store.name, of, &tallies));
            outcome.record_check(primitive, tallies.sum(), ends);
        }
        outcome.epochs = has_epochs.then_some(epochs);
        if let Some(here) = self.place.local_machine().filter(|_| has_epochs) {
            here.restart_collectors(Some(&self.topology)).await?;
            let (all, topology) = (self.place.all_collectors(), &self.topology);
            outcome.missed.extend(turns::changed_by_restart(all, topology, flows, &answers).await?);
        }
        let share = self.place.collector_share();
        let counters = truth.expected_counters(COPIES, SLOTS, share);
        let keys: Vec<Key> = counters.keys().copied().collect();
        let answers = self.place.all_collectors().query_counters("counters", &keys).await?;
        for (key, answer) in keys.iter().zip(answers) {
            let what = || format!("counter of {key}: {}, not {}", answer.value, counters[key]);
            outcome.count_answer(Primitive::KeyIncrement, answer.value == counters[key], what);
        }
        for (list, wanted) in truth.listed.iter().enumerate() {
            let found = self.count_list_keys(list as u32).await?;
            for key in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
                let (wanted, found) = (wanted.get(key), found.get(key));
                let what = || format!("list {list}, {key}: {wanted:?} times expected, {found:?} listed");
                outcome.count_answer(Primitive::Append, wanted == found, what);
            }
        }
        Ok(())
    }

    /// How often each key is in a list.
    async fn count_list_keys(&mut self, list: u32) -> anyhow::Result<BTreeMap<Key, u64>> {
        let request = TailRequest {
            store: "flows".into(),
            list,
            until_caught_up: true,
            from_sequence: 1,
            ..TailRequest::default()
        };
        let mut stream = self.place.all_collectors().tail_list(request).await?;
        let (mut found, mut missing) = (BTreeMap::new(), 0);
        while let Some(message) = stream.next_message().await? {
            missing += message.missing_batches;
            let trouble = message.overwritten_batches + message.damaged_batches;
            ensure!(trouble == 0 && missing <= self.left_out, "list {list} is missing batches: {message:?}");
            for entry in message.entries {
                let bytes: [u8; 16] = entry.try_into().ok().context("an entry of a list is not a key")?;
                *found.entry(Key(bytes)).or_default() += 1;
            }
        }
        Ok(found)
    }

    /// Runs with a switch's default filters. Rounds are further apart than an interval, so each of them must report
    /// each watched flow.
    async fn run_with_filters(
        &mut self,
        traffic: &CapturedTraffic,
        outcome: &mut SwitchRunOutcome,
        mut progress: impl FnMut(u64),
    ) -> anyhow::Result<()> {
        let network = traffic.busiest_network();
        self.place.program_reporters(traffic, Filter::Network(network)).await?;
        let watched = WatchedFlows::Network(network);
        let (mut flows_before, mut drops_before) = (self.flow_reports, self.drop_reports);
        let mut before = self.count_list_keys(0).await?;
        let (mut packets, mut reports) = (0, 0);
        for round in 1..=ROUNDS {
            tokio::time::sleep(Duration::from_nanos(1 << reporter::INTERVAL) + Duration::from_millis(100))
                .await;
            let mut truth = Truth::with_reporters(traffic.stations.len());
            for some in traffic.frames.chunks(IN_FLIGHT) {
                let fates: Vec<FrameOutcome> =
                    some.iter().map(|frame| truth.add(traffic, watched, frame)).collect();
                self.send(some, fates.iter().map(|fate| fate.out).sum()).await?;
                // Once all of them are handled, the programs' counters say how many are reported.
                self.wait_until_handled().await?;
                let (mut flows, mut drops) = (0, 0);
                for counts in self.place.reporters().await? {
                    let (of_flows, of_drops) = cloned_packets(&counts);
                    (flows, drops) = (flows + of_flows, drops + of_drops);
                }
                self.add_reported(flows - flows_before, drops - drops_before);
                (flows_before, drops_before) = (flows, drops);
                self.wait_until_settled().await?;
                progress(self.sent);
            }
            self.flush_translator().await?;
            self.wait_until_settled().await?;
            let now = self.count_list_keys(0).await?;
            let new = |key: &Key| now.get(key).copied().unwrap_or(0) - before.get(key).copied().unwrap_or(0);
            for key in truth.listed[0].keys() {
                match new(key) {
                    0 => outcome
                        .missed
                        .push(format!("round {round}: {key} is watched and active, but was not reported")),
                    _ => outcome.reported += 1,
                }
            }
            for key in now.keys().filter(|key| new(key) > 0 && !truth.listed[0].contains_key(*key)) {
                outcome.missed.push(format!("round {round}: {key} is not watched, but was reported"));
            }
            packets += truth.reported_packets().0;
            reports += now.keys().map(new).sum::<u64>();
            before = now;
        }
        outcome.push_line(format!(
            "default filters, {network}/24 watched, {ROUNDS} rounds: {packets} packets of watched flows, {reports} flow reports"
        ));
        Ok(())
    }
}

/// Compares the counters of a reporter, and what came out at its hosts, with the truth.
fn account_of_reporter(
    name: &str,
    truth: &OfReporter,
    counts: &SwitchCounts,
    hosts: [(u64, u64); 2],
    outcome: &mut SwitchRunOutcome,
) {
    let counted = |counter: &str| sum(counts, counter);
    let (received, forwarded) = (counted("received"), counted("forwarded"));
    outcome.expect_equal(&format!("packets that {name} received"), truth.packets, received);
    outcome.expect_equal(&format!("packets that {name} forwarded"), truth.forwarded(), forwarded);
    let dropped =
        counts.counts_named("dropped").iter().zip(counts.counts_named("egress_dropped")).map(|(a, b)| a + b);
    let dropped: Vec<u64> = dropped.collect();
    for (reason, packets) in dropped.iter().enumerate() {
        let wanted = truth.dropped.get(&(reason as u8)).copied().unwrap_or(0);
        outcome.expect_equal(&format!("packets that {name} dropped for reason {reason}"), wanted, *packets);
    }
    outcome.expect_equal(&format!("packets at {name} without a flow"), truth.no_flow, counted("no_flow"));
    for (host, ((packets, bytes), wanted)) in (1..).zip(hosts.into_iter().zip(truth.out)) {
        outcome.expect_equal(&format!("packets at host {host} of {name}"), wanted.0, packets);
        outcome.expect_equal(&format!("bytes at host {host} of {name}"), wanted.1, bytes);
    }
    let (flows, drops) = cloned_packets(counts);
    outcome.expect_equal(&format!("packets that {name} reported as flows"), truth.flow_reports, flows);
    outcome.expect_equal(&format!("packets that {name} reported as dropped"), truth.drop_reports, drops);
    let reports = truth.flow_reports * OF_FLOW + truth.drop_reports * OF_DROP;
    outcome.expect_equal(&format!("reports that {name} sent"), reports, counted("sent"));
    outcome.push_line(format!(
        "{}: {received} packets received, {forwarded} forwarded, {} dropped; {} reports",
        name.trim_start_matches("the "),
        dropped.iter().sum::<u64>(),
        counted("sent"),
    ));
}

/// Packets that a reporter forwarded or dropped.
fn handled_packets(counts: &SwitchCounts) -> u64 {
    ["dropped", "egress_dropped", "forwarded"].iter().map(|name| sum(counts, name)).sum()
}

fn sum(counts: &SwitchCounts, counter: &str) -> u64 {
    counts.counts_named(counter).iter().sum()
}

/// Packets that are reported: flows, and drops.
fn cloned_packets(counts: &SwitchCounts) -> (u64, u64) {
    let drops = counts.count_at("mirrored", DROP_SESSION) + sum(counts, "ingress_mirrored");
    (counts.count_at("mirrored", FLOW_SESSION), drops)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let error = read_traffic(pcap(&[ipv6.clone(), ipv6.clone()]).path(), 1).unwrap_err().to_string();
        assert!(error.contains("none of the 2 frames") && error.contains("only IPv4 flows"), "{error}");
        let some = read_traffic(pcap(&[ipv6, to_port(9)]).path(), 1).unwrap();
        assert_eq!(some.frames.len(), 2);
    }
}
