//! What host tracing costs per packet, by the kernel's own test runs.

use anyhow::Result;
use dta_cli::table::{Cell, Colour, OutputStyle, TextTable};
use dta_reporter::packet_trace::kernel::{TracerOptions, measure_costs};
use serde::Serialize;

/// One path through the program at an interface.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TracePathCost {
    pub name: &'static str,
    /// Nanoseconds of one run; the fastest turn.
    pub nanoseconds: f64,
    /// `nanoseconds` relative to the empty program.
    pub ratio: f64,
    /// The largest allowed ratio; `None` if unlimited.
    pub most: Option<f64>,
}

impl TracePathCost {
    /// Whether it takes longer than it should.
    pub fn is_above_limit(&self) -> bool {
        self.most.is_some_and(|most| self.ratio > most)
    }
}

/// Measures all paths. Needs the privileges of tracing.
pub fn measure_path_costs(quick: bool) -> Result<Vec<TracePathCost>> {
    let (turns, runs) = if quick { (5, 2000) } else { (200, 10_000) };
    let costs = measure_costs(&TracerOptions::default(), turns, runs)?;
    let row = |cost: dta_reporter::packet_trace::kernel::Cost| TracePathCost {
        name: cost.path,
        nanoseconds: cost.nanoseconds,
        ratio: cost.ratio,
        most: cost.most,
    };
    Ok(costs.into_iter().map(row).collect())
}

pub fn render_costs(rows: &[TracePathCost], look: OutputStyle) -> String {
    let mut table =
        TextTable::new(&["a packet at an interface (tcx)", "ns", "ratio", "most", ""], &[1, 2, 3]);
    for row in rows {
        let mark = match row.most {
            None => Cell::from("shown"),
            Some(_) if row.is_above_limit() => Cell::with_colour("above", Colour::Red),
            Some(_) => Cell::with_colour("good", Colour::Green),
        };
        table.add_row([
            Cell::from(row.name),
            Cell::from(format!("{:.0}", row.nanoseconds)),
            Cell::from(format!("{:.2}", row.ratio)),
            Cell::from(row.most.map_or_else(String::new, |most| format!("{most:.1}"))),
            mark,
        ]);
    }
    table.render_for(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_it_should_is_marked() {
        let row = |name, ratio, most| TracePathCost { name, nanoseconds: 30.0 * ratio, ratio, most };
        let rows = [row("one", 4.5, Some(4.0)), row("two", 4.0, Some(4.0)), row("three", 9.0, None)];
        assert_eq!(rows.clone().map(|row| row.is_above_limit()), [true, false, false]);
        let table = render_costs(&rows, OutputStyle::PIPE);
        let marks: Vec<_> = table.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(marks, ["above", "good", "shown"]);
    }
}
