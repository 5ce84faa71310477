//! Flags of every command that queries a running collector.

use std::sync::Arc;

use clap::Args;
use dta_cli::output::{OutputFlag, OutputFormat};
use dta_cluster::View;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{ClientError, ClientOptions, DEFAULT_COLLECTOR, Spread, SpreadMember};

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
    pub(super) fn is_wide_output(&self) -> bool {
        self.output.output == OutputFormat::Wide
    }

    /// A title for several collectors or a cluster; `None` for a single collector.
    pub(super) fn collectors_title(&self) -> Option<String> {
        match &self.collector[..] {
            _ if self.cluster.is_given() => Some("cluster".into()),
            [_] => None,
            several => Some(format!("collectors {}", several.join(", "))),
        }
    }

    /// The options of the only collector, for commands about a single one.
    pub(super) fn client_options(&self) -> anyhow::Result<ClientOptions> {
        if self.cluster.is_given() {
            let which = "this command asks one collector: name one of the cluster with --collector";
            return Err(dta_cli::misuse_error(anyhow::anyhow!(which)));
        }
        match &self.collector[..] {
            [only] => Ok(self.options_of(only)),
            several => Err(dta_cli::misuse_error(anyhow::anyhow!(
                "this command asks one collector, but --collector names {}: name one of them",
                several.len()
            ))),
        }
    }

    fn options_of(&self, collector: &str) -> ClientOptions {
        ClientOptions::new(collector, self.tls.client_tls())
    }

    pub(super) async fn connect_single(&self) -> anyhow::Result<RemoteCollector> {
        Ok(RemoteCollector::connect(&self.client_options()?).await?)
    }

    /// Connects to each named collector, or to each of the cluster.
    pub(super) async fn connect_each(&self) -> anyhow::Result<Vec<RemoteCollector>> {
        let addresses = match self.cluster.etcd_config()? {
            Some(cluster) => {
                let view = dta_cluster::read(&cluster).await?;
                view.collectors.into_values().map(|collector| collector.address).collect()
            }
            None => self.collector.clone(),
        };
        let mut clients = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            if !addresses[..n].contains(address) {
                clients.push(RemoteCollector::connect(&self.options_of(address)).await?);
            }
        }
        Ok(clients)
    }

    /// All named collectors, or those of the cluster as they come and go, queried as one. If one of several
    /// is down, only what it alone has is missing.
    pub(super) async fn connect_all(&self) -> anyhow::Result<Spread> {
        if let Some(cluster) = self.cluster.etcd_config()? {
            return self.follow_cluster(cluster).await;
        }
        let mut members: Vec<SpreadMember> = Vec::new();
        for address in &self.collector {
            if members.iter().any(|member| member.address == *address) {
                continue;
            }
            let options = self.options_of(address);
            let client = match self.collector.len() {
                1 => RemoteCollector::connect(&options).await?,
                _ => RemoteCollector::connect_lazy(&options)?,
            };
            members.push(SpreadMember { address: address.clone(), ask: Arc::new(client) });
        }
        Ok(Spread::new(members))
    }

    async fn follow_cluster(&self, cluster: dta_cluster::Config) -> anyhow::Result<Spread> {
        // Read first, so that an unreachable cluster is reported at once.
        let spread = Spread::new(self.cluster_members(&dta_cluster::read(&cluster).await?, &[])?);
        let mut views = dta_cluster::follow_cluster(cluster)?;
        let (flags, followed) = (self.clone(), spread.clone());
        tokio::spawn(async move {
            loop {
                let view = views.next_view().await;
                match flags.cluster_members(&view, &followed.members()) {
                    Ok(members) => followed.set_members(members),
                    Err(error) => tracing::warn!(%error, "a collector of the cluster cannot be asked"),
                }
            }
        });
        Ok(spread)
    }

    /// The collectors of a view; existing connections are kept.
    fn cluster_members(
        &self,
        view: &View,
        before: &[SpreadMember],
    ) -> Result<Vec<SpreadMember>, ClientError> {
        let member = |address: &String| match before.iter().find(|member| member.address == *address) {
            Some(member) => Ok(member.clone()),
            None => {
                let ask = Arc::new(RemoteCollector::connect_lazy(&self.options_of(address))?);
                Ok(SpreadMember { address: address.clone(), ask })
            }
        };
        view.collectors.values().map(|collector| member(&collector.address)).collect()
    }
}
