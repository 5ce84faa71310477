//! A group's own past: what is usual for it.

use std::collections::VecDeque;

use super::rule::Condition;

const HOUR: u64 = 3600 * 1_000_000_000;
/// How many hours are remembered: a week.
const HOURS: usize = 7 * 24;
/// Most values per hour.
const SAMPLES: usize = 360;
/// Every 24th hour is the same hour of the day.
const DAY: u64 = 24;
/// Least number of earlier days whose same hour makes a baseline; with fewer, the last hours do.
const LEAST_DAYS: usize = 3;
const LAST_HOURS: usize = 6;
/// Scales the median absolute deviation to the standard deviation of normally distributed values.
const MAD_TO_DEVIATION: f64 = 1.4826;
/// Least deviation, as a share of the median: the values of a steady group do not differ at all.
const LEAST_DEVIATION: f64 = 0.1;

/// What a rule has learned about a group.
#[derive(Clone, Debug)]
pub(super) enum GroupPast {
    Baseline(Baseline),
    Histogram(ValueHistogram),
}

impl GroupPast {
    /// An empty one; `None` if the condition does not depend on the past.
    pub(super) fn for_condition(condition: Condition) -> Option<GroupPast> {
        match condition {
            Condition::Baseline { .. } => Some(GroupPast::Baseline(Baseline::default())),
            Condition::Percentile { .. } => Some(GroupPast::Histogram(ValueHistogram::default())),
            _ => None,
        }
    }

    /// Adds the value of a window that ends at this moment.
    pub(super) fn add_value(&mut self, value: f64, at: u64) {
        match self {
            GroupPast::Baseline(baseline) => baseline.add_value(value, at),
            GroupPast::Histogram(histogram) => histogram.add_value(value, at),
        }
    }

    /// Whether a value came within the hours that are remembered.
    pub(super) fn is_recent(&self, now: u64) -> bool {
        match self {
            GroupPast::Baseline(baseline) => baseline.is_recent(now),
            GroupPast::Histogram(histogram) => histogram.is_recent(now),
        }
    }

    /// Follows a clock that was set back by this much. The hours of a baseline stay as they are.
    pub(super) fn set_back(&mut self, by: u64) {
        if let GroupPast::Histogram(ValueHistogram { began, newest, .. }) = self {
            (*began, *newest) = (began.saturating_sub(by), newest.saturating_sub(by));
        }
    }

    /// The limit that a value must exceed for the condition to hold; `None` as long as too little is known.
    pub(super) fn limit(&self, condition: Condition, now: u64) -> Option<f64> {
        match (self, condition) {
            (GroupPast::Baseline(baseline), Condition::Baseline { deviations, floor }) => {
                let (median, deviation) = baseline.usual_value()?;
                Some((median + deviations * deviation).max(floor))
            }
            (GroupPast::Histogram(histogram), Condition::Percentile { percentile, times, floor }) => {
                Some((histogram.percentile(percentile, now)? * times).max(floor))
            }
            _ => None,
        }
    }
}

/// Median and median absolute deviation of each past hour.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    hour: u64,
    samples: Vec<f64>,
    /// Compact, as there is one entry per group and hour.
    past: VecDeque<(u32, f32, f32)>,
}

impl Baseline {
    /// Adds the value of a window that ends at this moment.
    pub(super) fn add_value(&mut self, value: f64, at: u64) {
        let hour = at / HOUR;
        if hour != self.hour {
            if let Some((median, deviation)) = median_and_deviation(&mut self.samples) {
                self.past.push_back((self.hour as u32, median as f32, deviation as f32));
            }
            if self.past.len() > HOURS {
                self.past.pop_front();
            }
            (self.hour, self.samples) = (hour, Vec::new());
        }
        if self.samples.len() < SAMPLES {
            self.samples.push(value);
        }
    }

    /// Whether a value came within the hours that are remembered.
    pub(super) fn is_recent(&self, now: u64) -> bool {
        now / HOUR <= self.hour + HOURS as u64
    }

    /// The usual value, and how much values deviate from it; `None` before the first hour is over.
    pub(super) fn usual_value(&self) -> Option<(f64, f64)> {
        let widen = |(hour, median, deviation): &(u32, f32, f32)| {
            (u64::from(*hour), f64::from(*median), f64::from(*deviation))
        };
        let past = self.past.iter().rev().map(widen);
        let recent = past.filter(|(hour, ..)| self.hour.saturating_sub(*hour) <= HOURS as u64);
        let mut hours: Vec<_> = recent.clone().filter(|(hour, ..)| hour % DAY == self.hour % DAY).collect();
        if hours.len() < LEAST_DAYS {
            hours = recent.take(LAST_HOURS).collect();
        }
        let (median, _) =
            median_and_deviation(&mut hours.iter().map(|(_, median, _)| *median).collect::<Vec<_>>())?;
        // Differences between hours count as deviation, too.
        let (deviation, _) =
            median_and_deviation(&mut hours.iter().map(|(.., deviation)| *deviation).collect::<Vec<_>>())?;
        let apart = hours.iter().map(|(_, of_hour, _)| (of_hour - median).abs());
        let (between, _) = median_and_deviation(&mut apart.collect::<Vec<_>>())?;
        Some((median, (deviation.max(between) * MAD_TO_DEVIATION).max(median * LEAST_DEVIATION)))
    }
}

