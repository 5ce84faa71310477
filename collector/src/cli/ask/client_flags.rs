//! Flags of every command that queries a running collector.

use std::sync::Arc;

use clap::Args;
use dta_cli::output::{Output, OutputFlag};
use dta_client::collector::Client;
use dta_client::{ClientError, ClientOptions, DEFAULT_COLLECTOR, Member, Spread};

use crate::cli::TlsFlags;

/// Where the collector is, and how to print its answers.
#[derive(Args, Clone, Debug)]
pub(super) struct ClientFlags {
    /// Address of the collector's gRPC service; all of them, separated by commas, if several share stores
    #[arg(long, env, default_value = DEFAULT_COLLECTOR, value_name = "HOST:PORT", value_delimiter = ',')]
    collector: Vec<String>,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    pub(super) output: OutputFlag,
}

impl ClientFlags {
    /// Whether wide output was asked for.
    pub(super) fn is_wide(&self) -> bool {
        self.output.output == Output::Wide
    }

    /// The connection to the only collector, for commands about a single one.
    ///
    /// # Errors
    /// Several collectors were named.
    pub(super) fn options(&self) -> anyhow::Result<ClientOptions> {
        match &self.collector[..] {
            [only] => Ok(self.options_of(only)),
            several => Err(dta_cli::misuse(anyhow::anyhow!(
                "this command asks one collector, but --collector names {}: name one of them",
                several.len()
            ))),
        }
    }

    fn options_of(&self, collector: &str) -> ClientOptions {
        ClientOptions::new(collector, self.tls.tls())
    }

    /// The only collector.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.options()?).await?)
    }

    /// All named collectors, one by one.
    ///
    /// # Errors
    /// One of them does not answer.
    pub(super) async fn each(&self) -> Result<Vec<Client>, ClientError> {
        let mut clients = Vec::new();
        for (n, address) in self.collector.iter().enumerate() {
            if !self.collector[..n].contains(address) {
                clients.push(Client::connect(&self.options_of(address)).await?);
            }
        }
        Ok(clients)
    }

    /// All named collectors, asked as one. Of several, one that is down is missed by what it has
    /// alone.
    pub(super) async fn ask(&self) -> Result<Spread, ClientError> {
        let mut members: Vec<Member> = Vec::new();
        for address in &self.collector {
            if members.iter().any(|member| member.address == *address) {
                continue;
            }
            let options = self.options_of(address);
            let client = match self.collector.len() {
                1 => Client::connect(&options).await?,
                _ => Client::connect_lazy(&options)?,
            };
            members.push(Member { address: address.clone(), ask: Arc::new(client) });
        }
        Ok(Spread::new(members))
    }
}
