use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::store::{Merge, SlotKeys, StoreKind};

use super::*;
use crate::region::{AccessError, Region, RegionOptions};
use crate::store::tests::{RING, key, list_store, put_batch, store, write};
use crate::store::{Store, load};

#[test]
fn key_write_answers_in_every_size_and_batch() {
    use key_write::{KeyWriteReader, KeyWriteReading};
    use layout::key_write::Choice;
    let hashed = [4u8, 12, 28, 60].map(|value_len| (value_len, SlotKeys::Hashed));
    for (value_len, keys) in hashed.into_iter().chain([(12, SlotKeys::Inline)]) {
        let store = store(StoreKind::KeyWrite { slots: 1 << 12, value_len, redundancy: 3, keys });
        let value = |i: u32| -> Vec<u8> { (0..value_len).map(|b| b ^ i as u8).collect() };
        (0..100).for_each(|i| write(&store, &key(i), &value(i), |_| true));
        let reader = KeyWriteReader::new(&store).unwrap();
        // One more and one fewer than what is in flight, none, and many.
        for count in [0u32, 1, 31, 32, 33, 100, 130] {
            let keys: Vec<Key> = (0..count).map(key).collect();
            let mut answers = vec![KeyWriteReading { found: true, agreeing: 9, differing: 9 }; keys.len()];
            let mut values = vec![0xee; keys.len() * reader.value_len()];
            reader.query_keys(&keys, Choice::First, &mut answers, &mut values).unwrap();
            for (i, answer) in answers.iter().enumerate() {
                let returned = &values[i * reader.value_len()..][..reader.value_len()];
                if i < 100 {
                    assert!(answer.found && answer.agreeing >= 1 && answer.differing == 0, "{i}: {answer:?}");
                    assert_eq!(returned, value(i as u32));
                } else {
                    assert_eq!(*answer, KeyWriteReading::default(), "{i}");
                    assert!(returned.iter().all(|b| *b == 0), "another key's bytes are not handed out");
                }
            }
        }
    }
}

#[test]
fn a_slot_that_holds_another_key_is_no_copy_whatever_its_checksum() {
    use key_write::{KeyWriteReader, KeyWriteReading};
    use layout::key_write::{Choice, encode_slot, inline_value};
    let kind = StoreKind::KeyWrite { slots: 64, value_len: 12, redundancy: 2, keys: SlotKeys::Inline };
    let store = store(kind);
    // The checksum matches by chance.
    let mut slot = [0; 32];
    encode_slot(&mut slot, &key(1), &inline_value(&key(2), &[7; 12]).unwrap());
    let slots = hash::key_slots(&key(1), 2, 64);
    store.region.write(slots[0] * 32, &slot).unwrap();
    let ask = |policy| {
        let (mut answer, mut value) = ([KeyWriteReading::default()], [0xee; 12]);
        KeyWriteReader::new(&store).unwrap().query_keys(&[key(1)], policy, &mut answer, &mut value).unwrap();
        (answer[0], value)
    };
    assert_eq!(ask(Choice::First), (KeyWriteReading::default(), [0; 12]));
    write(&store, &key(1), &[9; 12], |n| n == 1);
    for policy in [Choice::First, Choice::Plurality, Choice::AtLeast(1)] {
        assert_eq!(ask(policy), (KeyWriteReading { found: true, agreeing: 1, differing: 0 }, [9; 12]));
    }
}

#[test]
fn key_write_counts_copies_that_differ() {
    use key_write::{KeyWriteReader, KeyWriteReading};
    use layout::key_write::Choice;
    let store =
        store(StoreKind::KeyWrite { slots: 1 << 12, value_len: 4, redundancy: 4, keys: Default::default() });
    write(&store, &key(1), b"olde", |_| true);
    write(&store, &key(1), b"newe", |n| n == 0);
    let ask = |policy| {
        let (mut answer, mut value) = ([KeyWriteReading::default()], [0; 4]);
        KeyWriteReader::new(&store).unwrap().query_keys(&[key(1)], policy, &mut answer, &mut value).unwrap();
        (answer[0].found, answer[0].agreeing, answer[0].differing, value)
    };
    assert_eq!(ask(Choice::First), (true, 1, 3, *b"newe"));
    assert_eq!(ask(Choice::Plurality), (true, 3, 1, *b"olde"));
    assert_eq!(ask(Choice::AtLeast(4)), (false, 3, 1, [0; 4]));
}

