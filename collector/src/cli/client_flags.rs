//! Flags of every command that asks a running collector.

use std::path::PathBuf;

use clap::Args;
use dta_client::collector::Client;
use dta_client::{ClientError, ClientOptions, ClientTls, DEFAULT_COLLECTOR};

use super::output::Output;

/// Where the collector is, and how to show what it says.
#[derive(Args, Clone, Debug)]
pub(super) struct ClientFlags {
    /// The collector's gRPC address
    #[arg(long, env, default_value = DEFAULT_COLLECTOR, value_name = "HOST:PORT")]
    collector: String,
    #[command(flatten)]
    tls: TlsFlags,
    /// How to print
    #[arg(long, short, value_enum, default_value_t, env)]
    pub(super) output: Output,
}

/// The files of TLS, as every program that asks a collector takes them.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsFlags {
    /// Authority of the collector's certificate (PEM); turns TLS on
    #[arg(long, env, value_name = "FILE", requires_all = ["client_cert", "client_key"])]
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

impl TlsFlags {
    /// The files, if they were given.
    pub fn tls(&self) -> Option<ClientTls> {
        match (&self.ca, &self.client_cert, &self.client_key) {
            (Some(ca), Some(cert), Some(key)) => Some(ClientTls {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
                domain: self.tls_domain.clone(),
            }),
            _ => None,
        }
    }
}

impl ClientFlags {
    pub(super) fn options(&self) -> ClientOptions {
        ClientOptions::new(&self.collector, self.tls.tls())
    }

    pub(super) async fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.options()).await
    }
}
