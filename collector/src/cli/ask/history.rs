//! `dta-collector history`

use std::collections::BTreeMap;

use dta_cli::CommandStatus;
use dta_cli::number::format_grouped;
use dta_cli::table::TextTable;
use dta_files::moment;
use dta_proto::control::{Epoch, EpochsRequest, EpochsResponse};
use dta_rpc::Ask;
use dta_views::epoch::EpochSummary;

use super::client_flags::ClientFlags;

#[derive(clap::Args)]
#[command(after_help = "\
An epoch is a span of time in which one memory took the store's reports (`epoch = \"60s\"` in the store's table of the configuration). It is open, closed (over, and still in memory), or kept (in the history). \"closed\" is when the last writer had moved to the next epoch: what was reported between \"to\" and then is in one of the two. \"complete\": all writers confirmed that, and the collector ran throughout. \"not kept\": nothing is known of that time.

Examples:
  dta-collector history flows
  dta-collector history flows --since -1h
  dta-collector history flows --since 2026-11-24T14:00 --until 2026-11-24T15:00")]
pub(in crate::cli) struct Args {
    /// The store, by name or id
    store: String,
    /// Only the epochs of this moment and later: 2026-11-24T14:00, or -1h
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true)]
    since: Option<u64>,
    /// Only the epochs of moments before this one
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true)]
    until: Option<u64>,
    /// How many at most, of each collector [default: 20; with --since, all]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    number: Option<u32>,
    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let (since, until) = (args.since.unwrap_or_default(), args.until.unwrap_or_default());
    // 0 = all.
    let most = args.number.unwrap_or(if since == 0 { 20 } else { 0 });
    let EpochsResponse { epochs, older } = super::block_on(async {
        let request = EpochsRequest { store: args.store, since, until, most };
        Ok(args.client.connect_all().await?.newest_epochs(request).await?)
    })?;
    let shown: Vec<EpochSummary> = epochs.iter().map(EpochSummary::from).collect();
    args.client.output.print_document(&shown, |_| {
        let table = render_table(&epochs);
        match older {
            0 => table,
            older => format!("{}\nolder ones: --until {}", table.trim_end(), moment::format_utc(older)),
        }
    })?;
    Ok(CommandStatus::Done)
}

fn render_table(epochs: &[Epoch]) -> String {
    let several = epochs.iter().any(|epoch| !epoch.collector.is_empty());
    let mut header = vec!["state", "from", "to", "closed", "complete", "rows", "generation"];
    if several {
        header.push("collector");
    }
    let mut table = TextTable::new(&header, &[5, 6]);
    let dash = || "-".to_owned();
    // When each collector's next epoch began.
    let mut next: BTreeMap<&str, u64> = BTreeMap::new();
    for epoch in epochs {
        let shown = EpochSummary::from(epoch);
        if let Some(opened) = next.insert(&epoch.collector, epoch.opened)
            && let end = epoch.flipped_to.max(epoch.flipped_from)
            && end < opened
        {
            let moments = [end, opened].map(moment::format_utc);
            let gap = ["not kept".to_owned()]
                .into_iter()
                .chain(moments)
                .chain(std::iter::repeat_with(dash).take(4));
            table.add_row(gap.chain(several.then(|| epoch.collector.clone())));
        }
        let complete = match (shown.complete, &shown.restarted) {
            (_, Some(at)) => format!("no, down until {at}"),
            (None, _) => dash(),
            (Some(complete), _) => if complete { "yes" } else { "no" }.to_owned(),
        };
        let mut row = vec![
            shown.state.to_owned(),
            shown.opened,
            shown.ended.unwrap_or_else(dash),
            shown.closed.unwrap_or_else(dash),
            complete,
            shown.rows.map_or_else(dash, format_grouped),
            epoch.generation.to_string(),
        ];
        if several {
            row.push(epoch.collector.clone());
        }
        table.add_row(row);
    }
    table.to_string()
}
