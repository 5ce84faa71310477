//! What devices send: flow records in NetFlow v9, Telemetry Reports v2.0 with INT v2.1 inside, drops in sFlow.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use dta_proto::key::Flow;
use dta_proto::telemetry::{InterfaceCounter, InterfaceCounts};
use dta_telemetry::flows::emit;
use dta_telemetry::int::emit::{EmittedDatagram, EmittedPacket, EmittedReport, Hop, Local, Stack};
use dta_telemetry::int::{Fill, Flags, IntVersion, ReportVersion};

use super::network::{LINK_RATE, PathHop, Port, agent_address, exporter_address, leaf_of_address};
use super::traffic::LiveFlow;

/// Addresses, ports, protocol, TCP's bits, forwarding, interfaces, packets, bytes, start and end of a NetFlow record.
const FIELDS: [(u16, u16); 13] = [
    (8, 4),
    (12, 4),
    (7, 2),
    (11, 2),
    (4, 1),
    (6, 1),
    (89, 1),
    (10, 4),
    (14, 4),
    (2, 8),
    (1, 8),
    (152, 8),
    (153, 8),
];
/// Forwarding status (RFC 7270): forwarded, and dropped by an access list.
const FORWARDED: u8 = 64;
const DENIED: u8 = 129;
const TEMPLATE: u16 = 256;
/// Records of a datagram.
const RECORDS: usize = 20;
/// Telemetry Reports of a datagram.
const REPORTS: usize = 8;
/// Switch, ports, latency, queue and utilisation of each hop.
const INSTRUCTIONS: u16 = 0xf100;
/// Ports, latency and queue in a report of a congested packet; ports and reason in one of a dropped packet.
const CONGESTION_FIELDS: u16 = 0x7000;
const DROP_FIELDS: u16 = 0x4001;
/// `ip-header-corrupted` in `sflow_drops.txt`.
pub(super) const DAMAGED: u32 = 275;

/// The listener to which a device sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// NetFlow and sFlow.
    Flows,
    Int,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The sender's address, of loopback.
    pub source: Ipv4Addr,
    pub to: Listener,
    pub payload: Vec<u8>,
}

/// How a packet fares at a port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortState {
    /// Hundredths of a percent.
    pub(super) utilization: u32,
    /// Packets.
    pub(super) queue: u32,
    /// Nanoseconds.
    pub(super) latency: u32,
}

/// What an interface has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortCounts {
    /// Bytes that left.
    pub(super) octets: f64,
    /// Packets that did not leave, and packets that came with errors.
    pub(super) discards: f64,
    pub(super) errors: f64,
}

/// All devices of the network.
#[derive(Default)]
pub(super) struct Devices {
    records: BTreeMap<u32, Vec<Vec<u8>>>,
    reports: BTreeMap<u32, Vec<EmittedReport>>,
    /// Samples of sFlow.
    samples: BTreeMap<u32, Vec<Vec<u8>>>,
    /// Datagrams sent, by sender and kind.
    sequences: BTreeMap<(u32, &'static str), u32>,
}

/// The address from which a switch sends.
fn switch_address(switch: u32) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 11, switch as u8)
}

impl Devices {
    /// The leaf behind which a flow begins exports what has been sent since its last record. `began` is the scenario's
    /// start in nanoseconds since 1970.
    pub(super) fn export_record(&mut self, live: &LiveFlow, now: Duration, began: u64) {
        let flow = &live.flow;
        let mut bytes = Vec::with_capacity(64);
        for address in [flow.src, flow.dst] {
            if let IpAddr::V4(address) = address {
                bytes.extend(address.octets());
            }
        }
        bytes.extend([flow.sport, flow.dport].map(u16::to_be_bytes).concat());
        bytes.extend([flow.proto, live.tcp_flags(), if live.is_denied { DENIED } else { FORWARDED }]);
        let [in_if, out_if] = match live.path.first() {
            Some(hop) if live.is_denied => [hop.in_port, 0],
            Some(hop) => [hop.in_port, hop.out_port],
            None => [0; 2],
        };
        bytes.extend([in_if, out_if].map(|port| u32::from(port).to_be_bytes()).concat());
        let milliseconds = |at: Duration| (began / 1_000_000) + at.as_millis() as u64;
        let numbers = [live.packets, live.bytes, milliseconds(live.record_start), milliseconds(now)];
        bytes.extend(numbers.map(u64::to_be_bytes).concat());
        self.records.entry(leaf_of_address(flow.src)).or_default().push(bytes);
    }

