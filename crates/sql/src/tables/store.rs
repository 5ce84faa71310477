//! A store's table: the files that the log names, without those whose epochs a statement does not ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::config::TableParquetOptions;
use datafusion::common::error::GenericError;
use datafusion::common::stats::Precision;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::CachedParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TableProviderFilterPushDown, TableType, Volatility, col, lit,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{self, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::projection::ProjectionExec;

use dta_history::HistoryEpoch;

use super::OpenTable;
use super::columns::{self, EPOCH, MOMENTS, is_moment, moment_column, moment_type, nanoseconds};
use crate::live::LiveMemory;

/// Where the rows of a store are.
pub(crate) enum RowSource {
    Kept(Arc<OpenTable>),
    Live(Box<LiveMemory>),
}

pub(crate) struct StoreTable {
    source: RowSource,
    files: SchemaRef,
    schema: SchemaRef,
    /// Whether these are rows of an epoch that is not over yet, and so has no number.
    live: bool,
}

impl StoreTable {
    /// # Errors
    /// The table has columns of unknown types.
    pub(crate) fn new(source: RowSource) -> Result<StoreTable> {
        let (files, live) = match &source {
            RowSource::Kept(open) => (open.table.delta_schema(), false),
            RowSource::Live(memory) => (dta_history::store_delta_schema(&memory.spec), true),
        };
        let files = columns::file_schema(&files)?;
        let schema = columns::sql_schema(&files, live);
        Ok(StoreTable { source, files, schema, live })
    }

    async fn open(&self, state: &dyn Session) -> Result<&OpenTable> {
        match &self.source {
            RowSource::Kept(open) => Ok(open.as_ref()),
            RowSource::Live(memory) => memory.copied_table(state).await.map_err(external_error),
        }
    }

    /// All epochs by number, with their moments; and the numbers of those that pass the filters on these columns.
    fn filter_epochs(
        &self,
        open: &OpenTable,
        state: &dyn Session,
        filters: &[Expr],
    ) -> Result<(Moments, BTreeSet<i64>)> {
        // An epoch whose rows others share lasts until the end of the last of them.
        let kept = open.table.row_epochs().map_err(external_error)?;
        let of = |epoch: &HistoryEpoch| [epoch.opened, epoch.flipped_to].map(nanoseconds);
        let all = kept.iter().map(|kept| (kept.epoch.number.cast_signed(), of(&kept.epoch)));
        let all: Moments = Arc::new(all.collect());
        let of_epochs = |filter: &&Expr| {
            let columns = filter.column_refs();
            !columns.is_empty()
                && columns.iter().all(|column| column.name == EPOCH || is_moment(&column.name))
        };
        let Some(filter) = conjunction(filters.iter().filter(of_epochs).cloned()).filter(|_| !self.live)
        else {
            let chosen = all.keys().copied().collect();
            return Ok((all, chosen));
        };
        let mut fields = vec![Field::new(EPOCH, DataType::Int64, false)];
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(all.keys().copied()))];
        for (number, name) in MOMENTS.iter().enumerate() {
            fields.push(Field::new(*name, moment_type(), true));
            columns.push(moment_column(all.values().map(|of_epoch| Some(of_epoch[number]))));
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
        let filter =
            state.create_physical_expr(unqualified(filter)?, &DFSchema::try_from(batch.schema())?)?;
        let answers = filter.evaluate(&batch)?.into_array(batch.num_rows())?;
        let answers: &BooleanArray = answers.as_boolean();
        let chosen =
            all.keys().zip(answers).filter(|(_, answer)| *answer == Some(true)).map(|(epoch, _)| *epoch);
        let chosen = chosen.collect();
        Ok((all, chosen))
    }
}

/// The [`MOMENTS`] of each epoch (nanoseconds since 1970), by number.
type Moments = Arc<BTreeMap<i64, [i64; MOMENTS.len()]>>;

fn external_error(error: impl Into<GenericError>) -> DataFusionError {
    DataFusionError::External(error.into())
}

impl std::fmt::Debug for StoreTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreTable")
    }
}

#[async_trait]
impl TableProvider for StoreTable {
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
        let open = self.open(state).await?;
        let (epochs, chosen) = self.filter_epochs(open, state, filters)?;
        let files = self.choose_files(open, &chosen)?;

        // The columns that are wanted, and the columns of the files that they need.
        let wanted: Vec<usize> =
            projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let made = |name: &str| is_moment(name) || self.live && name == EPOCH;
        let mut needed = BTreeSet::new();
        for column in &wanted {
            let name = self.schema.field(*column).name().as_str();
            if !made(name) {
                needed.insert(self.files.index_of(name)?);
            } else if !self.live {
                needed.insert(self.files.index_of(EPOCH)?);
            }
        }
        let needed: Vec<usize> = needed.into_iter().collect();
        let read = Arc::new(self.files.project(&needed)?);
        let scan: Arc<dyn ExecutionPlan> = if files.files.is_empty() {
            Arc::new(EmptyExec::new(read.clone()))
        } else {
            let predicate = self.predicate(state, filters, &chosen, &files)?;
            self.scan_files(open, state, files, predicate, needed, limit)?
        };

        let of_read = DFSchema::try_from(read.clone())?;
        let mut columns = Vec::with_capacity(wanted.len());
        for column in wanted {
            let name = self.schema.field(column).name();
            let column: Arc<dyn PhysicalExpr> = match MOMENTS.iter().position(|moment| moment == name) {
                Some(_) if self.live => Arc::new(Literal::new(ScalarValue::try_from(&moment_type())?)),
                Some(which) => {
                    let of = MomentOf::new(which, epochs.clone());
                    state
                        .create_physical_expr(ScalarUDF::new_from_impl(of).call(vec![col(EPOCH)]), &of_read)?
                }
                None if made(name) => Arc::new(Literal::new(ScalarValue::Int64(None))),
                None => expressions::col(name, &read)?,
            };
            columns.push((column, name.clone()));
        }
        Ok(Arc::new(ProjectionExec::try_new(columns, scan)?))
    }
}

