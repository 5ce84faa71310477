//! A tenth of all frames dropped, repeated, moved and damaged each, on every link and in every
//! direction: no answer is wrong, no report is unexplained, and on RC none that the translator took
//! is lost; also where DTA reports, INT and flow exports come at once, into stores with epochs.
//! `DTA_SEEDS` says with how many seeds; `make soak` takes ten. Without the right to open a raw
//! socket, reports and NACKs are not damaged.

#[path = "../common/mod.rs"]
mod common;
mod everything;

use common::{assert_good, captures, number, testbed};

const FAULTS: &str = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1";

fn seeds() -> u64 {
    match std::env::var("DTA_SEEDS") {
        Ok(text) => text.parse().expect("DTA_SEEDS is a number"),
        Err(_) => 2,
    }
}

fn holds(capture: &str, transport: &str) {
    let Some(folder) = captures(&format!("faults over {transport}")) else { return };
    let path = folder.join(format!("traffic/{capture}.pcap"));
    let path = path.to_str().unwrap();
    for seed in 1..=seeds() {
        let what = format!("{capture} over {transport}, seed {seed}");
        let seed = seed.to_string();
        let result =
            testbed(&["--pcap", path, "--transport", transport, "--seed", &seed, "--faults", FAULTS]);
        assert_good(&what, &result);
        // Faults that do nothing would prove nothing.
        let links = result.1["links"].as_array().unwrap();
        let [reports, nacks, frames, answers] = links.as_slice() else { panic!("four links: {links:?}") };
        for (link, least) in [(reports, 1000), (nacks, 20), (frames, 200), (answers, 20)] {
            for fault in ["dropped", "duplicated", "reordered"] {
                assert!(number(&link[fault]) > least, "{what}, {fault}: {link:#}");
            }
        }
        assert!(
            number(&frames["corrupted"]) > 200 && number(&answers["corrupted"]) > 20,
            "{what}: {links:#?}"
        );
        assert!(number(&result.1["run"]["retransmitted"]) > 100, "{what}: {:#}", result.1["run"]);
        let losses = result.1["losses"].as_object().unwrap();
        let behind: Vec<_> = losses.keys().filter(|name| name.contains("nic")).collect();
        match transport {
            "rc" => assert!(behind.is_empty(), "{what}: {losses:#?}"),
            _ => assert_eq!(behind, ["dropped.nic.icrc", "lost.translator-nic"], "{what}: {losses:#?}"),
        }
        // A counter lacks what its reporters lost, and nothing else: atomics are on RC always.
        let counters = &result.1["primitives"][3];
        assert_eq!(number(&counters["wrong"]) + number(&counters["over"]), 0, "{what}: {counters:#}");
    }
}

#[test]
fn one_capture_over_uc() {
    holds("real-1kxun", "uc");
}

#[test]
fn one_capture_over_rc() {
    holds("real-1kxun", "rc");
}

#[test]
fn the_other_capture_over_uc() {
    holds("real-wechat", "uc");
}

#[test]
fn the_other_capture_over_rc() {
    holds("real-wechat", "rc");
}
