//! `dta-manager doctor`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use crate::doctor::{self, Level};

use super::Output;

#[derive(Args)]
#[command(after_help = "\
Looks at CPU, hugepages, shared memory, receive buffers, ports, privileges, memory locking, RDMA devices and the
soft-RoCE module. Exit status 1 if the embedded testbed cannot run here.

Examples:
  dta-manager doctor
  dta-manager doctor --output json | jq '.[] | select(.level != \"ok\")'")]
pub(super) struct Doctor {
    /// A table for people or JSON for programs
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

impl Doctor {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let findings = doctor::examine(Path::new("/"));
        match self.output {
            Output::Table => println!("{}", doctor::table(&findings, super::width())),
            Output::Json => println!("{}", doctor::json(&findings)),
        }
        let failed = findings.iter().any(|finding| finding.level == Level::Problem);
        Ok(ExitCode::from(u8::from(failed)))
    }
}
