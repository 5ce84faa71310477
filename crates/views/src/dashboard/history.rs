//! Rates of the last minute, for sparklines.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

pub(super) const RATES: usize = 60;

/// Least time between two rates of a counter.
const STEP: Duration = Duration::from_secs(1);

/// A counter: its node's title, or a store's name, and its name.
type Name = (String, String);

/// Rates of counters over the last minute, one per second or per refresh, whichever is longer.
#[derive(Debug, Default)]
pub(super) struct RateHistory {
    of: BTreeMap<Name, VecDeque<Option<f64>>>,
    last: Option<Instant>,
}

impl RateHistory {
    /// Whether a step has passed and rates are due.
    pub(super) fn is_due(&self, at: Instant) -> bool {
        // A slightly early refresh belongs to the next step.
        self.last.is_none_or(|last| at.saturating_duration_since(last) + STEP / 10 >= STEP)
    }

    /// Adds rates; `None` = unknown. Counters that are missing here are forgotten.
    pub(super) fn record_rates(&mut self, at: Instant, rates: impl IntoIterator<Item = (Name, Option<f64>)>) {
        let missed = self.last.map_or(0, |last| missed_steps(at.saturating_duration_since(last)));
        self.last = Some(at);
        let mut of = BTreeMap::new();
        for (name, rate) in rates {
            let mut kept = self.of.remove(&name).unwrap_or_default();
            kept.extend(std::iter::repeat_n(None, missed));
            kept.push_back(rate);
            while kept.len() > RATES {
                kept.pop_front();
            }
            of.insert(name, kept);
        }
        self.of = of;
    }

    /// The newest `width` rates as a line of bars, scaled to the highest; steps without a known rate are blank.
    pub(super) fn sparkline(&self, node: &str, counter: &str, width: usize) -> String {
        let Some(kept) = self.of.get(&(node.to_owned(), counter.to_owned())) else {
            return String::new();
        };
        let shown: Vec<Option<f64>> = kept.iter().skip(kept.len().saturating_sub(width)).copied().collect();
        let most = shown.iter().flatten().copied().fold(0.0, f64::max);
        let bars: String =
            shown.iter().map(|rate| rate.map_or(' ', |rate| sparkline_bar(rate, most))).collect();
        format!("{bars:>width$}")
    }
}

/// How many of the kept steps have no rate.
fn missed_steps(passed: Duration) -> usize {
    // Slow refreshes skip nothing: their step is longer.
    let steps = passed.as_secs_f64() / STEP.as_secs_f64();
    if steps < 5.0 { 0 } else { (steps as usize - 1).min(RATES) }
}

fn sparkline_bar(rate: f64, most: f64) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if most <= 0.0 {
        return BARS[0];
    }
    BARS[((rate / most * 8.0).ceil() as usize).clamp(1, 8) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        ("nic/soft".into(), "received".into())
    }

    fn line(rates: &[(u64, Option<f64>)], width: usize) -> String {
        let start = Instant::now();
        let mut history = RateHistory::default();
        for (millis, rate) in rates {
            let at = start + Duration::from_millis(*millis);
            if history.is_due(at) {
                history.record_rates(at, [(name(), *rate)]);
            }
        }
        history.sparkline("nic/soft", "received", width)
    }

    #[test]
    fn bars_are_as_high_as_rates_beside_the_highest() {
        let rates: Vec<_> = (0..9u64).map(|i| (i * 1000, Some(i as f64 * 125.0))).collect();
        assert_eq!(line(&rates, 9), "▁▁▂▃▄▅▆▇█");
        assert_eq!(line(&rates, 3), "▆▇█");
        assert_eq!(line(&[(0, Some(0.0)), (1000, Some(0.0))], 4), "  ▁▁");
        assert_eq!(line(&[], 4), "");
    }

    #[test]
    fn a_step_is_a_second_and_what_is_not_known_is_blank() {
        // Refreshed every half second, sometimes late.
        assert_eq!(line(&[(0, Some(1.0)), (500, Some(9.0)), (990, Some(1.0)), (1490, Some(9.0))], 3), " ██");
        assert_eq!(line(&[(0, Some(1.0)), (1000, None), (2000, Some(1.0))], 3), "█ █");
        // The collector was away for 10 s.
        assert_eq!(
            line(&[(0, Some(1.0)), (10_000, Some(1.0))], 20).trim_start(),
            format!("█{}█", " ".repeat(9))
        );
        // Slow refreshes skip nothing.
        assert_eq!(line(&[(0, Some(1.0)), (3000, Some(1.0))], 2), "██");
    }

    #[test]
    fn old_rates_and_counters_that_are_gone_are_forgotten() {
        let start = Instant::now();
        let mut history = RateHistory::default();
        for i in 0..200 {
            history.record_rates(start + Duration::from_secs(i), [(name(), Some(1.0))]);
        }
        assert_eq!(history.of[&name()].len(), RATES);
        history.record_rates(start + Duration::from_secs(200), []);
        assert!(history.of.is_empty());
    }
}
