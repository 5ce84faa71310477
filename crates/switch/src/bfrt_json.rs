//! `bfrt.json`: the description of the tables of a program compiled for Tofino, and of the switch's built-in
//! tables.

use serde::Deserialize;

/// A `bfrt.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct BfrtInfo {
    /// Its tables, which include counters and registers.
    pub tables: Vec<BfrtTable>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtTable {
    /// Its full name, with pipe and blocks.
    pub name: String,
    pub id: u32,
    /// Its kind: `MatchAction_Direct`, `Counter`, `Register` and others.
    pub table_type: String,
    /// Its number of rows; 0 if unspecified.
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    pub key: Vec<BfrtKey>,
    #[serde(default)]
    pub action_specs: Vec<BfrtAction>,
    /// Data that belongs to no action.
    #[serde(default)]
    pub data: Vec<BfrtData>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtKey {
    pub id: u32,
    pub name: String,
    /// How it is matched: `Exact`, `LPM`, `Range`, `Ternary`.
    pub match_type: String,
    #[serde(rename = "type")]
    pub kind: BfrtType,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtAction {
    pub id: u32,
    /// Its full name, with blocks.
    pub name: String,
    #[serde(default)]
    pub data: Vec<BfrtField>,
}

/// Data of a table, usually one field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtData {
    pub singleton: BfrtField,
}

/// A parameter, or a field of data.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BfrtField {
    pub id: u32,
    pub name: String,
    /// Its width. A container field has none: those of hashes and snapshots, which are not used here.
    #[serde(rename = "type", default)]
    pub kind: BfrtType,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct BfrtType {
    /// `bytes`, `uint16`, `uint32`, `uint64`, `bool`, `string` and others.
    #[serde(rename = "type")]
    pub name: String,
    /// Bits, for `bytes`.
    #[serde(default)]
    pub width: Option<u16>,
}

impl BfrtType {
    pub fn bit_width(&self) -> u16 {
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
    /// The table whose name ends with a dot and this.
    pub fn table_by_name(&self, name: &str) -> Option<&BfrtTable> {
        self.tables.iter().find(|table| table.name == name || last_segment(&table.name) == name)
    }

    pub fn table_by_id(&self, id: u32) -> Option<&BfrtTable> {
        self.tables.iter().find(|table| table.id == id)
    }
}

/// The part of a name after its last dot.
pub fn last_segment(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
