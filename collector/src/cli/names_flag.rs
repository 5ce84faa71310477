//! The flag `--names`.

use std::path::PathBuf;

use clap::Args;
#[cfg(feature = "ask")]
use dta_export::names::Names;

/// Which file has the names of switches, ports, drop reasons and networks.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct NamesFlag {
    /// File with names of switches, ports, drop reasons and networks; `none` reads no file [default:
    /// ~/.config/dta/names.toml or /etc/dta/names.toml, if there is one]
    #[arg(long, env, value_name = "FILE")]
    pub(super) names: Option<PathBuf>,
}

#[cfg(feature = "ask")]
impl NamesFlag {
    pub(super) fn read(&self) -> anyhow::Result<Names> {
        let (names, _) = Names::find_and_load(self.names.as_deref()).map_err(dta_cli::misuse_error)?;
        Ok(names)
    }
}
