//! The list's own types. Every field is documented in `testbed/roce-conformance/README.md`.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use super::bytes::Bytes;

/// All cases, in the order of the files' names.
pub fn cases() -> Vec<Case> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        case: Vec<Case>,
    }
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testbed/roce-conformance");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    files
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let file: File = toml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            file.case
        })
        .collect()
}

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Case {
    pub name: String,
    pub row: String,
    pub transport: Transport,
    #[serde(default = "start_psn")]
    pub start_psn: u32,
    #[serde(default = "all_rights")]
    pub access: Vec<Right>,
    #[serde(default)]
    pub receives: u32,
    #[serde(default = "resources")]
    pub resources: u8,
    #[serde(default)]
    pub initial: Vec<Patch>,
    pub step: Vec<Step>,
    /// Why the kernel's responder is known to do otherwise.
    pub rxe_differs: Option<String>,
    /// Why the case must not be put before the kernel's responder at all.
    pub rxe_skip: Option<String>,
}

fn start_psn() -> u32 {
    100
}

fn resources() -> u8 {
    16
}

fn all_rights() -> Vec<Right> {
    vec![Right::Write, Right::Read, Right::Atomic]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    Rc,
    Uc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Right {
    Write,
    Read,
    Atomic,
}

/// The regions that every case has: name, bytes, rights.
pub const REGIONS: [(&str, u64, &[Right]); 4] = [
    ("main", 16384, &[Right::Write, Right::Read, Right::Atomic]),
    ("write-only", 4096, &[Right::Write]),
    ("read-only", 4096, &[Right::Read]),
    ("atomic-only", 4096, &[Right::Atomic]),
];

/// Bytes at a place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    #[serde(default = "main_region")]
    pub region: String,
    pub at: usize,
    pub bytes: Bytes,
}

pub fn main_region() -> String {
    "main".into()
}

/// One packet, and everything that is seen after it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Step {
    pub send: Send,
    #[serde(default)]
    pub replies: Vec<Reply>,
    #[serde(default)]
    pub writes: Vec<Patch>,
    /// State from here on; unchanged without it.
    pub state: Option<QpState>,
    /// The PSN expected from here on, less the start PSN; unchanged without it.
    pub next_psn: Option<u32>,
    #[serde(default)]
    pub immediates: Vec<ImmediateSeen>,
    /// What the software NIC counts it as.
    pub fate: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QpState {
    Rtr,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImmediateSeen {
    pub value: u32,
    pub len: u32,
}

/// An operation by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    WriteFirst,
    WriteMiddle,
    WriteLast,
    WriteLastImm,
    WriteOnly,
    WriteOnlyImm,
    Read,
    ReadResponseFirst,
    ReadResponseMiddle,
    ReadResponseLast,
    ReadResponseOnly,
    Ack,
    AtomicAck,
    CmpSwap,
    FetchAdd,
}

/// A packet to send.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Send {
    pub op: Op,
    pub psn: i64,
    #[serde(default)]
    pub ack: bool,
    #[serde(default = "main_region")]
    pub region: String,
    #[serde(default)]
    pub at: i64,
    pub length: Option<u32>,
    #[serde(default)]
    pub payload: Bytes,
    #[serde(default, deserialize_with = "number")]
    pub add: u64,
    #[serde(default, deserialize_with = "number")]
    pub swap: u64,
    #[serde(default, deserialize_with = "number")]
    pub compare: u64,
    #[serde(default)]
    pub imm: u32,
    // What makes a packet unusual.
    pub transport: Option<Transport>,
    pub opcode: Option<u8>,
    #[serde(default, deserialize_with = "optional_number")]
    pub va: Option<u64>,
    pub rkey: Option<Rkey>,
    pub dest_qp: Option<DestQp>,
    pub pad: Option<u8>,
    pub pkey: Option<u16>,
    pub migreq: Option<bool>,
    #[serde(default)]
    pub solicited: bool,
    #[serde(default)]
    pub transport_version: u8,
    #[serde(default)]
    pub congestion: u8,
    #[serde(default)]
    pub reserved: u8,
    pub source: Option<Source>,
    pub source_port: Option<u16>,
    #[serde(default)]
    pub udp_checksum: UdpChecksum,
    pub ttl: Option<u8>,
    #[serde(default)]
    pub tos: u8,
    #[serde(default)]
    pub id: u16,
    #[serde(default = "yes")]
    pub df: bool,
    #[serde(default)]
    pub icrc: Icrc,
    #[serde(default)]
    pub flip: Vec<usize>,
    pub cut: Option<usize>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rkey {
    Zero,
    Unknown,
    Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestQp {
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Stranger,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UdpChecksum {
    #[default]
    None,
    Right,
    Wrong,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Icrc {
    #[default]
    Right,
    Wrong,
    BigEndian,
}

/// An answer that must come.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reply {
    pub op: Op,
    pub psn: i64,
    pub syndrome: Option<u8>,
    pub msn: Option<u32>,
    #[serde(default, deserialize_with = "optional_number")]
    pub before: Option<u64>,
    #[serde(default)]
    pub payload: Bytes,
}

/// A number of 64 bits: TOML has 63, so it may be text as well (`"0xffffffffffffffff"`).
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Plain(u64),
        Text(String),
    }
    match Number::deserialize(from)? {
        Number::Plain(n) => Ok(n),
        Number::Text(text) => text
            .strip_prefix("0x")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not 0x and hex digits"))),
    }
}

fn optional_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    number(from).map(Some)
}
