//! DTA reports, from reporter to translator, and NACKs, back to the reporter.
//!
//! `docs/wire-format.md` draws every byte. A datagram holds one report, of exactly its length.
//! Reserved bits and bytes are ignored on receipt and sent as zero.

mod codec;
mod fields;
mod nack;
mod report;
mod v0;
mod v1;

pub use fields::Fields;
pub use nack::{NACK_V0_LEN, NACK_V1_LEN, Nack};
pub use report::{Body, Report};
pub use v1::HEADER_LEN as V1_HEADER_LEN;

/// UDP destination port of reports.
pub const PORT: u16 = 40040;
/// UDP destination port of version-0 NACKs. Version-1 NACKs go to the report's source port.
pub const NACK_PORT_V0: u16 = 40044;
/// Most hops of a path; hops are numbered from 0 to 13.
pub const MAX_HOPS: u8 = 14;
/// Shortest value in bytes.
pub const MIN_VALUE_LEN: usize = 4;
/// Longest value in bytes.
pub const MAX_VALUE_LEN: usize = 60;
/// Most rows of a sketch column.
pub const MAX_ROWS: usize = 4;
/// Longest report in bytes: header, key and the longest value.
pub const MAX_REPORT_LEN: usize = V1_HEADER_LEN + crate::key::KEY_LEN + MAX_VALUE_LEN;

/// Version of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// For existing reporters and traffic generators: 4-byte keys and values, 8-bit sequences.
    V0,
    /// 16-byte keys, values of 4 to 60 bytes, store and reporter ids, 32-bit sequences.
    V1,
}

/// The five primitives, by their opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Primitive {
    /// The last value of a key.
    KeyWrite = 1,
    /// An entry at the end of a list.
    Append = 2,
    /// Addition to the counters of a key.
    KeyIncrement = 3,
    /// One hop of a path.
    Postcarding = 4,
    /// One column of a sketch, to be merged with those of other reporters.
    SketchMerge = 5,
}

impl Primitive {
    /// All five, in the order of their opcodes.
    pub const ALL: [Primitive; 5] = [
        Primitive::KeyWrite,
        Primitive::Append,
        Primitive::KeyIncrement,
        Primitive::Postcarding,
        Primitive::SketchMerge,
    ];

    /// The primitive with this opcode.
    pub const fn from_opcode(opcode: u8) -> Option<Primitive> {
        match opcode {
            1 => Some(Primitive::KeyWrite),
            2 => Some(Primitive::Append),
            3 => Some(Primitive::KeyIncrement),
            4 => Some(Primitive::Postcarding),
            5 => Some(Primitive::SketchMerge),
            _ => None,
        }
    }

    /// Byte 0 of its reports.
    pub const fn opcode(self) -> u8 {
        self as u8
    }

    /// Whether version 0 has a report of it.
    pub const fn in_version0(self) -> bool {
        !matches!(self, Primitive::SketchMerge)
    }

    /// Its place in [`Primitive::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }

    /// Its name, as in configuration, counters and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Primitive::KeyWrite => "key-write",
            Primitive::Append => "append",
            Primitive::KeyIncrement => "key-increment",
            Primitive::Postcarding => "postcarding",
            Primitive::SketchMerge => "sketch-merge",
        }
    }
}

impl core::fmt::Display for Primitive {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// Bit 7 of byte 2: wake a reader.
const IMMEDIATE: u8 = 0x80;
/// Bit 6 of byte 2: the reporter keeps a copy and wants NACKs for gaps.
const RETRANSMITTABLE: u8 = 0x40;
/// Bit 5 of byte 2: the reporter has restarted, its sequence starts over.
const RESTARTED: u8 = 0x20;
/// Bits 1 and 0 of byte 2.
const VERSION: u8 = 0x03;
