use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::flow_record::FlowRecord;

fn address(last: u8) -> Ipv6Addr {
    core::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped()
}

/// A record of flow `flow` by exporter `exporter`.
fn record(flow: u8, exporter: u8, bytes: u64) -> FlowRecord {
    FlowRecord {
        received: 1_000,
        exporter: address(exporter),
        src: address(flow),
        dst: address(200),
        dst_port: 443,
        protocol: 6,
        bytes,
        packets: 1,
        ..FlowRecord::EMPTY
    }
}

fn question(group: &str) -> FlowQuestion {
    FlowQuestion { group: FlowQuestion::parse_group(group).unwrap(), ..FlowQuestion::default() }
}

/// The answer as a caller gets it: per flow only if needed.
fn answer(question: &FlowQuestion, records: &[FlowRecord], by: FlowSum, most: usize) -> FlowAnswer {
    let entries: Vec<u8> = records.iter().flat_map(FlowRecord::to_entry).collect();
    let tally = |per_flow| {
        let mut tally = FlowTally::new(question.clone(), per_flow);
        tally.add_entries([&entries[..]]);
        tally
    };
    let first = tally(false);
    if first.needs_flows() { tally(true) } else { first }.rank_groups(by, most)
}

fn texts(answer: &FlowAnswer) -> Vec<(String, u64)> {
    let text = |row: &FlowRow| {
        let values = answer.group.iter().zip(&row.values).map(|(column, value)| format_value(column, *value));
        (values.collect::<Vec<_>>().join(" "), row.sums.bytes)
    };
    answer.rows.iter().map(text).collect()
}

fn named(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
    rows.iter().map(|(text, bytes)| ((*text).to_owned(), *bytes)).collect()
}

#[test]
fn the_largest_groups_come_first() {
    let mut records = vec![record(1, 9, 10), record(2, 9, 30), record(1, 9, 25), record(3, 9, 1)];
    let all = answer(&question("src"), &records, FlowSum::Bytes, 2);
    assert_eq!(texts(&all), named(&[("10.0.0.1", 35), ("10.0.0.2", 30)]));
    assert_eq!((all.groups, all.total), (3, FlowSums { bytes: 66, packets: 4, flows: 4 }));
    records[1].packets = 9;
    let packets = answer(&question("src,protocol"), &records, FlowSum::Packets, 1);
    assert_eq!(texts(&packets), named(&[("10.0.0.2 tcp", 30)]));
    let together = answer(&question(""), &records, FlowSum::Flows, 5);
    assert_eq!(texts(&together), named(&[("", 66)]));
    assert_eq!(answer(&question("src"), &[], FlowSum::Bytes, 5).rows, []);
}

#[test]
fn sampled_records_count_for_those_that_were_not() {
    let mut sampled = record(1, 9, 10);
    sampled.sampling_rate = 1000;
    let sums = answer(&question(""), &[sampled, record(2, 9, 5)], FlowSum::Bytes, 1).total;
    assert_eq!(sums, FlowSums { bytes: 10_005, packets: 1001, flows: 2 });
    sampled.bytes = u64::MAX;
    let sums = answer(&question(""), &[sampled, sampled], FlowSum::Bytes, 1).total;
    assert_eq!(sums.bytes, u64::MAX, "sums end where numbers do");
}

#[test]
fn time_and_condition_say_which_records_count() {
    let at = |received, bytes| FlowRecord { received, ..record(1, 9, bytes) };
    let records = [at(99, 1), at(100, 2), at(199, 4), at(200, 8)];
    let asked = FlowQuestion { since: 100, until: 200, ..question("src") };
    assert_eq!(answer(&asked, &records, FlowSum::Bytes, 5).total.bytes, 6);
    let filter = FlowFilter::parse("bytes > 3", &|_| None).unwrap();
    let asked = FlowQuestion { filter, ..asked };
    assert_eq!(answer(&asked, &records, FlowSum::Bytes, 5).total.bytes, 4);
}

#[test]
fn groups_have_a_series_of_time_buckets() {
    let at = |received, flow, bytes| FlowRecord { received, ..record(flow, 9, bytes) };
    let records = [at(250, 1, 1), at(100, 1, 2), at(199, 1, 4), at(105, 2, 8)];
    let asked = FlowQuestion { per: 100, ..question("src") };
    let rows = answer(&asked, &records, FlowSum::Bytes, 5).rows;
    let bytes =
        |row: &FlowRow| row.series.iter().map(|(start, sums)| (*start, sums.bytes)).collect::<Vec<_>>();
    assert_eq!(rows.iter().map(bytes).collect::<Vec<_>>(), [vec![(100, 8)], vec![(100, 6), (200, 1)]]);
}

