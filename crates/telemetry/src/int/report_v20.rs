//! Telemetry Report v2.0: a group header, then one or more reports.
//!
//! Group, 8 bytes: `version 4 = 2, hardware id 6, sequence 22, node 32`. Each report: `type 4 (0 packet only,
//! 1 INT, 2 IOAM), inner type 4 (0 none, 1 TLVs, 2 domain data, 3 Ethernet, 4 IPv4, 5 IPv6), length 8 (words
//! after this one, 255 = to the end), metadata length 8 (words), D 1, Q 1, F 1, I 1, reserved 4`; for type
//! INT then `metadata bits 16, domain 16, domain bits 16, domain status 16` and the metadata; then what the
//! inner type says.
//!
//! IOAM's contents are not defined in this version: such a report is an error ([`IOAM`]), and the ones after it are parsed. After
//! a length that contradicts what it counts, nothing can be located, so that report is the datagram's last.
//!
//! Sinks of published P4 programs send a length of 0 and one report, some without the part of type INT. It is read to the end if
//! a packet with INT is found there.

use super::dialect::Form;
use super::metadata::{Instructions, Layout};
use super::packet::{self, First, ReportedPacket};
use super::{DatagramSource, Flags, IntReport, Metadata, ReportVersion, err};
use dta_proto::wire::{Error, Result, WireErrorKind, saturating_u16};

const GROUP_LEN: usize = 8;
const WORD: usize = 4;
/// The part of an INT report before the metadata.
const INT_FIXED_LEN: usize = 8;
/// The length that means "to the end of the datagram".
const TO_THE_END: usize = 0xff;
static INSTRUCTIONS: Instructions = Instructions::of_report_v20();
/// The error for a report about IOAM.
pub(crate) const IOAM: Error = err("report_type", 0, WireErrorKind::Reserved(2));

/// The source, the node, and the bytes of all reports.
pub(super) fn parse_group(bytes: &[u8]) -> Result<(DatagramSource, &[u8])> {
    let have = saturating_u16(bytes.len());
    let Some((head, rest)) = bytes.split_first_chunk::<GROUP_LEN>() else {
        return Err(err("group", 0, WireErrorKind::Truncated { need: GROUP_LEN as u16, have }));
    };
    let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    if word >> 28 != 2 {
        return Err(err("version", 0, WireErrorKind::UnknownVersion((word >> 28) as u8)));
    }
    if rest.is_empty() {
        return Err(err(
            "report",
            GROUP_LEN as u16,
            WireErrorKind::Truncated { need: (GROUP_LEN + WORD) as u16, have },
        ));
    }
    let source = DatagramSource {
        switch: Some(u32::from_be_bytes([head[4], head[5], head[6], head[7]])),
        hardware: (word >> 22 & 0x3f) as u8,
        sequence: word & 0x003f_ffff,
        sequence_bits: 22,
    };
    Ok((source, rest))
}

/// The first of these reports, and the bytes after it: none after a wrong length.
pub(super) fn next<'a>(bytes: &'a [u8], node: Option<u32>, form: &Form) -> (Result<IntReport<'a>>, &'a [u8]) {
    let have = saturating_u16(bytes.len());
    let Some((head, rest)) = bytes.split_first_chunk::<WORD>() else {
        return (Err(err("report", 0, WireErrorKind::Truncated { need: WORD as u16, have })), &[]);
    };
    let (body, behind) = match usize::from(head[1]) {
        TO_THE_END => (rest, &[][..]),
        0 if head[0] != 0 => return (parse_without_length(head, rest, node, form), &[]),
        words => match rest.split_at_checked(words * WORD) {
            Some(split) => split,
            None => {
                let kind = WireErrorKind::Truncated { need: saturating_u16(WORD + words * WORD), have };
                return (Err(err("report_length", 1, kind)), &[]);
            }
        },
    };
    let report = parse_report(head, body, node, form);
    let is_lost = matches!(&report, Err(error) if error.field.ends_with("_length"));
    (report, if is_lost { &[] } else { behind })
}

