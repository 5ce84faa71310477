//! `dta-collector tail`

use dta_cli::CommandStatus;
use dta_cli::number::format_count;
use dta_cli::output::{self, OutputFlag};
use dta_files::moment;
use dta_proto::control::{EntriesRequest, Epoch, EpochState, TailRequest, TailResponse};
use dta_proto::to_hex_digits;
use dta_rpc::{Ask, Span, TailMessages};
use dta_views::epoch::{EpochCoverage, EpochSummary, NOT_WRITTEN, NotKept};
use serde::Serialize;

use super::client_flags::ClientFlags;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  dta-collector tail           new entries of list 0
  dta-collector tail --store events --list 3 --from-start
  dta-collector tail --once -o json | jq .entry    what is there now
  dta-collector tail --list 3 --at -1h             the epoch of an hour ago
  dta-collector tail --since 2026-11-24T14:00 --until 2026-11-24T15:00

Entries are printed as hex. What the reader missed is printed on separate lines: overwritten (the ring came round before it was read), missing (lost on the way to memory), damaged. With --at and --since, a line names each epoch before its entries, and others name what is not kept, and what will only be there once the epoch is written. Exit status 3: the list has no entries then."
)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    what: Option<TailCommand>,
    #[command(flatten)]
    entries: TailEntriesArgs,
}

#[derive(clap::Subcommand)]
enum TailCommand {
    /// Follow INT events in words: changes, drops, congestion
    #[command(after_help = super::tail_events::HELP)]
    Events(super::tail_events::TailEventsArgs),
}

/// Entries, as hex.
#[derive(clap::Args)]
struct TailEntriesArgs {
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
    /// Print what is there now, then end
    #[arg(long)]
    once: bool,
    /// The entries of the epoch of this moment, of a store with epochs: 2026-11-24T14:00, or -1h
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = FOLLOWING)]
    at: Option<u64>,
    /// The entries of all epochs from this moment on
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = FOLLOWING, conflicts_with = "at")]
    since: Option<u64>,
    /// With --since: only up to this moment [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true, requires = "since")]
    until: Option<u64>,
    #[command(flatten)]
    client: ClientFlags,
}

/// Flags that apply only to a list that is followed, not to a past one.
const FOLLOWING: [&str; 3] = ["from_start", "from_sequence", "once"];

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum TailLine {
    Entry(String),
    /// The following lines are of this epoch.
    Epoch(EpochSummary),
    NotKept(NotKept),
    /// Batches of the open epoch that are no longer in the ring.
    NotWritten(u64),
    Overwritten(u64),
    Missing(u64),
    Damaged(u64),
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    if let Some(TailCommand::Events(what)) = args.what {
        return super::tail_events::run(what);
    }
    let args = args.entries;
    if let Some(Span { since, until }) = super::asked_span(args.at, args.since, args.until) {
        let request = EntriesRequest { store: args.store, list: args.list, since, until };
        return super::block_on(async {
            let entries = args.client.connect_all().await?.stream_entries(request).await?;
            of_epochs(entries, since, until, |line| print_line(&line, args.client.output)).await
        });
    }
    let request = TailRequest {
        store: args.store,
        list: args.list,
        from_start: args.from_start || args.once && args.from_sequence.is_none(),
        until_caught_up: args.once,
        from_sequence: args.from_sequence.unwrap_or(0),
    };
    super::block_on(async {
        let mut stream = args.client.connect_all().await?.tail_list(request).await?;
        while let Some(message) = stream.next_message().await? {
            for line in message_lines(message) {
                print_line(&line, args.client.output)?;
            }
        }
        anyhow::Ok(())
    })?;
    Ok(CommandStatus::Done)
}

