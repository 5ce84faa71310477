//! DTA reports, from reporter to translator, and NACKs, back to the reporter.
//!
//! `docs/wire-format.md` draws every byte. A datagram holds one report, of exactly its length.
//! Reserved bits and bytes are ignored on receipt and sent as zero.

mod body;
mod codec;
mod fields;
mod nack;
mod primitive;
mod report;
mod v0;
mod v1;

pub use body::{Address, DtaBody};
pub use fields::ReportFields;
pub use nack::{NACK_V0_LEN, NACK_V1_LEN, Nack};
pub use primitive::{Addressing, Description, EpochEnd, Primitive, Replicas};
pub use report::DtaReport;
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

/// Bit 7 of byte 2: wake a reader.
const IMMEDIATE: u8 = 0x80;
/// Bit 6 of byte 2: the reporter keeps a copy and wants NACKs for gaps.
const RETRANSMITTABLE: u8 = 0x40;
/// Bit 5 of byte 2: the reporter has restarted, and its sequence starts over.
const RESTARTED: u8 = 0x20;
/// Bits 1 and 0 of byte 2.
const VERSION: u8 = 0x03;
