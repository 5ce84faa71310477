//! A small network that lives: flows come and go, links fill, paths move, packets are dropped, and devices report it.
//!
//! Everything follows from a seed and a list of [`Episode`]s, so it is known exactly what a collector must know of it
//! ([`Truth`]). Time passes in ticks, as fast as the caller likes.

mod alert_truth;
mod background;
mod devices;
mod episode;
mod live;
pub mod network;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::random::SplitMix64;

pub use alert_truth::AlertTruth;
pub use devices::{Datagram, Listener};
use devices::{Devices, PortCounts, PortState};
pub use episode::{Episode, EpisodeKind, page_view};
pub use live::LiveNetwork;
use network::{
    LINK_RATE, PathHop, Port, links, path_of_flow, rack_host, spine_of_flow, spine_switch, uplink_port,
};
use traffic::{Draws, LiveFlow, tracked_transfer};

pub const TICK: Duration = Duration::from_millis(100);
/// After this time an exporter sends a record of a flow that goes on.
const ACTIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// INT reports one packet of each flow in this time, and each new path at once.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// INT leaves out flows with fewer packets in their first tick.
const REPORTED_PACKETS: u64 = 3;
/// How often an agent of sFlow sends the counters of its interfaces.
const COUNTER_INTERVAL: Duration = Duration::from_secs(20);
/// Share of the last tick in the load of a link, which is a moving average.
const LOAD_WEIGHT: f64 = 0.2;
/// Packets in a full queue, and in the shortest one whose packets a switch reports.
const FULL_QUEUE: u32 = 250;
const LONG_QUEUE: u32 = 200;
/// Nanoseconds through a switch without a queue, and of each packet in it.
const SWITCH_LATENCY: u32 = 900;
const PACKET_LATENCY: u32 = 12_000;
const SLOW_LATENCY: u32 = 400_000;
/// Reasons for drops as fabric-tna numbers them: `ip-miss`, `acl-deny` and `traffic-manager`.
const NO_ROUTE: u8 = 29;
const DENIED_BY_POLICY: u8 = 80;
const NO_BUFFER: u8 = 71;

/// The leaf at which [`tracked_flow`] begins.
const TRACKED_LEAF: u32 = 1;

/// A transfer that runs from beginning to end, over the link that [`EpisodeKind::FlappingPath`] takes down.
pub fn tracked_flow() -> Flow {
    Flow {
        src: rack_host(TRACKED_LEAF, 10).into(),
        dst: rack_host(6, 10).into(),
        sport: 51_000,
        dport: 873,
        proto: 6,
    }
}

/// A host that none of the others sends to: what [`EpisodeKind::UnusualLoad`] is unusual for.
pub fn archive_host() -> Ipv4Addr {
    rack_host(network::BORDER - 1, 200)
}

fn tracked_spine() -> u32 {
    spine_of_flow(&tracked_flow(), None)
}

/// Flow records that exporters have sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordSums {
    pub records: u64,
    pub packets: u64,
    pub bytes: u64,
}

/// What a collector must know once all that was sent is in its memory.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub all: RecordSums,
    /// Records of the flows that an episode brought, in the order of the episodes.
    pub of_episodes: Vec<RecordSums>,
    /// Reports of dropped packets by switch and reason. For a notice of sFlow, the switch is the agent's address.
    pub drops: BTreeMap<(u32, DropReason), u64>,
    /// The switches that [`tracked_flow`] crossed when it was last reported, in order.
    pub tracked_path: Vec<u32>,
    /// Every path on which it was reported.
    pub tracked_paths: BTreeSet<Vec<u32>>,
    pub int_reports: u64,
}

/// The network at a moment.
pub struct Scenario {
    episodes: Vec<Episode>,
    /// Places of those that are under way in this tick.
    active: Vec<usize>,
    /// Nanoseconds since 1970.
    began: u64,
    now: Duration,
    draws: Draws,
    live: Vec<LiveFlow>,
    /// Bits per second that leave by each port.
    loads: BTreeMap<Port, f64>,
    /// Of links between switches; none if their agents do not export them.
    port_counts: BTreeMap<Port, PortCounts>,
    devices: Devices,
    truth: Truth,
}

