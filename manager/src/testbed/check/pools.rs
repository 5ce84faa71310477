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
}

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

    /// One report of the first pool that has any.
    pub fn take(&mut self) -> Option<String> {
        let mut all = self.reports.iter_mut().chain(&mut self.of_frames);
        let (name, count) = all.find(|(_, count)| **count > 0)?;
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