#[test]
fn postcarding_prefers_the_copy_with_most_hops() {
    use layout::postcarding::{PostcardPath, encode_row, row_offset};
    use postcarding::PostcardingReader;
    let store = store(StoreKind::Postcarding { slots: 1 << 10, hops: 6, redundancy: 3 });
    let put = |path: &PostcardPath, which: &[usize]| {
        let mut row = [0; 32];
        encode_row(&mut row, &key(1), path);
        for (n, at) in hash::key_slots(&key(1), 3, 1 << 10).iter().enumerate() {
            if which.contains(&n) {
                store.region.write(row_offset(*at, 6), &row).unwrap();
            }
        }
    };
    let mut partial = PostcardPath { length: 3, ..PostcardPath::default() };
    partial.set(0, 10);
    put(&partial, &[0, 1, 2]);
    let mut answers = vec![postcarding::PostcardingReading::default(); 40];
    let keys: Vec<Key> = (0..40).map(key).collect();
    PostcardingReader::new(&store).unwrap().query_keys(&keys, &mut answers).unwrap();
    assert_eq!((answers[1].path, answers[1].agreeing, answers[1].differing), (Some(partial), 3, 0));
    assert!(answers.iter().enumerate().all(|(i, a)| (i == 1) == a.path.is_some()));
    let mut whole = partial;
    whole.set(1, 11);
    whole.set(2, 12);
    put(&whole, &[1]);
    PostcardingReader::new(&store).unwrap().query_keys(&keys, &mut answers).unwrap();
    assert_eq!((answers[1].path, answers[1].agreeing, answers[1].differing), (Some(whole), 1, 2));
}

#[test]
fn counters_are_never_below_the_truth() {
    use layout::key_increment::counter_offset;
    let store = store(StoreKind::KeyIncrement { slots: 1 << 8, redundancy: 2, replicas: 1 });
    let keys: Vec<Key> = (0..100).map(key).collect();
    for (i, key) in keys.iter().enumerate() {
        for slot in hash::key_slots(key, 2, 1 << 8).iter() {
            store.region.fetch_add(counter_offset(*slot), i as u64).unwrap();
        }
    }
    let mut answers = vec![0; keys.len()];
    key_increment::KeyIncrementReader::new(&store).unwrap().query_keys(&keys, &mut answers).unwrap();
    assert!(answers.iter().enumerate().all(|(i, a)| *a >= i as u64));
    assert!(answers.iter().enumerate().filter(|(i, a)| **a == *i as u64).count() > 50);
}

#[test]
fn a_sketch_knows_its_epochs() {
    use layout::sketch_merge::{SketchColumn, column_offset, columns_of, encode_column};
    let store =
        store(StoreKind::SketchMerge { columns: 1 << 8, rows: 3, epochs: 2, merge: Merge::Sum, expected: 2 });
    let put = |epoch: u32, merged: u16, cell: u32| {
        for (row, column) in columns_of(&key(1), 3, 1 << 8).iter().enumerate() {
            let mut bytes = [0; 32];
            let mut cells = [0; 4];
            cells[row] = cell + row as u32;
            encode_column(
                &mut bytes,
                3,
                &SketchColumn { epoch, merged: merged + row as u16, expected: 2, cells },
            );
            store.region.write(column_offset(epoch, *column as u32, 2, 1 << 8, 3), &bytes).unwrap();
        }
    };
    let ask = |epoch| {
        let mut answers = [Default::default()];
        sketch_merge::SketchMergeReader::new(&store)
            .unwrap()
            .query_keys(&[key(1)], epoch, &mut answers)
            .unwrap();
        (answers[0].estimate, answers[0].merged, answers[0].expected)
    };
    assert_eq!(ask(0), (None, 0, 2));
    put(4, 1, 100);
    assert_eq!(ask(4), (Some(100), 1, 2));
    assert_eq!(ask(2), (None, 0, 2), "the same ring place holds epoch 4 now");
    put(6, 2, 50);
    assert_eq!(ask(4).0, None);
    assert_eq!(ask(6), (Some(50), 2, 2));
}

