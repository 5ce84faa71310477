//! Where the tables are: flags common to all commands.

use std::path::PathBuf;

use anyhow::Context;
use dta_files::{config_file, state_directory};
use dta_rpc::{ClientOptions, ClientTls};
use serde::{Deserialize, Serialize};

/// The history, and the collector whose memory is beside it.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SourceFlags {
    /// Folder of the tables [default: where the collector of this machine keeps them, by its configuration file]
    #[arg(long, env, value_name = "DIR")]
    history: Option<PathBuf>,
    /// Address of a running collector's gRPC service: what its stores hold now is `live.STORE`
    #[arg(long, env, value_name = "HOST:PORT")]
    collector: Option<String>,
    /// CA of the collector's certificate (PEM); turns TLS on
    #[arg(long, env, value_name = "FILE", requires_all = ["collector", "client_cert", "client_key"])]
    ca: Option<PathBuf>,
    /// This client's certificate (PEM)
    #[arg(long, env, value_name = "FILE", requires = "ca")]
    client_cert: Option<PathBuf>,
    /// This client's private key (PEM)
    #[arg(long, env, value_name = "FILE", requires = "ca")]
    client_key: Option<PathBuf>,
    /// Name in the collector's certificate, if it is not the host of its address
    #[arg(long, env, value_name = "NAME", requires = "ca")]
    tls_domain: Option<String>,
}

/// The part of a collector's configuration file that matters here.
#[derive(Default, Deserialize)]
struct CollectorFile {
    #[serde(default)]
    collector: CollectorTable,
    #[serde(default)]
    history: HistoryTable,
}

#[derive(Default, Deserialize)]
struct CollectorTable {
    name: Option<String>,
}

#[derive(Default, Deserialize)]
struct HistoryTable {
    directory: Option<PathBuf>,
}

impl SourceFlags {
    /// The folder of the tables: from the flag, or else from the collector's configuration.
    pub(crate) fn directory(&self) -> anyhow::Result<PathBuf> {
        if let Some(directory) = &self.history {
            return Ok(directory.clone());
        }
        let file = match config_file::find_config_file(None, "collector.toml") {
            Some(path) => {
                let text = config_file::read(&path, "configuration file");
                let parsed = text.and_then(|text| config_file::parse_config::<CollectorFile>(&text, &path));
                parsed
                    .context(
                        "the collector's configuration says where the tables are, unless --history DIR is given",
                    )?
                    .0
            }
            None => CollectorFile::default(),
        };
        let name = file.collector.name.as_deref().unwrap_or("collector");
        Ok(file.history.directory.unwrap_or_else(|| state_directory(&format!("history-{name}"))))
    }

    /// How to reach the collector, if one was given.
    pub(crate) fn collector(&self) -> Option<ClientOptions> {
        let tls = match (&self.ca, &self.client_cert, &self.client_key) {
            (Some(ca), Some(cert), Some(key)) => Some(ClientTls {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
                domain: self.tls_domain.clone(),
            }),
            _ => None,
        };
        Some(ClientOptions::new(self.collector.as_ref()?, tls))
    }
}
