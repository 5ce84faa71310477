//! Synthetic traffic: flows with heavy-tailed sizes, the same for the same seed.

use std::net::{IpAddr, Ipv4Addr};

use dta_proto::key::Flow;
use dta_proto::random::SplitMix64;

use crate::capture::DecodedPacket;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrafficShape {
    /// Distinct flows to choose from, 1 to 2^24.
    pub flows: u32,
    /// Exponent of Zipf's law: the flow of rank r gets a share of packets proportional to r^-exponent. Around 1 for
    /// real traffic.
    pub exponent: f64,
    /// The same seed gives the same packets.
    pub seed: u64,
}

/// A packet without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficPacket {
    /// Flow and length of the IP packet.
    pub packet: DecodedPacket,
    /// Nanoseconds; rises strictly.
    pub time_ns: u64,
}

/// An endless stream of packets.
#[derive(Clone, Debug)]
pub struct Synthetic {
    shape: TrafficShape,
    /// Cumulative share of the flows by rank, scaled to 2^53.
    cumulated: Vec<u64>,
    random: SplitMix64,
    time_ns: u64,
}

impl Synthetic {
    /// Prepares the flows; the table takes 8 bytes per flow.
    pub fn new(shape: TrafficShape) -> Self {
        let flows = shape.flows.clamp(1, 1 << 24);
        let weight = |rank: u32| f64::from(rank).powf(-shape.exponent);
        let total: f64 = (1..=flows).map(weight).sum();
        let mut sum = 0.0;
        let cumulated = (1..=flows)
            .map(|rank| {
                sum += weight(rank);
                (sum / total * (1u64 << 53) as f64) as u64
            })
            .collect();
        Self { shape, cumulated, random: SplitMix64(shape.seed), time_ns: 1_700_000_000_000_000_000 }
    }

    /// The 5-tuple of the flow of a rank, from 0: clients in 10/8 to servers in 172.16/12, mostly TCP.
    pub fn flow_of_rank(&self, rank: u32) -> Flow {
        let mut random = SplitMix64(self.shape.seed ^ 0x5851_f42d_4c95_7f2d ^ (u64::from(rank) << 20));
        let (a, b) = (random.next_u64(), random.next_u64());
        let server_port = [443, 80, 53, 5201, 8080, 22, 3306, 6379][(b >> 40) as usize & 7];
        // The rank is in the client's address, so that no two flows are equal.
        let client = Ipv4Addr::from(0x0a00_0000 | rank & 0x00ff_ffff);
        let server = Ipv4Addr::from(0xac10_0000 | (b as u32 & 0x000f_ffff));
        Flow {
            src: IpAddr::V4(client),
            dst: IpAddr::V4(server),
            sport: 1024 + (a % 64_000) as u16,
            dport: server_port,
            proto: if server_port == 53 || a >> 61 == 0 { 17 } else { 6 },
        }
    }
}

impl Iterator for Synthetic {
    type Item = TrafficPacket;

    fn next(&mut self) -> Option<TrafficPacket> {
        let draw = self.random.next_u64() >> 11;
        let rank = self.cumulated.partition_point(|&edge| edge <= draw).min(self.cumulated.len() - 1);
        let noise = self.random.next_u64();
        // Two peaks, as on real links: acknowledgements and full segments, and a few between.
        let length = match noise & 15 {
            0..=6 => 40 + (noise >> 8) as u32 % 40,
            7..=13 => 1500,
            _ => 80 + (noise >> 8) as u32 % 1420,
        };
        self.time_ns += 100 + (noise >> 32) % 2000;
        Some(TrafficPacket {
            packet: DecodedPacket { flow: self.flow_of_rank(rank as u32), length },
            time_ns: self.time_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    const SHAPE: TrafficShape = TrafficShape { flows: 1000, exponent: 1.1, seed: 7 };

    #[test]
    fn the_same_seed_gives_the_same_packets_and_another_gives_others() {
        let first: Vec<_> = Synthetic::new(SHAPE).take(500).collect();
        assert_eq!(first, Synthetic::new(SHAPE).take(500).collect::<Vec<_>>());
        assert_ne!(first, Synthetic::new(TrafficShape { seed: 8, ..SHAPE }).take(500).collect::<Vec<_>>());
    }

    #[test]
    fn no_two_flows_are_equal_and_times_rise() {
        let traffic = Synthetic::new(SHAPE);
        let flows: HashSet<_> = (0..1000).map(|rank| traffic.flow_of_rank(rank)).collect();
        assert_eq!(flows.len(), 1000);
        let times: Vec<_> = traffic.take(100).map(|p| p.time_ns).collect();
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn the_tail_is_heavy() {
        let mut packets = HashMap::<Flow, u32>::new();
        for p in Synthetic::new(SHAPE).take(100_000) {
            *packets.entry(p.packet.flow).or_default() += 1;
        }
        let mut sizes: Vec<_> = packets.into_values().collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = sizes[..10].iter().sum();
        // Zipf's law with exponent 1.1 over 1,000 flows gives the first ten 50 % of all packets.
        let expected: f64 = (1..=10).map(|r| f64::from(r).powf(-1.1)).sum::<f64>()
            / (1..=1000).map(|r| f64::from(r).powf(-1.1)).sum::<f64>();
        assert!((f64::from(top) / 100_000.0 - expected).abs() < 0.01, "{top} of 100000, expected {expected}");
        assert!(sizes[sizes.len() / 2] < 40, "half of the flows are small");
    }
}
