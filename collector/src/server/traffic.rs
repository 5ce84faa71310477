//! Follows this collector's own flow records for [sums of traffic](dta_export::traffic), reading their lists
//! like any other reader, on threads that may block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dta_export::metrics::MetricsPage;
use dta_export::names::Names;
use dta_export::traffic::{MissedBatches, Traffic};
use dta_files::moment::now_ns;
use dta_memory::reader::append::ReadStart;
use dta_memory::reader::flow_scan::tally_flows;
use dta_memory::store::{ServedStores, Store};
use dta_proto::flow_query::{FLOW_COLUMNS, FlowQuestion, FlowSum, flow_from_values};

use super::list_follower::ListFollower;

/// How often the lists are read.
const EVERY: Duration = Duration::from_secs(1);
/// The same, while a list brings more than a quarter of its ring each time.
const EVERY_WHEN_BUSY: Duration = Duration::from_millis(50);
/// Batches read while the sums are locked.
const BATCHES: u64 = 256;
/// How often the largest flows are searched for while somebody reads the sums.
const LARGEST_EVERY: Duration = Duration::from_secs(10);
/// The time over which flows are compared for the largest ones.
const LARGEST_WITHIN: Duration = Duration::from_secs(60);
/// Largest flows are searched for until nobody has read them for this long: twice the usual interval of scrapes.
const READERS_GONE: Duration = Duration::from_secs(120);

/// Sums over a store's records, kept up to date until this is dropped.
#[derive(Debug)]
pub(super) struct TrafficFollower {
    shared: Arc<SharedTraffic>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug, Default)]
struct SharedTraffic {
    traffic: Mutex<Traffic>,
    /// Whether the sums were read since this was last asked.
    is_read: AtomicBool,
}

