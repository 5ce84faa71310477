//! A network namespace for a test, and frames in it.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::time::Duration;

use dta_link::Link;
use dta_proto::batch::PacketBatch;
use rustix::thread::UnshareFlags;

/// Longer than anything here takes.
pub(crate) const SOON: Option<Duration> = Some(Duration::from_secs(60));

/// Runs `test` in its own thread with its own network namespace, where `lo` is up and so are the ends `near`
/// (10.9.0.1/24) and `far` (no address) of a veth pair; 10.9.0.2 is `far` to
/// its neighbour.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let result = std::thread::spawn(|| {
        enter_namespace();
        for step in [
            "link set lo up",
            "link add near type veth peer name far",
            "link set near address 02:00:00:00:00:01",
            "link set far address 02:00:00:00:00:02",
            "link set near up",
            "link set far up",
            "address add 10.9.0.1/24 dev near",
            "neighbour add 10.9.0.2 lladdr 02:00:00:00:00:02 dev near",
        ] {
            let status = Command::new("ip").args(step.split(' ')).status().expect("iproute2 is installed");
            assert!(status.success(), "ip {step}");
        }
        test();
    })
    .join();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[allow(unsafe_code)]
fn enter_namespace() {
    // SAFETY: a new network namespace does not touch file descriptors or memory that others rely on.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("root may make namespaces");
}

/// An address and port.
pub(crate) fn at(ip: [u8; 4], port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(ip), port)
}

/// Receives frames until `count` have come.
pub(crate) fn frames(link: &mut impl Link, count: usize) -> Vec<Vec<u8>> {
    let mut batch = PacketBatch::default();
    let mut all = Vec::new();
    while all.len() < count {
        assert_ne!(link.recv(&mut batch, SOON).unwrap(), 0, "only {} of {count} frames came", all.len());
        all.extend((0..batch.len()).map(|index| batch.ethernet_frame(index).unwrap().to_vec()));
    }
    all
}

/// Runs `ip`.
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments}");
}
