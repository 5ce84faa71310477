//! Lists, and what makes no sense for which kind of store.

use std::net::Ipv4Addr;
use std::ops::ControlFlow;

use dta_proto::flow_record::{self, FlowRecord, to_mapped_address};
use dta_proto::random::SplitMix64;

use super::*;

fn lists() -> StoreSpec {
    store(StoreKind::Append { lists: 8, ring: 64, batch_len: 64, entry_len: 12, notify: false })
}

/// Entries of some lists, as they came: list, sequence, number, entry.
type Came = Vec<(u32, u32, u16, [u8; 12])>;

fn came(epoch: u32, many: u32) -> Came {
    let entry = |n: u32| {
        let (list, sequence) = (n * 5 % 7, epoch * 1_000_000 + n);
        (
            list,
            sequence,
            (n % 4) as u16,
            [list, sequence, u32::MAX].map(u32::to_be_bytes).as_flattened().try_into().unwrap(),
        )
    };
    (1..=many).map(entry).collect()
}

fn push(table: &EpochTable, epoch: &HistoryEpoch, came: &Came) {
    let mut flush = table.begin_epoch(epoch.number).unwrap();
    for (list, sequence, number, bytes) in came {
        flush.push(HistoryEntry { list: *list, sequence: *sequence, number: *number, bytes }).unwrap();
    }
    assert_eq!(flush.finish(epoch).unwrap().rows, came.len() as u64);
}

fn entries(table: &EpochTable, epoch: u64) -> Came {
    let mut all = Came::new();
    let each = |entry: HistoryEntry<'_>| {
        all.push((entry.list, entry.sequence, entry.number, entry.bytes.try_into().unwrap()));
        ControlFlow::Continue(())
    };
    table.scan_entries(epoch, each).unwrap();
    all
}

#[test]
fn entries_come_back_as_they_came_also_compacted_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &lists()).unwrap();
    // More than a row group, an empty one, and more than a batch.
    let all = [came(0, 300_000), came(1, 0), came(2, 20_000), came(3, 10)];
    for (number, came) in (0..).zip(&all) {
        let lists = vec![(3, number as u32)];
        push(&table, &HistoryEpoch { lists, ..epoch(number) }, came);
    }
    assert_eq!(
        table.compaction_spans(4 * MINUTE).unwrap(),
        BTreeMap::from([(0, SpanFiles { files: 4, epochs: 4, ..SpanFiles::default() })])
    );
    for compacted in [false, true] {
        if compacted {
            assert_eq!(table.compact_span(0..3 * MINUTE).unwrap().unwrap().rows, 320_000);
            assert_eq!(
                table.compaction_spans(4 * MINUTE).unwrap()[&0],
                SpanFiles { files: 2, epochs: 4, ..SpanFiles::default() }
            );
        }
        for table in [&table, &EpochTable::open(dir.path(), &lists()).unwrap()] {
            for (number, came) in (0..).zip(&all) {
                assert!(entries(table, number) == *came, "epoch {number}");
            }
            let mut some = 0;
            let three = |_: HistoryEntry<'_>| {
                some += 1;
                if some < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            table.scan_entries(2, three).unwrap();
            assert_eq!(some, 3);
            assert_eq!(table.epoch_at_moment(MINUTE / 2).unwrap().unwrap().epoch.lists, [(3, 0)]);
        }
    }
}

