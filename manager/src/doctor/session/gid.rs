//! Do frames go to the collector's address, and does the device still have its GID?

use dta_memory::nic::verbs::GidType;
use dta_proto::counter::nic::Counter;

use super::Evidence;
use super::evidence::translator_ip;
use crate::doctor::Finding;

const CHECK: &str = "wrong GID";

pub(super) fn check_collector_gid(e: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(check_gid_table(e));
    findings.extend(elsewhere(e));
    if findings.is_empty() {
        let whose = if e.is_soft_nic() { "the software NIC" } else { e.device.as_str() };
        findings.push(Finding::new_ok("GID", format!("{} is {whose}'s", e.collector)));
    }
    findings
}

/// The device's own table.
fn check_gid_table(e: &Evidence) -> Option<Finding> {
    let host = e.host.as_ref().filter(|_| !e.is_soft_nic())?;
    let device = &e.device;
    let Some(seen) = &host.device_after else {
        return Some(Finding::new_problem(
            CHECK,
            format!("the RDMA device {device} is gone"),
            format!(
                "put it back (soft-RoCE: rdma link add {device} type rxe netdev IFACE), then restart the collector if it does not find it"
            ),
        ));
    };
    let gids = seen.gid_entries();
    let there = gids.iter().any(|gid| gid.kind == GidType::RoceV2 && gid.ip_address() == e.collector);
    (!there).then(|| {
        let has: Vec<String> = gids.iter().map(ToString::to_string).collect();
        let has = if has.is_empty() { "no GID at all".to_owned() } else { has.join(", ") };
        let interface = host.interface.as_deref().unwrap_or("IFACE");
        Finding::new_problem(
            CHECK,
            format!("sessions were given the address {}, but {device} no longer has that GID; it has {has}", e.collector),
            format!(
                "give the address back (ip address add {}/LENGTH dev {interface}), or restart the collector: it takes an existing GID, and translators follow when they renew",
                e.collector
            ),
        )
    })
}

/// Frames of our translators, or to our queue pairs, to another address.
fn elsewhere(e: &Evidence) -> Option<Finding> {
    let advice = format!(
        "the sender does not use the address that the session gave out ({}): for a switch dta-translator setup; if the collector should be \
         at the other address, start it with --roce-address",
        e.collector
    );
    if e.is_soft_nic() {
        let dropped = e.nic_counter_rise(Counter::DroppedDestination.name()).filter(|n| *n > 0)?;
        let found = format!("{} went to an address other than the collector's", e.frames_in_window(dropped));
        return Some(Finding::new_problem(CHECK, found, advice));
    }
    let gids = e.host.as_ref()?.device_after.as_ref().map(|device| device.gid_entries()).unwrap_or_default();
    let mut found = Vec::new();
    for (flow, tally) in e.counted_frames()?.flow_tallies() {
        let entry = gids.iter().find(|gid| gid.ip_address() == flow.destination);
        let to_ours = e.queue_pairs.iter().any(|pair| pair.qpn == flow.queue_pair);
        // What our translators' hosts send to other addresses of this device may be another program's.
        let from_ours =
            entry.is_none() && e.sessions.iter().any(|session| translator_ip(session) == Some(flow.source));
        if flow.destination != e.collector && (to_ours || from_ours) {
            found.push(format!(
                "{} from {} went to {}, {}",
                e.frames_in_window(tally.frames),
                flow.source,
                flow.destination,
                match entry {
                    Some(entry) => format!("which is the GID at index {}, not the collector's", entry.index),
                    None => format!("which is not a GID of {}", e.device),
                }
            ));
        }
    }
    (!found.is_empty()).then(|| Finding::new_problem(CHECK, found.join("; "), advice))
}
