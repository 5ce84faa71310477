//! Epochs of stores: keeps what each store held in each span of time.
//!
//! Each store with epochs has a thread that ends its epochs and writes them to its history ([`dta_history`]):
//!
//! - `turn`: key-write and postcarding stores get other memory at an epoch's end, prepared beforehand. Translators
//!   move to it as they renew their sessions. Once none has a key to the former memory, it can no longer change: it is
//!   *sealed*, and is written, and only then freed. So memory has at most three generations of a store: the open one,
//!   one that is being sealed or written, and one that is still unused.
//! - `counters`: key-increment stores are read at an epoch's end, and go on counting.
//! - `sketches`: epochs of sketch-merge stores, numbered by their reporters, are written once they are closed.
//! - `lists`: entries of append stores are read as they come.
//!
//! Answers come from:
//!
//! - [`Epochs::store_at_moment`]: a store as it was at a moment, from memory or from its history;
//!   [`Epochs::earlier_stores`]: as it was before that; [`Epochs::visit_series`]: in one epoch after another.
//! - [`Epochs::list_in_span`]: a list in the epochs of a span.
//! - [`Epochs::list_epochs`]: which epochs a store has.
//!
//! The other modules: `keeper`, what all these threads have in common; `write`, writes an epoch into the history, and
//! `pace`, how fast; `typed`, what stores for INT held, in named columns, `events`, the same for lists, and
//! `key_directory`, for which keys; `thin`, the thread that keeps histories small; `upload`, copies to object storage,
//! `insert`, rows for ClickHouse, and `follow`, what these two share; `due`, clocks; `waterfall`, what happened to an
//! epoch's reports; `journal`, the file that tells the next start when the epochs in memory began; `elements`, a
//! store's memory as slots, and slots as a store.

mod counters;
mod due;
mod elements;
mod entries;
mod events;
mod follow;
mod insert;
mod journal;
mod keeper;
mod key_directory;
mod known_epochs;
mod lists;
mod look_back;
mod moment;
mod pace;
mod series;
mod sketches;
#[cfg(test)]
mod tests;
mod thin;
mod turn;
mod typed;
#[cfg(feature = "s3")]
mod upload;
mod waterfall;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dta_files::moment::now;
use dta_history::clickhouse::{ClickHouseError, ClickHouseServer};
use dta_history::{EpochTable, HistoryError};
use dta_memory::region::RegionError;
use dta_memory::store::{MemoryBacking, ServedStores, Store, StoreError};
use dta_proto::counter::collector as names;
use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::EpochEnd;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::session::Writers;
use due::Began;
use keeper::EpochArchiver;
use key_directory::KeyDirectory;
use thin::Thinner;
use typed::Typed;

pub use elements::read as read_elements;
pub use entries::{ListThen, OpenList};
pub use look_back::EarlierStore;
pub use moment::MomentError;
pub use pace::Pace;

/// For a store that gets other memory at an epoch's end, the most generations in memory.
const GENERATIONS: u64 = 3;

/// Bytes of memory that a store takes in all of its generations.
pub fn memory_len(store: &StoreSpec, has_epochs: bool) -> u64 {
    let replaces = store.kind.primitive().epoch_end() == EpochEnd::Replaces;
    store.region_len().saturating_mul(if has_epochs && replaces { GENERATIONS } else { 1 })
}

/// A node, and its counters by name.
pub type Counted = (String, Vec<(String, u64)>);

/// What epochs need to know about those who write to stores.
pub trait StoreTraffic: Send + Sync {
    /// Whether anybody may still write to a generation of a store's memory.
    fn store_writers(&self, store: &str, generation: u64) -> Writers;

    /// Announces that a generation of a store's memory begins to be written at this moment, in milliseconds
    /// since 1970. Called before anybody gets a key to it.
    fn begin_generation(&self, store: &str, generation: u64, at: u64);

    /// Whether others take over what this collector holds while it is down.
    fn is_taken_over(&self) -> bool {
        false
    }

    /// The counters of all nodes: translators, reporters and the NIC.
    fn node_counters(&self) -> Vec<Counted>;
}

/// Why the epochs of a store cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum EpochsError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    History(#[from] HistoryError),
    /// Memory of an earlier run cannot be opened.
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Journal(#[from] journal::JournalError),
    /// Object storage cannot take copies of histories.
    #[cfg(feature = "s3")]
    #[error("history.url: {0}")]
    Upload(#[from] dta_history::s3::S3Error),
    #[cfg(not(feature = "s3"))]
    #[error(
        "history.url is {0:?}, but this program was built without object storage: build it with `--features dta-collector/s3`"
    )]
    NoUpload(String),
    #[error("history.clickhouse: {0}")]
    Insert(#[from] ClickHouseError),
    #[error("cannot start a thread for epochs: {0}")]
    Thread(std::io::Error),
}

