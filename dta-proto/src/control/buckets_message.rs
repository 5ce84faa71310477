//! Sets of buckets as messages.

use super::{BucketRange, MessageError};
use crate::buckets::Buckets;

/// The ranges of a set; empty if it has every bucket.
pub fn bucket_ranges(buckets: Buckets) -> Vec<BucketRange> {
    if buckets.is_all() {
        return Vec::new();
    }
    let range = |(first, last): (u8, u8)| BucketRange { first: first.into(), last: last.into() };
    buckets.ranges().into_iter().map(range).collect()
}

/// The set that the ranges describe; every bucket if there are none.
///
/// # Errors
/// An invalid range.
pub fn buckets(ranges: &[BucketRange]) -> Result<Buckets, MessageError> {
    if ranges.is_empty() {
        return Ok(Buckets::ALL);
    }
    let mut all = Buckets::NONE;
    for &BucketRange { first, last } in ranges {
        match (u8::try_from(first), u8::try_from(last)) {
            (Ok(a), Ok(b)) if a <= b => all = all.or(Buckets::range(a, b)),
            _ => {
                return Err(MessageError(format!(
                    "buckets {first} to {last} are no range: first and last are numbers from 0 to 255, the least first"
                )));
            }
        }
    }
    Ok(all)
}
