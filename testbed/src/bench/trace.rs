//! What host tracing costs per packet, by the kernel's own test runs.

use anyhow::Result;
use dta_cli::table::{Cell, Colour, Look, Table};
use dta_reporter::packet_trace::kernel::{Options, costs};
use serde::Serialize;

/// One path through the program at an interface.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Nanoseconds of one run; the fastest turn.
    pub nanoseconds: f64,
    /// The same for the empty program.
    pub ratio: f64,
    /// The largest allowed ratio; `None` if unlimited.
    pub most: Option<f64>,
}

impl Row {
    /// Whether it takes longer than it should.
    pub fn is_above(&self) -> bool {
        self.most.is_some_and(|most| self.ratio > most)
    }
}

/// Measures all paths. Needs the privileges of tracing.
pub fn rows(quick: bool) -> Result<Vec<Row>> {
    let (turns, runs) = if quick { (5, 2000) } else { (200, 10_000) };
    let costs = costs(&Options::default(), turns, runs)?;
    let row = |cost: dta_reporter::packet_trace::kernel::Cost| Row {
        name: cost.path,
        nanoseconds: cost.nanoseconds,
        ratio: cost.ratio,
        most: cost.most,
    };
    Ok(costs.into_iter().map(row).collect())
}

/// For people.
pub fn table(rows: &[Row], look: Look) -> String {
    let mut table = Table::new(&["a packet at an interface (tcx)", "ns", "ratio", "most", ""], &[1, 2, 3]);
    for row in rows {
        let mark = match row.most {
            None => Cell::from("shown"),
            Some(_) if row.is_above() => Cell::coloured("above", Colour::Red),
            Some(_) => Cell::coloured("good", Colour::Green),
        };
        table.row([
            Cell::from(row.name),
            Cell::from(format!("{:.0}", row.nanoseconds)),
            Cell::from(format!("{:.2}", row.ratio)),
            Cell::from(row.most.map_or_else(String::new, |most| format!("{most:.1}"))),
            mark,
        ]);
    }
    table.draw(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_it_should_is_marked() {
        let row = |name, ratio, most| Row { name, nanoseconds: 30.0 * ratio, ratio, most };
        let rows = [row("one", 4.5, Some(4.0)), row("two", 4.0, Some(4.0)), row("three", 9.0, None)];
        assert_eq!(rows.clone().map(|row| row.is_above()), [true, false, false]);
        let told = table(&rows, Look::PIPE);
        let marks: Vec<_> = told.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(marks, ["above", "good", "shown"]);
    }
}
