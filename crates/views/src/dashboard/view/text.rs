//! Formats rates, bars, and lines that fit.

use std::borrow::Cow;

use dta_cli::escape::{escape_hidden, is_hidden};
use dta_cli::number;
use dta_cli::table::words_in_lines;
use ratatui::buffer::{Buffer, Cell};
use ratatui::text::Line;

/// A share as a bar of `width` characters; full at 1 and above.
pub(super) fn gauge_bar(share: f64, width: usize) -> String {
    let filled = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

/// A short rate, with a decimal below ten so that a small one does not look like zero.
pub(super) fn short_rate(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { number::format_short(rate) }
}

/// A short count per second; empty if unknown.
pub(super) fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(String::new, |rate| format!("{}/s", short_rate(rate)))
}

/// At most `width` characters (at least one); a mark shows that something is cut off.
pub(super) fn truncate_text(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// The line if it fits, else its words wrapped into lines of at most `width` characters.
pub(super) fn wrap_to_width(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width { vec![line.into()] } else { words_in_lines(line, width) }
}

/// Escapes control characters in the lines of a paragraph, which would leave them out.
pub(super) fn escape_hidden_lines(mut lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    for span in lines.iter_mut().flat_map(|line| &mut line.spans) {
        if let Cow::Owned(escaped) = escape_hidden(&span.content) {
            span.content = escaped.into();
        }
    }
    lines
}

/// Escapes control characters everywhere else, moving the rest of the line to the right.
pub(super) fn escape_hidden_cells(buffer: &mut Buffer) {
    let area = buffer.area;
    for y in area.top()..area.bottom() {
        let row: Vec<Cell> = (area.left()..area.right()).map(|x| buffer[(x, y)].clone()).collect();
        if !row.iter().any(|cell| cell.symbol().contains(is_hidden)) {
            continue;
        }
        let mut at = area.left();
        for cell in row {
            let room = usize::from(area.right().saturating_sub(at));
            (at, _) = buffer.set_stringn(at, y, escape_hidden(cell.symbol()), room, cell.style());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_short_and_true() {
        assert_eq!([0.0, 0.4, 9.9, 12.4, 12_345.0].map(short_rate), ["0", "0.4", "9.9", "12", "12.3k"]);
        assert_eq!((per_second(Some(5.0)), per_second(None)), ("5.0/s".into(), String::new()));
        assert_eq!((truncate_text("abcdef", 4), truncate_text("abcd", 4)), ("abc…".into(), "abcd".into()));
        assert_eq!(gauge_bar(0.5, 4), "██░░");
        assert_eq!(wrap_to_width("a  b", 4), ["a  b"]);
        assert_eq!(wrap_to_width("a  b", 3), ["a b"]);
        assert_eq!(wrap_to_width("to be or not to be", 6), ["to be", "or not", "to be"]);
    }
}
