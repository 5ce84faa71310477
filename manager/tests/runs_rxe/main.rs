//! Frames by UDP sockets, in runs, to the kernel's soft-RoCE: `testbed/rxe-guest/run-tests` runs this in a guest.
#![cfg(feature = "verbs")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../exact/mod.rs"]
mod exact;
mod frames;
mod ground;

use exact::{ADDS, Bed, Counted, KEYS};
use ground::Ground;

fn answers_exactly(transport: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let collector = format!(
        "listen = '10.9.1.1:0'\ninsecure = true\ndevice = 'rxe1'\ntransport = '{transport}'\n\
         [verbs]\naddress = '10.9.1.1'"
    );
    runtime.block_on(async {
        let mut bed = Bed::start(&collector, "source = '10.9.1.2'", Ground::enter);
        let landed = |counted: &Counted| counted.nic("received") == counted.translator("link.roce.sent");
        let counted = bed.answers_exactly(landed).await;
        assert!(counted.translator("link.roce.sent") > KEYS.into());
        // Those of atomics at least. An answer whose iCRC were wrong would be dropped, and the frame sent again.
        assert!(counted.translator("link.roce.received") >= KEYS.into(), "{ADDS} adds may be one");
    });
}

#[test]
#[ignore = "needs soft-RoCE: run by testbed/rxe-guest/run-tests"]
fn answers_over_runs_to_a_device_are_exact() {
    for transport in ["uc", "rc"] {
        let ground = Ground::new();
        let ran = std::thread::spawn(move || answers_exactly(transport)).join();
        drop(ground);
        if let Err(panic) = ran {
            std::panic::resume_unwind(panic);
        }
    }
}
