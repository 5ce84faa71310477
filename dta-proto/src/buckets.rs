//! Which keys of a store are at which collector when several collectors share them.
//!
//! The bucket of a key is the top 8 bits of `h = CRC-32C(key)`. A sketch column uses the bucket of the key
//! made of its number (4 bytes, big-endian) and zeros. Append lists have no buckets: they are shared by list
//! number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::layout::hash;
use crate::store::MAX_REDUNDANCY;

/// The bucket of a key with this [`hash::key_hash`].
#[inline]
pub fn bucket_of_hash(h: u32) -> u8 {
    (h >> 24) as u8
}

/// The bucket of a key.
pub fn bucket_of_key(key: &Key) -> u8 {
    bucket_of_hash(hash::key_hash(key))
}

/// The hash that decides a sketch column's bucket.
pub fn column_hash(column: u32) -> u32 {
    let mut key = Key::default();
    key.0[..4].copy_from_slice(&column.to_be_bytes());
    hash::key_hash(&key)
}

/// A set of the 256 buckets. As text and in JSON: `0-127`, `0-63,200`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Buckets([u64; 4]);

/// A text that names no buckets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no buckets: write ranges of numbers from 0 to 255, such as 0-127 or 0-63,200, each bucket once"
)]
pub struct BucketsError(String);

impl Buckets {
    /// Every bucket.
    pub const ALL: Buckets = Buckets([u64::MAX; 4]);
    /// No bucket.
    pub const NONE: Buckets = Buckets([0; 4]);

    /// Buckets `first` to `last`, both included; none if `last` is before `first`.
    pub fn from_range(first: u8, last: u8) -> Buckets {
        (first..=last).collect()
    }

    fn insert(&mut self, bucket: u8) {
        self.0[usize::from(bucket >> 6)] |= 1 << (bucket & 63);
    }

    /// Whether the set contains a bucket.
    #[inline]
    pub fn contains(&self, bucket: u8) -> bool {
        self.0[usize::from(bucket >> 6)] >> (bucket & 63) & 1 == 1
    }

    /// Whether it contains every bucket.
    pub fn contains_all(&self) -> bool {
        *self == Buckets::ALL
    }

    /// Intersection.
    pub fn intersection(self, other: Buckets) -> Buckets {
        Buckets(std::array::from_fn(|n| self.0[n] & other.0[n]))
    }

    /// Union.
    pub fn union(self, other: Buckets) -> Buckets {
        Buckets(std::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    /// Complement.
    pub fn complement(self) -> Buckets {
        Buckets(self.0.map(|word| !word))
    }

    /// The buckets in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |bucket| self.contains(*bucket))
    }

    /// The lowest bucket.
    pub fn lowest_bucket(self) -> Option<u8> {
        self.iter().next()
    }

    /// The fewest ranges that cover the set: first and last, both included.
    pub fn to_ranges(self) -> Vec<(u8, u8)> {
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        for bucket in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == bucket => *last = bucket,
                _ => ranges.push((bucket, bucket)),
            }
        }
        ranges
    }
}

impl FromIterator<u8> for Buckets {
    fn from_iter<I: IntoIterator<Item = u8>>(of: I) -> Self {
        let mut buckets = Buckets::NONE;
        of.into_iter().for_each(|bucket| buckets.insert(bucket));
        buckets
    }
}

impl Default for Buckets {
    /// All: a store is at one collector unless configured otherwise.
    fn default() -> Self {
        Buckets::ALL
    }
}

impl fmt::Display for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Buckets::NONE {
            return f.write_str("none");
        }
        for (n, (first, last)) in self.to_ranges().into_iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            match first == last {
                true => write!(f, "{first}")?,
                false => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buckets({self})")
    }
}

impl FromStr for Buckets {
    type Err = BucketsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || BucketsError(text.into());
        let mut all = Buckets::NONE;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u8>().map_err(|_| wrong());
            let (first, last) = (number(first)?, number(last)?);
            let range = Buckets::from_range(first, last);
            if last < first || all.intersection(range) != Buckets::NONE {
                return Err(wrong());
            }
            all = all.union(range);
        }
        Ok(all)
    }
}

crate::serde_as_text!(Buckets);

/// Most copies of a bucket, each at a different collector: as many as a key can have.
pub const MAX_COPIES: usize = MAX_REDUNDANCY as usize;

