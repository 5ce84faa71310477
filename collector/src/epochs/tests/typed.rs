//! Tables of known keys beside the histories of stores for INT.

use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::layout::append;
use dta_proto::layout::key_increment as counter;
use dta_proto::telemetry::{self, ENTRY_LEN, Means, TelemetryEntry, list, store as int};
use dta_proto::trace::STORE_PREFIX;

use super::*;
use crate::epochs::key_directory::{KeyDirectory, KnownKeys, id};
use crate::epochs::typed as tables;
use dta_export::directory::Meaning;
use dta_proto::telemetry::Metric;

const RING: u64 = 64;
const SLOTS: u64 = 1 << 12;

fn specs() -> Vec<StoreSpec> {
    let key_write =
        |value_len| StoreKind::KeyWrite { slots: SLOTS, value_len, redundancy: 2, keys: Default::default() };
    let events = StoreKind::Append { lists: 4, ring: RING, batch_len: 128, entry_len: 60, notify: false };
    vec![
        store(16, int::PATHS, key_write(60)),
        store(17, int::VALUES, key_write(12)),
        store(18, int::EVENTS, events),
        store(19, int::COUNTERS, StoreKind::KeyIncrement { slots: SLOTS, redundancy: 2, replicas: 1 }),
        store(20, int::POSTCARDS, StoreKind::Postcarding { slots: SLOTS, hops: 6, redundancy: 2 }),
        store(21, &format!("{STORE_PREFIX}latencies"), key_write(28)),
    ]
}

/// IPv4, IPv6, and a flow that is not in the key directory.
fn flows() -> [Flow; 3] {
    ["10.0.0.1:5000->10.0.0.2:80/tcp", "[2001:db8::1]:1->[2001:db8::2]:2/udp", "10.9.9.9:1->10.9.9.8:2/udp"]
        .map(|flow| flow.parse().unwrap())
}

/// Writes an element to all slots of a key, as a NIC does.
fn put(store: &Store, key: &Key, element: &[u8]) {
    let (copies, slots) = (store.spec.redundancy().unwrap(), store.spec.element_count());
    for slot in hash::key_slots(key, copies, slots).iter() {
        store.region.write(slot * element.len() as u64, element).unwrap();
    }
}

fn put_value(store: &Store, key: &Key, value: &[u8]) {
    let mut slot = vec![0; store.spec.element_len() as usize];
    layout::encode_slot(&mut slot, key, value);
    put(store, key, &slot);
}

/// One batch of the key directory.
fn put_keys(store: &Store, sequence: u32, keys: &[(Key, Means)]) {
    let entries: Vec<u8> = keys
        .iter()
        .flat_map(|(key, means)| TelemetryEntry::Key { key: *key, means: *means }.to_bytes())
        .collect();
    assert_eq!(entries.len(), keys.len() * ENTRY_LEN);
    let mut batch = [0; 128];
    append::encode_batch(&mut batch, list::KEYS, sequence, keys.len() as u8, &entries);
    store.region.write(append::batch_offset(list::KEYS, sequence, RING, 128), &batch).unwrap();
}

fn be<const N: usize, const M: usize>(numbers: [[u8; N]; M]) -> Vec<u8> {
    numbers.as_flattened().to_vec()
}

/// The rows of a table in an epoch: the key's number, and its columns.
fn rows(table: &EpochTable, number: u64) -> BTreeMap<u64, Vec<u8>> {
    let mut rows = BTreeMap::new();
    table.scan_epoch(number, |id, row| _ = rows.insert(id, row.to_vec())).unwrap();
    rows
}

/// A row with these columns after those of the flow.
fn row(flow: &Flow, held: &[u8]) -> (u64, Vec<u8>) {
    (id(&flow.to_key()), tables::join_cells(&tables::flow_cells(flow), held))
}

/// A row of `int-values.metrics`: `numbers` are switch, port and queue.
fn metric(key: &Key, metric: Metric, flow: Option<&Flow>, numbers: [u32; 3], value: u32) -> (u64, Vec<u8>) {
    let mut says = metric.name().as_bytes().to_vec();
    says.resize(16, 0);
    says.extend(flow.map_or(0, |flow| id(&flow.to_key())).to_be_bytes());
    says.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    (id(key), tables::join_cells(&says, &telemetry::TimedValue { value, time: 9 }.to_bytes()))
}

/// A row of `int-counters.drops`.
fn drops(key: &Key, flow: Option<&Flow>, switch: u32, reason: DropReason, count: u64) -> (u64, Vec<u8>) {
    let flow = flow.map_or(0, |flow| id(&flow.to_key()));
    let reason = [&reason.number().to_be_bytes()[..], &tables::name_cell(reason.source_name())].concat();
    let says = [&flow.to_be_bytes()[..], &switch.to_be_bytes(), &reason].concat();
    (id(key), tables::join_cells(&says, &count.to_be_bytes()))
}

