//! Reports that are known to be gone by count, not by name.

use std::collections::BTreeMap;

/// Drops and losses that were counted where they happened, without a record of which reports they were.
///
/// A report that is not found takes one from here. What is left at the end were reports whose place another report of the
/// same key had taken anyway: [`super::super::accounting`] moves them from *superseded* to their own name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools(BTreeMap<String, u64>);

impl Pools {
    /// Adds `count` reports under `name`.
    pub fn add(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.0.entry(name.to_owned()).or_default() += count;
        }
    }

    /// One report of the first pool that has any.
    pub fn take(&mut self) -> Option<String> {
        let (name, count) = self.0.iter_mut().find(|(_, count)| **count > 0)?;
        *count -= 1;
        Some(name.clone())
    }

    /// Whether any is left.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(|count| *count == 0)
    }

    /// What is left, by name.
    pub fn left(self) -> BTreeMap<String, u64> {
        self.0.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}