    /// The last switch of a flow reports a packet with what all hops added.
    pub(super) fn report_path(&mut self, flow: Flow, path: &[PathHop], states: &[PortState]) {
        let Some(sink) = path.last() else { return };
        let hop = |(at, state): (&PathHop, &PortState)| {
            let PortState { utilization, queue, latency } = *state;
            Hop {
                switch: Some(at.switch),
                ports: [Some(at.in_port), Some(at.out_port)],
                latency: Some(latency),
                queue: Fill { id: Some(0), value: Some(queue) },
                utilization: Some(utilization),
                ..Hop::default()
            }
        };
        let stack =
            Stack::new(IntVersion::V21, INSTRUCTIONS, path.iter().zip(states).rev().map(hop).collect());
        let flags = Flags { tracked: true, ..Flags::default() };
        self.push_report(
            sink.switch,
            flags,
            Local::Nothing,
            Hop::default(),
            EmittedPacket::new(flow).with_stack(stack),
        );
    }

    /// A switch reports a packet that waited in a long queue.
    pub(super) fn report_congestion(&mut self, flow: Flow, at: &PathHop, state: PortState) {
        let hop = Hop {
            ports: [Some(at.in_port), Some(at.out_port)],
            latency: Some(state.latency),
            queue: Fill { id: Some(0), value: Some(state.queue) },
            ..Hop::default()
        };
        let flags = Flags { congested: true, ..Flags::default() };
        self.push_report(at.switch, flags, Local::Bits(CONGESTION_FIELDS), hop, EmittedPacket::new(flow));
    }

    /// A switch reports a packet that it dropped.
    pub(super) fn report_drop(&mut self, flow: Flow, at: &PathHop, reason: u8) {
        let hop =
            Hop { ports: [Some(at.in_port), Some(at.out_port)], drop: (Some(0), reason), ..Hop::default() };
        let flags = Flags { dropped: true, ..Flags::default() };
        self.push_report(at.switch, flags, Local::Bits(DROP_FIELDS), hop, EmittedPacket::new(flow));
    }

    fn push_report(&mut self, switch: u32, flags: Flags, local: Local, hop: Hop, packet: EmittedPacket) {
        let report = EmittedReport { flags, local, hop, halved_queue: false, packet, ethernet: true };
        self.reports.entry(switch).or_default().push(report);
    }

    /// The sFlow agent of a switch says that a packet was damaged.
    pub(super) fn notice_damage(&mut self, flow: Flow, at: &PathHop) {
        let mut frame = Vec::new();
        EmittedPacket::new(flow).put_ethernet_frame(&mut frame);
        let interface = u32::from(at.in_port);
        let samples = self.samples.entry(at.switch).or_default();
        let words = [samples.len() as u32, 0, interface, 0, interface, at.out_port.into(), DAMAGED];
        samples.push(emit::sflow_sample(5, &words, &[emit::sflow_header_record(1, &frame)]));
    }

    /// The sFlow agent of a switch says what an interface has counted.
    pub(super) fn export_counters(&mut self, (switch, port): Port, of_port: &PortCounts) {
        let mut counts = InterfaceCounts::default();
        for (counter, count) in [
            (InterfaceCounter::OutOctets, of_port.octets),
            (InterfaceCounter::OutDiscards, of_port.discards),
            (InterfaceCounter::InErrors, of_port.errors),
        ] {
            counts[counter as usize] = Some(count as u64);
        }
        let samples = self.samples.entry(switch).or_default();
        let record = emit::interface_counters(port.into(), LINK_RATE as u64, &counts);
        samples.push(emit::sflow_sample(2, &[samples.len() as u32, port.into()], &[record]));
    }

    /// What all devices send now.
    pub(super) fn send_datagrams(&mut self) -> Vec<Datagram> {
        let mut sent = Vec::new();
        let template = emit::set(0, &emit::encode_template(TEMPLATE, &FIELDS));
        let sequences = &mut self.sequences;
        let mut next_sequence = |sender: u32, kind: &'static str| {
            let next = sequences.entry((sender, kind)).or_default();
            *next += 1;
            *next - 1
        };
        for (leaf, records) in std::mem::take(&mut self.records) {
            for records in records.chunks(RECORDS) {
                let sets = [template.clone(), emit::set(TEMPLATE, &records.concat())];
                let payload = emit::netflow_v9_datagram(next_sequence(leaf, "netflow"), leaf, &sets);
                sent.push(Datagram { source: exporter_address(leaf), to: Listener::Flows, payload });
            }
        }
        for (switch, reports) in std::mem::take(&mut self.reports) {
            for reports in reports.chunks(REPORTS) {
                let datagram = EmittedDatagram {
                    version: ReportVersion::V20,
                    version_nibble: 2,
                    switch,
                    hardware: 0,
                    sequence: next_sequence(switch, "int"),
                    reports: reports.to_vec(),
                };
                let source = switch_address(switch);
                sent.push(Datagram { source, to: Listener::Int, payload: datagram.to_bytes() });
            }
        }
        for (switch, samples) in std::mem::take(&mut self.samples) {
            for samples in samples.chunks(REPORTS) {
                let sequence = next_sequence(switch, "sflow");
                let payload = emit::sflow_datagram(agent_address(switch), 0, sequence, samples);
                sent.push(Datagram { source: switch_address(switch), to: Listener::Flows, payload });
            }
        }
        sent
    }
}
