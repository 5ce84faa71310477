//! The whole testbed as a user runs it, small enough for every `cargo test`. Needs no privilege.

mod common;

use std::process::{Command, Stdio};

use common::outcome_document::{contradictions, documented_fields};
use common::{MANAGER, assert_exact, assert_good, captures, manager, number, testbed};

#[test]
fn synthetic_traffic_without_faults_is_exact() {
    let result = testbed(&["--reports", "20000", "--seed", "5"]);
    assert_exact("synthetic", &result);
    assert_eq!(result.1["sent"], 20_000);
}

#[test]
fn as_many_reports_as_are_asked_for_and_as_a_capture_has() {
    let sent = |arguments: &[&str]| {
        let result = testbed(arguments);
        assert_good(&format!("{arguments:?}"), &result);
        number(&result.1["sent"])
    };
    // The columns of one epoch are 16,384 reports: without room for them there is no sketch.
    for count in ["1", "5001", "16391", "16392", "30007"] {
        assert_eq!(sent(&["--reports", count]).to_string(), count);
    }
    let Some(folder) = captures("as_many_reports_as_are_asked_for_and_as_a_capture_has") else { return };
    let path = folder.join("traffic/real-wechat.pcap");
    let path = path.to_str().unwrap();
    assert_eq!(sent(&["--pcap", path, "--reports", "5000"]), 5000);
    assert_eq!(sent(&["--pcap", path, "--reports", "20001"]), 20_001);
    assert_eq!(sent(&["--pcap", path, "--reports", "1000000"]), sent(&["--pcap", path]));
}