#[test]
fn a_flow_that_several_exporters_see_counts_once() {
    // Exporter 7 saw more of flow 1; flow 2 is only seen by 8.
    let records = [record(1, 8, 10), record(1, 7, 6), record(1, 7, 6), record(2, 8, 5)];
    assert_eq!(answer(&question(""), &records, FlowSum::Bytes, 1).total.bytes, 17);
    let by_source = answer(&question("src"), &records, FlowSum::Bytes, 9);
    assert_eq!(texts(&by_source), named(&[("10.0.0.1", 12), ("10.0.0.2", 5)]));
    let each = answer(&question("exporter"), &records, FlowSum::Bytes, 9);
    assert_eq!(texts(&each), named(&[("10.0.0.8", 15), ("10.0.0.7", 12)]));
    let one = FlowQuestion {
        filter: FlowFilter::parse("exporter = 10.0.0.8", &|_| None).unwrap(),
        ..question("src")
    };
    let one = answer(&one, &records, FlowSum::Bytes, 9);
    assert_eq!(texts(&one), named(&[("10.0.0.1", 10), ("10.0.0.2", 5)]));
}

#[test]
fn a_flow_that_one_exporter_counts_at_both_ends_counts_once() {
    let way = |direction, bytes| FlowRecord { direction, ..record(1, 8, bytes) };
    let records = [way(1, 10), way(2, 11), record(2, 8, 3)];
    for group in ["", "exporter", "src"] {
        assert_eq!(answer(&question(group), &records, FlowSum::Bytes, 9).total.bytes, 14, "{group}");
    }
    let each = answer(&question("exporter,direction"), &records, FlowSum::Bytes, 9);
    assert_eq!(each.total.bytes, 24);
}

#[test]
fn groups_are_named_once_and_bounded() {
    let names = |text| FlowQuestion::parse_group(text).unwrap().iter().map(|c| c.name).collect::<Vec<_>>();
    assert_eq!(names("dst-as, in_if,dst-as"), ["dst-as", "in-if"]);
    assert_eq!(names("flow,src"), ["src", "dst", "src-port", "dst-port", "protocol"]);
    assert_eq!(FlowQuestion::parse_group("dst-sa"), Err(GroupError::UnknownColumn("dst-sa".into())));
    let many: Vec<&str> = crate::flow_record::COLUMNS.iter().map(|column| column.name).take(17).collect();
    assert_eq!(FlowQuestion::parse_group(&many.join(",")), Err(GroupError::TooMany));
}

#[test]
fn groups_beyond_the_most_are_summed_together() {
    let mut table = groups::GroupTable::new(4, 3000);
    let one = FlowSums { bytes: 1, packets: 1, flows: 1 };
    let mut add = |number: u32| table.add_groups([(&number.to_be_bytes()[..], one)].into_iter()).flows == 0;
    let added: Vec<u32> = (0..9000).filter(|number| add(*number)).collect();
    // Each shard has a sixteenth of the room, and each is full by now.
    assert_eq!(added.len(), 2992);
    let refused = (0..9000).find(|number| !added.contains(number)).unwrap();
    assert!(add(added[17]) && !add(refused));
    assert_eq!((table.len(), table.iter().map(|(_, sums)| sums.flows).sum::<u64>()), (2992, 2993));
}

#[test]
fn large_tables_merge_by_shards() {
    let table = |numbers: core::ops::Range<u32>| {
        let mut table = groups::GroupTable::new(4, 20_000);
        let keys: Vec<[u8; 4]> = numbers.clone().map(u32::to_be_bytes).collect();
        let sums = numbers.map(|number| FlowSums { bytes: number.into(), packets: 2, flows: 1 });
        table.add_groups(keys.iter().map(|key| &key[..]).zip(sums));
        table
    };
    let mut all = table(0..4000);
    let beyond = all.merge(&[&table(3000..9000), &table(8000..24_000)]);
    let mut total = beyond;
    all.iter().for_each(|(_, sums)| total.add(sums));
    assert_eq!((total.flows, total.packets), (26_000, 52_000), "every record is in the table or beyond it");
    assert!(all.len() <= 20_000 && beyond.flows > 0, "{} groups, {beyond:?} beyond", all.len());
    let sums_of = |number: u32| {
        let sums: Vec<_> =
            all.iter().filter(|(k, _)| **k == number.to_be_bytes()).map(|(_, sums)| sums.bytes).collect();
        assert!(sums.len() <= 1, "{number} is in the table {} times", sums.len());
        sums.first().copied()
    };
    assert_eq!([sums_of(17), sums_of(3500), sums_of(8500)], [Some(17), Some(7000), Some(17_000)]);
}

