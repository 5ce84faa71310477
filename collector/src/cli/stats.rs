//! `dta-collector stats`

use std::time::Duration;

use dta_cli::Status;
use dta_client::Ask;
use serde::Serialize;

use super::client_flags::ClientFlags;
use super::output::{self, Output};
use crate::waterfall::{self, Row};

#[derive(clap::Args)]
#[command(after_help = "\
Every node counts what comes in, what goes on and what it drops, where it happens; the waterfall puts them in the order in
which reports pass them. Translators hand in their numbers, and their reporters', when they renew their session, so these may be
seconds old; docs/counters.md explains every name.

Examples:
  dta-collector stats
  dta-collector stats --watch          again every second, with rates
  dta-collector stats --all -o json    every counter, for programs")]
pub(super) struct Args {
    /// Show again every so many seconds, with what was added per second
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    /// Show counters that are 0 too
    #[arg(long, short)]
    all: bool,
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Serialize)]
struct Document {
    nodes: Vec<waterfall::Node>,
    links: Vec<waterfall::LinkLoss>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    super::block_on(async {
        let client = args.client.connect().await?;
        let mut before = Vec::new();
        loop {
            let nodes = nodes(&client).await?;
            show(&args, &nodes, &before)?;
            let Some(seconds) = args.watch else {
                return anyhow::Ok(());
            };
            before = nodes;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                _ = tokio::signal::ctrl_c() => return Ok(()),
            }
        }
    })?;
    Ok(Status::Done)
}

async fn nodes(client: &impl Ask) -> anyhow::Result<Vec<waterfall::Node>> {
    Ok(waterfall::nodes(client.statistics().await?))
}

fn show(args: &Args, nodes: &[waterfall::Node], before: &[waterfall::Node]) -> anyhow::Result<()> {
    if args.client.output == Output::Json {
        let document = Document { nodes: nodes.to_vec(), links: waterfall::link_losses(nodes) };
        return if args.watch.is_some() { output::json_line(&document) } else { output::json(&document) };
    }
    if args.watch.is_some() {
        // Clear and home, as `watch` does.
        output::line("\x1b[2J\x1b[H")?;
    }
    let mut table = output::table(&["node", "", "count", "share", "per second"], &[2, 3, 4]);
    for row in waterfall::rows(nodes, args.all) {
        let rate = match (&row, args.watch) {
            (Row::Counter { node, name, value, .. }, Some(seconds)) => waterfall::find(before, node, name)
                .map(|was| output::count(value.saturating_sub(was) / seconds))
                .unwrap_or_default(),
            _ => String::new(),
        };
        table.add_row(cells(&row, rate));
    }
    output::line(table)?;
    Ok(())
}

fn cells(row: &Row, rate: String) -> [String; 5] {
    match row {
        Row::Node { name, age } => {
            let age = age.map(|a| format!("{a:.0} s ago")).unwrap_or_default();
            [name.clone(), age, String::new(), String::new(), String::new()]
        }
        Row::Counter { name, value, share, .. } => [
            String::new(),
            name.clone(),
            output::count(*value),
            share.map(output::percent).unwrap_or_default(),
            rate,
        ],
        Row::Link(link) => {
            [format!("\u{2193} {}", link.name), link.how.clone(), link.lost.to_string(), String::new(), rate]
        }
    }
}
