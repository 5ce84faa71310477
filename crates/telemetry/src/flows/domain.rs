//! One source: its templates, sampling rates and sequence numbers.

use std::net::{IpAddr, Ipv6Addr};

use dta_proto::counter::FlowReason;
use dta_proto::counter::gaps::GapCounters;
use dta_proto::flow_record::{FlowRecord, to_mapped_address};
use netflow_parser::static_versions::v5::V5;
use netflow_parser::variable_versions::{ipfix, v9};
use netflow_parser::{NetflowPacket, NetflowParser};

use crate::exported::Exported;
use crate::flows::record::{self, FlowRecordFields};
use crate::flows::sampling::Samplers;
use crate::flows::sequence::Sequence;
use crate::flows::{FlowExportFormat, FlowExportSource};
use crate::reports::ArrivalTime;

/// Most templates of one source, and fields of one template.
const TEMPLATES: usize = 32;
const FIELDS: usize = 128;
/// More records than a datagram has: what a set has of them is not cut short.
const RECORDS: usize = 1 << 16;

/// What every datagram says of itself.
pub(crate) struct FlowExportHeader {
    pub(crate) source: FlowExportSource,
    sequence: u32,
    /// Milliseconds since the exporter's start, and nanoseconds since 1970: when it sent the datagram.
    sent: Option<(u32, u64)>,
}

impl FlowExportHeader {
    /// Reads the first bytes.
    pub(crate) fn parse_payload(exporter: IpAddr, payload: &[u8]) -> Result<FlowExportHeader, FlowReason> {
        let word =
            |at: usize| payload.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
        let both = |sequence, domain| word(sequence).zip(word(domain)).ok_or(FlowReason::Malformed);
        let seconds = |at: usize| Some(u64::from(word(at)?) * 1_000_000_000);
        let (format, (sequence, domain), sent) = match payload {
            [0, 5, ..] => {
                let (sequence, engine) = both(16, 20)?;
                let sent = seconds(8).zip(word(12)).map(|(seconds, rest)| seconds + u64::from(rest));
                (FlowExportFormat::V5, (sequence, engine >> 16), word(4).zip(sent))
            }
            [0, 9, ..] => (FlowExportFormat::V9, both(12, 16)?, word(4).zip(seconds(8))),
            [0, 10, ..] => (FlowExportFormat::Ipfix, both(8, 12)?, None),
            _ => return Err(FlowReason::Version),
        };
        Ok(FlowExportHeader { source: FlowExportSource { exporter, format, domain }, sequence, sent })
    }
}

/// What the records of a datagram have in common.
pub(crate) struct ExportTime {
    pub(crate) exporter: Ipv6Addr,
    /// Nanoseconds since 1970.
    pub(crate) received: u64,
    sent: Option<(u32, u64)>,
}

impl ExportTime {
    /// Nanoseconds since 1970 of a time since the exporter's start, by the exporter's clock. 0 if that is not known, or long after the
    /// datagram was sent.
    pub(crate) fn uptime_to_wall_clock(&self, time: u32) -> u64 {
        /// Milliseconds by which uptimes of one datagram may disagree.
        const AHEAD: u32 = 60_000;
        let Some((uptime, sent)) = self.sent else { return 0 };
        // An exporter without a clock counts from its start.
        let sent = if sent < 1 << 50 { self.received } else { sent };
        let ahead = time.wrapping_sub(uptime);
        match ahead < AHEAD {
            true => sent + u64::from(ahead) * 1_000_000,
            false => sent.saturating_sub(u64::from(uptime.wrapping_sub(time)) * 1_000_000),
        }
    }
}

pub(crate) struct Domain {
    /// `None` for sFlow, which has no templates.
    parser: Option<NetflowParser>,
    samplers: Samplers,
    sequence: Sequence,
    /// When its last datagram arrived.
    pub(crate) heard: u64,
}

#[derive(Default)]
struct Contents {
    /// Records of data, and of options.
    records: u32,
    option_records: u32,
    /// Whether there is data that cannot be read.
    unread: bool,
    options: u64,
}

