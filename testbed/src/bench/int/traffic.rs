//! INT Telemetry Reports of many flows, each in a frame, made before the clock starts.

use std::net::{Ipv4Addr, SocketAddrV4};

use dta_proto::batch::PacketBatch;
use dta_proto::key::Flow;
use dta_telemetry::int::emit::{EmittedDatagram, EmittedPacket, EmittedReport, Hop, Local, Stack};
use dta_telemetry::int::{Fill, Flags, IntVersion, ReportVersion};

/// Datagrams per batch, as many as the translator receives at once.
const BATCH: usize = 128;
/// Prepared batches: few enough to stay in the cache, as packets from a link do.
const READY: usize = 8;
/// All fields of INT v1.0: switch, ports, latency, queue, both times, level-2 ports, utilisation.
const ALL_FIELDS: u16 = 0xff00;
/// Offset of the stack in a report: after its header, Ethernet, IPv4, UDP, shim and INT's header.
const STACK: usize = 16 + 14 + 20 + 8 + 4 + 8;
/// Bytes of a hop, and the offsets of its changing fields.
const HOP: usize = 36;
const LATENCY: usize = 8;
const OCCUPANCY: usize = 12;
const UTILIZATION: usize = 32;
/// Bytes of the IPv4 and the UDP header.
const BEFORE: usize = 28;
const STEP: usize = 61_803;

/// Reports of INT v1.0 in Telemetry Reports v1.0.
pub(super) struct IntTraffic {
    /// One report for each flow.
    reports: Vec<Vec<u8>>,
    hops: usize,
    /// Whether each report changes every value and every path.
    moving: bool,
    ends: [SocketAddrV4; 2],
    made: u64,
    ready: Vec<PacketBatch>,
}

impl IntTraffic {
    /// `flows` has no divisor in common with 61803, so that each turn has each flow once.
    pub(super) fn new(flows: usize, hops: usize, moving: bool) -> IntTraffic {
        IntTraffic {
            reports: (0..flows).map(|flow| report_bytes(flow, hops)).collect(),
            hops,
            moving,
            ends: [50_000, 32_766].map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)),
            made: 0,
            ready: vec![PacketBatch::with_packet_capacity(BATCH, 512); READY],
        }
    }

    /// Values per report: path, flow latency, and for each hop latency, occupancy and utilisation.
    pub(super) fn values_per_report(&self) -> u64 {
        2 + 3 * self.hops as u64
    }

    /// Reports that [`IntTraffic::make_ready`] prepares at a time.
    pub(super) const READY: u64 = (BATCH * READY) as u64;

    /// The same traffic, sent between these endpoints.
    pub(super) fn with_endpoints(self, source: SocketAddrV4, destination: SocketAddrV4) -> IntTraffic {
        IntTraffic { ends: [source, destination], ..self }
    }

    /// The next reports, one flow after another, in batches.
    pub(super) fn make_ready(&mut self) -> &[PacketBatch] {
        let ends = self.ends;
        let flows = self.reports.len() as u64;
        for batch in &mut self.ready {
            batch.clear();
            for index in 0..BATCH {
                let (turn, place) = (self.made / flows, (self.made % flows) as usize);
                let report = &self.reports[place * STEP % self.reports.len()];
                let pushed = batch.push_datagram(ends[0], ends[1], report, 0);
                debug_assert!(pushed.is_ok(), "room for a report");
                let payload = &mut batch.packet_mut(index)[BEFORE..];
                payload[8..12].copy_from_slice(&(self.made as u32).to_be_bytes());
                if self.moving {
                    vary_hop_stack(&mut payload[STACK..], &report[STACK..], turn as usize, self.made as u32);
                }
                self.made += 1;
            }
        }
        &self.ready
    }

    /// The last prepared batches, to be sent, which empties them.
    pub(super) fn prepared_batches(&mut self) -> &mut [PacketBatch] {
        &mut self.ready
    }
}

