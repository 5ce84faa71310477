//! Rates of counters, by the clocks of the nodes that count.
//!
//! Nodes read their counters at their own pace: the collector's NIC on each query, a translator once a second with its renewal.
//! Two queries in between return the same sample. So a rate is computed from two samples of a node and the node's own times
//! ([`NodeStatistics::time_us`]), whenever they were queried.
//!
//! [`NodeStatistics::time_us`]: dta_proto::control::NodeStatistics::time_us

use std::collections::{BTreeMap, VecDeque};

use dta_proto::counter;

use super::WaterfallNode;

/// Least time between the two samples of a rate, if samples are that frequent. With less, rates would jitter.
const STRETCH_US: u64 = 900_000;

/// Samples closer together than this give no rate: a node counts in batches, which would look like bursts.
const SHORTEST_US: u64 = 40_000;

/// The last samples of all nodes.
#[derive(Debug, Default)]
pub struct Rates {
    /// By title ([`WaterfallNode::title`]).
    nodes: BTreeMap<String, Samples>,
}

/// The last samples of one node, oldest first.
#[derive(Debug, Default)]
struct Samples(VecDeque<RateSample>);

#[derive(Debug)]
struct RateSample {
    time_us: u64,
    counters: Vec<(String, u64)>,
}

impl Rates {
    /// Takes samples of all nodes. Missing nodes are forgotten.
    pub fn take(&mut self, nodes: &[WaterfallNode]) {
        let mut samples = BTreeMap::new();
        for node in nodes {
            let title = node.title();
            let mut of_node = self.nodes.remove(&title).unwrap_or_default();
            of_node.take(node);
            samples.insert(title, of_node);
        }
        self.nodes = samples;
    }

    /// The rate per second of a node's counter. `None` = unknown: before its second sample, for a counter that was reset or may
    /// fall, and for a node that is silent or provides no times.
    pub fn counter_rate(&self, node: &WaterfallNode, counter: &str) -> Option<f64> {
        if counter::find_counter(&node.name, counter)
            .is_some_and(|found| found.definition.kind.can_decrease())
        {
            return None;
        }
        self.nodes.get(&node.title())?.counter_rate(node.age, counter)
    }

    /// The sum of [`Rates::counter_rate`] over the nodes where it is known; `None` = nowhere.
    pub fn sum<'a>(&self, nodes: impl IntoIterator<Item = &'a WaterfallNode>, counter: &str) -> Option<f64> {
        nodes.into_iter().filter_map(|node| self.counter_rate(node, counter)).reduce(|a, b| a + b)
    }
}

impl Samples {
    fn take(&mut self, node: &WaterfallNode) {
        let newest = self.0.back().map(|sample| sample.time_us);
        if node.time_us == 0 || newest == Some(node.time_us) {
            return;
        }
        if newest.is_some_and(|newest| newest > node.time_us) {
            // The node's clock was set back: earlier samples give no rate.
            self.0.clear();
        }
        let mut counters = node.counters.clone();
        counters.sort_unstable();
        self.0.push_back(RateSample { time_us: node.time_us, counters });
        // Compare with the newest sample that is old enough.
        while self.0.get(1).is_some_and(|second| node.time_us - second.time_us >= STRETCH_US) {
            self.0.pop_front();
        }
    }

    fn counter_rate(&self, age: f64, counter: &str) -> Option<f64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let stretch = last.time_us - first.time_us;
        if stretch < SHORTEST_US || age > silent_after(stretch) {
            return None;
        }
        let added = last.counter_value(counter)?.checked_sub(first.counter_value(counter).unwrap_or(0))?;
        Some(added as f64 * 1e6 / stretch as f64)
    }
}

impl RateSample {
    fn counter_value(&self, counter: &str) -> Option<u64> {
        let at = self.counters.binary_search_by(|(name, _)| name.as_str().cmp(counter)).ok()?;
        Some(self.counters[at].1)
    }
}

/// The age in seconds from which a node counts as silent: two more samples should have come by then.
fn silent_after(stretch_us: u64) -> f64 {
    2.0 * stretch_us.max(STRETCH_US) as f64 / 1e6 + 0.5
}

