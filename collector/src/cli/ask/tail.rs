//! `dta-collector tail`

use std::fmt;

use dta_cli::Status;
use dta_cli::number::counted;
use dta_cli::output::{self, OutputFlag};
use dta_rpc::{Ask, Following, Span};
use dta_files::moment::{self, utc};
use dta_proto::control::{EntriesRequest, Epoch, EpochState, TailRequest, TailResponse};
use dta_proto::hex;
use dta_views::epoch::Shown;
use serde::Serialize;

use super::client_flags::ClientFlags;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  dta-collector tail           new entries of list 0
  dta-collector tail --store events --list 3 --from-start
  dta-collector tail --from-start --once -o json | jq .entry
  dta-collector tail --list 3 --at -1h             the epoch of an hour ago
  dta-collector tail --since 2026-11-24T14:00 --until 2026-11-24T15:00

Entries are printed as hex. What the reader missed is printed on separate lines: overwritten (the ring came round before it was read), missing (lost on the way to memory), damaged. With --at and --since, a line names each epoch before its entries, and others name what is not kept, and what will only be there once the epoch is written. Exit status 3: the list has no entries then."
)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    entries: Entries,
}

#[derive(clap::Subcommand)]
enum What {
    /// Follow INT events in words: changes, drops, congestion
    #[command(after_help = super::tail_events::HELP)]
    Events(super::tail_events::What),
}

/// Entries, as hex.
#[derive(clap::Args)]
struct Entries {
    /// The store, by name or id [default: the only append store]
    #[arg(long, short, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
    store: String,
    /// Which list
    #[arg(long, short, default_value_t = 0)]
    list: u32,
    /// Begin with the oldest batch in the ring
    #[arg(long)]
    from_start: bool,
    /// Begin with the batch of this sequence
    #[arg(long, value_name = "SEQUENCE", conflicts_with = "from_start", value_parser = clap::value_parser!(u32).range(1..))]
    from_sequence: Option<u32>,
    /// Stop when everything that is there has been read
    #[arg(long)]
    once: bool,
    /// The entries of the epoch of this moment, of a store with epochs: 2026-11-24T14:00, or -1h
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, conflicts_with_all = FOLLOWING)]
    at: Option<u64>,
    /// The entries of all epochs from this moment on
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, conflicts_with_all = FOLLOWING, conflicts_with = "at")]
    since: Option<u64>,
    /// With --since: only up to this moment [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, requires = "since")]
    until: Option<u64>,
    #[command(flatten)]
    client: ClientFlags,
}

/// What is said of batches of an open epoch.
pub(super) const NOT_WRITTEN: &str =
    "no longer in the ring: what was read of them comes once the epoch is written";

/// What is said of a list that is followed, and not of a past one.
const FOLLOWING: [&str; 3] = ["from_start", "from_sequence", "once"];

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Entry(String),
    /// What follows is of this epoch.
    Epoch(Shown),
    NotKept(NotKept),
    /// Batches of the open epoch that are in the ring no more.
    NotWritten(u64),
    /// Batches.
    Overwritten(u64),
    /// Batches.
    Missing(u64),
    /// Batches.
    Damaged(u64),
}

/// Moments of which nothing is kept.
#[derive(Serialize)]
pub(super) struct NotKept {
    from: String,
    to: String,
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing is kept from {} to {}", self.from, self.to)
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    if let Some(What::Events(what)) = args.what {
        return super::tail_events::run(what);
    }
    let args = args.entries;
    if let Some(Span { since, until }) = super::asked_span(args.at, args.since, args.until) {
        let request = EntriesRequest { store: args.store, list: args.list, since, until };
        return super::block_on(async {
            let entries = args.client.ask().await?.entries(request).await?;
            of_epochs(entries, since, until, |line| print(&line, args.client.output)).await
        });
    }
    let request = TailRequest {
        store: args.store,
        list: args.list,
        from_start: args.from_start,
        until_caught_up: args.once,
        from_sequence: args.from_sequence.unwrap_or(0),
    };
    super::block_on(async {
        let mut stream = args.client.ask().await?.tail(request).await?;
        while let Some(message) = stream.message().await? {
            for line in lines(message) {
                print(&line, args.client.output)?;
            }
        }
        anyhow::Ok(())
    })?;
    Ok(Status::Done)
}

/// Passes on the lines of past epochs. Says whether there were entries.
async fn of_epochs(
    mut entries: Following,
    since: u64,
    until: u64,
    mut each: impl FnMut(Line) -> anyhow::Result<()>,
) -> anyhow::Result<Status> {
    // The epoch that is being read, and whether it has been named.
    let (mut of, mut named, mut known, mut status) = (Epoch::default(), true, Known(since), Status::Absent);
    while let Some(mut message) = entries.message().await? {
        if let Some(epoch) = message.epoch.take() {
            if let Some(before) = known.before(&epoch) {
                each(Line::NotKept(before))?;
            }
            (of, named) = (epoch, false);
        }
        for line in lines(message) {
            let line = match line {
                Line::Overwritten(n) if of.state() == EpochState::Open => Line::NotWritten(n),
                line => line,
            };
            if !std::mem::replace(&mut named, true) {
                each(Line::Epoch(Shown::from(&of)))?;
            }
            if matches!(line, Line::Entry(_)) {
                status = Status::Done;
            }
            each(line)?;
        }
    }
    // An epoch without entries is named if it is all that there is.
    if !named && status == Status::Absent {
        each(Line::Epoch(Shown::from(&of)))?;
    }
    if let Some(rest) = known.before_moment(until) {
        each(Line::NotKept(rest))?;
    }
    Ok(status)
}

