//! Emits Telemetry Reports for tests, benchmarks and testbeds. It allocates; received reports never pass
//! through here.
//!
//! Checksums of the packet inside are 0: the parser ignores them because a report holds only the packet's
//! first bytes.

use core::net::IpAddr;

use super::metadata::{BIT_6, Instructions, Item, TIMES};
use super::{Fill, Flags, IntVersion, ReportVersion, TunnelKind};
use dta_proto::key::Flow;
use dta_proto::wire::ipv4;

/// A node's metadata. `None` is written as all ones if an instruction asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    pub switch: Option<u32>,
    /// Level-1 ports in and out, 16 bits each.
    pub ports: [Option<u16>; 2],
    pub latency: Option<u32>,
    /// Queue and occupancy.
    pub queue: Fill,
    /// Arrival time; the low 32 bits where the format has no more.
    pub ingress_time: Option<u64>,
    pub egress_time: Option<u64>,
    /// Queue and congestion status.
    pub congestion: Fill,
    /// Level-2 ports in and out.
    pub level2: [Option<u32>; 2],
    /// Utilisation of the port.
    pub utilization: Option<u32>,
    /// Buffer and occupancy.
    pub buffer: Fill,
    /// Queue and reason of a drop.
    pub drop: (Option<u8>, u8),
}

/// Deviations from the specification in INT v1.0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    #[default]
    Specified,
    /// INTCollector's generator: bit 6 has 4 bytes, as in v0.5.
    ShortBit6,
    /// GÉANT: timestamps of 64 bits.
    WideTimes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// After its own TCP or UDP header, which is unchanged.
    #[default]
    Behind,
    /// This UDP destination port replaces the old one, which INT keeps (v0.5, v2.1).
    Port(u16),
    /// A new UDP header to this port precedes the packet's own (v2.1).
    NewUdp(u16),
}

/// INT in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Version of its header.
    pub version: IntVersion,
    /// Deviation in v1.0.
    pub variant: Variant,
    /// Whether queue fields have 16 and 16 bits.
    pub halved_queue: bool,
    /// Instructions: what each hop adds.
    pub instructions: u16,
    /// The hops, newest first.
    pub hops: Vec<Hop>,
    /// How the packet carries it.
    pub carrier: Carrier,
    /// Domain, its instructions, and words of 4 bytes that each hop adds for it (v2.1).
    pub domain: (u16, u16, u8),
    /// What only the source added, a multiple of 4 bytes (v2.1).
    pub source_only: Vec<u8>,
}

