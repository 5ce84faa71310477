//! Prints answers for people and programs.

use std::io::{self, IsTerminal, Write};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::json::{self, writer::LineDelimited};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use dta_cli::table::{OutputStyle, TextTable};
use futures_util::StreamExt;

use crate::session::StatementAnswer;

/// How answers are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SqlOutputFormat {
    /// For people
    #[default]
    #[value(alias = "text")]
    Table,
    /// With a header; bytes as hex
    Csv,
    /// An object on each line; bytes as hex
    Json,
    /// A Parquet file
    Parquet,
}

/// Most rows in a table: columns are as wide as their widest cell, so the whole table is held in memory.
const SHOWN: usize = 10_000;

pub(crate) async fn print_answer(mut answer: StatementAnswer, format: SqlOutputFormat) -> anyhow::Result<()> {
    let schema = answer.rows.schema();
    let mut stdout = io::stdout();
    match format {
        SqlOutputFormat::Table => {
            let mut table = empty_table(&schema);
            let mut rows = 0;
            while let Some(batch) = answer.rows.next().await {
                let mut batch = batch?;
                if rows + batch.num_rows() > SHOWN {
                    batch = batch.slice(0, SHOWN - rows);
                    rows = SHOWN + 1;
                }
                append_batch(&mut table, &batch)?;
                if rows > SHOWN {
                    break;
                }
                rows += batch.num_rows();
            }
            writeln!(stdout, "{}", table.render_for(OutputStyle::for_stdout()))?;
            if rows > SHOWN {
                stdout.flush()?;
                anyhow::bail!(
                    "a table shows {SHOWN} rows: ask for less (limit), or print all with -o csv or -o json"
                );
            }
        }
        SqlOutputFormat::Csv => {
            let mut bytes = Vec::new();
            WriterBuilder::new().build(&mut bytes).write(&RecordBatch::new_empty(schema))?;
            stdout.write_all(&bytes)?;
            while let Some(batch) = answer.rows.next().await {
                bytes.clear();
                WriterBuilder::new().with_header(false).build(&mut bytes).write(&batch?)?;
                stdout.write_all(&bytes)?;
            }
        }
        SqlOutputFormat::Json => {
            while let Some(batch) = answer.rows.next().await {
                let lines = json::WriterBuilder::new().with_explicit_nulls(true);
                let mut lines = lines.build::<_, LineDelimited>(Vec::new());
                lines.write(&batch?)?;
                lines.finish()?;
                stdout.write_all(&lines.into_inner())?;
            }
        }
        SqlOutputFormat::Parquet => {
            let zstd = Compression::ZSTD(ZstdLevel::try_new(1)?);
            let properties = WriterProperties::builder().set_compression(zstd).build();
            let mut file = ArrowWriter::try_new(io::stdout(), schema, Some(properties))?;
            while let Some(batch) = answer.rows.next().await {
                file.write(&batch?)?;
            }
            file.close()?;
        }
    }
    Ok(stdout.flush()?)
}

/// Checks that standard output can take this format.
///
/// # Errors
/// A terminal shows no Parquet file.
pub(crate) fn check_format(format: SqlOutputFormat) -> anyhow::Result<()> {
    if format == SqlOutputFormat::Parquet && io::stdout().is_terminal() {
        return Err(dta_cli::misuse_error(anyhow::anyhow!(
            "-o parquet writes a file to standard output: redirect it with > FILE"
        )));
    }
    Ok(())
}

fn empty_table(schema: &Schema) -> TextTable {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let numbers = schema.fields().iter().enumerate().filter(|(_, field)| field.data_type().is_numeric());
    TextTable::new(&names, &numbers.map(|(column, _)| column).collect::<Vec<_>>())
}

fn append_batch(table: &mut TextTable, batch: &RecordBatch) -> anyhow::Result<()> {
    let options = FormatOptions::new().with_null("null");
    let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    for row in 0..batch.num_rows() {
        let cells = columns.iter().map(|column| column.value(row).try_to_string());
        table.add_row(cells.collect::<Result<Vec<String>, _>>()?);
    }
    Ok(())
}