#[test]
fn chaos_needs_room_before_and_after_it() {
    let output = manager(&["run-testbed", "--reports", "17000", "--chaos", "kill-translator"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && stderr.contains("it has to make"), "{stderr}");
}

#[test]
fn the_demonstration_as_it_comes_is_exact() {
    let result = testbed(&[]);
    assert_exact("the default run", &result);
    assert!(number(&result.1["sent"]) > 250_000, "{:#}", result.1);
}

#[test]
fn the_demonstration_ends_with_what_one_core_does() {
    let output = manager(&["run-testbed", "--reports", "2000", "--bench"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    let (_, glance) = shown.split_once("One core").expect(&shown);
    for row in
        ["software translator", "software NIC", "both in one process", "key-write query", "append tail"]
    {
        assert!(glance.contains(row), "{row}: {shown}");
    }
    assert!(!glance.contains("loopback"), "{shown}");
}

#[test]
fn real_traffic_without_faults_is_exact_over_both_transports() {
    let Some(folder) = captures("real_traffic_without_faults_is_exact_over_both_transports") else { return };
    for (name, packets) in [("real-1kxun", 1723), ("real-wechat", 1672)] {
        let path = folder.join(format!("traffic/{name}.pcap"));
        let path = path.to_str().unwrap();
        for transport in ["uc", "rc"] {
            let result = testbed(&["--pcap", path, "--transport", transport]);
            assert_exact(&format!("{name} over {transport}"), &result);
            assert_eq!(result.1["run"]["packets"], packets);
            assert_eq!(result.1["primitives"][0]["sent"], packets);
            assert_eq!(result.1["primitives"][1]["sent"], 5 * packets);
        }
    }
}

#[test]
fn with_faults_on_every_link_nothing_is_wrong_and_nothing_unexplained() {
    let Some(folder) = captures("with_faults_on_every_link_nothing_is_wrong_and_nothing_unexplained") else {
        return;
    };
    for (seed, name, transport) in [("1", "real-1kxun", "uc"), ("2", "real-wechat", "rc")] {
        let path = folder.join(format!("traffic/{name}.pcap"));
        let result = testbed(&[
            "--pcap",
            path.to_str().unwrap(),
            "--transport",
            transport,
            "--seed",
            seed,
            "--faults",
            "drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01",
        ]);
        assert_good(&format!("{name} over {transport} with faults, seed {seed}"), &result);
        // Faults that do nothing would prove nothing.
        let links = result.1["links"].as_array().unwrap();
        let [reports, nacks, frames, _] = links.as_slice() else { panic!("four links: {links:?}") };
        for fault in ["dropped", "duplicated", "reordered", "corrupted"] {
            assert!(number(&frames[fault]) > 20, "{fault}: {frames}");
        }
        assert!(number(&reports["dropped"]) > 100 && number(&reports["duplicated"]) > 100, "{reports}");
        assert!(number(&nacks["sent"]) > 10 && number(&result.1["run"]["retransmitted"]) > 10, "{nacks}");
        assert!(number(&result.1["losses"]["lost.reporter-translator"]) > 0);
    }
}

#[test]
fn rc_loses_nothing_however_bad_its_link_is() {
    let Some(folder) = captures("rc_loses_nothing_however_bad_its_link_is") else { return };
    for (seed, name) in [("1", "real-1kxun"), ("2", "real-wechat")] {
        let path = folder.join(format!("traffic/{name}.pcap"));
        let faults = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1";
        let rc = ["--transport", "rc", "--faults", faults, "--report-faults", "none", "--seed", seed];
        let result = testbed(&[&["--pcap", path.to_str().unwrap()], &rc[..]].concat());
        assert_exact(&format!("{name} over RC with 10 % of each fault, seed {seed}"), &result);
        assert_eq!(
            result.1["losses"],
            serde_json::json!({}),
            "nothing dropped for a full queue, nothing unknown"
        );
        // Both ways.
        let links = result.1["links"].as_array().unwrap();
        for link in &links[2..] {
            for fault in ["dropped", "duplicated", "reordered", "corrupted"] {
                assert!(number(&link[fault]) > 500, "{fault}: {link}");
            }
        }
    }
}

#[test]
fn crowded_stores_lose_nothing_without_saying_so() {
    let topology = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/topologies/crowded.toml");
    let result = testbed(&["--topology", topology, "--reports", "60000"]);
    assert_good("crowded", &result);
    assert!(number(&result.1["overwritten"]) > 1000, "{:#}", result.1);
    let counters = &result.1["primitives"][3];
    assert!(number(&counters["over"]) > 0, "{counters:#}");
}

#[test]
fn the_same_seed_gives_the_same_traffic() {
    let facts = |seed: &str| {
        let (_, outcome) = testbed(&["--reports", "3000", "--seed", seed]);
        (outcome["sent"].clone(), outcome["run"]["flows"].clone(), outcome["queryable"].clone())
    };
    assert_eq!(facts("11"), facts("11"));
    assert_ne!(facts("11"), facts("12"));
}

#[test]
fn the_json_is_as_documented() {
    let documented = documented_fields();
    // Faults, so that there are losses; `chaos.rs` tests `--chaos`, so that its tests take turns.
    let (_, outcome) = testbed(&["--reports", "2000", "--report-faults", "drop=0.05"]);
    assert!(!outcome["losses"].as_object().unwrap().is_empty(), "{:#}", outcome["losses"]);
    assert_eq!(contradictions(&documented, &outcome), Vec::<String>::new());
    let names = |list: &str| -> Vec<&str> {
        outcome[list].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
    };
    // The names that the document lists, in its order.
    for list in ["primitives", "links"] {
        let row = documented.iter().find(|field| field.path == format!("{list}[].name")).unwrap();
        assert_eq!(row.names(), names(list));
    }
}

#[test]
fn a_field_that_is_missing_or_of_another_type_is_seen() {
    let documented = documented_fields();
    let (_, outcome) = testbed(&["--reports", "500"]);
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = outcome.clone();
        change(&mut changed);
        contradictions(&documented, &changed)
    };
    let gone = with(&|o| drop(o["links"][2].as_object_mut().unwrap().remove("kernel")));
    assert_eq!(gone, ["links[].kernel is documented and missing"]);
    let new = with(&|o| o["run"]["weather"] = "fine".into());
    assert_eq!(new, ["run.weather is not documented"]);
    let other = with(&|o| o["primitives"][0]["wrong"] = (-1).into());
    assert_eq!(other, ["primitives[].wrong is documented as count and is -1"]);
}

#[test]
fn a_capture_that_is_cut_is_played_up_to_the_cut_with_a_warning() {
    let Some(folder) = captures("a_capture_that_is_cut_is_played_up_to_the_cut_with_a_warning") else {
        return;
    };
    let whole = std::fs::read(folder.join("traffic/real-wechat.pcap")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut.pcap");
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let result = testbed(&["--pcap", path.to_str().unwrap()]);
    assert_exact("cut capture", &result);
    let cut = result.1["run"]["cut"].as_str().expect("the cut is reported");
    let packets = number(&result.1["run"]["packets"]);
    assert!(
        cut.contains("the file ends inside a record") && packets > 100 && packets < 1672,
        "{cut}, {packets}"
    );
}

#[test]
fn what_cannot_be_run_says_why_and_whose_fault_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.toml");
    std::fs::write(&path, "name = \"x\"\nfoo = 1\n").unwrap();
    for (arguments, status, expect) in [
        (vec!["run-testbed", "--pcap", "/nonexistent.pcap"], 1, "/nonexistent.pcap"),
        (vec!["run-testbed", "--topology", path.to_str().unwrap()], 2, "foo"),
        (vec!["run-testbed", "--faults", "drop=2"], 2, "probability"),
        (vec!["run-testbed", "--faults", "explode=0.1"], 2, "explode"),
        (vec!["replay", path.to_str().unwrap(), "--to", "127.0.0.1:9"], 1, "not a capture"),
    ] {
        let output = manager(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expect), "{arguments:?}: {stderr}");
    }
}

#[test]
fn files_without_an_end_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let pipe = pipe.to_str().unwrap();
    for (arguments, expect) in [
        (vec!["run-testbed", "--topology", "/dev/zero"], "/dev/zero: it is a device, not a regular file"),
        (vec!["run-testbed", "--topology", pipe], "it is a pipe, not a regular file"),
        (vec!["run-testbed", "--topology", "/"], "it is a directory, not a regular file"),
        (vec!["run-testbed", "--pcap", "/dev/zero"], "it is a device, not a regular file"),
        (vec!["replay", "/dev/urandom", "--to", "127.0.0.1:9"], "it is a device, not a regular file"),
        (vec!["__collector", "serve", "--config", "/dev/zero"], "it is a device, not a regular file"),
        (vec!["__translator", "run", "--config", "/dev/zero"], "it is a device, not a regular file"),
    ] {
        let output = manager(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(expect), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_capture_whose_first_record_is_damaged_says_where_and_why() {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, 0x7fff_ffff, 60] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(bytes.len() + 60, 0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.pcap");
    std::fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [
        vec!["run-testbed", "--pcap", path],
        vec!["replay", path, "--to", "127.0.0.1:9"],
        vec!["replay", path, "--raw", "lo"],
    ] {
        let output = manager(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        for part in [path, "holds no readable packet", "byte 24", "2147483647 bytes"] {
            assert!(stderr.contains(part), "{arguments:?}: {stderr}");
        }
    }
}

#[test]
fn a_reader_that_has_gone_and_a_full_disk_are_no_panic() {
    for arguments in [&["doctor"][..], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = |stdout: Stdio| {
            let output =
                Command::new(MANAGER).args(arguments).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, stderr) = run(writer.into());
        assert!(
            code.is_some_and(|code| [0, 4].contains(&code)) && stderr.is_empty(),
            "{arguments:?}: {code:?} {stderr}"
        );
        let full = std::fs::File::create("/dev/full").unwrap();
        let (code, stderr) = run(full.into());
        assert!(
            code.is_some_and(|code| code <= 4) && !stderr.contains("panicked"),
            "{arguments:?}: {code:?} {stderr}"
        );
    }
}
