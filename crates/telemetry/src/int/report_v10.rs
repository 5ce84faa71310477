//! Telemetry Report v1.0.
//!
//! 16 bytes: `version 4 = 1, length 4 (words), next protocol 3 (0 Ethernet, 1 IPv4, 2 IPv6), metadata bits 6,
//! reserved 6, D 1, Q 1, F 1, hardware id 6, switch 32, sequence 32, ingress timestamp 32`, then 4 bytes for
//! each metadata bit, most significant first: ports; hop latency; queue and occupancy; egress timestamp; queue
//! and drop reason; transmit utilisation. Then the packet.
//!
//! INTCollector's generator sends a length of 1. A length too short for the bits' metadata is ignored: the
//! header is then as long as they require.

use super::dialect::Form;
use super::metadata::{Instructions, Item, Layouts};
use super::packet::{self, First};
use super::{DatagramSource, Flags, IntReport, Metadata, ReportVersion, err};
use dta_proto::wire::{Result, WireErrorKind, saturating_u16};

const FIXED_LEN: usize = 16;
static LAYOUTS: Layouts = Layouts::from_instructions(&Instructions::of_report_v10(), FIXED_LEN as u8)
    .with_item(Item::Switch, 4)
    .with_item(Item::IngressTime, 12);

/// What the first bytes say about the rest.
struct V10Header<'a> {
    fixed: &'a [u8; FIXED_LEN],
    first: First,
    /// The metadata bits, at the top of a bitmap.
    bitmap: u16,
    header: &'a [u8],
    rest: &'a [u8],
}

#[inline]
fn parse_header(bytes: &[u8]) -> Result<V10Header<'_>> {
    let have = saturating_u16(bytes.len());
    let Some(fixed) = bytes.first_chunk::<FIXED_LEN>() else {
        return Err(err("header", 0, WireErrorKind::Truncated { need: FIXED_LEN as u16, have }));
    };
    let word = u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
    let first = match word >> 21 & 7 {
        0 => First::Ethernet,
        1 | 2 => First::Ip,
        other => return Err(err("next_protocol", 1, WireErrorKind::Reserved(other as u8))),
    };
    let bits = (word >> 15 & 0x3f) as u16;
    let len = usize::from(fixed[0] & 0xf).max(FIXED_LEN / 4 + bits.count_ones() as usize) * 4;
    let Some((header, rest)) = bytes.split_at_checked(len) else {
        return Err(err("length", 0, WireErrorKind::Truncated { need: len as u16, have }));
    };
    Ok(V10Header { fixed, first, bitmap: bits << 10, header, rest })
}

/// Who numbered the datagram. The header is complete here.
#[inline]
pub(super) fn parse_source(bytes: &[u8]) -> Result<DatagramSource> {
    let V10Header { fixed, .. } = parse_header(bytes)?;
    Ok(DatagramSource {
        // In metadata, all ones would mean "not available"; here it is an ordinary number.
        switch: Some(u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]])),
        hardware: fixed[3] & 0x3f,
        sequence: u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
        sequence_bits: 32,
    })
}

/// The report. The rest is valid even if the packet cannot be parsed.
#[inline(always)] // on the path of every report
pub(super) fn read<'a>(bytes: &'a [u8], form: &Form, into: &mut IntReport<'a>) -> Result<()> {
    let V10Header { fixed, first, bitmap, header, rest } = parse_header(bytes)?;
    let layout = LAYOUTS.get(bitmap).adjust_for_form(form);
    let bits = u16::from_be_bytes([fixed[2], fixed[3]]);
    let flags = Flags {
        dropped: bits & 0x100 != 0,
        congested: bits & 0x80 != 0,
        tracked: bits & 0x40 != 0,
        intermediate: false,
    };
    into.version = ReportVersion::V10;
    into.switch = Some(u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]));
    into.flags = flags;
    into.local = Metadata::new(header, layout);
    packet::read(rest, first, form.for_packet(flags.tracked), &mut into.packet);
    Ok(())
}