impl Scenario {
    /// `began` is its start in nanoseconds since 1970, by the clocks of its devices.
    pub fn new(seed: u64, episodes: Vec<Episode>, began: u64) -> Scenario {
        let of_episodes = vec![RecordSums::default(); episodes.len()];
        Scenario {
            episodes,
            active: Vec::new(),
            began,
            now: Duration::ZERO,
            draws: Draws(SplitMix64(seed)),
            live: vec![tracked_transfer(tracked_flow())],
            loads: BTreeMap::new(),
            port_counts: BTreeMap::new(),
            devices: Devices::default(),
            truth: Truth { of_episodes, ..Truth::default() },
        }
    }

    /// The same, with sFlow agents that export the counters of their interfaces.
    pub fn with_interface_counters(self) -> Scenario {
        let port_counts = links().map(|port| (port, PortCounts::default())).collect();
        Scenario { port_counts, ..self }
    }

    /// Time since it began.
    pub fn elapsed(&self) -> Duration {
        self.now
    }

    pub fn episodes(&self) -> &[Episode] {
        &self.episodes
    }

    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// Those of a kind that are under way in this tick.
    fn active_episodes(&self, kind: EpisodeKind) -> impl Iterator<Item = &Episode> {
        self.active.iter().map(|index| &self.episodes[*index]).filter(move |episode| episode.kind == kind)
    }

    /// Lets a tick pass; returns what devices send in it.
    pub fn advance_tick(&mut self) -> Vec<Datagram> {
        let mut begun = Vec::new();
        self.draws.begin_background(self.now, &mut begun);
        self.active =
            (0..self.episodes.len()).filter(|index| self.episodes[*index].is_active(self.now)).collect();
        for index in &self.active {
            self.draws.begin_episode_flows(*index, &self.episodes[*index], self.now, &mut begun);
        }
        self.live.append(&mut begun);
        let mut live = std::mem::take(&mut self.live);
        let moved: Vec<bool> = live.iter_mut().map(|flow| self.choose_path(flow)).collect();
        self.carry_packets(&mut live);
        for (flow, moved) in live.iter_mut().zip(moved) {
            self.report_flow(flow, moved);
        }
        self.count_errors();
        self.now += TICK;
        self.export_due_counters();
        for flow in &mut live {
            self.export_due_record(flow);
        }
        live.retain(|flow| !flow.has_ended());
        self.live = live;
        self.devices.send_datagrams()
    }

    /// Routes a flow; returns whether it moved.
    fn choose_path(&self, live: &mut LiveFlow) -> bool {
        let down = self
            .active_episodes(EpisodeKind::FlappingPath)
            .find(|episode| (self.now - episode.start).as_secs().is_multiple_of(2));
        let spine = spine_of_flow(&live.flow, down.map(|episode| (episode.leaf, episode.spine)));
        let is_looped = |episode: &&Episode| {
            episode.spine == spine && episode.leaf == network::leaf_of_address(live.flow.dst)
        };
        let detour = self.active_episodes(EpisodeKind::RoutingLoop).find(is_looped);
        let path = path_of_flow(&live.flow, spine, detour.map(|episode| 1 + episode.leaf % network::BORDER));
        let moved = !live.path.is_empty() && live.path != path;
        live.path = path;
        moved
    }

    /// Where a flow ends early, and why that is reported.
    fn find_drop(&self, live: &LiveFlow) -> Option<(usize, u8)> {
        let to = network::leaf_of_address(live.flow.dst);
        let place = self.active_episodes(EpisodeKind::Blackhole).find_map(|episode| {
            let at_spine = |hop: &PathHop| hop.switch == spine_switch(episode.spine);
            live.path.iter().position(at_spine).filter(|_| episode.leaf == to)
        });
        place.map(|place| (place, NO_ROUTE))
    }

