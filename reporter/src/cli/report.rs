//! The kinds of reports that can be sent.

use clap::Subcommand;
use dta_proto::key::Key;
use dta_proto::wire::dta::DtaBody;
use serde::Deserialize;

use super::value::ReportValue;

// By its primitive: a subcommand of `send`, and a line of a file. (No doc comment: clap would print it.)
#[derive(Clone, Debug, PartialEq, Subcommand, Deserialize)]
#[serde(tag = "primitive", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum ReportArgs {
    /// The last value of a key
    #[command(after_help = "\
Example:
  dta-reporter send key-write --store flows --value 1500 \\
      --key '10.0.0.1:5000->10.0.0.2:5000/udp'")]
    KeyWrite {
        /// Flow, or up to 32 hex digits
        #[arg(long)]
        key: Key,
        /// Copies; 0 for as many as the store has
        #[arg(long, value_name = "N", default_value_t = 0)]
        #[serde(default)]
        redundancy: u8,
        /// 4 to 60 bytes: numbers or 0x and hex, joined by commas
        #[arg(long)]
        value: ReportValue,
    },
    /// An entry at the end of a list
    #[command(after_help = "\
Example:
  dta-reporter send append --store 3 --list 3 --value 1,2,3,0xdeadbeef")]
    Append {
        /// List, from 0
        #[arg(long)]
        list: u32,
        /// 4 to 60 bytes: numbers or 0x and hex, joined by commas
        #[arg(long)]
        value: ReportValue,
    },
    /// Addition to the counters of a key
    #[command(after_help = "\
Example:
  dta-reporter send key-increment --delta 1500 \\
      --key '10.0.0.1:5000->10.0.0.2:5000/udp'")]
    KeyIncrement {
        /// Flow, or up to 32 hex digits
        #[arg(long)]
        key: Key,
        /// Copies; 0 for as many as the store has
        #[arg(long, value_name = "N", default_value_t = 0)]
        #[serde(default)]
        redundancy: u8,
        /// What to add
        #[arg(long)]
        delta: u64,
    },
    /// One hop of a path
    #[command(
        visible_alias = "postcard",
        override_usage = "dta-reporter send postcarding [OPTIONS] --key <KEY> --hop <N> --value <N>",
        after_help = "\
Example:
  dta-reporter send postcarding --hop 2 --path-length 5 --value 103 \\
      --key '10.0.0.1:5000->10.0.0.2:5000/udp'"
    )]
    #[serde(alias = "postcard")]
    Postcarding {
        /// Flow, or up to 32 hex digits
        #[arg(long)]
        key: Key,
        /// Hop, from 0 to 13
        #[arg(long)]
        hop: u8,
        /// Hops of the whole path, 1 to 14; 0 when it is not known
        #[arg(long, default_value_t = 0)]
        #[serde(default)]
        path_length: u8,
        /// What the hop reports: 4 bytes
        #[arg(long)]
        value: ReportValue,
    },
    /// One column of a sketch, to be merged with those of other reporters
    #[command(
        override_usage = "dta-reporter send sketch-merge [OPTIONS] --epoch <N> --column <N> \\\n           --cells <N,N,…>",
        after_help = "\
Example:
  dta-reporter send sketch-merge --epoch 1 --column 17 --cells 12,40,8"
    )]
    SketchMerge {
        /// Epoch of the sketch
        #[arg(long)]
        epoch: u32,
        /// Column, from 0
        #[arg(long)]
        column: u32,
        /// The cells of 1 to 4 rows, joined by commas
        #[arg(long)]
        cells: ReportValue,
    },
}

impl ReportArgs {
    /// The contents of the report.
    pub(super) fn to_body(&self) -> Result<DtaBody<'_>, String> {
        Ok(match self {
            ReportArgs::KeyWrite { key, redundancy, value } => {
                DtaBody::KeyWrite { redundancy: *redundancy, key: *key, value: value.as_bytes() }
            }
            ReportArgs::Append { list, value } => DtaBody::Append { list: *list, value: value.as_bytes() },
            ReportArgs::KeyIncrement { key, redundancy, delta } => {
                DtaBody::KeyIncrement { redundancy: *redundancy, key: *key, delta: *delta }
            }
            ReportArgs::Postcarding { key, hop, path_length, value } => {
                DtaBody::Postcard { key: *key, hop: *hop, path_length: *path_length, value: value.to_u32()? }
            }
            ReportArgs::SketchMerge { epoch, column, cells } => {
                DtaBody::SketchMerge { epoch: *epoch, column: *column, cells: cells.as_bytes() }
            }
        })
    }

    /// Its key and its value, if it has them.
    pub(super) fn key_and_value_mut(&mut self) -> (Option<&mut Key>, Option<&mut ReportValue>) {
        match self {
            ReportArgs::KeyWrite { key, value, .. } | ReportArgs::Postcarding { key, value, .. } => {
                (Some(key), Some(value))
            }
            ReportArgs::Append { value, .. } => (None, Some(value)),
            ReportArgs::KeyIncrement { key, .. } => (Some(key), None),
            ReportArgs::SketchMerge { cells, .. } => (None, Some(cells)),
        }
    }
}
