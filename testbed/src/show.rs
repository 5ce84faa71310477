//! An outcome for people: a table, the waterfall, the links, one line of verdict. Readable at 80 columns.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, TableComponent, presets};
use dta_cli::number::{format_grouped, format_short};

use super::outcome::{EpochOutcome, TestbedOutcome};
use super::run::RepeatedAnswers;

/// Width of the waterfall's bars.
const BAR: usize = 24;

pub fn render_report(outcome: &TestbedOutcome) -> String {
    let mut text = String::new();
    let run = &outcome.run;
    let traffic = match &run.capture {
        Some(path) => path.clone(),
        None => format!("synthetic traffic, seed {}", run.seed),
    };
    let _ = writeln!(
        text,
        "{traffic}\n{} packets of {} flows, {} over writes",
        format_grouped(run.packets),
        format_grouped(run.flows),
        run.transport.to_uppercase()
    );
    if !run.skipped.is_empty() {
        let skipped: Vec<_> = run.skipped.iter().map(|(why, count)| format!("{count} {why}")).collect();
        let _ = writeln!(text, "packets without an IP flow, skipped: {}", skipped.join(", "));
    }
    if let Some(cut) = &run.cut {
        let _ = writeln!(text, "warning: the capture is {cut}");
    }
    if run.faults != "none" {
        let _ = writeln!(text, "faults on every link: {}", run.faults);
        let undamaged: Vec<_> =
            run.faults.split(',').filter(|fault| !fault.starts_with("corrupt=")).collect();
        if run.report_faults != run.faults && run.report_faults == undamaged.join(",") {
            let _ = writeln!(text, "but no corruption of reports and NACKs: that needs CAP_NET_RAW");
        } else if run.report_faults != run.faults {
            let _ = writeln!(text, "but on reports and NACKs: {}", run.report_faults);
        }
    }
    if let Some(chaos) = &run.chaos {
        let _ = writeln!(
            text,
            "the {} in the middle and was back after {:.2} s:\n{} of {} answers from before were there, the session was {},\nthe gap cost {} frames",
            chaos.done,
            chaos.seconds_down,
            format_grouped(chaos.answers_after),
            format_grouped(chaos.answers_before),
            if chaos.session_resumed { "resumed" } else { "lost" },
            format_grouped(chaos.frames_lost),
        );
    }
    let _ = write!(text, "\n{}\n\n{}", primitives(outcome), waterfall(outcome));
    if let (Some(epochs), Some(_)) = (&outcome.epochs, run.epochs) {
        let _ = write!(text, "\n{}\n", self::render_epochs(epochs));
    }
    if run.faults != "none" || run.chaos.is_some() || !outcome.is_success() {
        let _ = write!(text, "\n{}\n", render_links(outcome));
    }
    for contradiction in &outcome.contradictions {
        let _ = writeln!(text, "does not add up: {contradiction}");
    }
    for primitive in &outcome.primitives {
        for example in &primitive.answers.examples {
            let _ = writeln!(text, "wrong, {}: {example}", primitive.name);
        }
    }
    let _ = write!(text, "\n{}", verdict_line(outcome));
    text
}

/// Per primitive: reports, operations, answers.
fn primitives(outcome: &TestbedOutcome) -> String {
    let mut table = plain_table([
        "primitive",
        "reports",
        "/s",
        "ops",
        "answers",
        "right",
        "absent",
        "stale",
        "other",
        "wrong",
    ]);
    for p in &outcome.primitives {
        let rate = p.sent as f64 / outcome.run.seconds.max(1e-9);
        let a = &p.answers;
        let cells = [
            Cell::new(p.name),
            compact_cell(p.sent),
            Cell::new(format_short(rate)).set_alignment(CellAlignment::Right),
            compact_cell(p.operations),
            compact_cell(a.queried),
            compact_cell(a.right),
            compact_cell(a.absent),
            compact_cell(a.stale),
            compact_cell(a.partial + a.over + a.incomplete),
            compact_cell(a.wrong),
        ];
        table.add_row(cells);
    }
    narrow_columns(&mut table);
    let sum =
        |of: fn(&super::check::Tally) -> u64| outcome.primitives.iter().map(|p| of(&p.answers)).sum::<u64>();
    let (partial, over, incomplete) = (sum(|a| a.partial), sum(|a| a.over), sum(|a| a.incomplete));
    let mut text = table.to_string();
    if partial + over + incomplete > 0 {
        let _ = write!(
            text,
            "\nother: {} paths with hops missing, {} counts too high because keys share\ncounters, {} counts that lack what was lost",
            format_grouped(partial),
            format_grouped(over),
            format_grouped(incomplete)
        );
    }
    text
}

