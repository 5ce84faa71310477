//! Stores: regions with a meaning. [`load`] measures how full one is; [`reader`](crate::reader) answers from them.
//!
//! A store's memory can be replaced while it is in use ([`ServedStores::replace_memory`]). [`ServedStores`] returns the current
//! memory, which its holder may use for as long as it wants: memory is freed once nobody, including the NIC, holds it.

pub mod load;

#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use dta_proto::store::StoreSpec;
use dta_proto::telemetry;
use dta_proto::wire::dta::Primitive;

use crate::region::{AccessError, Region, RegionError, RegionHeader, RegionOptions};

/// Where the memory of stores comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryBacking {
    Anonymous,
    /// A directory of named region files, which survive a restart.
    Directory(PathBuf),
}

impl FromStr for MemoryBacking {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "" => Err("must be \"anonymous\" or a directory".into()),
            "anonymous" => Ok(Self::Anonymous),
            dir => Ok(Self::Directory(dir.into())),
        }
    }
}

/// A store: its description and its current memory.
#[derive(Clone, Debug)]
pub struct Store {
    pub spec: StoreSpec,
    pub region: Arc<Region>,
    /// Increases whenever the store's memory is replaced; every answer carries it.
    pub generation: u64,
}

impl Store {
    /// Opens the store's memory, or creates it.
    pub fn open(
        spec: &StoreSpec,
        memory: &MemoryBacking,
        options: RegionOptions,
    ) -> Result<Self, RegionError> {
        let header = RegionHeader::new(spec.clone());
        let region = match memory {
            MemoryBacking::Anonymous => anonymous(&header, options)?,
            MemoryBacking::Directory(dir) => {
                Region::open_or_create(region_path(dir, &spec.name), &header, options)?
            }
        };
        let generation = region.file_header().map_or(header.generation, |h| h.generation);
        Ok(Self { spec: spec.clone(), region: Arc::new(region), generation })
    }

    /// The error that a reader went beyond this store's region.
    pub fn outside_region(&self, source: AccessError) -> MemoryError {
        MemoryError { store: self.spec.name.clone(), source }
    }

    /// The same store with a few elements of another time, in a `region` of the store's length.
    pub fn of_elements(&self, region: Region, generation: u64) -> Self {
        Self { spec: self.spec.clone(), region: Arc::new(region), generation }
    }
}

/// Memory for a store's next generation, all zero and not yet used by anybody. In a directory, it has a file beside the region
/// file.
#[derive(Debug)]
pub struct Successor {
    header: RegionHeader,
    region: Region,
}

impl Successor {
    pub fn generation(&self) -> u64 {
        self.header.generation
    }
}

/// A store's memory is shorter than its description says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory of store {store:?} is shorter than its description says ({source}); restart the collector; if \
     that does not help, move the store's region file away first: the store then starts empty"
)]
pub struct MemoryError {
    pub store: String,
    pub source: AccessError,
}

fn anonymous(header: &RegionHeader, options: RegionOptions) -> Result<Region, RegionError> {
    Region::anonymous(header.spec.region_len(), header.iova, options)
}

pub fn region_path(directory: &Path, store: &str) -> PathBuf {
    directory.join(format!("{store}.region"))
}

/// The region file of a former generation, in a memory directory.
pub fn former_path(directory: &Path, store: &str, generation: u64) -> PathBuf {
    directory.join(format!("{store}.region-{generation}"))
}

/// All stores of a collector, in the order of its configuration, followed by those added later.
#[derive(Debug)]
pub struct ServedStores {
    /// Each store with its current memory. Locked only to copy or replace the pointer.
    now: RwLock<Arc<[Arc<Store>]>>,
    memory: MemoryBacking,
    options: RegionOptions,
    /// Held while memory is created, so that changes happen one after another.
    changing: Mutex<()>,
}

/// Why a store's memory was not replaced. The store keeps its memory.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Region(#[from] RegionError),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No store with that name.
    #[error("there is no store {name:?}; this collector has {have}")]
    Unknown {
        name: String,
        /// The existing names, with their kinds.
        have: String,
    },
    /// The store is of another kind.
    #[error("store {name:?} is for {is}; stores for {wanted} are here: {have}")]
    Kind {
        name: String,
        is: Primitive,
        wanted: Primitive,
        /// Names of stores of that kind.
        have: String,
    },
    /// No name was given, and there is not exactly one candidate.
    #[error("name the {wanted} store to ask: this collector has {have}")]
    Ambiguous {
        wanted: Primitive,
        /// Names of stores of that kind.
        have: String,
    },
}

impl ServedStores {
    pub fn open(
        specs: &[StoreSpec],
        memory: &MemoryBacking,
        options: RegionOptions,
    ) -> Result<Self, RegionError> {
        let stores: Vec<Store> =
            specs.iter().map(|spec| Store::open(spec, memory, options)).collect::<Result<_, _>>()?;
        // All at once; one by one, each would take the time of all before it.
        Region::look_up_pages(stores.iter().map(|store| &*store.region));
        Ok(Self { memory: memory.clone(), options, ..stores.into_iter().collect() })
    }

