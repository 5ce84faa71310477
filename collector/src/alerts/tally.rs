//! Sums by group over a sliding window of buckets, each a sixth of the window but at least a second long. An
//! entry updates one bucket of one group; a window is the sum of the buckets that are over.
//!
//! Several exporters may see a flow, and one of them may count it both on entry and on exit. Sums are
//! therefore kept apart by exporter and direction, and a group takes the greatest of its sums, unless the
//! rule groups by these. Different values are counted over all of them.
//!
//! A record counts when it was received. For rules that look for new heavy flows, its bytes and packets are
//! spread over the time before, as long as the record lasted and back to the beginning of the window, so that
//! a window never counts more of a transfer than was sent in it. It misses what is not yet exported, which
//! makes a steady flow seem to go up and down: other rules would find it below their limits.

use std::collections::HashMap;
use std::ops::Range;

use dta_proto::flow_query::{FLOW_COLUMNS, FlowFilter, FlowSums};
use dta_proto::flow_record::Column;
use foldhash::quality::RandomState;

use super::groups::{GroupTable, KeyColumns};
use super::rule::{Condition, Quantity, Rule};
use super::sketch::DistinctSketch;
use super::source::{Entry, Source};

const SECOND: u64 = 1_000_000_000;
/// Buckets of a window.
const BUCKETS: u64 = 6;
/// Buckets that are not over: the current one, and the previous one until its last entries have come.
const OPEN_BUCKETS: u64 = 2;
/// Time allowed after a bucket's end for its last entries to come.
const GRACE: u64 = SECOND;

/// A slice of time.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: u64,
    /// Its index in rings.
    place: usize,
    /// When it begins, and when its run of [`WindowTally::window_buckets`] begins.
    from: u64,
    window_from: u64,
}

/// Values of the last buckets, by group. A bucket's values lie together, as most entries are of the same
/// bucket; a bucket takes memory for groups only once something comes in it.
#[derive(Clone, Debug)]
struct BucketRing<T>(Box<[Vec<(u64, T)>]>);

impl<T: Clone + Default> BucketRing<T> {
    fn new(buckets: u64) -> Self {
        BucketRing(vec![Vec::new(); buckets as usize].into_boxed_slice())
    }

    /// The value of a group in a bucket; `None` if a later bucket has taken its place.
    #[inline]
    fn value_at(&mut self, Bucket { number: bucket, place, .. }: Bucket, group: usize) -> Option<&mut T> {
        let groups = &mut self.0[place];
        if group >= groups.len() {
            groups.resize(group + 1, (0, T::default()));
        }
        let (of, value) = &mut groups[group];
        if *of > bucket {
            return None;
        }
        if *of < bucket {
            (*of, *value) = (bucket, T::default());
        }
        Some(value)
    }

    fn values_within(&self, buckets: &Range<u64>, group: usize) -> impl Iterator<Item = &T> {
        let of_group = move |bucket| {
            let place = (bucket % self.0.len() as u64) as usize;
            self.0[place].get(group).filter(|(of, _)| *of == bucket)
        };
        buckets.clone().filter_map(of_group).map(|(_, value)| value)
    }

    fn retain(&mut self, is_kept: &[bool]) {
        self.0.iter_mut().for_each(|groups| retain_by(groups, is_kept));
    }
}

impl BucketRing<FlowSums> {
    /// Spreads what was counted in this time, which ends in the newest bucket: each bucket gets its share of
    /// bytes and packets, except those before the window that ends with the newest. The record itself counts
    /// in the newest. `None` if a later bucket has taken its place.
    fn add_over_time(
        &mut self,
        group: usize,
        newest: Bucket,
        bucket_len: u64,
        window_buckets: u64,
        counted: Range<u64>,
        sums: FlowSums,
    ) -> Option<()> {
        self.value_at(newest, group)?.add(FlowSums { flows: sums.flows, ..FlowSums::default() });
        let covered = counted.end - counted.start;
        let oldest = (newest.number + 1).saturating_sub(window_buckets).max(counted.start / bucket_len);
        for number in oldest..=newest.number {
            let from = (number * bucket_len).max(counted.start);
            let to = ((number + 1) * bucket_len).min(counted.end);
            let until = |count: u64, moment: u64| {
                (u128::from(count) * u128::from(moment - counted.start) / u128::from(covered)) as u64
            };
            let share = |count: u64| until(count, to) - until(count, from);
            let place = (number % self.0.len() as u64) as usize;
            if let Some(of_bucket) = self.value_at(Bucket { number, place, ..newest }, group) {
                let (bytes, packets) = (share(sums.bytes), share(sums.packets));
                of_bucket.add(FlowSums { bytes, packets, flows: 0 });
            }
        }
        Some(())
    }
}

