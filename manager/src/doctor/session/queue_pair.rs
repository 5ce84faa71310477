//! Do the queue pairs that frames go to exist and work, and do the frames come from their peers?

use dta_cli::number::{format_count, format_grouped};
use dta_proto::control::SessionInfo;
use dta_proto::counter::nic::{self, Counter};

use super::evidence::{queue_pair_name, translator_ip};
use super::{Evidence, Flow};
use crate::doctor::Finding;

const ERROR: &str = "queue pair in ERROR";
const CHECK: &str = "queue pairs";

pub(super) fn check_queue_pairs(e: &Evidence) -> Vec<Finding> {
    let mut findings: Vec<Finding> = e.sessions.iter().flat_map(broken_queue_pairs).collect();
    if findings.is_empty() {
        findings.extend(again_and_again(e));
    }
    findings.extend(unknown_queue_pairs(e));
    findings.extend(strangers(e));
    let pairs: Vec<_> = e.sessions.iter().flat_map(|session| &session.queue_pairs).collect();
    if findings.is_empty() && !pairs.is_empty() {
        let parts: Vec<String> = pairs
            .iter()
            .map(|pair| format!("{} expects PSN {}", queue_pair_name(pair), pair.expected_psn))
            .collect();
        findings.push(Finding::new_ok(CHECK, format!("ready to receive: {}", parts.join("; "))));
    }
    findings
}

const WHY: &str = "An RC request put it there: with an unknown key, outside its region, misaligned or of a wrong length: requester and collector \
                   disagree about keys or stores";

fn broken_queue_pairs(session: &SessionInfo) -> Vec<Finding> {
    session
        .queue_pairs
        .iter()
        .filter(|pair| pair.state != "rtr")
        .map(|pair| {
            Finding::new_problem(
                ERROR,
                format!("{}: {} is in state {}: it drops everything", session.name, queue_pair_name(pair), pair.state),
                format!(
                    "a running translator gets a new one with its next renewal; for a switch: dta-translator setup, or dta-collector sessions end {}. {WHY}",
                    session.name
                ),
            )
        })
        .collect()
}

/// Broken queue pairs are rebuilt: one that looks healthy may still break at the next request.
fn again_and_again(e: &Evidence) -> Option<Finding> {
    let counter =
        if e.is_soft_nic() { Counter::QueuePairErrors.name() } else { nic::DEVICE_QUEUE_PAIR_ERRORS.name };
    let total = e.after.own_counter(&e.nic_node_name(), counter).filter(|n| *n > 0)?;
    let rise = e.nic_counter_rise(counter).unwrap_or(0);
    if rise > 0 {
        let found = format!(
            "{} fell into ERROR {}, {} in all; new ones replaced them",
            format_count(rise, "queue pair", "queue pairs"),
            e.in_window(),
            format_grouped(total)
        );
        return Some(Finding::new_problem(
            ERROR,
            found,
            format!("restart the translator, or dta-translator setup. {WHY}"),
        ));
    }
    let found = format!(
        "{} fell into ERROR in all, none of them {}",
        format_count(total, "queue pair", "queue pairs"),
        e.in_window()
    );
    Some(Finding::new_note(CHECK, found, format!("nothing, if it does not recur. {WHY}")))
}

const EARLIER: &str = "the sender still uses a queue pair of an earlier session: restart the translator, or dta-translator setup for a switch";

/// Frames of our translators to queue pairs that do not exist.
fn unknown_queue_pairs(e: &Evidence) -> Option<Finding> {
    if e.is_soft_nic() {
        let dropped = e.nic_counter_rise(Counter::DroppedUnknownQueuePair.name()).filter(|n| *n > 0)?;
        let found = format!("{} went to queue pairs that do not exist", e.frames_in_window(dropped));
        return Some(Finding::new_problem("unknown queue pair", found, EARLIER));
    }
    let ours = |flow: &Flow| {
        flow.destination == e.collector
            && e.sessions.iter().any(|session| translator_ip(session) == Some(flow.source))
    };
    let known = |flow: &Flow| e.queue_pairs.iter().any(|pair| pair.qpn == flow.queue_pair);
    let frames = e.counted_frames()?;
    let parts: Vec<String> = frames
        .flow_tallies()
        .filter(|(flow, _)| ours(flow) && !known(flow))
        .map(|(flow, tally)| format!("{} to {:#08x}", tally.frames, flow.queue_pair))
        .collect();
    if parts.is_empty() {
        return None;
    }
    let found = format!("frames {} to queue pairs that no session has: {}", e.in_window(), parts.join(", "));
    // Next to valid frames, these may be another program's.
    let alone = frames.sum(|flow| ours(flow) && known(flow)).frames == 0;
    Some(Finding::problem_or_note(alone, "unknown queue pair", found, EARLIER))
}

/// Frames to a session's queue pairs from another address than its translator's: they are dropped.
fn strangers(e: &Evidence) -> Option<Finding> {
    let advice = "a queue pair accepts only frames from its session's address: set the translator's --source, or the switch's address in \
                  [switch.NAME], to the actual source of the frames";
    if e.is_soft_nic() {
        let dropped = e.nic_counter_rise(Counter::DroppedPeer.name()).filter(|n| *n > 0)?;
        let found = format!(
            "{} came from an address other than that of the session's translator",
            e.frames_in_window(dropped)
        );
        return Some(Finding::new_problem("wrong sender", found, advice));
    }
    let of_other = |flow: &Flow| {
        e.sessions.iter().any(|session| {
            session.queue_pairs.iter().any(|pair| pair.qpn == flow.queue_pair)
                && translator_ip(session).is_some_and(|ip| ip != flow.source)
        }) && flow.destination == e.collector
    };
    let mut parts = Vec::new();
    for (flow, tally) in e.counted_frames()?.flow_tallies().filter(|(flow, _)| of_other(flow)) {
        parts.push(format!("{} from {} to {:#08x}", tally.frames, flow.source, flow.queue_pair));
    }
    let found = || {
        format!(
            "frames {} from a sender other than the session's translator: {}",
            e.in_window(),
            parts.join(", ")
        )
    };
    (!parts.is_empty()).then(|| Finding::new_problem("wrong sender", found(), advice))
}
