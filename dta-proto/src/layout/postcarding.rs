//! Postcarding: a hash table of paths, one row per key, in N copies.
//!
//! ```text
//!  0               4        6      7   8
//! | checksum u32  | bitmap | plen | 0 | hop 0 u32 | hop 1 u32 | … | hop B-1 u32 |      B = 6: 32 bytes, B = 14: 64 bytes
//! ```
//!
//! All big-endian. Bit h of the bitmap (value `1 << h`) says that hop h is present; absent hops are zero. The
//! path length is 0 if no postcard carried it. The checksum is CRC-32/ISO-HDLC(key ‖ bytes 4 to the row's
//! end). After Postcarding in "Direct Telemetry Access" (SIGCOMM 2023), which encodes each hop separately and
//! searches a hash table of values; a whole row with its bitmap takes any 32-bit value per hop and
//! distinguishes a partial path from a damaged one.

use super::{ElementField, hash, numbered_fields, read_be_u16, read_be_u32};
use crate::key::Key;

/// Length of a row before its hops.
pub const HEADER_LEN: usize = 8;

/// Most hops in a row.
pub const MAX_HOPS: usize = 14;

/// Length of a row with room for `hops` hops.
#[inline]
pub const fn row_length(hops: u8) -> u64 {
    HEADER_LEN as u64 + 4 * hops as u64
}

/// `length` includes as its upper byte the byte of a row that is always zero.
pub(super) fn row_fields(hops: u8) -> Vec<(String, ElementField)> {
    let fixed =
        [("checksum", ElementField::Be32), ("bitmap", ElementField::Be16), ("length", ElementField::Le16)];
    fixed
        .map(|(name, field)| (name.to_owned(), field))
        .into_iter()
        .chain(numbered_fields("hop", hops))
        .collect()
}

/// Byte offset of row number `slot` in a store whose rows hold `hops` hops.
#[inline]
pub fn row_offset(slot: u64, hops: u8) -> u64 {
    slot * row_length(hops)
}

/// The path of one key, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostcardPath {
    /// Bit h (value `1 << h`) is set if hop h is present.
    pub bitmap: u16,
    /// Hops of the whole path; 0 if no postcard carried it.
    pub length: u8,
    /// Values by hop; 0 for absent hops.
    pub hops: [u32; MAX_HOPS],
}

impl PostcardPath {
    /// The value of hop `hop`, if present.
    #[inline]
    pub fn hop_value(&self, hop: u8) -> Option<u32> {
        (usize::from(hop) < MAX_HOPS && self.bitmap >> hop & 1 == 1).then(|| self.hops[usize::from(hop)])
    }

    /// Sets the value of a hop. Returns `false`, with nothing changed, if a row has no such hop.
    #[inline]
    pub fn set(&mut self, hop: u8, value: u32) -> bool {
        let fits = usize::from(hop) < MAX_HOPS;
        if fits {
            self.bitmap |= 1 << hop;
            self.hops[usize::from(hop)] = value;
        }
        fits
    }

    /// Whether the length is known and every hop present.
    #[inline]
    pub fn is_complete(&self) -> bool {
        (1..=MAX_HOPS as u8).contains(&self.length) && self.bitmap == (1 << self.length) - 1
    }

    /// Number of hops present.
    #[inline]
    pub fn present_hops(&self) -> u8 {
        self.bitmap.count_ones() as u8
    }
}

/// Writes a row of `row.len()` bytes (32 or 64): header, hops, checksum.
///
/// # Panics
/// If `row` is shorter than the header, or has no room for one of the path's hops or its length: the
/// translator drops and counts such postcards before this.
#[inline]
pub fn encode_row(row: &mut [u8], key: &Key, path: &PostcardPath) {
    let room = (row.len() - HEADER_LEN) / 4;
    assert!(
        u32::from(path.bitmap) >> room == 0 && usize::from(path.length) <= room,
        "path of {path:?} in {room} hops"
    );
    row[4..6].copy_from_slice(&path.bitmap.to_be_bytes());
    row[6] = path.length;
    row[7] = 0;
    for (hop, bytes) in row[HEADER_LEN..].chunks_exact_mut(4).enumerate() {
        // A stale value of an absent hop would make equal paths differ.
        let value = if path.bitmap >> hop & 1 == 1 { path.hops[hop] } else { 0 };
        bytes.copy_from_slice(&value.to_be_bytes());
    }
    let sum = hash::value_checksum(key, &row[4..]);
    row[..4].copy_from_slice(&sum.to_be_bytes());
}

