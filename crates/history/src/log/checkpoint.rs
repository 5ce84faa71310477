//! A checkpoint: the outcome of all commits up to a version, as one Parquet file with a row for each action
//! (<https://github.com/delta-io/delta/blob/master/PROTOCOL.md#checkpoints>). Readers start there, so older commits can be removed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parquet::basic::{Compression, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::record::reader::RowIter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use serde_json::{Value, json};

use super::action::{LogAction, Remove};
use super::replay::LogState;
use super::{FOLDER, commit_path, version_of};
use crate::HistoryError;
use crate::data::pread::Pread;
use crate::temporary::Temporary;

/// A checkpoint is written every 100 commits.
pub(crate) const EVERY: u64 = 100;
/// How long commits stay once a checkpoint covers them, for readers still using them.
pub(crate) const STAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a checkpoint mentions that a file was removed (milliseconds): longer than the file stays.
const REMOVED: u64 = 60 * 60 * 1000;
/// Names the newest checkpoint.
pub(crate) const LAST: &str = "_last_checkpoint";

const SCHEMA: &str = "
message checkpoint {
  optional group protocol { optional int32 minReaderVersion; optional int32 minWriterVersion; }
  optional group metaData {
    optional binary id (STRING);
    optional binary name (STRING);
    optional binary description (STRING);
    optional group format {
      optional binary provider (STRING);
      optional group options (MAP) { repeated group key_value { required binary key (STRING); optional binary value (STRING); } }
    }
    optional binary schemaString (STRING);
    optional group partitionColumns (LIST) { repeated group list { optional binary element (STRING); } }
    optional group configuration (MAP) { repeated group key_value { required binary key (STRING); optional binary value (STRING); } }
    optional int64 createdTime;
  }
  optional group add {
    optional binary path (STRING);
    optional group partitionValues (MAP) { repeated group key_value { required binary key (STRING); optional binary value (STRING); } }
    optional int64 size;
    optional int64 modificationTime;
    optional boolean dataChange;
    optional binary stats (STRING);
    optional group tags (MAP) { repeated group key_value { required binary key (STRING); optional binary value (STRING); } }
  }
  optional group remove { optional binary path (STRING); optional int64 deletionTimestamp; optional boolean dataChange; }
}";

pub(crate) fn checkpoint_path(table: &Path, version: u64) -> PathBuf {
    table.join(FOLDER).join(checkpoint_name(version))
}

pub(crate) fn checkpoint_name(version: u64) -> String {
    format!("{version:020}.checkpoint.parquet")
}

/// The version of a checkpoint, from the name of its file.
pub(crate) fn version_of_checkpoint(name: &str) -> Option<u64> {
    version_of(&format!("{}.json", name.strip_suffix(".checkpoint.parquet")?))
}

pub(crate) fn newest_version(table: &Path) -> Option<u64> {
    said_last(&std::fs::read(table.join(FOLDER).join(LAST)).ok()?)
}

/// The version of the newest checkpoint, from the text of [`LAST`].
pub(crate) fn said_last(text: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(text).ok()?.get("version")?.as_u64()
}

/// The state of the log as the bytes of a checkpoint of a version, and the text of [`LAST`] that names it.
#[cfg(feature = "s3")]
pub(crate) fn encode_checkpoint(state: &LogState, version: u64, now: u64) -> Result<(Vec<u8>, Vec<u8>)> {
    let (actions, mut bytes) = (state_actions(state, now), Vec::new());
    shred_records(&mut bytes, &actions)?;
    Ok((bytes, encode_pointer(version, actions.len())))
}

fn encode_pointer(version: u64, size: usize) -> Vec<u8> {
    json!({ "version": version, "size": size }).to_string().into_bytes()
}