/// The nanoseconds before `time` that a flow's record covers: as long as it lasted, but no longer than since
/// the previous record, as some exporters repeat the start of the flow. 0 if the record does not say.
fn covered_time(lifetime: [&Column; 2], entry: &Entry, time: u64, last: u64) -> u64 {
    let [start, end] = lifetime.map(|column| column.read_value(entry) as u64);
    let lasted = if start == 0 { 0 } else { end.saturating_sub(start) };
    let since_last = if last == 0 { time } else { time.saturating_sub(last) };
    lasted.min(since_last)
}

/// Keeps the marked values, and shrinks a vector that has become much too large.
fn retain_by<T>(values: &mut Vec<T>, is_kept: &[bool]) {
    let mut is_kept = is_kept.iter();
    values.retain(|_| is_kept.next().is_some_and(|is_kept| *is_kept));
    if values.len() < values.capacity() / 4 {
        values.shrink_to(2 * values.len());
    }
}

/// What came, by group.
#[derive(Clone, Debug)]
enum GroupCells {
    Sums(BucketRing<FlowSums>),
    Distinct(BucketRing<DistinctSketch>),
    Largest(BucketRing<Option<u64>>),
    Latest(Vec<u64>),
    /// The number of windows in which something came.
    Seen(Vec<u32>),
}

/// What came in a window.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WindowValue {
    Sums(FlowSums),
    /// How many different values, and whether that is exact.
    Distinct(f64, bool),
    Number(u64),
    /// When something last came, in nanoseconds since 1970, and the number of windows in which something came.
    Seen {
        last: u64,
        windows: u32,
    },
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tallied {
    Added,
    NotIncluded,
    TooLate,
    NoRoom,
}

#[derive(Debug)]
pub(super) struct WindowTally {
    source: Source,
    filter: FlowFilter,
    groups: GroupTable,
    max_groups: usize,
    /// Length of the group in a key; exporter and direction follow it if sums are kept apart by them.
    group_len: usize,
    quantity: Quantity,
    /// The columns whose different values are counted.
    distinct: KeyColumns,
    /// The column to read if the quantity is a number.
    number: Option<&'static Column>,
    /// Start and end of a record, if it counts over its time: a group is then one flow with consecutive records.
    lifetime: Option<[&'static Column; 2]>,
    /// In nanoseconds.
    bucket: u64,
    /// Buckets in a window, and buckets that are kept.
    window_buckets: u64,
    kept_buckets: u64,
    /// How long a group stays without entries.
    keep: u64,
    /// The bucket of the last entry.
    last_bucket: Bucket,
    /// When each group's newest entry came.
    last: Vec<u64>,
    cells: GroupCells,
    /// For different values.
    hasher: RandomState,
    /// Entries in no group: one count per bucket.
    no_room: BucketRing<u64>,
    evaluated: u64,
}

/// The values of groups, by key.
pub(super) type GroupValues<'a> = HashMap<&'a [u8], WindowValue, RandomState>;

/// For how long a group that fell silent is missed.
const KEEP_SEEN: u64 = 24 * 3600 * SECOND;

impl WindowTally {
    pub(super) fn new(rule: &Rule) -> WindowTally {
        let window_buckets = (rule.window / SECOND).clamp(1, BUCKETS);
        let bucket = rule.window / window_buckets;
        let is_new_heavy = matches!(rule.condition, Condition::NewHeavy { .. });
        let windows = if is_new_heavy { 2 } else { 1 };
        let kept_buckets = windows * window_buckets + OPEN_BUCKETS;
        let mut key: Vec<&'static Column> = rule.group.clone();
        let group_len = key.iter().map(|column| column.kind.width()).sum();
        if rule.source == Source::FlowRecords && rule.measure.quantity == Quantity::Sums {
            let observer = ["exporter", "direction"].map(|name| rule.source.column(name));
            key.extend(observer.into_iter().flatten().filter(|column| !rule.group.contains(column)));
        }
        let column = |name: &&'static str| rule.source.column(name);
        let (distinct, number) = match &rule.measure.quantity {
            Quantity::Distinct(names) => (names.iter().filter_map(column).collect(), None),
            Quantity::Latest(name) | Quantity::Largest(name) => (Vec::new(), column(name)),
            Quantity::Sums | Quantity::Seen => (Vec::new(), None),
        };
        let is_one_flow = rule.source == Source::FlowRecords
            && FLOW_COLUMNS.iter().all(|column| rule.group.iter().any(|of| of.name == column.name));
        let lifetime = ["start", "end"].map(Column::from_name);
        let keep = match rule.measure.quantity {
            Quantity::Latest(_) => rule.keep_latest(),
            Quantity::Seen => KEEP_SEEN.max(2 * rule.window),
            _ => kept_buckets * bucket,
        };
        WindowTally {
            source: rule.source,
            filter: rule.filter.clone(),
            groups: GroupTable::new(KeyColumns::new(key)),
            max_groups: rule.max_groups,
            group_len,
            quantity: rule.measure.quantity.clone(),
            distinct: KeyColumns::new(distinct),
            number,
            lifetime: (is_one_flow && is_new_heavy)
                .then_some(lifetime)
                .and_then(|[start, end]| Some([start?, end?])),
            bucket,
            window_buckets,
            kept_buckets,
            keep,
            last_bucket: Bucket::default(),
            last: Vec::new(),
            cells: GroupCells::new(&rule.measure.quantity, kept_buckets),
            hasher: RandomState::default(),
            no_room: BucketRing::new(kept_buckets),
            evaluated: 0,
        }
    }

