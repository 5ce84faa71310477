//! Lines of a commit: the Delta actions that this library writes, and those by other writers that it understands
//! (<https://github.com/delta-io/delta/blob/master/PROTOCOL.md>).

use std::collections::BTreeMap;
use std::sync::Arc;

use dta_proto::store::StoreSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::data::{DataFileSummary, FileTail};
use crate::epoch::KeptEpoch;
use crate::layout::{EPOCH, Layout, LayoutColumn, SLOT};

/// The key of the store's description in the table's configuration, and in the metadata of its Parquet files.
pub(crate) const STORE: &str = "dta.store";
/// The tag of an `add` that lists the epochs of the file.
const EPOCHS: &str = "dta.epochs";
/// The tag with the checksum of the file's end.
const TAIL: &str = "dta.tail";

/// The protocol versions that a reader and a writer must support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Protocol {
    pub(crate) min_reader_version: u32,
    pub(crate) min_writer_version: u32,
}

/// Supported by every reader since Delta 0.1.
pub(crate) const PROTOCOL: Protocol = Protocol { min_reader_version: 1, min_writer_version: 2 };

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MetaData {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) format: FileFormat,
    pub(crate) schema_string: String,
    pub(crate) partition_columns: Vec<String>,
    pub(crate) configuration: BTreeMap<String, String>,
    pub(crate) created_time: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileFormat {
    provider: String,
    options: BTreeMap<String, String>,
}

impl MetaData {
    pub(crate) fn new(name: &str, spec: &StoreSpec, layout: &Layout, id: String, now: u64) -> MetaData {
        MetaData {
            id,
            name: Some(name.to_owned()),
            description: Some(format!("what the {} store {} held, by epoch", spec.primitive(), spec.name)),
            format: FileFormat { provider: "parquet".to_owned(), options: BTreeMap::new() },
            schema_string: layout.delta_schema(),
            partition_columns: Vec::new(),
            configuration: BTreeMap::from([(STORE.to_owned(), describe_store(spec))]),
            created_time: Some(now),
        }
    }

    /// The store's description; `None` in somebody else's table.
    pub(crate) fn store_spec(&self) -> Option<StoreSpec> {
        serde_json::from_str(self.configuration.get(STORE)?).ok()
    }
}

pub(crate) fn describe_store(spec: &StoreSpec) -> String {
    serde_json::to_string(spec).expect("names and numbers")
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Add {
    pub(crate) path: String,
    pub(crate) partition_values: BTreeMap<String, Option<String>>,
    pub(crate) size: u64,
    pub(crate) modification_time: i64,
    pub(crate) data_change: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stats: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tags: Option<BTreeMap<String, Option<String>>>,
}

impl Add {
    /// A file with these epochs.
    pub(crate) fn new(
        path: String,
        file: &DataFileSummary,
        epochs: &[KeptEpoch],
        layout: &Layout,
        now: u64,
    ) -> Add {
        let with_rows = || epochs.iter().filter(|kept| kept.rows_of.is_none());
        let numbers = || with_rows().map(|kept| kept.epoch.number);
        let mut stats = json!({ "numRecords": with_rows().map(|kept| kept.rows).sum::<u64>() });
        if let (Some((first, last)), Some(oldest), Some(newest)) =
            (file.slots, numbers().min(), numbers().max())
        {
            let of = |number: usize| layout.columns[number].name.as_str();
            stats["minValues"] = json!({ of(EPOCH): oldest, of(SLOT): first });
            stats["maxValues"] = json!({ of(EPOCH): newest, of(SLOT): last });
            let none = |column: &LayoutColumn| (column.name.clone(), Value::from(0));
            stats["nullCount"] = Value::Object(layout.columns.iter().map(none).collect());
        }
        let text = |of: serde_json::Result<String>| Some(of.expect("names and numbers"));
        let epochs = (EPOCHS.to_owned(), text(serde_json::to_string(epochs)));
        let tail = (TAIL.to_owned(), text(serde_json::to_string(&file.tail)));
        Add {
            path,
            partition_values: BTreeMap::new(),
            size: file.bytes,
            modification_time: now as i64,
            data_change: true,
            stats: Some(stats.to_string()),
            tags: Some(BTreeMap::from([epochs, tail])),
        }
    }

    /// The same file with other epochs, but no new rows.
    pub(crate) fn with_epochs(&self, epochs: &[Arc<KeptEpoch>]) -> Add {
        let epochs: Vec<&KeptEpoch> = epochs.iter().map(Arc::as_ref).collect();
        let text = serde_json::to_string(&epochs).expect("names and numbers");
        let mut add = Add { data_change: false, ..self.clone() };
        add.tags.get_or_insert_default().insert(EPOCHS.to_owned(), Some(text));
        add
    }

    /// The epochs in the file, or why they are unknown.
    pub(crate) fn file_epochs(&self) -> Result<Vec<KeptEpoch>, String> {
        let text = self.tag_value(EPOCHS).ok_or_else(|| format!("no {EPOCHS}"))?;
        serde_json::from_str(text).map_err(|error| format!("{EPOCHS}: {error}"))
    }

    /// What the end of the file must be, if known.
    pub(crate) fn expected_tail(&self) -> Option<FileTail> {
        serde_json::from_str(self.tag_value(TAIL)?).ok()
    }

    fn tag_value(&self, name: &str) -> Option<&String> {
        self.tags.as_ref()?.get(name)?.as_ref()
    }
}

/// A data file that is no longer in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remove {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) deletion_timestamp: Option<u64>,
    pub(crate) data_change: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum LogAction {
    Protocol(Protocol),
    MetaData(MetaData),
    Add(Add),
    Remove(Remove),
    CommitInfo(Value),
}

impl LogAction {
    /// Who did what, and when: for people to read.
    pub(crate) fn commit_info(operation: &str, parameters: Value, now: u64) -> LogAction {
        LogAction::CommitInfo(json!({
            "timestamp": now,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": concat!("dta-history/", env!("CARGO_PKG_VERSION")),
        }))
    }

    /// Parses a line. `None`: an action that does not change which files there are.
    pub(crate) fn read(line: &str) -> Result<Option<LogAction>, serde_json::Error> {
        LogAction::from_json(serde_json::from_str(line)?)
    }

    /// As [`LogAction::read`], of a line already parsed as JSON.
    pub(crate) fn from_json(line: Value) -> Result<Option<LogAction>, serde_json::Error> {
        let known = ["protocol", "metaData", "add", "remove"];
        match &line {
            Value::Object(object) if object.keys().all(|name| !known.contains(&name.as_str())) => Ok(None),
            _ => serde_json::from_value(line).map(Some),
        }
    }
}

pub(crate) fn commit_text(actions: &[LogAction]) -> Vec<u8> {
    let mut text = Vec::new();
    for action in actions {
        serde_json::to_writer(&mut text, action).expect("names and numbers");
        text.push(b'\n');
    }
    text
}
