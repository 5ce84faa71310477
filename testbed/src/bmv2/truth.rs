//! The expected result, from the packets of the capture and the entries of the reporter.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use dta_proto::buckets;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::key_increment;
use dta_proto::telemetry;
use dta_telemetry::int::{Dialect, IntSettings, parse_reports};

use crate::journal::Journal;
use crate::share::Share;
use crate::workload::{ReportBody, SeenFlow, SwitchReport};

/// The number of the first reporter as a switch; those of the others follow.
pub(super) const SWITCH: u32 = 7;
/// UDP port whose packets the reporter's access list denies: unsolicited host names (LLMNR).
pub(super) const DENIED_PORT: u16 = 5355;
pub(super) const ACL_DENY: u8 = 80;
const BRIDGING_MISS: u8 = 89;
/// UDP ports of reports, NACKs and frames, which are never watched.
const DTA: [u16; 3] = [40040, 40044, 4791];

/// Where frames to an Ethernet address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Station {
    /// To a host, 1 or 2.
    Host(u8),
    /// To the host that is not the sender.
    All,
}

type Mac = [u8; 6];

/// A frame, and who sends it.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) reporter: usize,
    /// One of its hosts, 1 or 2.
    pub(super) host: u8,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct CapturedTraffic {
    pub(super) frames: Vec<Frame>,
    /// The entries of each reporter's forwarding table.
    pub(super) stations: Vec<BTreeMap<Mac, Station>>,
}

/// The entries of the reporter that these frames cross. Stations alternate between the two hosts, in the order in which
/// frames go to them. The one with the fewest frames has no entry, so that frames to it are dropped.
fn place_stations<'a>(frames: impl Iterator<Item = &'a Vec<u8>>) -> BTreeMap<Mac, Station> {
    let mut order: Vec<(Mac, u64)> = Vec::new();
    for to in frames.filter_map(|frame| mac_at(frame, 0)) {
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
    stations.extend(all.into_iter().map(|(mac, _)| (mac, Station::All)));
    stations
}

/// The host of a station; one that only sends is at host 1.
fn host_of_station(stations: &BTreeMap<Mac, Station>, mac: &Mac) -> u8 {
    match stations.get(mac) {
        Some(Station::Host(host)) => *host,
        _ => 1,
    }
}

fn mac_at(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..)?.first_chunk().copied()
}

impl CapturedTraffic {
    /// Each flow crosses one of the `reporters`; frames without a flow cross the first.
    pub(super) fn from_frames(frames: Vec<Vec<u8>>, reporters: usize) -> CapturedTraffic {
        let reporter_of = |frame: &Vec<u8>| match decode_flow(frame) {
            // By other bits than those that choose a key's collector.
            Some(flow) => usize::from(buckets::bucket_of_key(&flow.to_key())) % reporters,
            None => 0,
        };
        let reporters_of: Vec<usize> = frames.iter().map(reporter_of).collect();
        let of_one = |reporter: usize| {
            let mine = frames.iter().zip(&reporters_of).filter(move |(_, of)| **of == reporter);
            place_stations(mine.map(|(frame, _)| frame))
        };
        let stations: Vec<_> = (0..reporters).map(of_one).collect();
        let of = |(bytes, reporter): (Vec<u8>, usize)| {
            let host = mac_at(&bytes, 6).map_or(1, |mac| host_of_station(&stations[reporter], &mac));
            Frame { reporter, host, bytes }
        };
        CapturedTraffic { frames: frames.into_iter().zip(reporters_of).map(of).collect(), stations }
    }

    /// Whether any packet belongs to a flow that switches report.
    pub(super) fn has_flows(&self) -> bool {
        self.frames
            .iter()
            .filter_map(|frame| decode_flow(&frame.bytes))
            .any(|flow| WatchedFlows::All.contains_flow(&flow))
    }

