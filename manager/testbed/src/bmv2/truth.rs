//! The expected result, from the packets of the capture and the entries of the reporter.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use dta_proto::buckets;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::{hash, key_increment};
use dta_proto::telemetry;
use dta_proto::wire::int::{Dialect, Settings, reports};

/// The reporter's number.
pub(super) const SWITCH: u32 = 7;
/// UDP port whose packets the reporter's access list denies: unsolicited host names (LLMNR).
pub(super) const DENIED_PORT: u16 = 5355;
/// Reasons of drops.
pub(super) const ACL_DENY: u8 = 80;
const BRIDGING_MISS: u8 = 89;
/// UDP ports of reports, NACKs and frames, which are never watched.
const DTA: [u16; 3] = [40040, 40044, 4791];

/// Where frames to an Ethernet address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Station {
    /// To a host, 1 or 2.
    Host(u8),
    /// To the other host than the sender.
    All,
}

type Mac = [u8; 6];

/// Frames in their order, and the hosts that send them.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) frames: Vec<(u8, Vec<u8>)>,
    /// The entries of the forwarding table.
    pub(super) stations: BTreeMap<Mac, Station>,
}

fn mac_at(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..)?.first_chunk().copied()
}

impl Traffic {
    /// Stations are by turns at one host and the other, in the order in which frames go to them. The one with the
    /// fewest frames has no entry, so that frames to it are dropped; a station that only sends is at host 1.
    pub(super) fn of(frames: Vec<Vec<u8>>) -> Traffic {
        let mut order: Vec<(Mac, u64)> = Vec::new();
        for to in frames.iter().filter_map(|frame| mac_at(frame, 0)) {
            match order.iter_mut().find(|(mac, _)| *mac == to) {
                Some((_, count)) => *count += 1,
                None => order.push((to, 1)),
            }
        }
        let (all, mut known): (Vec<_>, Vec<_>) = order.into_iter().partition(|(mac, _)| mac[0] & 1 == 1);
        if let Some(fewest) = known.iter().map(|(_, count)| *count).min().filter(|_| known.len() > 2) {
            known.retain(|(_, count)| *count != fewest);
        }
        let of_host = known.iter().map(|(mac, _)| mac).zip([2, 1].into_iter().cycle());
        let mut stations: BTreeMap<Mac, Station> =
            of_host.map(|(mac, host)| (*mac, Station::Host(host))).collect();
        let host_of = |mac: &Mac| match stations.get(mac) {
            Some(Station::Host(host)) => *host,
            _ => 1,
        };
        let at = |frame: Vec<u8>| (mac_at(&frame, 6).map_or(1, |mac| host_of(&mac)), frame);
        let frames = frames.into_iter().map(at).collect();
        stations.extend(all.into_iter().map(|(mac, _)| (mac, Station::All)));
        Traffic { frames, stations }
    }

    /// Whether any packet belongs to a flow that switches report.
    pub(super) fn has_flows(&self) -> bool {
        self.frames.iter().filter_map(|(_, frame)| flow(frame)).any(|flow| Watched::All.has(&flow))
    }

    /// The source network (of 24 bits) of most frames: what a second run watches.
    pub(super) fn busiest_network(&self) -> Ipv4Addr {
        let mut counts = BTreeMap::<[u8; 3], u32>::new();
        for flow in self.frames.iter().filter_map(|(_, frame)| flow(frame)) {
            if let IpAddr::V4(source) = flow.src {
                let [a, b, c, _] = source.octets();
                *counts.entry([a, b, c]).or_default() += 1;
            }
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map_or([0; 3], |(network, _)| network);
        Ipv4Addr::new(most[0], most[1], most[2], 0)
    }
}

/// The flow of an IPv4 frame, the inner one of a tunnel, by the decoder of Telemetry Reports.
fn flow(frame: &[u8]) -> Option<Flow> {
    let mut at = 12;
    while [[0x81, 0], [0x88, 0xa8]].contains(frame.get(at..)?.first_chunk()?) {
        at += 4;
    }
    if frame.get(at..at + 2)? != [8, 0] {
        return None;
    }
    let report = [&[0; 12], frame].concat();
    let settings = Settings { dialect: Dialect::SdFabric, ..Settings::default() };
    let packet = reports(&report, &settings).ok()?.next()?.ok()?.packet.ok()?;
    Some(*packet.inner_flow())
}

/// Which flows are watched: all, or those from and to a network of 24 bits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Watched {
    All,
    Network(Ipv4Addr),
}

impl Watched {
    pub(super) fn has(self, flow: &Flow) -> bool {
        if flow.proto == 17 && (flow.sport == DTA[0] || DTA.contains(&flow.dport)) {
            return false;
        }
        let Watched::Network(network) = self else { return true };
        let inside = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[..3] == network.octets()[..3],
            IpAddr::V6(_) => false,
        };
        inside(flow.src) || inside(flow.dst)
    }
}

/// What is known about all packets of one run.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// Packets and bytes that come out at both hosts.
    pub(super) out: [(u64, u64); 2],
    /// Packets dropped, by reason; including the reported ones.
    pub(super) dropped: BTreeMap<u8, u64>,
    /// Packets that became flow reports, and drop reports.
    pub(super) flow_reports: u64,
    pub(super) drop_reports: u64,
    /// By the key of a flow, the length of its last frame.
    pub(super) last_length: BTreeMap<Key, u32>,
    /// Counters by their keys.
    pub(super) counters: BTreeMap<Key, u64>,
    /// How often each flow is in the list of flows, and in that of drops.
    pub(super) listed: [BTreeMap<Key, u64>; 2],
    /// Packets without an IPv4 flow.
    pub(super) no_flow: u64,
}

