//! Flows that come and go: name lookups, pages and transfers, with heavy-tailed sizes; and those of episodes.

use std::net::Ipv4Addr;
use std::time::Duration;

use dta_proto::key::Flow;
use dta_proto::random::SplitMix64;

use super::TICK;
use super::episode::{Episode, EpisodeKind};
use super::network::{BORDER, HOSTS, PathHop, rack_host};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bits of TCP's header.
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH_ACK: u8 = 0x18;

/// New flows per second.
const LOOKUPS: f64 = 30.0;
const PAGES: f64 = 20.0;
const TRANSFERS: f64 = 12.0;
const FULL_PACKET: u64 = 1500;

/// A flow under way.
pub(super) struct LiveFlow {
    pub(super) flow: Flow,
    /// The episode to which it belongs, by its place among all.
    pub(super) episode: Option<usize>,
    packet_len: u64,
    /// Bytes per second.
    rate: f64,
    packets_left: u64,
    /// Bytes that its rate allows and that do not fill a packet yet.
    credit: f64,
    /// Whether a client only tries to open it.
    is_attempt: bool,
    /// Whether its first switch discards it by an access list, and says so in its records.
    pub(super) is_denied: bool,
    /// Since the last record.
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) record_start: Duration,
    pub(super) is_first_record: bool,
    /// Where it went last.
    pub(super) path: Vec<PathHop>,
    pub(super) next_report: Duration,
    pub(super) next_drop: Duration,
}

impl LiveFlow {
    fn new(flow: Flow, now: Duration, bytes: u64, packet_len: u64, rate: f64) -> LiveFlow {
        LiveFlow {
            flow,
            episode: None,
            packet_len,
            rate,
            packets_left: bytes.div_ceil(packet_len).max(1),
            credit: packet_len as f64,
            is_attempt: false,
            is_denied: false,
            packets: 0,
            bytes: 0,
            record_start: now,
            is_first_record: true,
            path: Vec::new(),
            next_report: now,
            next_drop: now,
        }
    }

    /// Sends what its rate allows in a tick; returns the bytes.
    pub(super) fn send_for_tick(&mut self) -> u64 {
        self.credit += self.rate * TICK.as_secs_f64();
        let packets = ((self.credit / self.packet_len as f64) as u64).min(self.packets_left);
        let bytes = packets * self.packet_len;
        self.credit -= bytes as f64;
        self.packets_left -= packets;
        self.packets += packets;
        self.bytes += bytes;
        bytes
    }

    pub(super) fn has_ended(&self) -> bool {
        self.packets_left == 0
    }

    /// TCP's bits in the record that comes next.
    pub(super) fn tcp_flags(&self) -> u8 {
        match (self.flow.proto, self.is_attempt) {
            (TCP, true) => SYN,
            (TCP, false) => {
                PSH_ACK | if self.is_first_record { SYN } else { 0 } | if self.has_ended() { FIN } else { 0 }
            }
            _ => 0,
        }
    }
}

/// The transfer that runs from beginning to end.
pub(super) fn tracked_transfer(flow: Flow) -> LiveFlow {
    LiveFlow::new(flow, Duration::ZERO, u64::MAX, FULL_PACKET, 2.5e6)
}

fn flow_between((src, sport): (Ipv4Addr, u16), (dst, dport): (Ipv4Addr, u16), proto: u8) -> Flow {
    Flow { src: src.into(), dst: dst.into(), sport, dport, proto }
}