/// What is kept, and where.
#[derive(Clone, Debug)]
pub struct Keep {
    /// Folder of the histories, with one table for each store.
    pub directory: PathBuf,
    /// Place in object storage for a copy of them.
    pub url: Option<String>,
    /// A ClickHouse database that gets their rows.
    pub clickhouse: Option<Arc<ClickHouseServer>>,
    /// Epochs that ended longer ago than this are removed.
    pub keep: Option<Duration>,
    /// Bytes that all histories' data files may take together.
    pub keep_bytes: Option<u64>,
    /// How far questions look back for keys that an epoch has nothing about.
    pub look_back: Duration,
    /// How old epochs are thinned out.
    pub coarse: Option<Coarse>,
    /// How long to try writing an epoch before giving it up.
    pub patience: Duration,
}

/// Thins out old epochs: those opened in one span of `every` become one epoch with what each slot held at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coarse {
    /// How long ago such a span must have ended. If this is `keep` or longer, nothing is thinned out.
    #[serde(with = "dta_files::span")]
    pub after: Duration,
    /// Length of a span; spans begin at multiples of it since 1970.
    #[serde(with = "dta_files::span")]
    pub every: Duration,
}

#[derive(Default)]
pub struct Epochs {
    of: BTreeMap<String, Arc<StoreEpochs>>,
    look_back: Duration,
    threads: Mutex<Vec<JoinHandle<()>>>,
    #[cfg(feature = "s3")]
    uploads: Option<Arc<upload::UploadCounters>>,
    inserts: Option<Arc<insert::InsertCounters>>,
}

struct StoreEpochs {
    name: String,
    every: Duration,
    /// When this collector started, if it found memory of an earlier run.
    restarted: Option<u64>,
    in_memory: Mutex<InMemory>,
    history: EpochTable,
    /// For a store for INT: what it held, in named columns.
    typed: Vec<Typed>,
    counters: Counters,
    /// Whether the history has grown since the thinner last looked.
    grown: AtomicBool,
}

/// A store's epochs that are in memory.
struct InMemory {
    /// The epoch being written now, and when it began. For counters, sketches and lists: what is in no history yet.
    open: (Arc<Store>, Began),
    /// Epochs that are over but not in the history yet, oldest first.
    former: Vec<FormerEpoch>,
}

#[derive(Clone)]
struct FormerEpoch {
    store: Arc<Store>,
    /// When it began and when the next one began, in milliseconds since 1970.
    opened: u64,
    closed: u64,
    since: Instant,
    /// The file that holds only this epoch.
    file: Option<PathBuf>,
    /// Whether it was over before this collector started.
    found: bool,
}

dta_proto::shared_counters! {
    struct Counters {
        sealed = names::EPOCHS_SEALED,
        written = names::EPOCHS_WRITTEN,
        put_off = names::EPOCHS_PUT_OFF,
        lost = names::EPOCHS_LOST,
        failed = names::EPOCHS_FAILED,
        overwritten = names::EPOCHS_OVERWRITTEN,
        damaged = names::EPOCHS_DAMAGED,
    }
}

impl Epochs {
    /// Begins the epochs of the stores in `every`, by name, after writing what an earlier run left. Ends when
    /// `stop` becomes true.
    ///
    /// # Errors
    /// A store's history cannot be opened or belongs to another store; object storage refuses copies; or
    /// ClickHouse refuses rows.
    pub fn start(
        stores: &Arc<ServedStores>,
        every: &BTreeMap<String, Duration>,
        keep: &Keep,
        traffic: &Arc<dyn StoreTraffic>,
        stop: &watch::Receiver<bool>,
    ) -> Result<Epochs, EpochsError> {
        #[cfg(feature = "s3")]
        let bucket = keep.url.as_deref().map(|url| upload::open(url, stop)).transpose()?;
        #[cfg(not(feature = "s3"))]
        if let Some(url) = &keep.url {
            return Err(EpochsError::NoUpload(url.clone()));
        }
        keep.clickhouse.as_deref().map_or(Ok(()), insert::check_server)?;
        let mut epochs = Epochs { look_back: keep.look_back, ..Epochs::default() };
        for (name, every) in every {
            let open = stores.get(name)?;
            let span = thin::compaction_span(keep, &open.spec);
            let history = EpochTable::open(&keep.directory, &open.spec)?.with_unchanged_epochs(span);
            let typed = Typed::open(&keep.directory, &open.spec, span)?;
            let restarted = open.region.is_preexisting().then(now);
            let in_memory = match open.spec.kind.primitive().epoch_end() {
                EpochEnd::Replaces => find_in_memory(stores.memory_backing(), open)?,
                EpochEnd::Reads | EpochEnd::Closes | EpochEnd::Collects => {
                    let began = match open.region.is_preexisting() {
                        true => Began::from_moment(keeper::history_end(&history)?),
                        false => Began::now(),
                    };
                    InMemory { open: (open, began), former: Vec::new() }
                }
            };
            let of = StoreEpochs {
                name: name.clone(),
                every: *every,
                restarted,
                in_memory: Mutex::new(in_memory),
                history,
                typed,
                counters: Counters::default(),
                // What is already there may be old by now.
                grown: AtomicBool::new(true),
            };
            epochs.of.insert(name.clone(), Arc::new(of));
        }
        let known = Arc::new(Mutex::new(KeyDirectory::default()));
        for of in epochs.of.values() {
            let known = known.clone();
            let (of, stores, traffic, stop) = (of.clone(), stores.clone(), traffic.clone(), stop.clone());
            let keeper = EpochArchiver { of, stores, known, traffic, patience: keep.patience, stop };
            let replaces = keeper.of.history.store_spec().kind.primitive().epoch_end() == EpochEnd::Replaces;
            if replaces && keeper.traffic.is_taken_over() {
                turn::end_overdue_epoch(&keeper);
            }
            epochs.spawn_thread(&format!("epochs {}", keeper.of.name), move || keeper.run())?;
        }
        if !epochs.of.is_empty() {
            let thinner = Thinner::new(epochs.of.values().cloned().collect(), keep.clone(), stop.clone())?;
            epochs.spawn_thread("epochs' histories", move || thinner.run())?;
        }
        #[cfg(feature = "s3")]
        if let Some(bucket) = bucket {
            let uploader = upload::Uploader::new(bucket, epochs.of.values().cloned().collect(), stop.clone());
            epochs.uploads = Some(uploader.shared_counters());
            epochs.spawn_thread("epochs' copies", move || uploader.run())?;
        }
        if let Some(server) = &keep.clickhouse {
            let inserts = insert::Inserts::new(server, epochs.of.values().cloned().collect(), stop.clone());
            epochs.inserts = Some(inserts.shared_counters());
            // Nobody waits for it to end: a request cannot be cut off; the next start resends what was not answered.
            let thread = std::thread::Builder::new().name("epochs' inserts".to_owned());
            thread.spawn(move || inserts.run()).map_err(EpochsError::Thread)?;
        }
        Ok(epochs)
    }