    /// The source network (of 24 bits) of most frames: what a second run watches.
    pub(super) fn busiest_network(&self) -> Ipv4Addr {
        let mut counts = BTreeMap::<[u8; 3], u32>::new();
        for flow in self.frames.iter().filter_map(|frame| decode_flow(&frame.bytes)) {
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
fn decode_flow(frame: &[u8]) -> Option<Flow> {
    let mut at = 12;
    while [[0x81, 0], [0x88, 0xa8]].contains(frame.get(at..)?.first_chunk()?) {
        at += 4;
    }
    if frame.get(at..at + 2)? != [8, 0] {
        return None;
    }
    let report = [&[0; 12], frame].concat();
    let settings = IntSettings { dialect: Dialect::SdFabric, ..IntSettings::default() };
    let packet = parse_reports(&report, &settings).ok()?.next()?.ok()?.packet.ok()?;
    Some(*packet.inner_flow())
}

/// Which flows are watched: all, or those from and to a network of 24 bits.
#[derive(Clone, Copy, Debug)]
pub(super) enum WatchedFlows {
    All,
    Network(Ipv4Addr),
}

impl WatchedFlows {
    pub(super) fn contains_flow(self, flow: &Flow) -> bool {
        if flow.proto == 17 && (flow.sport == DTA[0] || DTA.contains(&flow.dport)) {
            return false;
        }
        let WatchedFlows::Network(network) = self else { return true };
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
    pub(super) reporters: Vec<OfReporter>,
    /// What was reported by key-write and as postcards.
    pub(super) reported: Reported,
    pub(super) counters: BTreeMap<Key, u64>,
    /// How often each flow is in the list of flows, and in that of drops.
    pub(super) listed: [BTreeMap<Key, u64>; LISTS as usize],
}

/// What is expected of the packets that crossed one reporter.
#[derive(Debug, Default)]
pub(super) struct OfReporter {
    pub(super) packets: u64,
    /// Packets and bytes that come out at both hosts.
    pub(super) out: [(u64, u64); 2],
    /// Packets dropped, by reason; including the reported ones.
    pub(super) dropped: BTreeMap<u8, u64>,
    /// Packets that became flow reports, and drop reports.
    pub(super) flow_reports: u64,
    pub(super) drop_reports: u64,
    /// Packets without an IPv4 flow.
    pub(super) no_flow: u64,
}

impl OfReporter {
    /// Packets that came out at a host.
    pub(super) fn forwarded(&self) -> u64 {
        self.out.iter().map(|(packets, _)| packets).sum()
    }
}

/// Reports of which only a flow's newest counts.
#[derive(Debug)]
pub(super) struct Reported {
    /// The flows, each with the only switch on its path.
    pub(super) flows: Vec<SeenFlow>,
    /// By key, the place of a flow among them.
    index: BTreeMap<Key, u32>,
    pub(super) journal: Journal,
}

impl Default for Reported {
    fn default() -> Self {
        Self { flows: Vec::new(), index: BTreeMap::new(), journal: Journal::with_times() }
    }
}

impl Reported {
    /// A reporter reports a packet of this length, about to be sent.
    fn add(&mut self, reporter: usize, flow: &Flow, length: u32) {
        let key = flow.to_key();
        let place = *self.index.entry(key).or_insert_with(|| {
            // As `Workload::switch_id` numbers switches.
            let path = vec![(switch_id(reporter) - 1) as u16];
            self.flows.push(SeenFlow { flow: *flow, key, path });
            self.flows.len() as u32 - 1
        });
        let mut value = [0; 12];
        value[..4].copy_from_slice(&length.to_be_bytes());
        let switch = reporter as u16;
        for body in
            [ReportBody::KeyWrite { flow: place, value }, ReportBody::Postcard { flow: place, hop: 0 }]
        {
            let number = self.journal.add(SwitchReport { switch, body });
            if let Some(fate) = self.journal.fate_mut(switch, number) {
                fate.sent = 1;
            }
        }
    }
}

/// Lists that reports go to.
pub(super) const LISTS: u32 = 2;

/// A reporter's number as a switch.
pub(super) fn switch_id(reporter: usize) -> u32 {
    SWITCH + reporter as u32
}

pub(super) struct FrameOutcome {
    /// Frames that come out, and reports of flows and of drops.
    pub(super) out: u64,
    pub(super) flow_reports: u64,
    pub(super) drop_reports: u64,
}

impl Truth {
    /// Before any packet, with this many reporters.
    pub(super) fn with_reporters(reporters: usize) -> Truth {
        Truth { reporters: (0..reporters).map(|_| OfReporter::default()).collect(), ..Truth::default() }
    }

    /// Adds a frame that a host sent. The frame leaves as it came.
    pub(super) fn add(
        &mut self,
        traffic: &CapturedTraffic,
        watched: WatchedFlows,
        frame: &Frame,
    ) -> FrameOutcome {
        let Frame { reporter, host, bytes } = frame;
        let (seen, stations) = (&mut self.reporters[*reporter], &traffic.stations[*reporter]);
        let switch = switch_id(*reporter);
        seen.packets += 1;
        let own = decode_flow(bytes);
        seen.no_flow += u64::from(own.is_none());
        let flow = own.filter(|flow| watched.contains_flow(flow));
        let to = mac_at(bytes, 0).and_then(|mac| stations.get(&mac).copied());
        let denied = own.is_some_and(|flow| flow.proto == 17 && flow.dport == DENIED_PORT);
        let outs: Vec<u8> = match to {
            _ if denied => vec![],
            Some(Station::Host(to)) => vec![to],
            Some(Station::All) => vec![3 - host],
            None => vec![],
        };
        let mut fate = FrameOutcome { out: outs.len() as u64, flow_reports: 0, drop_reports: 0 };
        let length = bytes.len() as u32;
        for out in &outs {
            let (packets, sum) = &mut seen.out[usize::from(*out) - 1];
            *packets += 1;
            *sum += u64::from(length);
            if let Some(flow) = &flow {
                fate.flow_reports += 1;
                self.reported.add(*reporter, flow, length);
                *self.counters.entry(telemetry::packets_key(flow)).or_default() += 1;
                *self.counters.entry(telemetry::bytes_key(flow)).or_default() += u64::from(length);
                *self.listed[0].entry(flow.to_key()).or_default() += 1;
            }
        }
        if outs.is_empty() {
            let reason = if denied { ACL_DENY } else { BRIDGING_MISS };
            *seen.dropped.entry(reason).or_default() += 1;
            if let Some(flow) = &flow {
                fate.drop_reports += 1;
                let reason = DropReason::from_int(reason);
                *self.counters.entry(telemetry::drops_key(switch, reason)).or_default() += 1;
                *self.counters.entry(telemetry::flow_drops_key(flow, reason)).or_default() += 1;
                *self.listed[1].entry(flow.to_key()).or_default() += 1;
            }
        }
        seen.flow_reports += fate.flow_reports;
        seen.drop_reports += fate.drop_reports;
        fate
    }

    /// Of all reporters together: packets that became flow reports, and drop reports.
    pub(super) fn reported_packets(&self) -> (u64, u64) {
        let sum = |of: fn(&OfReporter) -> u64| self.reporters.iter().map(of).sum();
        (sum(|reporter| reporter.flow_reports), sum(|reporter| reporter.drop_reports))
    }

    /// Packets of all reporters without an IPv4 flow.
    pub(super) fn packets_without_flow(&self) -> u64 {
        self.reporters.iter().map(|reporter| reporter.no_flow).sum()
    }

    /// Whether reports reach a collector, by a key or a list that it has.
    pub(super) fn reaches_collector(&self, collector: usize, share: Share) -> bool {
        let mut keys = self.reported.index.keys().chain(self.counters.keys());
        let lists = (0..).zip(&self.listed).filter(|(_, listed)| !listed.is_empty());
        let mut owners = lists.map(|(list, _)| share.collector_of_list(list, LISTS));
        keys.any(|key| share.collector_of_key(key) == collector) || owners.any(|owner| owner == collector)
    }

    /// What the stores of counters answer, exactly: keys of one collector share counters.
    pub(super) fn expected_counters(&self, redundancy: u8, slots: u64, share: Share) -> BTreeMap<Key, u64> {
        let mut cells = BTreeMap::<u64, u64>::new();
        for (key, value) in &self.counters {
            for slot in share.slots_of_counters(key, redundancy, slots) {
                *cells.entry(slot).or_default() += value;
            }
        }
        let estimate = |key: &Key| {
            let at = share.slots_of_counters(key, redundancy, slots);
            let counters: Vec<u64> = at.iter().map(|slot| cells[slot]).collect();
            key_increment::estimate_count(&at, &counters)
        };
        self.counters.keys().map(|key| (*key, estimate(key))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::workload::Workload;

    #[test]
    fn a_collector_is_reached_by_keys_of_its_part_or_by_its_list() {
        let share = Share::with_collectors(2);
        let mut key = [0; 16];
        let mut key_of = |wanted: usize| loop {
            let found = Key(key);
            key[0] += 1;
            if share.collector_of_key(&found) == wanted {
                break found;
            }
        };
        let (first, second) = (key_of(0), key_of(1));
        let reached = |truth: &Truth| [0, 1].map(|collector| truth.reaches_collector(collector, share));
        let mut truth = Truth::with_reporters(1);
        assert_eq!(reached(&truth), [false, false], "nothing was reported");
        truth.reported.index.insert(second, 0);
        assert_eq!(reached(&truth), [false, true]);
        truth.listed[0].insert(second, 1);
        assert_eq!(reached(&truth), [true, true]);
        let truth = Truth { counters: BTreeMap::from([(first, 1)]), ..Truth::default() };
        assert_eq!(reached(&truth), [true, false]);
        // Lists of three collectors are at the first two.
        let listed = [BTreeMap::from([(first, 1)]), BTreeMap::from([(first, 1)])];
        let truth = Truth { listed, ..Truth::default() };
        let of_three =
            [0, 1, 2].map(|collector| truth.reaches_collector(collector, Share::with_collectors(3)));
        assert_eq!(of_three, [true, true, false]);
    }

    /// A frame of UDP between two ports, from and to stations of these numbers.
    fn udp(from: u8, to: u8, port: u8) -> Vec<u8> {
        let macs = [2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0];
        let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
        [&macs[..], &ip, &[0x13, 0x88, 0, port, 0, 8, 0, 0], &[0; 18]].concat()
    }

    #[test]
    fn each_flow_crosses_one_reporter_and_its_path_and_drops_are_those_of_that_switch() {
        let frames: Vec<Vec<u8>> = (0..3).flat_map(|_| (1..=40).map(|port| udp(1, 2, port))).collect();
        let no_flow = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6][..], &[0; 46]].concat();
        let traffic = CapturedTraffic::from_frames([frames, vec![no_flow]].concat(), 2);
        assert_eq!((traffic.frames.len(), traffic.stations.len()), (121, 2));
        let mut crossed = BTreeMap::<Key, BTreeSet<usize>>::new();
        let mut truth = Truth::with_reporters(2);
        for frame in &traffic.frames {
            truth.add(&traffic, WatchedFlows::All, frame);
            match decode_flow(&frame.bytes) {
                Some(flow) => drop(crossed.entry(flow.to_key()).or_default().insert(frame.reporter)),
                None => assert_eq!(frame.reporter, 0),
            }
        }
        assert!(crossed.values().all(|reporters| reporters.len() == 1));
        assert!(truth.reporters.iter().all(|reporter| reporter.packets > 20), "{truth:?}");
        let Reported { flows, journal, .. } = &truth.reported;
        assert_eq!((truth.reported_packets(), truth.packets_without_flow(), flows.len()), ((120, 0), 1, 40));
        for flow in flows {
            let reporter = *crossed[&flow.key].first().unwrap();
            assert_eq!(Workload::switch_id(flow.path[0]), SWITCH + reporter as u32);
        }
        let value = [0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0];
        let of_first: Vec<_> = journal.entries().iter().map(|entry| &entry.report.body).take(2).collect();
        assert_eq!(
            of_first,
            [&ReportBody::KeyWrite { flow: 0, value }, &ReportBody::Postcard { flow: 0, hop: 0 }]
        );
        assert!(journal.entries().len() == 240 && journal.not_arrived() == 0);
        // A station without an entry: each switch counts its own drops.
        let traffic = CapturedTraffic { stations: vec![BTreeMap::new(); 2], ..traffic };
        let mut truth = Truth::with_reporters(2);
        for frame in &traffic.frames {
            truth.add(&traffic, WatchedFlows::All, frame);
        }
        let missed = DropReason::from_int(BRIDGING_MISS);
        let drops = [SWITCH, SWITCH + 1].map(|switch| truth.counters[&telemetry::drops_key(switch, missed)]);
        assert_eq!((truth.reported_packets(), drops.iter().sum::<u64>()), ((0, 120), 120));
        assert!(drops.iter().all(|drops| *drops > 20));
    }
}