impl SharedTraffic {
    /// Safe even after a panic: each change is a single step.
    fn lock(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrafficFollower {
    /// Starts following a store of flow records: all of new memory, but in memory of an earlier run only what
    /// comes from now on. Finds the `largest` largest flows. Needs a tokio runtime.
    pub(super) fn start(stores: Arc<ServedStores>, store: Arc<Store>, largest: usize) -> Self {
        let shared = Arc::new(SharedTraffic::default());
        let following = shared.clone();
        let task = tokio::spawn(async move {
            let mut reader = RecordReader::new(stores, store, largest);
            loop {
                let shared = following.clone();
                let read = tokio::task::spawn_blocking(move || {
                    let pause = reader.read_new_records(&shared);
                    reader.find_largest_flows(&shared);
                    (reader, pause)
                });
                let pause;
                // Fails after a panic, or when the runtime ends.
                (reader, pause) = match read.await {
                    Ok(read) => read,
                    Err(error) => return tracing::error!(%error, "traffic sums are no longer updated"),
                };
                tokio::time::sleep(pause).await;
            }
        });
        Self { shared, task }
    }

    /// See [`Traffic::add_to_page`].
    pub(super) fn add_to_page(
        &self,
        page: &mut MetricsPage,
        names: &Names,
        reported_name: &dyn Fn(u32, u32) -> Option<String>,
    ) {
        self.shared.is_read.store(true, Ordering::Relaxed);
        self.shared.lock().add_to_page(page, names, reported_name);
    }
}

impl Drop for TrafficFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct RecordReader {
    follower: ListFollower,
    largest: usize,
    looked: Option<Instant>,
    /// When somebody was last noticed reading the sums.
    read: Option<Instant>,
}

impl RecordReader {
    fn new(stores: Arc<ServedStores>, store: Arc<Store>, largest: usize) -> Self {
        let follower = ListFollower::new(stores, store, |_| ReadStart::Next, "sums of traffic");
        Self { follower, largest, looked: None, read: None }
    }

    /// Adds what is new in all lists; returns how long to wait for more.
    fn read_new_records(&mut self, shared: &SharedTraffic) -> Duration {
        let is_busy = self.follower.read_new_batches(BATCHES, |_, reader| {
            let mut traffic = shared.lock();
            let progress = reader.read(BATCHES, Instant::now(), |_, entries| traffic.add_entries(entries))?;
            traffic.count_missed(MissedBatches {
                overwritten: progress.overwritten,
                missing: progress.missing,
                damaged: progress.damaged,
            });
            Ok(progress)
        });
        if is_busy { EVERY_WHEN_BUSY } else { EVERY }
    }

    /// Looks for the largest flows if it is time and somebody reads them.
    fn find_largest_flows(&mut self, shared: &SharedTraffic) {
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= LARGEST_EVERY);
        if self.largest == 0 || !is_due {
            return;
        }
        if shared.is_read.swap(false, Ordering::Relaxed) {
            self.read = Some(Instant::now());
        }
        // Nobody reads them. Those of an earlier minute must be gone when somebody does.
        if self.read.is_none_or(|read| read.elapsed() >= READERS_GONE) {
            shared.lock().set_largest_flows(Vec::new());
            return;
        }
        let question = FlowQuestion {
            group: FLOW_COLUMNS.iter().collect(),
            since: now_ns().saturating_sub(LARGEST_WITHIN.as_nanos() as u64),
            ..FlowQuestion::default()
        };
        // One thread is enough: nobody waits for it.
        let rows = tally_flows(self.follower.store(), &question, false, 1)
            .map_or(Vec::new(), |(tally, _)| tally.rank_groups(FlowSum::Bytes, self.largest).rows);
        let flow = |row: &dta_proto::flow_query::FlowRow| Some((flow_from_values(&row.values)?, row.sums));
        shared.lock().set_largest_flows(rows.iter().filter_map(flow).collect());
        self.looked = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use dta_memory::store::MemoryBacking;
    use dta_proto::flow_record::{self, FlowRecord};
    use dta_proto::layout::append::{batch_offset, encode_batch};
    use dta_proto::store::{StoreKind, StoreSpec};

    use super::*;

    const RING: u64 = 64;

    fn records() -> Arc<ServedStores> {
        let kind = StoreKind::Append {
            lists: 2,
            ring: RING,
            batch_len: 256,
            entry_len: flow_record::ENTRY_LEN as u8,
            notify: false,
        };
        let spec = StoreSpec { id: 1, name: flow_record::STORE.into(), kind };
        Arc::new(ServedStores::open(&[spec], &MemoryBacking::Anonymous, Default::default()).unwrap())
    }

    fn write(store: &Store, list: u32, sequences: std::ops::RangeInclusive<u32>) {
        for sequence in sequences {
            let record = FlowRecord {
                bytes: sequence.into(),
                packets: 1,
                in_if: list + 1,
                src_port: sequence as u16,
                received: now_ns(),
                ..FlowRecord::EMPTY
            };
            let mut batch = [0; 256];
            encode_batch(&mut batch, list, sequence, 1, &record.to_entry());
            store.region.write(batch_offset(list, sequence, RING, 256), &batch).unwrap();
        }
    }

    /// The values of a family's series.
    fn values(shared: &SharedTraffic, family: &str) -> Vec<u64> {
        let mut page = MetricsPage::default();
        shared.lock().add_to_page(&mut page, &Names::empty(), &|_, _| None);
        let families = page.into_families();
        let numbers = families.get(&format!("dta_traffic_{family}")).map(|family| family.series.values());
        numbers.into_iter().flatten().map(|number| number.to_f64() as u64).collect()
    }

    fn total(sequences: std::ops::RangeInclusive<u32>) -> u64 {
        sequences.map(u64::from).sum()
    }

    #[test]
    fn each_record_is_added_once_and_what_was_overwritten_is_counted() {
        let (stores, shared) = (records(), SharedTraffic::default());
        let store = stores.get(flow_record::STORE).unwrap();
        let mut reader = RecordReader::new(stores, store.clone(), 2);
        write(&store, 0, 1..=3);
        assert_eq!(reader.read_new_records(&shared), EVERY);
        assert_eq!(values(&shared, "exporter_bytes"), [total(1..=3)]);
        write(&store, 0, 4..=50);
        write(&store, 1, 1..=20);
        assert_eq!(reader.read_new_records(&shared), EVERY_WHEN_BUSY);
        let sums = total(1..=50) + total(1..=20);
        assert_eq!(values(&shared, "exporter_bytes"), [sums]);
        assert_eq!(reader.read_new_records(&shared), EVERY);
        assert_eq!(values(&shared, "exporter_records"), [70]);
        assert_eq!(values(&shared, "missed_batches"), [0, 0, 0]);
        // The writer is a ring and 10 batches ahead.
        write(&store, 1, 21..=20 + RING as u32 + 10);
        reader.read_new_records(&shared);
        let read = values(&shared, "exporter_records")[0] - 70;
        let [damaged, missing, overwritten] = values(&shared, "missed_batches")[..] else { panic!() };
        assert_eq!((damaged, missing, read + overwritten), (0, 0, RING + 10));
        assert!(overwritten >= 10, "{overwritten}");
    }

    #[test]
    fn other_memory_is_read_from_its_beginning_and_the_former_to_its_end() {
        let (stores, shared) = (records(), SharedTraffic::default());
        let store = stores.get(flow_record::STORE).unwrap();
        let mut reader = RecordReader::new(stores.clone(), store.clone(), 2);
        write(&store, 0, 1..=3);
        reader.read_new_records(&shared);
        let replaced = stores.replace_memory(stores.successor(flow_record::STORE).unwrap(), false).unwrap();
        write(&store, 0, 4..=5);
        write(&replaced, 0, 1..=2);
        reader.read_new_records(&shared);
        reader.read_new_records(&shared);
        assert_eq!(values(&shared, "exporter_bytes"), [total(1..=5) + total(1..=2)]);
    }

    #[test]
    fn the_largest_flows_are_looked_for_when_somebody_reads_them() {
        let (stores, shared) = (records(), SharedTraffic::default());
        let store = stores.get(flow_record::STORE).unwrap();
        let mut reader = RecordReader::new(stores, store.clone(), 2);
        write(&store, 0, 1..=9);
        reader.find_largest_flows(&shared);
        assert_eq!(values(&shared, "largest_flow_bytes"), [0; 0]);
        shared.is_read.store(true, Ordering::Relaxed);
        reader.find_largest_flows(&shared);
        let mut largest = values(&shared, "largest_flow_bytes");
        largest.sort_unstable();
        assert_eq!(largest, [8, 9]);
        // Does not search again before it is time.
        write(&store, 0, 10..=10);
        shared.is_read.store(true, Ordering::Relaxed);
        reader.find_largest_flows(&shared);
        assert!(!values(&shared, "largest_flow_bytes").contains(&10));
    }
}
