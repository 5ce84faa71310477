//! `dta-collector config`

use dta_cli::Status;

use super::output;
use crate::config::EXAMPLE;

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  dta-collector config --example > collector.toml\n  dta-collector serve --config collector.toml --check-config"
)]
pub(super) struct Args {
    /// Print a commented file with every setting and its default
    #[arg(long, required = true)]
    example: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Status> {
    if args.example {
        output::line(EXAMPLE.trim_end())?;
    }
    Ok(Status::Done)
}
