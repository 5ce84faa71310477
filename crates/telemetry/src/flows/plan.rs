//! Templates, compiled once to a plan: which bytes of a record go into which column.
//!
//! NetFlow v9 and IPFIX share the numbers of elements. If several elements fill one column, or one element occurs
//! several times, a plan tries them in the order of [`Target::from_element`], the last occurrence first, and takes the
//! first that is not 0: in a tunnel, the inner values follow the outer ones (RFC 7011 8).

use dta_proto::counter::{Enterprise, FlowReason};

use super::FlowExportFormat;
use super::fields::{Fields, REVERSE, Target};

/// The most fields that a template may have.
pub(crate) const FIELDS: usize = 256;
/// The length of a field whose records state its length (RFC 7011 7).
const VARIABLE: u16 = u16::MAX;

/// One value of a record.
#[derive(Clone, Copy, Debug)]
struct Step {
    target: Target,
    /// Which run of fields of known length it belongs to; the field of unknown length after that run has the same number.
    run: u16,
    /// Where it is in that run.
    offset: u16,
    /// Its length, or [`VARIABLE`].
    len: u16,
}

/// Where a run and the field after it are in a record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunPlace {
    start: usize,
    value: usize,
    len: usize,
}

/// How to read the records of a template.
#[derive(Debug)]
pub(crate) struct Plan {
    steps: Box<[Step]>,
    /// Lengths of the runs of fields of known length. Between two of them is a field of unknown length.
    runs: Box<[u16]>,
    /// Shortest record; with a single run, every record.
    pub(crate) shortest: usize,
    /// Whether records are options, and not data.
    pub(crate) is_options: bool,
    pub(crate) has: Contents,
    /// The enterprise whose elements it has, if records count no flows.
    pub(crate) enterprise: Option<Enterprise>,
}

/// Which values the records of a template have, even if they are 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) src: bool,
    pub(crate) dst: bool,
    pub(crate) counts: bool,
    /// An address in an IPv4 element.
    pub(crate) ipv4: bool,
    /// An address in an IPv6 element.
    pub(crate) ipv6: bool,
}

/// What every record of NetFlow v5 has.
pub(crate) const V5_CONTENTS: Contents =
    Contents { src: true, dst: true, counts: true, ipv4: true, ipv6: false };

/// A field of a template.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldSpec {
    enterprise: u32,
    number: u16,
    len: u16,
    is_scope: bool,
}

/// A template, as it was received and as it is used.
pub(crate) struct Template {
    pub(crate) id: u16,
    /// The bytes after the id.
    definition: Box<[u8]>,
    is_options: bool,
    pub(crate) plan: Plan,
}

/// The next template in the rest of a set of templates.
pub(crate) struct TemplateRecord<'a> {
    pub(crate) id: u16,
    definition: &'a [u8],
    is_options: bool,
    /// How many of its fields are scopes.
    scopes: usize,
    /// Bytes of its definition before its fields.
    head: usize,
    has_enterprises: bool,
}

fn get_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> TemplateRecord<'a> {
    /// Reads one, and moves `rest` past it. Returns an error if it is longer than the rest.
    pub(crate) fn parse_next(
        rest: &mut &'a [u8],
        format: FlowExportFormat,
        is_options: bool,
    ) -> Result<TemplateRecord<'a>, FlowReason> {
        Self::find_end(rest, format, is_options).ok_or(FlowReason::Malformed).map(|(record, end)| {
            *rest = &rest[end..];
            record
        })
    }

    fn find_end(
        rest: &'a [u8],
        format: FlowExportFormat,
        is_options: bool,
    ) -> Option<(TemplateRecord<'a>, usize)> {
        let (id, first) = (get_u16(rest, 0)?, usize::from(get_u16(rest, 2)?));
        let has_enterprises = format == FlowExportFormat::Ipfix;
        let (head, scopes, end) = match (has_enterprises, is_options) {
            (false, false) => (2, 0, 4 + 4 * first),
            // v9 gives lengths in bytes.
            (false, true) => (4, first / 4, 6 + first + usize::from(get_u16(rest, 4)?)),
            (true, _) => {
                // A withdrawal has no fields, nor a number of scopes.
                let is_long = is_options && first != 0;
                let head = if is_long { 4 } else { 2 };
                let mut end = 2 + head;
                for _ in 0..first {
                    end += if get_u16(rest, end)? & 0x8000 != 0 { 8 } else { 4 };
                }
                let scopes = if is_long { usize::from(get_u16(rest, 4)?) } else { 0 };
                (head, scopes, end)
            }
        };
        let definition = rest.get(2..end)?;
        Some((TemplateRecord { id, definition, is_options, scopes, head, has_enterprises }, end))
    }

    /// Whether a template was compiled from this definition.
    pub(crate) fn is_definition_of(&self, template: &Template) -> bool {
        template.is_options == self.is_options && *template.definition == *self.definition
    }

    /// Compiles it. Returns an error if its id is that of a template set or it has too many fields; `None` if its records have no bytes.
    pub(crate) fn compile(&self, format: FlowExportFormat) -> Result<Option<Template>, FlowReason> {
        let mut rest = &self.definition[self.head..];
        let mut fields = Vec::with_capacity(rest.len() / 4);
        while let (Some(number), Some(len)) = (get_u16(rest, 0), get_u16(rest, 2)) {
            let is_scope = fields.len() < self.scopes;
            rest = &rest[4..];
            let mut field = FieldSpec { enterprise: 0, number, len, is_scope };
            if self.has_enterprises && number & 0x8000 != 0 {
                let Some((enterprise, behind)) = rest.split_first_chunk() else {
                    return Err(FlowReason::Malformed);
                };
                (field.enterprise, field.number) = (u32::from_be_bytes(*enterprise), number & 0x7fff);
                rest = behind;
            }
            fields.push(field);
        }
        if self.id < 256 || fields.len() > FIELDS {
            return Err(FlowReason::Malformed);
        }
        let plan = Plan::from_fields(&fields, format, self.is_options)?;
        Ok(plan.map(|plan| Template {
            id: self.id,
            definition: self.definition.into(),
            is_options: self.is_options,
            plan,
        }))
    }
}

