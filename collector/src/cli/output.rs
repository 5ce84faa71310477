//! Printing: tables for people, JSON for programs.

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};
use serde::Serialize;

/// How a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs: one document, or one line per message where there is no end.
    Json,
}

/// A table with a header; `right` are the columns of numbers.
pub(super) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    // Lines between rows would double the height of every answer.
    table.remove_style(TableComponent::HorizontalLines).remove_style(TableComponent::MiddleIntersections);
    table.set_header(header);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(super) use dta_cli::print as line;

/// Prints a JSON document.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// Prints one line of JSON.
pub(super) fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string(value)?)?;
    Ok(())
}

/// Bytes as hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// A count with thousands set apart: `1,234,567`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as per cent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Bytes in the unit that people would use.
pub(super) fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([512, 1024, 1536, 16 << 20].map(bytes), ["512 B", "1 KiB", "1.5 KiB", "16 MiB"]);
        assert_eq!(hex(&[0, 0xab]), "00ab");
    }
}