/// Draws the traffic at random.
pub(super) struct Draws(pub(super) SplitMix64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }

    /// From 0 to below 1.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// How many arrive in a tick, if this many do per second.
    fn arrivals(&mut self, per_second: f64) -> u64 {
        (per_second * TICK.as_secs_f64() + self.fraction()) as u64
    }

    /// Pareto's distribution from `least` to `most`: a few of the flows have most of the bytes.
    fn heavy_tailed(&mut self, least: f64, most: f64, exponent: f64) -> u64 {
        (least * (1.0 - self.fraction()).powf(-1.0 / exponent)).min(most) as u64
    }

    fn random_host(&mut self) -> Ipv4Addr {
        let leaf = 1 + self.below(u64::from(BORDER) - 1) as u32;
        rack_host(leaf, 1 + self.below(HOSTS.into()) as u8)
    }

    fn client_port(&mut self) -> u16 {
        32_768 + self.below(28_000) as u16
    }

    fn internet_address(&mut self) -> Ipv4Addr {
        Ipv4Addr::from_bits(0xc612_0000 | self.below(1 << 17) as u32)
    }

    /// The flows of background traffic that begin in a tick.
    pub(super) fn begin_background(&mut self, now: Duration, begun: &mut Vec<LiveFlow>) {
        for _ in 0..self.arrivals(LOOKUPS) {
            let resolver = (rack_host(7, 16), 53);
            let client = (self.random_host(), self.client_port());
            let answer_len = 80 + self.below(400);
            begun.push(LiveFlow::new(flow_between(client, resolver, UDP), now, 70, 70, 1e6));
            begun.push(LiveFlow::new(flow_between(resolver, client, UDP), now, answer_len, answer_len, 1e6));
        }
        for _ in 0..self.arrivals(PAGES) {
            let client = match self.below(2) {
                0 => self.internet_address(),
                _ => self.random_host(),
            };
            let (client, server) = ((client, self.client_port()), (self.random_host(), 443));
            let bytes = self.heavy_tailed(20e3, 100e6, 1.3);
            begun.push(LiveFlow::new(flow_between(client, server, TCP), now, bytes / 20 + 500, 100, 2e5));
            begun.push(LiveFlow::new(flow_between(server, client, TCP), now, bytes, FULL_PACKET, 4e6));
        }
        for _ in 0..self.arrivals(TRANSFERS) {
            let (client, server) = ((self.random_host(), self.client_port()), (self.random_host(), 2049));
            let bytes = self.heavy_tailed(4e6, 2e9, 1.2);
            let rate = self.heavy_tailed(1e6, 12e6, 1.0) as f64;
            begun.push(LiveFlow::new(flow_between(server, client, TCP), now, bytes, FULL_PACKET, rate));
        }
        // Now and then a connection is not answered.
        for _ in 0..self.arrivals(0.5) {
            let client = (self.random_host(), self.client_port());
            let mut attempt =
                LiveFlow::new(flow_between(client, (self.random_host(), 443), TCP), now, 60, 60, 1e6);
            attempt.is_attempt = true;
            begun.push(attempt);
        }
    }

    /// The flows of an episode that begin in a tick.
    pub(super) fn begin_episode_flows(
        &mut self,
        index: usize,
        episode: &Episode,
        now: Duration,
        begun: &mut Vec<LiveFlow>,
    ) {
        let Episode { kind, victim, source, .. } = *episode;
        let is_start = now == episode.start;
        let seconds = (episode.end - episode.start).as_secs_f64();
        let first = begun.len();
        let attempt = |flow| LiveFlow { is_attempt: true, ..LiveFlow::new(flow, now, 60, 60, 1e6) };
        match kind {
            EpisodeKind::SynFlood => {
                for _ in 0..self.arrivals(episode.scale(2000.0)) {
                    let client = (self.internet_address(), self.client_port());
                    begun.push(attempt(flow_between(client, (victim, 443), TCP)));
                }
            }
            EpisodeKind::PortScan => {
                let ports_until = |at: Duration| episode.scale(100.0 * at.as_secs_f64()).round() as u16;
                let client = (source, 40_000);
                let since = now - episode.start;
                let ports = ports_until(since)..ports_until(since + TICK);
                begun.extend(ports.map(|n| attempt(flow_between(client, (victim, 1 + n), TCP))));
            }
            EpisodeKind::HostScan => {
                for _ in 0..self.arrivals(episode.scale(100.0)) {
                    let host = rack_host(1 + self.below(u64::from(BORDER) - 1) as u32, self.below(256) as u8);
                    begun.push(attempt(flow_between((source, self.client_port()), (host, 22), TCP)));
                }
            }
            EpisodeKind::Amplification if is_start => {
                let port = self.client_port();
                let rate = episode.scale(600e6) / 8.0 / 150.0;
                for n in 1..=150 {
                    let server = (Ipv4Addr::new(203, 0, 113, n), 53);
                    let flow = flow_between(server, (victim, port), UDP);
                    begun.push(LiveFlow::new(flow, now, (rate * seconds) as u64, 1400, rate));
                }
            }
            EpisodeKind::Elephant if is_start => {
                let flow = flow_between((source, self.client_port()), (victim, 5201), TCP);
                let rate = episode.scale(920e6) / 8.0;
                begun.push(LiveFlow::new(flow, now, (rate * seconds) as u64, FULL_PACKET, rate));
            }
            EpisodeKind::UnusualLoad if is_start => {
                let rate = episode.scale(240e6) / 8.0 / 24.0;
                for n in 1..=24 {
                    let client = (Ipv4Addr::new(203, 0, 113, n), self.client_port());
                    let flow = flow_between(client, (victim, 873), TCP);
                    begun.push(LiveFlow::new(flow, now, (rate * seconds) as u64, FULL_PACKET, rate));
                }
            }
            EpisodeKind::DeniedTraffic if is_start => {
                let flow = flow_between((source, self.client_port()), (victim, 445), TCP);
                let rate = episode.scale(100.0) * FULL_PACKET as f64;
                let live = LiveFlow::new(flow, now, (rate * seconds) as u64, FULL_PACKET, rate);
                begun.push(LiveFlow { is_denied: true, ..live });
            }
            _ => {}
        }
        begun[first..].iter_mut().for_each(|flow| flow.episode = Some(index));
    }
}