impl Stack {
    /// As specified, after the packet's own header.
    pub fn new(version: IntVersion, instructions: u16, hops: Vec<Hop>) -> Stack {
        Stack {
            version,
            variant: Variant::Specified,
            halved_queue: false,
            instructions,
            hops,
            carrier: Carrier::Behind,
            domain: (0, 0, 0),
            source_only: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedPacket {
    /// Its 5-tuple.
    pub flow: Flow,
    /// VLAN tags, outermost first.
    pub vlans: Vec<u16>,
    /// IPv4 options, a multiple of 4 bytes, at most 40; for IPv6 a hop-by-hop header 8 bytes longer.
    pub ip_options: Vec<u8>,
    /// TCP options, a multiple of 4 bytes, at most 40.
    pub tcp_options: Vec<u8>,
    /// Whether INT precedes the TCP options.
    pub int_before_options: bool,
    pub stack: Option<Stack>,
    /// The payload, if it is not a tunnel.
    pub payload: Vec<u8>,
    /// The packet it tunnels. Protocol or UDP destination port must be the tunnel's.
    pub tunnel: Option<(TunnelKind, Box<EmittedPacket>)>,
}

impl EmittedPacket {
    pub fn new(flow: Flow) -> EmittedPacket {
        EmittedPacket {
            flow,
            vlans: Vec::new(),
            ip_options: Vec::new(),
            tcp_options: Vec::new(),
            int_before_options: false,
            stack: None,
            payload: Vec::new(),
            tunnel: None,
        }
    }

    pub fn with_stack(mut self, stack: Stack) -> EmittedPacket {
        self.stack = Some(stack);
        self
    }
}

/// Which metadata of the sending switch a report has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Local {
    #[default]
    Nothing,
    /// v0.5: the drop header. v1.0 and v2.0: nothing.
    Drop,
    /// v0.5: the switch-local header. v1.0 and v2.0: nothing.
    SwitchLocal,
    /// v1.0 and v2.0: metadata by these bits, most significant first: 6 in v1.0, 16 in v2.0.
    Bits(u16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedReport {
    /// The reasons for the report.
    pub flags: Flags,
    /// Which fields of `hop` it has.
    pub local: Local,
    /// Metadata of its switch.
    pub hop: Hop,
    /// Whether queue fields have 16 and 16 bits.
    pub halved_queue: bool,
    pub packet: EmittedPacket,
    /// Whether the packet begins with Ethernet; from v1.0 on it may begin with IP.
    pub ethernet: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedDatagram {
    pub version: ReportVersion,
    /// The first nibble in v0.5, which is not specified: 0 from most senders, 1 from INTCollector's
    /// generator.
    pub version_nibble: u8,
    pub switch: u32,
    /// The separately numbering part of the switch.
    pub hardware: u8,
    /// Number of the datagram.
    pub sequence: u32,
    /// The reports: exactly one before v2.0, where only the first is written.
    pub reports: Vec<EmittedReport>,
}

impl EmittedDatagram {
    /// The payload of the UDP datagram.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match (self.version, self.reports.first()) {
            (ReportVersion::V20, _) => self.put_v20_group(&mut out),
            (ReportVersion::V05, Some(report)) => self.put_v05_report(report, &mut out),
            (ReportVersion::V10, Some(report)) => self.put_v10_report(report, &mut out),
            (_, None) => {}
        }
        out
    }

    fn put_v05_report(&self, report: &EmittedReport, out: &mut Vec<u8>) {
        let next = match report.local {
            Local::Drop => 1,
            Local::SwitchLocal => 2,
            Local::Nothing | Local::Bits(_) => 0,
        };
        let flags = flag_bits(report.flags) & 0xe0;
        out.extend([self.version_nibble << 4 | next, flags, 0, self.hardware & 0x3f]);
        out.extend(self.sequence.to_be_bytes());
        put_time(report.hop.ingress_time, false, out);
        let mut hop = report.hop;
        hop.switch = Some(self.switch);
        let put = |item| put_item(item, &hop, false, report.halved_queue, out);
        match report.local {
            Local::Drop => [Item::Switch, Item::Ports, Item::Drop].into_iter().for_each(put),
            Local::SwitchLocal => {
                [Item::Switch, Item::Ports, Item::Queue, Item::EgressTime].into_iter().for_each(put)
            }
            Local::Nothing | Local::Bits(_) => {}
        }
        report.packet.put_ethernet_frame(out);
    }

    fn put_v10_report(&self, report: &EmittedReport, out: &mut Vec<u8>) {
        let bits = match report.local {
            Local::Bits(bits) => bits & 0x3f,
            _ => 0,
        };
        let next = match (report.ethernet, report.packet.flow.src.is_ipv4()) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        let length = 4 + bits.count_ones();
        let flags = u32::from(flag_bits(report.flags) & 0xe0) << 1;
        let word = 1 << 28 | length << 24 | next << 21 | u32::from(bits) << 15 | flags;
        out.extend((word | u32::from(self.hardware & 0x3f)).to_be_bytes());
        out.extend(self.switch.to_be_bytes());
        out.extend(self.sequence.to_be_bytes());
        put_time(report.hop.ingress_time, false, out);
        put_fields(&Instructions::of_report_v10(), bits << 10, &report.hop, report.halved_queue, out);
        report.packet.put_packet(report.ethernet, out);
    }

    fn put_v20_group(&self, out: &mut Vec<u8>) {
        let word = 2 << 28 | u32::from(self.hardware & 0x3f) << 22 | self.sequence & 0x003f_ffff;
        out.extend(word.to_be_bytes());
        out.extend(self.switch.to_be_bytes());
        for report in &self.reports {
            let (kind, mut metadata) = match report.local {
                Local::Bits(bits) => {
                    let mut metadata = Vec::from(bits.to_be_bytes());
                    metadata.extend([0; 6]);
                    put_fields(
                        &Instructions::of_report_v20(),
                        bits,
                        &report.hop,
                        report.halved_queue,
                        &mut metadata,
                    );
                    (1, metadata)
                }
                _ => (0, Vec::new()),
            };
            let inner = match (report.ethernet, report.packet.flow.src.is_ipv4()) {
                (true, _) => 3,
                (false, true) => 4,
                (false, false) => 5,
            };
            let metadata_words = metadata.len().saturating_sub(8) / 4;
            report.packet.put_packet(report.ethernet, &mut metadata);
            metadata.resize(metadata.len().next_multiple_of(4), 0);
            let words = (metadata.len() / 4).min(0xff) as u8;
            out.extend([kind << 4 | inner, words, metadata_words as u8, flag_bits(report.flags)]);
            out.extend(metadata);
        }
    }
}

/// D, Q, F and I, from the top bit down.
fn flag_bits(flags: Flags) -> u8 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(flags.dropped, 0x80)
        | bit(flags.congested, 0x40)
        | bit(flags.tracked, 0x20)
        | bit(flags.intermediate, 0x10)
}

fn put_time(time: Option<u64>, wide: bool, out: &mut Vec<u8>) {
    if wide {
        out.extend(time.unwrap_or(u64::MAX).to_be_bytes());
    } else {
        out.extend(time.map_or(u32::MAX, |time| time as u32).to_be_bytes());
    }
}

fn put_fill(fill: Fill, halved: bool, out: &mut Vec<u8>) {
    let word = if halved {
        fill.id.unwrap_or(0xffff) << 16 | fill.value.unwrap_or(0xffff) & 0xffff
    } else {
        fill.id.unwrap_or(0xff) << 24 | fill.value.unwrap_or(0x00ff_ffff) & 0x00ff_ffff
    };
    out.extend(word.to_be_bytes());
}

fn put_item(item: Item, hop: &Hop, wide: bool, halved: bool, out: &mut Vec<u8>) {
    let mut word = |word: Option<u32>| out.extend(word.unwrap_or(u32::MAX).to_be_bytes());
    match item {
        Item::Switch => word(hop.switch),
        Item::Ports => hop.ports.iter().for_each(|port| out.extend(port.unwrap_or(u16::MAX).to_be_bytes())),
        Item::Latency => word(hop.latency),
        Item::Queue => put_fill(hop.queue, halved, out),
        Item::IngressTime => put_time(hop.ingress_time, wide, out),
        Item::EgressTime => put_time(hop.egress_time, wide, out),
        Item::Congestion => put_fill(hop.congestion, halved, out),
        Item::Level2Ports => hop.level2.into_iter().for_each(word),
        Item::Utilization => word(hop.utilization),
        Item::Buffer => put_fill(hop.buffer, halved, out),
        Item::Drop => out.extend([hop.drop.0.unwrap_or(0xff), hop.drop.1, 0, 0]),
        Item::Skipped => word(None),
    }
}

/// The fields that a bitmap asks for.
fn put_fields(instructions: &Instructions, bitmap: u16, hop: &Hop, halved: bool, out: &mut Vec<u8>) {
    for bit in (0..16).filter(|bit| bitmap & 0x8000 >> bit != 0) {
        let wide = instructions.wide & 0x8000 >> bit != 0;
        put_item(instructions.items[bit], hop, wide, halved, out);
    }
}

impl EmittedPacket {
    /// The packet, from Ethernet or from IP.
    fn put_packet(&self, ethernet: bool, out: &mut Vec<u8>) {
        if ethernet { self.put_ethernet_frame(out) } else { out.extend(self.build_ip_packet()) }
    }

    pub fn put_ethernet_frame(&self, out: &mut Vec<u8>) {
        out.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        for vlan in &self.vlans {
            out.extend([0x81, 0x00]);
            out.extend(vlan.to_be_bytes());
        }
        out.extend(if self.flow.src.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        out.extend(self.build_ip_packet());
    }

    /// From the IP header.
    fn build_ip_packet(&self) -> Vec<u8> {
        let (protocol, transport) = self.transport();
        let mut out = Vec::new();
        match (self.flow.src, self.flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header_len = 20 + self.ip_options.len();
                out.extend([0x40 | (header_len / 4) as u8, 0]);
                out.extend(((header_len + transport.len()) as u16).to_be_bytes());
                out.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
                out.extend(src.octets());
                out.extend(dst.octets());
                out.extend(&self.ip_options);
            }
            (src, dst) => {
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                let hop_by_hop =
                    if self.ip_options.is_empty() { &[][..] } else { &[protocol, 0, 1, 4, 0, 0, 0, 0] };
                out.extend([0x60, 0, 0, 0]);
                out.extend(((hop_by_hop.len() + transport.len()) as u16).to_be_bytes());
                out.extend([if hop_by_hop.is_empty() { protocol } else { 0 }, 64]);
                out.extend(octets(src));
                out.extend(octets(dst));
                out.extend(hop_by_hop);
            }
        }
        out.extend(transport);
        out
    }

    /// The protocol in the IP header, and what follows the header.
    fn transport(&self) -> (u8, Vec<u8>) {
        let inside = self.build_ip_payload();
        let int = self.stack.as_ref().map(|stack| stack.to_bytes(&self.flow)).unwrap_or_default();
        let carrier = self.stack.as_ref().map(|stack| stack.carrier).unwrap_or_default();
        let own = |destination: u16, int: &[u8]| match self.flow.proto {
            6 => build_tcp_segment(self, destination, int, &inside),
            ipv4::PROTOCOL_UDP => build_udp_datagram(self.flow.sport, destination, &[int, &inside].concat()),
            _ => inside.clone(),
        };
        match carrier {
            Carrier::Behind => (self.flow.proto, own(self.flow.dport, &int)),
            Carrier::Port(port) => (self.flow.proto, own(port, &int)),
            Carrier::NewUdp(port) => {
                let behind = [&int[..], &own(self.flow.dport, &[])].concat();
                (ipv4::PROTOCOL_UDP, build_udp_datagram(self.flow.sport ^ self.flow.dport, port, &behind))
            }
        }
    }

    /// Its payload, or the tunnel's header and packet.
    fn build_ip_payload(&self) -> Vec<u8> {
        let Some((kind, packet)) = &self.tunnel else { return self.payload.clone() };
        let mut out = Vec::new();
        match kind {
            TunnelKind::Vxlan(network) => {
                out.extend([8, 0, 0, 0]);
                out.extend((network << 8).to_be_bytes());
                packet.put_ethernet_frame(&mut out);
            }
            TunnelKind::Geneve(network) => {
                // One option of four bytes.
                out.extend([2, 0, 0x65, 0x58]);
                out.extend((network << 8).to_be_bytes());
                out.extend([1, 2, 3, 1, 0xde, 0xad, 0xbe, 0xef]);
                packet.put_ethernet_frame(&mut out);
            }
            TunnelKind::Gre(key) => {
                // With a checksum of zero, which nobody checks, if there is a key.
                let flags: u16 = if key.is_some() { 0xa000 } else { 0 };
                let ethertype = if packet.flow.src.is_ipv4() { 0x0800u16 } else { 0x86dd };
                out.extend([flags, ethertype].map(u16::to_be_bytes).as_flattened());
                out.extend(key.iter().flat_map(|key| [0, *key]).flat_map(u32::to_be_bytes));
                out.extend(packet.build_ip_packet());
            }
            TunnelKind::Erspan(session) => {
                // Type II.
                out.extend([0x10, 0, 0x88, 0xbe, 0, 0, 0, 1]);
                out.extend([0x1005, 0x1800 | session].map(u16::to_be_bytes).as_flattened());
                out.extend([0, 0, 0, 9]);
                packet.put_ethernet_frame(&mut out);
            }
            TunnelKind::MplsInUdp(label) => {
                out.extend([label << 12 | 64, 3 << 12 | 0x100 | 64].map(u32::to_be_bytes).as_flattened());
                out.extend(packet.build_ip_packet());
            }
            TunnelKind::Ip => out.extend(packet.build_ip_packet()),
            TunnelKind::GtpU(endpoint) => {
                let inner = packet.build_ip_packet();
                // With a sequence number and one extension header: the PDU session container.
                out.extend([0x36, 255]);
                out.extend(((inner.len() + 8) as u16).to_be_bytes());
                out.extend(endpoint.to_be_bytes());
                out.extend([0, 1, 0, 0x85, 1, 0x10, 1, 0]);
                out.extend(inner);
            }
        }
        out
    }
}

fn build_udp_datagram(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(source.to_be_bytes());
    out.extend(destination.to_be_bytes());
    out.extend(((payload.len() + 8) as u16).to_be_bytes());
    out.extend([0, 0]);
    out.extend(payload);
    out
}

fn build_tcp_segment(packet: &EmittedPacket, destination: u16, int: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(packet.flow.sport.to_be_bytes());
    out.extend(destination.to_be_bytes());
    out.extend([0; 8]);
    out.extend([(((20 + packet.tcp_options.len()) / 4) << 4) as u8, 0x10, 0x20, 0, 0, 0, 0, 0]);
    let (first, second) = if packet.int_before_options {
        (int, &packet.tcp_options[..])
    } else {
        (&packet.tcp_options[..], int)
    };
    out.extend(first);
    out.extend(second);
    out.extend(payload);
    out
}

impl Stack {
    /// From the shim to the end of INT.
    fn to_bytes(&self, flow: &Flow) -> Vec<u8> {
        let specified = Instructions::for_version(self.version);
        let instructions = match (self.version, self.variant) {
            (IntVersion::V10, Variant::ShortBit6) => specified.with_congestion(),
            (IntVersion::V10, Variant::WideTimes) => Instructions { wide: TIMES | BIT_6, ..specified },
            _ => specified,
        };
        let (domain, domain_instructions, domain_words) = self.domain;
        let hop_words = instructions.word_count(self.instructions) as u8 + domain_words;
        let mut stack = Vec::new();
        for hop in &self.hops {
            put_fields(&instructions, self.instructions, hop, self.halved_queue, &mut stack);
            stack.resize(stack.len() + usize::from(domain_words) * 4, 0xd5);
        }
        let hops = self.hops.len() as u8;
        let mut out = Vec::new();
        let words = (stack.len() / 4) as u8;
        match self.version {
            IntVersion::V05 => {
                let destination = if self.carrier == Carrier::Behind { 0 } else { flow.dport };
                out.extend([1, 0, words + 4, 0, 0, hop_words, 8, hops]);
                out.extend(self.instructions.to_be_bytes());
                out.extend([0, 0]);
                out.extend(&stack);
                out.push(flow.proto);
                out.extend(destination.to_be_bytes());
                out.push(0);
            }
            IntVersion::V10 => {
                out.extend([1, 0, words + 3, 0, 0x10, 0, hop_words, 8]);
                out.extend(self.instructions.to_be_bytes());
                out.extend([0, 0]);
                out.extend(&stack);
            }
            IntVersion::V21 => {
                let words = words + (self.source_only.len() / 4) as u8;
                let (next, parameter) = match self.carrier {
                    Carrier::Behind => (0, 0),
                    Carrier::Port(_) => (1, flow.dport),
                    Carrier::NewUdp(_) => (2, flow.proto.into()),
                };
                out.extend([1 << 4 | next << 2, words + 3]);
                out.extend(parameter.to_be_bytes());
                out.extend([0x20, 0, hop_words, 8]);
                out.extend(self.instructions.to_be_bytes());
                out.extend(domain.to_be_bytes());
                out.extend(domain_instructions.to_be_bytes());
                out.extend([0, 0]);
                out.extend(&stack);
                out.extend(&self.source_only);
            }
        }
        out
    }
}
