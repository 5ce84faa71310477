//! TLS flags of every command that calls a collector.

use std::path::PathBuf;

use clap::Args;
use dta_rpc::ClientTls;

/// TLS files, for every program that calls a collector.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsFlags {
    /// CA of the collector's certificate (PEM); turns TLS on
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
    pub fn client_tls(&self) -> Option<ClientTls> {
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
