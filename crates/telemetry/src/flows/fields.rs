//! The elements in use, by number, and the values that a record has of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dta_proto::flow_record::{DIRECTION_EGRESS, FlowRecord, to_mapped_address};
use dta_proto::key::has_ports;
use dta_proto::trace::TraceName;

use super::FlowExportFormat;
use super::plan::Contents;
use super::sampling::SamplingScope;
use crate::exported::InterfaceName;
use crate::int::{self, ReportedPacket};

/// The most bytes and packets that a record may count: 800 Gb/s for 47 minutes.
pub(crate) const MOST_COUNTED: u64 = 1 << 48;

/// The enterprise of the elements of a flow's other direction (RFC 5103).
pub(crate) const REVERSE: u32 = 29305;
/// Seconds from 1900, from which NTP counts, to 1970.
const NTP_EPOCH: u64 = 2_208_988_800;
const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// How far uptimes in one datagram may disagree, in milliseconds.
const UPTIMES_DIFFER: u32 = 60_000;
/// A clock before this time, 13 days after its epoch, was never set.
const CLOCK_IS_SET: u64 = 1 << 50;
/// Forwarding status of a flow that an access list denied (RFC 7270 4.12).
const DENIED_BY_ACL: u8 = 129;

/// Units of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    Seconds,
    Milliseconds,
    /// NTP time: seconds since 1900 and their fraction.
    Ntp,
}

impl TimeUnit {
    /// Nanoseconds since 1970.
    fn to_nanoseconds(self, value: u64) -> u64 {
        match self {
            TimeUnit::Seconds => value.saturating_mul(SECOND),
            TimeUnit::Milliseconds => value.saturating_mul(MILLISECOND),
            TimeUnit::Ntp => {
                let fraction = ((value & 0xffff_ffff) * SECOND) >> 32;
                (value >> 32).checked_sub(NTP_EPOCH).map_or(0, |seconds| seconds * SECOND + fraction)
            }
        }
    }
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Bytes,
    Packets,
    /// For the flow's other direction.
    BackBytes,
    BackPackets,
    BackTcpFlags,
    Protocol,
    /// Type of service, or traffic class.
    Tos,
    Dscp,
    TcpFlags,
    SrcPort,
    DstPort,
    InIf,
    OutIf,
    SrcAs,
    DstAs,
    SrcIpv4,
    DstIpv4,
    NextHopIpv4,
    NatSrcIpv4,
    NatDstIpv4,
    SrcIpv6,
    DstIpv6,
    NextHopIpv6,
    NatSrcIpv6,
    NatDstIpv6,
    NatSrcPort,
    NatDstPort,
    NatEvent,
    FirewallEvent,
    InVlan,
    OutVlan,
    Vrf,
    Vni,
    MplsLabel,
    Direction,
    Forwarding,
    IcmpTypeCode,
    IcmpType,
    IcmpCode,
    /// Milliseconds since the exporter's start.
    StartUptime,
    EndUptime,
    /// Microseconds before the datagram was sent.
    StartAgo,
    EndAgo,
    Start(TimeUnit),
    End(TimeUnit),
    Observed(TimeUnit),
    /// When the exporter started, in milliseconds since 1970.
    BootTime,
    /// A packet's first bytes, from its Ethernet or IP header on.
    EthernetFrame,
    IpFrame,
    Sampler,
    /// One packet in this many.
    SamplingInterval,
    /// This many packets in a row are selected, then [`Target::SamplingSpace`] packets are not.
    SamplingRow,
    SamplingSpace,
    /// This many packets are selected out of [`Target::SamplingPopulation`].
    SamplingSize,
    SamplingPopulation,
    SamplingProbability,
    /// The domain that options describe.
    ScopeDomain,
    InterfaceName,
    InterfaceDescription,
}