impl Domain {
    pub(crate) fn new(source: FlowExportSource) -> Domain {
        let version = match source.format {
            FlowExportFormat::V5 => Some(5),
            FlowExportFormat::V9 => Some(9),
            FlowExportFormat::Ipfix => Some(10),
            FlowExportFormat::Sflow => None,
        };
        let parser = version.map(|version| {
            NetflowParser::builder()
                .with_allowed_versions(&[version])
                .with_cache_size(TEMPLATES)
                .with_max_field_count(FIELDS)
                .with_max_records_per_flowset(RECORDS)
                .with_max_error_sample_size(1)
                .build()
                .expect("each limit is above 0")
        });
        Domain { parser, samplers: Samplers::default(), sequence: Sequence::default(), heard: 0 }
    }

    pub(crate) fn gap_counters(&self) -> GapCounters {
        self.sequence.counters
    }

    pub(crate) fn templates(&self) -> u64 {
        let held = |parser: &NetflowParser| {
            parser.v9_cache_info().current_size + parser.ipfix_cache_info().current_size
        };
        self.parser.as_ref().map_or(0, held) as u64
    }

    /// Records a datagram of sFlow.
    pub(crate) fn note_sflow_datagram(&mut self, now: u64, sequence: u32) {
        self.heard = now;
        self.sequence.note_datagram(sequence, Some(1));
    }

    /// Decodes a datagram of another format; returns the number of sampling rates it had.
    pub(crate) fn decode_datagram(
        &mut self,
        at: ArrivalTime,
        header: &FlowExportHeader,
        payload: &[u8],
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) -> u64 {
        self.heard = at.now;
        let exporter = to_mapped_address(header.source.exporter);
        let time = ExportTime { exporter, received: at.wall, sent: header.sent };
        let (time, source) = (&time, &header.source);
        let Some(parser) = &mut self.parser else { return 0 };
        let parsed = parser.parse_bytes(payload);
        let mut contents = Contents { unread: parsed.error.is_some(), ..Contents::default() };
        if contents.unread {
            each(Err(FlowReason::Malformed));
        }
        // A datagram has one message; what follows it is none of ours.
        match parsed.packets.first() {
            Some(NetflowPacket::V5(v5)) => decode_v5_message(v5, source, time, &mut contents, each),
            Some(NetflowPacket::V9(v9)) => self.decode_v9_message(v9, source, time, &mut contents, each),
            Some(NetflowPacket::IPFix(message)) => {
                self.decode_ipfix_message(message, source, time, &mut contents, each)
            }
            _ => {}
        }
        let read = (!contents.unread).then_some((contents.records, contents.option_records));
        match header.source.format {
            FlowExportFormat::V5 => {
                self.sequence.note_datagram(header.sequence, read.map(|(records, _)| records))
            }
            FlowExportFormat::V9 | FlowExportFormat::Sflow => {
                self.sequence.note_datagram(header.sequence, Some(1))
            }
            FlowExportFormat::Ipfix => self.sequence.note_message(header.sequence, read),
        }
        contents.options
    }

    fn decode_v9_message(
        &mut self,
        message: &v9::V9,
        source: &FlowExportSource,
        time: &ExportTime,
        contents: &mut Contents,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        for set in &message.flowsets {
            match &set.body {
                v9::FlowSetBody::Data(data) => {
                    for record in &data.fields {
                        self.decode_data_record(source, time, contents, each, |fields| {
                            record.iter().for_each(|(field, value)| fields.take(u16::from(*field), value));
                        });
                    }
                }
                v9::FlowSetBody::OptionsData(data) => {
                    for record in &data.fields {
                        self.decode_options_record(source.exporter, contents, each, |fields| {
                            for scope in &record.scope_fields {
                                if let v9::ScopeDataField::Interface(number) = scope {
                                    fields.take_interface(number);
                                }
                            }
                            record.options_fields.iter().for_each(|(field, value)| {
                                fields.take(u16::from(*field), value);
                            });
                        });
                    }
                }
                v9::FlowSetBody::NoTemplate(_) => no_template(contents, each),
                _ => {}
            }
        }
    }

