//! A report of either version.

use super::{IMMEDIATE, Primitive, RESTARTED, RETRANSMITTABLE, Version};
use crate::key::Key;
use crate::wire::error::len16;
use crate::wire::{Error, Kind, Layer, Result};

/// One report, borrowing its value from the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
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
    pub body: Body<'a>,
}

/// The primitive of a report and its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The last value of a key.
    KeyWrite {
        /// Copies to write; 0 = as many as the store has.
        redundancy: u8,
        /// The key.
        key: Key,
        /// 4 to 60 bytes, a multiple of 4; 4 in version 0.
        value: &'a [u8],
    },
    /// An entry at the end of a list.
    Append {
        /// List number, from 0.
        list: u32,
        /// The entry: 4 to 60 bytes, a multiple of 4; 4 in version 0.
        value: &'a [u8],
    },
    /// Addition to the counters of a key.
    KeyIncrement {
        /// Counters to add to; 0 = as many as the store has.
        redundancy: u8,
        /// The key.
        key: Key,
        /// What to add, modulo 2^64.
        delta: u64,
    },
    /// One hop of a path.
    Postcard {
        /// The key: one path.
        key: Key,
        /// Hop, from 0 to 13.
        hop: u8,
        /// Hops of the whole path, 1 to 14, more than `hop`; 0 = unknown (always in version 0).
        path_length: u8,
        /// What the hop reports.
        value: u32,
    },
    /// One column of a sketch. Version 1 only.
    SketchMerge {
        /// Epoch of the sketch.
        epoch: u32,
        /// Column number, from 0.
        column: u32,
        /// A big-endian `u32` for each of 1 to 4 rows.
        cells: &'a [u8],
    },
}

impl Body<'_> {
    /// The primitive.
    pub const fn primitive(&self) -> Primitive {
        match self {
            Body::KeyWrite { .. } => Primitive::KeyWrite,
            Body::Append { .. } => Primitive::Append,
            Body::KeyIncrement { .. } => Primitive::KeyIncrement,
            Body::Postcard { .. } => Primitive::Postcarding,
            Body::SketchMerge { .. } => Primitive::SketchMerge,
        }
    }
}

impl Report<'_> {
    /// Byte 2.
    pub(super) const fn flags(&self) -> u8 {
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
pub(super) fn room(layer: Layer, buffer: &mut [u8], need: usize) -> Result<&mut [u8]> {
    let have = len16(buffer.len());
    buffer.get_mut(..need).ok_or(Error::new(
        layer,
        "report",
        0,
        Kind::BufferTooSmall { need: len16(need), have },
    ))
}
