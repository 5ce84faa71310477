//! What the NIC counts: what it took, and what it dropped for reasons that no other check is for.

use super::Evidence;
use crate::doctor::Finding;

const CHECK: &str = "NIC";

/// Reasons of the software NIC that other checks tell better.
const ELSEWHERE: [&str; 4] = ["icrc", "destination", "unknown_queue_pair", "peer"];

pub(super) fn check(e: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(host) = &e.host
        && let Some(device) = &host.device_after
        && !device.ports.iter().any(|port| port.is_active())
    {
        let interface = host.interface.as_deref().unwrap_or("IFACE");
        findings.push(Finding::problem(
            "port down",
            format!("no port of {} is active", e.device),
            format!("ip link set dev {interface} up, and see that the cable has a link"),
        ));
    }
    findings.extend(drops(e));
    if let Some(taken) = e.nic_rise("received") {
        findings.push(Finding::ok(CHECK, format!("{} took {taken} frames {}", e.device, e.in_window())));
    } else {
        findings.push(Finding::note(
            CHECK,
            format!("{} does not count the frames that it takes: losses on UC are not measurable", e.device),
            "use transport = \"rc\", which finds losses by itself",
        ));
    }
    findings
}

/// What the software NIC dropped meanwhile.
fn drops(e: &Evidence) -> Vec<Finding> {
    let nic = e.nic();
    e.after
        .all(&nic)
        .filter_map(|(name, _)| Some((name.strip_prefix("dropped.")?, e.nic_rise(name)?)))
        .filter(|(reason, rise)| *rise > 0 && !ELSEWHERE.contains(reason))
        .map(|(reason, rise)| {
            let found = format!("the NIC dropped {rise} frames {}: `dropped.{reason}`", e.in_window());
            Finding::problem("NIC drops", found, cure(reason))
        })
        .collect()
}

fn cure(reason: &str) -> &'static str {
    match reason {
        "rkey" => {
            "the sender uses a key of an earlier session: start the translator again, or dta-translator setup"
        }
        "range" | "payload_length" | "misaligned" => {
            "translator and collector disagree about a store's size or layout: dta-translator plan --against shows the difference"
        }
        "permission" => {
            "the sender uses a queue pair or store for an operation that it is not for: dta-translator plan --against"
        }
        "psn" | "incomplete_message" => {
            "frames before them were lost: see lost.translator-nic in dta-collector stats"
        }
        "queue_pair_error" => "the queue pair is in ERROR until its session is renewed or set up again",
        "no_receive" => {
            "readers do not keep up with a list marked `notify`; leave `notify` off for lists that are written that fast"
        }
        "udp_checksum" => "something on the way damages frames",
        _ => "docs/counters.md says what it means",
    }
}
