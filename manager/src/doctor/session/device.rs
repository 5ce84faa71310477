//! What the NIC counts: frames taken, and frames dropped for reasons that no other check covers.

use dta_proto::counter::nic::{self, Counter};
use dta_proto::counter::{self, CounterStep};

use super::Evidence;
use crate::doctor::Finding;

const CHECK: &str = "NIC";

/// Drops of the software NIC that other checks explain better.
const ELSEWHERE: [Counter; 4] = [
    Counter::DroppedIcrc,
    Counter::DroppedDestination,
    Counter::DroppedUnknownQueuePair,
    Counter::DroppedPeer,
];

pub(super) fn check_nic(e: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(host) = &e.host
        && let Some(device) = &host.device_after
        && !device.ports.iter().any(|port| port.is_active())
    {
        let interface = host.interface.as_deref().unwrap_or("IFACE");
        findings.push(Finding::new_problem(
            "port down",
            format!("no port of {} is active", e.device),
            format!("ip link set dev {interface} up, and check that the cable has a link"),
        ));
    }
    findings.extend(check_nic_drops(e));
    if let Some(taken) = e.nic_counter_rise(nic::RECEIVED.name) {
        findings.push(Finding::new_ok(CHECK, format!("{} took {}", e.device, e.frames_in_window(taken))));
    } else {
        findings.push(Finding::new_note(
            CHECK,
            format!("{} does not count received frames: losses on UC cannot be measured", e.device),
            "use transport = \"rc\", which detects losses",
        ));
    }
    findings
}

/// What the software NIC dropped meanwhile.
fn check_nic_drops(e: &Evidence) -> Vec<Finding> {
    let node = e.nic_node_name();
    let dropped = |name: &str| {
        counter::find_counter(&node, name).is_some_and(|found| found.definition.step == CounterStep::Dropped)
            && !ELSEWHERE.iter().any(|counter| counter.name() == name)
    };
    e.after
        .own_counters(&node)
        .filter(|(name, _)| dropped(name))
        .filter_map(|(name, _)| Some((name, e.nic_counter_rise(name).filter(|rise| *rise > 0)?)))
        .map(|(name, rise)| {
            let found = format!("the NIC dropped {}: `{name}`", e.frames_in_window(rise));
            Finding::new_problem("NIC drops", found, drop_remedy(Counter::from_name(name)))
        })
        .collect()
}

fn drop_remedy(counter: Option<Counter>) -> &'static str {
    match counter {
        Some(Counter::DroppedRkey) => {
            "the sender uses a key of an earlier session: restart the translator, or dta-translator setup"
        }
        Some(Counter::DroppedRange | Counter::DroppedPayloadLength | Counter::DroppedMisaligned) => {
            "translator and collector disagree about a store's size or layout: dta-translator plan --against shows the difference"
        }
        Some(Counter::DroppedPermission) => {
            "the sender uses a queue pair or store for the wrong operation: dta-translator plan --against"
        }
        Some(Counter::DroppedPsn | Counter::DroppedIncompleteMessage) => {
            "frames before them were lost: see lost.translator-nic in dta-collector stats"
        }
        Some(Counter::DroppedQueuePairError) => {
            "the queue pair is in ERROR until its session is renewed or set up again"
        }
        Some(Counter::DroppedNoReceive) => {
            "readers do not keep up with a list marked `notify`; leave `notify` off for lists that are written that fast"
        }
        Some(Counter::DroppedIpChecksum | Counter::DroppedUdpChecksum) => {
            "something on the way damages frames"
        }
        _ => "docs/counters.md explains it",
    }
}