/// The buckets of one collector, by copy: of the buckets under copy `n` it is the `n`-th collector. A store at one
/// collector uses copy 0 alone. For counters that two collectors count, a translator has the buckets by
/// [lane](crate::layout::key_increment). As text and in JSON: `"0-127"`, or with further copies `["0-127", "128-255"]`,
/// where `"none"` stands for no bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "CopiesText", into = "CopiesText")]
pub struct Copies([Buckets; MAX_COPIES]);

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "ranges of buckets such as \"0-127\", or a list of them, the n-th of which has the buckets whose copy n is there"
)]
enum CopiesText {
    First(String),
    Each(Vec<String>),
}

impl Copies {
    /// No copy of any bucket.
    pub const NONE: Copies = Copies([Buckets::NONE; MAX_COPIES]);

    /// `count` copies of every bucket.
    pub fn with_all_buckets(count: usize) -> Copies {
        std::iter::repeat_n(Buckets::ALL, count).collect()
    }

    /// The buckets of which copy `n` is here.
    pub fn buckets_of_copy(&self, n: usize) -> Buckets {
        self.0.get(n).copied().unwrap_or(Buckets::NONE)
    }

    /// The highest copy number that has a bucket, plus 1.
    pub fn copy_count(&self) -> usize {
        self.0.iter().rposition(|buckets| *buckets != Buckets::NONE).map_or(0, |last| last + 1)
    }

    /// The first `count` copies.
    pub fn first_copies(self, count: usize) -> Copies {
        self.0.into_iter().take(count).collect()
    }

    /// The number of the copy of a bucket that is here; the lowest, if there are several.
    pub fn of_bucket(&self, bucket: u8) -> Option<usize> {
        self.0.iter().position(|buckets| buckets.contains(bucket))
    }

    /// A bucket of which two copies are here.
    pub fn repeated_bucket(&self) -> Option<u8> {
        let mut seen = Buckets::NONE;
        self.0.into_iter().find_map(|buckets| {
            let both = seen.intersection(buckets).lowest_bucket();
            seen = seen.union(buckets);
            both
        })
    }

    /// A copy of a bucket that both sets contain: the number of the copy, and the bucket.
    pub fn common_copy(&self, other: &Copies) -> Option<(usize, u8)> {
        (0..MAX_COPIES).find_map(|n| Some((n, self.0[n].intersection(other.0[n]).lowest_bucket()?)))
    }

    /// Adds the copies of another set.
    pub fn union(self, other: Copies) -> Copies {
        Copies(std::array::from_fn(|n| self.0[n].union(other.0[n])))
    }

    /// Whether this is the whole of a store at one collector.
    pub fn is_whole_store(&self) -> bool {
        *self == Copies::default()
    }
}

impl Default for Copies {
    /// Copy 0 of every bucket: a store is at one collector unless configured otherwise.
    fn default() -> Self {
        Buckets::ALL.into()
    }
}

impl From<Buckets> for Copies {
    fn from(first: Buckets) -> Self {
        [first].into_iter().collect()
    }
}

impl FromStr for Copies {
    type Err = BucketsError;

    /// Copy 0 of these buckets.
    fn from_str(text: &str) -> Result<Self, BucketsError> {
        Ok(text.parse::<Buckets>()?.into())
    }
}

impl FromIterator<Buckets> for Copies {
    /// Sets beyond [`MAX_COPIES`] are ignored.
    fn from_iter<I: IntoIterator<Item = Buckets>>(of: I) -> Self {
        let mut copies = Copies::NONE;
        copies.0.iter_mut().zip(of).for_each(|(copy, buckets)| *copy = buckets);
        copies
    }
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.buckets_of_copy(0))?;
        (1..self.copy_count()).try_for_each(|n| write!(f, "; copy {n} of {}", self.buckets_of_copy(n)))
    }
}

impl TryFrom<CopiesText> for Copies {
    type Error = CopiesError;

    fn try_from(written: CopiesText) -> Result<Self, CopiesError> {
        let each = match written {
            CopiesText::First(first) => vec![first],
            CopiesText::Each(each) if (1..=MAX_COPIES).contains(&each.len()) => each,
            CopiesText::Each(each) => return Err(CopiesError::Count(each.len())),
        };
        let buckets = |text: String| if text == "none" { Ok(Buckets::NONE) } else { text.parse() };
        Ok(each.into_iter().map(buckets).collect::<Result<_, BucketsError>>()?)
    }
}

