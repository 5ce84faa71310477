//! INT v0.5 over TCP and UDP.
//!
//! Shim: `type 8, reserved 8, length 8, reserved 8`. Header, 8 bytes: `version 4, rep 2, C 1, E 1,
//! reserved 3, instruction count 5, max hops 8, total hops 8, instructions 16, reserved 16`. Then the
//! stack, and a tail of 4 bytes: `protocol 8, port 16, DSCP 8`. The length counts all of them, in words;
//! generators leave it 0, which is accepted too, since the header alone gives the length of the stack.
//!
//! GÉANT's program for INT v0.4 sends timestamps of 64 bits under the same instruction count: the length shows it.

use super::IntVersion;
use super::dialect::Form;
use super::metadata::{Instructions, Layout, TIMES};
use super::stack::{Behind, SHIM_LEN, Stack, TYPE_HOP_BY_HOP, err, reserved_bits};
use dta_proto::wire::{Result, WireErrorKind, saturating_u16};

const HEADER_LEN: usize = 8;
const TAIL_LEN: usize = 4;
static INSTRUCTIONS: Instructions = Instructions::for_version(IntVersion::V05);
static WITH_WIDE_TIMES: Instructions =
    Instructions { wide: TIMES, ..Instructions::for_version(IntVersion::V05) };

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
    let count = u32::from(head[5] & 0x1f);
    if count == 0 || INSTRUCTIONS.word_count(instructions) != count {
        return Err(err("instruction_count", 5, WireErrorKind::Contradiction));
    }
    let hops = usize::from(head[7]);
    if form.is_guessed() && ((head[1] | head[3] | head[5] & 0xe0 | head[10] | head[11]) != 0 || hops == 0) {
        return Err(reserved_bits(1));
    }
    let length = usize::from(head[2]) * 4;
    let stack_end = |hop_len: usize| SHIM_LEN + HEADER_LEN + hops * hop_len;
    let (mut kinds, mut hop_len) = (&INSTRUCTIONS, count as usize * 4);
    if length != 0 && length != stack_end(hop_len) + TAIL_LEN {
        (kinds, hop_len) = (&WITH_WIDE_TIMES, WITH_WIDE_TIMES.word_count(instructions) as usize * 4);
        if length != stack_end(hop_len) + TAIL_LEN {
            return Err(err("length", 2, WireErrorKind::Length(u16::from(head[2]) * 4)));
        }
    }
    let stack_end = stack_end(hop_len);
    let end = stack_end + TAIL_LEN;
    let Some(stack) = bytes.get(SHIM_LEN + HEADER_LEN..stack_end) else {
        return Ok((Stack::UNREAD, Behind { len: end, port: None, next_header: None }));
    };
    // A packet truncated to its headers may end here.
    let tail = bytes.get(stack_end..end).and_then(|tail| tail.first_chunk::<TAIL_LEN>());
    let port = tail.map(|tail| u16::from_be_bytes([tail[1], tail[2]])).filter(|port| *port != 0);
    let stack = Stack {
        bytes: stack,
        hop_len: hop_len as u8,
        layout: Layout::from_bitmap(kinds, instructions, 0),
        is_mx: false,
        is_unread: false,
    };
    Ok((stack, Behind { len: end, port, next_header: None }))
}
