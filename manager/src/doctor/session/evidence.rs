//! The evidence. Plain data, so that tests can make it up.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use dta_cli::number::format_count;
use dta_memory::nic::SOFT;
use dta_proto::control::{NodeStatistics, QueuePairStatus, SessionInfo, Transport};
use dta_proto::counter::{Stage, translator};
use dta_rpc::event_rings::WrappedRing;

use super::frames::FrameCounts;
use super::neighbours::Neighbours;
use crate::doctor::rdma::tree::Device;

/// Readings of a collector and its host.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The collector's NIC: `soft` or the RDMA device's name.
    pub device: String,
    /// The address that frames must go to.
    pub collector: IpAddr,
    /// The UDP port that they must go to.
    pub port: u16,
    /// The session's name, if only one was requested.
    pub asked: Option<String>,
    /// The examined sessions, at the end.
    pub sessions: Vec<SessionInfo>,
    pub all_sessions: Vec<String>,
    pub queue_pairs: Vec<QueuePairStatus>,
    /// The time between the two readings.
    pub window: Duration,
    pub before: Nodes,
    pub after: Nodes,
    /// The rings of INT events that have turned over.
    pub rings: Vec<WrappedRing>,
    /// The kernel's view; `None` on another host than the collector's.
    pub host: Option<HostEvidence>,
}

/// What the kernel of the collector's host shows.
#[derive(Clone, Debug)]
pub struct HostEvidence {
    /// The interface with the collector's address, or of its RDMA device.
    pub interface: Option<String>,
    /// The RDMA device at the beginning; `None` for the software NIC, or if the device is gone.
    pub(crate) device_before: Option<Device>,
    /// The RDMA device at the end.
    pub(crate) device_after: Option<Device>,
    /// Datagrams that the kernel delivered to UDP sockets in between, whatever their port.
    pub datagrams: Option<u64>,
    pub neighbours: Neighbours,
    /// Frames to the collector's port that reached the interface in between, or why they could not be counted.
    pub frames: Result<FrameCounts, String>,
}

/// The counters of all nodes at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nodes(BTreeMap<(String, String), (f64, BTreeMap<String, u64>)>);

impl Nodes {
    /// From a collector's answer.
    pub fn new(nodes: Vec<NodeStatistics>) -> Self {
        Self(
            nodes
                .into_iter()
                .map(|n| {
                    let counters = n.counters.into_iter().map(|c| (c.name, c.value)).collect();
                    ((n.node, n.session), (n.age_seconds, counters))
                })
                .collect(),
        )
    }

    /// The counters of a session's translator, and their age in seconds.
    pub fn translator(&self, session: &str) -> Option<(f64, &BTreeMap<String, u64>)> {
        let found = self
            .0
            .iter()
            .find(|((node, of), _)| of == session && Stage::from_node_name(node) == Stage::Translator);
        found.map(|(_, (age, counters))| (*age, counters))
    }

    /// The sum of a counter over the reporters heard by a session's translator.
    pub fn of_reporters(&self, session: &str, counter: &str) -> u64 {
        let mut sum = 0;
        for ((node, of), (_, counters)) in &self.0 {
            if of == session && Stage::from_node_name(node) == Stage::Reporter {
                sum += counters.get(counter).copied().unwrap_or(0);
            }
        }
        sum
    }

    /// A counter of one of the collector's own nodes.
    pub fn own_counter(&self, node: &str, counter: &str) -> Option<u64> {
        self.0.get(&(node.to_owned(), String::new()))?.1.get(counter).copied()
    }

    /// All counters of one of the collector's own nodes.
    pub fn own_counters(&self, node: &str) -> impl Iterator<Item = (&str, u64)> {
        self.0
            .get(&(node.to_owned(), String::new()))
            .into_iter()
            .flat_map(|(_, counters)| counters.iter().map(|(name, value)| (name.as_str(), *value)))
    }
}

impl Evidence {
    /// Whether it is the software NIC, which counts everything that it drops.
    pub fn is_soft_nic(&self) -> bool {
        self.device == SOFT
    }

    /// The NIC's node in the collector's statistics.
    pub fn nic_node_name(&self) -> String {
        Stage::Nic.node_name(&self.device)
    }

    /// How much a counter of the NIC rose in between; `None` if it is not counted.
    pub fn nic_counter_rise(&self, counter: &str) -> Option<u64> {
        let after = self.after.own_counter(&self.nic_node_name(), counter)?;
        Some(after.saturating_sub(self.before.own_counter(&self.nic_node_name(), counter).unwrap_or(0)))
    }

    /// How much a counter of the RDMA device rose in between; `None` if it is not counted.
    pub(crate) fn device_rise(&self, counter: &str) -> Option<u64> {
        let host = self.host.as_ref()?;
        let after = host.device_after.as_ref()?.counter_total(counter)?;
        let before = host.device_before.as_ref().and_then(|d| d.counter_total(counter)).unwrap_or(0);
        Some(after.saturating_sub(before))
    }

    /// How many frames a session's translator could not send for a reason of its link (`unsent-unreachable`,
    /// `unsent-forbidden`, …), and whether that is why nothing lands: it is still rising, or it was at least half of
    /// all. `None` if it was none.
    pub(crate) fn unsent_frames(&self, session: &str, reason: &str) -> Option<(u64, bool)> {
        let count = |nodes: &Nodes, name: &str| {
            nodes.translator(session).map_or(0, |(_, counters)| counters.get(name).copied().unwrap_or(0))
        };
        let name = translator::LINK_DROPPED.format_name(&[translator::ROCE, reason]);
        let (unsent, before) = (count(&self.after, &name), count(&self.before, &name));
        let sent = match count(&self.after, &translator::LINK_SENT.format_name(&[translator::ROCE])) {
            // A translator of several collectors reports to each what it gave its link for that one only.
            0 => count(&self.after, &translator::FRAMES.format_name(&[])).saturating_sub(unsent),
            sent => sent,
        };
        (unsent > 0).then_some((unsent, unsent > before || unsent >= sent))
    }

    /// The frames counted, if possible.
    pub fn counted_frames(&self) -> Option<&FrameCounts> {
        self.host.as_ref()?.frames.as_ref().ok()
    }

    /// A number of frames in the window, in words.
    pub(crate) fn frames_in_window(&self, count: u64) -> String {
        format!("{} {}", format_count(count, "frame", "frames"), self.in_window())
    }

    pub(crate) fn in_window(&self) -> String {
        format!("in {:.0} s", self.window.as_secs_f64())
    }
}

pub(crate) fn translator_ip(session: &SessionInfo) -> Option<IpAddr> {
    session.translator.as_ref()?.ip.parse().ok()
}

/// `queue pair 0x000011 (RC)`.
pub(crate) fn queue_pair_name(pair: &QueuePairStatus) -> String {
    format!("queue pair {:#08x} ({})", pair.qpn, if pair.transport() == Transport::Rc { "RC" } else { "UC" })
}
