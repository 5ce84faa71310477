//! A capture in several epochs (`DTA_EPOCHS`, 2 by default): of every flow in every epoch, SQL finds what the collector answers over gRPC, and
//! as many flows as `run-testbed` found to be as they were reported in that epoch. The collector was killed meanwhile, and its epochs were
//! compacted. The questions of docs/sql.md are answered with what these answers say, and with the epochs that the collector lists.

#[path = "../../../../testbed/tests/shared/captures.rs"]
mod captures;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dta_proto::control::{Epoch, EpochState, MAX_KEYS, PathAnswer};
use dta_proto::key::{Flow, Key};
use dta_proto::to_hex_digits;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions, KeyAnswer, Policy, Question, QuestionKind};
use serde_json::{Value, json};

use super::{dta_program, rows, sql, text};

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
                    let (store, value) = match answer {
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
                    value.map(|value| found.insert((store, epoch.generation, to_hex_digits(&key.0)), value));
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
             from asked a join {store} r on r.slot = dta_slot('{store}', a.bytes, a.copy) and dta_match(a.bytes, checksum, {row})
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

    let outcome: Value = serde_json::from_slice(&std::fs::read(outcome).unwrap()).unwrap();
    let is_zero = |count: &str| outcome["primitives"].as_array().unwrap().iter().all(|of| of[count] == 0);
    assert!(is_zero("wrong") && outcome["unexplained"] == 0, "{outcome:#}");
    Questions::new(&testbed, &keys, &answers).await.check_all(&outcome);
    // What was reported in each epoch is what the testbed compares these answers with.
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

/// The questions of docs/sql.md, asked about this run, and what they must be answered.
struct Questions {
    /// A copy: the collector goes on, and writes epochs.
    history: tempfile::TempDir,
    /// By store, oldest first.
    epochs: BTreeMap<String, Vec<Epoch>>,
    found: Found,
    /// Flows that were seen in most epochs, and the number of a switch on their paths.
    flows: [Key; 3],
    switch: String,
    /// A moment, and what the first flow had reported then.
    moment: u64,
    value: Option<Vec<u8>>,
}

impl Questions {
    async fn new(testbed: &Testbed, keys: &[Key], found: &Found) -> Questions {
        let client = RemoteCollector::connect(&ClientOptions::without_tls(&testbed.collector)).await.unwrap();
        let history = copy_history(&testbed.history);
        let mut epochs = BTreeMap::new();
        for store in rows(history.path(), "select store, max(number) as last from epochs group by store") {
            let last = store["last"].as_u64().unwrap();
            let store = store["store"].as_str().unwrap().to_owned();
            let mut kept = client.all_epochs(&store, 0, 0).await.unwrap();
            kept.retain(|epoch| epoch.state() == EpochState::Kept && epoch.number <= last);
            kept.sort_by_key(|epoch| epoch.opened);
            epochs.insert(store, kept);
        }
        let seen = |key: &Key| found.keys().filter(|of| of.2 == to_hex_digits(&key.0)).count();
        let mut by_epochs = keys.to_vec();
        by_epochs.sort_by_cached_key(|key| std::cmp::Reverse(seen(key)));
        let flows = [by_epochs[0], by_epochs[1], by_epochs[2]];
        let first = to_hex_digits(&flows[0].0);
        let (_, path) = found.iter().find(|(of, _)| of.0 == "paths" && of.2 == first).expect("a path");
        let switch = path.split(" > ").next().unwrap().to_owned();
        // The middle of the last epoch in which it was reported.
        let last = epochs["flows"]
            .iter()
            .rfind(|epoch| found.contains_key(&("flows", epoch.generation, first.clone())));
        let moment = last.map(|epoch| epoch.opened.midpoint(epoch.flipped_from)).expect("an epoch");
        let question = Question {
            store: "flows".to_owned(),
            keys: vec![flows[0]],
            kind: QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 },
            at: moment.into(),
        };
        let mut answers = client.query_keys(question).await.unwrap().of_keys;
        let Some(KeyAnswer::KeyWrite(answer)) = answers.pop() else { panic!("{answers:?}") };
        Questions { history, epochs, found: found.clone(), flows, switch, moment, value: answer.value }
    }

    /// The statement of the page, about what this run has.
    fn about_this_run(&self, statement: &str) -> String {
        let at = |moment: u64| dta_files::moment::format_utc(moment);
        let [first, second, third] = self.flows.map(|key| key.to_string());
        let mut statement = statement.to_owned();
        for (page, here) in [
            ("10.0.0.8:5000->10.0.1.1:80/udp", &first),
            ("10.0.0.2:5000->10.0.1.1:80/udp", &first),
            ("10.0.0.3:5000->10.0.1.1:80/udp", &second),
            ("10.0.0.9:5000->10.0.1.1:80/udp", &third),
            ("2026-11-24T14:02:30Z", &at(self.moment)),
            ("2026-11-24T14:06:30Z", &at(self.path_epoch().opened.midpoint(self.path_epoch().flipped_from))),
            ("2026-11-24T14:00:00Z", &"2000-01-01T00:00:00Z".to_owned()),
            ("2026-11-24T14:05:00Z", &"2000-01-01T00:00:00Z".to_owned()),
            ("2026-11-24T15:00:00Z", &"2100-01-01T00:00:00Z".to_owned()),
            ("2026-11-24T14:10:00Z", &"2100-01-01T00:00:00Z".to_owned()),
            ("where 11 in", &format!("where {} in", self.switch)),
        ] {
            statement = statement.replace(page, here);
        }
        statement
    }

    /// The epoch in which most paths were found.
    fn path_epoch(&self) -> &Epoch {
        let count = |epoch: &&Epoch| self.in_epoch("paths", epoch).count();
        self.epochs["paths"].iter().max_by_key(count).expect("an epoch")
    }

    fn in_epoch<'a>(&'a self, store: &'a str, epoch: &'a Epoch) -> impl Iterator<Item = (&'a str, &'a str)> {
        let of_epoch = self.found.iter().filter(move |(of, _)| of.0 == store && of.1 == epoch.generation);
        of_epoch.map(|(of, answer)| (of.2.as_str(), answer.as_str()))
    }

    /// What a flow had in each epoch in which it was reported.
    fn over_time<'a>(&'a self, store: &'a str, key: Key) -> Vec<(&'a Epoch, &'a str)> {
        let key = to_hex_digits(&key.0);
        let answer = |epoch| self.in_epoch(store, epoch).find(|(of, _)| *of == key);
        let all = self.epochs[store].iter();
        all.filter_map(|epoch| Some((epoch, answer(epoch)?.1))).collect()
    }

    fn check_all(&self, outcome: &Value) {
        let questions = super::page::questions();
        assert_eq!(questions.len(), 10);
        for (heading, statement) in questions {
            let answer = rows(self.history.path(), &self.about_this_run(&statement));
            if heading == "Where may an answer be incomplete?" {
                self.check_incomplete(&answer);
            } else {
                assert_eq!(answer, self.truth(&heading), "{heading}");
                assert!(!answer.is_empty() || heading.contains("nothing arrive"), "{heading}");
            }
        }
        // Each loss is there once at most, whichever stores have epochs.
        for row in rows(
            self.history.path(),
            "select reason, cast(sum(lost) as bigint) as lost from losses group by reason",
        ) {
            let counted = outcome["losses"][row["reason"].as_str().unwrap()].as_u64().unwrap_or_default();
            assert!(row["lost"].as_u64().unwrap() <= counted, "{row}: {outcome:#}");
        }
    }

    fn truth(&self, heading: &str) -> Vec<Value> {
        let at = |moment: u64| Value::from(dta_files::moment::format_utc(moment).replace(".000Z", "Z"));
        let first = self.flows[0];
        match heading {
            "What is kept?" => {
                let of = |(store, epochs): (&String, &Vec<Epoch>)| {
                    let since = epochs.iter().map(|epoch| epoch.opened).min().unwrap();
                    let until = epochs.iter().map(|epoch| epoch.flipped_to).max().unwrap();
                    let rows: u64 = epochs.iter().map(|epoch| epoch.rows).sum();
                    json!({ "store": store, "since": at(since), "until": at(until), "epochs": epochs.len(), "rows": rows })
                };
                self.epochs.iter().map(of).collect()
            }
            "What did a flow report at 14:02:30?" => {
                let value = to_hex_digits(self.value.as_ref().expect("a value"));
                vec![json!({ "packets": uint(&value, 0), "bytes": uint(&value, 4) })]
            }
            "How did it change over time?" => {
                let values = self.over_time("flows", first).into_iter();
                values
                    .map(|(epoch, value)| json!({ "opened": at(epoch.opened), "packets": uint(value, 0) }))
                    .collect()
            }
            "In which epochs did nothing arrive of it?" => {
                let there: BTreeSet<u64> =
                    self.over_time("flows", first).iter().map(|(epoch, _)| epoch.generation).collect();
                let absent = self.epochs["flows"].iter().filter(|epoch| !there.contains(&epoch.generation));
                absent.map(|epoch| json!({ "opened": at(epoch.opened) })).collect()
            }
            "Which of these flows sent the most?" => {
                let most = |key: Key| {
                    self.over_time("flows", key).into_iter().filter_map(|(_, value)| uint(value, 4)).max()
                };
                let mut all: Vec<_> = self.flows.iter().map(|key| (most(*key), key.to_string())).collect();
                all.sort_by_key(|(most, flow)| (std::cmp::Reverse(*most), flow.clone()));
                all.into_iter().map(|(bytes, flow)| json!({ "flow": flow, "bytes": bytes })).collect()
            }
            "What were the ten deepest queues in five minutes?" => {
                let mut counts = BTreeMap::<_, u64>::new();
                for epoch in &self.epochs["flows"] {
                    for (_, value) in self.in_epoch("flows", epoch) {
                        let depth = uint(value, 8);
                        // In SQL, what is not there comes first.
                        let order = (depth.is_some(), std::cmp::Reverse(depth), epoch.opened);
                        *counts.entry(order).or_default() += 1;
                    }
                }
                let rows = counts.into_iter().take(10);
                rows.map(|((_, depth, opened), flows)| {
                    json!({ "opened": at(opened), "depth": depth.0, "flows": flows })
                })
                .collect()
            }
            "Which paths do packets take?" => {
                let mut counts = BTreeMap::<&str, u64>::new();
                self.in_epoch("paths", self.path_epoch())
                    .for_each(|(_, path)| *counts.entry(path).or_default() += 1);
                let mut counts: Vec<_> = counts.into_iter().collect();
                counts.sort_by_key(|(path, flows)| (std::cmp::Reverse(*flows), *path));
                counts.into_iter().map(|(path, flows)| json!({ "path": path, "flows": flows })).collect()
            }
            "When did a flow's path change?" => {
                let mut paths = self.over_time("paths", first);
                paths.dedup_by_key(|(_, path)| *path);
                paths
                    .into_iter()
                    .map(|(epoch, path)| json!({ "opened": at(epoch.opened), "path": path }))
                    .collect()
            }
            "How many paths went through a switch, epoch by epoch?" => {
                let of = |epoch: &Epoch| {
                    let paths: Vec<_> = self.in_epoch("paths", epoch).map(|(_, path)| path).collect();
                    let is_through = |path: &&&str| path.split(" > ").any(|hop| hop == self.switch);
                    let through = paths.iter().filter(is_through).count();
                    json!({ "opened": at(epoch.opened), "through_11": through, "paths": paths.len() })
                };
                self.epochs["paths"].iter().filter(|epoch| epoch.rows > 0).map(of).collect()
            }
            other => panic!("docs/sql.md asks {other:?}: say here what must be answered"),
        }
    }

    /// Epochs that are not complete, and gaps between them, as the collector lists them.
    fn check_incomplete(&self, answer: &[Value]) {
        let mut expected = BTreeSet::new();
        for (store, epochs) in &self.epochs {
            for epoch in epochs.iter().filter(|epoch| !epoch.confirmed || epoch.restarted != 0) {
                expected.insert((format!("epoch of {store}"), epoch.opened));
            }
            let mut known = epochs.first().map_or(0, |epoch| epoch.flipped_to);
            for epoch in epochs {
                if known < epoch.opened {
                    expected.insert((format!("nothing of {store}"), known));
                }
                known = known.max(epoch.flipped_to);
            }
        }
        let stated = answer.iter().filter(|row| {
            let what = row["what"].as_str().unwrap();
            what.starts_with("epoch of ") || what.starts_with("nothing of ")
        });
        let since = |row: &Value| dta_files::moment::parse_moment(row["since"].as_str().unwrap()).unwrap();
        let stated: BTreeSet<_> =
            stated.map(|row| (row["what"].as_str().unwrap().to_owned(), since(row))).collect();
        assert_eq!(stated, expected);
    }
}

/// A copy of a history that is being written: its logs first, so that all files that these name are there.
fn copy_history(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for part in ["*/_delta_log", "*/*.parquet"] {
        let copy = format!("cp -r --parents {part} '{}'", to.path().display());
        assert!(Command::new("sh").args(["-c", &copy]).current_dir(from).status().unwrap().success());
    }
    to
}

/// Four bytes of a value in hexadecimal digits as a number; nothing behind its end.
fn uint(value: &str, at: usize) -> Option<u32> {
    Some(u32::from_str_radix(value.get(2 * at..2 * at + 8)?, 16).unwrap())
}