/// Passes on the lines of past epochs. Returns whether there were entries.
async fn of_epochs(
    mut entries: TailMessages,
    since: u64,
    until: u64,
    mut each: impl FnMut(TailLine) -> anyhow::Result<()>,
) -> anyhow::Result<CommandStatus> {
    // The epoch being read, and whether it has been named.
    let (mut of, mut named, mut known, mut status) =
        (Epoch::default(), true, EpochCoverage(since), CommandStatus::Absent);
    while let Some(mut message) = entries.next_message().await? {
        if let Some(epoch) = message.epoch.take() {
            if let Some(before) = known.gap_before_epoch(&epoch) {
                each(TailLine::NotKept(before))?;
            }
            (of, named) = (epoch, false);
        }
        for line in message_lines(message) {
            let line = match line {
                TailLine::Overwritten(n) if of.state() == EpochState::Open => TailLine::NotWritten(n),
                line => line,
            };
            if !std::mem::replace(&mut named, true) {
                each(TailLine::Epoch(EpochSummary::from(&of)))?;
            }
            if matches!(line, TailLine::Entry(_)) {
                status = CommandStatus::Done;
            }
            each(line)?;
        }
    }
    // Name an epoch without entries if it is all there is.
    if !named && status == CommandStatus::Absent {
        each(TailLine::Epoch(EpochSummary::from(&of)))?;
    }
    if let Some(rest) = known.before_moment(until) {
        each(TailLine::NotKept(rest))?;
    }
    Ok(status)
}

fn message_lines(message: TailResponse) -> impl Iterator<Item = TailLine> {
    // What was skipped precedes what was read.
    let gaps = [
        TailLine::Overwritten(message.overwritten_batches),
        TailLine::Missing(message.missing_batches),
        TailLine::Damaged(message.damaged_batches),
    ];
    let gaps = gaps.into_iter().filter(|line| {
        !matches!(line, TailLine::Overwritten(0) | TailLine::Missing(0) | TailLine::Damaged(0))
    });
    gaps.chain(message.entries.into_iter().map(|e| TailLine::Entry(to_hex_digits(&e))))
}

fn print_line(line: &TailLine, flag: OutputFlag) -> anyhow::Result<()> {
    if flag.is_json() {
        return output::json_line(line);
    }
    match line {
        TailLine::Entry(hex) => dta_cli::print_line(hex)?,
        TailLine::Epoch(epoch) => dta_cli::print_line(format!("-- {}", epoch.describe()))?,
        TailLine::NotKept(moments) => dta_cli::print_line(format!("-- {moments}"))?,
        TailLine::NotWritten(n) => dta_cli::print_line(format!("-- {} {NOT_WRITTEN}", batches_text(*n)))?,
        TailLine::Overwritten(n) => {
            dta_cli::print_line(format!("-- {} overwritten before they were read", batches_text(*n)))?
        }
        TailLine::Missing(n) => dta_cli::print_line(format!("-- {} never came", batches_text(*n)))?,
        TailLine::Damaged(n) => dta_cli::print_line(format!("-- {} damaged", batches_text(*n)))?,
    }
    Ok(())
}

fn batches_text(n: u64) -> String {
    format_count(n, "batch", "batches")
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

    /// The lines in short form, and whether there were entries.
    async fn short_lines(
        messages: Vec<TailResponse>,
        since: u64,
        until: u64,
    ) -> (Vec<String>, CommandStatus) {
        let mut all = Vec::new();
        let second = |text: &str| text["1970-01-01T00:00:".len()..].trim_end_matches(".000Z").to_owned();
        let line = |line| {
            all.push(match line {
                TailLine::Epoch(epoch) => format!("epoch {}", second(&epoch.opened)),
                TailLine::NotKept(NotKept { from, to }) => {
                    format!("not kept {} {}", second(&from), second(&to))
                }
                line => serde_json::to_string(&line)?,
            });
            Ok(())
        };
        let stream = tokio_stream::iter(messages.into_iter().map(Ok));
        let status = of_epochs(TailMessages::new(stream), since, until, line).await.unwrap();
        (all, status)
    }

    #[tokio::test]
    async fn past_entries_come_by_epoch_and_what_is_not_kept_not_written_or_absent_is_distinguished() {
        // Nothing is kept before second 2 and from 4 to 5; the second epoch has no entries.
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
        let whole = (lines.map(str::to_owned).to_vec(), CommandStatus::Done);
        assert_eq!(short_lines(messages.clone(), 1000, 0).await, whole);
        // Starting within an epoch.
        assert_eq!(short_lines(messages, 2500, 9000).await.0, lines[1..]);
        let absent = short_lines(vec![epoch(3000, 4000)], 3100, 3101).await;
        assert_eq!(absent, (vec!["epoch 03".to_owned()], CommandStatus::Absent));
        let ends = short_lines(vec![epoch(3000, 4000)], 3100, 6000).await.0;
        assert_eq!(ends, ["epoch 03", "not kept 04 06"]);
    }
}