    /// All stores with their current memory, in the order of the configuration.
    pub fn current_stores(&self) -> Arc<[Arc<Store>]> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Requires that the caller holds `changing`.
    fn set(&self, stores: impl Iterator<Item = Arc<Store>>) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = stores.collect();
    }

    /// Puts `store` in place of the one with its id. Requires that the caller holds `changing`.
    fn swap_store(&self, store: &Arc<Store>) {
        let same = |old: &Arc<Store>| old.spec.id == store.spec.id;
        self.set(self.current_stores().iter().map(|old| Arc::clone(if same(old) { store } else { old })));
    }

    /// Opens or creates further stores: either all of them are added, or none.
    ///
    /// # Errors
    /// There is no memory for one of them. What was created for the others is removed.
    pub fn add(&self, specs: &[StoreSpec]) -> Result<(), RegionError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stores: Vec<Store> = Vec::new();
        for spec in specs {
            match Store::open(spec, &self.memory, self.options) {
                Ok(store) => stores.push(store),
                Err(error) => {
                    stores.iter().for_each(|store| self.take_back(store));
                    return Err(error);
                }
            }
        }
        Region::look_up_pages(stores.iter().map(|store| &*store.region));
        self.set(self.current_stores().iter().cloned().chain(stores.into_iter().map(Arc::new)));
        Ok(())
    }

    /// Removes the region file of a store that was created but is not needed after all. A file that existed before stays.
    fn take_back(&self, store: &Store) {
        if let (MemoryBacking::Directory(dir), false) = (&self.memory, store.region.is_preexisting())
            && let Err(error) = std::fs::remove_file(region_path(dir, &store.spec.name))
        {
            tracing::warn!(%error, store = %store.spec.name, "cannot remove a region file that is not needed");
        }
    }

    /// Makes memory to give to a store with [`ServedStores::replace_memory`]: of the same layout, all zero, at another address on
    /// the wire.
    ///
    /// # Errors
    /// There is no such store, or no memory for it.
    pub fn successor(&self, name: &str) -> Result<Successor, ReplaceError> {
        let store = self.get(name)?;
        let header = RegionHeader::of_generation(store.spec.clone(), store.generation + 1);
        let region = match &self.memory {
            MemoryBacking::Anonymous => anonymous(&header, self.options)?,
            MemoryBacking::Directory(dir) => {
                Region::successor(region_path(dir, name), &header, self.options)?
            }
        };
        Ok(Successor { header, region })
    }

    /// Gives a store its successor's memory: whoever asks for the store from now on gets that. Translators go on writing to the
    /// former memory until they renew their sessions. In a directory, the former memory's file is kept under the name
    /// [`former_path`] if `keep` is set; otherwise it is gone once nobody has it open.
    ///
    /// # Errors
    /// There is no such store, or its file cannot be replaced.
    pub fn replace_memory(&self, successor: Successor, keep: bool) -> Result<Arc<Store>, ReplaceError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Successor { header: RegionHeader { spec, generation, .. }, mut region } = successor;
        let former = self.get(&spec.name)?;
        if let MemoryBacking::Directory(dir) = &self.memory {
            let kept = keep.then(|| former_path(dir, &spec.name, former.generation));
            region.replace_region_file(&region_path(dir, &spec.name), kept.as_deref())?;
        }
        let store = Arc::new(Store { region: Arc::new(region), generation, spec });
        self.swap_store(&store);
        Ok(store)
    }

    pub fn memory_backing(&self) -> &MemoryBacking {
        &self.memory
    }

    /// Checks whether another file has replaced a region file, and continues with that one. For readers beside a collector.
    pub fn follow_files(&self) -> Result<(), RegionError> {
        for store in self.current_stores().iter() {
            if let Some(region) = store.region.open_replacement()?
                && let Some(header) = region.file_header()
                && header.spec == store.spec
            {
                let (spec, generation) = (header.spec.clone(), header.generation);
                let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
                self.swap_store(&Arc::new(Store { spec, region: Arc::new(region), generation }));
            }
        }
        Ok(())
    }

    /// The store with this name or id ([`dta_proto::store::find_store`]).
    pub fn get(&self, name: &str) -> Result<Arc<Store>, StoreError> {
        let all = self.current_stores();
        let found = dta_proto::store::find_store(all.iter(), |store| &store.spec, name);
        found.cloned().ok_or_else(|| StoreError::Unknown {
            name: name.to_owned(),
            have: join_names(
                all.iter().map(|store| format!("{} ({})", store.spec.name, store.spec.primitive())),
            ),
        })
    }

    /// The store with this name (or id) and primitive; without a name, the only one of that primitive, not counting INT stores
    /// ([`telemetry::is_telemetry_store`]).
    pub fn of_primitive(&self, name: &str, wanted: Primitive) -> Result<Arc<Store>, StoreError> {
        let stores = self.current_stores();
        let candidates = || stores.iter().filter(|s| s.spec.kind.primitive() == wanted);
        let have = || join_names(candidates().map(|s| s.spec.name.clone()));
        if name.is_empty() {
            let mut all = candidates().filter(|store| !telemetry::is_telemetry_store(&store.spec.name));
            return match (all.next(), all.next()) {
                (Some(store), None) => Ok(Arc::clone(store)),
                _ => Err(StoreError::Ambiguous { wanted, have: have() }),
            };
        }
        let store = self.get(name)?;
        let is = store.spec.kind.primitive();
        if is == wanted {
            Ok(store)
        } else {
            Err(StoreError::Kind { name: store.spec.name.clone(), is, wanted, have: have() })
        }
    }
}

fn join_names(names: impl Iterator<Item = String>) -> String {
    let names = names.collect::<Vec<_>>().join(", ");
    if names.is_empty() { "none".into() } else { names }
}

/// Their successors ([`ServedStores::successor`]) are anonymous memory.
impl FromIterator<Store> for ServedStores {
    fn from_iter<T: IntoIterator<Item = Store>>(stores: T) -> Self {
        Self {
            now: RwLock::new(stores.into_iter().map(Arc::new).collect()),
            memory: MemoryBacking::Anonymous,
            options: RegionOptions::default(),
            changing: Mutex::new(()),
        }
    }
}