impl Target {
    /// Where an element goes, and its rank there: of the values that are not 0, the lowest in rank is taken. `None` if unused.
    pub(crate) fn from_element(
        enterprise: u32,
        number: u16,
        format: FlowExportFormat,
    ) -> Option<(u8, Target)> {
        use Target as T;
        match enterprise {
            0 => {}
            REVERSE => {
                return Some(match number {
                    1 => (0, T::BackBytes),
                    2 => (0, T::BackPackets),
                    6 => (0, T::BackTcpFlags),
                    23 => (1, T::BackBytes),
                    24 => (1, T::BackPackets),
                    352 => (3, T::BackBytes),
                    85 => (4, T::BackBytes),
                    86 => (4, T::BackPackets),
                    _ => return None,
                });
            }
            _ => return None,
        }
        Some(match number {
            // Since the last record; behind the exporter; of layer 2; since the flow's first record.
            1 => (0, T::Bytes),
            2 => (0, T::Packets),
            23 => (1, T::Bytes),
            24 => (1, T::Packets),
            // Of the initiator and the responder of a session, by firewalls.
            231 => (2, T::Bytes),
            298 => (2, T::Packets),
            232 => (2, T::BackBytes),
            299 => (2, T::BackPackets),
            352 => (3, T::Bytes),
            85 => (4, T::Bytes),
            86 => (4, T::Packets),
            171 => (5, T::Bytes),
            172 => (5, T::Packets),
            353 => (6, T::Bytes),
            4 => (0, T::Protocol),
            5 => (1, T::Tos),
            195 => (0, T::Dscp),
            6 => (0, T::TcpFlags),
            7 => (0, T::SrcPort),
            11 => (0, T::DstPort),
            // Of UDP and TCP only.
            180 | 182 => (1, T::SrcPort),
            181 | 183 => (1, T::DstPort),
            8 => (0, T::SrcIpv4),
            12 => (0, T::DstIpv4),
            27 => (0, T::SrcIpv6),
            28 => (0, T::DstIpv6),
            10 => (0, T::InIf),
            14 => (0, T::OutIf),
            252 => (1, T::InIf),
            253 => (1, T::OutIf),
            16 => (0, T::SrcAs),
            17 => (0, T::DstAs),
            15 => (0, T::NextHopIpv4),
            62 => (0, T::NextHopIpv6),
            18 => (1, T::NextHopIpv4),
            63 => (1, T::NextHopIpv6),
            21 => (0, T::EndUptime),
            22 => (0, T::StartUptime),
            150 => (0, T::Start(TimeUnit::Seconds)),
            151 => (0, T::End(TimeUnit::Seconds)),
            152 => (0, T::Start(TimeUnit::Milliseconds)),
            153 => (0, T::End(TimeUnit::Milliseconds)),
            154 | 156 => (0, T::Start(TimeUnit::Ntp)),
            155 | 157 => (0, T::End(TimeUnit::Ntp)),
            158 => (0, T::StartAgo),
            159 => (0, T::EndAgo),
            160 => (0, T::BootTime),
            322 => (7, T::Observed(TimeUnit::Seconds)),
            323 => (7, T::Observed(TimeUnit::Milliseconds)),
            324 | 325 => (7, T::Observed(TimeUnit::Ntp)),
            32 | 139 => (0, T::IcmpTypeCode),
            176 | 178 => (0, T::IcmpType),
            177 | 179 => (0, T::IcmpCode),
            58 => (0, T::InVlan),
            59 => (0, T::OutVlan),
            243 => (1, T::InVlan),
            254 => (1, T::OutVlan),
            61 => (0, T::Direction),
            70 => (0, T::MplsLabel),
            89 => (0, T::Forwarding),
            234 => (0, T::Vrf),
            351 => (0, T::Vni),
            225 => (0, T::NatSrcIpv4),
            226 => (0, T::NatDstIpv4),
            281 => (0, T::NatSrcIpv6),
            282 => (0, T::NatDstIpv6),
            227 => (0, T::NatSrcPort),
            228 => (0, T::NatDstPort),
            230 => (0, T::NatEvent),
            233 => (0, T::FirewallEvent),
            // The same before ASA 8.4.
            40001 if format == FlowExportFormat::V9 => (1, T::NatSrcIpv4),
            40002 if format == FlowExportFormat::V9 => (1, T::NatDstIpv4),
            40003 if format == FlowExportFormat::V9 => (1, T::NatSrcPort),
            40004 if format == FlowExportFormat::V9 => (1, T::NatDstPort),
            40005 if format == FlowExportFormat::V9 => (1, T::FirewallEvent),
            104 | 315 => (0, T::EthernetFrame),
            313 => (0, T::IpFrame),
            48 | 302 => (0, T::Sampler),
            34 | 50 => (0, T::SamplingInterval),
            305 => (0, T::SamplingRow),
            306 => (0, T::SamplingSpace),
            309 => (0, T::SamplingSize),
            310 => (0, T::SamplingPopulation),
            311 => (0, T::SamplingProbability),
            149 => (0, T::ScopeDomain),
            82 => (0, T::InterfaceName),
            83 => (0, T::InterfaceDescription),
            _ => return None,
        })
    }

