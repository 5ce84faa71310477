//! Which placement is in effect for each of a collector's stores.
//!
//! For a store without epochs, it is the newest one. A store with epochs changes placements only when an epoch begins,
//! so that everything reported in one epoch lies in one place. All collectors come to the same result without asking
//! each other: an epoch takes the newest placement that was written some time before it began. If a collector in a
//! placement is gone, waiting makes no sense, and stores with epochs take the newest one at once, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use dta_proto::placement::ClusterPlacement;

use crate::View;

/// How long before an epoch a placement must have been written, in milliseconds, so that all collectors have
/// heard of it by then. If half an epoch is shorter, that is enough.
const HEARD: u64 = 5000;

/// The placement in effect for each store.
#[derive(Debug, Default)]
pub struct InEffect {
    newest: Arc<View>,
    /// Placements since the oldest one in effect for a store, oldest first.
    recent: Vec<Arc<ClusterPlacement>>,
    of_epochs: BTreeMap<String, OfEpoch>,
}

#[derive(Debug)]
struct OfEpoch {
    placement: Arc<ClusterPlacement>,
    /// The first generation of the store's memory that it is in effect for.
    from: u64,
    /// The version in effect for earlier generations.
    before: u64,
    /// Length of its epochs, in milliseconds.
    length: u64,
}

/// By when a placement must have been written to take effect in the epoch of a moment.
fn placement_deadline(moment: u64, length: u64) -> u64 {
    let begins = moment - moment % length.max(1);
    begins.saturating_sub(HEARD.min(length / 2))
}

