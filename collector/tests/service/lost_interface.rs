//! A collector whose NIC loses its interface.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dta_collector::server::RunningCollector;
use dta_memory::nic::Nic;
use dta_memory::nic::soft::{SoftNic, SoftNicConfig};

use crate::common::config;

fn ip(step: &str) {
    let status = Command::new("ip").args(step.split(' ')).status();
    assert!(status.expect("iproute2 is installed").success(), "ip {step}");
}

#[allow(unsafe_code)]
fn enter_namespace() {
    // SAFETY: a new network namespace does not touch file descriptors or memory that others rely on.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        .expect("root may make namespaces");
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn a_nic_whose_interface_is_gone_says_so_and_ends_the_collector() {
    // In a thread, and a namespace, of its own.
    let test = std::thread::spawn(|| {
        enter_namespace();
        ip("link add near type veth peer name far");
        for link in ["near", "far", "lo"] {
            ip(&format!("link set {link} up"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let open = || {
                let config = SoftNicConfig::new(SocketAddr::from(([10, 9, 0, 2], 4791)));
                let nic = SoftNic::with_wire(config, &"packet:far".parse().unwrap())?;
                Ok(Arc::new(nic) as Arc<dyn Nic>)
            };
            let mut server = RunningCollector::start_with(&config(), open).await.unwrap();
            ip("link delete far");
            let failed = tokio::time::timeout(Duration::from_secs(60), server.wait_for_failure()).await;
            server.shut_down().await.unwrap();
            failed
        });
        let error = ended.expect("the collector ends").to_string();
        assert!(error.contains("the NIC has stopped") && error.contains("no interface far"), "{error}");
    });
    if let Err(panic) = test.join() {
        std::panic::resume_unwind(panic);
    }
}
