//! Flags of every command that queries a running collector.

use std::sync::Arc;

use clap::Args;
use dta_cli::output::{Output, OutputFlag};
use dta_rpc::collector::Client;
use dta_rpc::{ClientError, ClientOptions, DEFAULT_COLLECTOR, Member, Spread};
use dta_cluster::View;

use super::cluster_flag::ClusterFlag;
use crate::cli::TlsFlags;

/// Where the collector is, and how to print its answers.
#[derive(Args, Clone, Debug)]
pub(super) struct ClientFlags {
    /// Address of the collector's gRPC service; all of them, separated by commas, if several share stores
    #[arg(
        long, env, default_value = DEFAULT_COLLECTOR, value_name = "HOST:PORT", value_delimiter = ',',
        conflicts_with = "cluster"
    )]
    collector: Vec<String>,
    #[command(flatten)]
    cluster: ClusterFlag,
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

    /// Several collectors, or a cluster, for a title; `None` if one is named.
    pub(super) fn several(&self) -> Option<String> {
        match &self.collector[..] {
            _ if self.cluster.is_given() => Some("cluster".into()),
            [_] => None,
            several => Some(format!("collectors {}", several.join(", "))),
        }
    }

    /// The connection to the only collector, for commands about a single one.
    ///
    /// # Errors
    /// Several collectors were named, or a cluster.
    pub(super) fn options(&self) -> anyhow::Result<ClientOptions> {
        if self.cluster.is_given() {
            let which = "this command asks one collector: name one of the cluster with --collector";
            return Err(dta_cli::misuse(anyhow::anyhow!(which)));
        }
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

    /// All named collectors, or those of the cluster, one by one.
    ///
    /// # Errors
    /// One of them does not answer.
    pub(super) async fn each(&self) -> anyhow::Result<Vec<Client>> {
        let addresses = match self.cluster.config()? {
            Some(cluster) => {
                let view = dta_cluster::read(&cluster).await?;
                view.collectors.into_values().map(|collector| collector.address).collect()
            }
            None => self.collector.clone(),
        };
        let mut clients = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            if !addresses[..n].contains(address) {
                clients.push(Client::connect(&self.options_of(address)).await?);
            }
        }
        Ok(clients)
    }

    /// All named collectors, or those of the cluster as they come and go, asked as one. Of several, one that is down is
    /// missed by what it has alone.
    pub(super) async fn ask(&self) -> anyhow::Result<Spread> {
        if let Some(cluster) = self.cluster.config()? {
            return self.follow(cluster).await;
        }
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

    /// The collectors of a cluster.
    async fn follow(&self, cluster: dta_cluster::Config) -> anyhow::Result<Spread> {
        // Asked first, so that a cluster that cannot be reached is reported at once.
        let spread = Spread::new(self.members(&dta_cluster::read(&cluster).await?, &[])?);
        let mut views = dta_cluster::follow(cluster)?;
        let (flags, followed) = (self.clone(), spread.clone());
        tokio::spawn(async move {
            loop {
                let view = views.changed().await;
                match flags.members(&view, &followed.members()) {
                    Ok(members) => followed.set_members(members),
                    Err(error) => tracing::warn!(%error, "a collector of the cluster cannot be asked"),
                }
            }
        });
        Ok(spread)
    }

    /// The collectors of a view; connections that there were before are kept.
    fn members(&self, view: &View, before: &[Member]) -> Result<Vec<Member>, ClientError> {
        let member = |address: &String| match before.iter().find(|member| member.address == *address) {
            Some(member) => Ok(member.clone()),
            None => {
                let ask = Arc::new(Client::connect_lazy(&self.options_of(address))?);
                Ok(Member { address: address.clone(), ask })
            }
        };
        view.collectors.values().map(|collector| member(&collector.address)).collect()
    }
}