impl InEffect {
    /// Starts without any placement. These stores have epochs of this many milliseconds.
    pub fn new<'a>(with_epochs: impl IntoIterator<Item = (&'a str, u64)>) -> InEffect {
        let of = |length| OfEpoch { placement: Arc::default(), from: 0, before: 0, length };
        let of_epochs =
            with_epochs.into_iter().map(|(store, length)| (store.to_owned(), of(length))).collect();
        InEffect { of_epochs, ..InEffect::default() }
    }

    /// Applies a newer view, at a moment in milliseconds since 1970. A collector that restarts in the middle
    /// of an epoch uses the placement that the others have used since it began.
    pub fn update_view(&mut self, view: Arc<View>, now: u64) {
        for of in self.of_epochs.values_mut() {
            let is_first = of.placement.version == 0;
            let taken =
                if is_first { view.placement_taken_by(placement_deadline(now, of.length)) } else { None };
            let next = taken.cloned().unwrap_or_else(|| view.effective_placement(&of.placement));
            if next.version != of.placement.version {
                of.before = next.version;
                of.placement = next;
            }
        }
        view.append_recent(&mut self.recent);
        self.newest = view;
        self.forget_placements();
    }

    /// Begins an epoch of a store with this generation of its memory. The epoch is the one that contains
    /// `moment`, in milliseconds since 1970, so all collectors mean the same one, whenever they notice.
    pub fn begin_epoch(&mut self, store: &str, generation: u64, moment: u64) {
        let Some(of) = self.of_epochs.get_mut(store) else { return };
        let by = placement_deadline(moment, of.length);
        let is_known = |placement: &&Arc<ClusterPlacement>| placement.since <= by;
        if let Some(placement) = self.recent.iter().rev().find(is_known)
            && placement.version > of.placement.version
        {
            of.before = of.placement.version;
            of.from = generation;
            of.placement = self.newest.effective_placement(placement);
        }
        self.forget_placements();
    }

    /// Forgets placements that will not take effect for any store any more.
    fn forget_placements(&mut self) {
        let oldest = self.of_epochs.values().map(|of| of.placement.version).min();
        let oldest = oldest.unwrap_or(self.newest.placement.version);
        self.recent.retain(|placement| placement.version >= oldest);
    }

    pub fn newest_view(&self) -> &Arc<View> {
        &self.newest
    }

    /// The placement in effect for a store.
    pub fn store_placement(&self, store: &str) -> &ClusterPlacement {
        self.of_epochs.get(store).map_or(&self.newest.placement, |of| &of.placement)
    }

    /// The version in effect for a generation of a store with epochs; `None` for other stores.
    pub fn version_in_generation(&self, store: &str, generation: u64) -> Option<u64> {
        let of = self.of_epochs.get(store)?;
        Some(if generation >= of.from { of.placement.version } else { of.before })
    }

    /// Changes whenever another placement takes effect for a store, and only then.
    pub fn combined_version(&self) -> u64 {
        let of_epochs = self.of_epochs.values().map(|of| of.placement.version);
        of_epochs.fold(self.newest.placement.version, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Earlier;

    fn view(version: u64, since: u64, ids: &[&str], holders: &[(&str, &str)]) -> Arc<View> {
        let buckets = |(id, buckets): &(&str, &str)| ((*id).to_owned(), buckets.parse().unwrap());
        let keys = vec![holders.iter().map(buckets).collect()];
        let placement =
            ClusterPlacement { since, ..ClusterPlacement::new(version, keys, BTreeMap::new()).unwrap() };
        Arc::new(View::of_test(ids, placement))
    }

    fn version(of: &InEffect, store: &str) -> u64 {
        of.store_placement(store).version
    }

    #[test]
    fn stores_with_epochs_take_what_was_written_in_time_when_an_epoch_begins() {
        let mut of = InEffect::new([("flows", 60_000)]);
        let two: &[_] = &[("a", "0-127"), ("b", "128-255")];
        // The first one takes effect at once, as nothing was placed before.
        of.update_view(view(1, 1000, &["a", "b"], two), 1000);
        assert_eq!(
            (version(&of, "flows"), version(&of, "other"), of.version_in_generation("other", 1)),
            (1, 1, None)
        );
        let three: &[_] = &[("a", "0-99"), ("b", "100-199"), ("c", "200-255")];
        of.update_view(view(2, 60_000, &["a", "b", "c"], three), 60_000);
        of.update_view(view(3, 118_000, &["a", "b", "c"], two), 118_000);
        let before = of.combined_version();
        assert_eq!((version(&of, "flows"), version(&of, "other")), (1, 3));
        // Version 3 comes too late for this epoch.
        of.begin_epoch("flows", 8, 120_000);
        assert_eq!((version(&of, "flows"), of.combined_version()), (2, before + 1));
        assert_eq!(
            (of.version_in_generation("flows", 7), of.version_in_generation("flows", 8)),
            (Some(1), Some(2))
        );
        of.begin_epoch("flows", 9, 180_040);
        assert_eq!(
            (of.version_in_generation("flows", 8), of.version_in_generation("flows", 9)),
            (Some(2), Some(3))
        );
        assert_eq!(of.recent.len(), 1);
        // With short epochs, half of one is enough.
        let mut of = InEffect::new([("flows", 2000)]);
        of.update_view(view(3, 118_000, &["a", "b", "c"], two), 181_000);
        of.update_view(view(4, 181_000, &["a", "b", "c"], three), 181_000);
        of.begin_epoch("flows", 10, 182_000);
        assert_eq!(version(&of, "flows"), 4);
    }

    #[test]
    fn nobody_waits_for_a_collector_that_is_gone() {
        let mut of = InEffect::new([("flows", 60_000)]);
        let two: &[_] = &[("a", "0-127"), ("b", "128-255")];
        of.update_view(view(1, 1000, &["a", "b"], two), 1000);
        // A collector is gone, and nothing has been placed elsewhere yet.
        of.update_view(view(1, 1000, &["a"], two), 1000);
        assert_eq!(version(&of, "flows"), 1);
        of.update_view(view(2, 61_000, &["a"], &[("a", "0-255")]), 61_000);
        assert_eq!((version(&of, "flows"), of.version_in_generation("flows", 1)), (2, Some(2)));
    }

    #[test]
    fn a_collector_that_was_started_again_goes_by_what_the_others_have_gone_by_since_the_epoch_began() {
        let earlier = |version, since, is_waited_for| {
            let keys = vec![BTreeMap::from([("a".to_owned(), "0-255".parse().unwrap())])];
            let placement = ClusterPlacement::new(version, keys, BTreeMap::new()).unwrap();
            Earlier { placement: Arc::new(ClusterPlacement { since, ..placement }), is_waited_for }
        };
        let goes_by = |earlier: &[Earlier], now| {
            let newest = view(9, 150_000, &["a", "b"], &[("a", "0-127"), ("b", "128-255")]);
            let mut of = InEffect::new([("flows", 60_000), ("short", 4000)]);
            of.update_view(Arc::new(View { earlier: earlier.into(), ..View::clone(&newest) }), now);
            assert_eq!(version(&of, "other"), 9);
            let versions = [version(&of, "flows"), version(&of, "short")];
            of.begin_epoch("flows", 3, 180_000);
            assert_eq!(version(&of, "flows"), 9);
            versions
        };
        let before = [earlier(5, 60_000, true), earlier(6, 110_000, true), earlier(7, 130_000, true)];
        assert_eq!((goes_by(&before, 160_000), goes_by(&before, 190_000)), ([6, 9], [9, 9]));
        assert_eq!((goes_by(&before, 151_000), goes_by(&[], 151_000)), ([6, 7], [9, 9]));
        // etcd has forgotten the placement that the epoch began with.
        assert_eq!(goes_by(&before[2..], 160_000), [9, 9]);
        // There was no placement when the epoch began.
        let first = [&[Earlier::default()], &before[1..]].concat();
        assert_eq!(goes_by(&first[..2], 100_000), [6, 6]);
        // Somebody was gone meanwhile, so the others took the next one.
        let mut gone = before;
        gone[1].is_waited_for = false;
        assert_eq!(goes_by(&gone, 160_000), [7, 9]);
        gone[2].is_waited_for = false;
        assert_eq!(goes_by(&gone, 160_000), [9, 9]);
    }
}
