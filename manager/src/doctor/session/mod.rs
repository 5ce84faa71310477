//! A session is up, but nothing lands: combines what a running collector reports, what this host's kernel shows, and
//! what is on the wire into likely causes.
//!
//! [`gather_evidence`] takes two readings some seconds apart and counts the frames between; [`find_causes`] is a function of this
//! evidence. One check per file, in the order in which reports pass:
//!
//! - `lease`: is there a session, with queue pairs?
//! - `translator`: do reports come in, and frames go out?
//! - `gid`: do frames go to the collector's address?
//! - `wire`: do frames reach this host?
//! - `queue_pair`: do their queue pairs exist, and work?
//! - `neighbour`: can answers be sent?
//! - `icrc`: do frames arrive undamaged?
//! - `device`: what the NIC itself counts.
//! - `events`: do the rings of INT events reach back far enough?

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
pub use frames::{Flow, FrameCounts, Tally};
pub use look::{LookError, LookOptions, gather_evidence};
pub use neighbours::Neighbours;

use super::Finding;

/// All findings: likely causes first, the good ones last.
pub fn find_causes(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = lease::check_lease(evidence);
    findings.extend(translator::check_translators(evidence));
    findings.extend(gid::check_collector_gid(evidence));
    findings.extend(wire::check_wire_frames(evidence));
    findings.extend(queue_pair::check_queue_pairs(evidence));
    findings.extend(neighbour::check_neighbours(evidence));
    findings.extend(icrc::check_icrc(evidence));
    findings.extend(device::check_nic(evidence));
    findings.extend(events::check_event_rings(evidence));
    // Stable: among equals, an earlier stage explains a later one.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}
