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
pub(super) fn examine(root: &Path) -> Vec<Finding> {
    let devices = tree::devices(root);
    let mut findings = Vec::new();
    if devices.is_empty() {
        findings.push(device::none());
    }
    for device in &devices {
        findings.push(device::check(device));
        findings.extend(gid::check(device));
        findings.extend(counters::check(device));
        findings.push(verbs::check(root, device));
    }
    findings.push(module::check(root));
    findings
}
