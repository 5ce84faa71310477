//! `dta-collector query … --since`: what keys had over a span of time, one line per change.

use std::collections::BTreeMap;

use dta_cli::CommandStatus;
use dta_cli::table::TextTable;
use dta_files::moment;
use dta_proto::control::Epoch;
use dta_rpc::{AskKeys, ClientError, KeyAnswer, QuestionKind, Span};
use dta_views::answers::NamedKey;
use serde::Serialize;

use super::query::KeyQueryArgs;

/// A span of time that is asked about.
#[derive(clap::Args)]
pub(super) struct SpanFlags {
    /// All values from this moment on, one line per change: 2026-11-24T14:00, or -1h
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, conflicts_with = "at")]
    since: Option<u64>,
    /// With --since: only up to this moment [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, requires = "since")]
    until: Option<u64>,
}

impl SpanFlags {
    pub(super) fn requested_span(&self) -> Option<Span> {
        super::asked_span(None, self.since, self.until)
    }
}

/// A span of time in which a key had one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct ValueChange<T> {
    /// When the first epoch with this value began.
    from: String,
    /// When the first epoch with another value began; `null` = the value still holds.
    to: Option<String>,
    /// Whether anything of this span is kept.
    kept: bool,
    /// `null` = absent, or nothing is kept.
    value: Option<T>,
}

#[derive(Serialize)]
struct OfKey<T> {
    key: NamedKey,
    changes: Vec<ValueChange<T>>,
}

/// Asks, and prints `value` of each answer (`None` = absent). `row` makes its cells for people.
pub(super) fn run<A, T>(
    what: &KeyQueryArgs,
    span: Span,
    kind: QuestionKind,
    header: &[&str],
    value: impl Fn(&A) -> Option<T>,
    row: impl Fn(&T) -> Vec<String>,
) -> anyhow::Result<CommandStatus>
where
    A: Into<KeyAnswer> + TryFrom<KeyAnswer, Error = ClientError> + Clone + Send,
    T: Clone + PartialEq + Serialize,
{
    let keys = what.parse_keys()?;
    let series = super::block_on(async {
        Ok(what
            .connect_at_moment()
            .await?
            .series_of::<A>(&what.store, &NamedKey::keys(&keys), kind, span)
            .await?)
    })?;
    let mut of_keys: BTreeMap<Vec<u8>, Vec<(&Epoch, Option<T>)>> = BTreeMap::new();
    for (epoch, answers) in &series {
        for answer in answers {
            let key: KeyAnswer = answer.clone().into();
            of_keys.entry(key.key().to_owned()).or_default().push((epoch, value(answer)));
        }
    }
    let none = Vec::new();
    let changes = |key: &NamedKey| OfKey {
        key: key.clone(),
        changes: value_changes(of_keys.get(&key.key.0[..]).unwrap_or(&none), span),
    };
    let shown: Vec<OfKey<T>> = keys.iter().map(changes).collect();
    what.client.output.print_document(&shown, |shown| {
        let header: Vec<&str> = ["key", "from"].iter().chain(header).copied().collect();
        let mut table = TextTable::new(&header, &[]);
        for OfKey { key, changes } in shown {
            for change in changes {
                let mut cells = match &change.value {
                    Some(value) => row(value),
                    None => vec![if change.kept { "absent" } else { "not kept" }.to_owned()],
                };
                cells.resize(header.len() - 2, String::new());
                table.add_row([key.to_string(), change.from.clone()].into_iter().chain(cells));
            }
        }
        table.to_string()
    })?;
    let is_there = |of: &OfKey<T>| of.changes.iter().any(|change| change.value.is_some());
    Ok(if shown.iter().all(is_there) { CommandStatus::Done } else { CommandStatus::Absent })
}

/// What a key had in epochs, oldest first, without epochs that repeat the previous value.
fn value_changes<T: Clone + PartialEq>(of_epochs: &[(&Epoch, Option<T>)], span: Span) -> Vec<ValueChange<T>> {
    // A moment, whether something of it is kept, and the value.
    let mut all: Vec<(u64, bool, Option<T>)> = Vec::new();
    let mut add = |from: u64, kept, value: Option<T>| {
        if all.last().is_none_or(|last| (last.1, &last.2) != (kept, &value)) {
            all.push((from, kept, value));
        }
    };
    // The end of what is known from epochs; `None` = the last one is open.
    let mut end = Some(span.since);
    for (epoch, value) in of_epochs {
        if let Some(end) = end.filter(|end| *end < epoch.opened) {
            add(end, false, None);
        }
        add(epoch.opened, true, value.clone());
        end = (epoch.flipped_from != 0).then_some(epoch.flipped_from);
    }
    if let Some(end) = end.filter(|end| of_epochs.is_empty() || (span.until != 0 && *end < span.until)) {
        add(end, false, None);
    }
    let ends: Vec<Option<String>> = all.iter().skip(1).map(|next| Some(moment::format_utc(next.0))).collect();
    let ends = ends.into_iter().chain([None]);
    let change = |((from, kept, value), to)| ValueChange { from: moment::format_utc(from), to, kept, value };
    all.into_iter().zip(ends).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Epochs of one second, beginning at these moments; the last one is open if `open` is true.
    fn lines(
        of: &[(u64, Option<u8>)],
        open: bool,
        since: u64,
        until: u64,
    ) -> Vec<(String, bool, Option<u8>)> {
        let epoch = |n: usize| Epoch {
            opened: of[n].0,
            flipped_from: if open && n + 1 == of.len() { 0 } else { of[n].0 + 1000 },
            ..Epoch::default()
        };
        let epochs: Vec<Epoch> = (0..of.len()).map(epoch).collect();
        let of_epochs: Vec<_> = epochs.iter().zip(of).map(|(epoch, (_, value))| (epoch, *value)).collect();
        let changes = value_changes(&of_epochs, Span { since, until });
        for pair in changes.windows(2) {
            assert_eq!(pair[0].to.as_ref(), Some(&pair[1].from));
        }
        assert!(changes.last().unwrap().to.is_none());
        let seconds = |text: &str| text.strip_prefix("1970-01-01T00:00:").unwrap().to_owned();
        changes.into_iter().map(|change| (seconds(&change.from), change.kept, change.value)).collect()
    }

    #[test]
    fn a_line_is_a_change_and_what_is_not_kept_is_one() {
        let line = |from: &str, kept, value| (format!("{from}Z"), kept, value);
        let of = [(1000, Some(1)), (2000, Some(1)), (3000, Some(2)), (4000, None), (5000, Some(2))];
        let whole = [
            line("01.000", true, Some(1)),
            line("03.000", true, Some(2)),
            line("04.000", true, None),
            line("05.000", true, Some(2)),
        ];
        assert_eq!(lines(&of, true, 1500, 0), whole);
        // The oldest is gone and one in the middle is, too; the collector was down at the end.
        let of = [(2000, Some(1)), (4000, Some(1))];
        let with_gaps = [
            line("01.500", false, None),
            line("02.000", true, Some(1)),
            line("03.000", false, None),
            line("04.000", true, Some(1)),
            line("05.000", false, None),
        ];
        assert_eq!(lines(&of, false, 1500, 6000), with_gaps);
        assert_eq!(lines(&of, false, 1500, 5000), with_gaps[..4]);
        assert_eq!(lines(&of, true, 2000, 6000), with_gaps[1..4]);
        assert_eq!(lines(&[], true, 1500, 0), [line("01.500", false, None)]);
    }
}