#[test]
fn each_epoch_says_what_known_keys_had_and_is_thinned_out_as_its_history_is() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = MemoryBacking::Directory(memory.path().to_owned());
    let [v4, v6, unknown] = flows();
    // Before the first run, so that it finds what was written.
    let stores = ServedStores::open(&specs(), &directory, RegionOptions { huge_pages: false }).unwrap();
    let of = |name: &str| stores.get(name).unwrap();
    put_keys(&of(int::EVENTS), 1, &[(v4.to_key(), Means::Itself), (v6.to_key(), Means::Flow(v6))]);
    // A hop of each flow, one without a value; queues, one without a port; a port; drops.
    let [hop4, hop6] = [v4, v6].map(|flow| telemetry::hop_latency_key(&flow, 7));
    let queue = telemetry::queue_occupancy_key(7, Some(3), Some(1));
    let congestion = telemetry::queue_congestion_key(8, None, Some(0));
    let port = telemetry::link_utilization_key(7, Some(3));
    let (full, acl) = (DropReason::from_int(71), DropReason::from_sflow(258));
    let (of_switch, of_flow) = (telemetry::drops_key(7, full), telemetry::flow_drops_key(&v6, acl));
    put_keys(&of(int::EVENTS), 2, &[(hop4, Means::Hop(v4.to_key(), 7)), (hop6, Means::Hop(v6.to_key(), 7))]);
    put_keys(&of(int::EVENTS), 3, &[(queue, Means::Itself), (congestion, Means::Itself)]);
    put_keys(&of(int::EVENTS), 4, &[(port, Means::Itself), (of_switch, Means::Itself)]);
    put_keys(&of(int::EVENTS), 5, &[(of_flow, Means::Hop(v6.to_key(), acl.to_bits()))]);
    for (key, value) in [(hop6, 1), (queue, 2), (congestion, 3), (port, u32::MAX)] {
        put_value(&of(int::VALUES), &key, &telemetry::TimedValue { value, time: 9 }.to_bytes());
    }
    for flow in [v4, v6, unknown] {
        let value = telemetry::TimedValue { value: u32::MAX - 1, time: 1 << 62 | u64::from(flow.sport) };
        put_value(&of(int::VALUES), &flow.to_key(), &value.to_bytes());
    }
    let path = telemetry::SwitchPath::from_switches(&[6, u32::MAX, 6]);
    put_value(&of(int::PATHS), &v6.to_key(), &path.to_bytes());
    let counted =
        [(v6.to_key(), 3), (telemetry::bytes_key(&v6), u64::MAX), (of_switch, 4), (of_flow, u64::MAX)];
    for (key, count) in counted {
        for slot in hash::key_slots(&key, 2, SLOTS).iter() {
            of(int::COUNTERS).region.fetch_add(counter::counter_offset(*slot), count).unwrap();
        }
    }
    let mut row_of = [0; 32];
    let mut postcards = postcarding::PostcardPath { length: 2, ..postcarding::PostcardPath::default() };
    postcards.set(1, 77);
    postcarding::encode_row(&mut row_of, &v4.to_key(), &postcards);
    put(&of(int::POSTCARDS), &v4.to_key(), &row_of);
    drop(stores);

    let bench = Bench::start_with(&specs(), &directory, keep(history.path()), EVERY);
    let latency = |flow: &Flow| {
        row(
            flow,
            &[
                &be([u32::MAX - 1].map(u32::to_be_bytes))[..],
                &be([1 << 62 | u64::from(flow.sport)].map(u64::to_be_bytes)),
            ]
            .concat(),
        )
    };
    let switches: Vec<u8> = [6, u32::MAX, 6].into_iter().chain([0; 11]).flat_map(u32::to_be_bytes).collect();
    let hops: Vec<u8> = [0, 77, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes).collect();
    let metrics = [
        metric(&hop6, Metric::HopLatency, Some(&v6), [7, u32::MAX, u32::MAX], 1),
        metric(&queue, Metric::QueueOccupancy, None, [7, 3, 1], 2),
        metric(&congestion, Metric::QueueCongestion, None, [8, u32::MAX, 0], 3),
        metric(&port, Metric::LinkUtilization, None, [7, 3, u32::MAX], u32::MAX),
    ];
    let lost = [drops(&of_switch, None, 7, full, 4), drops(&of_flow, Some(&v6), u32::MAX, acl, u64::MAX)];
    let expected = [
        (int::VALUES, "metrics", BTreeMap::from(metrics)),
        (int::COUNTERS, "drops", BTreeMap::from(lost)),
        (int::VALUES, "flows", BTreeMap::from([latency(&v4), latency(&v6)])),
        (int::PATHS, "flows", BTreeMap::from([row(&v6, &[&[0, 3, 0, 1][..], &switches].concat())])),
        (int::COUNTERS, "flows", BTreeMap::from([row(&v6, &be([3, 0, u64::MAX].map(u64::to_be_bytes)))])),
        (int::POSTCARDS, "flows", BTreeMap::from([row(&v4, &[&[0, 0b10, 0, 2][..], &hops].concat())])),
    ];
    let of_kind = |of: &'_ StoreEpochs, kind: &str| {
        let path = history.path().join(format!("{}.{kind}", of.name));
        of.typed.iter().position(|typed| typed.table.table_path() == path).expect("a table")
    };
    for (name, kind, expected) in &expected {
        let of = &bench.epochs.of[*name];
        let table = &of.typed[of_kind(of, kind)].table;
        until("two epochs have their keys", || table.kept_epochs().unwrap().len() >= 2);
        assert_eq!(rows(table, 1), *expected, "{name}.{kind}");
        // The next epoch began empty where a store does; counters continue.
        assert_eq!(rows(table, 2), if *name == int::COUNTERS { expected.clone() } else { BTreeMap::new() });
        let kept = |table: &EpochTable| table.kept_epochs().unwrap()[0].epoch.clone();
        let raw = dta_history::HistoryEpoch { waterfall: serde_json::Value::Null, ..kept(&of.history) };
        assert_eq!(kept(table), raw);
    }
    assert!(bench.epochs.of["trace-latencies"].typed.is_empty());
    assert_eq!((bench.count("epochs.failed"), bench.count("epochs.lost")), (0, 0));
    bench.end();

    // Retention and coarsening keep the same epochs of the key tables as of the history.
    let every = Duration::from_secs(3600);
    let coarse = Coarse { after: Duration::ZERO, every };
    let bench = Bench::start_with(&specs(), &directory, keep(history.path()), Duration::from_secs(60));
    let all: Vec<_> = bench.epochs.of.values().cloned().collect();
    let thinned = Keep { coarse: Some(coarse), keep: Some(2 * every), ..keep(history.path()) };
    let later = now() + 1000 + every.as_millis() as u64;
    let thinner = Thinner::new(all.clone(), thinned, bench.stop.subscribe()).unwrap();
    for of in &all {
        of.history_tables().for_each(|table| thinner.merge_old_epochs(table, later).unwrap());
    }
    for (name, kind, expected) in &expected {
        let of = &bench.epochs.of[*name];
        let table = &of.typed[of_kind(of, kind)].table;
        let numbers = |table: &EpochTable| -> Vec<u64> {
            table.kept_epochs().unwrap().iter().map(|kept| kept.epoch.number).collect()
        };
        assert!(numbers(table).len() <= 2, "an hour, or two of them: {:?}", numbers(table));
        let all: BTreeMap<u64, Vec<u8>> =
            numbers(table).into_iter().flat_map(|number| rows(table, number)).collect();
        assert_eq!(all, *expected, "{name}.{kind}: the newest of each key");
    }
    bench.end();
}

