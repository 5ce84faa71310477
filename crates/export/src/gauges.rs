//! Telemetry for Prometheus: the last value of each flow, hop, queue and link as gauges, and drops and congested
//! packets as counters.
//!
//! Labels come from packets, and anyone who can send packets can send any flow. So each family of series is limited:
//! new series without room are left out and counted, and existing ones stay. A series without news for a while is
//! dropped; the keep-alive of the translator's rules keeps live ones.
//!
//! Series are stored by key, and named when they are read, as an event may come before its key. The directory is
//! limited, too, and forgets what was looked up longest ago; so the keys of all series are looked up again before new
//! ones can fill it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::{Labels, MetricKind, MetricsPage};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{Means, Metric, SwitchNumber, TelemetryEntry, list};
use dta_rpc::Ask;
use serde::{Deserialize, Serialize};

use crate::directory::{Directory, Meaning};
use crate::names::Names;
use crate::schema::Schema;
use crate::source::{EntryBatch, EventSource, LISTS, ListCounters, SourceOptions};

/// What is exported, and how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GaugeLimits {
    pub series: usize,
    /// Seconds without news after which a series is dropped.
    pub keep_seconds: u32,
}

impl Default for GaugeLimits {
    /// Three default keep-alives of the translator's rules.
    fn default() -> Self {
        Self { series: 2000, keep_seconds: 180 }
    }
}

/// Series by key, up to a limit.
#[derive(Debug, Default)]
struct Series<K> {
    of: HashMap<K, Latest>,
}

#[derive(Clone, Copy, Debug)]
struct Latest {
    value: u64,
    at: Instant,
}

impl<K: Eq + Hash> Series<K> {
    /// Changes a value; returns whether there was room for it.
    fn update_value(
        &mut self,
        key: K,
        now: Instant,
        limits: &GaugeLimits,
        change: impl FnOnce(u64) -> u64,
    ) -> bool {
        if self.of.len() >= limits.series && !self.of.contains_key(&key) {
            return false;
        }
        let latest = self.of.entry(key).or_insert(Latest { value: 0, at: now });
        *latest = Latest { value: change(latest.value), at: now };
        true
    }

    fn expire_values(&mut self, now: Instant, keep: Duration) {
        self.of.retain(|_, latest| now.saturating_duration_since(latest.at) <= keep);
    }
}

#[derive(Debug)]
pub struct Gauges {
    schema: Schema,
    limits: GaugeLimits,
    names: Arc<Names>,
    directory: Directory,
    /// Keys that the directory may learn before the keys of all series are looked up again.
    room: usize,
    learned: usize,
    /// By [`Metric::index`].
    values: [Series<Key>; Metric::ALL.len()],
    drops: Series<(Option<u32>, DropReason)>,
    /// By switch, egress port and queue.
    congested: Series<[Option<u32>; 3]>,
    events: [u64; LISTS],
    left_out: u64,
    /// When old series were last dropped.
    swept: Instant,
}

/// How often old series are dropped while new ones have no room.
const SWEEP: Duration = Duration::from_secs(1);

impl Gauges {
    /// Starts without series. With names, switches, ports and reasons have their names in labels next to the numbers
    /// (schema `tags`).
    pub fn new(schema: Schema, limits: GaugeLimits, names: Arc<Names>) -> Self {
        // Both of a flow's families use its key; a hop has its own key, and its flow's.
        let of_series = limits.series.saturating_mul(4);
        let keys = limits.series.saturating_mul(6).max(1 << 16);
        Self {
            schema,
            limits,
            names,
            directory: Directory::new(keys),
            // A key that was looked up stays while fewer than `keys` others are learned or looked up.
            room: keys.saturating_sub(of_series) / 2,
            learned: 0,
            values: Default::default(),
            drops: Series::default(),
            congested: Series::default(),
            events: [0; LISTS],
            left_out: 0,
            swept: Instant::now(),
        }
    }

    /// Takes what was read from a list.
    pub fn take(&mut self, batch: &EntryBatch, now: Instant) {
        if let Some(events) = self.events.get_mut(batch.list as usize) {
            *events += batch.entries.len() as u64;
        }
        for entry in &batch.entries {
            if !self.apply_entry(entry, now) {
                if now.saturating_duration_since(self.swept) >= SWEEP {
                    self.expire_series(now);
                }
                if !self.apply_entry(entry, now) {
                    self.left_out += 1;
                }
            }
        }
    }

