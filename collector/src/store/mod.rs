//! Stores: regions with their meaning, and the readers that answer from them.
//!
//! A reader never writes, takes no lock and asks nobody: it copies an element out of memory that a NIC may be writing at that moment,
//! and believes the copy only if its own check says so. One module per kind of store:
//! [`key_write`], [`postcarding`], [`append`], [`key_increment`], [`sketch_merge`]; [`follow`] goes on reading a list; [`load`] tells how full a store is.

pub mod append;
pub mod follow;
mod info;
pub mod key_increment;
pub mod key_write;
pub mod load;
pub mod postcarding;
pub mod sketch_merge;

pub use info::info;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use dta_proto::store::StoreSpec;

use crate::config::Memory;
use crate::region::{AccessError, Region, RegionError, RegionHeader, RegionOptions, iova_for};

/// A store: its description and its memory.
#[derive(Debug)]
pub struct Store {
    /// Its description.
    pub spec: StoreSpec,
    /// Its memory.
    pub region: Arc<Region>,
    /// Rises whenever the store's memory is replaced; every answer carries it.
    pub generation: u64,
}

impl Store {
    /// Opens the store's memory, or makes it.
    pub fn open(spec: &StoreSpec, memory: &Memory, options: RegionOptions) -> Result<Self, RegionError> {
        let (region, generation) = match memory {
            Memory::Anonymous => {
                let len = spec.region_len();
                (Region::anonymous(len, iova_for(spec.id, len), options)?, 1)
            }
            Memory::Directory(dir) => {
                let region = Region::open_or_create(
                    region_path(dir, &spec.name),
                    &RegionHeader::new(spec.clone()),
                    options,
                )?;
                let generation = region.header().map_or(1, |h| h.generation);
                (region, generation)
            }
        };
        Ok(Self { spec: spec.clone(), region: Arc::new(region), generation })
    }

    /// A reader met the end of this store's region.
    pub fn outside(&self, source: AccessError) -> MemoryError {
        MemoryError { store: self.spec.name.clone(), source }
    }
}

/// A store's memory is shorter than its description says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory of store {store:?} is shorter than its description says ({source}); start the collector again, and if \
     that does not help, move the store's region file away first: the store then begins empty"
)]
pub struct MemoryError {
    /// The store.
    pub store: String,
    /// What was to be read.
    pub source: AccessError,
}

/// The region file of a store in a memory directory.
pub fn region_path(directory: &std::path::Path, store: &str) -> PathBuf {
    directory.join(format!("{store}.region"))
}

/// All stores of a collector, in the order of its configuration.
#[derive(Debug, Default)]
pub struct Stores(Vec<Store>);

/// Why no store answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No store of that name.
    #[error("there is no store {name:?}; this collector has {have}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are, with their kinds.
        have: String,
    },
    /// The store is of another kind.
    #[error("store {name:?} is a {is} store; this query needs a {wanted} store, which here is {have}")]
    Kind {
        /// The store.
        name: String,
        /// Its kind.
        is: &'static str,
        /// The kind wanted.
        wanted: &'static str,
        /// Names of stores of that kind.
        have: String,
    },
    /// No name was given, and there is not exactly one candidate.
    #[error("name the {wanted} store to ask: this collector has {have}")]
    Ambiguous {
        /// The kind wanted.
        wanted: &'static str,
        /// Names of stores of that kind.
        have: String,
    },
}

impl Stores {
    /// Opens all stores of a configuration.
    pub fn open(specs: &[StoreSpec], memory: &Memory, options: RegionOptions) -> Result<Self, RegionError> {
        let stores: Vec<Store> =
            specs.iter().map(|spec| Store::open(spec, memory, options)).collect::<Result<_, _>>()?;
        // Together, or each would take the time of all before it.
        Region::look_up_pages(stores.iter().map(|store| &*store.region));
        Ok(Self(stores))
    }

    /// In the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Store> {
        self.0.iter()
    }

    /// The store of a name.
    pub fn get(&self, name: &str) -> Result<&Store, StoreError> {
        self.0.iter().find(|s| s.spec.name == name).ok_or_else(|| StoreError::Unknown {
            name: name.to_owned(),
            have: list(self.0.iter().map(|s| format!("{} ({})", s.spec.name, s.spec.primitive()))),
        })
    }

    /// The store of a name and primitive ([`StoreSpec::primitive`]); without a name, the only one of that primitive.
    pub fn of_primitive(&self, name: &str, wanted: &'static str) -> Result<&Store, StoreError> {
        let candidates = || self.0.iter().filter(|s| s.spec.primitive() == wanted);
        let have = || list(candidates().map(|s| s.spec.name.clone()));
        if name.is_empty() {
            let mut all = candidates();
            return match (all.next(), all.next()) {
                (Some(store), None) => Ok(store),
                _ => Err(StoreError::Ambiguous { wanted, have: have() }),
            };
        }
        let store = self.get(name)?;
        let is = store.spec.primitive();
        if is == wanted {
            Ok(store)
        } else {
            Err(StoreError::Kind { name: name.to_owned(), is, wanted, have: have() })
        }
    }
}

fn list(names: impl Iterator<Item = String>) -> String {
    let names = names.collect::<Vec<_>>().join(", ");
    if names.is_empty() { "none".into() } else { names }
}

impl FromIterator<Store> for Stores {
    fn from_iter<T: IntoIterator<Item = Store>>(stores: T) -> Self {
        Self(stores.into_iter().collect())
    }
}
