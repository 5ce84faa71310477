//! A session is up, but nothing lands: combines what a running collector reports, what this host's kernel shows, and
//! what is on the wire into likely causes.
//!
//! [`gather_evidence`] takes two readings some seconds apart and counts the frames between; [`find_causes`] is a function of this
//! evidence. The checks, in the order in which reports pass:
//!
//! - the lease: is there a session, with queue pairs?
//! - `translator`: do reports come in, and frames go out?
//! - `gid`: do frames go to the collector's address?
//! - `wire`: do frames reach this host?
//! - `queue_pair`: do their queue pairs exist, and work?
//! - `neighbour`: can answers be sent?
//! - `icrc`: do frames arrive undamaged?
//! - `device`: what the NIC itself counts.
//! - events: do the rings of INT events reach back far enough?

mod device;
mod evidence;
mod frames;
mod gather;
mod gid;
mod icrc;
mod neighbour;
mod neighbours;
mod queue_pair;
#[cfg(test)]
mod tests;
mod translator;
mod wire;

pub use evidence::{Evidence, Nodes};
pub use frames::{Flow, FrameCounts, Tally};
pub use gather::{LookError, LookOptions, gather_evidence};
pub use neighbours::Neighbours;

use dta_proto::counter::{Stage, collector};

use super::Finding;

/// All findings: likely causes first, the good ones last.
pub fn find_causes(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = check_lease(evidence);
    findings.extend(translator::check_translators(evidence));
    findings.extend(gid::check_collector_gid(evidence));
    findings.extend(wire::check_wire_frames(evidence));
    findings.extend(queue_pair::check_queue_pairs(evidence));
    findings.extend(neighbour::check_neighbours(evidence));
    findings.extend(icrc::check_icrc(evidence));
    findings.extend(device::check_nic(evidence));
    findings.extend(check_event_rings(evidence));
    // Stable: among equals, an earlier stage explains a later one.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// Whether the rings of INT events reach back far enough.
fn check_event_rings(e: &Evidence) -> Vec<Finding> {
    let short = e.rings.iter().filter(|ring| ring.is_short());
    short
        .map(|ring| {
            let (found, advice) = ring.describe_with_advice();
            Finding::new_note("rings of events", found, advice)
        })
        .collect()
}

const LEASE: &str = "session";

/// Whether there is a session with queue pairs.
fn check_lease(e: &Evidence) -> Vec<Finding> {
    if e.sessions.is_empty() {
        let refused =
            e.after.own_counter(Stage::Collector.name(), collector::SESSION_REFUSED.name).unwrap_or(0);
        let found = match (&e.asked, e.all_sessions.is_empty()) {
            (Some(name), false) => {
                format!("there is no session {name:?}; there are {}", e.all_sessions.join(", "))
            }
            _ => "there is no session: no translator has a key to this collector's memory".to_owned(),
        };
        let found =
            if refused == 0 { found } else { format!("{found}; {refused} opens or renewals were refused") };
        let advice = "start a translator, or read its log if it runs: it has the collector's reason for a refusal. Most often: it \
                      cannot be reached, it has no certificate, or another session owns a store";
        return vec![Finding::new_problem(LEASE, found, advice)];
    }
    e.sessions
        .iter()
        .map(|session| {
            let name = &session.name;
            if session.queue_pairs.is_empty() {
                Finding::new_problem(
                    LEASE,
                    format!("{name}: it has no queue pairs: the collector has restarted, and its translator has not renewed since"),
                    "a running translator renews automatically; is it still there? For a switch: dta-translator setup",
                )
            } else {
                let until = match session.expires_in_seconds {
                    left if left < 0.0 => "without expiry".to_owned(),
                    left => format!("expires in {left:.0} s unless renewed"),
                };
                let by = match session.frames_by.as_str() {
                    "" => String::new(),
                    "ring" => ", frames through a ring in shared memory".to_owned(),
                    other => format!(", frames by {other}"),
                };
                Finding::new_ok(LEASE, format!("{name}: generation {}, {until}{by}", session.generation))
            }
        })
        .collect()
}
