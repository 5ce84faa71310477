//! Epochs turn while traffic runs, and each is asked afterwards. Needs no privilege. `DTA_EPOCHS` says over how many the
//! captures are spread; `make soak` takes ten.

mod common;

use common::outcome_document::{contradictions, documented_fields};
use common::{assert_each_epoch, assert_good, captures, number, testbed};
use serde_json::Value;

const FAULTS: &str = "drop=0.1,dup=0.02,reorder=0.02,corrupt=0.02";

fn run(what: &str, arguments: &[&str]) -> Value {
    let result = testbed(&[&["--epochs", "3", "--reports", "60000"], arguments].concat());
    assert_good(what, &result);
    assert_each_epoch(what, &result.1, 3);
    result.1
}

#[test]
fn each_epoch_has_what_was_reported_in_it() {
    for transport in ["uc", "rc"] {
        let outcome = run(transport, &["--transport", transport]);
        for primitive in &outcome["primitives"].as_array().unwrap()[..2] {
            assert_eq!(primitive["right"], primitive["queried"], "{transport}: {primitive:#}");
        }
        assert_eq!(contradictions(&documented_fields(), &outcome), Vec::<String>::new());
    }
}

#[test]
fn each_epoch_has_what_was_reported_in_it_with_faults_on_every_link() {
    for transport in ["uc", "rc"] {
        let outcome = run(transport, &["--transport", transport, "--faults", FAULTS]);
        let values = &outcome["primitives"][0];
        assert!(number(&values["stale"]) + number(&values["absent"]) > 0, "{transport}: {values:#}");
    }
}

#[test]
fn each_epoch_of_a_capture_has_what_was_reported_in_it() {
    let Some(folder) = captures("each_epoch_of_a_capture_has_what_was_reported_in_it") else { return };
    let count = std::env::var("DTA_EPOCHS").unwrap_or_else(|_| "2".into());
    let least = count.parse().expect("DTA_EPOCHS is a number");
    for (name, transport, workers, faults) in [
        ("real-1kxun", "uc", "1", "none"),
        ("real-wechat", "rc", "1", FAULTS),
        ("real-1kxun", "uc", "3", FAULTS),
    ] {
        let what = format!("{name} over {transport}, {workers} workers, faults {faults}");
        let path = folder.join(format!("traffic/{name}.pcap"));
        let spread = ["--pcap", path.to_str().unwrap(), "--epochs", &count, "--workers", workers];
        let result = testbed(&[&spread[..], &["--transport", transport, "--faults", faults]].concat());
        assert_good(&what, &result);
        assert_each_epoch(&what, &result.1, least);
    }
}