    /// As [`Target::from_element`], for the scope of a NetFlow v9 option, which has its own numbers.
    pub(crate) fn from_v9_scope(number: u16) -> Option<(u8, Target)> {
        (number == 2).then_some((0, Target::InIf))
    }

    /// Whether a value may have this many bytes.
    pub(crate) fn can_have_length(self, len: usize) -> bool {
        use Target as T;
        match self {
            T::SrcIpv4 | T::DstIpv4 | T::NextHopIpv4 | T::NatSrcIpv4 | T::NatDstIpv4 => len == 4,
            T::SrcIpv6 | T::DstIpv6 | T::NextHopIpv6 | T::NatSrcIpv6 | T::NatDstIpv6 => len == 16,
            T::EthernetFrame | T::IpFrame | T::InterfaceName | T::InterfaceDescription => len != 0,
            T::Start(TimeUnit::Ntp) | T::End(TimeUnit::Ntp) | T::Observed(TimeUnit::Ntp) => len == 8,
            _ => matches!(len, 1..=8),
        }
    }
}

/// The fields of a NetFlow v5 record: where they are, and their lengths.
const V5_FIELDS: [(Target, usize, usize); 16] = [
    (Target::SrcIpv4, 0, 4),
    (Target::DstIpv4, 4, 4),
    (Target::NextHopIpv4, 8, 4),
    (Target::InIf, 12, 2),
    (Target::OutIf, 14, 2),
    (Target::Packets, 16, 4),
    (Target::Bytes, 20, 4),
    (Target::StartUptime, 24, 4),
    (Target::EndUptime, 28, 4),
    (Target::SrcPort, 32, 2),
    (Target::DstPort, 34, 2),
    (Target::TcpFlags, 37, 1),
    (Target::Protocol, 38, 1),
    (Target::Tos, 39, 1),
    (Target::SrcAs, 40, 2),
    (Target::DstAs, 42, 2),
];

/// What the records of a datagram have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExportContext {
    pub(crate) exporter: Ipv6Addr,
    pub(crate) domain: u32,
    /// Nanoseconds since 1970, like all times without a unit.
    pub(crate) received: u64,
    /// When the datagram was sent, by the exporter's clock.
    pub(crate) sent: u64,
    /// Milliseconds since the exporter's start at that time.
    pub(crate) uptime: Option<u32>,
    /// When the exporter started, if options said so.
    pub(crate) boot: u64,
}

impl ExportContext {
    /// When the datagram was sent, or when it arrived if the exporter's clock was never set.
    fn time_of_sending(&self) -> u64 {
        if self.sent < CLOCK_IS_SET { self.received } else { self.sent }
    }

    /// Converts an uptime to a time by the exporter's clock; 0 if that is not known.
    #[inline]
    pub(crate) fn uptime_to_wall_clock(&self, time: u32) -> u64 {
        let Some(uptime) = self.uptime else {
            return if self.boot == 0 { 0 } else { self.boot.saturating_add(u64::from(time) * MILLISECOND) };
        };
        let (sent, ahead) = (self.time_of_sending(), time.wrapping_sub(uptime));
        match ahead < UPTIMES_DIFFER {
            true => sent + u64::from(ahead) * MILLISECOND,
            false => sent.saturating_sub(u64::from(uptime.wrapping_sub(time)) * MILLISECOND),
        }
    }
}

