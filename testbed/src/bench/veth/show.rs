//! Prints figures for people.

use dta_cli::number::format_short;
use dta_cli::table::{Cell, Colour, OutputStyle, TextTable};

use super::VethFigure;

/// How the figures were measured.
const METHOD: &str = "\
CPU time of a frame: the whole machine's, less that of sending the same frames
to an Ethernet address that nobody has (sender alone); in xdp/soft and
runs/plain, with it. xdp: both ends by AF_XDP; soft: both by AF_PACKET.
runs/plain: rxe, UDP sockets. posted/frames: a translator's engine and link,
to rxe by work requests or raw frames; CPU time without softirqs, and, where
it says all, with them. Every frame landed.";

/// A table, and how its figures were measured.
pub fn render_figures(rows: &[VethFigure], look: OutputStyle) -> String {
    let mut table = TextTable::new(&["", "per s", "CPU time", "CPU, of sender's"], &[1, 2, 3]);
    let time = |nanos: f64| format!("{:.2} µs", nanos / 1000.0);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "—".to_owned(), |ratio| format!("{ratio:.2}"));
    // Rows come in pairs: rate, then CPU time.
    for pair in rows.chunks_exact(2) {
        let [rate, cpu] = pair else { continue };
        if rate.name.ends_with(".soft") {
            let case = rate.name.trim_end_matches("soft");
            table.add_row([
                format!("{case}sender alone"),
                format_short(rate.floor),
                time(cpu.floor),
                String::new(),
            ]);
        }
        if rate.name.ends_with(".xdp") {
            table.add_row([
                format!("{} sender alone", rate.name),
                format_short(rate.floor),
                time(cpu.floor),
                String::new(),
            ]);
        }
        if rate.name.contains('/') {
            let slower = cpu.is_soft_slower() || rate.is_xdp_slower();
            let colour = if slower { Colour::Red } else { Colour::Green };
            table.add_row([
                Cell::from(rate.name.clone()),
                Cell::from(ratio(rate.ratio)),
                Cell::with_colour(ratio(cpu.ratio), colour),
            ]);
        } else {
            table.add_row([rate.name.clone(), format_short(rate.value), time(cpu.value), ratio(cpu.ratio)]);
        }
    }
    format!("{}\n{METHOD}", table.render_for(look))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns_and_shows_the_ratio_of_the_two() {
        let row =
            |nic: &str, unit, value, floor| VethFigure::new(format!("rc-write-64.{nic}"), unit, value, floor);
        let rows = [
            row("soft", "ops/s", 123_456.0, 234_567.0),
            row("soft", "ns/op", 4_200.0, 3_900.0),
            row("rxe", "ops/s", 72_345.0, 234_567.0),
            row("rxe", "ns/op", 8_400.0, 3_900.0),
            row("soft/rxe", "ops/s", 123_456.0, 72_345.0),
            row("soft/rxe", "ns/op", 4_200.0, 8_400.0),
        ];
        let text = render_figures(&rows, OutputStyle::for_terminal(80));
        let widths = text.lines().map(|line| line.chars().count());
        assert!(widths.max().is_some_and(|widest| widest <= 80), "{text}");
        for part in ["rc-write-64.sender alone", "3.90 µs", "8.40 µs", "1.71", "0.50"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!rows.iter().any(VethFigure::is_soft_slower));
        assert!(row("soft/rxe", "ns/op", 2.0, 1.0).is_soft_slower());
        assert!(row("soft/rxe", "ns/op", 2.0, 0.0).is_soft_slower());
        assert!(
            render_figures(
                &[row("rxe", "ops/s", 1.0, 1.0), row("rxe", "ns/op", 1.0, 0.0)],
                OutputStyle::PIPE
            )
            .contains('—')
        );
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!(json[5]["name"], "rc-write-64.soft/rxe");
        assert_eq!((json[5]["unit"].as_str(), json[5]["ratio"].as_f64()), (Some("ns/op"), Some(0.5)));
    }
}