    /// Makes at least as much room as this rule wants.
    pub(super) fn make_room_for(&mut self, rule: &Rule) {
        self.max_groups = self.max_groups.max(rule.max_groups);
    }

    /// Takes over the groups of another tally with the same key, but keeps its own room.
    pub(super) fn take_groups(&mut self, former: WindowTally) {
        *self = WindowTally { max_groups: self.max_groups, ..former };
    }

    /// Whether groups outlive their windows, because it matters when they last came.
    pub(super) fn is_lasting(&self) -> bool {
        matches!(self.quantity, Quantity::Latest(_) | Quantity::Seen)
    }

    /// Whether a reading that repeats the previous one counts. A counter that stands still is neither a sign
    /// of life nor a different value; but its rate is 0, and a value still holds.
    pub(super) fn takes_repeated_readings(&self) -> bool {
        match self.quantity {
            Quantity::Seen => false,
            Quantity::Distinct(_) => self.source == Source::Values,
            Quantity::Sums | Quantity::Largest(_) | Quantity::Latest(_) => true,
        }
    }

    /// Length of a bucket in nanoseconds.
    pub(super) fn bucket(&self) -> u64 {
        self.bucket
    }

    /// Follows a clock that was set back to `now` by this much. Windows begin again, as their buckets may be
    /// in the future; what outlasts windows keeps its age.
    pub(super) fn set_back(&mut self, by: u64, now: u64) {
        self.evaluated = 0;
        self.no_room = BucketRing::new(self.kept_buckets);
        if !self.is_lasting() {
            self.groups.clear();
            self.last.clear();
            self.cells = GroupCells::new(&self.quantity, self.kept_buckets);
        }
        self.last.iter_mut().for_each(|last| *last = last.saturating_sub(by).min(now));
    }

    /// Adds an entry of this time, which stands for `weight` entries, if it fulfils the condition.
    pub(super) fn add_entry(&mut self, entry: &Entry, time: u64, now: u64, weight: u64) -> Tallied {
        match self.filter.includes(entry) {
            true => self.add_included(entry, time, now, weight),
            false => Tallied::NotIncluded,
        }
    }

