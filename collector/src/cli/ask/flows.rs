//! `dta-collector flows`

use anyhow::anyhow;
use clap::builder::StyledStr;
use dta_cli::CommandStatus;
use dta_cli::number::{format_bytes, format_count, format_grouped};
use dta_cli::table::TextTable;
use dta_export::names::Names;
use dta_files::moment;
use dta_proto::flow_query::{FlowAnswer, FlowQuestion, FlowSum, ScanCounts};
use dta_proto::flow_record::COLUMNS;
use dta_rpc::Ask;
use dta_views::flows::{FlowQueryText, FlowQueryTextError, FlowsDocument, describe_value, render_flows_csv};

use super::client_flags::ClientFlags;
use crate::cli::names_flag::NamesFlag;

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub(in crate::cli) struct Args {
    /// What groups are ranked by
    #[arg(long, default_value = "bytes", value_parser = dta_cli::one_of_names::<FlowSum>(&FlowSum::NAMES))]
    by: FlowSum,
    /// Columns that group, separated by commas; `flow` names those of a flow, `total` groups nothing
    #[arg(long, short, value_name = "COLUMNS", default_value = "flow")]
    group: String,
    /// Only records for which this holds, such as 'dst-port = 443 and src in 10.0.0.0/8'
    #[arg(long = "where", short = 'w', value_name = "CONDITION", default_value = "")]
    condition: String,
    /// Only records of this exporter: its address, or its name in the file of names
    #[arg(long, value_name = "EXPORTER")]
    exporter: Option<String>,
    /// How many groups, at most
    #[arg(long, short, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,
    /// Only flows that ran at this moment by their exporters' clocks, of records received within an hour after it
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = ["since", "until"])]
    at: Option<u64>,
    /// Records received since: 2026-11-24T14:00, or -5m [default: all that are in memory]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true)]
    since: Option<u64>,
    /// Records received before this moment
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse_moment, allow_hyphen_values = true)]
    until: Option<u64>,
    /// Each group's sums in time buckets of this length, such as 10s
    #[arg(long, value_name = "SPAN", value_parser = dta_files::span::parse_duration)]
    per: Option<std::time::Duration>,
    /// The store, if it has another name than flow-records
    #[arg(long, value_name = "STORE", default_value = "")]
    store: String,
    /// Comma-separated values, with a header
    #[arg(long, conflicts_with = "output")]
    csv: bool,
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

fn after_help() -> StyledStr {
    let columns = COLUMNS.iter().map(|column| format!("  {:<14}{}", column.name, column.help));
    format!(
        "\
Examples:
  dta-collector flows --since -5m                      the ten largest flows
  dta-collector flows --at -10m                        those that ran then
  dta-collector flows --group dst-as,in-if --by packets -n 20
  dta-collector flows --group src -w 'dst-port = 443 and not src in 10.0.0.0/8'
  dta-collector flows --group exporter --per 10s --since -1m
  dta-collector flows --group total -w 'dst = 192.0.2.7'

Bytes and packets are multiplied by the sampling rate; flows are records. Several exporters may see a flow, and one may count it where it enters and where it leaves: of each flow, only the exporter and direction with most bytes in the time asked about count. `--exporter` chooses another; with `--group exporter`, every exporter counts.

Conditions compare columns (= != < <= > >=) with numbers, addresses, names of exporters and protocols; `in` compares with a prefix. They are joined by `and`, `or`, `not` and parentheses.

Columns, for --group and --where
{}",
        columns.collect::<Vec<_>>().join("\n")
    )
    .into()
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let names = args.names.read()?;
    let question = question(&args, &names)?;
    let (answer, scanned) = super::block_on(async {
        let ask = args.client.connect_all().await?;
        anyhow::Ok(ask.query_flows(&args.store, &question, args.by, args.number as usize).await?)
    })?;
    for address in &answer.unreachable {
        eprintln!("dta-collector: the collector at {address} does not answer: its records are missing");
    }
    if args.csv {
        dta_cli::print_line(render_flows_csv(&answer, question.per, &names))?;
    } else {
        let document = FlowsDocument::new(args.by, &answer, scanned, &names);
        args.client.output.print_document(&document, |_| render_table(&answer, scanned, &names))?;
    }
    Ok(CommandStatus::Done)
}

