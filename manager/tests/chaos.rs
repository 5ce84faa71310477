//! A daemon killed with -9 in the middle of a run, and started again. Needs no privilege.

mod common;

use std::sync::{Mutex, PoisonError};

use common::outcome_document::{contradictions, documented_fields};
use common::{assert_good, number, testbed};

/// What comes to a port that nobody has open is counted by the kernel for all processes together, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_killed_collector_comes_back_with_its_answers_and_the_gap_is_accounted_for() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for transport in ["uc", "rc"] {
        let result = testbed(&["--reports", "30000", "--chaos", "kill-collector", "--transport", transport]);
        assert_good(&format!("killed collector over {transport}"), &result);
        let chaos = &result.1["run"]["chaos"];
        assert!(number(&chaos["answers_before"]) > 100, "{chaos}");
        assert_eq!(chaos["answers_after"], chaos["answers_before"], "{chaos}");
        assert_eq!(chaos["session_resumed"], true, "{chaos}");
        // The gap has cost something, and the waterfall says so.
        assert!(number(&chaos["frames_lost"]) > 0, "{chaos}");
        assert!(number(&result.1["losses"]["lost.translator-nic"]) > 0, "{:#}", result.1["losses"]);
        assert!(number(&result.1["links"][2]["killed"]) + number(&result.1["links"][2]["kernel"]) > 0);
    }
}

#[test]
fn a_killed_translator_comes_back_and_what_it_missed_is_accounted_for() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for transport in ["uc", "rc"] {
        let result = testbed(&["--reports", "30000", "--chaos", "kill-translator", "--transport", transport]);
        assert_good(&format!("killed translator over {transport}"), &result);
        assert_eq!(contradictions(&documented_fields(), &result.1), Vec::<String>::new());
        let chaos = &result.1["run"]["chaos"];
        assert!(number(&chaos["answers_before"]) > 100, "{chaos}");
        assert_eq!(chaos["answers_after"], chaos["answers_before"], "{chaos}");
        assert_eq!(chaos["session_resumed"], true, "{chaos}");
        // The translator itself knows what it missed, by the sequences of those who go on.
        assert_eq!(chaos["missing_sequences"], chaos["frames_lost"], "{chaos}");
        // Every report of the gap is lost, in its socket or at its closed port, and by name.
        let lost = number(&chaos["frames_lost"]);
        assert!(lost >= 300, "{chaos}");
        let link = &result.1["links"][0];
        assert!(number(&link["killed"]) >= 150 && number(&link["kernel"]) >= 150, "{link:#}");
        assert_eq!(number(&result.1["losses"]["lost.reporter-translator"]), lost, "{:#}", result.1["losses"]);
    }
}