impl From<Copies> for CopiesText {
    fn from(copies: Copies) -> Self {
        match copies.copy_count() {
            0 | 1 => CopiesText::First(copies.buckets_of_copy(0).to_string()),
            count => CopiesText::Each((0..count).map(|n| copies.buckets_of_copy(n).to_string()).collect()),
        }
    }
}

/// Why a text does not name copies of buckets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopiesError {
    /// One of the sets is invalid.
    #[error(transparent)]
    Buckets(#[from] BucketsError),
    /// Too many sets, or none.
    #[error("{0} copies of buckets are listed, but there can be 1 to {MAX_COPIES}")]
    Count(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_and_the_last_bucket_are_there() {
        assert_eq!(
            (Buckets::ALL.to_string().as_str(), Buckets::NONE.to_string().as_str()),
            ("0-255", "none")
        );
        let halves: [Buckets; 2] = ["0-127", "128-255"].map(|text| text.parse().unwrap());
        for bucket in 0..=255 {
            assert_eq!(halves.map(|half| half.contains(bucket)), [bucket < 128, bucket > 127]);
        }
        assert_eq!(
            (halves[0].intersection(halves[1]), halves[0].union(halves[1])),
            (Buckets::NONE, Buckets::ALL)
        );
        assert_eq!(
            (halves[0].complement(), halves[1].lowest_bucket(), Buckets::NONE.lowest_bucket()),
            (halves[1], Some(128), None)
        );
        let ends: Buckets = "0,255".parse().unwrap();
        assert_eq!((ends.to_ranges(), ends.to_string()), (vec![(0, 0), (255, 255)], "0,255".to_string()));
        assert_eq!(
            (bucket_of_hash(0x00ff_ffff), bucket_of_hash(0x0100_0000), bucket_of_hash(u32::MAX)),
            (0, 1, 255)
        );
    }

    #[test]
    fn copies_are_read_as_they_are_written() {
        let read = serde_json::from_str::<Copies>;
        for text in [r#""0-127""#, r#"["0-127","128-255"]"#, r#"["none","0-63,200","none","9"]"#, r#""none""#]
        {
            assert_eq!(serde_json::to_string(&read(text).unwrap()).unwrap(), text);
        }
        let both = read(r#"["0-127","127-255"]"#).unwrap();
        assert_eq!(
            (
                both.copy_count(),
                both.0.into_iter().fold(Buckets::NONE, Buckets::union),
                both.repeated_bucket()
            ),
            (2, Buckets::ALL, Some(127))
        );
        assert_eq!([0, 127, 128].map(|bucket| both.of_bucket(bucket)), [Some(0), Some(0), Some(1)]);
        assert_eq!(both.first_copies(1), Buckets::from_range(0, 127).into());
        assert_eq!(
            (
                Copies::with_all_buckets(1),
                Copies::with_all_buckets(4).copy_count(),
                Copies::NONE.copy_count()
            ),
            (Copies::default(), 4, 0)
        );
        assert_eq!(both.to_string(), "0-127; copy 1 of 127-255");
        let five = format!("[{}]", [r#""9""#; 5].join(","));
        for (text, words) in
            [("[]", "0 copies"), (&five, "5 copies"), (r#"["0-256"]"#, "0 to 255"), ("7", "such as")]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn what_names_no_buckets_is_refused() {
        for text in ["", "256", "0-256", "-1", "5-4", "0-5,5", "a", "0-", "0--5", "1,,2", "all", "none"] {
            let error = text.parse::<Buckets>().unwrap_err().to_string();
            assert!(error.contains("0 to 255"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn they_are_read_as_they_are_written(words: [u64; 4]) {
            prop_assume!(words != [0; 4]);
            let buckets = Buckets(words);
            prop_assert_eq!(buckets.to_string().parse::<Buckets>(), Ok(buckets));
            let of_ranges = buckets.to_ranges().into_iter().map(|(a, b)| Buckets::from_range(a, b));
            prop_assert_eq!(of_ranges.fold(Buckets::NONE, Buckets::union), buckets);
            prop_assert_eq!(buckets.iter().count() as u32, words.iter().map(|w| w.count_ones()).sum::<u32>());
        }
    }
}
