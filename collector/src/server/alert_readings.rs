//! Reads counters and values for alert rules. Stores cannot list their keys, so the key directory says which to read.

use std::collections::HashMap;
use std::sync::Arc;

use dta_export::directory::{Directory, Meaning};
use dta_memory::reader::key_increment::{KeyIncrementReader, total_of_lanes};
use dta_memory::reader::key_write::{KeyWriteReader, KeyWriteReading};
use dta_memory::region::AccessError;
use dta_memory::store::{ServedStores, Store};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::key_write::Choice;
use dta_proto::telemetry::{self, Location, Metric, TimedValue, age_in_seconds, store};
use foldhash::fast::RandomState;

use crate::alerts::{AlertEngine, Reading, ReadingKind};

/// Most counters and values read at a time.
const MOST_READINGS: usize = 65_536;
/// Longest time between two readings, in nanoseconds: a store with epochs starts from zero in each.
const LONGEST_PAUSE: u64 = 10_000_000_000;

/// The last readings, and what they were read from.
#[derive(Debug, Default)]
pub struct ReadingPoller {
    /// The end of the bucket at whose end they were taken.
    last_end: u64,
    counts: HashMap<Key, u64, RandomState>,
    /// The memory that the counts are from.
    counted_in: Option<Arc<Store>>,
    /// When values were written.
    times: HashMap<Key, u64, RandomState>,
    is_warned: bool,
}

/// A key to read, and what it is about.
struct Subject {
    key: Key,
    kind: ReadingKind,
    place: Location,
    flow: Option<Flow>,
    reason: Option<DropReason>,
}

impl ReadingPoller {
    /// Reads what rules are about, if one of their buckets has ended since the last reading.
    pub fn poll(
        &mut self,
        engine: &mut AlertEngine,
        directory: &mut Directory,
        stores: &ServedStores,
        now: u64,
    ) {
        let Some(bucket) = engine.reading_interval() else {
            // This also releases memory that was replaced.
            *self = ReadingPoller::default();
            return;
        };
        let interval = bucket / bucket.div_ceil(LONGEST_PAUSE);
        let end = now - now % interval;
        if end == std::mem::replace(&mut self.last_end, end) {
            return;
        }
        let mut subjects = find_subjects(&engine.wanted_readings(), directory);
        if subjects.len() > MOST_READINGS {
            engine.note_unread(now);
            subjects.truncate(MOST_READINGS);
        }
        let (values, counters): (Vec<Subject>, Vec<Subject>) =
            subjects.into_iter().partition(|subject| matches!(subject.kind, ReadingKind::Value(_)));
        let mut add = |reading: Reading| engine.add_reading(&reading, end.saturating_sub(1), now);
        let counted = match stores.get(store::COUNTERS) {
            Ok(store) => self.read_counters(&store, &counters, &mut add),
            Err(_) => Ok(()),
        };
        let valued = match stores.get(store::VALUES) {
            Ok(store) => self.read_values(&store, &values, now, &mut add),
            Err(_) => Ok(()),
        };
        match counted.and(valued) {
            Ok(()) => self.is_warned = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_warned, true) {
                    tracing::warn!(%error, "cannot read counters and values for alerts; trying again");
                }
            }
        }
    }

    /// What was counted since the last reading. A key that is read for the first time has counted nothing
    /// yet, as it is unknown since when it counts.
    fn read_counters(
        &mut self,
        store: &Arc<Store>,
        subjects: &[Subject],
        add: &mut impl FnMut(Reading),
    ) -> Result<(), AccessError> {
        let keys: Vec<Key> = subjects.iter().map(|subject| subject.key).collect();
        let counts = query_counts(store, &keys)?;
        // The final counts in memory that was replaced since then.
        let former = match self.counted_in.replace(store.clone()) {
            Some(former) if !Arc::ptr_eq(&former.region, &store.region) => {
                Some(query_counts(&former, &keys)?)
            }
            _ => None,
        };
        let before = std::mem::take(&mut self.counts);
        for (number, (subject, count)) in subjects.iter().zip(counts).enumerate() {
            self.counts.insert(subject.key, count);
            let Some(before) = before.get(&subject.key) else { continue };
            let more = match &former {
                Some(former) => former[number].saturating_sub(*before).saturating_add(count),
                // It was reset to zero.
                None => count.checked_sub(*before).unwrap_or(count),
            };
            add(subject.to_reading(more, 0, more > 0));
        }
        Ok(())
    }

    fn read_values(
        &mut self,
        store: &Store,
        subjects: &[Subject],
        now: u64,
        add: &mut impl FnMut(Reading),
    ) -> Result<(), AccessError> {
        let Some(reader) = KeyWriteReader::new(store) else { return Ok(()) };
        let keys: Vec<Key> = subjects.iter().map(|subject| subject.key).collect();
        let mut answers = vec![KeyWriteReading::default(); keys.len()];
        let mut values = vec![0; keys.len() * reader.value_len()];
        reader.query_keys(&keys, Choice::First, &mut answers, &mut values)?;
        let before = std::mem::take(&mut self.times);
        let answers = answers.iter().zip(values.chunks_exact(reader.value_len()));
        for (subject, (answer, value)) in subjects.iter().zip(answers) {
            let Some(TimedValue { value, time }) = TimedValue::parse_bytes(value).filter(|_| answer.found)
            else {
                continue;
            };
            self.times.insert(subject.key, time);
            let age = age_in_seconds(time, now).map_or(0, |seconds| seconds as u32);
            add(subject.to_reading(value.into(), age, before.get(&subject.key) != Some(&time)));
        }
        Ok(())
    }
}

