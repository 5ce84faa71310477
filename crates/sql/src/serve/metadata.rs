//! Answers to clients' questions about the server: its name, its tables.

use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{
    CommandGetCatalogs, CommandGetDbSchemas, CommandGetTableTypes, CommandGetTables, SqlInfo,
};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;

use crate::session::{CATALOG, Engine};

const TABLE: &str = "TABLE";

/// A table with the name of its schema and its columns.
pub(super) struct Listed {
    schema: String,
    name: String,
    columns: SchemaRef,
}

pub(super) async fn list_tables(engine: &Engine) -> anyhow::Result<Vec<Listed>> {
    let context = engine.open_sql_session().await?;
    let mut tables = Vec::new();
    let catalog = context.catalog(CATALOG).into_iter();
    for (schema, of) in catalog.flat_map(|of| {
        of.schema_names().into_iter().filter_map(move |name| Some((name.clone(), of.schema(&name)?)))
    }) {
        for name in of.table_names() {
            if let Some(table) = of.table(&name).await? {
                tables.push(Listed { schema: schema.clone(), name, columns: table.schema() });
            }
        }
    }
    Ok(tables)
}

pub(super) fn catalog_batch(query: CommandGetCatalogs) -> Result<RecordBatch, FlightError> {
    let mut catalogs = query.into_builder();
    catalogs.append(CATALOG);
    catalogs.build()
}

pub(super) fn schema_batch(
    query: CommandGetDbSchemas,
    tables: &[Listed],
) -> Result<RecordBatch, FlightError> {
    let mut schemas = query.into_builder();
    let names: std::collections::BTreeSet<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
    names.into_iter().for_each(|name| schemas.append(CATALOG, name));
    schemas.build()
}

pub(super) fn table_batch(query: CommandGetTables, tables: &[Listed]) -> Result<RecordBatch, FlightError> {
    let mut listed = query.into_builder();
    for table in tables {
        listed.append(CATALOG, &table.schema, &table.name, TABLE, &table.columns)?;
    }
    listed.build()
}

pub(super) fn table_type_batch(query: CommandGetTableTypes) -> Result<RecordBatch, FlightError> {
    let mut types = query.into_builder();
    types.append(TABLE);
    types.build()
}

pub(super) fn server_info() -> Result<SqlInfoData, FlightError> {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "dta-history");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    info.append(SqlInfo::FlightSqlServerReadOnly, true);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    info.build()
}
