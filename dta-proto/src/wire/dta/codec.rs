//! Parsing and writing reports of either version.

use super::{DtaReport, Primitive, VERSION, Version, v0, v1};
use crate::wire::error::saturating_u16;
use crate::wire::{Error, Layer, Result, WireErrorKind};

impl<'a> DtaReport<'a> {
    /// Parses the payload of one UDP datagram.
    #[inline(always)] // on the path of every report
    pub fn parse_payload(bytes: &'a [u8]) -> Result<DtaReport<'a>> {
        let [opcode, sequence, flags, rest @ ..] = bytes else {
            let kind = WireErrorKind::Truncated { need: 3, have: saturating_u16(bytes.len()) };
            return Err(Error::new(Layer::Dta, "header", 0, kind));
        };
        match flags & VERSION {
            0 => v0::parse_report(*opcode, *sequence, *flags, rest),
            1 => v1::parse_report(bytes),
            version => Err(Error::new(Layer::Dta, "version", 2, WireErrorKind::UnknownVersion(version))),
        }
    }

    /// Whether the bytes start like a version-1 report of this primitive.
    #[inline]
    pub fn has_v1_prefix(primitive: Primitive, bytes: &[u8]) -> bool {
        matches!(bytes, [opcode, _, flags, ..] if *opcode == primitive.opcode() && flags & VERSION == 1)
    }

    /// Length of what [`DtaReport::encode_into`] writes, if it can.
    pub const fn buffer_len(&self) -> usize {
        match self.version {
            Version::V0 => v0::buffer_len(&self.body),
            Version::V1 => v1::buffer_len(&self.body),
        }
    }

    /// Writes the report to the start of `buffer` and returns its length.
    ///
    /// Fails, writing nothing, if the buffer is too small, a field is out of range, or version 0 cannot
    /// express it: a sketch-merge, a store, a reporter, a path length, a key longer than 4 bytes, or a value
    /// whose length is not 4 bytes. Version 0 carries the low 8 bits of the sequence.
    #[inline]
    pub fn encode_into(&self, buffer: &mut [u8]) -> Result<usize> {
        match self.version {
            Version::V0 => v0::encode_report(self, buffer),
            Version::V1 => v1::encode_report(self, buffer),
        }
    }
}