#[test]
fn what_makes_no_sense_for_a_kind_of_store_is_refused() {
    let error = |of: Result<(), HistoryError>| of.unwrap_err().to_string();
    let dir = tempfile::tempdir().unwrap();
    let of_lists = EpochTable::open(dir.path(), &lists()).unwrap();
    push(&of_lists, &epoch(0), &came(0, 10));
    push(&of_lists, &epoch(1), &came(1, 10));
    let mut flush = of_lists.begin_epoch(2).unwrap();
    assert_eq!(
        error(flush.write_slots(0, &[0; 64])),
        "store `last`: append stores have no slots that could be written: push their entries"
    );
    let entry = |list, bytes| HistoryEntry { list, sequence: 1, number: 0, bytes };
    assert!(
        error(flush.push(entry(8, &[0; 12])))
            .contains("for list 8, in a store of 8 lists with entries of 12 bytes")
    );
    assert!(error(flush.push(entry(7, &[0; 8]))).contains("an entry of 8 bytes"));
    assert!(
        error(of_lists.read_slots(0, &[1], &mut [0; 20])).contains("have no slots that could be looked up")
    );
    let coarse = |table: &EpochTable| error(table.coarsen_span(0..9 * MINUTE, |_| unreachable!()).map(drop));
    assert!(!of_lists.can_be_coarse() && coarse(&of_lists).contains("append stores cannot be made coarser"));

    let dir = tempfile::tempdir().unwrap();
    let of_sketches = EpochTable::open(dir.path(), &sketch(2)).unwrap();
    write(&of_sketches, &HistoryEpoch { sketch: Some(77), ..epoch(0) }, &model(&sketch(2), 1, 0)).unwrap();
    assert_eq!(of_sketches.epoch_at_moment(0).unwrap().unwrap().epoch.sketch, Some(77));
    assert!(coarse(&of_sketches).contains("sketch-merge stores cannot be made coarser"));
    let mut flush = of_sketches.begin_epoch(1).unwrap();
    assert!(error(flush.write_slots(512, &[1; 16])).contains("in a store of 512"));
    assert!(
        error(flush.push(entry(0, &[0; 12])))
            .contains("sketch-merge stores have no entries that could be written")
    );
    assert!(error(of_sketches.scan_entries(0, |_| unreachable!())).contains("have no entries: scan"));
}

#[test]
fn of_two_epochs_of_one_moment_the_newer_is_found_and_one_from_the_future_keeps_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &key_write(64, 4)).unwrap();
    let rows = model(table.store_spec(), 2, 1);
    // A clock that jumped ahead by an hour and back: the minutes 3 to 5 are shown twice.
    for (number, minute) in [1, 2, 3, 64, 65, 4, 3, 4, 5].into_iter().enumerate() {
        let epoch = HistoryEpoch { number: number as u64 + 1, ..epoch(minute) };
        write(&table, &epoch, &rows).unwrap();
    }
    let at =
        |minute: u64| table.epoch_at_moment(minute * MINUTE + 30_000).unwrap().map(|kept| kept.epoch.number);
    assert_eq!([1, 3, 4, 5, 64, 6].map(at), [Some(1), Some(7), Some(8), Some(9), Some(4), None]);
    let keep = Retention { keep: Some(Duration::from_secs(120)), keep_bytes: None };
    assert_eq!(table.apply_retention(&keep, 7 * MINUTE).unwrap().epochs, [1, 2, 3, 7]);
    let one = table.data_bytes() / 5;
    let keep = Retention { keep: None, keep_bytes: Some(3 * one) };
    assert_eq!(
        table.apply_retention(&keep, 7 * MINUTE).unwrap().epochs,
        [4, 5],
        "those of the future are not kept for ever"
    );
}

