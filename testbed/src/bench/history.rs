//! What history costs: writing an epoch, how much that slows the NIC and queries, and asking about a moment.

use std::cell::RefCell;
use std::hint::black_box;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use dta_collector::epochs::{Pace, read_elements};
use dta_history::{EpochTable, HistoryEpoch};
use dta_memory::store::Store;
use dta_proto::layout::hash;
use dta_proto::random::SplitMix64;
use tokio::sync::watch;

use super::harness::{
    Rates, Scale, Share, measure_rates, measure_shares, pin_to_allowed_cpu, pin_to_current_cpu,
    thread_cpu_time,
};
use super::key_write_bench::BATCH;
use super::query::{self, Queries, key_from_number};
use super::write_bench::{ELEMENT, WriteBench};

/// Milliseconds of an epoch in the benchmarks of queries, and of an hour.
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// Keys of each of these epochs.
const KEYS: u64 = 5_000;
/// NIC frames per call: a millisecond or two.
const FRAMES: u64 = 32_768;
/// Why the calls that are measured cannot fail.
const WRITABLE: &str = "the folder of temporary files takes an epoch";

/// Writes epochs of a store that is a third full, without pauses. The floor reads the region, compresses its used slots at zstd's level 1,
/// and syncs them to disk. Used slots per second of CPU time.
pub(super) fn bench_epoch_writes(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let folder = tempfile::tempdir()?;
    let store = used_by_a_third(scale.memory / ELEMENT as u64)?;
    let work = || {
        let start = thread_cpu_time();
        let used = write_epoch(folder.path(), &store, Duration::ZERO).expect(WRITABLE);
        (used, thread_cpu_time().saturating_sub(start))
    };
    let floor = |_| {
        let start = thread_cpu_time();
        let used = compress_used_slots(folder.path(), &store).expect(WRITABLE);
        (used, thread_cpu_time().saturating_sub(start))
    };
    Ok(measure_shares(scale, work, floor))
}

/// The NIC while another thread writes epochs of other memory, compared with the NIC alone.
pub(super) fn bench_nic_during_writes(scale: &Scale) -> anyhow::Result<Rates> {
    let mut bench = WriteBench::new(scale.memory, BATCH)?;
    measure_during_writes(scale, || bench.run(FRAMES))
}

/// Key-write queries in the same way.
pub(super) fn bench_queries_during_writes(scale: &Scale) -> anyhow::Result<Rates> {
    let mut queries = Queries::new(scale)?;
    measure_during_writes(scale, || {
        let start = thread_cpu_time();
        (queries.query_next_keys(), thread_cpu_time().saturating_sub(start))
    })
}

/// Work while another thread writes epochs of 16 MiB, one after another and at the collector's pace, and the same work
/// while it waits.
fn measure_during_writes(scale: &Scale, work: impl FnMut() -> Share) -> anyhow::Result<Rates> {
    pin_to_allowed_cpu(0);
    let folder = tempfile::tempdir()?;
    let store = used_by_a_third(1 << 20)?;
    let (work, may_write, end) = (RefCell::new(work), Mutex::new(()), AtomicBool::new(false));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            pin_to_allowed_cpu(1);
            while !end.load(Ordering::Relaxed) {
                let writes = may_write.lock();
                write_epoch(folder.path(), &store, Duration::MAX)?;
                drop(writes);
                // Lets the other thread take the lock.
                thread::sleep(Duration::from_micros(100));
            }
            anyhow::Ok(())
        });
        // Held from the first call of a turn without writes to its last.
        let held = RefCell::new(None);
        let with = || {
            held.take();
            (work.borrow_mut())()
        };
        let without = |_| {
            held.borrow_mut().get_or_insert_with(|| may_write.lock());
            (work.borrow_mut())()
        };
        let rates = measure_shares(scale, with, without);
        end.store(true, Ordering::Relaxed);
        held.take();
        writer.join().map_err(|_| anyhow::anyhow!("the writer of epochs panicked"))??;
        Ok(rates)
    })
}

/// Single keys at random moments in a table of 24 hours of one-minute epochs, each hour compacted into a file. The floor
/// is the same with a table of one epoch.
pub(super) fn bench_key_lookups(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let (day, one) = (MinuteEpochTable::new(epoch_range(scale))?, MinuteEpochTable::new(0..1)?);
    let (mut random, mut first) = (SplitMix64(3), SplitMix64(4));
    Ok(measure_rates(
        scale,
        || day.query_random_keys(&mut random, 64),
        || one.query_random_keys(&mut first, 64),
    ))
}

/// One key's series over an hour of epochs, compared with as many questions about one moment. Epochs per second.
pub(super) fn bench_key_series(scale: &Scale) -> anyhow::Result<Rates> {
    pin_to_current_cpu();
    let kept = MinuteEpochTable::new(0..60)?;
    let (mut random, mut one) = (SplitMix64(3), SplitMix64(4));
    Ok(measure_rates(
        scale,
        || kept.query_random_series(&mut random),
        || kept.query_random_keys(&mut one, kept.epochs.end),
    ))
}

