//! `dta-collector trace`

use dta_cli::CommandStatus;
use dta_proto::key::Flow;
use dta_views::trace::{draw, flow};

use super::client_flags::ClientFlags;

pub(super) const HELP: &str = "\
Where the packets of a flow spent their time, from point to point and from host to host, and where they were dropped and why, from the reports of `dta-reporter trace` on the hosts (stores trace-...). Times cover the sampled packets whose points are known. Clocks of hosts without PTP are compared by packets that crossed in both directions; each time is shown with its possible error.

A flow is written 10.0.0.1:5000->10.0.0.2:5000/udp, [2001:db8::1]:1->[2001:db8::2]:2/tcp or 10.0.0.1->10.0.0.2/icmp. `-` reads flows from standard input, one per line.

Examples:
  dta-collector trace '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector trace '10.0.0.1:5000->10.0.0.2:5000/udp' --output json

Exit status 3: no host reported at least one of the flows.";

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(in crate::cli) struct Args {
    /// Flows, or `-`
    #[arg(required = true, value_name = "FLOW")]
    flows: Vec<String>,
    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let flows: Vec<Flow> = super::query::parse_arguments(&args.flows, "flows")?;
    let reports = super::block_on(async {
        let client = args.client.connect_single().await?;
        let mut reports = Vec::with_capacity(flows.len());
        for of in &flows {
            reports.push(flow::trace_flow(&client, of).await.map_err(super::int_error)?);
        }
        anyhow::Ok(reports)
    })?;
    args.client.output.print_document(&reports, |reports| {
        let drawn = reports.iter().map(|report| draw::trace_lines(report).join("\n"));
        drawn.collect::<Vec<_>>().join("\n\n")
    })?;
    let all_there = reports.iter().all(|report| report.found);
    Ok(if all_there { CommandStatus::Done } else { CommandStatus::Absent })
}
