//! Figures for people and for programs.

use comfy_table::{Cell, CellAlignment, Color, Table, presets};

use super::Row;
use crate::testbed::show::short;

/// How the figures came about, for whoever reads the table.
const METHOD: &str = "\
CPU time of a frame: the whole machine's, less that of sending the same frames
to an Ethernet address that nobody has (sender alone). Every frame landed.";

/// A table within 80 columns, and how its figures came about.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "",
        "per s",
        "CPU time",
        "CPU, of sender's",
    ]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let time = |nanos: f64| format!("{:.2} µs", nanos / 1000.0);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "—".to_owned(), |ratio| format!("{ratio:.2}"));
    // Rows come in pairs: rate, then CPU time.
    for pair in rows.chunks_exact(2) {
        let [rate, cpu] = pair else { continue };
        if rate.name.ends_with(".soft") {
            let case = rate.name.trim_end_matches("soft");
            table.add_row([
                Cell::new(format!("{case}sender alone")),
                right(short(rate.floor)),
                right(time(cpu.floor)),
                right(String::new()),
            ]);
        }
        if rate.name.ends_with(".soft/rxe") {
            let color = if cpu.is_soft_slower() { Color::Red } else { Color::Green };
            table.add_row([
                Cell::new(&rate.name),
                right(ratio(rate.ratio)),
                right(ratio(cpu.ratio)).fg(color),
                right(String::new()),
            ]);
        } else {
            table.add_row([
                Cell::new(&rate.name),
                right(short(rate.value)),
                right(time(cpu.value)),
                right(ratio(cpu.ratio)),
            ]);
        }
    }
    format!("{table}\n{METHOD}")
}

/// A JSON list of `{name, unit, value, floor, ratio}`.
pub fn json(rows: &[Row]) -> String {
    serde_json::to_string_pretty(rows).expect("numbers and strings always serialize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns_and_shows_the_ratio_of_the_two() {
        let row = |nic: &str, unit, value, floor| Row::new(format!("rc-write-64.{nic}"), unit, value, floor);
        let rows = [
            row("soft", "ops/s", 123_456.0, 234_567.0),
            row("soft", "ns/op", 4_200.0, 3_900.0),
            row("rxe", "ops/s", 72_345.0, 234_567.0),
            row("rxe", "ns/op", 8_400.0, 3_900.0),
            row("soft/rxe", "ops/s", 123_456.0, 72_345.0),
            row("soft/rxe", "ns/op", 4_200.0, 8_400.0),
        ];
        let text = table(&rows);
        let widths = text.lines().map(|line| line.chars().count());
        assert!(widths.max().is_some_and(|widest| widest <= 80), "{text}");
        for part in ["rc-write-64.sender alone", "3.90 µs", "8.40 µs", "1.71", "0.50"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!rows.iter().any(Row::is_soft_slower));
        assert!(row("soft/rxe", "ns/op", 2.0, 1.0).is_soft_slower());
        assert!(row("soft/rxe", "ns/op", 2.0, 0.0).is_soft_slower());
        assert!(table(&[row("rxe", "ops/s", 1.0, 1.0), row("rxe", "ns/op", 1.0, 0.0)]).contains('—'));
        let json: serde_json::Value = serde_json::from_str(&json(&rows)).unwrap();
        assert_eq!(json[5]["name"], "rc-write-64.soft/rxe");
        assert_eq!((json[5]["unit"].as_str(), json[5]["ratio"].as_f64()), (Some("ns/op"), Some(0.5)));
    }
}