/// Up to which moment epochs are known, as one comes after the other.
pub(super) struct Known(pub(super) u64);

impl Known {
    /// What is not kept before an epoch, which is known then.
    pub(super) fn before(&mut self, epoch: &Epoch) -> Option<NotKept> {
        let before = self.before_moment(epoch.opened);
        // One of another collector may have ended later.
        self.0 = self.0.max(if epoch.state() == EpochState::Open { u64::MAX } else { epoch.flipped_to });
        before
    }

    /// What is not kept before a moment.
    pub(super) fn before_moment(&self, moment: u64) -> Option<NotKept> {
        (self.0 < moment).then(|| NotKept { from: utc(self.0), to: utc(moment) })
    }
}

fn lines(message: TailResponse) -> impl Iterator<Item = Line> {
    // What was skipped lies before what was read.
    let gaps = [
        Line::Overwritten(message.overwritten_batches),
        Line::Missing(message.missing_batches),
        Line::Damaged(message.damaged_batches),
    ];
    let gaps = gaps
        .into_iter()
        .filter(|line| !matches!(line, Line::Overwritten(0) | Line::Missing(0) | Line::Damaged(0)));
    gaps.chain(message.entries.into_iter().map(|e| Line::Entry(hex(&e))))
}

fn print(line: &Line, flag: OutputFlag) -> anyhow::Result<()> {
    if flag.is_json() {
        return output::json_line(line);
    }
    match line {
        Line::Entry(hex) => dta_cli::print(hex)?,
        Line::Epoch(epoch) => dta_cli::print(format!("-- {}", epoch.in_words()))?,
        Line::NotKept(moments) => dta_cli::print(format!("-- {moments}"))?,
        Line::NotWritten(n) => dta_cli::print(format!("-- {} {NOT_WRITTEN}", batches(*n)))?,
        Line::Overwritten(n) => {
            dta_cli::print(format!("-- {} overwritten before they were read", batches(*n)))?
        }
        Line::Missing(n) => dta_cli::print(format!("-- {} never came", batches(*n)))?,
        Line::Damaged(n) => dta_cli::print(format!("-- {} damaged", batches(*n)))?,
    }
    Ok(())
}

fn batches(n: u64) -> String {
    counted(n, "batch", "batches")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(opened: u64, end: u64) -> TailResponse {
        let state = if end == 0 { EpochState::Open } else { EpochState::Kept };
        let epoch =
            Epoch { opened, flipped_from: end, flipped_to: end, state: state.into(), ..Epoch::default() };
        TailResponse { epoch: Some(epoch), ..TailResponse::default() }
    }

    fn news(entries: &[u8], overwritten_batches: u64, missing_batches: u64) -> TailResponse {
        let entries = entries.iter().map(|entry| vec![*entry]).collect();
        TailResponse { entries, overwritten_batches, missing_batches, ..TailResponse::default() }
    }

    /// The lines in short, and whether there were entries.
    async fn told(messages: Vec<TailResponse>, since: u64, until: u64) -> (Vec<String>, Status) {
        let mut all = Vec::new();
        let second = |text: &str| text["1970-01-01T00:00:".len()..].trim_end_matches(".000Z").to_owned();
        let line = |line| {
            all.push(match line {
                Line::Epoch(epoch) => format!("epoch {}", second(&epoch.opened)),
                Line::NotKept(NotKept { from, to }) => format!("not kept {} {}", second(&from), second(&to)),
                line => serde_json::to_string(&line)?,
            });
            Ok(())
        };
        let stream = tokio_stream::iter(messages.into_iter().map(Ok));
        let status = of_epochs(Following::new(stream), since, until, line).await.unwrap();
        (all, status)
    }

    #[tokio::test]
    async fn past_entries_come_by_epoch_and_what_is_not_kept_not_written_or_absent_is_told_apart() {
        // Nothing before second 2 and from 4 to 5; the second epoch has no entries.
        let messages = vec![
            epoch(2000, 3000),
            news(b"ab", 0, 1),
            epoch(3000, 4000),
            epoch(5000, 0),
            news(b"", 7, 0),
            news(b"c", 0, 0),
        ];
        let lines = [
            "not kept 01 02",
            "epoch 02",
            r#"{"missing":1}"#,
            r#"{"entry":"61"}"#,
            r#"{"entry":"62"}"#,
            "not kept 04 05",
            "epoch 05",
            r#"{"not_written":7}"#,
            r#"{"entry":"63"}"#,
        ];
        let whole = (lines.map(str::to_owned).to_vec(), Status::Done);
        assert_eq!(told(messages.clone(), 1000, 0).await, whole);
        // From within an epoch.
        assert_eq!(told(messages, 2500, 9000).await.0, lines[1..]);
        let absent = told(vec![epoch(3000, 4000)], 3100, 3101).await;
        assert_eq!(absent, (vec!["epoch 03".to_owned()], Status::Absent));
        let ends = told(vec![epoch(3000, 4000)], 3100, 6000).await.0;
        assert_eq!(ends, ["epoch 03", "not kept 04 06"]);
    }
}
