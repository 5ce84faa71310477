//! One source: its templates, sampling rates and sequence numbers.

use dta_proto::counter::FlowReason;
use dta_proto::counter::gaps::GapCounters;
use dta_proto::flow_record::{FlowRecord, to_mapped_address};

use super::counters::DecoderCounters;
use super::fields::{ExportContext, Fields, NoRecord};
use super::plan::{Plan, RunPlace, Template, TemplateRecord, V5_CONTENTS};
use super::sampling::Samplers;
use super::sequence::{SentTime, Sequence};
use super::{FlowExportFormat, FlowExportSource};
use crate::exported::Exported;
use crate::reports::ArrivalTime;

/// Maximum number of templates of one source.
pub(crate) const TEMPLATES: usize = 64;

/// Lengths of headers: of messages, of sets, and of a record of NetFlow v5.
const V5_HEADER: usize = 24;
const V9_HEADER: usize = 20;
const IPFIX_HEADER: usize = 16;
const SET_HEADER: usize = 4;
const V5_RECORD: usize = 48;
/// A shorter rest of a set is padding, whatever it holds.
const PADDING: usize = 4;

/// What every datagram says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowExportHeader {
    pub(crate) format: FlowExportFormat,
    pub(crate) domain: u32,
    sequence: u32,
    /// Milliseconds since the exporter's start.
    uptime: Option<u32>,
    /// When it was sent, in nanoseconds since 1970.
    sent: u64,
    len: usize,
}

impl FlowExportHeader {
    /// Reads the first bytes.
    pub(crate) fn parse_payload(payload: &[u8]) -> Result<FlowExportHeader, FlowReason> {
        let format = match payload {
            [0, 5, ..] => FlowExportFormat::V5,
            [0, 9, ..] => FlowExportFormat::V9,
            [0, 10, ..] => FlowExportFormat::Ipfix,
            _ => return Err(FlowReason::Version),
        };
        Self::read(format, payload).ok_or(FlowReason::Malformed)
    }

    fn read(format: FlowExportFormat, payload: &[u8]) -> Option<FlowExportHeader> {
        let word = |at: usize| Some(u32::from_be_bytes(*payload.get(at..)?.first_chunk()?));
        let seconds = |at: usize| Some(u64::from(word(at)?) * 1_000_000_000);
        Some(match format {
            FlowExportFormat::V5 => FlowExportHeader {
                format,
                domain: word(20)? >> 16,
                sequence: word(16)?,
                uptime: word(4),
                sent: seconds(8)? + u64::from(word(12)?),
                len: V5_HEADER,
            },
            FlowExportFormat::V9 => FlowExportHeader {
                format,
                domain: word(16)?,
                sequence: word(12)?,
                uptime: word(4),
                sent: seconds(8)?,
                len: V9_HEADER,
            },
            _ => FlowExportHeader {
                format,
                domain: word(12)?,
                sequence: word(8)?,
                uptime: None,
                sent: seconds(4)?,
                len: IPFIX_HEADER,
            },
        })
    }
}

/// What an exporter's sessions share, and the memory that decoding needs.
pub(crate) struct SessionInputs<'a> {
    /// The rate of an exporter that announces none; 0 = 1.
    pub(crate) static_rate: u32,
    /// Rates of domains, as announced by options of other domains.
    pub(crate) domain_rates: &'a mut Vec<(u32, u32)>,
    pub(crate) places: &'a mut Vec<RunPlace>,
    pub(crate) counters: &'a mut DecoderCounters,
}

/// Maximum number of rates of other domains that an exporter may announce.
const DOMAIN_RATES: usize = 256;

pub(crate) struct Session {
    pub(crate) source: FlowExportSource,
    /// The sender's port; of sFlow 0, as an agent has no templates.
    pub(crate) port: u16,
    /// When its last datagram arrived.
    pub(crate) heard: u64,
    templates: Vec<(u32, Template)>,
    /// Counts templates as they arrive, to know the oldest.
    template_count: u32,
    samplers: Samplers,
    sequence: Sequence,
    boot: u64,
    /// The last update of a firewall's session: its end repeats the counts.
    last_update: Option<Box<FlowRecord>>,
}

/// Records of a datagram, as sequence numbers count them.
#[derive(Default)]
struct RecordCount {
    records: u32,
    options: u32,
    /// Whether there is data that cannot be read.
    is_unknown: bool,
}

/// The sets of a datagram.
struct Sets<'a> {
    payload: &'a [u8],
    at: usize,
}

struct SetBytes<'a> {
    id: u16,
    body: &'a [u8],
    /// From the start of the body to the end of the datagram.
    rest: &'a [u8],
    /// Whether the datagram ends before the set does.
    is_cut: bool,
}

enum NextSet<'a> {
    Set(SetBytes<'a>),
    /// Zeros up to the end.
    Padding(usize),
    Damaged(usize),
}