#[cfg(test)]
mod tests {
    use dta_proto::control::{Counter, NodeStatistics};

    use super::super::ordered_nodes as in_order;
    use super::*;

    fn nodes(of: &[(&str, u64, u64)]) -> Vec<WaterfallNode> {
        let node = |(name, time_us, received): &(&str, u64, u64)| NodeStatistics {
            node: (*name).into(),
            session: "t".into(),
            counters: vec![
                Counter { name: "received".into(), value: *received },
                Counter { name: "held".into(), value: *received },
            ],
            time_us: *time_us,
            ..NodeStatistics::default()
        };
        in_order(of.iter().map(node).collect())
    }

    const S: u64 = 1_000_000;

    #[test]
    fn a_rate_is_the_nodes_own_however_often_it_is_asked() {
        for step in [50_000, 300_000, 500_000, 999_000, 1_700_000] {
            let mut rates = Rates::default();
            let mut known = 0;
            for asked in (0..20 * S).step_by(step) {
                // It is sampled about every second, and receives 1000 reports a second.
                let second = asked / S;
                let sampled = 100 * S + second * S + second % 3 * 7000;
                let now = nodes(&[("translator/t", sampled, sampled / 1000)]);
                rates.take(&now);
                if let Some(rate) = rates.counter_rate(&now[0], "received") {
                    assert!((rate - 1000.0).abs() < 0.01, "{rate} after {asked} us, asked every {step} us");
                    known += 1;
                }
            }
            assert!(known > 8, "asked every {step} us");
        }
    }

    #[test]
    fn many_words_are_one_rate_over_a_second() {
        let mut rates = Rates::default();
        let mut last = nodes(&[]);
        for i in 1..100 {
            // In steps of 30 reports, every 60 ms: 500 per second.
            last = nodes(&[("nic/soft", i * 25_000, i * 25 / 60 * 30)]);
            rates.take(&last);
        }
        let rate = rates.counter_rate(&last[0], "received").unwrap();
        assert!((470.0..530.0).contains(&rate), "{rate}");
        assert!(rates.nodes.values().all(|samples| samples.0.len() < 50), "old samples are forgotten");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let mut rates = Rates::default();
        let take = |rates: &mut Rates, time, received| {
            let now = nodes(&[("translator/t", time, received)]);
            rates.take(&now);
            now.into_iter().next().unwrap()
        };
        let first = take(&mut rates, S, 10);
        assert_eq!(rates.counter_rate(&first, "received"), None, "one sample");
        let second = take(&mut rates, 3 * S, 30);
        assert_eq!(rates.counter_rate(&second, "received"), Some(10.0));
        assert_eq!(rates.counter_rate(&second, "held"), None, "it may fall");
        assert_eq!(rates.counter_rate(&second, "nothing"), None);
        let silent = WaterfallNode { age: 60.0, ..second };
        assert_eq!(rates.counter_rate(&silent, "received"), None, "it said nothing for a minute");
        let anew = take(&mut rates, 5 * S, 3);
        assert_eq!(rates.counter_rate(&anew, "received"), None, "it began anew");
        let back = take(&mut rates, S, 50);
        assert_eq!(rates.counter_rate(&back, "received"), None, "its clock was put back");
        let on = take(&mut rates, 2 * S, 60);
        assert_eq!(rates.counter_rate(&on, "received"), Some(10.0));
        let timeless = take(&mut rates, 0, 70);
        assert_eq!(
            rates.counter_rate(&timeless, "received"),
            Some(10.0),
            "a sample without a time says nothing new"
        );
        rates.take(&nodes(&[]));
        assert!(rates.nodes.is_empty());
    }

    #[test]
    fn nodes_with_clocks_of_their_own_are_added_up() {
        let mut rates = Rates::default();
        rates.take(&nodes(&[("translator/a", S, 0), ("translator/b", 77 * S, 0)]));
        let now = nodes(&[("translator/a", 2 * S, 100), ("translator/b", 78 * S + S / 2, 300)]);
        rates.take(&now);
        assert_eq!(rates.sum(&now, "received"), Some(300.0));
        assert_eq!(rates.sum(&now, "nothing"), None);
    }
}