/// Writes the state of the log as a checkpoint, and removes commits and checkpoints before it that are a day old.
///
/// # Errors
/// The system refuses: the log is unchanged.
pub(crate) fn write_checkpoint(table: &Path, state: &LogState, now: u64) -> Result<(), HistoryError> {
    let Some(version) = state.next.checked_sub(1) else { return Ok(()) };
    let actions = state_actions(state, now);
    let folder = table.join(FOLDER);
    let mut file = Temporary::new(&folder)?;
    shred_records(file.locked_file(), &actions).map_err(HistoryError::parquet_error(file.file_path()))?;
    file.rename_to(&checkpoint_path(table, version))?;
    file.persist_file();
    let mut last = Temporary::new(&folder)?;
    let text = encode_pointer(version, actions.len());
    last.locked_file().write_all(&text).map_err(HistoryError::io_error("write", last.file_path()))?;
    last.rename_to(&folder.join(LAST))?;
    last.persist_file();
    trim_log(&folder, version)
}

fn trim_log(folder: &Path, version: u64) -> Result<(), HistoryError> {
    for entry in std::fs::read_dir(folder).map_err(HistoryError::io_error("read", folder))? {
        let entry = entry.map_err(HistoryError::io_error("read", folder))?;
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| version_of(name).or_else(|| version_of_checkpoint(name)));
        let written = entry.metadata().and_then(|meta| meta.modified());
        let old = |written: SystemTime| written.elapsed().is_ok_and(|age| age > STAY);
        if of.is_some_and(|of| of < version) && written.is_ok_and(old) {
            std::fs::remove_file(entry.path()).map_err(HistoryError::io_error("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// The actions that reproduce the log's state, as they would stand in commits.
fn state_actions(state: &LogState, now: u64) -> Vec<Value> {
    let action = |action: LogAction| serde_json::to_value(action).expect("names and numbers");
    let about = state
        .protocol
        .map(LogAction::Protocol)
        .into_iter()
        .chain(state.meta.clone().map(LogAction::MetaData));
    let adds = state.files.values().map(|entry| {
        let mut add = entry.add.clone();
        // A checkpoint brings nothing new.
        add.data_change = false;
        LogAction::Add(add)
    });
    let recent = state.removed.iter().filter(|(_, at)| at.saturating_add(REMOVED) > now);
    let removes = recent.map(|(path, at)| {
        LogAction::Remove(Remove { path: path.clone(), deletion_timestamp: Some(*at), data_change: false })
    });
    about.chain(adds).chain(removes).map(action).collect()
}

/// # Errors
/// It cannot be read, or is damaged.
pub(crate) fn read(table: &Path, version: u64) -> Result<Vec<LogAction>, String> {
    let file = std::fs::File::open(checkpoint_path(table, version)).and_then(Pread::new);
    read_from(file.map_err(|error| error.to_string())?)
}

/// # Errors
/// As [`read`].
pub(crate) fn read_from(file: impl ChunkReader + 'static) -> Result<Vec<LogAction>, String> {
    let reader = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
    let mut actions = Vec::new();
    for row in RowIter::from_file_into(Box::new(reader)) {
        let mut row = row.map_err(|error| error.to_string())?.to_json_value();
        drop_nulls(&mut row);
        actions.extend(LogAction::from_json(row).map_err(|error| error.to_string())?);
    }
    Ok(actions)
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

/// A column being written, with its levels.
enum Cells {
    Booleans(Vec<bool>),
    Integers(Vec<i32>),
    Longs(Vec<i64>),
    Texts(Vec<ByteArray>),
}

struct Leaf {
    cells: Cells,
    defined: Vec<i16>,
    repeated: Vec<i16>,
}

/// Writes objects as rows of a Parquet file (the record shredding of "Dremel", VLDB 2010).
fn shred_records(into: impl Write + Send, rows: &[Value]) -> Result<()> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1)?);
    let properties = WriterProperties::builder().set_compression(zstd).build();
    let mut file = SerializedFileWriter::new(into, schema.clone(), Arc::new(properties))?;
    let leaf = |physical| Leaf {
        cells: match physical {
            Physical::BOOLEAN => Cells::Booleans(Vec::new()),
            Physical::INT32 => Cells::Integers(Vec::new()),
            Physical::INT64 => Cells::Longs(Vec::new()),
            _ => Cells::Texts(Vec::new()),
        },
        defined: Vec::new(),
        repeated: Vec::new(),
    };
    let mut leaves: Vec<Leaf> =
        file.schema_descr().columns().iter().map(|column| leaf(column.physical_type())).collect();
    for row in rows {
        shred_value(&schema, Some(row), 0, 0, &mut leaves)?;
    }
    let mut group = file.next_row_group()?;
    for leaf in &leaves {
        let mut column = group.next_column()?.expect("a column of the schema");
        leaf.write_column(&mut column)?;
        column.close()?;
    }
    group.close()?;
    file.close().map(|_| ())
}

impl Leaf {
    fn write_column(&self, column: &mut SerializedColumnWriter) -> Result<usize> {
        let (defined, repeated) = (Some(&self.defined[..]), Some(&self.repeated[..]));
        match &self.cells {
            Cells::Booleans(cells) => column.typed::<BoolType>().write_batch(cells, defined, repeated),
            Cells::Integers(cells) => column.typed::<Int32Type>().write_batch(cells, defined, repeated),
            Cells::Longs(cells) => column.typed::<Int64Type>().write_batch(cells, defined, repeated),
            Cells::Texts(cells) => column.typed::<ByteArrayType>().write_batch(cells, defined, repeated),
        }
    }

    fn push_value(&mut self, value: Option<&Value>, defined: i16, repeated: i16) -> Option<()> {
        self.defined.push(defined);
        self.repeated.push(repeated);
        let Some(value) = value else { return Some(()) };
        match &mut self.cells {
            Cells::Booleans(cells) => cells.push(value.as_bool()?),
            Cells::Integers(cells) => cells.push(value.as_i64()?.try_into().ok()?),
            Cells::Longs(cells) => cells.push(value.as_i64()?),
            Cells::Texts(cells) => cells.push(value.as_str()?.into()),
        }
        Some(())
    }
}

/// Appends a value (`None` if absent) to the columns of a schema node, which come first in `columns`. Returns how many there are.
fn shred_value(
    node: &Type,
    value: Option<&Value>,
    defined: i16,
    repeated: i16,
    leaves: &mut [Leaf],
) -> Result<usize> {
    if node.is_primitive() {
        let put = leaves[0].push_value(value, defined, repeated);
        return put.map(|()| 1).ok_or_else(|| ParquetError::General(format!("{} is {value:?}", node.name())));
    }
    let mut at = 0;
    for field in node.get_fields() {
        let inner = value.and_then(|value| value.get(field.name())).filter(|inner| !inner.is_null());
        let leaves = &mut leaves[at..];
        at += match field.get_basic_info().repetition() {
            Repetition::REQUIRED => shred_value(field, inner, defined, repeated, leaves)?,
            Repetition::OPTIONAL => {
                shred_value(field, inner, defined + i16::from(inner.is_some()), repeated, leaves)?
            }
            Repetition::REPEATED => {
                let entries = group_entries(value);
                let mut count = 0;
                if entries.is_empty() {
                    count = shred_value(field, None, defined, repeated, leaves)?;
                }
                for (number, entry) in entries.iter().enumerate() {
                    let repeated = if number == 0 { repeated } else { repeated + 1 };
                    count = shred_value(field, Some(entry), defined + 1, repeated, leaves)?;
                }
                count
            }
        };
    }
    Ok(at)
}

/// The entries of a map or list, as Parquet's repeated groups.
fn group_entries(value: Option<&Value>) -> Vec<Value> {
    match value {
        Some(Value::Object(map)) => {
            map.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
        }
        Some(Value::Array(list)) => list.iter().map(|element| json!({ "element": element })).collect(),
        _ => Vec::new(),
    }
}

/// Whether a checkpoint has replaced the commits that a reader at `next` needs.
pub(crate) fn is_behind(table: &Path, next: u64) -> bool {
    newest_version(table).is_some_and(|last| last >= next) && !commit_path(table, next).exists()
}