#[test]
fn a_region_that_is_too_short_is_an_error_and_no_answer() {
    let short = |kind: StoreKind| {
        let whole = store(kind);
        let options = RegionOptions { huge_pages: false };
        let region = Region::anonymous(4096, whole.region.wire_address(), options).unwrap();
        assert!(whole.spec.region_len() > region.len());
        Store { region: Arc::new(region), ..whole }
    };
    let keys: Vec<Key> = (0..100).map(key).collect();
    let outside = |result| matches!(result, Err(AccessError::OutOfRange { .. }));

    let store = short(StoreKind::KeyIncrement { slots: 1 << 20, redundancy: 2, replicas: 1 });
    assert!(outside(
        key_increment::KeyIncrementReader::new(&store).unwrap().query_keys(&keys, &mut [0; 100])
    ));
    let store = short(StoreKind::Postcarding { slots: 1 << 16, hops: 6, redundancy: 2 });
    let mut paths = [postcarding::PostcardingReading::default(); 100];
    assert!(outside(postcarding::PostcardingReader::new(&store).unwrap().query_keys(&keys, &mut paths)));
    let store = short(StoreKind::SketchMerge {
        columns: 1 << 12,
        rows: 3,
        epochs: 2,
        merge: Merge::Sum,
        expected: 2,
    });
    let mut estimates = [sketch_merge::SketchMergeReading::default(); 100];
    assert!(outside(sketch_merge::SketchMergeReader::new(&store).unwrap().query_keys(
        &keys,
        1,
        &mut estimates
    )));
    let store =
        short(StoreKind::KeyWrite { slots: 1 << 20, value_len: 12, redundancy: 2, keys: Default::default() });
    let (mut answers, mut values) = ([key_write::KeyWriteReading::default(); 100], [0; 1200]);
    let reader = key_write::KeyWriteReader::new(&store).unwrap();
    let policy = layout::key_write::Choice::First;
    assert!(outside(reader.query_keys(&keys, policy, &mut answers, &mut values)));
    let error = store.outside_region(load::measure_load(&store).unwrap_err()).to_string();
    assert!(error.contains("store \"s\"") && error.contains("region file"), "{error}");
}

#[test]
fn the_newest_batch_is_found_among_trailers_that_lie() {
    let store = list_store(64);
    let lists = append::Lists::new(&store).unwrap();
    (1..=5).for_each(|sequence| put_batch(&store, 0, sequence));
    let claim = |place: u64, sequence: u32| {
        let claims = (u64::from(sequence) << 32).to_be_bytes();
        store.region.write(layout::append::place_offset(0, place, RING, 64) + 56, &claims).unwrap();
    };
    // Later than all, at its proper place; and so far ahead that the oldest seems to come after it.
    for lie in [9 + 3 * RING as u32, 2 + (1 << 31)] {
        claim(layout::append::ring_place(lie, RING), lie);
        assert_eq!(lists.newest_sequence(0), Ok(5), "{lie}");
    }
    // Now no valid batch is left.
    (0..RING).for_each(|place| claim(place, place as u32 + 1 + RING as u32));
    assert_eq!(lists.newest_sequence(0), Ok(0));
}

#[test]
fn a_list_that_the_region_ends_in_is_an_error_and_not_an_empty_list() {
    use append::{ListError, Lists, ReadStart};
    // The first list lies in the region, the others outside.
    let whole = list_store(64);
    let options = RegionOptions { huge_pages: false };
    let region = Region::anonymous(64 * RING, whole.region.wire_address(), options).unwrap();
    let store = Store { region: Arc::new(region), ..whole };
    let lists = Lists::new(&store).unwrap();
    (1..=3).for_each(|sequence| put_batch(&store, 0, sequence));
    assert_eq!(
        (
            lists.newest_sequence(0),
            read_all(&mut lists.open_reader(0, ReadStart::Oldest).unwrap(), Instant::now()).0
        ),
        (Ok(3), vec![1, 2, 3])
    );
    let outside = |error: AccessError| matches!(error, AccessError::OutOfRange { .. });
    assert!(outside(lists.newest_sequence(1).unwrap_err()));
    for start in [ReadStart::Oldest, ReadStart::Next, ReadStart::At(1)] {
        assert!(
            matches!(lists.open_reader(1, start), Err(ListError::Access(error)) if outside(error)),
            "{start:?}"
        );
    }
    // A reader that began where there was more memory.
    let longer = list_store(64);
    put_batch(&longer, 1, 1);
    let place = Lists::new(&longer).unwrap().open_reader(1, ReadStart::Oldest).unwrap().read_position();
    let mut reader = lists.resume_reader(place);
    assert!(outside(reader.read(1, Instant::now(), |_, _| panic!("nothing is there")).unwrap_err()));
    assert!(outside(reader.caught_up().unwrap_err()));
    assert!(outside(load::measure_load(&store).unwrap_err()));
}

fn read_all(reader: &mut append::AppendReader<'_>, now: Instant) -> (Vec<u32>, append::ReadProgress) {
    let mut got = Vec::new();
    let read = reader.read(u64::MAX, now, |sequence, entries| {
        assert!(entries.chunks(4).all(|e| e == sequence.to_be_bytes()));
        got.push(sequence);
    });
    (got, read.unwrap())
}