/// The values that a record has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    record: FlowRecord,
    back_bytes: u64,
    back_packets: u64,
    back_tcp_flags: u8,
    /// Whether a count was larger than [`MOST_COUNTED`].
    has_implausible_count: bool,
    icmp_type: u8,
    icmp_code: u8,
    pub(crate) firewall_event: u8,
    start_uptime: Option<u32>,
    end_uptime: Option<u32>,
    start_ago: Option<u32>,
    end_ago: Option<u32>,
    boot: u64,
    frame: Option<(bool, &'a [u8])>,
    sampler: u64,
    interval: u64,
    row: u64,
    space: u64,
    size: u64,
    population: u64,
    probability: f64,
    scope_domain: u32,
    name: &'a [u8],
    description: &'a [u8],
}

/// Why fields do not make a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRecord {
    /// No addresses, or no counts other than 0.
    NoFlow,
    Implausible,
}

/// A big-endian number of 1 to 8 bytes.
#[inline(always)]
fn read_number(bytes: &[u8], at: usize, len: usize) -> u64 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(chunk) => u64::from_be_bytes(*chunk) >> ((8 - len) * 8),
        None => read_last_number(bytes, at, len),
    }
}

/// As [`read_number`], near the end of the bytes.
#[cold]
fn read_last_number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes.get(at..at + len).unwrap_or(&[]).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[inline(always)]
fn fill_number<T: TryFrom<u64> + Default + PartialEq>(place: &mut T, number: u64) {
    if *place == T::default() {
        *place = T::try_from(number).unwrap_or_default();
    }
}

#[inline(always)]
fn fill_ipv4(place: &mut Ipv6Addr, bytes: &[u8], at: usize) {
    if let Some(octets) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>())
        && *octets != [0; 4]
        && place.is_unspecified()
    {
        *place = Ipv4Addr::from(*octets).to_ipv6_mapped();
    }
}

#[inline(always)]
fn fill_ipv6(place: &mut Ipv6Addr, bytes: &[u8], at: usize) {
    if let Some(octets) = bytes.get(at..).and_then(|rest| rest.first_chunk::<16>())
        && place.is_unspecified()
    {
        *place = Ipv6Addr::from(*octets);
    }
}

/// A text in options, without its padding.
fn read_name(bytes: &[u8]) -> Option<TraceName> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches('\0').trim();
    (!text.is_empty()).then(|| TraceName::new(text))
}

