//! `dta-manager trace`.

use std::path::PathBuf;

use clap::Args;
use dta_cli::CommandStatus;
use dta_cli::output::OutputFlag;
use dta_cli::table::OutputStyle;
use dta_reporter::packet_trace::digest::Sampling;
use dta_reporter::packet_trace::point::At;

use crate::agents::{self, AgentsFile, TraceChange};

#[derive(Args)]
#[command(after_help = "\
Agents (`dta-reporter agent`) trace their hosts; their reports go to the translator that each has in its configuration, and `dta-collector trace` answers. This command sets where and which packets many of them trace: --at, --filter, --sample and --set change that, --back restores each agent's own configuration. What is not given stays as it is. Without any of these flags nothing changes. Settings last until they are changed or the agent ends.

The file names the agents, in the order in which packets pass their hosts: points are numbered in that order.
  [tls]                         # for agents beyond loopback, all PEM
  ca = \"ca.crt\"
  cert = \"manager.crt\"
  key = \"manager.key\"
  [[agent]]
  address = \"10.0.0.5:40054\"
  at = [\"iface:eth0\", \"tp:kfree_skb\"]
  [[agent]]
  address = \"10.0.0.6:40054\"
  at = [\"iface:ens3\"]

Exit status 1 if an agent does not answer or refuses, 4 if a point is not attached.

Examples:
  What each agent has attached, and why not:
    dta-manager trace --agents agents.toml
  The points of the file, and packets to port 80, one in 64:
    dta-manager trace --agents agents.toml --set \\
        --filter 'tcp port 80' --sample 1/64
  Drops too, at all agents:
    dta-manager trace --agents agents.toml --at tp:kfree_skb
  Back to what each agent has in its configuration:
    dta-manager trace --agents agents.toml --back")]
pub(super) struct TraceArgs {
    /// File with the agents
    #[arg(long, env, value_name = "FILE")]
    agents: PathBuf,
    /// Trace at the points in the file and those of --at
    #[arg(long, conflicts_with = "back")]
    set: bool,
    /// A point for all agents, after those in the file; may be repeated
    #[arg(long = "at", value_name = "POINT", value_parser = At::parse_points, conflicts_with = "back")]
    at: Vec<Vec<At>>,
    /// Packet filter, in tcpdump's syntax; empty for all packets
    #[arg(long, value_name = "FILTER", conflicts_with = "back")]
    filter: Option<String>,
    /// Sampling rate, such as 1/64
    #[arg(long, value_name = "1/N", value_parser = Sampling::read_share, conflicts_with = "back")]
    sample: Option<u32>,
    /// Restore each agent's own configuration
    #[arg(long)]
    back: bool,
    #[command(flatten)]
    output: OutputFlag,
}

impl TraceArgs {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let file = AgentsFile::load(&self.agents).map_err(dta_cli::misuse_error)?;
        let points = self.set || !self.at.is_empty();
        let is_change = points || self.filter.is_some() || self.sample.is_some();
        let at = points.then(|| self.at.into_iter().flatten().collect());
        let change = TraceChange { at, filter: self.filter, one_in: self.sample };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answers = runtime.block_on(async {
            match (self.back, is_change) {
                (true, _) => Ok(agents::reset_agents(&file).await),
                (false, true) => agents::set(&file, &change).await.map_err(dta_cli::misuse_error),
                (false, false) => Ok(agents::query_agents(&file).await),
            }
        })?;
        self.output
            .print_document(&answers, |answers| agents::agents_table(answers, OutputStyle::for_stdout()))?;
        Ok(match agents::answered_and_attached(&answers) {
            (false, _) => CommandStatus::Failed,
            (true, attached) => CommandStatus::from_check(attached),
        })
    }
}
