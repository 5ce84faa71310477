//! The current contents of a running collector's stores, as tables.
//!
//! A statement that reads `live.STORE` gets a copy of the store's memory, made in consecutive pieces of 64 KiB and written as a history
//! table of one epoch into a temporary folder. So it is read like the history, with the same columns.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use datafusion::catalog::Session;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::object_store::local::LocalFileSystem;
use dta_history::{EpochTable, HistoryEpoch};
use dta_proto::control::{MAX_READ, ReadMemoryRequest};
use dta_proto::store::StoreSpec;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::tables::OpenTable;

/// How often a copy is tried, as it must start over when an epoch ends meanwhile.
const TRIES: usize = 5;

/// A collector whose memory is read.
pub(crate) struct LiveCollector {
    client: RemoteCollector,
    address: String,
}

impl LiveCollector {
    pub(crate) fn new(options: &ClientOptions) -> anyhow::Result<LiveCollector> {
        Ok(LiveCollector {
            client: RemoteCollector::connect_lazy(options)?,
            address: options.address.clone(),
        })
    }

    /// The stores whose memory can be read as a table: those whose elements are slots.
    pub(crate) async fn slot_stores(&self) -> anyhow::Result<Vec<StoreSpec>> {
        let placement =
            self.client.placement().await.with_context(|| format!("live stores of {}", self.address))?;
        let specs =
            placement.stores.iter().filter_map(|place| StoreSpec::try_from(place.store.as_ref()?).ok());
        Ok(specs.filter(|spec| spec.redundancy().is_some()).collect())
    }

    /// Copies the store's memory into a table in this folder.
    async fn copy_store(&self, spec: &StoreSpec, folder: &Path) -> anyhow::Result<EpochTable> {
        let table = EpochTable::open(folder, spec)?;
        let len = spec.element_len();
        // Only whole elements.
        let piece = u64::from(MAX_READ) / len * len;
        'copy: for number in 0..TRIES as u64 {
            let (mut flush, mut generation) = (table.begin_epoch(number)?, None);
            let mut offset = 0;
            while offset < spec.region_len() {
                let length = piece.min(spec.region_len() - offset) as u32;
                let request = ReadMemoryRequest { store: spec.name.clone(), offset, length };
                let read = self.client.read_memory(request).await?;
                // A new epoch has begun, in another memory.
                if *generation.get_or_insert(read.generation) != read.generation {
                    continue 'copy;
                }
                anyhow::ensure!(
                    read.data.len() == length as usize,
                    "{} sent {} bytes of store {:?} for {length}",
                    self.address,
                    read.data.len(),
                    spec.name
                );
                flush.write_slots(offset / len, &read.data)?;
                offset += u64::from(length);
            }
            // Its moments are never shown.
            let generation = generation.unwrap_or_default();
            flush.finish(&HistoryEpoch { number, generation, ..HistoryEpoch::default() })?;
            return Ok(table);
        }
        anyhow::bail!(
            "store {:?} begins new epochs faster than {} can be asked for what it holds: ask its history",
            spec.name,
            self.address
        )
    }
}

/// A store's memory, copied when it is first read.
pub(crate) struct LiveMemory {
    collector: Arc<LiveCollector>,
    pub(crate) spec: StoreSpec,
    copied: OnceCell<(TempDir, OpenTable)>,
}

impl LiveMemory {
    pub(crate) fn new(collector: Arc<LiveCollector>, spec: StoreSpec) -> LiveMemory {
        LiveMemory { collector, spec, copied: OnceCell::new() }
    }

    /// # Errors
    /// The memory cannot be read or copied.
    pub(crate) async fn copied_table(&self, state: &dyn Session) -> anyhow::Result<&OpenTable> {
        let (_, table) = self.copied.get_or_try_init(|| self.copy_memory(state)).await?;
        Ok(table)
    }

    async fn copy_memory(&self, state: &dyn Session) -> anyhow::Result<(TempDir, OpenTable)> {
        let folder = TempDir::with_prefix("dta-history-live").context("a folder for live memory")?;
        let table = self.collector.copy_store(&self.spec, folder.path()).await?;
        let at = ObjectStoreUrl::parse(format!("live://{}/", self.spec.id))?;
        let files = LocalFileSystem::new_with_prefix(folder.path())?;
        state.runtime_env().register_object_store(at.as_ref(), Arc::new(files));
        Ok((folder, OpenTable::new(table, at)))
    }
}