/// Per epoch: how long writers took to move to the next one, and its answers.
pub fn render_epochs(all: &[EpochOutcome]) -> String {
    let mut table = plain_table([
        "epoch of", "", "seconds", "moved in", "answers", "right", "absent", "stale", "partial", "wrong",
    ]);
    let seconds = |from: u64, to: Option<u64>| {
        let text =
            to.map_or_else(|| "-".into(), |to| format!("{:.1} s", to.saturating_sub(from) as f64 / 1e3));
        Cell::new(text).set_alignment(CellAlignment::Right)
    };
    let several = all.iter().any(|one| one.collector > 0);
    for EpochOutcome { store, collector, epoch, answers: a } in all {
        table.add_row([
            Cell::new(if several { format!("{store}, {collector}") } else { store.clone() }),
            number_cell(epoch.generation),
            seconds(epoch.opened, epoch.flipped_from),
            seconds(epoch.flipped_from.unwrap_or_default(), epoch.flipped_to),
            compact_cell(a.queried),
            compact_cell(a.right),
            compact_cell(a.absent),
            compact_cell(a.stale),
            compact_cell(a.partial),
            compact_cell(a.wrong),
        ]);
    }
    narrow_columns(&mut table);
    table.to_string()
}

fn waterfall(outcome: &TestbedOutcome) -> String {
    let mut text = String::new();
    let mut row = |name: &str, count: u64, what: &str| {
        let filled = (count as f64 / outcome.sent.max(1) as f64 * BAR as f64).round() as usize;
        let bar = if count > 0 && filled == 0 { "▏".to_owned() } else { "█".repeat(filled) };
        let line = format!("{name:<34}{:>12}  {bar:<BAR$} {what}", format_grouped(count));
        let _ = writeln!(text, "{}", line.trim_end());
    };
    row("reports sent", outcome.sent, "");
    for (name, count) in &outcome.losses {
        row(&format!("  − {name}"), *count, "");
    }
    if outcome.held > 0 {
        row("  − held", outcome.held, "");
    }
    row("  − overwritten (by other keys)", outcome.overwritten, "");
    row("  − superseded (newer of same key)", outcome.superseded, "");
    row("  − unexplained", outcome.unexplained, "");
    row("queryable", outcome.queryable, "");
    text
}

fn render_links(outcome: &TestbedOutcome) -> String {
    let mut table =
        plain_table(["frames", "sent", "drop", "dup", "reorder", "corrupt", "lost", "received", "unexpl."]);
    for link in &outcome.links {
        let a = &link.account;
        table.add_row([
            Cell::new(a.name),
            number_cell(a.sent),
            compact_cell(a.dropped),
            compact_cell(a.duplicated),
            compact_cell(a.reordered),
            compact_cell(a.corrupted),
            compact_cell(a.kernel + a.unsent + a.killed + a.device),
            number_cell(a.received),
            Cell::new(link.unexplained).set_alignment(CellAlignment::Right),
        ]);
    }
    narrow_columns(&mut table);
    table.to_string()
}

/// A table without lines except one under its header.
fn plain_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─');
    let cells = header.iter().enumerate().map(|(n, name)| {
        let alignment = if n == 0 { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(name).set_alignment(alignment)
    });
    table.set_header(cells.collect::<Vec<_>>());
    table
}

fn number_cell(n: u64) -> Cell {
    Cell::new(format_grouped(n)).set_alignment(CellAlignment::Right)
}

/// A number in at most 6 characters.
fn compact_cell(n: u64) -> Cell {
    Cell::new(if n < 100_000 { format_grouped(n) } else { format_short(n as f64) })
        .set_alignment(CellAlignment::Right)
}

/// Columns with one space between them, to stay within 80.
fn narrow_columns(table: &mut Table) {
    for column in table.column_iter_mut() {
        column.set_padding((0, 0));
    }
}

