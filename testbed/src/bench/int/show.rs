//! Prints figures for people.

use dta_cli::table::{Cell, Colour, OutputStyle, TextTable};

use super::super::show::verdict_cells;
use super::super::{Beside, Figure};

/// The meaning of the columns.
const METHOD: &str = "\
Nanoseconds of one core per report, frame to memory; from sockets, between one
report and the next. INTCollector: its XDP program, measured on another machine.";

/// A table with a row for each figure.
pub fn render_figures(figures: &[Figure], look: OutputStyle) -> String {
    let mut table = TextTable::new(
        &["reports of INT", "ns", "floor", "ratio", "least", "INTCollector", ""],
        &[1, 2, 3, 4, 5],
    );
    for figure in figures {
        let [least, mark] = verdict_cells(figure);
        let theirs = match figure.beside {
            Beside::IntCollector(Some(theirs)) => {
                let colour = if figure.value < theirs { Colour::Green } else { Colour::Red };
                Cell::with_colour(format!("{theirs:.0}"), colour)
            }
            _ => Cell::from(""),
        };
        table.add_row([
            Cell::from(figure.what),
            Cell::from(format!("{:.0}", figure.value)),
            Cell::from(format!("{:.0}", figure.floor)),
            Cell::from(format!("{:.2}", figure.ratio)),
            least,
            theirs,
            mark,
        ]);
    }
    format!("{}\n{METHOD}", table.render_for(look))
}

#[cfg(test)]
mod tests {
    use super::super::CASES;
    use super::*;

    #[test]
    fn the_table_fits_80_columns_and_shows_both_verdicts() {
        let figures = CASES.map(|case| Figure {
            name: case.name,
            unit: "ns/report",
            value: 1234.5,
            floor: 600.0,
            ratio: 0.486,
            least_ratio: case.least_ratio,
            beside: case.beside,
            what: case.what,
        });
        let text = render_figures(&figures, OutputStyle::for_terminal(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in ["1234", "600", "0.49", "0.40", "255", "458", "good", "below", "shown"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