/// Epochs of a day, or of two hours in a quick run.
fn epoch_range(scale: &Scale) -> Range<u64> {
    0..if scale.memory < Scale::FULL.memory { 120 } else { 24 * 60 }
}

/// A table of one-minute epochs, with one file per hour.
struct MinuteEpochTable {
    _folder: tempfile::TempDir,
    table: EpochTable,
    epochs: Range<u64>,
}

impl MinuteEpochTable {
    fn new(epochs: Range<u64>) -> anyhow::Result<MinuteEpochTable> {
        let folder = tempfile::tempdir()?;
        let store = query::filled_store(1 << 17, KEYS, random_value)?;
        let table = EpochTable::open(folder.path(), &store.spec)?;
        for number in epochs.clone() {
            put_epoch(&table, &store, number, Duration::ZERO)?;
            if number % 60 == 59 {
                let hour = number / 60 * HOUR;
                ensure!(table.compact_span(hour..hour + HOUR)?.is_some(), "an hour was not compacted");
            }
        }
        Ok(MinuteEpochTable { _folder: folder, table, epochs })
    }

    /// Asks about random keys at random moments.
    fn query_random_keys(&self, random: &mut SplitMix64, times: u64) -> u64 {
        let spec = self.table.store_spec();
        let mut elements = [0; 2 * ELEMENT];
        for _ in 0..times {
            let moment = random.next_u64() % self.epochs.end * MINUTE + 1;
            let slots = hash::key_slots(&key_from_number(random.next_u64() % KEYS), 2, spec.element_count());
            let kept = self
                .table
                .epoch_at_moment(moment)
                .expect("its log can be read")
                .expect("all moments are kept");
            self.table.read_slots(kept.epoch.number, &slots, &mut elements).expect("its files can be read");
            black_box(&elements);
        }
        times
    }

    /// Asks about a random key in all epochs.
    fn query_random_series(&self, random: &mut SplitMix64) -> u64 {
        let slots = hash::key_slots(
            &key_from_number(random.next_u64() % KEYS),
            2,
            self.table.store_spec().element_count(),
        );
        let epochs: Vec<u64> = self.epochs.clone().collect();
        let mut elements = vec![0; epochs.len() * 2 * ELEMENT];
        self.table.read_slot_series(&epochs, &slots, &mut elements).expect("its files can be read");
        black_box(&elements);
        self.epochs.end
    }
}

/// A store that is a third full with two copies of each of `slots / 5` keys: 1 - exp(-2 * 0.2).
fn used_by_a_third(slots: u64) -> anyhow::Result<Store> {
    query::filled_store(slots, slots / 5, random_value)
}

fn random_value(number: u64) -> [u8; 12] {
    let drawn = SplitMix64(number).next_u64().to_be_bytes();
    std::array::from_fn(|n| drawn[n % drawn.len()])
}

/// Writes epoch `number`, a minute long, to a table, pausing for `pauses` at most. Returns its used slots.
fn put_epoch(table: &EpochTable, store: &Store, number: u64, pauses: Duration) -> anyhow::Result<u64> {
    let opened = number * MINUTE;
    let (mut pace, mut flush) = (Pace::new(pauses, &watch::channel(false).1), table.begin_epoch(number)?);
    read_elements(store, |first, bytes| {
        pace.rest_if_due();
        anyhow::Ok(flush.write_slots(first, bytes)?)
    })?;
    let written = flush.finish(&HistoryEpoch {
        number,
        generation: number,
        opened,
        flipped_from: opened + MINUTE - 1,
        flipped_to: opened + MINUTE - 1,
        confirmed: true,
        ..HistoryEpoch::default()
    })?;
    Ok(written.rows)
}

/// Writes an epoch to a table of its own, then removes the table.
fn write_epoch(folder: &Path, store: &Store, pauses: Duration) -> anyhow::Result<u64> {
    let rows = put_epoch(&EpochTable::open(folder, &store.spec)?, store, 1, pauses)?;
    std::fs::remove_dir_all(folder.join(&store.spec.name))?;
    Ok(rows)
}

/// Compresses the used slots and syncs them to disk. Returns how many there are.
fn compress_used_slots(folder: &Path, store: &Store) -> anyhow::Result<u64> {
    let path = folder.join("floor.zst");
    let mut to = zstd::Encoder::new(std::fs::File::create(&path)?, 1)?;
    let mut used = 0;
    read_elements(store, |_, bytes| {
        for element in bytes.chunks_exact(ELEMENT).filter(|element| element.iter().any(|byte| *byte != 0)) {
            to.write_all(element)?;
            used += 1;
        }
        anyhow::Ok(())
    })?;
    to.finish()?.sync_all()?;
    std::fs::remove_file(path)?;
    Ok(used)
}
