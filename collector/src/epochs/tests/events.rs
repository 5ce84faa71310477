//! Events in named columns, beside the history of their lists.

use std::ops::ControlFlow;

use dta_history::HistoryEntry as Row;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::layout::append;
use dta_proto::telemetry::{
    self, ENTRY_LEN, Location, Means, Metric, TelemetryEntry, Via, Why, list, store as int,
};

use super::*;
use crate::epochs::key_directory::id;
use crate::epochs::typed::{flow_cells, name_cell};

const NONE: u32 = u32::MAX;

/// A row: list, sequence, place in the batch, cells.
type RowCells = (u32, u32, u16, Vec<u8>);

/// Writes batches of at most two entries, as a NIC does.
fn put(store: &Store, list: u32, first: u32, entries: &[[u8; ENTRY_LEN]]) {
    for (sequence, entries) in (first..).zip(entries.chunks(2)) {
        let mut batch = [0; 128];
        append::encode_batch(&mut batch, list, sequence, entries.len() as u8, entries.as_flattened());
        store.region.write(append::batch_offset(list, sequence, 64, 128), &batch).unwrap();
    }
}

fn rows(table: &EpochTable) -> Vec<RowCells> {
    let mut all = Vec::new();
    for kept in table.kept_epochs().unwrap().iter() {
        let each = |Row { list, sequence, number, bytes }: Row<'_>| {
            all.push((list, sequence, number, bytes.to_vec()));
            ControlFlow::Continue(())
        };
        table.scan_entries(kept.epoch.number, each).unwrap();
    }
    all.sort();
    all
}

/// Cells: `numbers` are switch, port, ingress port, queue, old, new, reason, occupancy, latency, looped.
fn cells(
    names: [&str; 3],
    longs: [u64; 3],
    flow: Option<&Flow>,
    numbers: [u32; 10],
    path: &[u32],
) -> Vec<u8> {
    let mut switches = [NONE; 7];
    switches[..path.len()].copy_from_slice(path);
    [
        names.map(name_cell).as_flattened(),
        longs.map(u64::to_be_bytes).as_flattened(),
        &flow.map_or(vec![0; 38], flow_cells),
        numbers.map(u32::to_be_bytes).as_flattened(),
        switches.map(u32::to_be_bytes).as_flattened(),
    ]
    .concat()
}