#[test]
fn flow_records_come_back_from_their_columns() {
    let kind = StoreKind::Append { lists: 4, ring: 64, batch_len: 1024, entry_len: 192, notify: false };
    let spec = StoreSpec { id: 1, name: flow_record::STORE.to_owned(), kind };
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let mut seed = SplitMix64(7);
    let mut entry = || {
        let mut entry = [0; flow_record::ENTRY_LEN];
        entry.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = seed.next_u64().to_be_bytes());
        // As IPv4 addresses are stored.
        let address = Ipv4Addr::new(10, 0, 0, entry[3]).to_ipv6_mapped();
        entry[40..56].copy_from_slice(&address.octets());
        entry
    };
    let entries: Vec<_> = (0..3000).map(|_| entry()).chain([[0; 192], [0xff; 192]]).collect();
    let mut flush = table.begin_epoch(0).unwrap();
    for (number, bytes) in (0..).zip(&entries) {
        flush
            .push(HistoryEntry { list: 3, sequence: 1 + number / 5, number: (number % 5) as u16, bytes })
            .unwrap();
    }
    flush.finish(&epoch(0)).unwrap();
    let mut found = Vec::new();
    table
        .scan_entries(0, |entry| {
            found.push(<[u8; flow_record::ENTRY_LEN]>::try_from(entry.bytes).unwrap());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(found == entries);
    let commit: String = fs::read_to_string(commit_file(&table, 0)).unwrap();
    for column in flow_record::COLUMNS {
        let name = format!("\\\"name\\\":\\\"{}\\\"", column.name.replace('-', "_"));
        assert!(commit.contains(&name), "{name}");
    }
}

/// A record as a router at an uplink exports it: few hosts and services make most of the flows, and bursts of records are
/// received together. `number`: how many came before.
fn uplink_record(random: &mut SplitMix64, number: u64) -> FlowRecord {
    const MILLISECOND: u64 = 1_000_000;
    // The smaller the number, the more often it is drawn.
    let mut skewed = |most: u64| {
        let bits = 64 - most.leading_zeros();
        (random.next_u64() % most) >> (random.next_u64() % u64::from(bits))
    };
    let (host, server, packets) = (skewed(20_000) as u32, skewed(50_000) as u32, 1 + skewed(100_000));
    let bytes_per_packet = 60 + random.next_u64() % 1340;
    let service = [443, 443, 443, 80, 53, 53, 22, 123][random.next_u64() as usize % 8];
    let is_udp = matches!(service, 53 | 123);
    let client_port = 32_768 + (random.next_u64() % 28_000) as u16;
    let host = to_mapped_address(Ipv4Addr::from_bits(0x0a00_0000 + host).into());
    let remote = to_mapped_address(Ipv4Addr::from_bits(server.wrapping_mul(2_654_435_761)).into());
    let is_outward = random.next_u64().is_multiple_of(2);
    let (src, dst) = if is_outward { (host, remote) } else { (remote, host) };
    let (src_port, dst_port) = if is_outward { (client_port, service) } else { (service, client_port) };
    let received = 1_790_000_000_000 * MILLISECOND + number / 24 * 80_000;
    let end = received / MILLISECOND - random.next_u64() % 15_000;
    let start = end - ((random.next_u64() % 60_000) >> (random.next_u64() % 16));
    FlowRecord {
        received,
        start: start * MILLISECOND,
        end: end * MILLISECOND,
        bytes: packets * bytes_per_packet,
        packets,
        exporter: to_mapped_address(Ipv4Addr::new(192, 0, 2, 1).into()),
        src,
        dst,
        next_hop: to_mapped_address(Ipv4Addr::new(192, 0, 2, server as u8 % 8).into()),
        in_if: 1 + u32::from(is_outward),
        out_if: 2 - u32::from(is_outward),
        dst_as: 64_512 + server % 1000,
        src_port,
        dst_port,
        protocol: if is_udp { 17 } else { 6 },
        tcp_flags: if is_udp { 0 } else { 0x1b },
        ..FlowRecord::EMPTY
    }
}

#[test]
fn a_flow_record_takes_an_eighth_of_its_bytes_on_disk() {
    const RECORDS: u64 = 200_000;
    let kind = StoreKind::Append { lists: 4, ring: 64, batch_len: 1024, entry_len: 192, notify: false };
    let spec = StoreSpec { id: 1, name: flow_record::STORE.to_owned(), kind };
    let dir = tempfile::tempdir().unwrap();
    let table = EpochTable::open(dir.path(), &spec).unwrap();
    let mut random = SplitMix64(7);
    let mut flush = table.begin_epoch(0).unwrap();
    for number in 0..RECORDS {
        let bytes = &uplink_record(&mut random, number).to_entry()[..];
        let (sequence, number) = (1 + (number / 5) as u32, (number % 5) as u16);
        flush.push(HistoryEntry { list: 3, sequence, number, bytes }).unwrap();
    }
    let per_record = flush.finish(&epoch(0)).unwrap().bytes as f64 / RECORDS as f64;
    assert!(per_record < 22.0, "{per_record} bytes a record");
}
