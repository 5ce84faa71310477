//! INT v1.0 over TCP and UDP.
//!
//! Shim: `type 8, reserved 8, length 8, DSCP 6, reserved 2`; the length counts shim, header and stack, in
//! words. Header, 8 bytes: `version 4, rep 2, C 1, E 1, M 1, reserved 10, hop words 5, remaining hops 8,
//! instructions 16, reserved 16`. No tail.
//!
//! The hop words tell three dialects from the specification, where only bit 6 takes 8 bytes: INTCollector's
//! bit 6 has 4 bytes and is that of v0.5, and GÉANT's timestamps have 8 bytes.

use super::IntVersion;
use super::dialect::Form;
use super::metadata::{BIT_6, Instructions, Layouts, TIMES};
use super::stack::{Behind, SHIM_LEN, Stack, TYPE_HOP_BY_HOP, err, reserved_bits};
use dta_proto::wire::{Result, WireErrorKind, saturating_u16};

const HEADER_LEN: usize = 8;

const SPECIFIED: Instructions = Instructions::for_version(IntVersion::V10);
/// In the order of attempts.
static DIALECTS: [(Instructions, Layouts); 4] = [
    with_layouts(SPECIFIED),
    with_layouts(SPECIFIED.with_congestion()),
    with_layouts(Instructions { wide: TIMES | BIT_6, ..SPECIFIED }),
    with_layouts(Instructions { wide: TIMES, ..SPECIFIED.with_congestion() }),
];

const fn with_layouts(instructions: Instructions) -> (Instructions, Layouts) {
    (instructions, Layouts::from_instructions(&instructions, 0))
}

#[inline]
pub(super) fn parse_stack<'a>(bytes: &'a [u8], form: &Form) -> Result<(Stack<'a>, Behind)> {
    let have = saturating_u16(bytes.len());
    let truncated =
        |field, need: usize| err(field, 12, WireErrorKind::Truncated { need: saturating_u16(need), have });
    let Some(head) = bytes.first_chunk::<{ SHIM_LEN + HEADER_LEN }>() else {
        return Err(truncated("header", SHIM_LEN + HEADER_LEN));
    };
    if head[0] != TYPE_HOP_BY_HOP {
        return Err(err("type", 0, WireErrorKind::Reserved(head[0])));
    }
    let instructions = u16::from_be_bytes([head[8], head[9]]);
    let hop_words = head[6] & 0x1f;
    let Some((_, layouts)) =
        DIALECTS.iter().find(|(of, _)| of.word_count(instructions) == u32::from(hop_words))
    else {
        return Err(err("hop_words", 6, WireErrorKind::Contradiction));
    };
    let (end, hop_len) = (usize::from(head[2]) * 4, usize::from(hop_words) * 4);
    let Some(stack_len) = end.checked_sub(SHIM_LEN + HEADER_LEN) else {
        return Err(err("length", 2, WireErrorKind::Length(saturating_u16(end))));
    };
    if hop_len == 0 || stack_len % hop_len != 0 {
        return Err(err("length", 2, WireErrorKind::Length(saturating_u16(end))));
    }
    let reserved = head[1] | head[3] & 3 | head[5] & 0x7f | head[6] & 0xe0 | head[10] | head[11];
    if form.is_guessed() && (reserved != 0 || stack_len == 0) {
        return Err(reserved_bits(1));
    }
    let behind = Behind { len: end, port: None, next_header: None };
    let Some(bytes) = bytes.get(SHIM_LEN + HEADER_LEN..end) else { return Ok((Stack::UNREAD, behind)) };
    let (hop_len, layout) = (hop_len as u8, layouts.get(instructions));
    Ok((Stack { bytes, hop_len, layout, is_mx: false, is_unread: false }, behind))
}
