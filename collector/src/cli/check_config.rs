//! `dta-collector check-config`

use anyhow::Context as _;
use dta_cli::CommandStatus;

use super::serve::ServeSettings;
use crate::server;

#[derive(clap::Args)]
#[command(after_help = "\
Takes the flags and variables of `serve` and checks what a start would check, including TLS files and memory, without starting anything. Prints the resulting configuration as a file; warnings go to standard error.

Example:
  dta-collector check-config --config collector.toml")]
pub(super) struct Args {
    #[command(flatten)]
    settings: ServeSettings,
}

pub(super) fn run(args: &Args) -> anyhow::Result<CommandStatus> {
    let (config, path) = args.settings.configuration().map_err(dta_cli::misuse_error)?;
    match path {
        Some(path) => eprintln!("configuration: {}", path.display()),
        None => eprintln!("no configuration file: these are the defaults"),
    }
    let warnings = server::check_config(&config).map_err(dta_cli::misuse_error)?;
    let text = config.to_toml().context("cannot write the configuration")?;
    dta_cli::configuration_is_good(&text, &warnings)
}