/// The row's path if its checksum is the one of `key` and that path; `None` if it is another key's,
/// empty, torn, damaged, or not 32 or 64 bytes long. [`PostcardPath::is_complete`] tells a complete path
/// from a partial one.
#[inline]
pub fn verified_path(row: &[u8], key: &Key) -> Option<PostcardPath> {
    if !matches!(row.len(), 32 | 64) || read_be_u32(row, 0) != hash::value_checksum(key, &row[4..]) {
        return None;
    }
    let path = read(row);
    let room = (row.len() - HEADER_LEN) / 4;
    // A chance match of the checksum (an empty row matches one key in 2^32) rarely passes these checks.
    let sound = path.bitmap != 0
        && u32::from(path.bitmap) >> room == 0
        && usize::from(path.length) <= room
        && row[7] == 0;
    sound.then_some(path)
}

/// A row's contents without its key, and so without verifying its checksum: for a memory view. `None` for an
/// empty row or a wrong length.
pub fn unverified_path(row: &[u8]) -> Option<PostcardPath> {
    (matches!(row.len(), 32 | 64) && row.iter().any(|b| *b != 0)).then(|| read(row))
}

#[inline]
fn read(row: &[u8]) -> PostcardPath {
    let mut path = PostcardPath { bitmap: read_be_u16(row, 4), length: row[6], hops: [0; MAX_HOPS] };
    for (hop, bytes) in path.hops.iter_mut().zip(row[HEADER_LEN..].chunks_exact(4)) {
        *hop = read_be_u32(bytes, 0);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(length: u8, bitmap: u16, values: [u32; MAX_HOPS]) -> PostcardPath {
        let mut path = PostcardPath { length, ..PostcardPath::default() };
        for (hop, value) in values.iter().enumerate().filter(|(hop, _)| bitmap >> hop & 1 == 1) {
            assert!(path.set(hop as u8, *value));
        }
        path
    }

    #[test]
    fn complete_only_with_each_hop_of_a_known_length() {
        let values = [9; MAX_HOPS];
        assert!(path(5, 0b1_1111, values).is_complete());
        assert!(path(14, 0x3fff, values).is_complete());
        assert!(!path(5, 0b1_0111, values).is_complete());
        assert!(!path(0, 0, values).is_complete());
        assert!(!path(0, 0b1, values).is_complete());
        assert!(!path(4, 0b1_1111, values).is_complete(), "a hop beyond the length is a contradiction");
        assert!(!PostcardPath { length: 200, bitmap: u16::MAX, hops: values }.is_complete());
    }

    #[test]
    fn hops_beyond_a_row_are_refused() {
        let mut p = PostcardPath::default();
        assert!(!p.set(14, 1));
        assert!(!p.set(255, 1));
        assert_eq!(p, PostcardPath::default());
        assert_eq!(p.hop_value(14), None);
        assert_eq!(p.hop_value(255), None);
    }

    #[test]
    fn empty_rows_match_nothing() {
        // The checksum is right, but the row holds no path.
        let key = Key([7; 16]);
        let mut row = [0; 32];
        row[..4].copy_from_slice(&hash::value_checksum(&key, &[0; 28]).to_be_bytes());
        assert_eq!(verified_path(&row, &key), None);
        assert_eq!(unverified_path(&[0; 32]), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_matches_its_key_alone(
            key: [u8; 16], other: [u8; 16], large: bool, length in 0u8..=14, bitmap in 1u16..0x4000, values: [u32; MAX_HOPS],
        ) {
            let room = if large { 14 } else { 6 };
            let bitmap = bitmap & ((1 << room) - 1);
            prop_assume!(bitmap != 0);
            let path = path(length.min(room), bitmap, values);
            let mut row = vec![0xaa; row_length(room) as usize];
            encode_row(&mut row, &Key(key), &path);
            prop_assert_eq!(verified_path(&row, &Key(key)), Some(path));
            prop_assert_eq!(unverified_path(&row), Some(path));
            if other != key {
                prop_assert_eq!(verified_path(&row, &Key(other)), None);
            }
        }

        #[test]
        fn any_bytes_do_not_panic(row in prop::collection::vec(any::<u8>(), 0..80), key: [u8; 16]) {
            let _ = (verified_path(&row, &Key(key)), unverified_path(&row));
        }

        /// Any contents under a right checksum: either a sound path that encodes back to the same bytes
        /// except for absent hops, or nothing.
        #[test]
        fn contents_are_checked_beyond_the_checksum(mut row: [u8; 32], key: [u8; 16]) {
            let sum = hash::value_checksum(&Key(key), &row[4..]);
            row[..4].copy_from_slice(&sum.to_be_bytes());
            match verified_path(&row, &Key(key)) {
                Some(path) => prop_assert!(path.bitmap != 0 && path.bitmap < 64 && path.length <= 6),
                None => prop_assert!(row[4] != 0 || row[5] == 0 || row[5] > 63 || row[6] > 6 || row[7] != 0),
            }
        }
    }
}
