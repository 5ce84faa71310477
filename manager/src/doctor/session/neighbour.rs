//! Can the collector's answers and the translator's frames be sent? Both need the peer's Ethernet address.

use std::net::IpAddr;

use dta_cli::number::format_count;
use dta_proto::control::{SessionInfo, Transport};
use dta_proto::counter::LinkLoss;

use super::Evidence;
use super::evidence::translator_ip;
use super::neighbours::NextHop;
use crate::doctor::Finding;

const CHECK: &str = "no neighbour entry";

pub(super) fn check_neighbours(e: &Evidence) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        e.sessions.iter().filter_map(|session| translators(e, session)).collect();
    findings.extend(e.sessions.iter().filter_map(|session| check_kernel_neighbour(e, session)));
    findings
}

/// The translator's neighbour: it counts what it could not send.
fn translators(e: &Evidence, session: &SessionInfo) -> Option<Finding> {
    let (unsent, matters) = e.unsent_frames(&session.name, LinkLoss::UnsentUnreachable.name())?;
    let found = format!(
        "{}: the translator could not send {}: nobody answered for {}'s Ethernet address, or there is no route",
        session.name,
        format_count(unsent, "frame", "frames"),
        e.collector
    );
    let advice = "is the collector's interface up and on the same Ethernet as the translator's --link? A router between them needs a UDP \
                  link (no --link)";
    // A few, long ago: it had not resolved yet, or the peer was down for a while.
    Some(Finding::problem_or_note(matters, if matters { CHECK } else { "neighbour" }, found, advice))
}

/// The kernel's neighbour on the collector's host, which sends the answers of an RDMA device.
fn check_kernel_neighbour(e: &Evidence, session: &SessionInfo) -> Option<Finding> {
    let host = e.host.as_ref()?;
    let IpAddr::V4(ip) = translator_ip(session)? else { return None };
    // Local traffic needs no Ethernet address.
    if ip.is_loopback() || host.interface.as_deref() == Some("lo") {
        return None;
    }
    let name = &session.name;
    let entry = |by: &dyn std::fmt::Display, interface: &str| {
        format!(
            "is it up, and does it answer ARP (dta-translator run --link does)? Otherwise add an entry: ip neigh replace {by} lladdr MAC nud permanent dev {interface}"
        )
    };
    let (found, advice) = match host.neighbours.next_hop(ip) {
        NextHop::Known { interface } => {
            return Some(Finding::new_ok("neighbour", format!("{name}: {ip} is reached on {interface}")));
        }
        NextHop::None => (
            format!("{name}: this host has no route to the translator {ip}"),
            format!(
                "give the interface an address in the translator's network, or: ip route add {ip}/32 dev {}",
                host.interface.as_deref().unwrap_or("IFACE")
            ),
        ),
        NextHop::Silent { by, interface } => (
            format!(
                "{name}: nobody answers for the Ethernet address of {by} on {interface}, so no answer reaches the translator {ip}"
            ),
            entry(&by, &interface),
        ),
        NextHop::Unasked { by, interface } => {
            let found = format!(
                "{name}: the kernel has no entry for {by} on {interface}, and did not try to resolve it"
            );
            return Some(Finding::new_note("neighbour", found, entry(&by, &interface)));
        }
    };
    let answers = session.queue_pairs.iter().any(|pair| pair.transport() == Transport::Rc);
    let uc = if answers { "" } else { " (its queue pairs are UC, which need none until they are rebuilt)" };
    Some(Finding::problem_or_note(answers, CHECK, found + uc, advice))
}
