//! Sets of buckets as messages.

use super::{BucketRange, MessageError};
use crate::buckets::{Buckets, Copies, MAX_COPIES};

/// The ranges of copies; empty for copy 0 of every bucket.
pub fn bucket_ranges(copies: &Copies) -> Vec<BucketRange> {
    if copies.is_whole_store() {
        return Vec::new();
    }
    let of_copy = |copy: usize| {
        let range = move |(first, last): (u8, u8)| BucketRange {
            first: first.into(),
            last: last.into(),
            copy: copy as u32,
        };
        copies.buckets_of_copy(copy).to_ranges().into_iter().map(range)
    };
    (0..copies.copy_count()).flat_map(of_copy).collect()
}

/// The copies that the ranges describe; copy 0 of every bucket if there are none.
///
/// # Errors
/// An invalid range.
pub fn copies_from_ranges(ranges: &[BucketRange]) -> Result<Copies, MessageError> {
    if ranges.is_empty() {
        return Ok(Copies::default());
    }
    let mut all = [Buckets::NONE; MAX_COPIES];
    for &BucketRange { first, last, copy } in ranges {
        let of_copy = all.get_mut(copy as usize);
        match (u8::try_from(first), u8::try_from(last), of_copy) {
            (Ok(a), Ok(b), Some(all)) if a <= b => *all = all.union(Buckets::from_range(a, b)),
            (_, _, None) => {
                return Err(MessageError(format!(
                    "copy {copy} of buckets is named, but copies are numbered from 0 to {}",
                    MAX_COPIES - 1
                )));
            }
            _ => {
                return Err(MessageError(format!(
                    "buckets {first} to {last} are not a range: first and last are numbers from 0 to 255, the lower first"
                )));
            }
        }
    }
    Ok(all.into_iter().collect())
}