impl Subject {
    fn to_reading(&self, number: u64, age: u32, is_news: bool) -> Reading {
        let Subject { kind, place, flow, reason, .. } = *self;
        Reading { kind, place, flow, reason, number, age, is_news }
    }
}

/// The count of each key; empty for a store of another kind.
fn query_counts(store: &Store, keys: &[Key]) -> Result<Vec<u64>, AccessError> {
    let Some(reader) = KeyIncrementReader::new(store) else { return Ok(Vec::new()) };
    let mut lanes = vec![0; keys.len() * reader.lane_count()];
    reader.query_keys(keys, &mut lanes)?;
    Ok(lanes.chunks(reader.lane_count()).map(total_of_lanes).collect())
}

/// The keys of these kinds that the directory knows.
fn find_subjects(kinds: &[ReadingKind], directory: &mut Directory) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let is_interface = |kind: &&ReadingKind| matches!(kind, ReadingKind::Interface(_));
    if kinds.iter().any(|kind| is_interface(&kind)) {
        for (switch, port) in directory.known_interfaces() {
            let place = Location { switch: Some(switch), port: Some(port), queue: None };
            for kind in kinds {
                let ReadingKind::Interface(counter) = *kind else { continue };
                let key = telemetry::interface_counter_key(switch, port, counter);
                subjects.push(Subject { key, kind: *kind, place, flow: None, reason: None });
            }
        }
    }
    if kinds.iter().all(|kind| is_interface(&kind)) {
        return subjects;
    }
    // Keys are looked up so that the last reported ones remain the last to be forgotten, and are read first.
    let keys: Vec<Key> = directory.known_keys().collect();
    let interfaces = subjects.len();
    for key in keys.into_iter().rev() {
        let Some(meaning) = directory.resolve_key(&key) else { continue };
        for kind in kinds {
            let Some(key) = key_to_read(*kind, key, &meaning) else { continue };
            let (flow, reason) = (meaning.known_flow(), meaning.drop_reason());
            subjects.push(Subject { key, kind: *kind, place: meaning.location(), flow, reason });
        }
    }
    subjects[interfaces..].reverse();
    subjects
}