    fn spawn_thread(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), EpochsError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(EpochsError::Thread)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// What happened to epochs since the start, over all stores. docs/counters.md explains the names.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        let each = self.of.values().map(|store| store.counters.named_counters());
        let own = each.reduce(|mut sums, more| {
            sums.iter_mut().zip(more).for_each(|((_, sum), (_, count))| *sum += count);
            sums
        });
        let Some(own) = own else { return Vec::new() };
        #[cfg(feature = "s3")]
        let uploads = self.uploads.iter().flat_map(|uploads| uploads.named_counters());
        #[cfg(not(feature = "s3"))]
        let uploads = [];
        let inserts = self.inserts.iter().flat_map(|inserts| inserts.named_counters());
        own.into_iter().chain(uploads).chain(inserts).collect()
    }

    /// Waits for the threads to end, which they do once `stop` is true.
    pub fn join_threads(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::warn!("an epoch thread stopped unexpectedly");
            }
        }
    }
}

impl StoreEpochs {
    fn history_tables(&self) -> impl Iterator<Item = &EpochTable> {
        std::iter::once(&self.history).chain(self.typed.iter().map(|typed| &typed.table))
    }

    fn in_memory(&self) -> MutexGuard<'_, InMemory> {
        self.in_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The epochs in memory at the start: the open one, and those that an earlier run did not manage to write.
fn find_in_memory(memory: &MemoryBacking, open: Arc<Store>) -> Result<InMemory, EpochsError> {
    let MemoryBacking::Directory(dir) = memory else {
        return Ok(InMemory { open: (open, Began::now()), former: Vec::new() });
    };
    let name = open.spec.name.clone();
    let began = journal::read(dir, &name)?;
    let mut former = Vec::new();
    for (generation, file) in former_files(dir, &name) {
        let region = dta_memory::region::Region::open_read_only(&file)?;
        let same = region.file_header().is_some_and(|header| {
            header.spec == open.spec && header.generation == generation && generation < open.generation
        });
        if !same {
            // A second name of the region file, made just before an earlier run ended; or not memory of this store.
            if generation == open.generation {
                let _ = std::fs::remove_file(&file);
            } else {
                tracing::warn!(file = %file.display(), "not a former region of this store: file left in place");
            }
            continue;
        }
        let created = region.file_header().map_or(0, |header| header.created * 1000);
        let store = Arc::new(open.of_elements(region, generation));
        let opened = began.get(&generation).copied().unwrap_or(created);
        former.push(FormerEpoch {
            store,
            opened,
            closed: opened,
            since: Instant::now(),
            file: Some(file),
            found: true,
        });
    }
    former.sort_by_key(|former| former.store.generation);
    let created = open.region.file_header().map_or(0, |header| header.created * 1000);
    // A file created by this start is as old as this start.
    let opened = began.get(&open.generation).copied();
    let opened = opened.unwrap_or_else(|| if open.region.is_preexisting() { created } else { now() });
    let ends: Vec<u64> = former.iter().skip(1).map(|next| next.opened).chain([opened]).collect();
    former.iter_mut().zip(ends).for_each(|(former, end)| former.closed = end.max(former.opened + 1));
    Ok(InMemory { open: (open, Began::from_moment(opened)), former })
}

/// The files of a store's former generations, with their numbers.
fn former_files(dir: &Path, store: &str) -> Vec<(u64, PathBuf)> {
    let begin = format!("{store}.region-");
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix(&begin)?.parse().ok();
    files.filter_map(|file| Some((number(&file.path())?, file.path()))).collect()
}
