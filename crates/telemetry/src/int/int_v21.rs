//! INT v2.0 and v2.1 (INT-MD and INT-MX) over TCP and UDP.
//!
//! Shim: `type 4, NPT 2, reserved 2, length 8`, then 16 bits by NPT: 0 the DSCP, 1 the UDP destination port,
//! 2 the protocol of the header that follows INT, as the UDP header before it is INT's own. The length counts
//! header and stack, in words. Header, 12 bytes: `version 4 = 2, D 1, E 1, M 1, reserved 12, hop words 5,
//! remaining hops 8, instructions 16, domain 16, domain instructions 16, domain flags 16`.
//!
//! The metadata of a domain ends each hop, and is not read. What only the source added ("source-only")
//! follows the last hop. Its length is not in the bytes but in the setting; without one, it is whatever does not fill a
//! hop. If hops have no metadata of the domain and fill the stack, it is unknown how much is the source's, and no hop
//! is read. Transparent Security's (domain 0x5453) is known: the MAC of the first device, in 2 words.
//!
//! INT-MX has the same shim, of type 3. Its header, 12 bytes:
//! `version 4 = 2, D 1, reserved 27, instructions 16, domain 16, domain instructions 16, domain flags 16`. No
//! hop adds to it; what the source inserted for its domain follows.

use super::IntVersion;
use super::dialect::Form;
use super::metadata::{Instructions, Layout};
use super::stack::{Behind, SHIM_LEN, Stack, TYPE_HOP_BY_HOP, TYPE_MX, err, reserved_bits};
use dta_proto::wire::{Result, WireErrorKind, saturating_u16};

const HEADER_LEN: usize = 12;
static INSTRUCTIONS: Instructions = Instructions::for_version(IntVersion::V21);
const TRANSPARENT_SECURITY: u16 = 0x5453;
/// Its domain instruction for what the source adds, and how many words that is.
const FIRST_MAC: u16 = 0x8000;
const FIRST_MAC_WORDS: usize = 2;

#[inline]
pub(super) fn parse_stack<'a>(bytes: &'a [u8], over_tcp: bool, form: &Form) -> Result<(Stack<'a>, Behind)> {
    let have = saturating_u16(bytes.len());
    let truncated =
        |field, need: usize| err(field, 16, WireErrorKind::Truncated { need: saturating_u16(need), have });
    let Some(head) = bytes.first_chunk::<{ SHIM_LEN + HEADER_LEN }>() else {
        return Err(truncated("header", SHIM_LEN + HEADER_LEN));
    };
    let kind = head[0] >> 4;
    if kind != TYPE_HOP_BY_HOP && kind != TYPE_MX {
        return Err(err("type", 0, WireErrorKind::Reserved(kind)));
    }
    let parameter = u16::from_be_bytes([head[2], head[3]]);
    // In this version, the length stands in byte 1 and the 16 bits after it.
    let words = usize::from(head[1]);
    let (port, next_header) = match head[0] >> 2 & 3 {
        0 => (None, None),
        1 => (Some(parameter), None),
        2 => (None, Some(parameter as u8)),
        other => return Err(err("npt", 0, WireErrorKind::Reserved(other))),
    };
    let domain = u16::from_be_bytes([head[10], head[11]]);
    // Over TCP no port marks INT, and "in the other cases this field must be zero".
    let has_domain_fields = head[12..] != [0; 4];
    if form.is_guessed()
        && (head[0] & 3 != 0 || over_tcp && head[0] & 0xc != 0 || domain == 0 && has_domain_fields)
    {
        return Err(reserved_bits(0));
    }
    if kind == TYPE_MX {
        let stack = parse_mx_stack(bytes, words, form)?;
        return Ok((stack, Behind { len: SHIM_LEN + words * 4, port, next_header }));
    }
    let instructions = u16::from_be_bytes([head[8], head[9]]);
    let domain_instructions = u16::from_be_bytes([head[12], head[13]]);
    let hop_words = usize::from(head[6] & 0x1f);
    if (INSTRUCTIONS.word_count(instructions) as usize) > hop_words {
        return Err(err("hop_words", 6, WireErrorKind::Contradiction));
    }
    let length_is_wrong = || err("length", 1, WireErrorKind::Length(saturating_u16(words * 4)));
    let Some(stack_words) = words.checked_sub(HEADER_LEN / 4) else { return Err(length_is_wrong()) };
    if hop_words == 0 {
        return Err(err("hop_words", 6, WireErrorKind::Length(0)));
    }
    let source_only = match form.source_only_words {
        _ if domain_instructions == 0 => 0,
        0 if domain == TRANSPARENT_SECURITY && domain_instructions == FIRST_MAC => FIRST_MAC_WORDS,
        0 => stack_words % hop_words,
        set => usize::from(set),
    };
    let hops = match stack_words.checked_sub(source_only) {
        Some(hops) if hops % hop_words == 0 => hops,
        _ => return Err(length_is_wrong()),
    };
    let end = SHIM_LEN + words * 4;
    if form.is_guessed() && (head[4] & 1 | head[5] | head[6] & 0xe0 != 0 || hops == 0) {
        return Err(reserved_bits(4));
    }
    let behind = Behind { len: end, port, next_header };
    let hops_have_domain = INSTRUCTIONS.word_count(instructions) as usize != hop_words;
    let is_ambiguous = domain_instructions != 0 && source_only == 0 && !hops_have_domain;
    let stack = match bytes.get(SHIM_LEN + HEADER_LEN..end) {
        Some(stack) if !is_ambiguous => stack,
        _ => return Ok((Stack::UNREAD, behind)),
    };
    let stack = Stack {
        bytes: &stack[..hops * 4],
        hop_len: hop_words as u8 * 4,
        layout: Layout::from_bitmap(&INSTRUCTIONS, instructions, 0),
        is_mx: false,
        is_unread: false,
    };
    Ok((stack, behind))
}

/// The instructions of INT-MX: a stack to which no hop adds. `words` counts header and source-inserted metadata.
#[cold]
fn parse_mx_stack<'a>(bytes: &'a [u8], words: usize, form: &Form) -> Result<Stack<'a>> {
    let have = saturating_u16(bytes.len());
    let end = SHIM_LEN + words * 4;
    let Some(head) = bytes.get(..end).and_then(|int| int.first_chunk::<{ SHIM_LEN + HEADER_LEN }>()) else {
        return Err(match words < HEADER_LEN / 4 {
            true => err("length", 1, WireErrorKind::Length(saturating_u16(words * 4))),
            false => {
                err("header", SHIM_LEN as u16, WireErrorKind::Truncated { need: saturating_u16(end), have })
            }
        });
    };
    let domain_instructions = u16::from_be_bytes([head[12], head[13]]);
    // Ignored if this is known to be INT. If it is a guess, too much else would parse as INT-MX.
    let reserved = [head[4] & 7, head[5], head[6], head[7]];
    if form.is_guessed() && reserved != [0; 4] {
        return Err(err("reserved", 4, WireErrorKind::Contradiction));
    }
    if domain_instructions == 0 && words != HEADER_LEN / 4 {
        return Err(err("length", 1, WireErrorKind::Length(saturating_u16(words * 4))));
    }
    Ok(Stack { bytes: &[], hop_len: 4, layout: Layout::NONE, is_mx: true, is_unread: false })
}
