//! The collectors of a cluster, with an index for each.

use std::collections::BTreeMap;

use dta_cluster::View;
use tracing::error;

use crate::collectors::{Collectors, ConfiguredCollector};

/// The indices of a cluster's collectors, by id. A collector keeps its index while it is there; the index of
/// one that is gone is not given to another at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roster(BTreeMap<String, u8>);

impl Roster {
    /// The collectors of a view, at most `most`. Those for which there is no index are left out, and logged.
    pub(crate) fn next(&self, view: &View, most: u8) -> (Roster, Collectors) {
        let mut next: BTreeMap<String, u8> = self.0.clone();
        next.retain(|id, _| view.collectors.contains_key(id));
        let (mut addresses, mut left_out) = (BTreeMap::new(), Vec::new());
        for (id, collector) in &view.collectors {
            let is_free = |index: &u8| !next.values().any(|taken| taken == index);
            let never_had = |index: &u8| !self.0.values().any(|had| had == index);
            let index = next.get(id).copied().or_else(|| {
                let free = || (0..most).filter(is_free);
                free().find(never_had).or_else(|| free().next())
            });
            let Some(index) = index else {
                left_out.push(id.as_str());
                continue;
            };
            next.insert(id.clone(), index);
            let address = collector.address.clone();
            addresses.insert(index, ConfiguredCollector { address, ..ConfiguredCollector::default() });
        }
        if !left_out.is_empty() {
            error!(
                collectors = left_out.join(", "),
                "this translator serves at most {most} collectors: dropping reports for the stores of these"
            );
        }
        (Roster(next), Collectors::from_index_map(addresses))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u8)> {
        self.0.iter().map(|(id, index)| (id.as_str(), *index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(ids: &[&str]) -> View {
        let collector =
            |id: &str| dta_cluster::CollectorRecord { address: format!("{id}:1"), ..Default::default() };
        let collectors = ids.iter().map(|id| ((*id).to_owned(), collector(id))).collect();
        View { collectors, ..View::default() }
    }

    impl Roster {
        fn index(&self, id: &str) -> Option<u8> {
            self.0.get(id).copied()
        }
    }

    #[test]
    fn a_collector_keeps_its_index_and_a_newcomer_gets_one_that_nobody_had() {
        let (roster, collectors) = Roster::default().next(&view(&["b", "c"]), 4);
        assert_eq!((roster.index("b"), roster.index("c"), collectors.count()), (Some(0), Some(1), 2));
        let (roster, collectors) = roster.next(&view(&["a", "c"]), 4);
        assert_eq!((roster.index("a"), roster.index("b"), roster.index("c")), (Some(2), None, Some(1)));
        assert_eq!(
            (collectors.address_at(0), collectors.address_at(1), collectors.address_at(2)),
            ("", "c:1", "a:1")
        );
        // Later, the index is free.
        let (roster, _) = roster.next(&view(&["a", "c", "d"]), 4);
        assert_eq!(roster.index("d"), Some(0));
    }

    #[test]
    fn more_collectors_than_indices_are_left_out() {
        let ids = ["a", "b", "c", "d"];
        let (roster, collectors) = Roster::default().next(&view(&ids), 3);
        assert_eq!((roster.index("d"), collectors.count()), (None, 3));
        // When all indices are taken, a newcomer gets that of one that is gone.
        let (roster, _) = roster.next(&view(&ids[1..]), 3);
        assert_eq!(roster.index("d"), Some(0));
    }
}