/// What stores with epochs answered again, in two lines.
pub fn render_repeated_answers(again: &RepeatedAnswers) -> String {
    let kept = match &again.changed {
        None => "as they were before".to_owned(),
        Some(changed) => format!("but {changed}"),
    };
    format!(
        "Meanwhile {} epochs of the stores of values and paths have ended and become Parquet;\nthose of this traffic were \
         asked again: {} values and paths, {kept}.",
        again.written,
        format_grouped(again.found),
    )
}

/// Whether all is well, in a line.
pub fn verdict_line(outcome: &TestbedOutcome) -> String {
    let wrong = outcome.wrong_answers();
    let asked: u64 = outcome.primitives.iter().map(|p| p.answers.queried).sum();
    if outcome.is_success() {
        format!(
            "GOOD: no answer of {} is wrong, and no report of {} is unexplained.",
            format_grouped(asked),
            format_grouped(outcome.sent)
        )
    } else {
        format!(
            "NOT GOOD: {} of {} answers wrong, {} reports or frames unexplained, {} contradictions.",
            format_grouped(wrong),
            format_grouped(asked),
            format_grouped(outcome.unexplained),
            outcome.contradictions.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::LinkAccount;
    use crate::check::{CollectorEpoch, Tally};
    use crate::outcome::{ChaosOutcome, LinkOutcome, PrimitiveOutcome, RunFacts};
    use std::collections::BTreeMap;

    fn outcome(count: u64, wrong: u64) -> TestbedOutcome {
        let answers = Tally { queried: count, right: count - wrong, wrong, over: 3, ..Tally::default() };
        TestbedOutcome {
            sent: count,
            queryable: count / 2,
            superseded: count - count / 2 - 7,
            overwritten: 0,
            held: 0,
            unexplained: 0,
            losses: BTreeMap::from([("dropped.translator.duplicate_column".into(), 7)]),
            primitives: ["key-write", "postcarding", "append", "key-increment", "sketch-merge"]
                .map(|name| PrimitiveOutcome {
                    name,
                    sent: count,
                    operations: 2 * count,
                    answers: answers.clone(),
                })
                .into(),
            epochs: Some(vec![EpochOutcome {
                store: "flows".into(),
                collector: 0,
                epoch: CollectorEpoch {
                    generation: 12,
                    opened: 1000,
                    flipped_from: Some(3000),
                    ..CollectorEpoch::default()
                },
                answers: answers.clone(),
            }]),
            links: vec![LinkOutcome {
                account: LinkAccount {
                    name: "reporter-translator",
                    sent: count,
                    dropped: count / 100,
                    ..LinkAccount::default()
                },
                unexplained: 0,
            }],
            contradictions: Vec::new(),
            nodes: Default::default(),
            run: RunFacts {
                faults: "drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01".into(),
                seconds: 3.0,
                transport: "uc".into(),
                epochs: Some(1),
                chaos: Some(ChaosOutcome {
                    done: "collector was killed (-9)".into(),
                    session_resumed: true,
                    ..ChaosOutcome::default()
                }),
                ..RunFacts::default()
            },
        }
    }

    #[test]
    fn the_report_fits_80_columns_and_says_all() {
        let text = render_report(&outcome(123_456, 0));
        let wide: Vec<_> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
        for part in [
            "key-increment",
            "dropped.translator.duplicate_column",
            "queryable",
            "GOOD: no answer of 617,280",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn a_bad_outcome_is_never_called_good() {
        let mut bad = outcome(1000, 1);
        assert!(!bad.is_success() && verdict_line(&bad).starts_with("NOT GOOD: 5 of"));
        bad = outcome(1000, 0);
        bad.unexplained = 1;
        assert!(!bad.is_success() && verdict_line(&bad).starts_with("NOT GOOD"));
        bad = outcome(1000, 0);
        bad.contradictions.push("x".into());
        assert!(!bad.is_success());
    }

    #[test]
    fn json_is_as_the_users_of_it_expect() {
        let json = serde_json::to_value(outcome(100, 0)).unwrap();
        for key in ["sent", "queryable", "superseded", "overwritten", "held", "unexplained"] {
            assert!(json[key].is_u64(), "{key}");
        }
        assert!(json["losses"]["dropped.translator.duplicate_column"].is_u64());
        for key in ["sent", "operations", "queried", "right", "absent", "stale", "wrong"] {
            assert!(json["primitives"][0][key].is_u64(), "{key}");
        }
        assert_eq!(json["primitives"][0]["name"], "key-write");
    }
}
