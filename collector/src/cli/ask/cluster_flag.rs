//! The flag that names a cluster.

use std::path::Path;

use clap::Args;
use dta_cluster::Config;
use dta_files::config_file;

/// Which cluster to ask.
#[derive(Args, Clone, Debug)]
pub(super) struct ClusterFlag {
    /// Ask the collectors of the cluster in etcd: etcd://HOST:PORT[,HOST:PORT][/PREFIX], or a TOML file with endpoints,
    /// prefix, tls and credentials
    #[arg(long, env, value_name = "URL|FILE")]
    cluster: Option<String>,
}

impl ClusterFlag {
    pub(super) fn is_given(&self) -> bool {
        self.cluster.is_some()
    }

    /// How to reach its etcd.
    ///
    /// # Errors
    /// The value is neither a URL nor a readable file.
    pub(super) fn etcd_config(&self) -> anyhow::Result<Option<Config>> {
        let read = |named: &String| match named.contains("://") {
            true => named.parse::<Config>().map_err(dta_cli::misuse_error),
            false => {
                let path = Path::new(named);
                let text = config_file::read(path, "the cluster").map_err(dta_cli::misuse_error)?;
                Ok(config_file::parse_config::<Config>(&text, path).map_err(dta_cli::misuse_error)?.0)
            }
        };
        self.cluster.as_ref().map(read).transpose()
    }

    /// Like [`ClusterFlag::etcd_config`], for commands that need a cluster.
    pub(super) fn required_config(&self) -> anyhow::Result<Config> {
        let missing = || dta_cli::misuse_error(anyhow::anyhow!("name the cluster with --cluster"));
        self.etcd_config()?.ok_or_else(missing)
    }
}