/// The key that holds the number of this kind, if a key of the directory has one.
fn key_to_read(kind: ReadingKind, key: Key, meaning: &Meaning) -> Option<Key> {
    match (kind, meaning) {
        (ReadingKind::Drops, Meaning::SwitchDrops { .. })
        | (ReadingKind::FlowDrops, Meaning::FlowDrops { flow: Some(_), .. })
        | (ReadingKind::Value(Metric::FlowLatency), Meaning::Flow(_))
        | (ReadingKind::Value(Metric::HopLatency), Meaning::Hop { flow: Some(_), .. })
        | (ReadingKind::Value(Metric::LinkUtilization), Meaning::Port { .. }) => Some(key),
        (ReadingKind::Value(metric), Meaning::Queue { .. }) => {
            (Metric::from_key(&key) == Some(metric)).then_some(key)
        }
        (ReadingKind::FlowPackets, Meaning::Flow(flow)) => Some(telemetry::packets_key(flow)),
        (ReadingKind::FlowBytes, Meaning::Flow(flow)) => Some(telemetry::bytes_key(flow)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dta_export::names::Names;
    use dta_memory::store::MemoryBacking;
    use dta_proto::layout::hash;
    use dta_proto::layout::key_increment::counter_offset;
    use dta_proto::layout::key_write::{encode_slot, slot_offset};
    use dta_proto::store::{SlotKeys, StoreKind, StoreSpec};
    use dta_proto::telemetry::{InterfaceCounter, Means};
    use dta_proto::trace::TraceName;

    use super::*;
    use crate::alerts::{AlertBoard, AlertsConfig};

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_795_000_020 * SECOND;
    const SLOTS: u64 = 1 << 12;
    const EXPORTER: u32 = 0xc000_0201;

    struct World {
        stores: ServedStores,
        directory: Directory,
        engine: AlertEngine,
        board: AlertBoard,
        poller: ReadingPoller,
        now: u64,
    }

    impl World {
        fn new(rules: &str) -> World {
            let values =
                StoreKind::KeyWrite { slots: SLOTS, value_len: 12, redundancy: 2, keys: SlotKeys::Hashed };
            let counters = StoreKind::KeyIncrement { slots: SLOTS, redundancy: 2, replicas: 1 };
            let specs = [(1, store::VALUES, values), (2, store::COUNTERS, counters)]
                .map(|(id, name, kind)| StoreSpec { id, name: name.into(), kind });
            let stores = ServedStores::open(&specs, &MemoryBacking::Anonymous, Default::default()).unwrap();
            let config: AlertsConfig = toml::from_str(&format!("defaults = false\n{rules}")).unwrap();
            let names = Arc::new(Names::empty());
            let rules = config.to_rules(&names).unwrap();
            let board = AlertBoard::default();
            board.begin_rules(&rules, START);
            let engine = AlertEngine::new(rules, names, START);
            World {
                stores,
                directory: Directory::default(),
                engine,
                board,
                poller: ReadingPoller::default(),
                now: START,
            }
        }

        fn count(&self, key: &Key, more: u64) {
            let store = self.stores.get(store::COUNTERS).unwrap();
            for slot in hash::key_slots(key, 2, SLOTS).iter() {
                store.region.fetch_add(counter_offset(*slot), more).unwrap();
            }
        }

        fn write(&self, key: &Key, value: u32, time: u64) {
            let store = self.stores.get(store::VALUES).unwrap();
            for slot in hash::key_slots(key, 2, SLOTS).iter() {
                let mut bytes = [0; 16];
                encode_slot(&mut bytes, key, &TimedValue { value, time }.to_bytes());
                store.region.write(slot_offset(*slot, 12), &bytes).unwrap();
            }
        }

        /// Runs this many seconds, and returns which rules are firing then, with their values.
        fn run(&mut self, seconds: u64, mut each: impl FnMut(&World, u64)) -> Vec<(String, f64)> {
            for _ in 0..seconds {
                each(self, (self.now - START) / SECOND);
                self.now += SECOND;
                self.poller.poll(&mut self.engine, &mut self.directory, &self.stores, self.now);
                for evaluation in self.engine.evaluate(self.now) {
                    self.board.apply(evaluation.rule, &evaluation.findings, self.now, evaluation.started);
                }
                self.board.publish(self.now).unwrap();
            }
            let alerts = self.board.alerts();
            let firing = alerts.into_iter().filter(|alert| alert.state == "firing");
            let mut firing: Vec<_> = firing.map(|alert| (alert.rule, alert.value)).collect();
            firing.sort_by(|a, b| a.0.cmp(&b.0));
            firing
        }
    }

    fn names(firing: &[(String, f64)]) -> Vec<&str> {
        firing.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn what_interfaces_count_in_a_window_is_compared() {
        let mut world = World::new(
            "[[rule]]\nname = \"discards\"\nsource = \"counters\"\ncounter = \"in-discards,out-discards\"\ngroup = \"switch,port\"\nmeasure = \"packets\"\nwindow = \"1m\"\nabove = 50
[[rule]]\nname = \"load\"\nsource = \"counters\"\ncounter = \"out-octets\"\nwhere = \"port = 3\"\ngroup = \"switch\"\nmeasure = \"bits-per-second\"\nwindow = \"1m\"\nabove = 7000
[[rule]]\nname = \"idle\"\nsource = \"counters\"\ncounter = \"out-octets\"\ngroup = \"switch,port\"\nmeasure = \"bytes\"\nwindow = \"1m\"\nbelow = 1
[[rule]]\nname = \"stopped\"\nsource = \"counters\"\ncounter = \"out-octets\"\ngroup = \"switch\"\nkind = \"silent\"\nwindow = \"1m\"\n",
        );
        world
            .directory
            .remember_key(telemetry::interface_name_key(EXPORTER, 3), Means::Name(TraceName::new("uplink")));
        let key = |counter| telemetry::interface_counter_key(EXPORTER, 3, counter);
        // What was counted before is not part of this window.
        world.count(&key(InterfaceCounter::OutDiscards), 1_000_000);
        let load = |world: &World, _| world.count(&key(InterfaceCounter::OutOctets), 1000);
        let firing = world.run(300, load);
        assert_eq!(names(&firing), ["load"]);
        assert_eq!(firing[0].1, 8000.0);
        let firing = world.run(60, |world, second| {
            load(world, second);
            world.count(&key(InterfaceCounter::OutDiscards), 1);
            world.count(&key(InterfaceCounter::InDiscards), 1);
        });
        assert_eq!(names(&firing), ["discards", "load"]);
        // A new epoch starts from zero, but what came before it still counts.
        let successor = world.stores.successor(store::COUNTERS).unwrap();
        load(&world, 0);
        world.stores.replace_memory(successor, false).unwrap();
        let firing = world.run(60, load);
        assert!(
            firing.iter().any(|(name, value)| name == "load" && (8000.0..8200.0).contains(value)),
            "{firing:?}"
        );
        assert_eq!(names(&world.run(180, |_, _| ())), ["idle", "stopped"]);
        let alerts = world.board.alerts();
        let idle = alerts.iter().find(|alert| alert.rule == "idle").unwrap();
        assert_eq!((idle.labels["switch"].as_str(), idle.labels["port"].as_str()), ("192.0.2.1", "3"));
    }

    #[test]
    fn interfaces_are_known_by_their_names_and_links() {
        let mut directory = Directory::default();
        let name = Means::Name(TraceName::new("uplink"));
        directory.remember_key(telemetry::interface_name_key(EXPORTER, 3), name);
        for port in [Some(3), Some(4), None] {
            directory.remember_key(telemetry::link_utilization_key(EXPORTER, port), Means::Itself);
        }
        directory.remember_key(telemetry::queue_occupancy_key(EXPORTER, Some(5), None), Means::Itself);
        assert_eq!(
            directory.known_interfaces().into_iter().collect::<Vec<_>>(),
            [(EXPORTER, 3), (EXPORTER, 4)]
        );
    }

    #[test]
    fn drops_and_flows_are_found_in_the_key_directory() {
        let mut world = World::new(
            "[[rule]]\nname = \"drops\"\nsource = \"counters\"\ncounter = \"drops\"\ngroup = \"switch,reason\"\nmeasure = \"packets\"\nwindow = \"30s\"\nabove = 10
[[rule]]\nname = \"flow-drops\"\nsource = \"counters\"\ncounter = \"flow-drops\"\ngroup = \"flow,reason\"\nmeasure = \"packets\"\nwindow = \"30s\"\nabove = 10
[[rule]]\nname = \"largest\"\nsource = \"counters\"\ncounter = \"flow-bytes\"\ngroup = \"dst\"\nmeasure = \"bytes-per-second\"\nwindow = \"30s\"\nabove = 100\n",
        );
        let flow: Flow = "[2001:db8::1]:1->[2001:db8::2]:2/tcp".parse().unwrap();
        let reason = DropReason::from_int(71);
        let [drops, flow_drops] = [telemetry::drops_key(6, reason), telemetry::flow_drops_key(&flow, reason)];
        for (key, means) in [
            (drops, Means::Itself),
            (flow.to_key(), Means::Flow(flow)),
            (flow_drops, Means::Hop(flow.to_key(), reason.to_bits())),
        ] {
            world.directory.remember_key(key, means);
        }
        let firing = world.run(60, |world, _| {
            world.count(&drops, 3);
            world.count(&flow_drops, 2);
            world.count(&telemetry::bytes_key(&flow), 500);
        });
        assert_eq!(
            firing,
            [("drops".to_owned(), 90.0), ("flow-drops".to_owned(), 60.0), ("largest".to_owned(), 500.0)]
        );
        let alerts = world.board.alerts();
        let alert = alerts.iter().find(|alert| alert.rule == "flow-drops").unwrap();
        assert_eq!((alert.labels["src"].as_str(), alert.labels["reason"].as_str()), ("2001:db8::1", "71"));
    }

    #[test]
    fn values_hold_until_they_are_old() {
        let mut world = World::new(
            "[[rule]]\nname = \"full\"\nsource = \"values\"\nvalue = \"queue-occupancy\"\ngroup = \"switch,port,queue\"\nmeasure = \"latest value\"\nwindow = \"30s\"\nabove = 900
[[rule]]\nname = \"many\"\nsource = \"values\"\nvalue = \"queue-occupancy\"\nwhere = \"value > 100\"\nmeasure = \"distinct port\"\nwindow = \"30s\"\nabove = 1
[[rule]]\nname = \"old\"\nsource = \"values\"\nvalue = \"queue-occupancy\"\nwhere = \"age < 1000\"\ngroup = \"switch\"\nmeasure = \"largest age\"\nwindow = \"30s\"\nabove = 200
[[rule]]\nname = \"quiet\"\nsource = \"values\"\nvalue = \"queue-occupancy\"\ngroup = \"switch\"\nkind = \"silent\"\nwindow = \"2m\"\n",
        );
        let key = |port| telemetry::queue_occupancy_key(6, Some(port), Some(0));
        for port in [1, 2] {
            world.directory.remember_key(key(port), Means::Itself);
            // Another metric, which says nothing about this one.
            let congestion = telemetry::queue_congestion_key(6, Some(port), Some(0));
            world.directory.remember_key(congestion, Means::Itself);
            world.write(&congestion, 5000, START);
        }
        let keep_alive = |world: &World, second: u64| {
            if second.is_multiple_of(60) {
                let value = if second < 360 { 50 } else { 1000 };
                world.write(&key(1), value, world.now);
                world.write(&key(2), 200, world.now);
            }
        };
        assert_eq!(world.run(360, keep_alive), []);
        assert_eq!(world.run(60, keep_alive), [("full".to_owned(), 1000.0), ("many".to_owned(), 2.0)]);
        // Nothing is repeated any more.
        assert_eq!(names(&world.run(130, |_, _| ())), ["full", "many", "quiet"]);
        assert_eq!(names(&world.run(190, |_, _| ())), ["old", "quiet"]);
    }

    #[test]
    fn more_than_can_be_read_is_said() {
        let mut world = World::new(
            "[[rule]]\nname = \"x\"\nsource = \"values\"\nvalue = \"link-utilization\"\nmeasure = \"largest value\"\nwindow = \"30s\"\nabove = 1\n",
        );
        for port in 0..MOST_READINGS as u32 + 10 {
            let key = telemetry::link_utilization_key(6, Some(port));
            world.directory.remember_key(key, Means::Itself);
        }
        let newest = telemetry::link_utilization_key(6, Some(MOST_READINGS as u32 + 9));
        world.write(&newest, 7, START);
        world.run(7, |_, _| ());
        let alerts = world.board.alerts();
        assert_eq!(alerts[0].notes, ["there are more counters and values than are read"]);
    }
}
