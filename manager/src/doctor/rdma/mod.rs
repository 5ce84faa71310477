//! RDMA devices as the kernel shows them under `/sys` and `/proc`: no library is needed.

mod counters;
mod device;
mod gid;
mod module;
pub(super) mod tree;
mod verbs;

use std::path::Path;

use super::Finding;

/// Devices with their GIDs and counters, and the modules behind them.
pub(super) fn examine_rdma(root: &Path) -> Vec<Finding> {
    let devices = tree::list_devices(root);
    let mut findings = Vec::new();
    if devices.is_empty() {
        findings.push(device::no_device_finding());
    }
    for device in &devices {
        findings.push(device::check_device_ports(device));
        findings.extend(gid::check_gids(device));
        findings.extend(counters::check_counters(device));
        findings.push(verbs::check_device_access(root, device));
    }
    findings.push(module::check_module(root));
    findings
}
