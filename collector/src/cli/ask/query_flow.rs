//! `dta-collector query flow`

use std::sync::Arc;

use dta_cli::CommandStatus;
use dta_proto::key::Flow;
use dta_views::int::draw;
use dta_views::int::flow::{DtaStores, FlowQuery};

use super::client_flags::ClientFlags;
use crate::cli::names_flag::NamesFlag;

pub(super) const HELP: &str = "\
Path, latencies, queues, counts and drops of flows, from the INT stores (int-...), drawn as a path; and what the named stores of DTA reports hold. Each value is shown with its age, and unknown values are marked as such.

A flow is written 10.0.0.1:5000->10.0.0.2:5000/udp, [2001:db8::1]:1->[2001:db8::2]:2/tcp or 10.0.0.1->10.0.0.2/icmp. `-` reads flows from standard input, one per line.

Examples:
  dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp' \\
      --paths paths --counters bytes --values flows
  dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp' --at -1h

With --at, stores without epochs, and those of which nothing of that moment is kept, are left out and named; events are those up to then that are still in the ring.

Exit status 3: nothing is known about at least one of the flows.";

#[derive(clap::Args)]
pub(super) struct FlowQueryArgs {
    /// Flows, or `-`
    #[arg(required = true, value_name = "FLOW")]
    flows: Vec<String>,
    /// Path stores (postcarding) to query as well
    #[arg(long, value_name = "STORE", value_delimiter = ',')]
    paths: Vec<String>,
    /// Count stores (key-increment) to query as well
    #[arg(long, value_name = "STORE", value_delimiter = ',')]
    counters: Vec<String>,
    /// Value stores (key-write) to query as well
    #[arg(long, value_name = "STORE", value_delimiter = ',')]
    values: Vec<String>,
    /// The moment that is asked about, of stores with epochs: 2026-11-24T14:00, or -1h [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true)]
    at: Option<u64>,
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(what: FlowQueryArgs) -> anyhow::Result<CommandStatus> {
    let names = Arc::new(what.names.read()?);
    let flows: Vec<Flow> = super::query::parse_arguments(&what.flows, "flows")?;
    let reports = super::block_on(async {
        let ask = Arc::new(what.client.connect_all().await?);
        let dta = DtaStores { paths: what.paths, counters: what.counters, values: what.values };
        FlowQuery { ask, dta, names, at: what.at }.summarize_flows(&flows).await.map_err(super::int_error)
    })?;
    what.client.output.print_document(&reports, |reports| {
        let drawn = reports.iter().map(|report| draw::flow_lines(report).join("\n"));
        drawn.collect::<Vec<_>>().join("\n\n")
    })?;
    let all_there = reports.iter().all(|report| report.found);
    Ok(if all_there { CommandStatus::Done } else { CommandStatus::Absent })
}