/// The first bucket of the second of two collectors.
pub(super) const SECOND: u8 = 128;

/// The collector that has a key.
fn collector_of(key: &Key, collectors: usize) -> usize {
    usize::from(collectors > 1 && buckets::of_key(key) >= SECOND)
}

/// The fate of a frame.
pub(super) struct Fate {
    /// Frames that come out, and reports of flows and of drops.
    pub(super) out: u64,
    pub(super) flow_reports: u64,
    pub(super) drop_reports: u64,
}

impl Truth {
    /// Adds a frame that a host sent. The frame leaves as it came.
    pub(super) fn add(
        &mut self,
        stations: &BTreeMap<Mac, Station>,
        watched: Watched,
        (host, frame): &(u8, Vec<u8>),
    ) -> Fate {
        let own = flow(frame);
        self.no_flow += u64::from(own.is_none());
        let flow = own.filter(|flow| watched.has(flow));
        let to = mac_at(frame, 0).and_then(|mac| stations.get(&mac).copied());
        let denied = own.is_some_and(|flow| flow.proto == 17 && flow.dport == DENIED_PORT);
        let outs: Vec<u8> = match to {
            _ if denied => vec![],
            Some(Station::Host(to)) => vec![to],
            Some(Station::All) => vec![3 - host],
            None => vec![],
        };
        let mut fate = Fate { out: outs.len() as u64, flow_reports: 0, drop_reports: 0 };
        let bytes = frame.len() as u32;
        for out in &outs {
            let (packets, sum) = &mut self.out[usize::from(*out) - 1];
            *packets += 1;
            *sum += u64::from(bytes);
            if let Some(flow) = &flow {
                fate.flow_reports += 1;
                self.last_length.insert(flow.key(), bytes);
                *self.counters.entry(telemetry::packets_key(flow)).or_default() += 1;
                *self.counters.entry(telemetry::bytes_key(flow)).or_default() += u64::from(bytes);
                *self.listed[0].entry(flow.key()).or_default() += 1;
            }
        }
        if outs.is_empty() {
            let reason = if denied { ACL_DENY } else { BRIDGING_MISS };
            *self.dropped.entry(reason).or_default() += 1;
            if let Some(flow) = &flow {
                fate.drop_reports += 1;
                *self.counters.entry(telemetry::drops_key(SWITCH, reason)).or_default() += 1;
                *self.counters.entry(telemetry::flow_drops_key(flow, reason)).or_default() += 1;
                *self.listed[1].entry(flow.key()).or_default() += 1;
            }
        }
        self.flow_reports += fate.flow_reports;
        self.drop_reports += fate.drop_reports;
        fate
    }

    /// Whether reports reach a collector, by a key of its part or, where there are two, by its list.
    pub(super) fn reaches(&self, collector: usize, collectors: usize) -> bool {
        let mut keys = self.last_length.keys().chain(self.counters.keys());
        keys.any(|key| collector_of(key, collectors) == collector) || !self.listed[collector].is_empty()
    }

    /// What the stores of counters answer, exactly: keys of one collector share counters.
    pub(super) fn answers(&self, redundancy: u8, slots: u64, collectors: usize) -> BTreeMap<Key, u64> {
        let mut cells = BTreeMap::<(usize, u64), u64>::new();
        for (key, value) in &self.counters {
            let collector = collector_of(key, collectors);
            for slot in hash::slots(key, redundancy, slots).iter() {
                *cells.entry((collector, *slot)).or_default() += value;
            }
        }
        let estimate = |key: &Key| {
            let at = hash::slots(key, redundancy, slots);
            let collector = collector_of(key, collectors);
            let counters: Vec<u64> = at.iter().map(|slot| cells[&(collector, *slot)]).collect();
            key_increment::estimate(&at, &counters)
        };
        self.counters.keys().map(|key| (*key, estimate(key))).collect()
    }

    /// Flows of which all slots are slots of other flows, too: their values may be overwritten.
    pub(super) fn may_be_overwritten(&self, redundancy: u8, slots: u64, collectors: usize) -> BTreeSet<Key> {
        let mut users = BTreeMap::<(usize, u64), BTreeSet<Key>>::new();
        for key in self.last_length.keys() {
            let collector = collector_of(key, collectors);
            for slot in hash::slots(key, redundancy, slots).iter() {
                users.entry((collector, *slot)).or_default().insert(*key);
            }
        }
        let shared = |key: &&Key| {
            let collector = collector_of(key, collectors);
            hash::slots(key, redundancy, slots).iter().all(|slot| users[&(collector, *slot)].len() > 1)
        };
        self.last_length.keys().filter(shared).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_reached_by_keys_of_its_part_or_by_its_list() {
        let mut key = [0; 16];
        let mut key_of = |wanted: usize| loop {
            let found = Key(key);
            key[0] += 1;
            if collector_of(&found, 2) == wanted {
                break found;
            }
        };
        let (first, second) = (key_of(0), key_of(1));
        let reached = |truth: &Truth| [0, 1].map(|collector| truth.reaches(collector, 2));
        let mut truth = Truth::default();
        assert_eq!(reached(&truth), [false, false], "nothing was reported");
        truth.last_length.insert(second, 60);
        assert_eq!(reached(&truth), [false, true]);
        truth.listed[0].insert(second, 1);
        assert_eq!(reached(&truth), [true, true]);
        let truth = Truth { counters: BTreeMap::from([(first, 1)]), ..Truth::default() };
        assert_eq!(reached(&truth), [true, false]);
    }
}