impl<'a> Sets<'a> {
    fn next_set(&mut self) -> Option<NextSet<'a>> {
        let rest = self.payload.get(self.at..).filter(|rest| !rest.is_empty())?;
        let [id, len] = match rest {
            [a, b, c, d, ..] => [[*a, *b], [*c, *d]].map(u16::from_be_bytes),
            _ => [0, 0],
        };
        let (len, end) = (usize::from(len), self.payload.len());
        if len < SET_HEADER {
            self.at = end;
            let is_padding = rest.iter().all(|byte| *byte == 0);
            return Some(if is_padding {
                NextSet::Padding(rest.len())
            } else {
                NextSet::Damaged(rest.len())
            });
        }
        let body = &rest[SET_HEADER..len.min(rest.len())];
        self.at = (self.at + len).min(end);
        Some(NextSet::Set(SetBytes { id, body, rest: &rest[SET_HEADER..], is_cut: len > rest.len() }))
    }
}

impl Session {
    pub(crate) fn new(source: FlowExportSource, port: u16) -> Session {
        Session {
            source,
            port,
            heard: 0,
            templates: Vec::new(),
            template_count: 0,
            samplers: Samplers::default(),
            sequence: Sequence::default(),
            boot: 0,
            last_update: None,
        }
    }

    pub(crate) fn gap_counters(&self) -> GapCounters {
        self.sequence.counters
    }

    pub(crate) fn templates(&self) -> u64 {
        self.templates.len() as u64
    }

    /// Records an sFlow datagram, sent `uptime` milliseconds after the agent's start.
    pub(crate) fn note_sflow_datagram(&mut self, now: u64, sequence: u32, uptime: u32) {
        self.heard = now;
        self.sequence.note_datagram(sequence, Some(1), SentTime { uptime: Some(uptime), seconds: 0 });
    }

    /// Decodes a datagram of any format but sFlow.
    pub(crate) fn decode_datagram(
        &mut self,
        at: ArrivalTime,
        header: &FlowExportHeader,
        payload: &[u8],
        shared: &mut SessionInputs<'_>,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        self.heard = at.now;
        let context = ExportContext {
            exporter: to_mapped_address(self.source.exporter),
            domain: self.source.domain,
            received: at.wall,
            sent: header.sent,
            uptime: header.uptime,
            boot: self.boot,
        };
        let mut count = RecordCount::default();
        shared.counters.note_read(header.len.min(payload.len()));
        match header.format {
            FlowExportFormat::V5 => decode_v5_records(&context, payload, shared, &mut count, each),
            _ => self.decode_sets(context, payload, shared, &mut count, each),
        }
        let time = SentTime { uptime: header.uptime, seconds: (header.sent / 1_000_000_000) as u32 };
        let is_known = !count.is_unknown;
        match header.format {
            FlowExportFormat::V5 => {
                self.sequence.note_datagram(header.sequence, is_known.then_some(count.records), time)
            }
            FlowExportFormat::Ipfix => {
                let count = is_known.then_some((count.records, count.options));
                self.sequence.note_message(header.sequence, count, time);
            }
            _ => self.sequence.note_datagram(header.sequence, Some(1), time),
        }
    }

    /// Reads templates and options first: they also apply to data before them in the datagram.
    fn decode_sets(
        &mut self,
        mut context: ExportContext,
        payload: &[u8],
        shared: &mut SessionInputs<'_>,
        count: &mut RecordCount,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        let is_ipfix = self.source.format == FlowExportFormat::Ipfix;
        let (start, mut end) = (if is_ipfix { IPFIX_HEADER } else { V9_HEADER }, payload.len());
        if is_ipfix {
            // The header has a length: what follows it is not part of the message.
            let len = usize::from(u16::from_be_bytes([payload[2], payload[3]]));
            if len > end || len < start {
                count.is_unknown = true;
                shared.counters.refuse(FlowReason::Malformed, 0, each);
            }
            end = if len < start { start } else { len.min(end) };
            let behind = &payload[end..];
            if behind.iter().any(|byte| *byte != 0) {
                shared.counters.refuse(FlowReason::Malformed, behind.len(), each);
            } else {
                shared.counters.note_read(behind.len());
            }
        }
        let payload = &payload[..end];
        let (templates, options_templates) = if is_ipfix { (2, 3) } else { (0, 1) };
        let (mut sets, mut has_records) = (Sets { payload, at: start }, false);
        while let Some(next) = sets.next_set() {
            match next {
                NextSet::Padding(len) => shared.counters.note_read(len),
                NextSet::Damaged(len) => {
                    count.is_unknown = true;
                    shared.counters.refuse(FlowReason::Malformed, len, each);
                }
                NextSet::Set(set) => {
                    // The header of a set that is cut has a wrong length.
                    if set.is_cut {
                        count.is_unknown = true;
                        shared.counters.refuse(FlowReason::Malformed, SET_HEADER, each);
                    } else {
                        shared.counters.note_read(SET_HEADER);
                    }
                    match set.id {
                        id if id == templates || id == options_templates => {
                            self.read_templates(set.body, id == options_templates, shared.counters, each);
                        }
                        0..256 => shared.counters.refuse(FlowReason::UnknownSet, set.body.len(), each),
                        _ => has_records = true,
                    }
                }
            }
        }
        if !has_records {
            return;
        }
        let mut sets = Sets { payload, at: start };
        while let Some(next) = sets.next_set() {
            if let NextSet::Set(set) = next
                && let Some(index) = self.find_options_plan(set.id)
            {
                self.read_options(index, &set, &context, shared, count, each);
            }
        }
        context.boot = self.boot;
        let mut sets = Sets { payload, at: start };
        while let Some(next) = sets.next_set() {
            let NextSet::Set(set) = next else { continue };
            if set.id < 256 {
                continue;
            }
            match self.find_plan(set.id) {
                Some(index) if self.templates[index].1.plan.is_options => {}
                Some(index) => self.read_data(index, &set, &context, shared, count, each),
                None => {
                    count.is_unknown = true;
                    shared.counters.refuse(FlowReason::NoTemplate, set.body.len(), each);
                }
            }
        }
    }

