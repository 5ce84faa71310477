//! Prints figures for people.

use dta_cli::table::{Cell, Colour, Look, Table};

use super::Row;

/// The meaning of the columns.
const METHOD: &str = "\
Nanoseconds of one core per report, frame to memory; from sockets, between one
report and the next. INTCollector: its XDP program, measured on another machine.";

/// A table with a row for each figure.
pub fn table(rows: &[Row], look: Look) -> String {
    let mut table = Table::new(
        &["reports of INT", "ns", "floor", "ratio", "least", "INTCollector", ""],
        &[1, 2, 3, 4, 5],
    );
    for row in rows {
        let asked = row.least_ratio > 0.0;
        let mark = match (asked, row.is_below()) {
            (false, _) => Cell::from("shown"),
            (true, false) => Cell::coloured("good", Colour::Green),
            (true, true) => Cell::coloured("below", Colour::Red),
        };
        let theirs = match row.intcollector {
            Some(theirs) if row.value < theirs => Cell::coloured(format!("{theirs:.0}"), Colour::Green),
            Some(theirs) => Cell::coloured(format!("{theirs:.0}"), Colour::Red),
            None => Cell::from(""),
        };
        table.row([
            Cell::from(row.what),
            Cell::from(format!("{:.0}", row.value)),
            Cell::from(format!("{:.0}", row.floor)),
            Cell::from(format!("{:.2}", row.ratio)),
            Cell::from(if asked { format!("{:.2}", row.least_ratio) } else { String::new() }),
            theirs,
            mark,
        ]);
    }
    format!("{}\n{METHOD}", table.draw(look))
}

#[cfg(test)]
mod tests {
    use super::super::CASES;
    use super::*;

    #[test]
    fn the_table_fits_80_columns_and_shows_both_verdicts() {
        let rows = CASES.map(|case| Row {
            name: case.name,
            unit: "ns/report",
            value: 1234.5,
            floor: 600.0,
            ratio: 0.486,
            least_ratio: case.least_ratio,
            intcollector: case.intcollector,
            what: case.what,
        });
        let text = table(&rows, Look::terminal(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in ["1234", "600", "0.49", "0.40", "255", "458", "good", "below", "shown"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
