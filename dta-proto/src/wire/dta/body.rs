//! The contents of a report: the primitive with its fields, and their bytes after the version-1 header (the key of keyed
//! primitives, the primitive's own fields, its value).

use super::v1::{HEADER_LEN, err};
use super::{MAX_HOPS, MAX_ROWS, MAX_VALUE_LEN, MIN_VALUE_LEN, Primitive};
use crate::key::{KEY_LEN, Key};
use crate::wire::error::saturating_u16;
use crate::wire::{Result, WireErrorKind};

/// The primitive of a report and its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtaBody<'a> {
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

/// What a report addresses in its store: [`Addressing`](super::Addressing) with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// A key.
    Key(&'a Key),
    /// A list.
    List(u32),
    /// A column.
    Column(u32),
}

impl<'a> DtaBody<'a> {
    /// The primitive.
    pub const fn primitive(&self) -> Primitive {
        match self {
            DtaBody::KeyWrite { .. } => Primitive::KeyWrite,
            DtaBody::Append { .. } => Primitive::Append,
            DtaBody::KeyIncrement { .. } => Primitive::KeyIncrement,
            DtaBody::Postcard { .. } => Primitive::Postcarding,
            DtaBody::SketchMerge { .. } => Primitive::SketchMerge,
        }
    }

    /// What it addresses in its store.
    #[inline]
    pub const fn store_address(&self) -> Address<'_> {
        match self {
            DtaBody::KeyWrite { key, .. }
            | DtaBody::KeyIncrement { key, .. }
            | DtaBody::Postcard { key, .. } => Address::Key(key),
            DtaBody::Append { list, .. } => Address::List(*list),
            DtaBody::SketchMerge { column, .. } => Address::Column(*column),
        }
    }

    /// Reads the bytes after the header; `argument` is the header's byte 3.
    #[inline(always)] // on the path of every report: no part of it should pass through memory
    pub(super) fn parse_fields(primitive: Primitive, argument: u8, rest: &'a [u8]) -> Result<DtaBody<'a>> {
        let mut rest = BodyReader { bytes: rest, at: HEADER_LEN };
        Ok(match primitive {
            Primitive::KeyWrite => {
                DtaBody::KeyWrite { redundancy: argument, key: rest.read_key()?, value: rest.read_value()? }
            }
            Primitive::Append => DtaBody::Append { list: rest.read_u32("list")?, value: rest.read_value()? },
            Primitive::KeyIncrement => {
                let key = rest.read_key()?;
                let delta = u64::from_be_bytes(*rest.take("delta")?);
                rest.expect_end()?;
                DtaBody::KeyIncrement { redundancy: argument, key, delta }
            }
            Primitive::Postcarding => {
                let (path_length, hop) = (argument >> 4, argument & 0xf);
                check_hop(hop, path_length)?;
                let key = rest.read_key()?;
                let value = rest.read_u32("value")?;
                rest.expect_end()?;
                DtaBody::Postcard { key, hop, path_length, value }
            }
            Primitive::SketchMerge => {
                let epoch = rest.read_u32("epoch")?;
                let column = rest.read_u32("column")?;
                check_cells(rest.bytes, rest.at)?;
                DtaBody::SketchMerge { epoch, column, cells: rest.bytes }
            }
        })
    }

    /// Number of bytes after the header.
    pub(super) const fn len(&self) -> usize {
        match self {
            DtaBody::KeyWrite { value, .. } => KEY_LEN + value.len(),
            DtaBody::Append { value, .. } => 4 + value.len(),
            DtaBody::KeyIncrement { .. } => KEY_LEN + 8,
            DtaBody::Postcard { .. } => KEY_LEN + 4,
            DtaBody::SketchMerge { cells, .. } => 8 + cells.len(),
        }
    }

    /// Byte 3 of the header; an error if there is no such report.
    #[inline]
    pub(super) fn header_argument(&self) -> Result<u8> {
        Ok(match *self {
            DtaBody::KeyWrite { redundancy, value, .. } => {
                check_value(value, HEADER_LEN + KEY_LEN)?;
                redundancy
            }
            DtaBody::Append { value, .. } => {
                check_value(value, HEADER_LEN + 4)?;
                0
            }
            DtaBody::KeyIncrement { redundancy, .. } => redundancy,
            DtaBody::Postcard { hop, path_length, .. } => {
                check_hop(hop, path_length)?;
                path_length << 4 | hop
            }
            DtaBody::SketchMerge { cells, .. } => {
                check_cells(cells, HEADER_LEN + 8)?;
                0
            }
        })
    }

    /// Writes the [`DtaBody::len`] bytes after the header; [`DtaBody::header_argument`] has checked the contents.
    #[inline]
    pub(super) fn write_fields(&self, rest: &mut [u8]) {
        match *self {
            DtaBody::KeyWrite { key, value, .. } => {
                rest[..KEY_LEN].copy_from_slice(&key.0);
                rest[KEY_LEN..].copy_from_slice(value);
            }
            DtaBody::Append { list, value } => {
                rest[..4].copy_from_slice(&list.to_be_bytes());
                rest[4..].copy_from_slice(value);
            }
            DtaBody::KeyIncrement { key, delta, .. } => {
                rest[..KEY_LEN].copy_from_slice(&key.0);
                rest[KEY_LEN..].copy_from_slice(&delta.to_be_bytes());
            }
            DtaBody::Postcard { key, value, .. } => {
                rest[..KEY_LEN].copy_from_slice(&key.0);
                rest[KEY_LEN..].copy_from_slice(&value.to_be_bytes());
            }
            DtaBody::SketchMerge { epoch, column, cells } => {
                rest[..4].copy_from_slice(&epoch.to_be_bytes());
                rest[4..8].copy_from_slice(&column.to_be_bytes());
                rest[8..].copy_from_slice(cells);
            }
        }
    }
}

