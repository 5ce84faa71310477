//! `dta-manager bench --nic` with soft-RoCE: `testbed/rxe-guest/run-tests` runs it in a guest.
#![cfg(feature = "verbs")]

mod common;
mod nics;

use common::MANAGER;
use nics::{bench, complete};

#[test]
#[ignore = "needs soft-RoCE: run by testbed/rxe-guest/run-tests"]
fn both_nics_execute_every_frame() {
    complete(&bench(&[MANAGER], "rxe"), &["soft", "rxe", "soft/rxe", "runs/plain"]);
    for left in ["net/dta-bench-near", "infiniband/dta-bench"] {
        assert!(!std::path::Path::new("/sys/class").join(left).exists(), "{left} is taken down");
    }
}