impl Plan {
    fn from_fields(
        fields: &[FieldSpec],
        format: FlowExportFormat,
        is_options: bool,
    ) -> Result<Option<Plan>, FlowReason> {
        let (mut steps, mut runs, mut has) = (Vec::new(), Vec::new(), Contents::default());
        let (mut run_len, mut shortest) = (0u16, 0);
        let vendor =
            fields.iter().map(|field| field.enterprise).find(|number| !matches!(*number, 0 | REVERSE));
        for field in fields {
            let is_variable = field.len == VARIABLE && format == FlowExportFormat::Ipfix;
            let target = match (format, field.is_scope) {
                (FlowExportFormat::V9, true) => Target::from_v9_scope(field.number),
                _ => Target::from_element(field.enterprise, field.number, format),
            };
            if let Some((rank, target)) = target
                && (is_variable || target.can_have_length(field.len.into()))
            {
                has.note_target(target);
                let run = runs.len() as u16;
                steps.push((rank, Step { target, run, offset: run_len, len: field.len }));
            }
            if is_variable {
                shortest += 1;
                runs.push(run_len);
                run_len = 0;
            } else {
                shortest += usize::from(field.len);
                run_len = run_len.checked_add(field.len).ok_or(FlowReason::Malformed)?;
            }
        }
        runs.push(run_len);
        if shortest == 0 {
            return Ok(None);
        }
        steps.reverse();
        steps.sort_by_key(|(rank, _)| *rank);
        let steps = steps.into_iter().map(|(_, step)| step).collect();
        let enterprise = vendor.filter(|_| !has.counts).map(Enterprise::from_number);
        Ok(Some(Plan { steps, runs: runs.into(), shortest, is_options, has, enterprise }))
    }

    /// Reads the record at the start of `set`. Numbers may be read beyond it, up to the end of `bytes`, of which `set` is the start.
    /// Returns its length; `None` if it is longer than the set.
    #[inline]
    pub(crate) fn read_record<'a>(
        &self,
        set: &[u8],
        bytes: &'a [u8],
        places: &mut Vec<RunPlace>,
        fields: &mut Fields<'a>,
    ) -> Option<usize> {
        if self.runs.len() == 1 {
            if set.len() < self.shortest {
                return None;
            }
            for step in &self.steps {
                fields.take_value(step.target, bytes, step.offset.into(), step.len.into());
            }
            return Some(self.shortest);
        }
        self.read_variable_record(set, bytes, places, fields)
    }

    fn read_variable_record<'a>(
        &self,
        set: &[u8],
        bytes: &'a [u8],
        places: &mut Vec<RunPlace>,
        fields: &mut Fields<'a>,
    ) -> Option<usize> {
        places.clear();
        let mut at = 0;
        let (last, runs) = self.runs.split_last()?;
        for run in runs {
            let start = at;
            at += usize::from(*run);
            let len = match *set.get(at)? {
                255 => {
                    at += 3;
                    usize::from(get_u16(set, at - 2)?)
                }
                short => {
                    at += 1;
                    usize::from(short)
                }
            };
            places.push(RunPlace { start, value: at, len });
            at += len;
        }
        places.push(RunPlace { start: at, value: 0, len: 0 });
        let end = at + usize::from(*last);
        if end > set.len() {
            return None;
        }
        for step in &self.steps {
            let Some(place) = places.get(usize::from(step.run)) else { continue };
            if step.len != VARIABLE {
                fields.take_value(
                    step.target,
                    bytes,
                    place.start + usize::from(step.offset),
                    step.len.into(),
                );
            } else if step.target.can_have_length(place.len) {
                fields.take_value(step.target, bytes, place.value, place.len);
            }
        }
        Some(end)
    }

    /// Whether its records have fields of unknown length.
    pub(crate) fn is_variable(&self) -> bool {
        self.runs.len() != 1
    }
}

impl Contents {
    fn note_target(&mut self, target: Target) {
        match target {
            Target::SrcIpv4 => (self.src, self.ipv4) = (true, true),
            Target::DstIpv4 => (self.dst, self.ipv4) = (true, true),
            Target::SrcIpv6 => (self.src, self.ipv6) = (true, true),
            Target::DstIpv6 => (self.dst, self.ipv6) = (true, true),
            Target::Bytes | Target::Packets => self.counts = true,
            _ => {}
        }
    }
}
