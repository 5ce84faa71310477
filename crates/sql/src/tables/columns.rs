//! A table's columns in SQL.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, TimestampNanosecondArray};
use datafusion::arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use datafusion::common::{Result, exec_datafusion_err};
use serde::Deserialize;

/// The column with an epoch's number, in files as in SQL.
pub(super) const EPOCH: &str = "epoch";
/// The columns with the moments when the row's epoch was opened, and when the last of its writers had moved away. Files have them in microseconds;
/// here they come from the log, which also decides which files to read.
pub(super) const MOMENTS: [&str; 2] = ["opened", "closed"];
/// The columns that identify the rows of a key.
pub(super) const SLOT: &str = "slot";
pub(super) const CHECKSUM: &str = "checksum";

/// The type of moments. Grafana's data source reads all timestamps as nanoseconds, whatever their type says.
pub(super) fn moment_type() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("+00:00".into()))
}

/// Milliseconds since 1970 as a value of [`moment_type`]; moments beyond its range become the last one in it.
pub(super) fn nanoseconds(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}

/// A column of [`moment_type`]s.
pub(super) fn moment_column(nanoseconds: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(TimestampNanosecondArray::from_iter(nanoseconds).with_timezone("+00:00"))
}

#[derive(Deserialize)]
struct DeltaSchema {
    fields: Vec<DeltaField>,
}

#[derive(Deserialize)]
struct DeltaField {
    name: String,
    r#type: serde_json::Value,
    nullable: bool,
}

/// The columns of a table's files, from Delta's `schemaString`.
///
/// # Errors
/// The schema cannot be read, or a column has a type that history does not use.
pub(super) fn file_schema(delta: &str) -> Result<SchemaRef> {
    let schema: DeltaSchema =
        serde_json::from_str(delta).map_err(|error| exec_datafusion_err!("a table's schema: {error}"))?;
    let field = |field: &DeltaField| {
        let DeltaField { name, r#type, nullable } = field;
        let of = match r#type.as_str().unwrap_or_default() {
            "long" => DataType::Int64,
            "integer" => DataType::Int32,
            "short" => DataType::Int16,
            "byte" => DataType::Int8,
            "double" => DataType::Float64,
            "float" => DataType::Float32,
            "boolean" => DataType::Boolean,
            "string" => DataType::Utf8,
            "binary" => DataType::Binary,
            "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
            _ => {
                return Err(exec_datafusion_err!(
                    "column {name:?} has the type {}, which this version does not read",
                    r#type
                ));
            }
        };
        Ok(Field::new(name, of, *nullable))
    };
    let fields = schema.fields.iter().map(field).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

pub(super) fn is_moment(column: &str) -> bool {
    MOMENTS.contains(&column)
}

/// The columns in SQL: [`MOMENTS`] after `epoch`, the rest as in the files. Rows of live memory have neither number nor moments.
pub(super) fn sql_schema(files: &Schema, live: bool) -> SchemaRef {
    let mut fields = Vec::with_capacity(files.fields.len() + MOMENTS.len());
    for field in files.fields.iter().filter(|field| !is_moment(field.name())) {
        if field.name() == EPOCH {
            fields.push(Arc::new(field.as_ref().clone().with_nullable(live)));
            fields.extend(MOMENTS.map(|name| Arc::new(Field::new(name, moment_type(), true))));
        } else {
            fields.push(field.clone());
        }
    }
    Arc::new(Schema::new(Fields::from(fields)))
}
