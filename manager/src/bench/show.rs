//! Figures for people and for programs.

use comfy_table::{Cell, CellAlignment, Color, Table, presets};

use super::Figure;
use crate::testbed::show::short;

/// A table within 80 columns.
pub fn table(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "benchmark",
        "per s",
        "floor",
        "ratio",
        "least",
        "",
    ]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for figure in figures {
        let asked = figure.least_ratio > 0.0;
        let (mark, color) = match figure.ratio >= figure.least_ratio {
            true if !asked => ("told", Color::Reset),
            true => ("good", Color::Green),
            false => ("below", Color::Red),
        };
        let least = if asked { format!("{:.2}", figure.least_ratio) } else { String::new() };
        let what = match figure.target {
            Some(target) => format!("{}\naim {}/s", wrapped(figure.what), short(target)),
            None => wrapped(figure.what),
        };
        table.add_row([
            Cell::new(what),
            right(short(figure.value)),
            right(short(figure.floor)),
            right(format!("{:.2}", figure.ratio)),
            right(least),
            Cell::new(mark).fg(color),
        ]);
    }
    table.to_string()
}

/// Lines of at most 34 characters, broken between words.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is a line from the start");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > 34 {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.join("\n")
}

/// A JSON list of `{name, unit, value, floor, ratio, …}`.
pub fn json(figures: &[Figure]) -> String {
    serde_json::to_string_pretty(figures).expect("numbers and strings always serialize")
}

#[cfg(test)]
mod tests {
    use super::super::CASES;
    use super::*;

    #[test]
    fn the_table_fits_80_columns_and_the_json_has_every_field() {
        let figures: Vec<_> = CASES
            .iter()
            .map(|case| Figure {
                name: case.name,
                unit: "ops/s",
                value: 123_456_789.0,
                floor: 223_456_789.0,
                ratio: 0.55,
                least_ratio: case.least_ratio,
                target: case.target,
                what: case.what,
            })
            .collect();
        let text = table(&figures);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let json: serde_json::Value = serde_json::from_str(&json(&figures)).unwrap();
        assert_eq!(json.as_array().unwrap().len(), CASES.len());
        for key in ["value", "floor", "ratio"] {
            assert!(json[0][key].is_f64());
        }
        assert_eq!(json[0]["unit"], "ops/s");
    }
}