impl<'a> Fields<'a> {
    pub(crate) const EMPTY: Fields<'static> = Fields {
        record: FlowRecord::EMPTY,
        back_bytes: 0,
        back_packets: 0,
        back_tcp_flags: 0,
        has_implausible_count: false,
        icmp_type: 0,
        icmp_code: 0,
        firewall_event: 0,
        start_uptime: None,
        end_uptime: None,
        start_ago: None,
        end_ago: None,
        boot: 0,
        frame: None,
        sampler: 0,
        interval: 0,
        row: 0,
        space: 0,
        size: 0,
        population: 0,
        probability: 0.0,
        scope_domain: 0,
        name: &[],
        description: &[],
    };

    /// The fields at the start of `bytes`.
    pub(crate) fn from_v5_record(bytes: &'a [u8]) -> Fields<'a> {
        let mut fields = Fields::EMPTY;
        V5_FIELDS.iter().for_each(|(target, at, len)| fields.take_value(*target, bytes, *at, *len));
        fields
    }

    /// Takes a value if its field is still empty. Its length is one that [`Target::can_have_length`] allows.
    #[inline(always)] // for each value of each record
    pub(crate) fn take_value(&mut self, target: Target, bytes: &'a [u8], at: usize, len: usize) {
        use Target as T;
        let number = || read_number(bytes, at, len);
        let slice = || bytes.get(at..at + len).unwrap_or(&[]);
        let record = &mut self.record;
        match target {
            T::Bytes => {
                let count = number();
                self.has_implausible_count |= count > MOST_COUNTED;
                fill_number(&mut record.bytes, if count > MOST_COUNTED { 0 } else { count });
            }
            T::Packets => {
                let count = number();
                self.has_implausible_count |= count > MOST_COUNTED;
                fill_number(&mut record.packets, if count > MOST_COUNTED { 0 } else { count });
            }
            T::BackBytes => fill_number(&mut self.back_bytes, number()),
            T::BackPackets => fill_number(&mut self.back_packets, number()),
            T::BackTcpFlags => fill_number(&mut self.back_tcp_flags, number() & 0xff),
            T::Protocol => fill_number(&mut record.protocol, number()),
            T::Tos => fill_number(&mut record.dscp, number() >> 2 & 0x3f),
            T::Dscp => fill_number(&mut record.dscp, number() & 0x3f),
            T::TcpFlags => fill_number(&mut record.tcp_flags, number() & 0xff),
            T::SrcPort => fill_number(&mut record.src_port, number()),
            T::DstPort => fill_number(&mut record.dst_port, number()),
            T::InIf => fill_number(&mut record.in_if, number()),
            T::OutIf => fill_number(&mut record.out_if, number()),
            T::SrcAs => fill_number(&mut record.src_as, number()),
            T::DstAs => fill_number(&mut record.dst_as, number()),
            T::SrcIpv4 => fill_ipv4(&mut record.src, bytes, at),
            T::DstIpv4 => fill_ipv4(&mut record.dst, bytes, at),
            T::NextHopIpv4 => fill_ipv4(&mut record.next_hop, bytes, at),
            T::NatSrcIpv4 => fill_ipv4(&mut record.nat_src, bytes, at),
            T::NatDstIpv4 => fill_ipv4(&mut record.nat_dst, bytes, at),
            T::SrcIpv6 => fill_ipv6(&mut record.src, bytes, at),
            T::DstIpv6 => fill_ipv6(&mut record.dst, bytes, at),
            T::NextHopIpv6 => fill_ipv6(&mut record.next_hop, bytes, at),
            T::NatSrcIpv6 => fill_ipv6(&mut record.nat_src, bytes, at),
            T::NatDstIpv6 => fill_ipv6(&mut record.nat_dst, bytes, at),
            T::NatSrcPort => fill_number(&mut record.nat_src_port, number()),
            T::NatDstPort => fill_number(&mut record.nat_dst_port, number()),
            T::NatEvent => fill_number(&mut record.nat_event, number()),
            T::FirewallEvent => fill_number(&mut self.firewall_event, number()),
            T::InVlan => fill_number(&mut record.in_vlan, number() & 0xfff),
            T::OutVlan => fill_number(&mut record.out_vlan, number() & 0xfff),
            T::Vrf => fill_number(&mut record.vrf, number()),
            // The first of 8 bytes says which kind of network it is.
            T::Vni => fill_number(&mut record.vni, number() & 0xffff_ffff),
            // The label is followed by its class and by whether it is the last.
            T::MplsLabel => fill_number(&mut record.mpls_label, number() >> 4),
            T::Direction => fill_number(&mut record.direction, if number() < 2 { number() + 1 } else { 0 }),
            T::Forwarding => fill_number(&mut record.forwarding, number() & 0xff),
            T::IcmpTypeCode => fill_number(&mut record.icmp, number()),
            T::IcmpType => fill_number(&mut self.icmp_type, number()),
            T::IcmpCode => fill_number(&mut self.icmp_code, number()),
            T::StartUptime => self.start_uptime = u32::try_from(number()).ok(),
            T::EndUptime => self.end_uptime = u32::try_from(number()).ok(),
            T::StartAgo => self.start_ago = u32::try_from(number()).ok(),
            T::EndAgo => self.end_ago = u32::try_from(number()).ok(),
            T::Start(unit) => fill_number(&mut record.start, unit.to_nanoseconds(number())),
            T::End(unit) => fill_number(&mut record.end, unit.to_nanoseconds(number())),
            T::Observed(unit) => {
                let time = unit.to_nanoseconds(number());
                fill_number(&mut record.start, time);
                fill_number(&mut record.end, time);
            }
            T::BootTime => fill_number(&mut self.boot, number().saturating_mul(MILLISECOND)),
            T::EthernetFrame => self.frame = self.frame.or(Some((true, slice()))),
            T::IpFrame => self.frame = self.frame.or(Some((false, slice()))),
            T::Sampler => fill_number(&mut self.sampler, number()),
            T::SamplingInterval => fill_number(&mut self.interval, number()),
            T::SamplingRow => fill_number(&mut self.row, number()),
            T::SamplingSpace => fill_number(&mut self.space, number()),
            T::SamplingSize => fill_number(&mut self.size, number()),
            T::SamplingPopulation => fill_number(&mut self.population, number()),
            T::SamplingProbability => {
                self.probability = match len {
                    8 => f64::from_bits(number()),
                    4 => f32::from_bits(number() as u32).into(),
                    _ => 0.0,
                }
            }
            T::ScopeDomain => fill_number(&mut self.scope_domain, number()),
            T::InterfaceName => self.name = slice(),
            T::InterfaceDescription => self.description = slice(),
        }
    }

    /// One packet in how many was counted, if these fields give a rate; 0 is none.
    #[inline]
    pub(crate) fn sampling_rate(&self) -> Option<u32> {
        if self.interval == 0 && self.row == 0 && self.size == 0 && self.probability == 0.0 {
            return None;
        }
        let of_interval = (self.interval != 0).then_some(self.interval);
        let rate = of_interval
            .or_else(|| self.row.saturating_add(self.space).checked_div(self.row))
            .or_else(|| self.population.checked_div(self.size))
            .unwrap_or_else(|| (1.0 / self.probability).round() as u64);
        (rate != 0).then(|| u32::try_from(rate).unwrap_or(u32::MAX))
    }

    /// What the sampling rate in options applies to.
    pub(crate) fn sampling_scope(&self) -> SamplingScope {
        match (self.sampler, self.record.in_if | self.record.out_if) {
            (0, 0) => SamplingScope::Domain,
            (0, _) => SamplingScope::Interface(if self.record.in_if != 0 {
                self.record.in_if
            } else {
                self.record.out_if
            }),
            (sampler, _) => SamplingScope::Sampler(sampler),
        }
    }

    /// The sampler that a record names; 0 = none, or the one with number 0.
    pub(crate) fn sampler(&self) -> u64 {
        self.sampler
    }

    /// Interfaces where the flow was counted, the likelier first.
    pub(crate) fn interfaces(&self) -> [u32; 2] {
        let FlowRecord { in_if, out_if, direction, .. } = self.record;
        if direction == DIRECTION_EGRESS { [out_if, in_if] } else { [in_if, out_if] }
    }

    /// The domain that options describe; 0 = their own.
    pub(crate) fn scope_domain(&self) -> u32 {
        self.scope_domain
    }

    /// When the exporter started, if options say so.
    pub(crate) fn boot_time(&self) -> Option<u64> {
        (self.boot != 0).then_some(self.boot)
    }

    /// The name of an interface, if an options record has one.
    pub(crate) fn interface_name(&self, exporter: IpAddr) -> Option<InterfaceName> {
        let interface = [self.record.in_if, self.record.out_if].into_iter().find(|number| *number != 0)?;
        let name = read_name(self.name).or_else(|| read_name(self.description))?;
        Some(InterfaceName { exporter, interface, name })
    }

    /// The record that these fields make, and the one for the flow's other direction.
    #[inline]
    pub(crate) fn finish_records(
        &mut self,
        has: &Contents,
        context: &ExportContext,
        sampling_rate: u32,
    ) -> Result<(&FlowRecord, Option<FlowRecord>), NoRecord> {
        let (mut has_addresses, mut has_counts) = (has.src && has.dst, has.counts);
        if let Some((is_ethernet, frame)) = self.frame {
            let packet = if is_ethernet { int::packet_in_ethernet(frame) } else { int::packet_in_ip(frame) };
            let packet = packet.map_err(|_| NoRecord::NoFlow)?;
            fill_from_packet(&mut self.record, &packet);
            (has_addresses, has_counts) = (true, true);
        }
        let record = &mut self.record;
        if self.has_implausible_count && (record.bytes == 0 || record.packets == 0) {
            return Err(NoRecord::Implausible);
        }
        if self.firewall_event == 3 {
            record.forwarding = DENIED_BY_ACL;
        }
        let is_event = record.nat_event != 0 || self.firewall_event == 3;
        if !(has_addresses && has_counts || is_event && has.src) {
            return Err(NoRecord::NoFlow);
        }
        // Some exporters send a record for the direction that carried nothing.
        if !is_event && record.packets | record.bytes | self.back_packets | self.back_bytes == 0 {
            return Err(NoRecord::NoFlow);
        }
        if has.ipv4 {
            name_zero_address(record, has);
        }
        if record.start == 0 {
            record.start = self.start_uptime.map_or(0, |time| context.uptime_to_wall_clock(time));
        }
        if record.end == 0 {
            record.end = self.end_uptime.map_or(0, |time| context.uptime_to_wall_clock(time));
        }
        if self.start_ago.is_some() || self.end_ago.is_some() {
            let time = |ago: Option<u32>| {
                ago.map_or(0, |ago| context.time_of_sending().saturating_sub(u64::from(ago) * 1000))
            };
            fill_number(&mut record.start, time(self.start_ago));
            fill_number(&mut record.end, time(self.end_ago));
        }
        if !has_ports(record.protocol) {
            if matches!(record.protocol, 1 | 58) {
                fill_number(&mut record.icmp, u64::from(self.icmp_type) << 8 | u64::from(self.icmp_code));
                fill_number(&mut record.icmp, record.dst_port.into());
            }
            (record.src_port, record.dst_port) = (0, 0);
        }
        record.received = context.received;
        record.exporter = context.exporter;
        record.domain = context.domain;
        record.sampling_rate = sampling_rate;
        let mut back = None;
        if self.back_bytes | self.back_packets != 0
            && self.back_bytes <= MOST_COUNTED
            && self.back_packets <= MOST_COUNTED
        {
            back = Some(FlowRecord {
                bytes: self.back_bytes,
                packets: self.back_packets,
                tcp_flags: self.back_tcp_flags,
                ..reversed_record(record)
            });
        }
        Ok((&self.record, back))
    }
}