/// Reorders the hops in each turn, and changes each field.
fn vary_hop_stack(stack: &mut [u8], as_made: &[u8], turn: usize, number: u32) {
    let hops = stack.len() / HOP;
    for (place, hop) in stack.chunks_exact_mut(HOP).enumerate() {
        let from = (place + turn) % hops * HOP;
        hop.copy_from_slice(&as_made[from..from + HOP]);
        for field in [LATENCY, UTILIZATION] {
            hop[field..field + 4].copy_from_slice(&(number & 0x00ff_ffff).to_be_bytes());
        }
        hop[OCCUPANCY + 1..OCCUPANCY + 4].copy_from_slice(&number.to_be_bytes()[1..]);
    }
}

/// The payload of a report of a flow through these many hops, with all fields.
pub(in crate::bench) fn report_bytes(flow: usize, hops: usize) -> Vec<u8> {
    let hop = |place: usize| Hop {
        switch: Some((1 + 10 * place + flow % 10) as u32),
        ports: [Some((flow / 10 % 32) as u16), Some((flow % 32) as u16)],
        latency: Some(400 + (flow % 1000) as u32),
        queue: Fill { id: Some((flow % 8) as u32), value: Some(100) },
        ingress_time: Some(1_000_000),
        egress_time: Some(1_000_400),
        level2: [Some(1), Some(2)],
        utilization: Some(50),
        ..Hop::default()
    };
    let [.., a, b] = (flow as u32).to_be_bytes();
    let of = Flow {
        src: Ipv4Addr::new(10, 0, (flow >> 16) as u8, a).into(),
        dst: Ipv4Addr::new(10, 1, b, 1).into(),
        sport: 5000,
        dport: 80,
        proto: 17,
    };
    let packet = EmittedPacket::new(of).with_stack(Stack::new(
        IntVersion::V10,
        ALL_FIELDS,
        (0..hops).map(hop).collect(),
    ));
    let flags = Flags { tracked: true, ..Flags::default() };
    let local = Local::Nothing;
    let report =
        EmittedReport { flags, local, hop: Hop::default(), halved_queue: false, packet, ethernet: true };
    EmittedDatagram {
        version: ReportVersion::V10,
        version_nibble: 0,
        switch: 9,
        hardware: 1,
        sequence: 0,
        reports: vec![report],
    }
    .to_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use dta_telemetry::int::{IntSettings, parse_reports};

    use super::*;

    /// Flows, paths and latencies of the prepared reports.
    fn read(traffic: &mut IntTraffic) -> Vec<(Flow, Vec<u32>, u64)> {
        let batches = traffic.make_ready();
        let all =
            batches.iter().flat_map(|batch| (0..batch.len()).map(|index| batch.udp_datagram(index).unwrap()));
        all.map(|datagram| {
            let mut all = parse_reports(datagram.payload(), &IntSettings::default()).unwrap();
            let report = all.next().unwrap().unwrap();
            assert!(all.next().is_none());
            let hops: Vec<_> = report.hops_with_switches().collect();
            for (_, hop) in &hops {
                assert!(hop.utilization().is_some() && hop.queue_fill().value.is_some());
                assert!(hop.egress_port().is_some() && hop.egress_time().is_some());
            }
            let path = hops.iter().map(|(switch, _)| switch.unwrap()).collect();
            let latency = hops.iter().map(|(_, hop)| hop.node_latency().unwrap()).sum();
            (report.packet.unwrap().flow, path, latency)
        })
        .collect()
    }

    #[test]
    fn each_turn_has_each_flow_once_and_moves_what_is_to_move() {
        for hops in [3, 6] {
            let mut still = IntTraffic::new(1000, hops, false);
            let made = read(&mut still);
            let flows: HashSet<_> = made[..1000].iter().map(|(flow, ..)| *flow).collect();
            assert_eq!(flows.len(), 1000);
            assert_eq!(made[0], made[1000]);
            assert_eq!(made[0].1.len(), hops);
            let mut moving = IntTraffic::new(1000, hops, true);
            let made = read(&mut moving);
            assert_eq!(made[0].0, made[1000].0);
            assert!(made[0].1 != made[1000].1 && made[0].2 != made[1000].2, "{:?}", made[0]);
        }
    }
}