    fn apply_entry(&mut self, entry: &TelemetryEntry, now: Instant) -> bool {
        let limits = &self.limits;
        match *entry {
            TelemetryEntry::Change { key, metric, new, .. } => {
                self.values[metric.index()].update_value(key, now, limits, |_| new)
            }
            TelemetryEntry::Drop { place, reason, .. } => {
                self.drops.update_value((place.switch, reason), now, limits, |count| count + 1)
            }
            TelemetryEntry::Congestion { place, .. } => {
                let place = [place.switch, place.port, place.queue];
                self.congested.update_value(place, now, limits, |count| count + 1)
            }
            // A key that contains its meaning takes no room.
            TelemetryEntry::Key { means: Means::Itself, .. } => true,
            TelemetryEntry::Key { key, means } => {
                self.directory.remember_key(key, means);
                self.learned += 1;
                if self.learned >= self.room {
                    self.keep_names();
                }
                true
            }
        }
    }

    /// Looks up the keys of all series, so that the directory forgets other keys instead.
    fn keep_names(&mut self) {
        for key in self.values.iter().flat_map(|series| series.of.keys()) {
            self.directory.resolve_key(key);
        }
        self.learned = 0;
    }

    fn expire_series(&mut self, now: Instant) {
        let keep = Duration::from_secs(self.limits.keep_seconds.into());
        self.values.iter_mut().for_each(|series| series.expire_values(now, keep));
        self.drops.expire_values(now, keep);
        self.congested.expire_values(now, keep);
        self.swept = now;
    }

    /// Adds all series that are not old to a page.
    pub fn add_to_page(&mut self, page: &mut MetricsPage, now: Instant) {
        self.expire_series(now);
        let mut unnamed = 0;
        for metric in Metric::ALL {
            let Some(family) = metric_family(self.schema, metric) else { continue };
            for (key, latest) in &self.values[metric.index()].of {
                let meaning = self.directory.resolve_key(key);
                match meaning.and_then(|meaning| series_labels(self.schema, metric, &meaning, &self.names)) {
                    Some(labels) => {
                        let value = family.unit.convert_value(latest.value);
                        page.add_real_gauge(family.name, family.help, labels, value);
                    }
                    None => unnamed += 1,
                }
            }
        }
        if self.schema == Schema::Tags {
            for ((switch, reason), latest) in &self.drops.of {
                let mut labels = place_labels([*switch, None, None], &self.names);
                labels.push(("reason".into(), reason.number().to_string()));
                add_name_label(&mut labels, "reason_name", self.names.drop_reason(*switch, *reason));
                let source = reason.is_sflow().then(|| reason.source_name());
                add_name_label(&mut labels, "reason_source", source);
                page.add("dta_int_dropped_packets", MetricKind::Counter, DROPPED, labels, latest.value);
            }
            for (place, latest) in &self.congested.of {
                let labels = place_labels(*place, &self.names);
                page.add("dta_int_congested_packets", MetricKind::Counter, CONGESTED, labels, latest.value);
            }
        }
        for (list, events) in LIST_NAMES.iter().zip(self.events) {
            let labels = vec![("list".into(), (*list).to_owned())];
            page.add(
                "dta_int_events",
                MetricKind::Counter,
                "entries read from the lists of events",
                labels,
                events,
            );
        }
        let help = "changes without a series, because their family had no room";
        page.add("dta_int_left_out_events", MetricKind::Counter, help, Labels::new(), self.left_out);
        let help = "series left out because the meaning of their key is not known yet";
        page.add("dta_int_unnamed_series", MetricKind::Gauge, help, Labels::new(), unnamed);
    }

    /// The name of an interface, as its switch or exporter reports it.
    fn interface_name(&self, switch: u32, port: u32) -> Option<String> {
        self.directory.interface(switch, port)
    }

    pub fn series_count(&self) -> usize {
        let values: usize = self.values.iter().map(|series| series.of.len()).sum();
        values + self.drops.of.len() + self.congested.of.len()
    }
}

const DROPPED: &str =
    "packets that switches reported as dropped, by switch and number of the reason; since the series exists";
const CONGESTED: &str =
    "packets that switches reported to have waited in a congested queue; since the series exists";
