//! `dta-manager doctor`.

use std::path::Path;
use std::time::Duration;

use crate::doctor::Level;
use crate::doctor::session::{self, LookOptions};
use clap::Args;
use dta_cli::CommandStatus;
use dta_cli::output::OutputFlag;
use dta_cli::table::OutputStyle;
use dta_collector::cli::TlsFlags;
use dta_rpc::ClientOptions;

#[derive(Args)]
#[command(after_help = "\
Checks CPU, hugepages, shared memory, receive buffers, ports, privileges, memory locking, RDMA devices with their GIDs and counters, and the soft-RoCE module. Exit status 4 if the embedded testbed cannot run here.

With --collector it finds out why nothing lands in a running collector although a session is up: it takes two readings of all counters, counts the frames that reach the RoCEv2 port between them (as root), checks GIDs and neighbours, and names likely causes, the likeliest first. Run it on the collector's host. Exit status 4 if it found one.

Examples:
  dta-manager doctor
  dta-manager doctor -o json | jq '.[] | select(.level != \"ok\")'
  dta-manager doctor --collector 127.0.0.1:40050
  dta-manager doctor --collector 10.0.0.5:40050 --session tor1 --seconds 10")]
pub(super) struct Doctor {
    /// Find out why nothing lands in this collector
    #[arg(long, value_name = "HOST:PORT")]
    collector: Option<String>,
    /// Check only this session
    #[arg(long, value_name = "NAME", requires = "collector")]
    session: Option<String>,
    /// Seconds to watch
    #[arg(long, value_name = "SECONDS", requires = "collector", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    output: OutputFlag,
}

impl Doctor {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let root = Path::new("/");
        let (findings, verdict) = match &self.collector {
            None => {
                let findings = crate::doctor::examine_machine(root);
                let verdict = crate::doctor::machine_verdict(&findings);
                (findings, verdict)
            }
            Some(address) => {
                let options = LookOptions {
                    collector: ClientOptions::new(address, self.tls.client_tls()),
                    session: self.session.clone(),
                    time: Duration::from_secs(self.seconds),
                };
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let findings =
                    session::find_causes(&runtime.block_on(session::gather_evidence(root, &options))?);
                let verdict = crate::doctor::session_verdict(&findings);
                (findings, verdict)
            }
        };
        self.output.print_document(&findings, |findings| {
            crate::doctor::findings_table(findings, &verdict, OutputStyle::for_stdout())
        })?;
        let failed = findings.iter().any(|finding| finding.level == Level::Problem);
        Ok(CommandStatus::from_check(!failed))
    }
}
