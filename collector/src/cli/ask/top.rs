//! `dta-collector top`

use std::sync::Arc;

use anyhow::Context;
use dta_cli::CommandStatus;
use dta_cli::number::{format_bytes, format_grouped};
use dta_cli::table::TextTable;
use dta_cli::terminal;
use dta_proto::key::Flow;
use dta_proto::prefix::Prefix;
use dta_views::int::moment::age_in_words;
use dta_views::int::top::{By, Criteria, Keys, RankedFlow, Ranking, Top};

use super::client_flags::ClientFlags;
use crate::cli::names_flag::NamesFlag;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  dta-collector top                        by latency, if any is known
  dta-collector top --by bytes             the largest flows
  dta-collector top --by drops -n 5
  dta-collector top --at -1h               by the latencies of an hour ago
  dta-collector top --by reports --prefix 10.0.0.0/8 --watch
  dta-collector top --keys events --store bytes     of DTA reports

Stores cannot list their keys. Flows come from the key directory (list 3 of int-events), in which the translator writes each key when it is new and with every keep-alive. The line below the table says what its ring no longer holds.

Without int-events, flows come from the only append store whose entries are keys (16 bytes), and figures from the store that has the name of the ranking: so `top --by bytes` works on what `dta-manager run-testbed --keep` left.")]
pub(in crate::cli) struct Args {
    /// What flows are ranked by [default: the first of latency, bytes, packets, reports and drops that is known of a flow]
    #[arg(long, short, value_parser = dta_cli::one_of_names::<By>(&By::NAMES), conflicts_with = "store")]
    by: Option<By>,
    /// Rank by this store instead: counts (key-increment), or values (key-write), whose first 4 bytes are the number
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// How many flows, at most
    #[arg(long, short, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,
    /// Only flows with an end in this prefix, such as 10.0.0.0/8
    #[arg(long, short, value_name = "PREFIX")]
    prefix: Option<Prefix>,
    /// Take flows from this append store (16-byte entries, a key each) instead of the key directory
    #[arg(long, value_name = "STORE")]
    keys: Option<String>,
    /// Rank the flows of this file, one per line; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    flows: Option<std::path::PathBuf>,
    /// Rank by the figures of this moment, of stores with epochs: 2026-11-24T14:00, or -1h [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, conflicts_with = "watch")]
    at: Option<u64>,
    /// Repeat every so many seconds
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let keys = match (&args.keys, &args.flows) {
        (Some(store), _) => Keys::Store(store.clone()),
        (None, Some(path)) => Keys::These(read_flows(path)?),
        (None, None) => Keys::Directory,
    };
    let criteria = Criteria {
        by: args.by,
        most: args.number as usize,
        prefix: args.prefix,
        keys,
        store: args.store.clone(),
        at: args.at,
        names: Arc::new(args.names.read()?),
    };
    super::block_on(async {
        let mut ranking = Ranking::new(Arc::new(args.client.connect_all().await?), criteria);
        loop {
            let top = ranking.rank_flows().await.map_err(super::int_error)?;
            print_top(&args, &top)?;
            if !super::is_time_again(args.watch).await {
                return anyhow::Ok(());
            }
        }
    })?;
    Ok(CommandStatus::Done)
}

/// The flows of a file, one per line.
fn read_flows(path: &std::path::Path) -> anyhow::Result<Vec<Flow>> {
    if path == std::path::Path::new("-") {
        return super::query::parse_arguments(&["-".to_owned()], "flows");
    }
    let text = dta_files::file::read_text(path)
        .with_context(|| format!("cannot read the flows in {}", path.display()))
        .map_err(dta_cli::misuse_error)?;
    let mut flows = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let flow = line.parse::<Flow>().with_context(|| format!("{}, line {number}", path.display()));
        flows.push(flow.map_err(dta_cli::misuse_error)?);
    }
    Ok(flows)
}

fn print_top(args: &Args, top: &Top) -> anyhow::Result<()> {
    if args.client.output.is_json() {
        return super::print_json(args.watch, top);
    }
    super::show_again(args.watch, render_table(top))
}

fn render_table(top: &Top) -> String {
    let unit = if top.by == By::Latency.name() { " ns" } else { "" };
    let title = format!("{}{}", top.by, if unit.is_empty() { "" } else { ", ns" });
    let has_ages = top.flows.iter().any(|row| row.age_seconds.is_some());
    let has_ends = top.flows.iter().any(|row| row.ends.describe().is_some());
    let mut header = vec!["", "flow", &title];
    header.extend(has_ages.then_some("reported"));
    header.extend(has_ends.then_some("networks"));
    let mut table = TextTable::new(&header, &[0, 2]);
    let value = if top.by == By::Bytes.name() { format_bytes } else { format_grouped };
    for (number, row) in (1..).zip(&top.flows) {
        let mut cells = vec![number.to_string(), flow_label(row), value(row.value)];
        if has_ages {
            cells.push(age_in_words(row.age_seconds));
        }
        if has_ends {
            cells.push(terminal::for_stdout(&row.ends.describe().unwrap_or_default()));
        }
        table.add_row(cells);
    }
    let more = top.with_figure.saturating_sub(top.flows.len() as u64);
    let mut lines = Vec::new();
    if !top.flows.is_empty() {
        lines.push(table.to_string());
    }
    if more > 0 {
        lines.push(format!("and {} more flows", format_grouped(more)));
    }
    lines.extend(top.epoch.iter().map(|epoch| format!("of {}", epoch.describe())));
    lines.extend(top.describe_gaps().iter().map(|sentence| terminal::for_stdout(sentence)));
    lines.join("\n")
}

fn flow_label(row: &RankedFlow) -> String {
    row.flow.map_or_else(|| format!("key {}", row.key), |flow| flow.to_string())
}