    fn find_plan(&self, id: u16) -> Option<usize> {
        self.templates.iter().position(|(_, template)| template.id == id)
    }

    fn find_options_plan(&self, id: u16) -> Option<usize> {
        self.find_plan(id).filter(|index| self.templates[*index].1.plan.is_options)
    }

    fn read_templates(
        &mut self,
        mut rest: &[u8],
        is_options: bool,
        counters: &mut DecoderCounters,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        while rest.len() >= PADDING && rest.iter().any(|byte| *byte != 0) {
            let len = rest.len();
            let record = match TemplateRecord::parse_next(&mut rest, self.source.format, is_options) {
                Ok(record) => record,
                Err(reason) => return counters.refuse(reason, len, each),
            };
            match self.learn_template(&record) {
                Ok(()) => counters.note_read(len - rest.len()),
                Err(reason) => counters.refuse(reason, len - rest.len(), each),
            }
        }
        counters.note_read(rest.len());
    }

    fn learn_template(&mut self, record: &TemplateRecord<'_>) -> Result<(), FlowReason> {
        self.template_count = self.template_count.wrapping_add(1);
        let number = self.template_count;
        let known = self.find_plan(record.id);
        if let Some((heard, template)) = known.map(|index| &mut self.templates[index])
            && record.is_definition_of(template)
        {
            *heard = number;
            return Ok(());
        }
        let Some(template) = record.compile(self.source.format)? else { return Ok(()) };
        let oldest = || {
            let ages = self.templates.iter().map(|(heard, _)| number.wrapping_sub(*heard)).enumerate();
            ages.max_by_key(|(_, age)| *age).map(|(index, _)| index)
        };
        let place = known.or_else(|| if self.templates.len() < TEMPLATES { None } else { oldest() });
        match place {
            Some(index) => self.templates[index] = (number, template),
            None => self.templates.push((number, template)),
        }
        Ok(())
    }

    fn read_options(
        &mut self,
        index: usize,
        set: &SetBytes<'_>,
        context: &ExportContext,
        shared: &mut SessionInputs<'_>,
        count: &mut RecordCount,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        let plan = &self.templates[index].1.plan;
        let mut at = 0;
        while set.body.len() - at >= plan.shortest && !is_padding_of(plan, set, at) {
            let mut fields = Fields::EMPTY;
            let read = plan.read_record(&set.body[at..], &set.rest[at..], shared.places, &mut fields);
            let Some(len) = read else { break };
            at += len;
            count.options += 1;
            shared.counters.note_read(len);
            if let Some(boot) = fields.boot_time() {
                self.boot = boot;
            }
            if let Some(rate) = fields.sampling_rate() {
                let domain = fields.scope_domain();
                let is_own = domain == 0 || domain == context.domain;
                let is_learned = match is_own {
                    true => self.samplers.learn_rate(fields.sampling_scope(), rate),
                    false => learn_domain_rate(shared.domain_rates, domain, rate),
                };
                shared.counters.options += u64::from(is_learned);
            }
            if let Some(name) = fields.interface_name(self.source.exporter) {
                shared.counters.names += 1;
                each(Ok(Exported::Name(name)));
            }
        }
        end_set(set, at, shared.counters, count, each);
    }