/// A cursor over the bytes after the header.
struct BodyReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BodyReader<'a> {
    #[inline]
    fn take<const N: usize>(&mut self, field: &'static str) -> Result<&'a [u8; N]> {
        match self.bytes.split_first_chunk() {
            Some((taken, rest)) => {
                self.bytes = rest;
                self.at += N;
                Ok(taken)
            }
            None => {
                let (need, have) = (saturating_u16(self.at + N), saturating_u16(self.at + self.bytes.len()));
                Err(err(field, self.at, WireErrorKind::Truncated { need, have }))
            }
        }
    }

    #[inline]
    fn read_key(&mut self) -> Result<Key> {
        Ok(Key(*self.take::<KEY_LEN>("key")?))
    }

    #[inline]
    fn read_u32(&mut self, field: &'static str) -> Result<u32> {
        Ok(u32::from_be_bytes(*self.take(field)?))
    }

    /// All remaining bytes, as a value.
    #[inline]
    fn read_value(&mut self) -> Result<&'a [u8]> {
        check_value(self.bytes, self.at)?;
        Ok(self.bytes)
    }

    #[inline]
    fn expect_end(&self) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let (most, have) = (saturating_u16(self.at), saturating_u16(self.at + self.bytes.len()));
        Err(err("end", self.at, WireErrorKind::TooLong { most, have }))
    }
}

#[inline]
fn check_value(value: &[u8], at: usize) -> Result<()> {
    if (MIN_VALUE_LEN..=MAX_VALUE_LEN).contains(&value.len()) && value.len().is_multiple_of(4) {
        Ok(())
    } else {
        Err(err("value", at, WireErrorKind::ValueLength(saturating_u16(value.len()))))
    }
}

fn check_cells(cells: &[u8], at: usize) -> Result<()> {
    if (4..=4 * MAX_ROWS).contains(&cells.len()) && cells.len().is_multiple_of(4) {
        Ok(())
    } else {
        Err(err("cells", at, WireErrorKind::Rows(saturating_u16(cells.len()))))
    }
}

fn check_hop(hop: u8, path_length: u8) -> Result<()> {
    if hop >= MAX_HOPS {
        return Err(err("hop", 3, WireErrorKind::Hop(hop)));
    }
    if path_length != 0 && !(hop + 1..=MAX_HOPS).contains(&path_length) {
        return Err(err("path_length", 3, WireErrorKind::PathLength(path_length)));
    }
    Ok(())
}
