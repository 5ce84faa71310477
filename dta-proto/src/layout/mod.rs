//! What lies in memory: where a store's elements are, their bytes, and how a reader checks them.
//!
//! Shared by the translator, which writes elements through the NIC, and the collector, which reads them.
//! `docs/memory-layout.md` draws every byte and `vectors/layout.json` has test vectors for any
//! implementation.
//!
//! - [`hash`]: slots and checksums, used by all keyed stores.
//! - [`key_write`], [`postcarding`], [`append`], [`key_increment`], [`sketch_merge`]: one store
//!   each. They encode one element into `&mut [u8]`, and check and decode one from `&[u8]`: a
//!   private copy of the element, since the region itself changes under the reader.
//! - [`element_fields`]: the same elements as named numbers, for whoever shows or stores them without decoding them.
//! - [`load`]: how full a store is and what that does to answers.
//!
//! Decoding accepts any bytes without panicking. Encoding panics if the buffer does not have the length of
//! the store's element ([`StoreSpec::element_len`](crate::store::StoreSpec::element_len)): that is the
//! caller's mistake, not the input's.

pub mod append;
pub mod hash;
pub mod key_increment;
pub mod key_write;
pub mod load;
pub mod postcarding;
pub mod sketch_merge;

use crate::store::StoreKind;

/// The type of an element's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementField {
    /// A number of 2 bytes, big-endian.
    Be16,
    /// A number of 4 bytes, big-endian.
    Be32,
    /// A number of 2 bytes, little-endian.
    Le16,
    /// A number of 8 bytes, little-endian.
    Le64,
    /// This many bytes.
    Bytes(usize),
}

impl ElementField {
    /// Its bytes.
    pub fn size_in_bytes(self) -> usize {
        match self {
            Self::Be16 | Self::Le16 => 2,
            Self::Be32 => 4,
            Self::Le64 => 8,
            Self::Bytes(size) => size,
        }
    }
}

/// The fields of an element by name, back to back from its first byte on. None for lists, whose batches hold entries.
pub fn element_fields(kind: &StoreKind) -> Vec<(String, ElementField)> {
    match *kind {
        StoreKind::KeyWrite { value_len, keys, .. } => key_write::slot_fields(value_len, keys),
        StoreKind::Postcarding { hops, .. } => postcarding::row_fields(hops),
        StoreKind::Append { .. } => Vec::new(),
        StoreKind::KeyIncrement { .. } => key_increment::counter_fields(),
        StoreKind::SketchMerge { rows, .. } => sketch_merge::column_fields(rows),
    }
}

/// Numbers of four bytes each, named `NAME_0` and up.
fn numbered_fields(name: &str, count: u8) -> impl Iterator<Item = (String, ElementField)> {
    (0..count).map(move |n| (format!("{name}_{n}"), ElementField::Be32))
}

/// Four big-endian bytes of `bytes` at `at`, which the caller has checked to exist.
#[inline]
fn read_be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Two big-endian bytes at `at`, which the caller has checked to exist.
#[inline]
fn read_be_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