    fn read_data(
        &mut self,
        index: usize,
        set: &SetBytes<'_>,
        context: &ExportContext,
        shared: &mut SessionInputs<'_>,
        count: &mut RecordCount,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        let plan = &self.templates[index].1.plan;
        let others = shared.domain_rates.iter().find(|(domain, _)| *domain == context.domain);
        let otherwise = others.map_or(shared.static_rate, |(_, rate)| *rate).max(1);
        let mut has_vendors_own = false;
        let no_flow = if plan.enterprise.is_some() { FlowReason::Enterprise } else { FlowReason::NoFlow };
        let mut at = 0;
        while set.body.len() - at >= plan.shortest && !is_padding_of(plan, set, at) {
            let mut fields = Fields::EMPTY;
            let read = plan.read_record(&set.body[at..], &set.rest[at..], shared.places, &mut fields);
            let Some(len) = read else { break };
            at += len;
            count.records += 1;
            let rate = self.samplers.sampling_rate_of(&fields, otherwise);
            let event = fields.firewall_event;
            match fields.finish_records(&plan.has, context, rate) {
                Ok((record, back)) => {
                    if event != 0 && is_repeated_update(&mut self.last_update, event, record) {
                        shared.counters.refuse(FlowReason::Repeated, len, each);
                        continue;
                    }
                    shared.counters.note_read(len);
                    each(Ok(Exported::Flow(*record)));
                    if let Some(back) = back {
                        each(Ok(Exported::Flow(back)));
                    }
                }
                Err(NoRecord::NoFlow) => {
                    has_vendors_own |= no_flow == FlowReason::Enterprise;
                    shared.counters.refuse(no_flow, len, each);
                }
                Err(NoRecord::Implausible) => shared.counters.refuse(FlowReason::Implausible, len, each),
            }
        }
        if let Some(enterprise) = plan.enterprise.filter(|_| has_vendors_own) {
            shared.counters.enterprise_sets[enterprise as usize] += 1;
        }
        end_set(set, at, shared.counters, count, each);
    }
}

/// Records of unknown length can be as short as padding.
fn is_padding_of(plan: &Plan, set: &SetBytes<'_>, at: usize) -> bool {
    let rest = &set.body[at..];
    plan.is_variable() && rest.len() < PADDING && rest.iter().all(|byte| *byte == 0)
}

/// Handles what is left of a set after its last record.
fn end_set(
    set: &SetBytes<'_>,
    at: usize,
    counters: &mut DecoderCounters,
    count: &mut RecordCount,
    each: &mut impl FnMut(Result<Exported, FlowReason>),
) {
    let rest = &set.body[at..];
    if rest.is_empty() || !set.is_cut && (rest.len() < PADDING || rest.iter().all(|byte| *byte == 0)) {
        counters.note_read(rest.len());
    } else {
        count.is_unknown = true;
        counters.refuse(FlowReason::Malformed, rest.len(), each);
    }
}

/// Firewalls report a session's counts in updates (event 5), and repeat those of the last update when it ends (event 2).
fn is_repeated_update(last: &mut Option<Box<FlowRecord>>, event: u8, record: &FlowRecord) -> bool {
    let record = FlowRecord { received: 0, ..*record };
    match event {
        5 => {
            *last = Some(Box::new(record));
            false
        }
        2 => last.take_if(|last| **last == record).is_some(),
        _ => false,
    }
}

fn learn_domain_rate(rates: &mut Vec<(u32, u32)>, domain: u32, rate: u32) -> bool {
    let known = rates.iter().position(|(known, _)| *known == domain);
    match known {
        Some(index) => rates[index].1 = rate,
        None if rates.len() < DOMAIN_RATES => rates.push((domain, rate)),
        None => return false,
    }
    true
}

fn decode_v5_records(
    context: &ExportContext,
    payload: &[u8],
    shared: &mut SessionInputs<'_>,
    count: &mut RecordCount,
    each: &mut impl FnMut(Result<Exported, FlowReason>),
) {
    let Some(mut rest) = payload.get(V5_HEADER..) else { return };
    // Two bits of mode, which not every exporter sets.
    let announced = u32::from(u16::from_be_bytes([payload[22], payload[23]]) & 0x3fff);
    let sampling_rate = if announced != 0 { announced } else { shared.static_rate.max(1) };
    count.records = u16::from_be_bytes([payload[2], payload[3]]).into();
    for _ in 0..count.records {
        if rest.len() < V5_RECORD {
            count.is_unknown = true;
            break;
        }
        let mut fields = Fields::from_v5_record(rest);
        rest = &rest[V5_RECORD..];
        shared.counters.note_read(V5_RECORD);
        if let Ok((record, _)) = fields.finish_records(&V5_CONTENTS, context, sampling_rate) {
            each(Ok(Exported::Flow(*record)));
        }
    }
    if count.is_unknown || rest.iter().any(|byte| *byte != 0) {
        shared.counters.refuse(FlowReason::Malformed, rest.len(), each);
    } else {
        shared.counters.note_read(rest.len());
    }
}
