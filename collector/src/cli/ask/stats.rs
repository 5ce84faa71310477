//! `dta-collector stats`

use dta_cli::CommandStatus;
use dta_cli::number::{format_grouped, format_percent};
use dta_cli::table::TextTable;
use dta_files::moment;
use dta_rpc::Spread;
use dta_views::waterfall::{self, Rates, StatisticsDocument, WaterfallRow};

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
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = ["watch", "all"])]
    at: Option<u64>,
    /// What became of the reports of all epochs from this moment on
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = ["watch", "all", "at"])]
    since: Option<u64>,
    /// With --since: only up to this moment [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true, requires = "since")]
    until: Option<u64>,
    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    if let Some(span) = super::asked_span(args.at, args.since, args.until) {
        return super::past_stats::run(&args.client, span);
    }
    super::block_on(async {
        let client = args.client.connect_all().await?;
        let mut rates = Rates::default();
        loop {
            let nodes = fetch_nodes(&client).await?;
            rates.take(&nodes);
            print_nodes(&args, &nodes, &rates)?;
            if !super::is_time_again(args.watch).await {
                return anyhow::Ok(());
            }
        }
    })?;
    Ok(CommandStatus::Done)
}

async fn fetch_nodes(client: &Spread) -> anyhow::Result<Vec<waterfall::WaterfallNode>> {
    Ok(waterfall::ordered_nodes(client.statistics_by_address().await?))
}

fn print_nodes(args: &Args, nodes: &[waterfall::WaterfallNode], rates: &Rates) -> anyhow::Result<()> {
    if args.client.output.is_json() {
        let document = StatisticsDocument::from_nodes(nodes);
        return super::print_json(args.watch, &document);
    }
    // Rates exist only from the second reading on. An empty column would be in the way on a terminal.
    let columns = if args.watch.is_some() { 5 } else { 4 };
    let mut table = TextTable::new(&["node", "", "count", "share", "per second"][..columns], &[2, 3, 4]);
    for row in waterfall::waterfall_rows(nodes, rates, args.all) {
        table.add_row(row_cells(&row).into_iter().take(columns));
    }
    super::show_again(args.watch, table)
}

fn row_cells(row: &WaterfallRow) -> [String; 5] {
    match row {
        WaterfallRow::Node { name, age } => {
            let age = age.map(|a| format!("{a:.0} s ago")).unwrap_or_default();
            [name.clone(), age, String::new(), String::new(), String::new()]
        }
        WaterfallRow::Counter { name, value, share, rate, .. } => [
            String::new(),
            name.clone(),
            format_grouped(*value),
            share.map(format_percent).unwrap_or_default(),
            rate.map(|rate| format_grouped(rate.round() as u64)).unwrap_or_default(),
        ],
        WaterfallRow::Link(link) => [
            format!("\u{2193} {}", link.name),
            link.how.clone(),
            format_grouped(link.lost),
            String::new(),
            String::new(),
        ],
    }
}
