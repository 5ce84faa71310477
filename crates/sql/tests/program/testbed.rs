//! A capture in several epochs (`DTA_EPOCHS`, 2 by default): of every flow in every epoch, SQL finds what the collector answers over gRPC, and
//! as many flows as `run-testbed` found to be as they were reported in that epoch. The collector was killed meanwhile, and its epochs were
//! compacted.

#[path = "../../../../testbed/tests/shared/captures.rs"]
mod captures;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dta_proto::control::{EpochState, MAX_KEYS, PathAnswer};
use dta_proto::key::{Flow, Key};
use dta_proto::to_hex_digits;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions, KeyAnswer, Policy, Question, QuestionKind};
use serde_json::Value;

use super::{dta_program, sql, text};

/// By store, generation and key, what was answered, as text.
type Found = BTreeMap<(&'static str, u64, String), String>;

/// A testbed that has run, and is still there to be asked.
struct Testbed {
    process: Child,
    collector: String,
    history: PathBuf,
}

impl Testbed {
    fn run(capture: &Path, epochs: &str, outcome: &Path) -> Testbed {
        let mut command = Command::new(dta_program("dta-manager"));
        command.args(["run-testbed", "--keep", "--epochs", epochs, "--pcap"]).arg(capture);
        let mut process = command.arg("--json").arg(outcome).stdout(Stdio::piped()).spawn().unwrap();
        let (mut collector, mut folder) = (String::new(), None);
        for line in BufReader::new(process.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some((_, address)) = line.split_once("dta-collector stats --collector ") {
                collector = address.to_owned();
            }
            if let Some(path) = line.strip_prefix("Files are in ") {
                folder = Some(path.trim_end_matches('.').to_owned());
                break;
            }
        }
        let history = PathBuf::from(folder.expect("a testbed that ran")).join("history");
        Testbed { process, collector, history }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // It removes its files.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

/// The flows of a capture of Ethernet frames with IPv4 and IPv6 packets, without fragments or options.
fn flows(capture: &Path) -> BTreeSet<Flow> {
    let bytes = std::fs::read(capture).unwrap();
    let (mut rest, mut flows) = (&bytes[24..], BTreeSet::new());
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let frame = &rest[16..16 + length];
        rest = &rest[16 + length..];
        let ip = &frame[14..];
        let v4 = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        let v6 = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
        let (src, dst, proto, behind) = match u16::from_be_bytes([frame[12], frame[13]]) {
            0x0800 => (v4(12), v4(16), ip[9], &ip[usize::from(ip[0] & 15) * 4..]),
            0x86dd => (v6(8), v6(24), ip[6], &ip[40..]),
            _ => continue,
        };
        assert!(matches!(proto, 6 | 17), "a protocol without ports: {proto}");
        let port = |at: usize| u16::from_be_bytes([behind[at], behind[at + 1]]);
        flows.insert(Flow { src, dst, sport: port(0), dport: port(2), proto });
    }
    flows
}

/// What the collector answers of every key in every epoch that is in its history.
async fn answers(collector: &str, keys: &[Key]) -> Found {
    let client = RemoteCollector::connect(&ClientOptions::without_tls(collector)).await.unwrap();
    // A table has what was reported in its epoch: what an answer has of an earlier one is compared there.
    let mut found = Found::new();
    let values = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    for (store, kind) in [("flows", values), ("paths", QuestionKind::Postcarding)] {
        for epoch in client.all_epochs(store, 0, 0).await.unwrap() {
            if epoch.state() != EpochState::Kept {
                continue;
            }
            for keys in keys.chunks(MAX_KEYS) {
                let (store, at) = (store.to_owned(), epoch.opened.into());
                let answers =
                    client.query_keys(Question { store, keys: keys.to_vec(), kind, at }).await.unwrap();
                assert_eq!(answers.generation, epoch.generation);
                for (key, answer) in keys.iter().zip(answers.of_keys) {
                    let (store, told) = match answer {
                        KeyAnswer::KeyWrite(answer) => (
                            "flows",
                            answer
                                .value
                                .filter(|_| answer.earlier.is_none())
                                .map(|value| to_hex_digits(&value)),
                        ),
                        KeyAnswer::Postcarding(answer) => {
                            ("paths", (answer.found && answer.earlier.is_none()).then(|| path(&answer)))
                        }
                        other => panic!("{other:?}"),
                    };
                    told.map(|told| found.insert((store, epoch.generation, to_hex_digits(&key.0)), told));
                }
            }
        }
    }
    found
}

fn path(answer: &PathAnswer) -> String {
    let last = answer.present.iter().rposition(|present| *present).map_or(0, |hop| hop + 1);
    let hops = answer.hops.iter().zip(&answer.present).take(last.max(answer.path_length as usize));
    let hops = hops.map(|(hop, present)| if *present { hop.to_string() } else { "?".to_owned() });
    hops.collect::<Vec<_>>().join(" > ")
}

/// The stores, and in SQL what their answers are and what of a row is compared with a key.
const STORES: [(&str, &str, &str); 2] = [
    ("flows", "value", "value"),
    (
        "paths",
        "dta_path(bitmap, length, hop_0, hop_1, hop_2, hop_3, hop_4, hop_5)",
        "bitmap, length, hop_0, hop_1, hop_2, hop_3, hop_4, hop_5",
    ),
];

/// Slots of both.
const SLOTS: u64 = 1 << 20;

/// The same of all keys, by joins.
fn joined(history: &Path, keys: &[Key]) -> Found {
    let keys = keys.iter().map(|key| format!("('{}')", to_hex_digits(&key.0))).collect::<Vec<_>>().join(", ");
    let of = |(store, answer, row): (&str, &str, &str)| {
        format!(
            "with asked as (
               select k.column1 as key, dta_key(k.column1) as bytes, c.column1 as copy
               from (values {keys}) k cross join (values (0), (1)) c
             )
             select '{store}' as store, e.generation, a.key, a.copy, {answer} as answer
             from asked a join {store} r on r.slot = dta_slot(a.bytes, a.copy, {SLOTS}) and dta_match(a.bytes, checksum, {row})
             join epochs e on e.store = '{store}' and e.number = r.epoch;\n"
        )
    };
    found(history, &STORES.map(of).concat())
}

/// The same, key by key.
fn one_by_one(history: &Path, keys: &[Key]) -> Found {
    let of_key = |key: &Key| {
        let of = |(store, answer, _): (&str, &str, &str)| {
            format!(
                "select '{store}' as store, e.generation, '{0}' as key, r.copy, {answer} as answer \
                 from dta_rows('{store}', '{0}') r join epochs e on e.store = '{store}' and e.number = r.epoch;\n",
                to_hex_digits(&key.0)
            )
        };
        STORES.map(of).concat()
    };
    found(history, &keys.iter().map(of_key).collect::<String>())
}

/// What statements select: of several copies, the first of those that know the most.
fn found(history: &Path, statements: &str) -> Found {
    let output = sql(history, &["-o", "json"], statements);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut copies = BTreeMap::new();
    for line in text(&output.stdout).lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let of = |column: &str| row[column].as_str().unwrap().to_owned();
        let store = if row["store"] == "flows" { "flows" } else { "paths" };
        let unknown = of("answer").matches('?').count();
        let of_key: &mut BTreeSet<_> =
            copies.entry((store, row["generation"].as_u64().unwrap(), of("key"))).or_default();
        of_key.insert((unknown, row["copy"].as_u64().unwrap(), of("answer")));
    }
    copies.into_iter().map(|(of, copies)| (of, copies.into_iter().next().unwrap().2)).collect()
}