/// A report of length 0 that is more than its first word: its packet follows with or without what type INT has before it.
#[cold]
fn parse_without_length<'a>(
    head: &[u8; WORD],
    rest: &'a [u8],
    node: Option<u32>,
    form: &Form,
) -> Result<IntReport<'a>> {
    let is_int = head[0] >> 4 == 1;
    let as_specified = parse_report(head, rest, node, form);
    let without_metadata = || parse_report(&[head[0] & 0xf, head[1], 0, head[3]], rest, node, form);
    let has_int = |report: &Result<IntReport<'a>>| {
        report.as_ref().is_ok_and(|report| report.packet_stack().is_some_and(|stack| !stack.is_empty()))
    };
    if has_int(&as_specified) {
        return as_specified;
    }
    Some(without_metadata()).filter(|report| is_int && has_int(report)).unwrap_or(Err(length_is_wrong(head)))
}

fn length_is_wrong(head: &[u8; WORD]) -> Error {
    err("report_length", 1, WireErrorKind::Length(u16::from(head[1])))
}

fn parse_report<'a>(
    head: &[u8; WORD],
    body: &'a [u8],
    node: Option<u32>,
    form: &Form,
) -> Result<IntReport<'a>> {
    let flags = Flags {
        dropped: head[3] & 0x80 != 0,
        congested: head[3] & 0x40 != 0,
        tracked: head[3] & 0x20 != 0,
        intermediate: head[3] & 0x10 != 0,
    };
    let (local, inner) = match head[0] >> 4 {
        0 => (Metadata::NONE, body),
        1 => parse_metadata(body, usize::from(head[2]) * WORD, form)?,
        2 => return Err(IOAM),
        other => return Err(err("report_type", 0, WireErrorKind::Reserved(other))),
    };
    let form = form.for_packet(flags.tracked);
    let packet = match head[0] & 0xf {
        0 | 2 => Err(no_packet()),
        1..=5 if inner.is_empty() => return Err(length_is_wrong(head)),
        1 => packet_in_tlvs(inner, form)?,
        3 => packet::parse_packet(inner, First::Ethernet, form),
        4 | 5 => packet::parse_packet(inner, First::Ip, form),
        other => return Err(err("inner_type", 0, WireErrorKind::Reserved(other))),
    };
    Ok(IntReport { version: ReportVersion::V20, switch: node, flags, local, packet })
}

fn no_packet() -> Error {
    err("packet", 0, WireErrorKind::Truncated { need: 1, have: 0 })
}

/// The metadata of a report of type INT, and what follows it.
fn parse_metadata<'a>(body: &'a [u8], len: usize, form: &Form) -> Result<(Metadata<'a>, &'a [u8])> {
    let have = saturating_u16(body.len());
    let need = INT_FIXED_LEN + len;
    let Some((head, inner)) = body.split_at_checked(need) else {
        return Err(err("metadata_length", 2, WireErrorKind::Truncated { need: saturating_u16(need), have }));
    };
    let bits = u16::from_be_bytes([head[0], head[1]]);
    // Anything beyond these bits is the domain's.
    if INSTRUCTIONS.word_count(bits) as usize * WORD > len {
        return Err(err("metadata_length", 2, WireErrorKind::Length(saturating_u16(len))));
    }
    let layout = Layout::from_bitmap(&INSTRUCTIONS, bits, INT_FIXED_LEN as u8).adjust_for_form(form);
    Ok((Metadata::new(head, layout), inner))
}

/// The packet in the first TLV that holds one; an error if their lengths are wrong. Each: `type 4 (0 domain data, 1 Ethernet, 2 IPv4, 3 IPv6),
/// reserved 4, length 8 (words after this one), template 16`.
fn packet_in_tlvs<'a>(mut bytes: &'a [u8], form: &Form) -> Result<Result<ReportedPacket<'a>>> {
    while let Some((head, rest)) = bytes.split_first_chunk::<WORD>() {
        let len = usize::from(head[1]) * WORD;
        let Some((value, behind)) = rest.split_at_checked(len) else {
            return Err(err(
                "tlv_length",
                1,
                WireErrorKind::Truncated { need: saturating_u16(len), have: saturating_u16(rest.len()) },
            ));
        };
        match head[0] >> 4 {
            1 => return Ok(packet::parse_packet(value, First::Ethernet, form)),
            2 | 3 => return Ok(packet::parse_packet(value, First::Ip, form)),
            _ => bytes = behind,
        }
    }
    Ok(Err(no_packet()))
}