    fn decode_ipfix_message(
        &mut self,
        message: &ipfix::IPFix,
        source: &FlowExportSource,
        time: &ExportTime,
        contents: &mut Contents,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        let mut read = 16;
        for set in &message.flowsets {
            read += usize::from(set.header.length);
            match &set.body {
                ipfix::FlowSetBody::Data(data) => {
                    for record in &data.fields {
                        self.decode_data_record(source, time, contents, each, |fields| {
                            record.iter().for_each(|(field, value)| fields.take_ipfix(*field, value));
                        });
                    }
                }
                ipfix::FlowSetBody::OptionsData(data) => {
                    for record in &data.fields {
                        self.decode_options_record(source.exporter, contents, each, |fields| {
                            record.iter().for_each(|(field, value)| fields.take_ipfix(*field, value));
                        });
                    }
                }
                ipfix::FlowSetBody::NoTemplate(_) => no_template(contents, each),
                _ => {}
            }
        }
        // The parser stops at a set that it cannot read, and does not say so.
        if read != usize::from(message.header.length) {
            contents.unread = true;
            each(Err(FlowReason::Malformed));
        }
    }

    fn decode_data_record(
        &self,
        source: &FlowExportSource,
        time: &ExportTime,
        contents: &mut Contents,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
        fill: impl FnOnce(&mut FlowRecordFields),
    ) {
        contents.records += 1;
        let mut fields = FlowRecordFields::default();
        fill(&mut fields);
        match fields.to_records(source.domain, self.samplers.sampling_rate_of(&fields), time) {
            Some((record, back)) => {
                each(Ok(Exported::Flow(record)));
                if let Some(back) = back {
                    each(Ok(Exported::Flow(back)));
                }
            }
            None => each(Err(FlowReason::NoFlow)),
        }
    }

    fn decode_options_record(
        &mut self,
        exporter: IpAddr,
        contents: &mut Contents,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
        fill: impl FnOnce(&mut FlowRecordFields),
    ) {
        contents.option_records += 1;
        let mut fields = FlowRecordFields::default();
        fill(&mut fields);
        contents.options += u64::from(self.samplers.learn_sampler(&fields));
        if let Some(name) = fields.interface_name(exporter) {
            each(Ok(Exported::Name(name)));
        }
    }
}

fn no_template(contents: &mut Contents, each: &mut impl FnMut(Result<Exported, FlowReason>)) {
    contents.unread = true;
    each(Err(FlowReason::NoTemplate));
}

fn decode_v5_message(
    message: &V5,
    source: &FlowExportSource,
    time: &ExportTime,
    contents: &mut Contents,
    each: &mut impl FnMut(Result<Exported, FlowReason>),
) {
    // Two bits of mode, which not every exporter sets.
    let sampling = u32::from(message.header.sampling_interval & 0x3fff).max(1);
    for set in &message.flowsets {
        contents.records += 1;
        let [src, dst] = [set.src_addr, set.dst_addr].map(|address| address.to_ipv6_mapped());
        let mut record = FlowRecord {
            received: time.received,
            start: time.uptime_to_wall_clock(set.first),
            end: time.uptime_to_wall_clock(set.last),
            bytes: set.d_octets.into(),
            packets: set.d_pkts.into(),
            exporter: time.exporter,
            src,
            dst,
            next_hop: if set.next_hop.is_unspecified() {
                Ipv6Addr::UNSPECIFIED
            } else {
                set.next_hop.to_ipv6_mapped()
            },
            domain: source.domain,
            in_if: set.input.into(),
            out_if: set.output.into(),
            src_as: set.src_as.into(),
            dst_as: set.dst_as.into(),
            sampling_rate: sampling,
            protocol: set.protocol_number,
            tcp_flags: set.tcp_flags,
            dscp: set.tos >> 2,
            ..FlowRecord::EMPTY
        };
        record::fill_ports(&mut record, [set.src_port, set.dst_port]);
        each(Ok(Exported::Flow(record)));
    }
}
