//! `dta-collector completions`

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  dta-collector completions bash > /etc/bash_completion.d/dta-collector")]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    dta_cli::completions(Cli::command(), args.shell)?;
    Ok(ExitCode::SUCCESS)
}