    /// Adds an entry that is known to fulfil the condition.
    #[inline]
    pub(super) fn add_included(&mut self, entry: &Entry, time: u64, now: u64, weight: u64) -> Tallied {
        if time + self.keep < now {
            return Tallied::TooLate;
        }
        let bucket = self.bucket_at(time);
        let group = match self.groups.find(entry) {
            Ok(group) => group,
            Err(_) if self.groups.len() >= self.max_groups => {
                if let Some(count) = self.no_room.value_at(bucket, 0) {
                    *count += weight;
                }
                return Tallied::NoRoom;
            }
            Err(key) => {
                self.last.push(0);
                self.cells.push_group();
                self.groups.add(key, entry)
            }
        };
        let number = || self.number.map_or(0, |column| column.read_value(entry) as u64);
        let last = &mut self.last[group];
        let is_added = match &mut self.cells {
            GroupCells::Sums(ring) => {
                let FlowSums { bytes, packets, flows } = self.source.sums_of_entry(entry);
                let times = |count: u64| count.saturating_mul(weight);
                let sums = FlowSums { bytes: times(bytes), packets: times(packets), flows: times(flows) };
                let covered = self.lifetime.map_or(0, |lifetime| covered_time(lifetime, entry, time, *last));
                match covered {
                    0 => ring.value_at(bucket, group).map(|of_bucket| of_bucket.add(sums)),
                    _ => {
                        let counted = time.saturating_sub(covered)..time;
                        ring.add_over_time(group, bucket, self.bucket, self.window_buckets, counted, sums)
                    }
                }
            }
            GroupCells::Distinct(ring) => ring
                .value_at(bucket, group)
                .map(|sketch| sketch.insert(self.distinct.hash_key(&self.hasher, entry))),
            GroupCells::Largest(ring) => {
                ring.value_at(bucket, group).map(|largest| *largest = (*largest).max(Some(number())))
            }
            GroupCells::Latest(values) => {
                if time >= *last {
                    values[group] = number();
                }
                Some(())
            }
            GroupCells::Seen(windows) => {
                if *last < bucket.window_from {
                    windows[group] = windows[group].saturating_add(1);
                }
                Some(())
            }
        };
        *last = time.max(*last);
        if is_added.is_some() { Tallied::Added } else { Tallied::TooLate }
    }

    /// The bucket of a time. It is mostly that of the previous entry, which saves divisions.
    #[inline]
    fn bucket_at(&mut self, time: u64) -> Bucket {
        if time.wrapping_sub(self.last_bucket.from) >= self.bucket {
            let number = time / self.bucket;
            self.last_bucket = Bucket {
                number,
                place: (number % self.kept_buckets) as usize,
                from: number * self.bucket,
                window_from: number / self.window_buckets * self.window_buckets * self.bucket,
            };
        }
        self.last_bucket
    }

    /// The buckets of the window that has ended by now, if it is later than the one last returned. Forgets
    /// groups that have had no entries for long.
    pub(super) fn next_window(&mut self, now: u64) -> Option<Range<u64>> {
        let end = now.saturating_sub(GRACE) / self.bucket;
        if end <= self.evaluated {
            return None;
        }
        self.evaluated = end;
        let is_kept: Vec<bool> = self.last.iter().map(|last| last + self.keep >= now).collect();
        if is_kept.contains(&false) {
            self.groups.retain(&is_kept);
            retain_by(&mut self.last, &is_kept);
            self.cells.retain(&is_kept);
        }
        Some(end.saturating_sub(self.window_buckets)..end)
    }

    /// When the window of these buckets begins and ends, in nanoseconds since 1970.
    pub(super) fn window_span(&self, window: &Range<u64>) -> Range<u64> {
        window.start * self.bucket..window.end * self.bucket
    }

    pub(super) fn window_before(&self, window: &Range<u64>) -> Range<u64> {
        window.start.saturating_sub(self.window_buckets)..window.start
    }

    /// Entries of a window that belong to no group.
    pub(super) fn count_without_room(&self, window: &Range<u64>) -> u64 {
        self.no_room.values_within(window, 0).sum()
    }

    /// The groups of a window: their keys and values. Groups without a wanted value may be left out; if a
    /// value is wanted, every greater one must be wanted, too.
    pub(super) fn read_window(
        &self,
        window: &Range<u64>,
        is_wanted: impl Fn(&WindowValue) -> bool,
    ) -> GroupValues<'_> {
        let mut values = GroupValues::default();
        for group in 0..self.groups.len() {
            let Some(value) = self.value_within(window, group).filter(&is_wanted) else { continue };
            let key = &self.groups.key(group)[..self.group_len];
            match (values.get_mut(key), value) {
                // Another exporter saw it, or it went in the other direction.
                (Some(WindowValue::Sums(greatest)), WindowValue::Sums(sums)) => {
                    greatest.bytes = greatest.bytes.max(sums.bytes);
                    greatest.packets = greatest.packets.max(sums.packets);
                    greatest.flows = greatest.flows.max(sums.flows);
                }
                (_, value) => _ = values.insert(key, value),
            }
        }
        values
    }