#[test]
fn a_list_is_followed_from_where_the_reader_asks() {
    use append::{Lists, ReadStart};
    for batch_len in [16, 32, 64, 128, 1024, 4096] {
        let store = list_store(batch_len);
        let lists = Lists::new(&store).unwrap();
        let none = lists.open_reader(4, ReadStart::Oldest).unwrap_err();
        assert_eq!(none, append::ListError::NoSuchList { list: 4, last: 3 });
        (1..=10).for_each(|s| put_batch(&store, 2, s));
        let now = Instant::now();
        let mut oldest = lists.open_reader(2, ReadStart::Oldest).unwrap();
        let mut next = lists.open_reader(2, ReadStart::Next).unwrap();
        let mut at = lists.open_reader(2, ReadStart::At(7)).unwrap();
        let mut other = lists.open_reader(1, ReadStart::Oldest).unwrap();
        assert_eq!(read_all(&mut oldest, now).0, (1..=10).collect::<Vec<_>>());
        assert!(read_all(&mut next, now).0.is_empty());
        assert_eq!(read_all(&mut at, now).0, [7, 8, 9, 10]);
        assert!(read_all(&mut other, now).0.is_empty());
        assert!(oldest.caught_up().unwrap() && next.caught_up().unwrap());
        put_batch(&store, 2, 11);
        assert!(!oldest.caught_up().unwrap());
        assert_eq!(read_all(&mut oldest, now).0, [11]);
        assert_eq!(read_all(&mut next, now).0, [11]);
    }
}

#[test]
fn overwritten_batches_are_counted() {
    let store = list_store(64);
    let mut reader = append::Lists::new(&store).unwrap().open_reader(0, append::ReadStart::Oldest).unwrap();
    let now = Instant::now();
    (1..=1000).for_each(|s| put_batch(&store, 0, s));
    let (got, progress) = read_all(&mut reader, now);
    assert_eq!(got, (1000 - RING as u32 + 1..=1000).collect::<Vec<_>>());
    assert_eq!(progress.overwritten, 1000 - RING);
    assert_eq!(progress.batches, RING);
}

#[test]
fn a_missing_batch_is_waited_for_and_then_counted() {
    let store = list_store(64);
    let mut reader = append::Lists::new(&store).unwrap().open_reader(0, append::ReadStart::Oldest).unwrap();
    let t0 = Instant::now();
    [1, 2, 4].into_iter().for_each(|s| put_batch(&store, 0, s));
    assert_eq!(read_all(&mut reader, t0).0, [1, 2]);
    // The batch was only overtaken.
    put_batch(&store, 0, 3);
    assert_eq!(read_all(&mut reader, t0).0, [3, 4]);
    put_batch(&store, 0, 6);
    assert!(read_all(&mut reader, t0).0.is_empty());
    let (got, progress) = read_all(&mut reader, t0 + Duration::from_secs(1));
    assert_eq!((got, progress.missing), (vec![6], 1));
    // Nothing delays a frame by a hundred places: no wait.
    (8..=108).for_each(|s| put_batch(&store, 0, s));
    let (got, progress) = read_all(&mut reader, t0 + Duration::from_secs(1));
    assert_eq!((got, progress.missing), ((8..=108).collect(), 1));
}

#[test]
fn a_long_gap_is_found_before_the_reader_calls_itself_caught_up() {
    let store = list_store(64);
    let mut reader = append::Lists::new(&store).unwrap().open_reader(0, append::ReadStart::Oldest).unwrap();
    put_batch(&store, 0, 1);
    put_batch(&store, 0, 100);
    let t0 = Instant::now();
    assert_eq!(read_all(&mut reader, t0).0, [1]);
    assert!(!reader.caught_up().unwrap());
    let (mut got, mut sum) = (Vec::new(), append::ReadProgress::default());
    for tick in 0..200 {
        let (more, progress) = read_all(&mut reader, t0 + Duration::from_millis(100 * tick));
        got.extend(more);
        sum.add(progress);
    }
    assert_eq!((got, sum.missing), (vec![100], 98));
    assert!(reader.caught_up().unwrap());
}

#[test]
fn a_damaged_batch_is_counted_and_passed() {
    let store = list_store(64);
    let mut reader = append::Lists::new(&store).unwrap().open_reader(0, append::ReadStart::Oldest).unwrap();
    (1..=3).for_each(|s| put_batch(&store, 0, s));
    store.region.write(layout::append::batch_offset(0, 2, RING, 64), &[0xff]).unwrap();
    let t0 = Instant::now();
    let (got, progress) = read_all(&mut reader, t0);
    assert_eq!((got, progress.torn), (vec![1], 1));
    let (got, progress) = read_all(&mut reader, t0 + Duration::from_secs(1));
    assert_eq!((got, progress.damaged), (vec![3], 1));
}

