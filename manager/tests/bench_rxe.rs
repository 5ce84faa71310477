//! `dta-manager bench --nic` with soft-RoCE: `testbed/rxe-guest/run-tests` runs it in a guest.
#![cfg(feature = "verbs")]

mod common;
mod nics;

use common::MANAGER;
use nics::{bench, complete};

#[test]
#[ignore = "needs soft-RoCE: run by testbed/rxe-guest/run-tests"]
fn both_nics_execute_every_frame() {
    let (posting, others): (Vec<_>, Vec<_>) =
        bench(&[MANAGER], "rxe").into_iter().partition(|(name, ..)| name.contains("posted/"));
    complete(&others, &["soft", "rxe", "soft/rxe", "runs/plain"]);
    // Three kinds of reports, with and without softirqs, rate and CPU time.
    assert_eq!(posting.len(), 3 * 2 * 2, "{posting:?}");
    for (name, unit, figures, _) in posting {
        assert!(unit == "ns/op" || figures.iter().all(|rate| *rate > 0.0), "{name}: {figures:?}");
    }
    for left in ["net/dta-bench-near", "infiniband/dta-bench", "infiniband/dta-rxe-tx"] {
        assert!(!std::path::Path::new("/sys/class").join(left).exists(), "{left} is taken down");
    }
}
