//! What a running collector's stores hold now, as tables.
//!
//! A statement that reads `live.STORE` gets a copy of the store's memory, made in pieces of 64 KiB, one after another, and written as a
//! history table of one epoch into a temporary folder: so it is read as the history is, with the same columns.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::object_store::local::LocalFileSystem;
use datafusion::physical_plan::ExecutionPlan;
use dta_client::collector::Client;
use dta_client::{Ask, ClientOptions};
use dta_history::{Epoch, Table};
use dta_proto::control::{MAX_READ, ReadMemoryRequest};
use dta_proto::store::StoreSpec;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::tables::{self, OpenTable, StoreTable};

/// How often a copy is begun anew because an epoch ended meanwhile.
const TRIES: usize = 5;

/// A collector whose memory is read.
pub(crate) struct Collector {
    client: Client,
    address: String,
}

impl Collector {
    pub(crate) fn new(options: &ClientOptions) -> anyhow::Result<Collector> {
        Ok(Collector { client: Client::connect_lazy(options)?, address: options.address.clone() })
    }

    /// The stores whose memory is read as tables: those whose elements are slots.
    ///
    /// # Errors
    /// The collector does not answer.
    pub(crate) async fn stores(&self) -> anyhow::Result<Vec<StoreSpec>> {
        let placement =
            self.client.placement().await.with_context(|| format!("live stores of {}", self.address))?;
        let specs =
            placement.stores.iter().filter_map(|place| StoreSpec::try_from(place.store.as_ref()?).ok());
        Ok(specs.filter(|spec| spec.redundancy().is_some()).collect())
    }

    /// Writes what the store holds into a table in this folder.
    async fn copy(&self, spec: &StoreSpec, folder: &Path) -> anyhow::Result<Table> {
        let table = Table::open(folder, spec)?;
        let len = spec.element_len();
        // Whole elements.
        let piece = u64::from(MAX_READ) / len * len;
        'copy: for number in 0..TRIES as u64 {
            let (mut flush, mut generation) = (table.begin(number)?, None);
            let mut offset = 0;
            while offset < spec.region_len() {
                let length = piece.min(spec.region_len() - offset) as u32;
                let request = ReadMemoryRequest { store: spec.name.clone(), offset, length };
                let read = self.client.read_memory(request).await?;
                // Another epoch has begun, and the store's memory is another.
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
                flush.put(offset / len, &read.data)?;
                offset += u64::from(length);
            }
            // Nobody is shown its moments.
            let generation = generation.unwrap_or_default();
            flush.finish(&Epoch { number, generation, ..Epoch::default() })?;
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
pub(crate) struct LiveTable {
    collector: Arc<Collector>,
    spec: StoreSpec,
    schema: SchemaRef,
    copied: OnceCell<(TempDir, StoreTable)>,
}

impl LiveTable {
    /// # Errors
    /// The store has no table in this version.
    pub(crate) fn new(collector: Arc<Collector>, spec: StoreSpec) -> anyhow::Result<LiveTable> {
        let schema = tables::live_columns(&dta_history::schema(&spec))?;
        Ok(LiveTable { collector, spec, schema, copied: OnceCell::new() })
    }

    pub(crate) fn spec(&self) -> &StoreSpec {
        &self.spec
    }

    async fn copy(&self, state: &dyn Session) -> anyhow::Result<(TempDir, StoreTable)> {
        let folder = TempDir::with_prefix("dta-history-live").context("a folder for live memory")?;
        let table = self.collector.copy(&self.spec, folder.path()).await?;
        let at = ObjectStoreUrl::parse(format!("live://{}/", self.spec.id))?;
        let files = LocalFileSystem::new_with_prefix(folder.path())?;
        state.runtime_env().register_object_store(at.as_ref(), Arc::new(files));
        Ok((folder, StoreTable::new(Arc::new(OpenTable::new(table, at)), true)?))
    }
}

impl std::fmt::Debug for LiveTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveTable {}", self.spec.name)
    }
}

#[async_trait]
impl TableProvider for LiveTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let copied = self.copied.get_or_try_init(|| self.copy(state)).await;
        let (_, table) = copied.map_err(|error| DataFusionError::External(error.into()))?;
        table.scan(state, projection, filters, limit).await
    }
}