fn median_and_deviation(values: &mut [f64]) -> Option<(f64, f64)> {
    let median = median(values)?;
    let mut apart: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
    Some((median, self::median(&mut apart)?))
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Ranges per doubling of the value: a percentile is at most an eighth too high.
const RANGES: usize = 8;
/// Once this many values are counted, all counts are halved.
const MOST_VALUES: u32 = 20_000;
/// With fewer values, no percentile is known.
const LEAST_VALUES: u32 = 30;

/// How many values fell into each range.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueHistogram {
    began: u64,
    newest: u64,
    total: u32,
    counts: Vec<u16>,
}

impl ValueHistogram {
    pub(super) fn add_value(&mut self, value: f64, at: u64) {
        if self.counts.is_empty() {
            self.began = at;
        }
        self.newest = at;
        let range = range_of_value(value);
        if range >= self.counts.len() {
            self.counts.resize(range + 1, 0);
        }
        self.counts[range] += 1;
        self.total += 1;
        if self.total >= MOST_VALUES {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
    }

    /// Whether a value came within the hours that are remembered.
    pub(super) fn is_recent(&self, now: u64) -> bool {
        now <= self.newest + HOURS as u64 * HOUR
    }

    /// The upper end of the range that holds the percentile; `None` in the first hour, or with too few values.
    pub(super) fn percentile(&self, percentile: f64, now: u64) -> Option<f64> {
        if self.total < LEAST_VALUES || now < self.began + HOUR {
            return None;
        }
        let below = f64::from(self.total) * percentile / 100.0;
        let mut sum = 0.0;
        let range = self.counts.iter().position(|count| {
            sum += f64::from(*count);
            sum >= below
        })?;
        Some(range_end(range))
    }
}

fn range_of_value(value: f64) -> usize {
    // From 1 on, ranges follow doublings; everything below is one range.
    if value < 1.0 { 0 } else { 1 + ((value.min(1e18)).log2() * RANGES as f64) as usize }
}

fn range_end(range: usize) -> f64 {
    2f64.powf(range as f64 / RANGES as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_the_same_hour_of_earlier_days_or_the_last_hours() {
        let mut baseline = Baseline::default();
        let start = 1000 * DAY * HOUR;
        let minute = HOUR / 60;
        // 100 by night and 1000 by day, each value within a twentieth.
        let value = |hour: u64, minute: u64| {
            let usual = if hour % DAY < 8 { 100.0 } else { 1000.0 };
            usual * (0.95 + (minute % 11) as f64 / 100.0)
        };
        for hour in 0..6 * DAY {
            for minutes in 0..60 {
                baseline.add_value(value(hour, minutes), start + hour * HOUR + minutes * minute);
                let (median, deviation) = match (hour, baseline.usual_value()) {
                    (0, usual) => {
                        assert_eq!(usual, None, "it learns in the first hour");
                        continue;
                    }
                    (_, usual) => usual.unwrap(),
                };
                if (1..8).contains(&hour) || hour >= LEAST_DAYS as u64 * DAY {
                    let expected = value(hour, 5);
                    assert!((median - expected).abs() < 0.02 * expected, "hour {hour}: {median}");
                    assert!((0.1 * median..0.2 * median).contains(&deviation), "hour {hour}: {deviation}");
                }
            }
        }
    }

    #[test]
    fn a_burst_does_not_move_the_median() {
        let mut baseline = Baseline::default();
        for minutes in 0..120 {
            let value = if (20..45).contains(&minutes) { 1e9 } else { 10.0 };
            baseline.add_value(value, minutes * HOUR / 60);
        }
        assert_eq!(baseline.usual_value(), Some((10.0, 1.0)));
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_too_high() {
        let mut histogram = ValueHistogram::default();
        for value in 0..1000 {
            histogram.add_value(f64::from(value), value as u64);
            assert_eq!(histogram.percentile(50.0, value as u64), None);
        }
        for percentile in [1.0, 50.0, 90.0, 99.0] {
            let found = histogram.percentile(percentile, 2 * HOUR).unwrap();
            let exact = 10.0 * percentile;
            assert!((exact - 1.0..exact * 1.125 + 1.0).contains(&found), "{percentile}: {found}");
        }
        (0..100_000).for_each(|_| histogram.add_value(7.0, 1));
        assert!(
            (7.0..8.0).contains(&histogram.percentile(50.0, 2 * HOUR).unwrap()),
            "counts are halved, not full"
        );
    }
}
