//! What commands print with `-o json` is as the schemas in `docs/schemas` say, and every schema is held
//! against real output.

mod bed;
mod schema;

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Output;

use bed::{Bed, program};
use serde_json::Value;

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:5000/udp";
/// A drop of a packet of that flow, as the translator's rules for INT append it.
const DROP: &str = "0x64726f70,0,7,0x0a000001,0x0a000002,0x13881388,0x11000000,1,2,3,4,0x47000000,0,0,0";

/// Schemas of what needs etcd, an RDMA device, a long run, a capture of INT or records of hosts; they are held against elsewhere.
const ELSEWHERE: [&str; 17] = [
    // collector/tests/service/alert_delivery.rs
    "alert-export",
    "alert-webhook",
    // cluster/main.rs
    "dta-collector-placement-show",
    "dta-collector-placement-drain",
    "dta-collector-placement-rebalance",
    // Others refer to them, and are held against with them.
    "epoch",
    "store",
    "dta-reporter-points",
    "dta-reporter-trace",
    "dta-manager-bench-trace",
    "dta-manager-trace",
    "dta-reporter-agent",
    "dta-collector-devices",
    "dta-collector-tail-events",
    "dta-collector-trace",
    "dta-manager-bench-nic",
    "dta-manager-bench-memory",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas")
}

/// Holds documents against the schemas of commands, and remembers which schemas that were.
#[derive(Default)]
struct Held(BTreeSet<String>);

impl Held {
    fn hold(&mut self, name: &str, document: &Value) {
        schema::hold(name, document);
        self.0.insert(name.to_owned());
    }

