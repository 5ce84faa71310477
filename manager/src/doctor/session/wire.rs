//! Do frames reach this host?

use dta_proto::counter::{nic, translator};

use super::Evidence;
use crate::doctor::Finding;

const CHECK: &str = "frames";

pub(super) fn check_wire_frames(e: &Evidence) -> Vec<Finding> {
    let Some(host) = &e.host else {
        return vec![Finding::new_note(
            CHECK,
            format!(
                "the collector ({}) is on another host: its frames, neighbours and GIDs were not checked",
                e.collector
            ),
            "run this command there",
        )];
    };
    let frames = match &host.frames {
        Ok(frames) => frames,
        Err(why) => {
            return vec![Finding::new_note(
                CHECK,
                format!("frames to port {} were not counted: {why}", e.port),
                "run this command as root",
            )];
        }
    };
    let interface = host.interface.as_deref().unwrap_or("the interface");
    let mut findings = Vec::new();
    let by_ring = e.sessions.iter().filter(|session| session.frames_by == "ring").count();
    if frames.total_frames() == 0 && by_ring > 0 && by_ring == e.sessions.len() {
        findings.push(Finding::new_ok(
            CHECK,
            "all frames go through rings in shared memory, none over a wire".to_owned(),
        ));
    } else if frames.total_frames() == 0 {
        findings.push(no_frames_finding(e, interface));
    } else {
        let missed = if frames.missed == 0 {
            String::new()
        } else {
            format!(", {} more were not checked", frames.missed)
        };
        findings.push(Finding::new_ok(
            CHECK,
            format!(
                "{} to UDP port {} on {interface}{missed}",
                e.frames_in_window(frames.total_frames()),
                e.port
            ),
        ));
    }
    let astray = frames.sum(|flow| flow.destination == e.collector && !flow.to_us).frames;
    if astray > 0 {
        findings.push(Finding::new_problem(
            "wrong MAC",
            format!(
                "{} to {} had an Ethernet address other than {interface}'s",
                e.frames_in_window(astray),
                e.collector
            ),
            "the sender's neighbour entry is stale or static: let it resolve again, or give the switch the collector's MAC (dta-translator setup)",
        ));
    }
    if frames.malformed > 0 {
        findings.push(Finding::new_note(
            CHECK,
            format!(
                "{} had broken IPv4 or UDP headers, or too few bytes for RoCEv2",
                e.frames_in_window(frames.malformed)
            ),
            "something else sends to this port, or something on the way damages frames",
        ));
    }
    findings
}

/// Nothing came. Whether the wire is to blame depends on whether anything was sent.
fn no_frames_finding(e: &Evidence, interface: &str) -> Finding {
    let sent = |nodes: &super::Nodes| -> u64 {
        let count = |session: &str| {
            nodes.translator(session).map_or(0, |(_, c)| c.get(translator::FRAMES.name).copied().unwrap_or(0))
        };
        e.sessions.iter().map(|session| count(&session.name)).sum()
    };
    let (before, after) = (sent(&e.before), sent(&e.after));
    let advice = format!(
        "check the path: is the cable in the right port, does the switch keep the VLAN, does a firewall drop UDP {}, does the sender have the \
         collector's MAC? tcpdump -eni {interface} udp port {}",
        e.port, e.port
    );
    let found = format!("no frame reached UDP port {} on {interface} {}", e.port, e.in_window());
    if after > before {
        Finding::new_problem(CHECK, format!("{found}, although translators sent {}", after - before), advice)
    } else if after > 0 && e.after.own_counter(&e.nic_node_name(), nic::RECEIVED.name) == Some(0) {
        Finding::new_problem(CHECK, format!("{found}, nor before, although translators sent {after}"), advice)
    } else {
        Finding::new_note(
            CHECK,
            found,
            "either nothing was sent meanwhile (see translator), or it was lost on the way; watch longer with --seconds",
        )
    }
}
