//! The tables `epochs`, `losses` and `gaps`: what the logs of all tables say about their epochs.

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

/// The names of these tables, which no store's table can have here.
pub(crate) const EPOCHS: &str = "epochs";
pub(crate) const LOSSES: &str = "losses";
pub(crate) const GAPS: &str = "gaps";

/// A table built from the logs each time it is read.
pub(crate) struct LogTable {
    tables: BTreeMap<String, Arc<OpenTable>>,
    schema: SchemaRef,
    columns: fn(&[OfStore<'_>]) -> Vec<ArrayRef>,
}

type OfStore<'a> = (&'a OpenTable, Arc<KeptEpoch>);

impl LogTable {
    /// One row for each epoch of each store.
    pub(crate) fn for_epochs(tables: BTreeMap<String, Arc<OpenTable>>) -> LogTable {
        let fields = [
            ("store", DataType::Utf8, false),
            ("primitive", DataType::Utf8, false),
            ("number", DataType::Int64, false),
            ("generation", DataType::UInt64, false),
            ("opened", moment_type(), false),
            ("ended", moment_type(), false),
            ("closed", moment_type(), false),
            ("complete", DataType::Boolean, false),
            ("restarted", moment_type(), true),
            ("rows", DataType::Int64, false),
            ("sketch_epoch", DataType::Int64, true),
        ];
        let of_waterfall = WATERFALL.map(|(name, _)| (name, DataType::Int64, true));
        LogTable::new(tables, fields.into_iter().chain(of_waterfall), columns_of_epochs)
    }

    /// One row for each time span and each reason for a loss in it.
    pub(crate) fn for_losses(tables: BTreeMap<String, Arc<OpenTable>>) -> LogTable {
        let fields = [
            ("opened", moment_type(), false),
            ("closed", moment_type(), false),
            ("reason", DataType::Utf8, false),
            ("lost", DataType::Int64, false),
        ];
        LogTable::new(tables, fields, columns_of_losses)
    }

    /// One row for each time between two epochs of a store for which nothing is kept.
    pub(crate) fn for_gaps(tables: BTreeMap<String, Arc<OpenTable>>) -> LogTable {
        let fields = [
            ("store", DataType::Utf8, false),
            ("since", moment_type(), false),
            ("until", moment_type(), false),
        ];
        LogTable::new(tables, fields, columns_of_gaps)
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

/// A column's value in a waterfall; `None` if unknown.
type Part = fn(&Value) -> Option<i64>;

/// The columns taken from the waterfall.
const WATERFALL: [(&str, Part); 6] = [
    ("sent", |waterfall| waterfall["sent"].as_i64()),
    ("landed", |waterfall| waterfall["landed"].as_i64()),
    ("frames", |waterfall| waterfall["frames"].as_i64()),
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
    let fixed: [ArrayRef; 11] = [
        texts(|table| &table.table.store_spec().name),
        texts(|table| table.table.store_spec().primitive()),
        longs(|kept| Some(kept.epoch.number.cast_signed())),
        Arc::new(UInt64Array::from_iter_values(epochs().map(|epoch| epoch.generation))),
        at(|epoch| epoch.opened),
        at(|epoch| epoch.flipped_from),
        at(|epoch| epoch.flipped_to),
        Arc::new(BooleanArray::from_iter(epochs().map(|epoch| Some(epoch.is_complete())))),
        moment_column(epochs().map(|epoch| epoch.restarted.map(nanoseconds))),
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
    for epoch in epochs_of_losses(all) {
        let lost = epoch.waterfall["lost"].as_object().into_iter().flatten();
        rows.extend(lost.filter_map(|(reason, lost)| Some((epoch, reason, lost.as_i64()?))));
    }
    let at =
        |of: fn(&HistoryEpoch) -> u64| moment_column(rows.iter().map(|row| Some(nanoseconds(of(row.0)))));
    vec![
        at(|epoch| epoch.opened),
        at(|epoch| epoch.flipped_to),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
    ]
}

/// Epochs that cover the losses of all reports, each time span once: the waterfalls of all stores have the same losses. They are the epochs of
/// the store that has the most, and those of others for times that it lacks.
fn epochs_of_losses<'a>(all: &'a [OfStore<'_>]) -> Vec<&'a HistoryEpoch> {
    let mut of_stores: BTreeMap<&str, Vec<&HistoryEpoch>> = BTreeMap::new();
    for (table, kept) in all.iter().filter(|(_, kept)| kept.epoch.waterfall["lost"].is_object()) {
        of_stores.entry(&table.table.store_spec().name).or_default().push(&kept.epoch);
    }
    let mut of_stores: Vec<_> = of_stores.into_values().collect();
    of_stores.sort_by_key(|epochs| std::cmp::Reverse(epochs.len()));
    // The ends of the time spans already covered, by their starts.
    let (mut taken, mut found) = (BTreeMap::new(), Vec::new());
    for mut epochs in of_stores {
        let is_free = |epoch: &&HistoryEpoch| {
            let before = taken.range(..epoch.flipped_from.max(epoch.opened + 1)).next_back();
            before.is_none_or(|(_, end)| *end <= epoch.opened)
        };
        epochs.retain(is_free);
        taken.extend(epochs.iter().map(|epoch| (epoch.opened, epoch.flipped_from)));
        found.extend(epochs);
    }
    found.sort_by_key(|epoch| epoch.opened);
    found
}

fn columns_of_gaps(all: &[OfStore<'_>]) -> Vec<ArrayRef> {
    let mut of_stores: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for (table, kept) in all {
        let name = &table.table.store_spec().name;
        of_stores.entry(name).or_default().push((kept.epoch.opened, kept.epoch.flipped_to));
    }
    let mut rows = Vec::new();
    for (store, mut epochs) in of_stores {
        epochs.sort_unstable();
        let mut known = u64::MAX;
        for (opened, closed) in epochs {
            if known < opened {
                rows.push((store, known, opened));
            }
            known = if known == u64::MAX { closed } else { known.max(closed) };
        }
    }
    vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0))),
        moment_column(rows.iter().map(|row| Some(nanoseconds(row.1)))),
        moment_column(rows.iter().map(|row| Some(nanoseconds(row.2)))),
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