const LIST_NAMES: [&str; LISTS] = {
    let mut names = [""; LISTS];
    names[list::CHANGES as usize] = "changes";
    names[list::DROPS as usize] = "drops";
    names[list::CONGESTION as usize] = "congestion";
    names[list::KEYS as usize] = "keys";
    names
};

struct Family {
    name: &'static str,
    help: &'static str,
    unit: Unit,
}

enum Unit {
    /// In the switch's unit.
    Own,
    /// Nanoseconds, exported in seconds.
    Seconds,
    /// The hops in the low byte; bit 8 = loop.
    Hops,
}

impl Unit {
    fn convert_value(&self, value: u64) -> f64 {
        match self {
            Unit::Own => value as f64,
            Unit::Seconds => value as f64 / 1e9,
            Unit::Hops => (value & 0xff) as f64,
        }
    }
}

/// The family of a metric; `None` if the schema has none.
fn metric_family(schema: Schema, metric: Metric) -> Option<Family> {
    let (name, help, unit) = match (schema, metric) {
        (Schema::Tags, Metric::FlowPath) => {
            ("dta_int_flow_hops", "switches on the path of a flow", Unit::Hops)
        }
        (Schema::Tags, Metric::FlowLatency) => {
            ("dta_int_flow_latency_seconds", "time of a flow's packets through all hops", Unit::Seconds)
        }
        (Schema::Tags, Metric::HopLatency) => {
            ("dta_int_hop_latency_seconds", "time of a flow's packets in one switch", Unit::Seconds)
        }
        (Schema::Tags, Metric::QueueOccupancy) => {
            ("dta_int_queue_occupancy", "how full a queue is, in the switch's own unit", Unit::Own)
        }
        (Schema::Tags, Metric::QueueCongestion) => {
            ("dta_int_queue_congestion", "congestion status of a queue, as the switch gives it", Unit::Own)
        }
        (Schema::Tags, Metric::LinkUtilization) => {
            ("dta_int_link_utilization", "utilisation of an egress port, in the switch's own unit", Unit::Own)
        }
        (Schema::IntCollector, Metric::FlowLatency) => ("flow_latency", "total flow latency", Unit::Own),
        (Schema::IntCollector, Metric::HopLatency) => {
            ("flow_hop_latency", "per-hop latency of flow", Unit::Own)
        }
        (Schema::IntCollector, Metric::LinkUtilization) => ("tx_utilize", "tx link utilization", Unit::Own),
        (Schema::IntCollector, Metric::QueueOccupancy) => ("queue_occup", "queue occupancy", Unit::Own),
        (Schema::IntCollector, Metric::FlowPath | Metric::QueueCongestion) => return None,
    };
    Some(Family { name, help, unit })
}

/// The labels of a series; `None` if its key is of another kind, or its flow is unknown.
fn series_labels(schema: Schema, metric: Metric, meaning: &Meaning, names: &Names) -> Option<Labels> {
    Some(match (schema, metric, *meaning) {
        (Schema::Tags, Metric::FlowPath | Metric::FlowLatency, Meaning::Flow(flow)) => flow_labels(flow),
        (Schema::Tags, Metric::HopLatency, Meaning::Hop { flow, switch, .. }) => {
            let mut labels = flow_labels(flow?);
            labels.extend(place_labels([Some(switch), None, None], names));
            labels
        }
        (
            Schema::Tags,
            Metric::QueueOccupancy | Metric::QueueCongestion,
            Meaning::Queue { switch, port, queue },
        ) => place_labels([Some(switch), port, queue], names),
        (Schema::Tags, Metric::LinkUtilization, Meaning::Port { switch, port }) => {
            place_labels([Some(switch), port, None], names)
        }
        (Schema::IntCollector, Metric::FlowLatency, Meaning::Flow(flow)) => intcollector_flow(flow),
        (Schema::IntCollector, Metric::HopLatency, Meaning::Hop { flow, switch, .. }) => {
            let mut labels = intcollector_flow(flow?);
            labels.push(("sw_id".into(), switch.to_string()));
            labels
        }
        // INTCollector writes 0 for "not available".
        (Schema::IntCollector, Metric::LinkUtilization, Meaning::Port { switch, port }) => {
            number_labels(&[("sw_id", Some(switch)), ("p_id", port.or(Some(0)))])
        }
        (Schema::IntCollector, Metric::QueueOccupancy, Meaning::Queue { switch, queue, .. }) => {
            number_labels(&[("sw_id", Some(switch)), ("q_id", queue.or(Some(0)))])
        }
        _ => return None,
    })
}

