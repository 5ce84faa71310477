//! `dta-collector stats`

use dta_cli::Status;
use dta_cli::counters;
use dta_cli::number::{grouped, percent};
use dta_cli::table::Table;
use dta_rpc::Spread;
use dta_files::moment;
use dta_views::waterfall::{self, Rates, Row};
use serde::Serialize;

use super::client_flags::ClientFlags;

#[derive(clap::Args)]
#[command(after_help = "\
Every node counts what it receives, forwards and drops; the waterfall lists the nodes in the order in which reports pass them. Translators hand in their counters and their reporters' when they renew their session, so these may be seconds old; docs/counters.md explains every name. Several collectors (--collector A,B) are shown as one.

Examples:
  dta-collector stats
  dta-collector stats --watch          again every second, with rates
  dta-collector stats --all -o json    every counter, for programs
  dta-collector stats --since -1h      what became of the last hour's reports

With --at and --since, the epochs of each store say what became of its reports. Losses are those of all stores together.")]
pub(in crate::cli) struct Args {
    /// Repeat every so many seconds, with rates
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    /// Show counters that are 0, too
    #[arg(long, short)]
    all: bool,
    /// What became of the reports of the epochs of this moment: 2026-11-24T14:00, or -1h
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, conflicts_with_all = ["watch", "all"])]
    at: Option<u64>,
    /// What became of the reports of all epochs from this moment on
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, conflicts_with_all = ["watch", "all", "at"])]
    since: Option<u64>,
    /// With --since: only up to this moment [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, allow_hyphen_values = true, requires = "since")]
    until: Option<u64>,
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Serialize)]
struct Document {
    nodes: Vec<counters::Node>,
    links: Vec<waterfall::LinkLoss>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    if let Some(span) = super::asked_span(args.at, args.since, args.until) {
        return super::stats_then::run(&args.client, span);
    }
    super::block_on(async {
        let client = args.client.ask().await?;
        let mut rates = Rates::default();
        loop {
            let nodes = nodes(&client).await?;
            rates.take(&nodes);
            show(&args, &nodes, &rates)?;
            if !super::is_time_again(args.watch).await {
                return anyhow::Ok(());
            }
        }
    })?;
    Ok(Status::Done)
}

async fn nodes(client: &Spread) -> anyhow::Result<Vec<waterfall::Node>> {
    Ok(waterfall::nodes(client.statistics_by_address().await?))
}

fn show(args: &Args, nodes: &[waterfall::Node], rates: &Rates) -> anyhow::Result<()> {
    if args.client.output.is_json() {
        let document =
            Document { nodes: nodes.iter().map(document).collect(), links: waterfall::link_losses(nodes) };
        return super::print_json(args.watch, &document);
    }
    // Rates exist from the second reading on. An empty column would be in the way on a terminal.
    let columns = if args.watch.is_some() { 5 } else { 4 };
    let mut table = Table::new(&["node", "", "count", "share", "per second"][..columns], &[2, 3, 4]);
    for row in waterfall::rows(nodes, rates, args.all) {
        table.row(cells(&row).into_iter().take(columns));
    }
    super::show_again(args.watch, table)
}

fn document(node: &waterfall::Node) -> counters::Node {
    counters::Node {
        node: node.name.clone(),
        stage: node.stage.name().to_owned(),
        session: (!node.session.is_empty()).then(|| node.session.clone()),
        age_seconds: node.age,
        counters: node.counters.iter().cloned().collect(),
    }
}

fn cells(row: &Row) -> [String; 5] {
    match row {
        Row::Node { name, age } => {
            let age = age.map(|a| format!("{a:.0} s ago")).unwrap_or_default();
            [name.clone(), age, String::new(), String::new(), String::new()]
        }
        Row::Counter { name, value, share, rate, .. } => [
            String::new(),
            name.clone(),
            grouped(*value),
            share.map(percent).unwrap_or_default(),
            rate.map(|rate| grouped(rate.round() as u64)).unwrap_or_default(),
        ],
        Row::Link(link) => [
            format!("\u{2193} {}", link.name),
            link.how.clone(),
            grouped(link.lost),
            String::new(),
            String::new(),
        ],
    }
}