#[tokio::test]
async fn a_capture_in_epochs_is_answered_as_over_grpc_and_as_it_was_reported() {
    let test = "a_capture_in_epochs_is_answered_as_over_grpc_and_as_it_was_reported";
    let Some(capture) = captures::captures(test, "traffic/real-1kxun.pcap") else { return };
    let epochs = std::env::var("DTA_EPOCHS").unwrap_or_else(|_| "2".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let outcome = folder.path().join("outcome.json");
    let testbed = Testbed::run(&capture, &epochs, &outcome);
    let keys: Vec<Key> = flows(&capture).iter().map(Flow::to_key).collect();
    assert!(keys.len() > 200);

    let (selected, answers) = (joined(&testbed.history, &keys), answers(&testbed.collector, &keys).await);
    assert_eq!(selected, answers);
    let some: Vec<Key> = keys.iter().copied().step_by(20).collect();
    let names: BTreeSet<String> = some.iter().map(|key| to_hex_digits(&key.0)).collect();
    let mut of_some = selected.clone();
    of_some.retain(|of, _| names.contains(&of.2));
    assert_eq!(one_by_one(&testbed.history, &some), of_some);

    // What was reported in each epoch is what the testbed compares these answers with.
    let outcome: Value = serde_json::from_slice(&std::fs::read(outcome).unwrap()).unwrap();
    let is_zero = |count: &str| outcome["primitives"].as_array().unwrap().iter().all(|of| of[count] == 0);
    assert!(is_zero("wrong") && outcome["unexplained"] == 0, "{outcome:#}");
    let mut with_traffic = 0;
    for epoch in outcome["epochs"].as_array().unwrap() {
        let count = |count: &str| epoch[count].as_u64().unwrap();
        let reported = count("right") + count("stale") + count("partial");
        let generation = count("generation");
        let of_epoch = selected.keys().filter(|of| epoch["store"] == of.0 && generation == of.1);
        assert_eq!(of_epoch.count() as u64, reported, "{epoch:#}");
        with_traffic += u64::from(reported > 0);
    }
    assert!(with_traffic >= 2 * epochs.parse::<u64>().unwrap(), "{outcome:#}");
}
