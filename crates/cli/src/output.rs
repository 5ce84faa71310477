//! The flag `-o`: text for people or JSON for programs.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::print_line;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    #[value(alias = "table")]
    Text,
    /// For people, with all columns
    Wide,
    /// For programs: one document, or one per line for endless output
    Json,
}

/// The flag itself.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputFlag {
    /// Output format
    #[arg(long, short, env, value_enum, default_value_t, global = true)]
    pub output: OutputFormat,
}

impl OutputFlag {
    pub fn is_json(self) -> bool {
        self.output == OutputFormat::Json
    }

    /// Prints a document for programs, or the text from `text` for people.
    pub fn print_document<T: Serialize>(
        self,
        document: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        match self.output {
            OutputFormat::Json => print_json(document),
            OutputFormat::Text | OutputFormat::Wide => Ok(print_line(text(document))?),
        }
    }
}

/// Prints a JSON document on several lines.
pub fn print_json(document: &impl Serialize) -> anyhow::Result<()> {
    Ok(print_line(serde_json::to_string_pretty(document)?)?)
}

pub fn json_line(document: &impl Serialize) -> anyhow::Result<()> {
    Ok(print_line(serde_json::to_string(document)?)?)
}

pub fn json_file(path: &Path, document: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(document)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
