//! Telemetry Report v0.5.
//!
//! 12 bytes: `version 4, next protocol 4, D 1, Q 1, F 1, reserved 15, hardware id 6, sequence 32 (per hardware
//! id and destination), ingress timestamp 32`. Next protocol 0: the packet, from Ethernet on. 1: the drop header
//! (12 bytes: `switch 32, ingress port 16, egress port 16, queue 8, drop reason 8, pad 16`), then the packet.
//! 2: the switch-local header (16 bytes: `switch 32, ingress port 16, egress port 16, queue 8, occupancy 24,
//! egress timestamp 32`), then the packet.

use super::dialect::Form;
use super::metadata::{Item, Layout};
use super::packet::{self, First};
use super::{DatagramSource, Flags, IntReport, Metadata, ReportVersion, err};
use dta_proto::wire::{Result, WireErrorKind, saturating_u16};

const FIXED_LEN: usize = 12;
const SWITCH_AT: u8 = FIXED_LEN as u8;
const FIXED: Layout = Layout::NONE.with_item(Item::IngressTime, 8);
const WITH_SWITCH: Layout = FIXED.with_item(Item::Switch, SWITCH_AT).with_item(Item::Ports, SWITCH_AT + 4);
const DROP: Layout = WITH_SWITCH.with_item(Item::Drop, SWITCH_AT + 8);
const LOCAL: Layout =
    WITH_SWITCH.with_item(Item::Queue, SWITCH_AT + 8).with_item(Item::EgressTime, SWITCH_AT + 12);

/// What the first bytes say about the rest.
struct V05Header<'a> {
    fixed: &'a [u8; FIXED_LEN],
    layout: Layout,
    /// From the first byte up to the packet.
    header: &'a [u8],
    rest: &'a [u8],
}

#[inline]
fn parse_header(bytes: &[u8]) -> Result<V05Header<'_>> {
    let have = saturating_u16(bytes.len());
    let Some(fixed) = bytes.first_chunk::<FIXED_LEN>() else {
        return Err(err("header", 0, WireErrorKind::Truncated { need: FIXED_LEN as u16, have }));
    };
    let (layout, len) = match fixed[0] & 0xf {
        0 => (FIXED, FIXED_LEN),
        1 => (DROP, FIXED_LEN + 12),
        2 => (LOCAL, FIXED_LEN + 16),
        other => return Err(err("next_protocol", 0, WireErrorKind::Reserved(other))),
    };
    match bytes.split_at_checked(len) {
        Some((header, rest)) => Ok(V05Header { fixed, layout, header, rest }),
        None => Err(err("header", 0, WireErrorKind::Truncated { need: len as u16, have })),
    }
}

/// Who numbered the datagram. The header is complete here.
#[inline]
pub(super) fn parse_source(bytes: &[u8]) -> Result<DatagramSource> {
    let V05Header { fixed, layout, header, .. } = parse_header(bytes)?;
    let sequence = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    let switch = Metadata::new(header, layout).switch_number();
    Ok(DatagramSource { switch, hardware: fixed[3] & 0x3f, sequence, sequence_bits: 32 })
}

/// The report. The rest is valid even if the packet cannot be parsed.
#[inline]
pub(super) fn read<'a>(bytes: &'a [u8], form: &Form, into: &mut IntReport<'a>) -> Result<()> {
    let V05Header { fixed, layout, header, rest } = parse_header(bytes)?;
    let local = Metadata::new(header, layout.adjust_for_form(form));
    let flags = Flags {
        dropped: fixed[1] & 0x80 != 0,
        congested: fixed[1] & 0x40 != 0,
        tracked: fixed[1] & 0x20 != 0,
        intermediate: false,
    };
    (into.version, into.switch, into.flags, into.local) =
        (ReportVersion::V05, local.switch_number(), flags, local);
    packet::read(rest, First::Ethernet, form.for_packet(flags.tracked), &mut into.packet);
    Ok(())
}