#[test]
fn events_have_a_row_each_that_says_what_they_are_about_also_after_a_kill() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = MemoryBacking::Directory(memory.path().to_owned());
    let lists = StoreKind::Append { lists: 4, ring: 64, batch_len: 128, entry_len: 60, notify: false };
    let spec = store(18, int::EVENTS, lists);
    let (v4, v6): (Flow, Flow) = (
        "10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap(),
        "[2001:db8::1]:1->[2001:db8::2]:2/udp".parse().unwrap(),
    );
    let unknown: Flow = "[2001:db8::3]:1->[2001:db8::4]:2/udp".parse().unwrap();
    let (queue, hop) = (telemetry::queue_occupancy_key(7, Some(3), None), telemetry::hop_latency_key(&v6, 7));
    let at = |switch, port, queue| Location { switch, port, queue };
    let change = |key, metric, why, new, place, path| TelemetryEntry::Change {
        time: 1 << 62,
        key,
        metric,
        why,
        old: 9,
        new,
        place,
        path,
    };
    let path = Some(Via::Path(telemetry::SwitchPath::from_switches(&[6, 5, 6])));
    let changes = [
        change(v4.to_key(), Metric::FlowPath, Why::Loop, 1 << 8 | 3, at(Some(5), None, None), path),
        change(queue, Metric::QueueOccupancy, Why::New, 1 << 40, at(Some(7), Some(3), None), None),
        change(hop, Metric::HopLatency, Why::Moved, 0, at(Some(7), Some(3), None), None),
    ];
    let dropped = |key, reason| TelemetryEntry::Drop {
        time: 3,
        key,
        place: at(Some(8), None, Some(1)),
        ingress_port: Some(0),
        reason,
    };
    let reasons = [DropReason::from_int(0), DropReason::from_sflow(266)];
    let drops = [dropped(unknown.to_key(), reasons[0]), dropped(Key::default(), reasons[1])];
    let waited = TelemetryEntry::Congestion {
        time: u64::MAX,
        key: v6.to_key(),
        place: at(None, Some(2), Some(0)),
        occupancy: Some(0),
        latency: None,
    };
    let keys = [(v6.to_key(), Means::Flow(v6)), (hop, Means::Hop(v6.to_key(), 7)), (queue, Means::Itself)]
        .map(|(key, means)| TelemetryEntry::Key { key, means });
    let bench = Bench::start_with(std::slice::from_ref(&spec), &directory, keep(history.path()), EVERY);
    let events = bench.stores.get(int::EVENTS).unwrap();
    put(&events, list::KEYS, 1, &keys.map(|entry| entry.to_bytes()));
    put(&events, list::DROPS, 1, &[drops[0].to_bytes(), [0xee; ENTRY_LEN], drops[1].to_bytes()]);
    put(&events, list::CONGESTION, 1, &[waited.to_bytes()]);
    put(&events, list::CHANGES, 1, &changes.map(|entry| entry.to_bytes()));

    let none = [NONE; 10];
    let mut expected = vec![
        (
            (list::CHANGES, 0),
            cells(
                ["loop", "", ""],
                [1 << 62, id(&v4.to_key()), id(&v4.to_key())],
                Some(&v4),
                none,
                &[6, 5, 6],
            ),
            vec![(0, 5), (4, 9), (5, 3), (9, 1)],
        ),
        (
            (list::CHANGES, 1),
            cells(["queue-occupancy", "new", ""], [1 << 62, id(&queue), 0], None, none, &[]),
            vec![(0, 7), (1, 3)],
        ),
        (
            (list::CHANGES, 2),
            cells(["hop-latency", "moved", ""], [1 << 62, id(&hop), id(&v6.to_key())], Some(&v6), none, &[]),
            vec![(0, 7), (1, 3), (4, 9), (5, 0)],
        ),
        (
            (list::DROPS, 0),
            cells(["drop", "", "int"], [3, id(&unknown.to_key()), 0], None, none, &[]),
            vec![(0, 8), (2, 0), (3, 1), (6, 0)],
        ),
        // An entry that is not an event lies between the two.
        (
            (list::DROPS, 2),
            cells(["drop", "", "sflow"], [3, 0, 0], None, none, &[]),
            vec![(0, 8), (2, 0), (3, 1), (6, 266)],
        ),
        (
            (list::CONGESTION, 0),
            cells(
                ["congested-packet", "", ""],
                [u64::MAX, id(&v6.to_key()), id(&v6.to_key())],
                Some(&v6),
                none,
                &[],
            ),
            vec![(1, 2), (3, 0), (7, 0)],
        ),
        (
            (list::KEYS, 0),
            cells(["key", "", ""], [0, id(&v6.to_key()), id(&v6.to_key())], Some(&v6), none, &[]),
            vec![],
        ),
        (
            (list::KEYS, 1),
            cells(["key", "", ""], [0, id(&hop), id(&v6.to_key())], Some(&v6), none, &[]),
            vec![(0, 7)],
        ),
        ((list::KEYS, 2), cells(["key", "", ""], [0, id(&queue), 0], None, none, &[]), vec![(0, 7), (1, 3)]),
    ];
    // Numbers come after three names, three longs and a flow.
    let begin = 48 + 24 + 38;
    let expected: Vec<RowCells> = expected
        .drain(..)
        .map(|((list, number), mut cells, numbers)| {
            for (place, value) in numbers {
                let value: u32 = value;
                cells[begin + 4 * place..][..4].copy_from_slice(&value.to_be_bytes());
            }
            (list, 1 + number / 2, number as u16 % 2, cells)
        })
        .collect();
    let path = history.path().join("int-events.events");
    {
        let [typed] = &bench.epochs.of[int::EVENTS].typed[..] else { panic!("one table") };
        assert_eq!(typed.table.table_path(), path);
        until("its epoch is written", || rows(&typed.table).len() == expected.len());
        assert_eq!(rows(&typed.table), expected);
        // One file with several epochs has the same rows; epochs without events may already be in it.
        until("one more epoch", || typed.table.kept_epochs().unwrap().len() > 1);
        typed.table.compact_span(0..u64::MAX).unwrap();
        assert_eq!(rows(&typed.table), expected);
        assert_eq!((bench.count("epochs.failed"), bench.count("epochs.lost")), (0, 0));
    }
    drop(events);
    bench.end();
    // One more event in the last epoch, which ends with the collector.
    let long = Duration::from_secs(1 << 30);
    let bench = Bench::start_with(std::slice::from_ref(&spec), &directory, keep(history.path()), long);
    put(&bench.stores.get(int::EVENTS).unwrap(), list::CHANGES, 3, &[changes[1].to_bytes()]);
    bench.end();

    // The last epoch has its lists but not its events, as if a kill had come between the two.
    std::fs::remove_dir_all(&path).unwrap();
    let bench = Bench::start_with(std::slice::from_ref(&spec), &directory, keep(history.path()), EVERY);
    let last = rows(&EpochTable::open_existing(history.path(), int::EVENTS).unwrap());
    let [typed] = &bench.epochs.of[int::EVENTS].typed[..] else { panic!("one table") };
    assert_eq!(last.iter().filter(|(list, sequence, ..)| (*list, *sequence) == (0, 3)).count(), 1);
    until("what was missing is written", || !typed.table.kept_epochs().unwrap().is_empty());
    let (of_events, of_lists) = (typed.table.kept_epochs().unwrap(), bench.kept(int::EVENTS));
    let first = of_events.first().unwrap().epoch.number;
    assert!(of_lists.iter().any(|epoch| epoch.number == first));
    assert!(rows(&typed.table).iter().any(|(list, sequence, ..)| (*list, *sequence) == (0, 3)));
    bench.end();
}
