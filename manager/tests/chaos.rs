//! The collector killed with -9 in the middle of a run, and started again. Needs no privilege.

mod common;

use common::{assert_good, number, testbed};

#[test]
fn a_killed_collector_comes_back_with_its_answers_and_the_gap_is_accounted_for() {
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