/// If a record has elements of both families, those of one are 0: then 0.0.0.0 is an IPv4 address only if the other address is one, too.
fn name_zero_address(record: &mut FlowRecord, has: &Contents) {
    let zero = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
    let is_ipv4 =
        !has.ipv6 || [record.src, record.dst].iter().any(|address| address.to_ipv4_mapped().is_some());
    if is_ipv4 && has.src && record.src.is_unspecified() {
        record.src = zero;
    }
    if is_ipv4 && has.dst && record.dst.is_unspecified() {
        record.dst = zero;
    }
}

/// A record for the other direction of the flow, with nothing counted yet.
fn reversed_record(record: &FlowRecord) -> FlowRecord {
    FlowRecord {
        src: record.dst,
        dst: record.src,
        src_port: record.dst_port,
        dst_port: record.src_port,
        in_if: record.out_if,
        out_if: record.in_if,
        src_as: record.dst_as,
        dst_as: record.src_as,
        in_vlan: record.out_vlan,
        out_vlan: record.in_vlan,
        next_hop: Ipv6Addr::UNSPECIFIED,
        nat_src: record.nat_dst,
        nat_dst: record.nat_src,
        nat_src_port: record.nat_dst_port,
        nat_dst_port: record.nat_src_port,
        ..*record
    }
}

/// Fills in what a packet's headers say (in a tunnel, those of the inner packet). Counts one packet, unless the record counted more.
pub(crate) fn fill_from_packet(record: &mut FlowRecord, packet: &ReportedPacket<'_>) {
    let flow = packet.inner_flow();
    record.src = to_mapped_address(flow.src);
    record.dst = to_mapped_address(flow.dst);
    (record.src_port, record.dst_port, record.protocol) = (flow.sport, flow.dport, flow.proto);
    fill_number(&mut record.packets, 1);
    fill_number(&mut record.bytes, u64::from(packet.headers.length) * record.packets);
    fill_number(&mut record.dscp, packet.headers.dscp.into());
    fill_number(&mut record.tcp_flags, packet.headers.tcp_flags.into());
    fill_number(&mut record.icmp, packet.headers.icmp.into());
    fill_number(&mut record.in_vlan, packet.tags.vlan.into());
    fill_number(&mut record.mpls_label, packet.tags.mpls_label.into());
    fill_number(&mut record.vni, packet.tunnel.map_or(0, |tunnel| tunnel.kind.identifier()).into());
}
