//! Capabilities that the program needs, and dropping the rest.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What tracing needs for as long as it runs: interfaces come back, filters change.
const NEEDED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
];

/// The capabilities that tracing needs but the thread lacks; `namespaces` if it enters others.
pub fn missing_capabilities(namespaces: bool) -> io::Result<Vec<&'static str>> {
    let has = capabilities(None)?.effective;
    let needed = NEEDED.into_iter().chain(namespaces.then_some((CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")));
    // CAP_SYS_ADMIN stands for the first two, as it does in the kernel.
    let stands_for = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let granted = if has.contains(CapabilitySet::SYS_ADMIN) { has | stands_for } else { has };
    Ok(needed.filter(|(set, _)| !granted.contains(*set)).map(|(_, name)| name).collect())
}

/// Drops all capabilities but those needed, for the calling thread and those that it starts later. Must
/// be called before other threads run.
pub fn drop_others(namespaces: bool) -> io::Result<()> {
    let has = capabilities(None)?;
    let mut keep = NEEDED.into_iter().fold(CapabilitySet::empty(), |all, (set, _)| all | set);
    // An older runtime may have granted CAP_SYS_ADMIN instead of the first two.
    if namespaces || !has.permitted.contains(CapabilitySet::BPF | CapabilitySet::PERFMON) {
        keep |= CapabilitySet::SYS_ADMIN;
    }
    let keep = keep & has.permitted;
    set_capabilities(
        None,
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() },
    )?;
    Ok(())
}

/// Drops all capabilities, for the calling thread only.
pub fn drop_all_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}
