//! The colours of collectors, by which [counters that two collectors count](crate::layout::key_increment) are
//! distinguished.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::PlacementError;
use crate::buckets::Buckets;
use crate::layout::key_increment::COLOURS;

/// For each copy of a key, the buckets of each collector by its id.
type Keys = [BTreeMap<String, Buckets>];

/// The colour of each collector in each bucket that it ever had as the first or second one. Colours never change, because
/// counters stay where they were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Colours {
    /// For each colour, the buckets in which a collector has it, by its id.
    of: Vec<BTreeMap<String, Buckets>>,
    /// The buckets that a collector has or had without a second collector of another colour, by its id.
    alone: BTreeMap<String, Buckets>,
}

/// Colours as read, not yet checked.
#[derive(Deserialize)]
struct Unchecked {
    of: Vec<BTreeMap<String, Buckets>>,
    #[serde(default)]
    alone: BTreeMap<String, Buckets>,
}

impl TryFrom<Unchecked> for Colours {
    type Error = PlacementError;

    fn try_from(Unchecked { of, alone }: Unchecked) -> Result<Colours, PlacementError> {
        if of.len() > COLOURS {
            return Err(PlacementError(format!("{} colours, and there are {COLOURS}", of.len())));
        }
        let mut known: BTreeMap<&str, Buckets> = BTreeMap::new();
        for (id, buckets) in of.iter().flatten() {
            let known = known.entry(id).or_insert(Buckets::NONE);
            if let Some(bucket) = known.intersection(*buckets).lowest_bucket() {
                return Err(PlacementError(format!("{id} has two colours in bucket {bucket}")));
            }
            *known = known.union(*buckets);
        }
        Ok(Colours { of, alone })
    }
}

/// The colour of a bucket's first (0) or second (1) collector unless decided otherwise: so the first counts in lane 0, the
/// second in lane 1.
pub fn usual_colour(copy: usize) -> usize {
    1 - copy.min(1)
}

fn has_bucket(of: &BTreeMap<String, Buckets>, id: &str, bucket: u8) -> bool {
    of.get(id).is_some_and(|buckets| buckets.contains(bucket))
}

fn add(of: &mut BTreeMap<String, Buckets>, id: &str, bucket: u8) {
    let buckets = of.entry(id.to_owned()).or_insert(Buckets::NONE);
    *buckets = buckets.union(Buckets::from_range(bucket, bucket));
}

impl Colours {
    /// Whether no collector has a colour.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn colour_in_bucket(&self, id: &str, bucket: u8) -> Option<usize> {
        self.of.iter().position(|of| has_bucket(of, id, bucket))
    }

    pub(super) fn was_alone(&self, id: &str, bucket: u8) -> bool {
        has_bucket(&self.alone, id, bucket)
    }

    /// The colours that others have in a bucket.
    pub(super) fn of_others(&self, id: &str, bucket: u8) -> impl Iterator<Item = usize> {
        let is_other = move |(of, buckets): (&String, &Buckets)| of != id && buckets.contains(bucket);
        self.of.iter().enumerate().filter(move |(_, of)| of.iter().any(is_other)).map(|(colour, _)| colour)
    }

    /// Gives a colour to each collector that is a bucket's first or second one for the first time, never the other one's. It
    /// takes the colour that the fewest collectors have in the bucket, counting first those that are still there.
    pub(super) fn assign_colours(&mut self, keys: &Keys, is_there: impl Fn(&str) -> bool) {
        self.of.resize(COLOURS, BTreeMap::new());
        let holders = [0, 1].map(|copy| {
            let mut of_bucket = [None; 256];
            for (id, buckets) in keys.get(copy).into_iter().flatten() {
                buckets.iter().for_each(|bucket| of_bucket[usize::from(bucket)] = Some(id.as_str()));
            }
            of_bucket
        });
        for bucket in 0..=u8::MAX {
            let of_copy = holders.map(|holders| holders[usize::from(bucket)]);
            for (copy, id) in of_copy.into_iter().enumerate().filter_map(|(copy, id)| Some((copy, id?))) {
                if self.colour_in_bucket(id, bucket).is_some() {
                    continue;
                }
                let other = of_copy[1 - copy].and_then(|other| self.colour_in_bucket(other, bucket));
                let taken = |colour: &usize| {
                    let have = self.of[*colour].iter().filter(|(_, buckets)| buckets.contains(bucket));
                    let (there, gone): (Vec<&str>, Vec<&str>) =
                        have.map(|(id, _)| id.as_str()).partition(|id| is_there(id));
                    (there.len(), gone.len(), *colour != usual_colour(copy))
                };
                let free = (0..COLOURS).filter(|colour| Some(*colour) != other);
                let best = free.min_by_key(taken).unwrap_or_default();
                add(&mut self.of[best], id, bucket);
            }
            let [Some(first), second] = of_copy else { continue };
            if second.is_none_or(|second| {
                self.colour_in_bucket(first, bucket) == self.colour_in_bucket(second, bucket)
            }) {
                add(&mut self.alone, first, bucket);
            }
        }
    }
}
