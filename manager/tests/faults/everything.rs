//! DTA reports, Telemetry Reports of INT and NetFlow at once, each with a tenth dropped, repeated and moved on its way
//! to the translator, and a tenth of all frames behind it dropped, repeated, moved and damaged, while epochs turn. What
//! was sent is the truth: every answer is what a report said that arrived, or is missing, and as many are lost as
//! counters say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dta_link::Scope;
use dta_link::fault::{FaultInjector, FaultOutcome};
use dta_proto::batch::PacketBatch;
use dta_proto::control::{KeyWriteAnswer, Policy};
use dta_proto::flow_query::{FlowQuestion, FlowSum};
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, SwitchPath, TimedValue, list};
use dta_reporter::{Config, DtaBody, Reporter};
use dta_rpc::{Ask, AskKeys, Question, QuestionKind};
use dta_telemetry::int::emit::{EmittedDatagram, EmittedPacket, EmittedReport, Hop, Local, Stack};
use dta_telemetry::int::{Flags, IntVersion, ReportVersion};

use crate::common::int_bed::{Counted, IntBed, PATIENCE, Setup, until_room};

/// What happens on the way to the translator: nothing of it can be damaged without the right to raw sockets.
const ON_THE_WAY: &str = "drop=0.1,dup=0.1,reorder=0.1";
const FRAMES: &str = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1";
const STORES: &str = r#"
[[store]]
id = 1
name = "flows"
kind = "key-write"
slots = 262144
value_len = 12
redundancy = 2
epoch = "2s"
[[store]]
id = 16
name = "int-paths"
kind = "key-write"
slots = 65536
value_len = 60
redundancy = 2
epoch = "2s"
[[store]]
id = 17
name = "int-values"
kind = "key-write"
slots = 262144
value_len = 12
redundancy = 2
epoch = "2s"
[[store]]
id = 18
name = "int-events"
kind = "append"
lists = 4
ring = 32768
batch_len = 128
entry_len = 60
epoch = "2s"
[[store]]
id = 19
name = "int-counters"
kind = "key-increment"
slots = 262144
redundancy = 2
epoch = "2s"
[[store]]
id = 21
name = "flow-records"
kind = "append"
lists = 4
ring = 8192
batch_len = 1024
entry_len = 192
epoch = "2s"
"#;

const FLOWS: u16 = 300;
const ROUNDS: u16 = 4;
/// Keys of DTA reports in a round, and records of NetFlow.
const KEYS: u32 = 2000;
const RECORDS: u16 = 3000;

fn flow(number: u16) -> Flow {
    let [src, dst] = [[10, 1, 0, 1], [10, 2, 0, 1]].map(Into::into);
    Flow { src, dst, sport: number, dport: 80, proto: 17 }
}

/// The switches that a flow passes, in order.
fn switches(number: u16) -> [u32; 3] {
    let number = u32::from(number);
    [1 + number % 7, 11 + number % 5, 21 + number % 3]
}

/// Nanoseconds of a flow in each switch, more than twice as many in each round.
fn latency(number: u16, round: u16) -> u32 {
    (1000 << (2 * round)) + u32::from(number)
}

fn int_datagram(number: u16, round: u16) -> Vec<u8> {
    let hop = |switch| Hop { switch: Some(switch), latency: Some(latency(number, round)), ..Hop::default() };
    let [first, second, last] = switches(number).map(hop);
    let hops = vec![last, second, first];
    let packet = EmittedPacket::new(flow(number)).with_stack(Stack::new(IntVersion::V10, 0xa000, hops));
    let flags = Flags { tracked: true, ..Flags::default() };
    let switch = last.switch.unwrap();
    let report = EmittedReport {
        flags,
        local: Local::Nothing,
        hop: last,
        halved_queue: false,
        packet,
        ethernet: true,
    };
    let sequence = u32::from(round) * u32::from(FLOWS) + u32::from(number);
    let version = ReportVersion::V10;
    EmittedDatagram { version, version_nibble: 0, switch, hardware: 1, sequence, reports: vec![report] }
        .to_bytes()
}