    /// Runs a command and checks its output against its schema; returns the output.
    fn run(&mut self, name: &str, arguments: &[&str]) -> Value {
        let output = json(arguments);
        let document = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{arguments:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
        self.hold(name, &document);
        document
    }
}

fn json(arguments: &[&str]) -> Output {
    program(arguments).args(["-o", "json"]).output().unwrap()
}

#[test]
fn what_commands_print_is_as_their_schemas_say() {
    let bed = Bed::start();
    let mut held = Held::default();
    held.hold("dta-collector-serve", &bed.ready[0]);
    held.hold("dta-translator-run", &bed.ready[1]);

    let send = |report: &[&'static str]| {
        let at = ["--unchecked", "--to", &bed.reports];
        [&["__reporter", "send"], report, &at[..]]
            .concat()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    for report in [
        &["key-write", "--store", "1", "--key", FLOW, "--value", "1,2,3"][..],
        &["postcarding", "--store", "2", "--key", FLOW, "--hop", "1", "--path-length", "3", "--value", "7"],
        &["append", "--store", "3", "--list", "0", "--value", "1,2,3,4"],
        &["key-increment", "--store", "4", "--key", FLOW, "--delta", "5"],
        &["append", "--store", "18", "--list", "1", "--value", DROP],
    ] {
        let arguments = send(report);
        let sent = held.run("dta-reporter-send", &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(sent["nodes"][0]["counters"]["sent"], 1);
    }
    let control = bed.control.as_str();
    held.run("dta-translator-flush", &["__translator", "flush", "--translator", control]);
    let collector = |command: &[&'static str]| {
        [&["__collector"], command, &["--collector", bed.collector.as_str()]].concat()
    };
    // What was flushed is on its way: ask until the last of it is there.
    let mut count = Value::Null;
    for _ in 0..1200 {
        count = held
            .run("dta-collector-query-key-increment", &collector(&["query", "key-increment", FLOW, "ab"]));
        if count[0]["counted"] == 5 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(count[0]["counted"], 5);
    held.run("dta-collector-query-key-write", &collector(&["query", "key-write", FLOW, "ab"]));
    held.run("dta-collector-query-postcarding", &collector(&["query", "postcarding", FLOW, "ab"]));
    let with_epochs = WithEpochs::start();
    let history = |command: &[&'static str]| {
        [&["__collector"], command, &["--collector", with_epochs.address.as_str()]].concat()
    };
    let epochs = held.run("dta-collector-history", &history(&["history", "flows"]));
    assert_eq!((&epochs[0]["state"], epochs.as_array().unwrap().len()), (&"open".into(), 1));
    let answers = held
        .run("dta-collector-query-key-write", &history(&["query", "key-write", FLOW, "--store", "flows"]));
    assert_eq!(answers[0]["epoch"], epochs[0]);
    let query = ["query", "key-write", FLOW, "--store", "flows", "--since", "-1h"];
    let changes = held.run("dta-collector-query-key-write-since", &history(&query));
    let kept: Vec<_> = changes[0]["changes"].as_array().unwrap().iter().map(|of| &of["kept"]).collect();
    assert_eq!(
        kept,
        [false, true],
        "there is an hour of which nothing is kept, and the open epoch: {changes}"
    );
    let query = ["query", "postcarding", FLOW, "--since", "-1h"];
    held.run("dta-collector-query-postcarding-since", &history(&query));
    let query = ["query", "key-increment", FLOW, "--since", "-1h"];
    let changes = held.run("dta-collector-query-key-increment-since", &history(&query));
    assert_eq!(changes[0]["changes"][1]["value"], Value::Null);
    let count = held
        .run("dta-collector-query-key-increment", &history(&["query", "key-increment", FLOW, "--at", "-0s"]));
    assert_eq!((&count[0]["lacks"], &count[0]["epoch"]["state"]), (&Value::Null, &"open".into()));
    let sketch = ["query", "sketch-merge", FLOW, "--epoch", "1", "--at", "-0s"];
    let sketch = held.run("dta-collector-query-sketch-merge", &history(&sketch));
    assert_eq!((&sketch[0]["estimate"], &sketch[0]["table_epoch"]["state"]), (&Value::Null, &"open".into()));
    let tail = json(&history(&["tail", "--since", "-1h"]));
    assert_eq!(tail.status.code(), Some(3), "a list without entries");
    let lines: Vec<Value> = String::from_utf8(tail.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    lines.iter().for_each(|line| held.hold("dta-collector-tail", line));
    let has = |line: &Value, field| line.get(field).is_some();
    assert!(lines.len() == 2 && has(&lines[0], "not_kept") && has(&lines[1], "epoch"), "{lines:?}");
    let then = held.run("dta-collector-stats-at", &history(&["stats", "--since", "-1h"]));
    let stores = then["stores"].as_array().unwrap();
    assert!(stores.len() == 5 && stores.iter().all(|of| of["not_written"] == 1), "{then}");
    assert_eq!(then["without_epochs"], serde_json::json!(["values"]));
    held.run(
        "dta-collector-query-sketch-merge",
        &collector(&["query", "sketch-merge", "--epoch", "1", FLOW]),
    );
    held.run("dta-collector-query-sketch-merge-epochs", &collector(&["query", "sketch-merge", "--epochs"]));
    let of_flow = ["query", "flow", FLOW, "--names", "none", "--paths", "paths", "--counters", "bytes"];
    let flows = held.run("dta-collector-query-flow", &collector(&of_flow));
    assert_eq!(flows[0]["stores"][1]["counted"], 5);
    held.run("dta-collector-top", &collector(&["top", "--keys", "events", "--store", "bytes"]));
    held.run("dta-collector-flows", &collector(&["flows", "--per", "10s"]));
    let tail = json(&collector(&["tail", "--from-start", "--once"]));
    let lines: Vec<Value> = String::from_utf8(tail.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 1);
    lines.iter().for_each(|line| held.hold("dta-collector-tail", line));
    let arguments = collector(&["export", "--json", "-", "--once"]);
    let exported = program(&arguments).output().unwrap();
    let lines: Vec<Value> = String::from_utf8(exported.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((lines.len(), &lines[0]["flow"]), (1, &FLOW.into()));
    held.hold("dta-collector-export", &lines[0]);
    held.run("dta-collector-stores", &collector(&["stores"]));
    held.run("dta-collector-stats", &collector(&["stats"]));
    held.run("dta-collector-sessions", &collector(&["sessions"]));
    let alerts = held.run("dta-collector-alerts", &collector(&["alerts"]));
    assert_ne!(alerts["rules"], 0);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let rules = file("collector.toml", "[alerts]\noff = [\"elephant\"]\n");
    held.run("dta-collector-alerts-check", &["__collector", "alerts", "check", &rules]);
    let tests = file(
        "tests.toml",
        "rules = \"collector.toml\"\n[[test]]\nname = \"quiet\"\n[[test.records]]\nto = \"40s\"\n\
         values = { dst = \"192.0.2.7\", protocol = \"tcp\", tcp-flags = \"syn\", packets = 5000 }\n",
    );
    let found = held.run("dta-collector-alerts-test", &["__collector", "alerts", "test", &tests]);
    assert_eq!(found["tests"][0]["fired"][0]["labels"]["dst"], "192.0.2.7");
    assert_eq!(found["tests"][0]["problems"].as_array().unwrap().len(), 1, "{found}");
    held.run("dta-translator-stats", &["__translator", "stats", "--translator", control]);
    let plan = ["__translator", "plan", "--collector", &bed.collector];
    held.run("dta-translator-plan", &plan);
    let lacking = held.run("dta-translator-setup", &[&plan[..], &["--against", control]].concat());
    assert_ne!(
        lacking,
        serde_json::json!([]),
        "the plan is of another place, so there is something to change"
    );
    held.run("dta-translator-teardown", &["__translator", "teardown", "--collector", &bed.collector]);
    let reporter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../translator-ctl/tests/p4/reporter.toml");
    let config = reporter.to_str().unwrap();
    let rows =
        held.run("dta-translator-plan", &["__translator", "plan", "--config", config, "--switch", "edge1"]);
    assert!(rows.as_array().is_some_and(|rows| rows.len() > 40), "{rows}");
    let name = "translator";
    held.run("dta-translator-plan", &plan);
    // The translator that runs opens its session again: then it can be ended once more.
    for _ in 0..1200 {
        let output = json(&collector(&["sessions", "end", name]));
        if output.status.success() {
            held.hold("dta-collector-sessions-end", &serde_json::from_slice(&output.stdout).unwrap());
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }

    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("one.pcap");
    std::fs::write(&capture, capture_of_one_report()).unwrap();
    held.run("dta-manager-replay", &["replay", capture.to_str().unwrap(), "--to", &bed.reports]);
    held.run("dta-manager-doctor", &["doctor"]);
    held.run("dta-manager-size", &["size", "--epoch", "60s"]);
    held.run("dta-manager-simulate-placement", &["simulate", "placement", "--events", "20"]);
    held.run("dta-manager-bench", &["bench", "--quick", "query"]);
    held.run("dta-manager-bench-int", &["bench", "--int", "--quick", "unchanged-3-few"]);
    held.run("dta-manager-run-testbed", &["run-testbed", "--reports", "2000"]);

    let all: BTreeSet<String> = std::fs::read_dir(self::folder())
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| !ELSEWHERE.contains(&name.as_str()))
        .collect();
    assert_eq!(all, held.0, "a schema that nothing was held against, or a command without one");
}

/// A collector whose stores have epochs of a day.
struct WithEpochs {
    daemon: std::process::Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl WithEpochs {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("collector.toml");
        let history = folder.path().join("history");
        let text = format!(
            "[collector]\nlisten = \"127.0.0.1:0\"\nmemory = \"anonymous\"\n[soft]\nport = 0\n[history]\ndirectory = {history:?}\n\
             [[store]]\nid = 1\nname = \"flows\"\nkind = \"key-write\"\nslots = 1024\nvalue_len = 12\n\
             redundancy = 2\nepoch = \"24h\"\n[[store]]\nid = 2\nname = \"paths\"\nkind = \"postcarding\"\nslots = 1024\n\
             hops = 6\nredundancy = 2\nepoch = \"24h\"\n[[store]]\nid = 3\nname = \"events\"\nkind = \"append\"\nlists = 2\n\
             ring = 64\nbatch_len = 64\nentry_len = 4\nepoch = \"24h\"\n[[store]]\nid = 4\nname = \"bytes\"\n\
             kind = \"key-increment\"\nslots = 1024\nredundancy = 2\nepoch = \"24h\"\n[[store]]\nid = 5\nname = \"packets\"\n\
             kind = \"sketch-merge\"\ncolumns = 16\nrows = 2\nepochs = 4\nexpected = 1\nepoch = \"24h\"\n[[store]]\nid = 6\n\
             name = \"values\"\nkind = \"key-write\"\nslots = 1024\nvalue_len = 4\nredundancy = 2\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut daemon = program(&["__collector", "serve", "--config", config.to_str().unwrap()])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        Self { daemon, address: ready["listen"].as_str().unwrap().to_owned(), _folder: folder }
    }
}

impl Drop for WithEpochs {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A capture (pcap, Ethernet) with one datagram for port 40040.
fn capture_of_one_report() -> Vec<u8> {
    let payload = [0u8; 16];
    let udp_len = 8 + payload.len() as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    for word in [5000, 40040, udp_len, 0] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend(payload);
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, frame.len() as u32, frame.len() as u32]
    {
        file.extend(word.to_le_bytes());
    }
    file.extend(frame);
    file
}

#[test]
fn what_is_printed_elsewhere_is_as_the_schemas_say() {
    let mut held = Held::default();
    let figure = dta_testbed::bench::MemoryFigure {
        reports: 1,
        accepted: 1,
        executed: 1,
        seconds: 0.5,
        collector: [1, 2],
        translator: [1, 2],
        reporter: [1, 2],
    };
    held.hold("dta-manager-bench-memory", &serde_json::to_value(figure).unwrap());
    let row = |most| dta_testbed::bench::trace::TracePathCost {
        name: "report",
        nanoseconds: 90.0,
        ratio: 3.0,
        most,
    };
    held.hold("dta-manager-bench-trace", &serde_json::to_value([row(Some(4.0)), row(None)]).unwrap());
    let row = |ratio| dta_testbed::bench::veth::VethFigure {
        name: "rc-write-8.soft".into(),
        unit: "ops/s",
        value: 1.0,
        floor: 2.0,
        ratio,
    };
    held.hold("dta-manager-bench-nic", &serde_json::to_value([row(Some(0.5)), row(None)]).unwrap());
}

#[test]
fn every_schema_is_described_in_the_page() {
    let page = std::fs::read_to_string(folder().join("../json.md")).unwrap();
    for file in std::fs::read_dir(folder()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let description = schema::read(&name)["description"].as_str().unwrap().to_owned();
        let row = page.lines().find(|line| line.contains(&format!("(schemas/{name})")));
        assert!(row.is_some_and(|row| row.contains(&description)), "{name}: {row:?}");
    }
}
