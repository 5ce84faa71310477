//! What a packet costs, by the kernel's own test runs.

use dta_reporter::packet_trace::kernel::{TracerOptions, measure_costs};

use crate::bed::{Bed, object};

#[test]
#[ignore = "needs root"]
fn each_way_through_the_program_is_measured() {
    let _turn = Bed::new();
    let options = TracerOptions { object: object(), ..TracerOptions::default() };
    let costs = measure_costs(&options, 5, 2000).unwrap();
    costs.iter().for_each(|cost| eprintln!("{}: {} ns, {:.2}", cost.path, cost.nanoseconds, cost.ratio));
    assert_eq!(costs[0].path, "empty program");
    // Nothing more is asserted: other programs run on the machine as well.
    assert!(costs.iter().all(|cost| cost.nanoseconds > 0.0 && cost.ratio > 0.0));
}