/// NetFlow v5 with the records of so many flows, each of 3 packets, and bytes by its number.
fn netflow(first: u16, records: u16) -> Vec<u8> {
    let mut bytes = [5, records].map(u16::to_be_bytes).concat();
    bytes.resize(16, 0);
    bytes.extend(u32::from(first).to_be_bytes());
    bytes.resize(24, 0);
    for number in first..first + records {
        bytes.extend([[10, 3, 0, 1], [10, 4, 0, 1]].concat());
        bytes.extend([0; 8]);
        bytes.extend([3, 1000 + u32::from(number)].map(u32::to_be_bytes).concat());
        bytes.extend([0; 8]);
        bytes.extend([number, 443].map(u16::to_be_bytes).concat());
        bytes.extend([0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

/// Sends datagrams over a bad way: how often each has arrived.
struct BadWay {
    injector: FaultInjector,
    socket: UdpSocket,
    to: SocketAddrV4,
}

impl BadWay {
    fn new(to: &str, seed: u64) -> BadWay {
        let injector = FaultInjector::new(ON_THE_WAY.parse().unwrap(), seed, Scope::Packet);
        BadWay { injector, socket: UdpSocket::bind("127.0.0.1:0").unwrap(), to: to.parse().unwrap() }
    }

    fn send(&mut self, datagrams: &[Vec<u8>]) -> Vec<u64> {
        let mut arrived = vec![0; datagrams.len()];
        let mut batch = PacketBatch::default();
        for (number, datagram) in datagrams.iter().enumerate() {
            batch.push(datagram, number as u64).unwrap();
            self.pass_on(&mut batch, &mut arrived);
        }
        while self.injector.fault_counts().held > 0 {
            std::thread::sleep(dta_link::fault::HOLD);
            self.pass_on(&mut batch, &mut arrived);
        }
        arrived
    }

    fn pass_on(&mut self, batch: &mut PacketBatch, arrived: &mut [u64]) {
        let leaving = self.injector.apply_to_batch(batch, Instant::now(), |fate, number, _| {
            arrived[number as usize] = match fate {
                FaultOutcome::Dropped => 0,
                FaultOutcome::Duplicated => 2,
                _ => 1,
            };
        });
        for packet in leaving.iter() {
            self.socket.send_to(packet, SocketAddr::from(self.to)).unwrap();
        }
        leaving.clear();
        until_room(self.to);
    }
}

fn dta_key(number: u32) -> Key {
    let mut key = Key::default();
    key.0[..4].copy_from_slice(&number.to_be_bytes());
    key.0[12..].copy_from_slice(b"test");
    key
}

fn dta_value(number: u32) -> [u8; 12] {
    let mut value = [0xa5; 12];
    value[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
    value
}

/// What was sent, as far as it arrived at the translator.
#[derive(Default)]
struct Truth {
    /// Keys of DTA reports.
    keys: BTreeSet<u32>,
    /// Rounds in which Telemetry Reports of a flow arrived, and how many of all.
    rounds: BTreeMap<u16, BTreeSet<u16>>,
    reports: BTreeMap<u16, u64>,
    /// How often each record of NetFlow arrived.
    records: BTreeMap<u16, u64>,
}

/// Which of the answers there are: they must be true.
#[derive(Debug, Default, PartialEq)]
struct Found {
    keys: BTreeSet<u32>,
    paths: BTreeSet<u16>,
    latencies: BTreeSet<(u16, u32)>,
}

impl Truth {
    async fn check(&self, bed: &IntBed, at: u64) -> Found {
        let values = async |store: &str, keys: Vec<Key>| -> Vec<Option<Vec<u8>>> {
            let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
            let question = Question { at: at.into(), ..Question::now(store, keys, kind) };
            let answers = bed.client.query_keys(question).await.unwrap().of_keys;
            answers.into_iter().map(|answer| KeyWriteAnswer::try_from(answer).unwrap().value).collect()
        };
        let mut found = Found::default();
        let all: Vec<u32> = (0..KEYS * u32::from(ROUNDS)).collect();
        for numbers in all.chunks(1000) {
            let keys = numbers.iter().map(|number| dta_key(*number)).collect();
            for (number, value) in numbers.iter().zip(values("flows", keys).await) {
                let Some(value) = value else { continue };
                assert_eq!(value, dta_value(*number), "key {number} at {at}");
                assert!(self.keys.contains(number), "key {number} at {at} did not arrive");
                found.keys.insert(*number);
            }
        }
        let numbers: Vec<u16> = (0..FLOWS).collect();
        let keys = numbers.iter().map(|number| flow(*number).to_key()).collect();
        for (number, value) in numbers.iter().zip(values("int-paths", keys).await) {
            let Some(value) = value else { continue };
            let path = SwitchPath::parse_bytes(&value).unwrap();
            assert_eq!(path.stored_switches(), switches(*number), "flow {number} at {at}");
            assert!(self.rounds.contains_key(number), "flow {number} at {at} was never reported");
            found.paths.insert(*number);
        }
        for number in numbers {
            let key = |switch| telemetry::hop_latency_key(&flow(number), switch);
            let keys = switches(number).map(key).to_vec();
            for (switch, value) in switches(number).into_iter().zip(values("int-values", keys).await) {
                let Some(value) = value else { continue };
                let answered = TimedValue::parse_bytes(&value).unwrap().value;
                let rounds = self.rounds.get(&number);
                let is_true = rounds
                    .is_some_and(|rounds| rounds.iter().any(|round| latency(number, *round) == answered));
                assert!(is_true, "flow {number} in switch {switch} at {at}: {answered} of rounds {rounds:?}");
                found.latencies.insert((number, switch));
            }
        }
        found
    }
}

/// Waits until nothing is on its way, and returns what is counted.
async fn settled(bed: &mut IntBed, datagrams: [u64; 2]) -> Counted {
    let mut before = None;
    let begun = Instant::now();
    loop {
        let is_taken = |counted: &Counted| {
            counted.own("int.datagrams") == datagrams[0]
                && counted.own("flows.datagrams") == datagrams[1]
                && counted.own("int.counts_held") == 0
                && counted.own("held") == 0
                // A frame that was lost several times may be sent again after more than the pause below.
                && counted.own("queue_pair.atomic.outstanding") == 0
                && counted.own("queue_pair.atomic.waiting") == 0
        };
        let counted = bed.until("everything taken", is_taken).await;
        let numbers = ["received", "emitted", "operations", "repeated_frames", "link.roce.sent"]
            .map(|name| counted.own(name));
        let now = (numbers, counted.nic("received"));
        tokio::time::sleep(Duration::from_millis(700)).await;
        if before.replace(now) == Some(now) {
            return counted;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not settle: {now:?}");
    }
}

async fn run(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history").display().to_string();
    let seed_text = seed.to_string();
    let setup = Setup {
        dialects: &["v1.0"],
        flows: true,
        collector: &format!("[history]\ndirectory = \"{history}\"\n{STORES}"),
        arguments: &["--faults", FRAMES, "--seed", &seed_text],
        ..Setup::default()
    };
    let mut bed = IntBed::start_in(folder, &setup).await;
    let address = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let mut int = BadWay::new(&address(&bed.translator.ready["int"][0]), seed);
    let mut netflow_way = BadWay::new(&address(&bed.translator.ready["flows"][0]), seed + 100);
    let fates: Arc<Mutex<BTreeMap<u32, FaultOutcome>>> = Arc::default();
    let reports: SocketAddrV4 = bed.translator.said("listen").parse().unwrap();
    let config = Config { faults: ON_THE_WAY.parse().unwrap(), seed, ..Config::new(reports) };
    let mut reporter = Reporter::open(config).unwrap();
    let seen = fates.clone();
    reporter.set_observer(move |fate, datagram| {
        seen.lock().unwrap().insert(datagram.sequence, fate);
    });

    let (mut truth, mut datagrams, mut repeated) = (Truth::default(), [0, 0], 0);
    let mut moments = Vec::new();
    let mut counted = None;
    for round in 0..ROUNDS {
        let mut numbers = BTreeMap::new();
        for number in KEYS * u32::from(round)..KEYS * (u32::from(round) + 1) {
            let body = DtaBody::KeyWrite { key: dta_key(number), redundancy: 0, value: &dta_value(number) };
            numbers.insert(reporter.report(1, body).unwrap(), number);
            if number % 64 == 0 {
                reporter.flush().unwrap();
                until_room(reports);
            }
        }
        let sent: Vec<_> = (0..FLOWS).map(|number| int_datagram(number, round)).collect();
        for (number, arrived) in (0..).zip(int.send(&sent)) {
            datagrams[0] += arrived;
            *truth.reports.entry(number).or_default() += arrived;
            if arrived > 0 {
                truth.rounds.entry(number).or_default().insert(round);
            }
        }
        let first = RECORDS * round;
        let sent: Vec<_> = (first..first + RECORDS).step_by(30).map(|first| netflow(first, 30)).collect();
        for (number, arrived) in (first..).step_by(30).zip(netflow_way.send(&sent)) {
            datagrams[1] += arrived;
            truth.records.extend((number..number + 30).map(|number| (number, arrived)));
        }
        // What waits to be sent late.
        while fates.lock().unwrap().len() < numbers.len() {
            reporter.flush().unwrap();
            std::thread::sleep(dta_link::fault::HOLD);
        }
        for (sequence, fate) in std::mem::take(&mut *fates.lock().unwrap()) {
            repeated += u64::from(fate == FaultOutcome::Duplicated);
            if fate != FaultOutcome::Dropped {
                truth.keys.insert(numbers[&sequence]);
            }
        }
        counted = Some(settled(&mut bed, datagrams).await);
        let at = dta_files::moment::now();
        moments.push((at, truth.check(&bed, 0).await));
    }
    let counted = counted.unwrap();
    let own = |name: &str| counted.own(name);

    // What arrived is what the translator took: each report once, and each datagram as often as it came.
    assert_eq!(own("dropped.duplicate"), repeated, "of DTA reports");
    assert!(
        repeated > 100 && truth.keys.len() < (KEYS * u32::from(ROUNDS)) as usize,
        "faults that do nothing"
    );
    assert_eq!(own("received"), own("accepted") + repeated);
    assert_eq!(own("accepted"), truth.keys.len() as u64 + own("int.primitives") + own("flows.primitives"));
    assert_eq!(own("emitted"), own("accepted"));

    // Answers that are missing were lost on the way to memory, and are counted.
    let (_, now) = moments.last().unwrap();
    let hops = truth.rounds.len() * 3;
    let absent = (truth.keys.len() - now.keys.len())
        + (truth.rounds.len() - now.paths.len())
        + (hops - now.latencies.len());
    let lost = own("key-write.lost");
    assert!(absent as u64 <= lost, "{absent} absent, {lost} lost");
    let absent_keys = truth.keys.len() - now.keys.len();
    assert!(absent_keys > 0, "with two copies and a fifth of the frames lost, some keys are");
    // Counts are on RC: none is lost.
    let keys: Vec<_> = (0..FLOWS).map(|number| flow(number).to_key()).collect();
    let counts = bed.client.query_counters("int-counters", &keys).await.unwrap();
    for (number, count) in (0..).zip(counts) {
        assert_eq!(count.value, truth.reports[&number], "reports of flow {number}");
    }
    // Every record is in the list as often as it came, or was lost with its batch.
    let question =
        FlowQuestion { group: FlowQuestion::parse_group("src-port").unwrap(), ..FlowQuestion::default() };
    let most = usize::from(RECORDS * ROUNDS);
    let (answer, _) = bed.client.query_flows("", &question, FlowSum::Flows, most).await.unwrap();
    let mut missing = truth.records.clone();
    for row in &answer.rows {
        let number = u16::try_from(row.values[0]).unwrap();
        let (came, sums) = (truth.records.get(&number).copied().unwrap_or(0), row.sums);
        assert!(sums.flows <= came, "record {number} came {came} times and is there {} times", sums.flows);
        assert_eq!(sums.bytes, sums.flows * (1000 + u64::from(number)), "record {number}");
        assert_eq!(sums.packets, sums.flows * 3, "record {number}");
        missing.insert(number, came - sums.flows);
    }
    let came: u64 = truth.records.values().sum();
    let missing: u64 = missing.values().sum();
    assert_eq!((own("flows.records"), own("flows.appended")), (came, came));
    assert!(missing > 0, "with a fifth of the frames lost, some records are");
    let mut events = 0;
    for list in 0..list::COUNT {
        events += bed.entries(list).await.0.len() as u64;
    }
    let found = came - missing + events;
    assert_eq!(own("append.emitted"), found + own("append.lost"), "a batch was lost without a cause");
    // And of a time before memory began, with the history's help.
    let all = FlowQuestion { since: 1, ..question };
    let (with_history, _) = bed.client.query_flows("", &all, FlowSum::Flows, 1).await.unwrap();
    assert_eq!(with_history.total, answer.total);

    // What was known at a moment is known of it, whatever came since.
    for (at, then) in &moments {
        let now_known = truth.check(&bed, *at).await;
        let missing_keys: Vec<_> = then.keys.difference(&now_known.keys).collect();
        // An epoch that a busy machine ends late has the keys of the next round, too, and some may overwrite both copies.
        assert!(missing_keys.len() <= then.keys.len() / 100, "keys at {at}: {missing_keys:?}");
        let missing_paths: Vec<_> = then.paths.difference(&now_known.paths).collect();
        assert!(missing_paths.is_empty(), "paths at {at}: {missing_paths:?}");
        let missing_latencies: Vec<_> = then.latencies.difference(&now_known.latencies).collect();
        assert!(missing_latencies.is_empty(), "latencies at {at}: {missing_latencies:?}");
    }
}

#[tokio::test]
async fn reports_int_and_flows_at_once_into_epochs() {
    for seed in 1..=super::seeds() {
        run(seed).await;
    }
}