    /// Reports what a wrong policy drops of a flow: single packets, the others go on.
    fn report_policy_drops(&mut self, live: &mut LiveFlow) {
        let is_dropped = |episode: &&Episode| {
            let ticks = ((self.now - episode.start).as_millis() / TICK.as_millis()) as f64;
            let until = |ticks: f64| episode.scale(5.0 * TICK.as_secs_f64() * ticks).floor();
            until(ticks + 1.0) > until(ticks)
        };
        if live.flow == tracked_flow()
            && self.active_episodes(EpisodeKind::DroppedFlow).any(|episode| is_dropped(&episode))
            && let Some(hop) = live.path.first()
        {
            self.devices.report_drop(live.flow, hop, DENIED_BY_POLICY);
            self.truth.int_reports += 1;
            *self.truth.drops.entry((hop.switch, DropReason::from_int(DENIED_BY_POLICY))).or_default() += 1;
        }
    }

    /// Lets all flows send, and sums up the loads of links.
    fn carry_packets(&mut self, live: &mut [LiveFlow]) {
        let mut sent = BTreeMap::<Port, f64>::new();
        for flow in live {
            let bits = flow.send_for_tick() as f64 * 8.0;
            let reached = match self.find_drop(flow) {
                _ if flow.is_denied => 0,
                Some((place, _)) => place,
                None => flow.path.len(),
            };
            for hop in &flow.path[..reached] {
                let port = (hop.switch, hop.out_port);
                *sent.entry(port).or_default() += bits / TICK.as_secs_f64();
                if let Some(counts) = self.port_counts.get_mut(&port) {
                    counts.octets += bits / 8.0;
                }
            }
        }
        self.loads.retain(|port, load| {
            *load = *load * (1.0 - LOAD_WEIGHT) + sent.remove(port).unwrap_or(0.0) * LOAD_WEIGHT;
            *load > 1.0
        });
        self.loads.extend(sent.into_iter().map(|(port, load)| (port, load * LOAD_WEIGHT)));
    }

    /// Adds to the interfaces' counters what episodes discard or damage.
    fn count_errors(&mut self) {
        for episode in self.active.iter().map(|index| &self.episodes[*index]) {
            let (leaf, spine) = (episode.leaf, spine_switch(episode.spine));
            let (port, per_second) = match episode.kind {
                EpisodeKind::FullInterface => ((leaf, uplink_port(episode.spine)), [100.0, 0.0]),
                EpisodeKind::BadCable => ((spine, leaf as u16), [0.0, 10.0]),
                _ => continue,
            };
            let [discards, errors] = per_second.map(|rate| episode.scale(rate) * TICK.as_secs_f64());
            if let Some(counts) = self.port_counts.get_mut(&port) {
                (counts.discards, counts.errors) = (counts.discards + discards, counts.errors + errors);
            }
        }
    }

    /// Exports the counters of switches whose turn it is.
    fn export_due_counters(&mut self) {
        for (port, counts) in &self.port_counts {
            let since = self.now + Duration::from_millis(1700) * port.0;
            if since.as_millis().is_multiple_of(COUNTER_INTERVAL.as_millis()) {
                self.devices.export_counters(*port, counts);
            }
        }
    }

    /// The load of a port, as a share of what it can carry.
    fn port_load(&self, hop: &PathHop) -> f64 {
        self.loads.get(&(hop.switch, hop.out_port)).copied().unwrap_or(0.0) / LINK_RATE
    }

    fn port_state(&self, hop: &PathHop) -> PortState {
        let share = self.port_load(hop).min(1.0);
        let bursts = self.active_episodes(EpisodeKind::Microburst).any(|episode| {
            let is_there = (hop.switch, hop.out_port) == (episode.leaf, uplink_port(episode.spine));
            is_there && (self.now - episode.start).subsec_millis() < 300
        });
        let queue = match bursts {
            true => FULL_QUEUE * 9 / 10,
            // The mean of an M/M/1 queue.
            false => (share / (1.0 - share)).min(FULL_QUEUE.into()) as u32,
        };
        let is_slow = |episode: &Episode| spine_switch(episode.spine) == hop.switch;
        let slow = self.active_episodes(EpisodeKind::SlowHop).any(is_slow);
        let extra = if slow { SLOW_LATENCY } else { 0 };
        PortState {
            utilization: (share * 10_000.0) as u32,
            queue,
            latency: SWITCH_LATENCY + queue * PACKET_LATENCY + extra,
        }
    }

