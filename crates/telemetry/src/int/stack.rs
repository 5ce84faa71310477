//! Metadata that switches add to a packet on its way: INT header and stack, after TCP or UDP.

use super::metadata::Layout;
use super::{Metadata, dialect::Form, int_v05, int_v10, int_v21};
use dta_proto::wire::{Error, Layer, Result, WireErrorKind, saturating_u16};

/// Length of the shim between the TCP or UDP header and INT, in all versions.
pub(super) const SHIM_LEN: usize = 4;
/// Shim type for metadata that hops add ("hop by hop", INT-MD).
pub(super) const TYPE_HOP_BY_HOP: u8 = 1;
/// Shim type for instructions only (INT-MX, v2.1).
pub(super) const TYPE_MX: u8 = 3;

/// What a guess must not overlook: bits that the specification fixes at 0.
pub(super) fn reserved_bits(offset: u16) -> Error {
    err("reserved", offset, WireErrorKind::Contradiction)
}

pub(super) fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Int, field, offset, kind)
}

#[derive(Clone, Copy, Debug)]
pub struct Stack<'a> {
    /// Whole hops, newest first.
    pub(super) bytes: &'a [u8],
    /// Length of one hop, not 0.
    pub(super) hop_len: u8,
    pub(super) layout: Layout,
    pub(super) is_mx: bool,
    /// The header is consistent, but the hops cannot be located: the bytes end too early, or the number of
    /// the domain's bytes is unknown.
    pub(super) is_unread: bool,
}

/// What follows a stack, and what the packet was before INT was added.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Behind {
    /// Bytes from the shim to the end of INT.
    pub(super) len: usize,
    /// The UDP or TCP destination port, if INT has it.
    pub(super) port: Option<u16>,
    /// The protocol of a following header, if the UDP header is INT's own.
    pub(super) next_header: Option<u8>,
}

impl<'a> Stack<'a> {
    /// INT whose hops are not read.
    pub(super) const UNREAD: Stack<'static> =
        Stack { bytes: &[], hop_len: 4, layout: Layout::NONE, is_mx: false, is_unread: true };

    pub fn len(&self) -> usize {
        self.bytes.len() / usize::from(self.hop_len)
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The hops, newest first, as in the packet.
    #[inline]
    pub fn hops_newest_first(
        &self,
    ) -> impl DoubleEndedIterator<Item = Metadata<'a>> + ExactSizeIterator + use<'a> {
        let layout = self.layout;
        self.bytes.chunks_exact(self.hop_len.into()).map(move |hop| Metadata::new(hop, layout))
    }

    /// Whether it is INT-MX (v2.1): the packet carries only instructions, and each hop sends the metadata in
    /// a report of its own.
    pub fn is_int_mx(&self) -> bool {
        self.is_mx
    }
}

/// Parses INT at the start of these bytes: shim, header, stack, and in v0.5 the tail.
///
/// The version comes from the header: v2.1 says 2, v1.0 says 1 or 0, and v0.5 counts its instructions where v1.0 has
/// reserved bits. If INT is only a guess, everything that the specification fixes must match: reserved bits are 0, and
/// there is at least one hop. Otherwise, encrypted bytes would often be taken for INT.
#[inline]
pub(super) fn parse_stack<'a>(bytes: &'a [u8], over_tcp: bool, form: &Form) -> Result<(Stack<'a>, Behind)> {
    let have = saturating_u16(bytes.len());
    let Some(head) = bytes.first_chunk::<8>() else {
        return Err(err("header", SHIM_LEN as u16, WireErrorKind::Truncated { need: 8, have }));
    };
    let (mut stack, behind) = match head[4] >> 4 {
        2 => int_v21::parse_stack(bytes, over_tcp, form)?,
        0 | 1 if head[5] & 0x1f != 0 => int_v05::parse_stack(bytes, form)?,
        0 | 1 => int_v10::parse_stack(bytes, form)?,
        other => return Err(err("version", 4, WireErrorKind::UnknownVersion(other))),
    };
    stack.layout = stack.layout.adjust_for_form(form);
    Ok((stack, behind))
}