    /// The value of a group; `None` if nothing came.
    fn value_within(&self, window: &Range<u64>, group: usize) -> Option<WindowValue> {
        match &self.cells {
            GroupCells::Sums(ring) => {
                let mut all = FlowSums::default();
                ring.values_within(window, group).for_each(|sums| all.add(*sums));
                // A window may hold only a share of a record that counts over its time.
                let is_known = all.flows > 0 || self.lifetime.is_some() && all != FlowSums::default();
                is_known.then_some(WindowValue::Sums(all))
            }
            GroupCells::Distinct(ring) => {
                let mut all = DistinctSketch::default();
                ring.values_within(window, group).for_each(|sketch| all.unite(sketch));
                let count = all.estimate();
                (count > 0.0).then(|| WindowValue::Distinct(count, all.is_exact()))
            }
            GroupCells::Largest(ring) => {
                ring.values_within(window, group).copied().flatten().max().map(WindowValue::Number)
            }
            GroupCells::Latest(values) => Some(WindowValue::Number(values[group])),
            GroupCells::Seen(windows) => {
                Some(WindowValue::Seen { last: self.last[group], windows: windows[group] })
            }
        }
    }
}

impl GroupCells {
    fn new(quantity: &Quantity, buckets: u64) -> GroupCells {
        match quantity {
            Quantity::Sums => GroupCells::Sums(BucketRing::new(buckets)),
            Quantity::Distinct(_) => GroupCells::Distinct(BucketRing::new(buckets)),
            Quantity::Largest(_) => GroupCells::Largest(BucketRing::new(buckets)),
            Quantity::Latest(_) => GroupCells::Latest(Vec::new()),
            Quantity::Seen => GroupCells::Seen(Vec::new()),
        }
    }

    fn push_group(&mut self) {
        match self {
            // Rings take memory only when something comes.
            GroupCells::Sums(_) | GroupCells::Distinct(_) | GroupCells::Largest(_) => {}
            GroupCells::Latest(values) => values.push(0),
            GroupCells::Seen(windows) => windows.push(0),
        }
    }

