//! The fields of templates that are used, by their numbers, which NetFlow v9 and IPFIX share.

use std::net::IpAddr;

use dta_proto::flow_record::{DIRECTION_EGRESS, DIRECTION_INGRESS, FlowRecord, to_mapped_address};
use dta_proto::key::has_ports;
use dta_proto::trace::TraceName;
use netflow_parser::variable_versions::field_value::DurationValue;
use netflow_parser::variable_versions::ipfix::lookup::{
    IANAIPFixField as Iana, IPFixField, ReverseInformationElement,
};
use netflow_parser::{DataNumber, FieldValue};

use crate::exported::InterfaceName;
use crate::flows::domain::ExportTime;

/// What was read of a record.
#[derive(Default)]
pub(crate) struct FlowRecordFields {
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    sport: u16,
    dport: u16,
    proto: u8,
    packets: Option<u64>,
    bytes: Option<u64>,
    /// As counted where the flow leaves, which some exporters send instead.
    post: [Option<u64>; 2],
    /// Of the other direction of a flow (RFC 5103).
    reverse: [Option<u64>; 2],
    ingress: Option<u32>,
    egress: Option<u32>,
    direction: u8,
    /// When the flow began and ended: milliseconds since the exporter's start, or nanoseconds since 1970.
    uptimes: [Option<u32>; 2],
    times: [Option<u64>; 2],
    /// Of an interface, in options.
    name: Option<String>,
    /// Which sampler selected the packets.
    pub(crate) sampler: Option<u64>,
    /// One packet in so many.
    interval: Option<u64>,
    /// So many packets in a row are selected, then so many are not.
    row: Option<u64>,
    space: Option<u64>,
    /// So many packets are selected of so many.
    size: Option<u64>,
    population: Option<u64>,
}

impl FlowRecordFields {
    /// Takes a field by its number.
    pub(crate) fn take(&mut self, number: u16, value: &FieldValue) {
        let as_u16 = |value| number_of(value).and_then(|number| u16::try_from(number).ok()).unwrap_or(0);
        match number {
            1 => self.bytes = number_of(value),
            2 => self.packets = number_of(value),
            4 => self.proto = number_of(value).and_then(|number| u8::try_from(number).ok()).unwrap_or(0),
            7 => self.sport = as_u16(value),
            8 | 27 => fill_address(&mut self.src, value),
            10 => self.ingress = interface_index(number_of(value)),
            11 => self.dport = as_u16(value),
            12 | 28 => fill_address(&mut self.dst, value),
            14 => self.egress = interface_index(number_of(value)),
            21 => self.uptimes[1] = uptime_millis(value),
            22 => self.uptimes[0] = uptime_millis(value),
            23 => self.post[1] = number_of(value),
            24 => self.post[0] = number_of(value),
            34 | 50 => self.interval = number_of(value),
            48 | 302 => self.sampler = number_of(value),
            61 => {
                self.direction = match number_of(value) {
                    Some(0) => DIRECTION_INGRESS,
                    Some(1) => DIRECTION_EGRESS,
                    _ => 0,
                }
            }
            82 => self.name = String::try_from(value).ok().filter(|name| !name.is_empty()),
            83 if self.name.is_none() => {
                self.name = String::try_from(value).ok().filter(|name| !name.is_empty())
            }
            150 | 152 | 154 | 156 => self.times[0] = since_1970(value),
            151 | 153 | 155 | 157 => self.times[1] = since_1970(value),
            305 => self.row = number_of(value),
            306 => self.space = number_of(value),
            309 => self.size = number_of(value),
            310 => self.population = number_of(value),
            _ => {}
        }
    }

    /// Takes a field of IPFIX.
    pub(crate) fn take_ipfix(&mut self, field: IPFixField, value: &FieldValue) {
        match field {
            IPFixField::IANA(field) => self.take(number_in_iana(field), value),
            IPFixField::ReverseInformationElement(field) => match field {
                ReverseInformationElement::ReversePacketDeltaCount => self.reverse[0] = number_of(value),
                ReverseInformationElement::ReverseOctetDeltaCount => self.reverse[1] = number_of(value),
                _ => {}
            },
            _ => {}
        }
    }

    /// One packet in how many was counted, if it is said here.
    pub(crate) fn sampling_rate(&self) -> Option<u32> {
        let of_row = || {
            let (row, space) = (self.row.filter(|row| *row != 0)?, self.space?);
            Some(row.saturating_add(space) / row)
        };
        let of_size = || Some(self.population? / self.size.filter(|size| *size != 0)?);
        let rate = self.interval.or_else(of_row).or_else(of_size)?;
        Some(u32::try_from(rate).unwrap_or(u32::MAX).max(1))
    }

    /// Takes the interface that a record of options is about.
    pub(crate) fn take_interface(&mut self, number: &[u8]) {
        self.ingress = interface_index(big_endian(number));
    }

    /// The name of an interface, if a record of options has one.
    pub(crate) fn interface_name(&self, exporter: IpAddr) -> Option<InterfaceName> {
        let (interface, name) = (self.ingress.or(self.egress)?, self.name.as_ref()?);
        Some(InterfaceName { exporter, interface, name: TraceName::new(name) })
    }

