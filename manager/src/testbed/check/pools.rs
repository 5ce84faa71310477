//! Reports that are known to be gone by count, not by name.

use std::collections::BTreeMap;

/// Drops and losses that were counted where they happened, without a record of which reports they were.
///
/// A report that is not found takes one from here. What is left at the end were reports whose place another report of the
/// same key had taken anyway: [`super::super::accounting`] moves them from *superseded* to their own name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    reports: BTreeMap<String, u64>,
    /// The most reports that frames known to be gone can have carried. How many they did carry is not known.
    of_frames: BTreeMap<String, u64>,
    /// What the primitive that is being checked can have lost in the translator; none if that is not known.
    limits: Option<Limits>,
}

/// The most reports of one primitive that a translator dropped, and that it holds.
///
/// Reasons are counted over all primitives. Without these limits a column that came too late would excuse a value that is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Dropped, for whatever reason.
    pub dropped: u64,
    /// Held.
    pub held: u64,
}

/// What the names of reports that a translator dropped begin with.
pub const DROPPED_BY_TRANSLATOR: &str = "dropped.translator.";
/// The name of reports that a translator holds.
pub const HELD: &str = "held";

impl Pools {
    /// Adds `count` reports under `name`.
    pub fn add(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.reports.entry(name.to_owned()).or_default() += count;
        }
    }

    /// Adds `frames` frames under `name`, which carried `most` reports each or fewer.
    pub fn add_frames(&mut self, name: &str, frames: u64, most: u64) {
        if frames > 0 {
            *self.of_frames.entry(name.to_owned()).or_default() += frames * most;
        }
    }

    /// From here on, reports of one primitive are taken.
    pub fn of_primitive(&mut self, limits: Limits) {
        self.limits = Some(limits);
    }

    /// One report of the first pool that has any for this primitive.
    pub fn take(&mut self) -> Option<String> {
        let limits = &mut self.limits;
        let mut all = self.reports.iter_mut().chain(&mut self.of_frames);
        let (name, count) = all.find(|(name, count)| {
            let limit = match limits {
                Some(limits) if name.starts_with(DROPPED_BY_TRANSLATOR) => &mut limits.dropped,
                Some(limits) if *name == HELD => &mut limits.held,
                _ => return **count > 0,
            };
            let has = **count > 0 && *limit > 0;
            *limit -= u64::from(has);
            has
        })?;
        *count -= 1;
        Some(name.clone())
    }

    /// Whether any is left.
    pub fn is_empty(&self) -> bool {
        self.reports.values().chain(self.of_frames.values()).all(|count| *count == 0)
    }

    /// The reports that are left, by name. Frames may have carried copies of reports that are there all the same.
    pub fn left(self) -> BTreeMap<String, u64> {
        self.reports.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primitive_is_excused_by_no_more_than_was_dropped_or_is_held_of_it() {
        let mut pools = Pools::default();
        pools.add("dropped.translator.epoch_old", 5);
        pools.add(HELD, 5);
        let taken = |pools: &mut Pools| std::iter::from_fn(|| pools.take()).collect::<Vec<_>>();
        pools.of_primitive(Limits::default());
        assert!(taken(&mut pools).is_empty());
        pools.of_primitive(Limits { dropped: 2, held: 1 });
        assert_eq!(taken(&mut pools), ["dropped.translator.epoch_old", "dropped.translator.epoch_old", HELD]);
        pools.add("lost.reporter-translator", 1);
        assert_eq!(taken(&mut pools), ["lost.reporter-translator"]);
        assert_eq!(pools.left().values().sum::<u64>(), 3 + 4);
    }
}
