//! The tables `epochs` and `losses`: what the logs of all tables say of their epochs.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use dta_history::{HistoryEpoch, KeptEpoch};
use serde_json::Value;

use super::OpenTable;
use super::columns::{moment_column, moment_type, nanoseconds};

/// The names of the two tables.
pub(crate) const EPOCHS: &str = "epochs";
pub(crate) const LOSSES: &str = "losses";

/// A table of what the logs say, made of them when it is read.
pub(crate) struct LogTable {
    tables: BTreeMap<String, Arc<OpenTable>>,
    schema: SchemaRef,
    columns: fn(&[OfStore<'_>]) -> Vec<ArrayRef>,
}

/// An epoch, and the table of its store.
type OfStore<'a> = (&'a OpenTable, Arc<KeptEpoch>);

impl LogTable {
    /// A row for each epoch of each store.
    pub(crate) fn for_epochs(tables: BTreeMap<String, Arc<OpenTable>>) -> LogTable {
        let fields = [
            ("store", DataType::Utf8, false),
            ("primitive", DataType::Utf8, false),
            ("number", DataType::Int64, false),
            ("generation", DataType::UInt64, false),
            ("opened", moment_type(), false),
            ("flipped_from", moment_type(), false),
            ("flipped_to", moment_type(), false),
            ("confirmed", DataType::Boolean, false),
            ("rows", DataType::Int64, false),
            ("sketch_epoch", DataType::Int64, true),
        ];
        let of_waterfall = WATERFALL.map(|(name, _)| (name, DataType::Int64, true));
        LogTable::new(tables, fields.into_iter().chain(of_waterfall), columns_of_epochs)
    }

    /// A row for each epoch and each reason for which something was lost in it.
    pub(crate) fn for_losses(tables: BTreeMap<String, Arc<OpenTable>>) -> LogTable {
        let fields = [
            ("store", DataType::Utf8, false),
            ("number", DataType::Int64, false),
            ("opened", moment_type(), false),
            ("reason", DataType::Utf8, false),
            ("lost", DataType::Int64, false),
        ];
        LogTable::new(tables, fields, columns_of_losses)
    }

    fn new(
        tables: BTreeMap<String, Arc<OpenTable>>,
        fields: impl IntoIterator<Item = (&'static str, DataType, bool)>,
        columns: fn(&[OfStore<'_>]) -> Vec<ArrayRef>,
    ) -> LogTable {
        let fields = fields.into_iter().map(|(name, of, nullable)| Field::new(name, of, nullable));
        LogTable { tables, schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns }
    }
}

/// What a column has of a waterfall; `None` if it is not known.
type Part = fn(&Value) -> Option<i64>;

/// The columns that are the waterfall's.
const WATERFALL: [(&str, Part); 7] = [
    ("sent", |waterfall| waterfall["sent"].as_i64()),
    ("landed", |waterfall| waterfall["landed"].as_i64()),
    ("frames", |waterfall| waterfall["frames"].as_i64()),
    ("lost", |waterfall| Some(waterfall["lost"].as_object()?.values().filter_map(Value::as_i64).sum())),
    ("overwritten", |waterfall| waterfall["overwritten"].as_i64()),
    ("missing", |waterfall| waterfall["missing"].as_i64()),
    ("damaged", |waterfall| waterfall["damaged"].as_i64()),
];

fn columns_of_epochs(all: &[OfStore<'_>]) -> Vec<ArrayRef> {
    let epochs = || all.iter().map(|(_, kept)| &kept.epoch);
    let texts = |of: fn(&OpenTable) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(all.iter().map(|(table, _)| of(table))))
    };
    let longs = |of: fn(&KeptEpoch) -> Option<i64>| -> ArrayRef {
        Arc::new(Int64Array::from_iter(all.iter().map(|(_, kept)| of(kept))))
    };
    let at = |of: fn(&HistoryEpoch) -> u64| moment_column(epochs().map(|epoch| Some(nanoseconds(of(epoch)))));
    let fixed: [ArrayRef; 10] = [
        texts(|table| &table.table.store_spec().name),
        texts(|table| table.table.store_spec().primitive()),
        longs(|kept| Some(kept.epoch.number.cast_signed())),
        Arc::new(UInt64Array::from_iter_values(epochs().map(|epoch| epoch.generation))),
        at(|epoch| epoch.opened),
        at(|epoch| epoch.flipped_from),
        at(|epoch| epoch.flipped_to),
        Arc::new(BooleanArray::from_iter(epochs().map(|epoch| Some(epoch.confirmed)))),
        longs(|kept| Some(kept.rows.cast_signed())),
        longs(|kept| kept.epoch.sketch.map(i64::from)),
    ];
    let of_waterfall = WATERFALL.iter().map(|(_, of)| -> ArrayRef {
        Arc::new(Int64Array::from_iter(epochs().map(|epoch| of(&epoch.waterfall))))
    });
    fixed.into_iter().chain(of_waterfall).collect()
}

fn columns_of_losses(all: &[OfStore<'_>]) -> Vec<ArrayRef> {
    let mut rows = Vec::new();
    for (table, kept) in all {
        let lost = kept.epoch.waterfall["lost"].as_object().into_iter().flatten();
        for (reason, lost) in lost {
            if let Some(lost) = lost.as_i64() {
                rows.push((&table.table.store_spec().name, &kept.epoch, reason, lost));
            }
        }
    }
    vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1.number.cast_signed()))),
        moment_column(rows.iter().map(|row| Some(nanoseconds(row.1.opened)))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3))),
    ]
}

impl std::fmt::Debug for LogTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogTable")
    }
}

#[async_trait]
impl TableProvider for LogTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut all = Vec::new();
        for of in self.tables.values() {
            let epochs = of.table.kept_epochs().map_err(|error| DataFusionError::External(error.into()))?;
            all.extend(epochs.into_iter().map(|kept| (&**of, kept)));
        }
        let batch = RecordBatch::try_new(self.schema.clone(), (self.columns)(&all))?;
        Ok(MemorySourceConfig::try_new_exec(&[vec![batch]], self.schema.clone(), projection.cloned())?)
    }
}