#[test]
fn a_list_that_is_torn_all_over_is_read_to_its_end_in_one_wait_and_loses_nothing_that_comes() {
    let store = list_store(64);
    let mut reader = append::Lists::new(&store).unwrap().open_reader(0, append::ReadStart::Oldest).unwrap();
    let tear = |sequence| {
        store.region.write(layout::append::batch_offset(0, sequence, RING, 64), &[0xff; 64]).unwrap();
    };
    (1..=RING as u32).for_each(tear);
    let t0 = Instant::now();
    let (got, progress) = read_all(&mut reader, t0);
    assert_eq!((got, progress.torn), (vec![], 1));
    assert!(!reader.caught_up().unwrap(), "it may be being written");
    let t1 = t0 + Duration::from_secs(1);
    assert_eq!(read_all(&mut reader, t1), (vec![], append::ReadProgress::default()));
    assert!(reader.caught_up().unwrap());
    assert_eq!((reader.torn_behind(), reader.next_sequence()), (Ok(RING), 1));
    // Places that were only damaged since the previous turn are written after all.
    (1..=3).for_each(|sequence| put_batch(&store, 0, sequence));
    assert_eq!(read_all(&mut reader, t1).0, [1, 2, 3]);
    // All batches before the latest one are waited for together.
    let mut reader = append::Lists::new(&store).unwrap().open_reader(0, append::ReadStart::At(4)).unwrap();
    [100, 102, 255, 256].into_iter().for_each(|sequence| put_batch(&store, 0, sequence));
    assert!(read_all(&mut reader, t1).0.is_empty());
    // A late batch is still read.
    put_batch(&store, 0, 50);
    let (got, progress) = read_all(&mut reader, t1 + Duration::from_secs(1));
    assert_eq!(got, [50, 100, 102, 255, 256]);
    assert_eq!((progress.damaged, progress.missing), (RING - 8, 0));
    // After the last sequence comes batch 1 again.
    assert_eq!((reader.caught_up(), reader.torn_behind()), (Ok(true), Ok(0)));
}
proptest::proptest! {
    /// Sixteen slots for a dozen keys: copies are overwritten, doubled and torn all the time.
    #[test]
    fn the_fast_query_is_the_plain_one(
        writes in proptest::collection::vec((0u32..12, 0u8..3, 0usize..5, proptest::option::of((0u64..256, 0u8..))), 0..40),
        redundancy in 1u8..=4, least in 1u8..=4,
    ) {
        use layout::key_write::{CombinedCopies, Choice, combine_copies, verified_value, slot_offset};
        let store = store(StoreKind::KeyWrite { slots: 16, value_len: 12, redundancy, keys: Default::default() });
        for (k, value, which, damage) in writes {
            write(&store, &key(k), &[value; 12], |n| n == which || which == 4);
            if let Some((at, byte)) = damage {
                store.region.write(at, &[byte]).unwrap();
            }
        }
        let keys: Vec<Key> = (0..14).map(key).collect();
        for policy in [Choice::First, Choice::Plurality, Choice::AtLeast(least)] {
            let mut answers = vec![key_write::KeyWriteReading::default(); keys.len()];
            let mut values = vec![0; 12 * keys.len()];
            let reader = key_write::KeyWriteReader::new(&store).unwrap();
            reader.query_keys(&keys, policy, &mut answers, &mut values).unwrap();
            for ((key, answer), value) in keys.iter().zip(answers).zip(values.chunks(12)) {
                let copies: Vec<[u8; 16]> = hash::key_slots(key, redundancy, 16)
                    .iter()
                    .map(|slot| {
                        let mut copy = [0; 16];
                        store.region.read(slot_offset(*slot, 12), &mut copy).unwrap();
                        copy
                    })
                    .collect();
                let found: Vec<Option<&[u8]>> = copies.iter().map(|copy| verified_value(copy, key)).collect();
                let plain = combine_copies(policy, &found);
                let fast = match (answer.found, answer.agreeing) {
                    (true, _) => CombinedCopies::Found { value, agreeing: answer.agreeing, differing: answer.differing },
                    (false, 0) => CombinedCopies::Absent,
                    (false, _) => CombinedCopies::Undecided { agreeing: answer.agreeing, differing: answer.differing },
                };
                proptest::prop_assert_eq!(fast, plain);
            }
        }
    }
}