    fn retain(&mut self, is_kept: &[bool]) {
        match self {
            GroupCells::Sums(ring) => ring.retain(is_kept),
            GroupCells::Distinct(ring) => ring.retain(is_kept),
            GroupCells::Largest(ring) => ring.retain(is_kept),
            GroupCells::Latest(values) => retain_by(values, is_kept),
            GroupCells::Seen(windows) => retain_by(windows, is_kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::Ipv4Addr;

    use dta_export::names::Names;
    use dta_proto::flow_record::FlowRecord;
    use proptest::prelude::*;

    use super::super::rule::{AlertsConfig, RuleConfig};
    use super::*;

    fn parse_rule(measure: &str, group: &str, window: &str) -> Rule {
        let text = format!(
            "name = \"x\"\nmeasure = \"{measure}\"\ngroup = \"{group}\"\nwindow = \"{window}\"\nabove = 1\nwhere = \"dst-port < 3\"\nmax_groups = 50\n"
        );
        let rule: RuleConfig = toml::from_str(&text).unwrap();
        let config = AlertsConfig { defaults: false, rule: vec![rule], ..AlertsConfig::default() };
        config.to_rules(&Names::empty()).unwrap().remove(0)
    }

    fn address(number: u8) -> std::net::Ipv6Addr {
        Ipv4Addr::new(10, 0, 0, number).to_ipv6_mapped()
    }

    fn any_record() -> impl Strategy<Value = FlowRecord> {
        (0u64..120, 0u8..4, 0u8..6, 0u8..2, 0u16..4, 0u64..500).prop_map(
            |(received, dst, src, exporter, dst_port, bytes)| FlowRecord {
                received: (1_000_000 + received) * SECOND,
                src: address(src),
                dst: address(dst),
                exporter: address(100 + exporter),
                dst_port,
                bytes,
                packets: 1,
                ..FlowRecord::EMPTY
            },
        )
    }

    proptest! {
        /// Values of windows equal the sums over all records of the window, computed from scratch at each evaluation.
        #[test]
        fn windows_equal_a_naive_recomputation(
            mut records in prop::collection::vec(any_record(), 0..150),
            delays in prop::collection::vec(0u64..2, 150),
            window in prop::sample::select(vec!["1s", "4s", "12s", "30s"]),
        ) {
            records.sort_by_key(|record| record.received);
            let mut tallies = [parse_rule("bytes", "dst", window), parse_rule("distinct src", "dst", window), parse_rule("largest bytes", "", window)]
                .map(|rule| (WindowTally::new(&rule), rule));
            let mut waiting: Vec<(u64, FlowRecord)> = records.iter().zip(delays).map(|(record, delay)| (record.received + delay * SECOND, *record)).collect();
            waiting.sort_by_key(|(arrival, _)| *arrival);
            let mut arrived: Vec<FlowRecord> = Vec::new();
            for second in 1_000_000..1_000_000 + 130u64 {
                let now = second * SECOND;
                while waiting.first().is_some_and(|(arrival, _)| *arrival <= now) {
                    let (_, record) = waiting.remove(0);
                    for (tally, _) in &mut tallies {
                        tally.add_entry(&record.to_entry(), record.received, now, 1);
                    }
                    arrived.push(record);
                }
                for (tally, rule) in &mut tallies {
                    let Some(window) = tally.next_window(now) else { continue };
                    let span = tally.window_span(&window);
                    let within = arrived.iter().filter(|record| record.dst_port < 3 && span.contains(&record.received));
                    let mut sums: BTreeMap<(u8, u8), u64> = BTreeMap::new();
                    let mut sources: BTreeMap<u8, BTreeSet<u8>> = BTreeMap::new();
                    let mut largest = None;
                    for record in within {
                        let [dst, src, exporter] = [record.dst, record.src, record.exporter].map(|address| address.octets()[15]);
                        *sums.entry((dst, exporter)).or_default() += record.bytes;
                        sources.entry(dst).or_default().insert(src);
                        largest = largest.max(Some(record.bytes));
                    }
                    let values = tally.read_window(&window, |_| true);
                    let of = |dst: u8| values.get(&address(dst).octets()[..]).cloned();
                    match rule.measure.quantity {
                        Quantity::Sums => for dst in 0..4 {
                            let greatest = sums.iter().filter(|((of, _), _)| *of == dst).map(|(_, bytes)| *bytes).max();
                            let bytes = of(dst).map(|value| match value { WindowValue::Sums(sums) => sums.bytes, _ => unreachable!() });
                            prop_assert_eq!(bytes, greatest);
                        },
                        Quantity::Distinct(_) => for dst in 0..4 {
                            let count = sources.get(&dst).map(|sources| WindowValue::Distinct(sources.len() as f64, true));
                            prop_assert_eq!(of(dst), count);
                        },
                        _ => prop_assert_eq!(values.get(&[] as &[u8]).cloned(), largest.map(WindowValue::Number)),
                    }
                }
            }
        }
    }

    proptest! {
        /// However an exporter cuts a transfer into records, no window has more of it than was sent in its
        /// time, and one window has all of it except a bucket's worth.
        #[test]
        fn a_transfer_in_pieces_is_counted_at_its_rate(
            (timeout, repeats_start) in prop_oneof![(1u64..70, any::<bool>()), (70u64..300, Just(false))],
            began in 0u64..60_000,
            length in 1_000u64..400_000,
        ) {
            const MILLISECOND: u64 = SECOND / 1000;
            const RATE: u64 = 12_345;
            let mut rule = parse_rule("bytes", "flow", "60s");
            rule.condition = Condition::NewHeavy { top: 10, floor: 1.0 };
            let mut tally = WindowTally::new(&rule);
            let began = 1_000_000_000 + began;
            let end = began + length;
            let mut piece = began;
            let (mut most, mut pieces) = (0, 0);
            for second in began / 1000..end / 1000 + 80 {
                let now = second * 1000;
                while piece < end && (piece + timeout * 1000).min(end) <= now {
                    let until = (piece + timeout * 1000).min(end);
                    let start = if repeats_start { began } else { piece };
                    let record = FlowRecord {
                        received: until * MILLISECOND,
                        // The exporter's clock is an hour slow.
                        start: (start - 3_600_000) * MILLISECOND,
                        end: (until - 3_600_000) * MILLISECOND,
                        bytes: (until - piece) * RATE,
                        packets: 1,
                        ..FlowRecord::EMPTY
                    };
                    tally.add_entry(&record.to_entry(), record.received, now * MILLISECOND, 1);
                    (piece, pieces) = (until, pieces + 1);
                }
                let Some(window) = tally.next_window(now * MILLISECOND) else { continue };
                for value in tally.read_window(&window, |_| true).into_values() {
                    let WindowValue::Sums(sums) = value else { unreachable!() };
                    most = most.max(sums.bytes);
                }
            }
            prop_assert!(most <= RATE * 60_000 + pieces, "{}", most / RATE);
            prop_assert!(most + pieces >= RATE * length.min(50_000), "{}", most / RATE);
        }
    }

    #[test]
    fn groups_are_bounded_and_forgotten() {
        let rule = parse_rule("bytes", "src", "60s");
        let mut tally = WindowTally::new(&rule);
        let start = 1_000_000 * SECOND;
        let entry = |number: u8| {
            FlowRecord { src: address(number), received: start, bytes: 1, ..FlowRecord::EMPTY }.to_entry()
        };
        let added: Vec<Tallied> =
            (0..60).map(|number| tally.add_entry(&entry(number), start, start, 4)).collect();
        assert_eq!(added.iter().filter(|outcome| **outcome == Tallied::Added).count(), 50);
        assert_eq!(added[59], Tallied::NoRoom);
        let window = tally.next_window(start + 30 * SECOND).unwrap();
        assert_eq!((tally.read_window(&window, |_| true).len(), tally.count_without_room(&window)), (50, 40));
        let sums = FlowSums { bytes: 4, packets: 0, flows: 4 };
        assert!(tally.read_window(&window, |_| true).values().all(|value| *value == WindowValue::Sums(sums)));
        assert_eq!(tally.next_window(start + 30 * SECOND + 1), None);
        let later = start + 200 * SECOND;
        let window = tally.next_window(later).unwrap();
        assert_eq!(tally.read_window(&window, |_| true).len(), 0);
        assert!(tally.last.capacity() < 10, "memory is given back: {}", tally.last.capacity());
        assert_eq!(tally.add_entry(&entry(1), start, later, 1), Tallied::TooLate);
        assert_eq!(tally.add_entry(&entry(59), later, later, 1), Tallied::Added, "there is room again");
    }

    #[test]
    fn a_new_group_has_nothing_of_the_one_that_was_forgotten() {
        let start = 1_000_002 * SECOND;
        for measure in ["bytes", "distinct src", "largest bytes", "latest bytes", ""] {
            let mut rule = parse_rule(if measure.is_empty() { "bytes" } else { measure }, "dst", "6s");
            if measure.is_empty() {
                rule.measure.quantity = Quantity::Seen;
            }
            let mut tally = WindowTally::new(&rule);
            let add = |tally: &mut WindowTally, dst: u8, src: u8, at: u64| {
                let entry = FlowRecord {
                    dst: address(dst),
                    src: address(src),
                    bytes: src.into(),
                    ..FlowRecord::EMPTY
                };
                tally.add_entry(&entry.to_entry(), at, at, 1)
            };
            for second in 0..12 {
                add(&mut tally, 1, 90 + second as u8, start + second * SECOND);
            }
            // These land in the same places of the ring.
            let later = start + 8 * 100_000 * SECOND;
            tally.next_window(later);
            assert_eq!(tally.groups.len(), 0, "{measure}");
            add(&mut tally, 2, 5, later + SECOND);
            let window = tally.next_window(later + 3 * SECOND).unwrap();
            let expected = match rule.measure.quantity {
                Quantity::Sums => WindowValue::Sums(FlowSums { bytes: 5, packets: 0, flows: 1 }),
                Quantity::Distinct(_) => WindowValue::Distinct(1.0, true),
                Quantity::Largest(_) | Quantity::Latest(_) => WindowValue::Number(5),
                Quantity::Seen => WindowValue::Seen { last: later + SECOND, windows: 1 },
            };
            let key = address(2).octets();
            assert_eq!(
                tally.read_window(&window, |_| true),
                GroupValues::from_iter([(&key[..], expected)]),
                "{measure}"
            );
            assert_eq!(tally.last.len(), 1, "{measure}: only the new one is left");
        }
    }
}