/// Labels of the known numbers.
fn number_labels(numbers: &[(&'static str, Option<u32>)]) -> Labels {
    let known =
        numbers.iter().filter_map(|(name, number)| Some((Cow::Borrowed(*name), (*number)?.to_string())));
    known.collect()
}

/// A switch, its egress port and one of its queues, where known, with their names.
fn place_labels([switch, port, queue]: [Option<u32>; 3], names: &Names) -> Labels {
    let mut labels: Labels =
        switch.map(|switch| ("switch".into(), SwitchNumber(switch).to_string())).into_iter().collect();
    labels.extend(number_labels(&[("port", port), ("queue", queue)]));
    add_name_label(&mut labels, "switch_name", switch.and_then(|switch| names.switch_name(switch)));
    add_name_label(&mut labels, "port_name", names.port_name_if_known(switch, port));
    labels
}

pub(crate) fn add_name_label(labels: &mut Labels, label: &'static str, name: Option<&str>) {
    labels.extend(name.map(|name| (label.into(), name.to_owned())));
}

pub(crate) fn flow_labels(flow: Flow) -> Labels {
    let Flow { src, dst, sport, dport, proto } = flow;
    vec![
        ("flow".into(), flow.to_string()),
        ("src".into(), src.to_string()),
        ("sport".into(), sport.to_string()),
        ("dst".into(), dst.to_string()),
        ("dport".into(), dport.to_string()),
        ("proto".into(), proto.to_string()),
    ]
}

/// INTCollector's label names, in its order.
fn intcollector_flow(flow: Flow) -> Labels {
    let Flow { src, dst, sport, dport, proto } = flow;
    vec![
        ("src_ip".into(), src.to_string()),
        ("src_port".into(), sport.to_string()),
        ("dst_ip".into(), dst.to_string()),
        ("dst_port".into(), dport.to_string()),
        ("ip_proto".into(), proto.to_string()),
    ]
}

/// Gauges that follow a collector's events in the background, until this is dropped.
#[derive(Debug)]
pub struct GaugeFollower {
    gauges: Arc<Mutex<Gauges>>,
    counters: Arc<ListCounters>,
    task: tokio::task::JoinHandle<()>,
}

impl GaugeFollower {
    /// Starts to follow the events of `store`, from the oldest; needs a tokio runtime.
    pub fn start(ask: Arc<dyn Ask>, store: &str, gauges: Gauges) -> Self {
        let counters = Arc::new(ListCounters::default());
        let options = SourceOptions { store: store.to_owned(), ..SourceOptions::default() };
        let gauges = Arc::new(Mutex::new(gauges));
        let (shared, mut source) = (gauges.clone(), EventSource::new(ask, &options, counters.clone()));
        let task = tokio::spawn(async move {
            while let Some(read) = source.next().await {
                match read {
                    Ok(batch) => lock_gauges(&shared).take(&batch, Instant::now()),
                    Err(error) => {
                        tracing::warn!(%error, "cannot follow events for metrics; trying again");
                    }
                }
            }
        });
        Self { gauges, counters, task }
    }

    /// The name of an interface, as its switch or exporter reports it.
    pub fn interface_name(&self, switch: u32, port: u32) -> Option<String> {
        lock_gauges(&self.gauges).interface_name(switch, port)
    }

    pub fn add_to_page(&self, page: &mut MetricsPage) {
        lock_gauges(&self.gauges).add_to_page(page, Instant::now());
        for (name, batches) in self.counters.named_counters("metrics") {
            let cause = name.rsplit('.').next().unwrap_or_default();
            // Entries are counted per list.
            if cause != "entries" {
                let labels = vec![("cause".into(), cause.to_owned())];
                let help = "batches of events, or entries if unreadable, that were skipped, and times that a list could not be followed";
                page.add("dta_int_passed_over", MetricKind::Counter, help, labels, batches);
            }
        }
    }
}

impl Drop for GaugeFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Valid even after a panic: each change is a single step.
fn lock_gauges(gauges: &Mutex<Gauges>) -> std::sync::MutexGuard<'_, Gauges> {
    gauges.lock().unwrap_or_else(PoisonError::into_inner)
}