fn question(args: &Args, names: &Names) -> anyhow::Result<FlowQuestion> {
    let text = FlowQueryText {
        group: &args.group,
        condition: &args.condition,
        exporter: args.exporter.as_deref(),
        at: args.at,
        since: args.since,
        until: args.until,
        per: args.per,
    };
    text.to_question(names).map_err(|error| {
        dta_cli::misuse_error(match error {
            FlowQueryTextError::Condition(error) => {
                let marks = "^".repeat(args.condition[error.place.clone()].chars().count().max(1));
                let before = " ".repeat(args.condition[..error.place.start].chars().count());
                anyhow!("--where: {error}\n  {}\n  {before}{marks}", args.condition)
            }
            FlowQueryTextError::Exporter(_) => anyhow!("--exporter: {error}"),
            FlowQueryTextError::Group(_) => anyhow!("--group: {error}"),
            FlowQueryTextError::MomentAndSpan | FlowQueryTextError::EmptySpan => anyhow!("--since: {error}"),
        })
    })
}

fn render_table(answer: &FlowAnswer, scanned: ScanCounts, names: &Names) -> String {
    let mut header = vec![""];
    header.extend(answer.group.iter().map(|column| column.name));
    header.extend(["bytes", "packets", "flows"]);
    let count = answer.group.len();
    let right: Vec<usize> = [0, count + 1, count + 2, count + 3].into();
    let mut table = TextTable::new(&header, &right);
    for (number, row) in (1..).zip(&answer.rows) {
        let mut cells = vec![number.to_string()];
        let values = answer.group.iter().zip(&row.values);
        cells
            .extend(values.map(|(column, value)| {
                dta_cli::terminal::for_stdout(&describe_value(column, *value, names))
            }));
        cells.extend([row.sums.bytes, row.sums.packets, row.sums.flows].map(format_grouped));
        table.add_row(cells);
        for (start, sums) in &row.series {
            let mut cells = vec![String::new(); count + 1];
            cells[count] = moment::format_utc(start / 1_000_000);
            cells.extend([sums.bytes, sums.packets, sums.flows].map(format_grouped));
            table.add_row(cells);
        }
    }
    let mut lines = Vec::new();
    if !answer.rows.is_empty() {
        lines.push(table.to_string());
    }
    let total = answer.total;
    lines.push(format!(
        "{} of {}: {}, {} packets",
        format_count(answer.groups, "group", "groups"),
        format_count(total.flows, "record", "records"),
        format_bytes(total.bytes),
        format_grouped(total.packets),
    ));
    if answer.beyond.flows != 0 {
        lines.push(format!(
            "{} in the total and in no group, as there were too many: narrow the condition or the time",
            format_count(answer.beyond.flows, "record", "records")
        ));
    }
    let ScanCounts { overwritten, missing, torn, .. } = scanned;
    if overwritten + missing + torn != 0 {
        lines.push(format!(
            "of the batches, {} were overwritten meanwhile, {} never came and {} were torn or damaged",
            format_grouped(overwritten),
            format_grouped(missing),
            format_grouped(torn)
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use dta_proto::flow_query::{FlowRow, FlowSums};

    use super::*;

    #[test]
    fn a_table_says_what_is_in_no_group_and_what_was_not_read() {
        let sums = |bytes| FlowSums { bytes, packets: 2, flows: 1 };
        let row = |port, bytes, series| FlowRow { values: vec![6, port], sums: sums(bytes), series };
        let answer = FlowAnswer {
            group: FlowQuestion::parse_group("protocol,dst-port").unwrap(),
            rows: vec![row(443, 5000, vec![(0, sums(5000))]), row(0, 7, Vec::new())],
            total: FlowSums { bytes: 5008, packets: 5, flows: 3 },
            groups: 2,
            beyond: sums(1),
            unreachable: Vec::new(),
        };
        let scanned = ScanCounts { batches: 1, overwritten: 2, missing: 0, torn: 0 };
        let table = render_table(&answer, scanned, &Names::empty());
        let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
        assert_eq!(
            lines[lines.len() - 3..],
            [
                "2 groups of 3 records: 4.9 KiB, 5 packets",
                "1 record in the total and in no group, as there were too many: narrow the condition or the time",
                "of the batches, 2 were overwritten meanwhile, 0 never came and 0 were torn or damaged",
            ]
        );
        for shown in ["443                       5,000", "1970-01-01T00:00:00.000Z  5,000"] {
            assert!(table.contains(shown), "{table}");
        }
    }
}
