//! `dta-collector tail`

use dta_cli::Status;
use dta_cli::number::{counted, hex};
use dta_cli::output::{self, OutputFlag};
use dta_client::Ask;
use dta_proto::control::{TailRequest, TailResponse};
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

Entries are printed as hex. What the reader missed is printed on separate lines: overwritten (the ring came round before it was read), missing (lost on the way to memory), damaged."
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
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Entry(String),
    /// Batches.
    Overwritten(u64),
    /// Batches.
    Missing(u64),
    /// Batches.
    Damaged(u64),
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    if let Some(What::Events(what)) = args.what {
        return super::tail_events::run(what);
    }
    let args = args.entries;
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
