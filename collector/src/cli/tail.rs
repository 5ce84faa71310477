//! `dta-collector tail`

use dta_cli::Status;
use dta_client::Ask;
use dta_proto::control::{TailRequest, TailResponse};
use serde::Serialize;

use super::client_flags::ClientFlags;
use super::output::{self, Output};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  dta-collector tail                                        what comes next in list 0 of the only append store
  dta-collector tail --store events --list 3 --from-start
  dta-collector tail --from-start --once -o json | jq .entry

Entries are printed as hex. What the reader missed is told in lines of their own: overwritten (the ring came round before it
was read), missing (lost on the way to memory), damaged.")]
pub(super) struct Args {
    /// Name of the store; not needed where there is one append store
    #[arg(long, short, default_value = "")]
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
    let request = TailRequest {
        store: args.store,
        list: args.list,
        from_start: args.from_start,
        until_caught_up: args.once,
        from_sequence: args.from_sequence.unwrap_or(0),
    };
    super::block_on(async {
        let mut stream = args.client.connect().await?.tail(request).await?;
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
    // What was passed over lies before what was read.
    let gaps = [
        Line::Overwritten(message.overwritten_batches),
        Line::Missing(message.missing_batches),
        Line::Damaged(message.damaged_batches),
    ];
    let gaps = gaps
        .into_iter()
        .filter(|line| !matches!(line, Line::Overwritten(0) | Line::Missing(0) | Line::Damaged(0)));
    gaps.chain(message.entries.into_iter().map(|e| Line::Entry(output::hex(&e))))
}

fn print(line: &Line, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return output::json_line(line);
    }
    match line {
        Line::Entry(hex) => output::line(hex)?,
        Line::Overwritten(n) => {
            output::line(format!("-- {} overwritten before they were read", batches(*n)))?
        }
        Line::Missing(n) => output::line(format!("-- {} never came", batches(*n)))?,
        Line::Damaged(n) => output::line(format!("-- {} damaged", batches(*n)))?,
    }
    Ok(())
}

fn batches(n: u64) -> String {
    if n == 1 { "1 batch".to_owned() } else { format!("{} batches", output::count(n)) }
}
