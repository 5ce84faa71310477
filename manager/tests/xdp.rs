//! Collector and translator, each a process, whose frames go by AF_XDP over a veth pair.

mod common;
mod exact;

use std::process::Command;
use std::time::{Duration, Instant};

use exact::{Bed, Counted, KEYS, PATIENCE};
use rustix::thread::UnshareFlags;

/// Runs `test` in a thread with a network namespace of its own, in which `near` and `far` are the ends of a veth
/// pair. Its child processes are in there, too.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let joined = std::thread::spawn(|| {
        enter_namespace();
        for step in
            ["link set lo up", "link add near type veth peer name far", "link set near up", "link set far up"]
        {
            let status = Command::new("ip").args(step.split(' ')).status().expect("iproute2 is installed");
            assert!(status.success(), "ip {step}");
        }
        test();
    })
    .join();
    if let Err(panic) = joined {
        std::panic::resume_unwind(panic);
    }
}

#[allow(unsafe_code)]
fn enter_namespace() {
    // SAFETY: a new network namespace does not touch file descriptors or memory that others rely on.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("root may make namespaces");
}

/// What is at an interface, by `ip -d link`.
fn told(interface: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", interface]).output().expect("iproute2");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn answers_exactly(transport: &str) {
    let collector = format!(
        "listen = '127.0.0.1:0'\ntransport = '{transport}'\n\
         [soft]\naddress = '10.8.0.1'\nlink = 'xdp:near'\nmac = '02:00:00:00:08:01'"
    );
    let mut bed = Bed::start(&collector, "source = '10.8.0.2'\nlink = 'xdp:far'", || ());
    for interface in ["near", "far"] {
        assert!(told(interface).contains("prog/xdp"), "{}", told(interface));
    }
    let landed = |counted: &Counted| {
        let executed = counted.nic("executed.write") + counted.nic("executed.fetch_add");
        executed == counted.translator("operations")
            && counted.translator("link.roce.sent") == counted.nic("link.received")
            && counted.translator("link.roce.received") == counted.nic("link.sent")
    };
    let counted = bed.answers_exactly(landed).await;
    assert!(counted.translator("link.roce.sent") > KEYS.into());
    assert!(counted.translator("link.roce.received") > 0);
    // What has ended has left nothing at the interfaces.
    drop(bed);
    let begun = Instant::now();
    while ["near", "far"].iter().any(|interface| told(interface).contains("prog/xdp")) {
        assert!(begun.elapsed() < PATIENCE, "{}{}", told("near"), told("far"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn answers_over_af_xdp_are_exact() {
    for transport in ["uc", "rc"] {
        in_namespace(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(answers_exactly(transport));
        });
    }
}