#[test]
fn parts_of_another_question_do_not_fit() {
    let mut tally = FlowTally::new(question("src"), false);
    tally.add_entries([&record(1, 9, 1).to_entry()[..]]);
    let parts = tally.to_parts(FlowSum::Bytes, 1 << 20);
    assert!(FlowTally::new(question("dst"), false).add_parts(&parts));
    assert!(!FlowTally::new(question("dst-port"), false).add_parts(&parts));
    assert!(!FlowTally::new(question("src"), true).add_parts(&parts));
    tally.add_entries([&record(2, 9, 5).to_entry()[..]]);
    let parts = tally.to_parts(FlowSum::Bytes, 16 + 32);
    assert_eq!(
        (parts.sums.len(), parts.sums[0].bytes, parts.beyond.bytes),
        (1, 5, 1),
        "the smallest are left out"
    );
}

fn any_record() -> impl Strategy<Value = FlowRecord> {
    (0u8..6, 0u8..3, 0u8..3, 0u64..50, 0u64..400, 0u32..3).prop_map(
        |(flow, exporter, direction, bytes, received, sampling_rate)| FlowRecord {
            received,
            direction,
            sampling_rate,
            ..record(flow, exporter, bytes)
        },
    )
}

proptest! {
    /// Against a plain computation, however the records are spread over lists, threads and collectors.
    #[test]
    fn merged_tallies_answer_as_one(
        records in prop::collection::vec(any_record(), 0..60),
        shares in prop::collection::vec(0usize..3, 60),
        group in prop::sample::select(vec!["", "src", "dst", "exporter", "src,exporter", "direction", "exporter,direction"]),
        per in prop::sample::select(vec![0u64, 100]),
        most in 1usize..5,
    ) {
        let asked = FlowQuestion { per, since: 50, ..question(group) };
        let tally = |per_flow: bool| {
            let mut shared: [FlowTally; 3] = core::array::from_fn(|_| FlowTally::new(asked.clone(), per_flow));
            for (record, share) in records.iter().zip(&shares) {
                shared[*share].add_entries([&record.to_entry()[..]]);
            }
            let [mut all, thread, collector] = shared;
            all.merge(&[thread]);
            assert!(all.add_parts(&collector.to_parts(FlowSum::Bytes, 1 << 20)));
            all
        };
        let first = tally(false);
        let answer = if first.needs_flows() { tally(true) } else { first }.rank_groups(FlowSum::Bytes, most);

        // What each competing observer counted.
        let counted = |record: &&FlowRecord| record.received >= 50;
        let bytes = |record: &FlowRecord| record.bytes * u64::from(record.sampling_rate.max(1));
        let contest = |record: &FlowRecord| {
            let by_exporter = asked.groups_by(&EXPORTER).then_some(record.exporter);
            let by_direction = (by_exporter.is_some() && asked.groups_by(&DIRECTION)).then_some(record.direction);
            (record.src, by_exporter, by_direction)
        };
        let mut observers: BTreeMap<_, BTreeMap<_, u64>> = BTreeMap::new();
        for record in records.iter().filter(counted) {
            let observer = (record.exporter, record.direction);
            *observers.entry(contest(record)).or_default().entry(observer).or_default() += bytes(record);
        }
        let winner = |record: &FlowRecord| {
            let ranked = observers[&contest(record)].iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)));
            *ranked.unwrap().0 == (record.exporter, record.direction)
        };
        let mut groups: BTreeMap<Vec<u128>, u64> = BTreeMap::new();
        for record in records.iter().filter(counted).filter(|record| winner(record)) {
            let entry = record.to_entry();
            let key = asked.group.iter().map(|column| column.read_value(&entry)).collect();
            *groups.entry(key).or_default() += bytes(record);
        }
        let mut expected: Vec<(Vec<u128>, u64)> = groups.into_iter().collect();
        expected.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        prop_assert_eq!(answer.groups, expected.len() as u64);
        prop_assert_eq!(answer.total.bytes, expected.iter().map(|(_, bytes)| bytes).sum::<u64>());
        expected.truncate(most);
        let rows: Vec<_> = answer.rows.iter().map(|row| (row.values.clone(), row.sums.bytes)).collect();
        prop_assert_eq!(rows, expected);
        for row in &answer.rows {
            let summed: u64 = row.series.iter().map(|(_, sums)| sums.bytes).sum();
            prop_assert_eq!(summed, if per == 0 { 0 } else { row.sums.bytes });
        }
    }
}
