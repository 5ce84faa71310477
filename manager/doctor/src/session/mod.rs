//! A session is up, and nothing lands: what a running collector says, what this host's kernel says,
//! and what is on the wire, put together to the likely causes.
//!
//! Looking ([`look`]) takes two readings some seconds apart and counts the frames between; judging
//! ([`causes`]) is a function of what was seen. One check per file, in the order in which reports
//! pass:
//!
//! - `lease`: is there a session, and queue pairs?
//! - `translator`: do reports come in, and frames go out?
//! - `gid`: is the address that frames go to the collector's?
//! - `wire`: do frames reach this host?
//! - `queue_pair`: are the queue pairs that they go to there, and alive?
//! - `neighbour`: can answers leave?
//! - `icrc`: do frames arrive undamaged?
//! - `device`: what the NIC itself counts.
//! - `events`: do the rings of INT's events reach back far enough?

mod device;
mod events;
mod evidence;
mod frames;
mod gid;
mod icrc;
mod lease;
mod look;
mod neighbour;
mod neighbours;
mod queue_pair;
#[cfg(test)]
mod tests;
mod translator;
mod wire;

pub use evidence::{Evidence, Nodes};
pub use frames::{Flow, Frames, Tally};
pub use look::{LookError, LookOptions, look};
pub use neighbours::Neighbours;

use super::Finding;

/// Everything that was checked, the likely causes first, what is as it should be last.
pub fn causes(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = lease::check(evidence);
    findings.extend(translator::check(evidence));
    findings.extend(gid::check(evidence));
    findings.extend(wire::check(evidence));
    findings.extend(queue_pair::check(evidence));
    findings.extend(neighbour::check(evidence));
    findings.extend(icrc::check(evidence));
    findings.extend(device::check(evidence));
    findings.extend(events::check(evidence));
    // Stable: among equals, what is passed earlier explains what comes after it.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}