struct ScanFileSet {
    files: Vec<PartitionedFile>,
    /// Their epochs; `None` if those of a file are unknown because the log is damaged.
    epochs: Option<BTreeSet<i64>>,
    rows: u64,
}

impl StoreTable {
    /// The files with chosen epochs, each with its index verified.
    fn choose_files(&self, open: &OpenTable, chosen: &BTreeSet<i64>) -> Result<ScanFileSet> {
        let mut all = ScanFileSet { files: Vec::new(), epochs: Some(BTreeSet::new()), rows: 0 };
        for file in open.table.data_files().map_err(external_error)? {
            let numbers = || file.epochs.iter().map(|kept| kept.epoch.number.cast_signed());
            if file.epochs.is_empty() {
                all.epochs = None;
            } else if !numbers().any(|number| chosen.contains(&number)) {
                continue;
            }
            open.verify_file(&file.name).map_err(external_error)?;
            all.rows += file.epochs.iter().map(|kept| kept.rows).sum::<u64>();
            all.epochs.iter_mut().for_each(|epochs| epochs.extend(numbers()));
            let path = format!("{}/{}", open.table_name(), file.name);
            all.files.push(PartitionedFile::new(path, file.bytes));
        }
        Ok(all)
    }

    /// The filters that files can evaluate: rows, pages and row groups that do not match are not read.
    fn predicate(
        &self,
        state: &dyn Session,
        filters: &[Expr],
        chosen: &BTreeSet<i64>,
        files: &ScanFileSet,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let in_files = |name: &str| {
            self.files.column_with_name(name).is_some() && !is_moment(name) && !(self.live && name == EPOCH)
        };
        let can_ask = |filter: &&Expr| filter.column_refs().iter().all(|column| in_files(&column.name));
        let mut asked: Vec<Expr> = filters.iter().filter(can_ask).cloned().collect();
        if let (Some(first), Some(last), Some(there)) = (chosen.first(), chosen.last(), &files.epochs)
            && there.len() > chosen.len()
        {
            asked.push(col(EPOCH).between(lit(*first), lit(*last)));
        }
        let Some(predicate) = conjunction(asked) else { return Ok(None) };
        let of_files = DFSchema::try_from(self.files.clone())?;
        Ok(Some(state.create_physical_expr(unqualified(predicate)?, &of_files)?))
    }

    fn scan_files(
        &self,
        open: &OpenTable,
        state: &dyn Session,
        files: ScanFileSet,
        predicate: Option<Arc<dyn PhysicalExpr>>,
        columns: Vec<usize>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let runtime = state.runtime_env();
        let reader = CachedParquetFileReaderFactory::new(
            runtime.object_store(&open.at)?,
            runtime.cache_manager.get_file_metadata_cache(),
        );
        let global = state.config_options().execution.parquet.clone();
        let mut source = ParquetSource::new(self.files.clone())
            .with_table_parquet_options(TableParquetOptions { global, ..TableParquetOptions::default() })
            .with_parquet_file_reader_factory(Arc::new(reader))
            .with_pushdown_filters(true);
        let mut statistics = Statistics::new_unknown(&self.files);
        match predicate {
            Some(predicate) => source = source.with_predicate(predicate),
            // The log says how many rows there are, so counting them reads nothing.
            None if files.epochs.is_some() => {
                statistics.num_rows = Precision::Exact(usize::try_from(files.rows).unwrap_or(usize::MAX));
            }
            None => {}
        }
        let groups = FileGroup::new(files.files).split_files(state.config().target_partitions());
        let config = FileScanConfigBuilder::new(open.at.clone(), Arc::new(source))
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(Some(columns))?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}

/// The same expression, with columns not qualified by the table's name.
fn unqualified(expr: Expr) -> Result<Expr> {
    use datafusion::common::tree_node::{Transformed, TreeNode};
    expr.transform(|expr| {
        Ok(match expr {
            Expr::Column(column) => {
                Transformed::yes(col(datafusion::common::Column::new_unqualified(column.name)))
            }
            other => Transformed::no(other),
        })
    })
    .map(|done| done.data)
}

/// Maps an epoch's number to one of its moments.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MomentOf {
    signature: Signature,
    which: usize,
    moments: Moments,
}

impl MomentOf {
    fn new(which: usize, moments: Moments) -> MomentOf {
        let signature = Signature::exact(vec![DataType::Int64], Volatility::Immutable);
        MomentOf { signature, which, moments }
    }
}

impl ScalarUDFImpl for MomentOf {
    fn name(&self) -> &str {
        MOMENTS[self.which]
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(moment_type())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let epochs = args.args[0].to_array(args.number_rows)?;
        // Rows of one epoch are often adjacent; in a file with one epoch, always.
        let mut last = None;
        let found = epochs.as_primitive::<Int64Type>().iter().map(|epoch| {
            let epoch = epoch?;
            match last {
                Some((of, moment)) if of == epoch => moment,
                _ => {
                    let moment = self.moments.get(&epoch).map(|of_epoch| of_epoch[self.which]);
                    last = Some((epoch, moment));
                    moment
                }
            }
        });
        Ok(ColumnarValue::Array(moment_column(found)))
    }
}
