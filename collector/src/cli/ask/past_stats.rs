//! `dta-collector stats --at` and `--since`: what happened to the reports of past epochs.

use dta_cli::CommandStatus;
use dta_cli::number::{format_count, format_grouped, format_percent};
use dta_cli::table::TextTable;
use dta_rpc::Span;
use dta_views::waterfall::{self, OfStore, PastWaterfall};

use super::client_flags::ClientFlags;

pub(super) fn run(flags: &ClientFlags, span: Span) -> anyhow::Result<CommandStatus> {
    let then = super::block_on(async {
        let ask = flags.connect_all().await?;
        let stores: Vec<String> = super::store_specs(&ask).await?.into_iter().map(|spec| spec.name).collect();
        Ok(waterfall::past_waterfall(&ask, &stores, span).await?)
    })?;
    if then.stores.is_empty() {
        anyhow::bail!(
            "no store has a history: give stores epochs (`epoch = \"60s\"` in their tables of the collector's configuration)"
        );
    }
    flags.output.print_document(&then, render_table)?;
    let is_known = then.stores.iter().any(|of| of.epochs > 0);
    Ok(if is_known { CommandStatus::Done } else { CommandStatus::Absent })
}

fn render_table(then: &PastWaterfall) -> String {
    let mut table = TextTable::new(&["store", "", "count", "share"], &[2, 3]);
    for of in &then.stores {
        table.add_row([of.store.clone(), describe_epochs(of), String::new(), String::new()]);
        if of.epochs > 0 {
            let share =
                if of.sent > 0 { format_percent(of.landed as f64 / of.sent as f64) } else { String::new() };
            let reasons = of.lost.iter().map(|(reason, n)| (reason.as_str(), *n, String::new()));
            let figures = [
                ("sent", of.sent, String::new()),
                ("landed", of.landed, share),
                ("frames", of.frames, String::new()),
            ];
            for (name, count, share) in figures.into_iter().chain(reasons) {
                table.add_row([String::new(), name.to_owned(), format_grouped(count), share]);
            }
        }
        let batches = [
            ("overwritten batches", of.overwritten),
            ("missing batches", of.missing),
            ("damaged batches", of.damaged),
        ];
        for (name, count) in batches.into_iter().filter(|(_, count)| *count > 0) {
            table.add_row([String::new(), name.to_owned(), format_grouped(count), String::new()]);
        }
    }
    let mut text = table.to_string();
    for unknown in not_known(then) {
        text = format!("{}\n{unknown}", text.trim_end());
    }
    text
}

fn describe_epochs(of: &OfStore) -> String {
    match (&of.from, &of.to) {
        (Some(from), Some(to)) => {
            format!("{}, {from} to {to}", format_count(of.epochs + of.unknown, "epoch", "epochs"))
        }
        _ => "no epoch is kept".to_owned(),
    }
}

/// What is unknown, one line each.
fn not_known(then: &PastWaterfall) -> Vec<String> {
    let mut lines = Vec::new();
    for of in &then.stores {
        let store = &of.store;
        let several = |n| format_count(n, "epoch", "epochs");
        for [from, to] in &of.not_kept {
            lines.push(format!("{store}: nothing is kept from {from} to {to}"));
        }
        if of.unknown > 0 {
            lines.push(format!(
                "{store}: {} began before the collector started: losses are unknown",
                several(of.unknown)
            ));
        }
        if of.not_written > 0 {
            lines.push(format!("{store}: {} not written yet", several(of.not_written)));
        }
    }
    if !then.without_epochs.is_empty() {
        lines.push(format!("without epochs: {}", then.without_epochs.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_past_waterfall_has_figures_and_says_what_is_not_known() {
        let moment = |hour| format!("2026-11-24T{hour}:00:00.000Z");
        let flows = OfStore {
            store: "flows".into(),
            from: Some(moment(14)),
            to: Some(moment(15)),
            epochs: 59,
            unknown: 1,
            not_written: 1,
            not_kept: vec![[moment(13), moment(14)]],
            sent: 12_345,
            landed: 12_000,
            frames: 24_000,
            lost: BTreeMap::from([("lost.injected".into(), 345)]),
            ..OfStore::default()
        };
        let none = OfStore { store: "events".into(), missing: 2, ..OfStore::default() };
        let then = PastWaterfall {
            stores: vec![flows, none],
            without_epochs: vec!["values".into(), "paths".into()],
        };
        let text = render_table(&then);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "store count share",
            "flows 60 epochs, 2026-11-24T14:00:00.000Z to 2026-11-24T15:00:00.000Z",
            "sent 12,345",
            "landed 12,000 97.21 %",
            "frames 24,000",
            "lost.injected 345",
            "events no epoch is kept",
            "missing batches 2",
            "flows: nothing is kept from 2026-11-24T13:00:00.000Z to 2026-11-24T14:00:00.000Z",
            "flows: 1 epoch began before the collector started: losses are unknown",
            "flows: 1 epoch not written yet",
            "without epochs: values, paths",
        ];
        assert_eq!(lines, expected);
    }
}
