//! The whole testbed with a translator of several workers. Needs no privilege.

mod common;

use common::{assert_exact, assert_good, counter, number, testbed, testbed_apart};

/// What each of two workers has taken in shows that reports were really shared.
fn assert_shared(what: &str, (_, outcome): &(i32, serde_json::Value), rings: u64) {
    assert_eq!(
        counter(outcome, "translator/testbed", "ring.opened"),
        rings,
        "{what}: a ring for each worker"
    );
    assert_eq!(counter(outcome, "translator/testbed@1", "received"), 0, "{what}: the first counts for all");
}

#[test]
fn two_workers_are_exact() {
    let result = testbed(&["--reports", "20000", "--seed", "5", "--workers", "2"]);
    assert_exact("two workers", &result);
    assert_shared("two workers", &result, 2);
    assert_eq!(result.1["sent"], 20_000);
}

#[test]
fn three_workers_are_exact_without_rings_over_rc() {
    let result = testbed(&["--reports", "20000", "--ring", "off", "--workers", "3", "--transport", "rc"]);
    assert_exact("three workers", &result);
    assert_shared("three workers", &result, 0);
}

#[test]
fn two_threads_of_the_nic_are_exact_with_rings_and_without() {
    for (ring, transport) in [("auto", "uc"), ("off", "rc")] {
        let what = format!("two NIC threads, ring {ring}");
        let count = ["--reports", "20000", "--workers", "2", "--nic-threads", "2"];
        let result = testbed(&[&count[..], &["--ring", ring, "--transport", transport]].concat());
        assert_exact(&what, &result);
        assert_shared(&what, &result, if ring == "off" { 0 } else { 2 });
    }
}

#[test]
fn with_faults_nothing_is_wrong_and_nothing_unexplained() {
    for (seed, transport, share) in [("1", "uc", "0.01"), ("2", "rc", "0.1")] {
        let faults = format!("drop={share},dup={share},reorder={share},corrupt={share}");
        let result = testbed(&[
            "--reports",
            "30000",
            "--workers",
            "2",
            "--nic-threads",
            "2",
            "--seed",
            seed,
            "--transport",
            transport,
            "--faults",
            &faults,
        ]);
        assert_good(&format!("two workers over {transport} with {faults}"), &result);
        let [reports, nacks] = [&result.1["links"][0], &result.1["links"][1]];
        assert!(number(&reports["dropped"]) > 100 && number(&reports["duplicated"]) > 100, "{reports}");
        assert!(number(&nacks["sent"]) > 10 && number(&result.1["run"]["retransmitted"]) > 10, "{nacks}");
    }
}

#[test]
fn a_killed_daemon_comes_back_and_what_it_missed_is_accounted_for() {
    for what in ["kill-translator", "kill-collector"] {
        let count = ["--reports", "30000", "--workers", "2", "--nic-threads", "2"];
        let result = testbed_apart(&[&count[..], &["--chaos", what]].concat());
        assert_good(what, &result);
        let chaos = &result.1["run"]["chaos"];
        assert_eq!(chaos["answers_after"], chaos["answers_before"], "{chaos}");
        assert_eq!(chaos["session_resumed"], true, "{chaos}");
        assert!(number(&chaos["frames_lost"]) > 0, "{chaos}");
    }
}
