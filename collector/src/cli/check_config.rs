//! `dta-collector check-config`

use dta_cli::Status;

use super::serve::Settings;
use crate::config::{Config, Memory};
use crate::server;

#[derive(clap::Args)]
#[command(after_help = "\
Takes the flags and variables of `serve`, and looks at what a start would look at: also at files of TLS, and at memory. It starts nothing.

Example:
  dta-collector check-config --config collector.toml")]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Status> {
    let config = args.settings.configuration().map_err(dta_cli::misuse)?;
    let warnings = server::check(&config).map_err(dta_cli::misuse)?;
    let mut lines = told(&config);
    lines.extend(warnings.iter().map(|warning| format!("WARNING: {warning}")));
    lines.push("the configuration is good".to_owned());
    dta_cli::print(lines.join("\n"))?;
    Ok(Status::Done)
}

/// What the configuration means, line by line.
fn told(config: &Config) -> Vec<String> {
    let safety = match (&config.tls, config.listen.ip().is_loopback()) {
        (Some(_), _) => " with TLS",
        (None, true) => "",
        (None, false) => " WITHOUT TLS: whoever reaches it gets keys to memory",
    };
    let memory = match &config.memory {
        Memory::Anonymous => "memory is gone with the process".to_owned(),
        Memory::Directory(dir) => format!("memory in {}", dir.display()),
    };
    let mut lines =
        vec![format!("gRPC on {}{safety}", config.listen), format!("device {}", config.device), memory];
    for store in &config.stores {
        let size = dta_cli::number::bytes(store.region_len());
        lines.push(format!("store {} {} ({}), {size}", store.id, store.name, store.primitive()));
    }
    lines
}
