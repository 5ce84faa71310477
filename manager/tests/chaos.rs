//! A daemon killed with -9 in the middle of a run, and started again. Needs no privilege.

mod common;

use std::sync::{Mutex, PoisonError};

use common::outcome_document::{contradictions, documented_fields};
use common::{assert_each_epoch, assert_good, counter, number, testbed_apart};

/// What comes to a port that nobody has open is counted by the kernel for all processes together.
/// Only root has namespaces, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_killed_collector_comes_back_with_its_answers_and_the_gap_is_accounted_for() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for transport in ["uc", "rc"] {
        let result =
            testbed_apart(&["--reports", "30000", "--chaos", "kill-collector", "--transport", transport]);
        assert_good(&format!("killed collector over {transport}"), &result);
        // Both lives have a ring, and what the first one left in its ring is among what is lost.
        let counter = |node: &str, name: &str| counter(&result.1, node, name);
        assert_eq!(counter("nic/soft", "ring.opened"), 2, "{transport}");
        assert!(counter("translator/testbed", "ring.sent") > 1000, "{transport}");
        assert!(counter("translator/testbed", "ring.left") > 0, "{transport}");
        let chaos = &result.1["run"]["chaos"];
        assert!(number(&chaos["answers_before"]) > 100, "{chaos}");
        assert_eq!(chaos["answers_after"], chaos["answers_before"], "{chaos}");
        assert_eq!(chaos["session_resumed"], true, "{chaos}");
        // The gap has cost frames. On UC the waterfall says which reports were in them; on RC they
        // were sent again.
        assert!(number(&chaos["frames_lost"]) > 0, "{chaos}");
        let lost = &result.1["losses"]["lost.translator-nic"];
        assert!(transport == "rc" || number(lost) > 0, "{:#}", result.1["losses"]);
        assert!(number(&result.1["links"][2]["killed"]) + number(&result.1["links"][2]["kernel"]) > 0);
    }
}

#[test]
fn a_translator_that_is_away_for_more_than_65536_sequences_of_a_reporter_misses_none_in_its_books() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // In each epoch the two switches of the first tier report 8,192 columns: nine epochs are missed.
    let away = "350000";
    let result =
        testbed_apart(&["--reports", "400000", "--chaos", "kill-translator", "--chaos-reports", away]);
    assert_good("a translator away for long", &result);
    assert_eq!(result.1["sent"], 400_000);
    let chaos = &result.1["run"]["chaos"];
    let lost = number(&chaos["frames_lost"]);
    assert!(lost >= 350_000, "{chaos}");
    assert_eq!(number(&chaos["missing_sequences"]), lost, "{chaos}");
    assert_eq!(number(&result.1["losses"]["lost.reporter-translator"]), lost, "{:#}", result.1["losses"]);
    assert_eq!(chaos["answers_after"], chaos["answers_before"], "{chaos}");
}

#[test]
fn a_killed_translator_comes_back_and_what_it_missed_is_accounted_for() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for transport in ["uc", "rc"] {
        let result =
            testbed_apart(&["--reports", "30000", "--chaos", "kill-translator", "--transport", transport]);
        assert_good(&format!("killed translator over {transport}"), &result);
        assert_eq!(contradictions(&documented_fields(), &result.1), Vec::<String>::new());
        let chaos = &result.1["run"]["chaos"];
        assert!(number(&chaos["answers_before"]) > 100, "{chaos}");
        assert_eq!(chaos["answers_after"], chaos["answers_before"], "{chaos}");
        assert_eq!(chaos["session_resumed"], true, "{chaos}");
        // The translator itself knows what it missed, by the sequences of those that go on.
        assert_eq!(chaos["missing_sequences"], chaos["frames_lost"], "{chaos}");
        // Every report of the gap is lost, in its socket or at its closed port, and by name.
        let lost = number(&chaos["frames_lost"]);
        assert!(lost >= 300, "{chaos}");
        let link = &result.1["links"][0];
        assert!(number(&link["killed"]) >= 150 && number(&link["kernel"]) >= 150, "{link:#}");
        assert_eq!(number(&result.1["losses"]["lost.reporter-translator"]), lost, "{:#}", result.1["losses"]);
    }
}

/// What the killed translator had sent last may be lost: the next one leaves out sequences of each list, or
/// nobody would notice that entries are missing.
#[test]
fn a_translator_killed_on_a_bad_link_leaves_no_loss_unreported() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let faults = "drop=0.05,dup=0.05,reorder=0.05,corrupt=0.05";
    for seed in ["1", "2", "3"] {
        let flags = ["--reports", "30000", "--chaos", "kill-translator", "--faults", faults, "--seed", seed];
        assert_good(&format!("killed translator, seed {seed}"), &testbed_apart(&flags));
    }
}

#[test]
fn frames_over_loopback_are_as_exact_as_through_the_ring() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (ring, transport) in [("off", "uc"), ("auto", "uc"), ("off", "rc"), ("auto", "rc")] {
        let what = format!("ring {ring} over {transport}");
        let faults = "drop=0.02,dup=0.02,reorder=0.02,corrupt=0.02";
        let arguments = ["--reports", "10000", "--ring", ring, "--transport", transport];
        for more in [&[][..], &["--faults", faults, "--report-faults", "none"]] {
            let result = testbed_apart(&[&arguments[..], more].concat());
            assert_good(&what, &result);
            let sent = counter(&result.1, "translator/testbed", "ring.sent");
            assert_eq!(sent > 1000, ring == "auto", "{what}: {sent} frames through a ring");
        }
    }
}

#[test]
fn a_daemon_that_is_killed_while_epochs_turn_leaves_each_of_them_right() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (who, transport) in [("kill-collector", "rc"), ("kill-collector", "uc"), ("kill-translator", "uc")] {
        let what = format!("{who} over {transport}");
        let spread = ["--epochs", "3", "--reports", "60000"];
        let result = testbed_apart(&[&spread[..], &["--chaos", who, "--transport", transport]].concat());
        assert_good(&what, &result);
        assert_each_epoch(&what, &result.1, 3);
        let chaos = &result.1["run"]["chaos"];
        assert!(number(&chaos["answers_before"]) > 100, "{what}: {chaos}");
        assert_eq!(chaos["answers_after"], chaos["answers_before"], "{what}: {chaos}");
    }
}