    /// The records that these fields are: one, or two of a flow with both directions. `None` if they are none.
    pub(crate) fn to_records(
        &self,
        domain: u32,
        sampling: u32,
        time: &ExportTime,
    ) -> Option<(FlowRecord, Option<FlowRecord>)> {
        let (src, dst) = (self.src?, self.dst?);
        let (packets, bytes) = (self.packets.or(self.post[0])?, self.bytes.or(self.post[1])?);
        let [start, end] = [0, 1].map(|at| {
            let since_boot = || Some(time.uptime_to_wall_clock(self.uptimes[at]?));
            self.times[at].or_else(since_boot).unwrap_or(0)
        });
        let mut record = FlowRecord {
            received: time.received,
            start,
            end,
            bytes,
            packets,
            exporter: time.exporter,
            src: to_mapped_address(src),
            dst: to_mapped_address(dst),
            domain,
            in_if: self.ingress.unwrap_or(0),
            out_if: self.egress.unwrap_or(0),
            sampling_rate: sampling,
            protocol: self.proto,
            direction: self.direction,
            ..FlowRecord::EMPTY
        };
        fill_ports(&mut record, [self.sport, self.dport]);
        let back = match self.reverse {
            [Some(packets), Some(bytes)] if packets != 0 => Some(FlowRecord {
                src: record.dst,
                dst: record.src,
                src_port: record.dst_port,
                dst_port: record.src_port,
                in_if: record.out_if,
                out_if: record.in_if,
                packets,
                bytes,
                ..record
            }),
            _ => None,
        };
        Some((record, back))
    }
}

/// Fills in the ports, or what some exporters send in their place for protocols that have none.
pub(crate) fn fill_ports(record: &mut FlowRecord, ports: [u16; 2]) {
    match record.protocol {
        protocol if has_ports(protocol) => [record.src_port, record.dst_port] = ports,
        1 | 58 => record.icmp = ports[1],
        _ => {}
    }
}

/// An interface; 0 is none.
fn interface_index(number: Option<u64>) -> Option<u32> {
    number.and_then(|number| u32::try_from(number).ok()).filter(|port| *port != 0)
}

/// Milliseconds since the exporter's start.
fn uptime_millis(value: &FieldValue) -> Option<u32> {
    match value {
        FieldValue::Duration(DurationValue::Millis { value, .. }) => u32::try_from(*value).ok(),
        _ => None,
    }
}

/// Nanoseconds since 1970.
fn since_1970(value: &FieldValue) -> Option<u64> {
    /// Seconds from 1900, from which NTP counts.
    const NTP: u64 = 2_208_988_800;
    let FieldValue::Duration(duration) = value else { return None };
    let since = match duration {
        DurationValue::MicrosNtp { .. } | DurationValue::NanosNtp { .. } => NTP,
        DurationValue::Seconds { .. } | DurationValue::Millis { .. } => 0,
    };
    let time = duration.as_duration().checked_sub(std::time::Duration::from_secs(since))?;
    u64::try_from(time.as_nanos()).ok()
}

/// A template may have fields for both families, of which one is zero.
fn fill_address(into: &mut Option<IpAddr>, value: &FieldValue) {
    if into.is_none_or(|known| known.is_unspecified())
        && let Ok(address) = IpAddr::try_from(value)
    {
        *into = Some(address);
    }
}

/// A number of any length up to 8 bytes.
fn number_of(value: &FieldValue) -> Option<u64> {
    match value {
        FieldValue::DataNumber(DataNumber::Vec(bytes)) | FieldValue::Vec(bytes) => big_endian(bytes),
        FieldValue::DataNumber(number) => number.as_u64(),
        FieldValue::ProtocolType(protocol) => Some(u8::from(*protocol).into()),
        _ => None,
    }
}

fn big_endian(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8).then(|| bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

/// The number of a field that [`FlowRecordFields::take`] knows; the crate keeps only names.
fn number_in_iana(field: Iana) -> u16 {
    match field {
        Iana::OctetDeltaCount => 1,
        Iana::PacketDeltaCount => 2,
        Iana::ProtocolIdentifier => 4,
        Iana::SourceTransportPort => 7,
        Iana::SourceIpv4address => 8,
        Iana::IngressInterface => 10,
        Iana::DestinationTransportPort => 11,
        Iana::DestinationIpv4address => 12,
        Iana::EgressInterface => 14,
        Iana::PostOctetDeltaCount => 23,
        Iana::PostPacketDeltaCount => 24,
        Iana::SourceIpv6address => 27,
        Iana::DestinationIpv6address => 28,
        Iana::SamplingInterval => 34,
        Iana::SamplerId => 48,
        Iana::SamplerRandomInterval => 50,
        Iana::FlowDirection => 61,
        Iana::InterfaceName => 82,
        Iana::InterfaceDescription => 83,
        Iana::FlowStartSeconds => 150,
        Iana::FlowEndSeconds => 151,
        Iana::FlowStartMilliseconds => 152,
        Iana::FlowEndMilliseconds => 153,
        Iana::FlowStartMicroseconds => 154,
        Iana::FlowEndMicroseconds => 155,
        Iana::FlowStartNanoseconds => 156,
        Iana::FlowEndNanoseconds => 157,
        Iana::SelectorId => 302,
        Iana::SamplingPacketInterval => 305,
        Iana::SamplingPacketSpace => 306,
        Iana::SamplingSize => 309,
        Iana::SamplingPopulation => 310,
        _ => 0,
    }
}