#[test]
fn the_key_directory_is_read_on_and_hops_have_flows_too() {
    let stores = ServedStores::open(&specs(), &MemoryBacking::Anonymous, RegionOptions::default()).unwrap();
    let events = stores.get(int::EVENTS).unwrap();
    let [v4, v6, _] = flows();
    let mut known = KeyDirectory::default();
    assert_eq!(known.read(&stores), BTreeMap::new());
    let hop = telemetry::hop_latency_key(&v4, 7);
    put_keys(&events, 1, &[(hop, Means::Hop(v4.to_key(), 7))]);
    let by_id = |flows: &[Flow]| -> KnownKeys {
        let of_hop = Meaning::Hop { flow: Some(v4), flow_key: v4.to_key(), switch: 7 };
        let flows = flows.iter().map(|flow| (flow.to_key(), Meaning::Flow(*flow)));
        flows.chain([(hop, of_hop)]).map(|(key, meaning)| (id(&key), (key, meaning))).collect()
    };
    assert_eq!(known.read(&stores), by_id(&[v4]));
    put_keys(&events, 2, &[(v6.to_key(), Means::Flow(v6))]);
    assert_eq!(known.read(&stores), by_id(&[v4, v6]));
    // Without news, and after its memory is replaced, it still knows what it knew.
    stores.replace_memory(stores.successor(int::EVENTS).unwrap(), false).unwrap();
    assert_eq!(known.read(&stores), by_id(&[v4, v6]));
}
