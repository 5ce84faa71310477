//! Reports known to be gone by count, but not by name.

use std::collections::BTreeMap;

/// Drops and losses that were counted, without a record of the reports.
///
/// A report that is not found takes one from here. Those left at the end belong to reports that were replaced by
/// another one with the same key anyway: [`super::super::accounting`] moves them from *superseded* to their own name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    reports: BTreeMap<String, u64>,
    /// Frames known to be gone. Their store is unknown, so each excuses what one frame of one store carries.
    frames: BTreeMap<String, u64>,
    /// What the primitive being checked can have lost; `None` if unknown.
    limits: Option<PrimitiveLimits>,
}

/// The most reports of one primitive that a translator dropped, and that it holds; and whether frames can be lost.
///
/// Reasons are counted over all primitives. Without these limits a column that came too late would excuse a missing
/// value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimitiveLimits {
    pub dropped: u64,
    pub held: u64,
    /// Its queue pair is RC: a frame that is gone is sent again, and excuses nothing.
    pub reliable: bool,
}

/// Prefix of the names of reports that a translator dropped.
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

    /// Adds `frames` frames under `name`.
    pub fn add_frames(&mut self, name: &str, frames: u64) {
        if frames > 0 {
            *self.frames.entry(name.to_owned()).or_default() += frames;
        }
    }

    /// From here on, reports of one primitive are taken.
    pub fn of_primitive(&mut self, limits: PrimitiveLimits) {
        self.limits = Some(limits);
    }

    /// Takes one report from the first pool that has any for this primitive.
    pub fn take(&mut self) -> Option<String> {
        let limits = &mut self.limits;
        let (name, count) = self.reports.iter_mut().find(|(name, count)| {
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

    /// Takes as many frames as the missing report was made into, all of them or none; returns the name of the first.
    pub fn take_frames(&mut self, frames: u64) -> Option<String> {
        if self.limits.is_some_and(|limits| limits.reliable) || self.frames.values().sum::<u64>() < frames {
            return None;
        }
        let (mut first, mut left) = (None, frames);
        for (name, count) in self.frames.iter_mut().filter(|(_, count)| **count > 0) {
            let taken = left.min(*count);
            *count -= taken;
            left -= taken;
            first.get_or_insert_with(|| name.clone());
            if left == 0 {
                break;
            }
        }
        first
    }

    /// The remaining reports, by name. Frames may have carried copies of reports that are there after all.
    pub fn remaining_reports(self) -> BTreeMap<String, u64> {
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
        pools.of_primitive(PrimitiveLimits::default());
        assert!(taken(&mut pools).is_empty());
        pools.of_primitive(PrimitiveLimits { dropped: 2, held: 1, reliable: false });
        assert_eq!(taken(&mut pools), ["dropped.translator.epoch_old", "dropped.translator.epoch_old", HELD]);
        pools.add("lost.reporter-translator", 1);
        assert_eq!(taken(&mut pools), ["lost.reporter-translator"]);
        assert_eq!(pools.remaining_reports().values().sum::<u64>(), 3 + 4);
    }

    #[test]
    fn frames_excuse_as_many_frames_and_none_on_rc() {
        let mut pools = Pools::default();
        pools.add_frames("dropped.nic.killed", 1);
        pools.add_frames("lost.translator-nic", 3);
        assert_eq!(pools.take_frames(2).as_deref(), Some("dropped.nic.killed"));
        assert_eq!(pools.take_frames(3), None);
        assert_eq!(pools.take(), None);
        pools.of_primitive(PrimitiveLimits { reliable: true, ..PrimitiveLimits::default() });
        assert_eq!(pools.take_frames(1), None);
        pools.of_primitive(PrimitiveLimits::default());
        assert_eq!(pools.take_frames(2).as_deref(), Some("lost.translator-nic"));
        assert_eq!(pools.take_frames(1), None);
    }
}
