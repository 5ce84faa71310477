//! Prints figures for people.

use dta_cli::number::format_short;
use dta_cli::table::{Cell, Colour, OutputStyle, TextTable};

use super::{Beside, Figure};

/// A table with a row for each figure.
pub fn render_figures(figures: &[Figure], look: OutputStyle) -> String {
    let mut table = TextTable::new(&["benchmark", "per s", "floor", "ratio", "least", ""], &[1, 2, 3, 4]);
    for figure in figures {
        let [least, mark] = verdict_cells(figure);
        let what = match figure.beside {
            Beside::Target(Some(target)) => format!("{} (aim {}/s)", figure.what, format_short(target)),
            _ => figure.what.to_owned(),
        };
        table.add_row([
            Cell::from(what),
            Cell::from(format_short(figure.value)),
            Cell::from(format_short(figure.floor)),
            Cell::from(format!("{:.2}", figure.ratio)),
            least,
            mark,
        ]);
    }
    table.render_for(look)
}

/// The required ratio, and whether a figure reaches it.
pub(super) fn verdict_cells(figure: &Figure) -> [Cell; 2] {
    if figure.least_ratio <= 0.0 {
        return ["", "shown"].map(Cell::from);
    }
    let mark = match figure.is_below_required() {
        true => Cell::with_colour("below", Colour::Red),
        false => Cell::with_colour("good", Colour::Green),
    };
    [Cell::from(format!("{:.2}", figure.least_ratio)), mark]
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
                beside: case.beside,
                what: case.what,
            })
            .collect();
        let text = render_figures(&figures, OutputStyle::for_terminal(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let json = serde_json::to_value(&figures).unwrap();
        assert_eq!(json.as_array().unwrap().len(), CASES.len());
        for key in ["value", "floor", "ratio"] {
            assert!(json[0][key].is_f64());
        }
        assert_eq!(json[0]["unit"], "ops/s");
    }
}
