//! `bfrt.json`: the description of the tables of a program compiled for Tofino, and of the switch's own.

use serde::Deserialize;

/// A `bfrt.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct BfrtInfo {
    /// Its tables; counters and registers are tables, too.
    pub tables: Vec<BfrtTable>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtTable {
    /// Its name, with that of the pipe and the blocks that it stands in.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// What it is: `MatchAction_Direct`, `Counter`, `Register` and others.
    pub table_type: String,
    /// How many rows it holds; 0 where it does not say.
    #[serde(default)]
    pub size: u64,
    /// Fields of its key.
    #[serde(default)]
    pub key: Vec<BfrtKey>,
    /// Its actions.
    #[serde(default)]
    pub action_specs: Vec<BfrtAction>,
    /// Data that is of no action.
    #[serde(default)]
    pub data: Vec<BfrtData>,
}

/// A field of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtKey {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// How it is matched: `Exact`, `LPM`, `Range`, `Ternary`.
    pub match_type: String,
    /// How wide it is.
    #[serde(rename = "type")]
    pub kind: BfrtType,
}

/// An action.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtAction {
    /// Its number.
    pub id: u32,
    /// Its name, with those of the blocks that it stands in.
    pub name: String,
    /// Its parameters.
    #[serde(default)]
    pub data: Vec<BfrtField>,
}

/// Data of a table: one field, as a rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtData {
    /// The field.
    pub singleton: BfrtField,
}

/// A parameter, or a field of data.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtField {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// How wide it is. A field that holds others has none: those of hashes and snapshots, which are not used here.
    #[serde(rename = "type", default)]
    pub kind: BfrtType,
}

/// A type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct BfrtType {
    /// `bytes`, `uint16`, `uint32`, `uint64`, `bool`, `string` and others.
    #[serde(rename = "type")]
    pub name: String,
    /// Bits, of `bytes`.
    #[serde(default)]
    pub width: Option<u16>,
}

impl BfrtType {
    /// Its bits.
    pub fn bits(&self) -> u16 {
        match (self.name.as_str(), self.width) {
            (_, Some(width)) => width,
            ("uint8", None) => 8,
            ("uint16", None) => 16,
            ("uint32", None) => 32,
            ("uint64", None) => 64,
            _ => 1,
        }
    }
}

impl BfrtInfo {
    /// The table whose name ends so, behind a dot.
    pub fn table(&self, name: &str) -> Option<&BfrtTable> {
        self.tables.iter().find(|table| table.name == name || last(&table.name) == name)
    }

    /// The table of a number.
    pub fn table_of(&self, id: u32) -> Option<&BfrtTable> {
        self.tables.iter().find(|table| table.id == id)
    }
}

/// The part of a name behind its last dot.
pub fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
