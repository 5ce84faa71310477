//! A report of either version.

use super::{DtaBody, IMMEDIATE, RESTARTED, RETRANSMITTABLE, Version};
use crate::wire::error::saturating_u16;
use crate::wire::{Error, Layer, Result, WireErrorKind};

/// One report, borrowing its value from the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DtaReport<'a> {
    /// Version it was received in, or will be sent in.
    pub version: Version,
    /// Whether to wake a reader now (by a write with immediate). Only lists marked `notify` do that.
    pub immediate: bool,
    /// Whether the reporter keeps a copy and answers NACKs by retransmitting it.
    pub retransmittable: bool,
    /// Whether the reporter has restarted: its sequence starts over with this report.
    pub restarted: bool,
    /// Sequence number, per reporter and translator. Version 0 has the low 8 bits only.
    pub sequence: u32,
    /// Reporter id; 0 in version 0.
    pub reporter: u16,
    /// Store id; 0 in version 0, where configuration sets the store of each primitive.
    pub store: u16,
    /// The primitive and its fields.
    pub body: DtaBody<'a>,
}

impl<'a> DtaReport<'a> {
    /// A version-1 report for a store with all flags off, sequence number 0 and reporter id 0.
    pub const fn new(store: u16, body: DtaBody<'a>) -> DtaReport<'a> {
        DtaReport {
            version: Version::V1,
            immediate: false,
            retransmittable: false,
            restarted: false,
            sequence: 0,
            reporter: 0,
            store,
            body,
        }
    }

    /// Byte 2.
    pub(super) const fn flags_byte(&self) -> u8 {
        let mut flags = match self.version {
            Version::V0 => 0,
            Version::V1 => 1,
        };
        if self.immediate {
            flags |= IMMEDIATE;
        }
        if self.retransmittable {
            flags |= RETRANSMITTABLE;
        }
        if self.restarted {
            flags |= RESTARTED;
        }
        flags
    }
}

/// The first `need` bytes of `buffer`, or an error if it is too small.
pub(super) fn report_buffer(layer: Layer, buffer: &mut [u8], need: usize) -> Result<&mut [u8]> {
    let have = saturating_u16(buffer.len());
    buffer.get_mut(..need).ok_or(Error::new(
        layer,
        "report",
        0,
        WireErrorKind::BufferTooSmall { need: saturating_u16(need), have },
    ))
}