    /// What switches report of a flow in this tick.
    fn report_flow(&mut self, live: &mut LiveFlow, moved: bool) {
        if live.is_denied {
            return;
        }
        self.report_policy_drops(live);
        if let Some((place, reason)) = self.find_drop(live) {
            self.report_drop(live, place, reason);
            return;
        }
        self.notice_damage(live);
        self.report_long_queues(live);
        let draw = self.draws.fraction();
        let is_overloaded = |hop: &PathHop| draw < 1.0 - 1.0 / self.port_load(hop).max(1.0);
        if let Some(place) = live.path.iter().position(is_overloaded) {
            self.report_drop(live, place, NO_BUFFER);
        }
        let has_packets = live.packets >= REPORTED_PACKETS || !live.is_first_record;
        if !has_packets || self.now < live.next_report && !moved {
            return;
        }
        live.next_report = self.now + REPORT_INTERVAL;
        let states: Vec<_> = live.path.iter().map(|hop| self.port_state(hop)).collect();
        self.devices.report_path(live.flow, &live.path, &states);
        self.truth.int_reports += 1;
        if live.flow == tracked_flow() {
            self.truth.tracked_path = live.path.iter().map(|hop| hop.switch).collect();
            self.truth.tracked_paths.insert(self.truth.tracked_path.clone());
        }
    }

    /// Reports one packet per tick of a flow that waited in a long queue.
    fn report_long_queues(&mut self, live: &LiveFlow) {
        for hop in &live.path {
            let state = self.port_state(hop);
            if state.queue >= LONG_QUEUE {
                self.devices.report_congestion(live.flow, hop, state);
                self.truth.int_reports += 1;
            }
        }
    }

    fn report_drop(&mut self, live: &mut LiveFlow, place: usize, reason: u8) {
        if self.now < live.next_drop {
            return;
        }
        live.next_drop = self.now + REPORT_INTERVAL;
        let hop = &live.path[place];
        self.devices.report_drop(live.flow, hop, reason);
        self.truth.int_reports += 1;
        *self.truth.drops.entry((hop.switch, DropReason::from_int(reason))).or_default() += 1;
    }

    fn notice_damage(&mut self, live: &mut LiveFlow) {
        let place = self.active_episodes(EpisodeKind::LossyLink).find_map(|episode| {
            let ends = [episode.leaf, spine_switch(episode.spine)];
            live.path.windows(2).position(|hops| [hops[0].switch, hops[1].switch] == ends)
        });
        let Some(place) = place.filter(|_| self.now >= live.next_drop) else { return };
        live.next_drop = self.now + REPORT_INTERVAL;
        let hop = &live.path[place + 1];
        self.devices.notice_damage(live.flow, hop);
        let agent = network::agent_address(hop.switch).to_bits();
        *self.truth.drops.entry((agent, DropReason::from_sflow(devices::DAMAGED))).or_default() += 1;
    }

    /// Exports a flow that has ended, or whose last record is too long ago.
    fn export_due_record(&mut self, live: &mut LiveFlow) {
        let is_due = live.has_ended() || self.now - live.record_start >= ACTIVE_TIMEOUT;
        if !is_due || live.packets == 0 {
            return;
        }
        let leaf = network::leaf_of_address(live.flow.src);
        if !self.active_episodes(EpisodeKind::DeadExporter).any(|episode| episode.leaf == leaf) {
            self.devices.export_record(live, self.now, self.began);
            self.truth.all.add_record(live);
            if let Some(index) = live.episode {
                self.truth.of_episodes[index].add_record(live);
            }
        }
        (live.packets, live.bytes, live.record_start, live.is_first_record) = (0, 0, self.now, false);
    }
}

impl RecordSums {
    fn add_record(&mut self, live: &LiveFlow) {
        self.records += 1;
        self.packets += live.packets;
        self.bytes += live.bytes;
    }
}

#[cfg(test)]
mod tests;
