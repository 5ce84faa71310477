//! Joining a cluster, and leaving it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use dta_files::moment;
use dta_placement::Collector;
use dta_proto::buckets::MAX_COPIES;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::dta::EpochEnd;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::cluster::Cluster;
use crate::config::{self, Config};
use crate::nic::Device;

/// For how long leaving is tried; after that the lease ends by itself.
const LEAVE: Duration = Duration::from_secs(2);

/// A collector that has joined, or tries to.
pub(super) struct Joined {
    /// What it says of itself.
    says: watch::Sender<Collector>,
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The place of a collector in a cluster, before it joins.
pub(super) fn of(cluster: &config::Cluster, config: &Config) -> Cluster {
    let replaces = |store: &&StoreSpec| {
        config.epochs.contains_key(&store.name) && store.kind.primitive().epoch_end() == EpochEnd::Replaces
    };
    let with_epochs = config.stores.iter().filter(replaces).map(|store| store.name.as_str());
    Cluster::new(cluster.id(config).to_owned(), cluster.etcd.lease(), with_epochs)
}

/// Joins, in a task that keeps trying while etcd cannot be reached.
pub(super) fn join(
    of: &config::Cluster,
    config: &Config,
    listen: SocketAddr,
    device: &Device,
    cluster: Arc<Cluster>,
) -> anyhow::Result<Joined> {
    let address = match &of.address {
        Some(address) => address.clone(),
        None if listen.ip().is_unspecified() => bail!(
            "the cluster cannot be told an address: {listen} is that of no host; give `address` in [cluster] (--cluster-address)"
        ),
        None if listen.ip().is_loopback() && !of.etcd.endpoints.iter().all(|node| is_here(node)) => bail!(
            "etcd is on other hosts, which cannot reach a collector at {listen}: give an address of this host as --listen"
        ),
        None => listen.to_string(),
    };
    let is_plain = config.tls.is_none() || address.contains("://");
    let collector = Collector {
        address: if is_plain { address } else { format!("https://{address}") },
        device: device.name.clone(),
        zone: of.zone.clone(),
        // As long as it lives: with another share of the load, it would be given other keys.
        free_memory: config.stores.iter().map(StoreSpec::region_len).sum(),
        // A later life has a higher one.
        generation: moment::now(),
        ..Collector::default()
    };
    let (says, said) = watch::channel(with_stores(&collector, config));
    let id = of.id(config).to_owned();
    let mut membership = dta_placement::join(of.etcd.clone(), id.clone(), said)?;
    cluster.joins(membership.lease().clone());
    let (leave, mut leaving) = oneshot::channel();
    let task = tokio::spawn(async move {
        loop {
            tokio::select! {
                view = membership.views.changed() => {
                    let was = cluster.version();
                    let (version, buckets) = (view.placement.version, view.placement.copies(MAX_COPIES, &id));
                    cluster.learn(view);
                    if version != was {
                        tracing::info!(version, %buckets, "another placement");
                    }
                }
                _ = &mut leaving => break,
            }
        }
        if tokio::time::timeout(LEAVE, membership.leave()).await.is_err() {
            tracing::warn!("etcd did not answer: this collector leaves the cluster when its lease ends");
        }
    });
    Ok(Joined { says, leave, task })
}

impl Joined {
    /// Says which stores it has by another configuration, so that their lists are placed.
    pub(super) fn has_stores_of(&self, config: &Config) {
        self.says.send_if_modified(|said| {
            let next = with_stores(said, config);
            let is_other = *said != next;
            *said = next;
            is_other
        });
    }

    /// Leaves the cluster: what this collector has goes to others.
    pub(super) async fn leave(self) {
        let _ = self.leave.send(());
        let _ = self.task.await;
    }
}

/// Whether a node of etcd is on this host, as far as its URL shows.
fn is_here(node: &str) -> bool {
    let host =
        node.rsplit("//").next().and_then(|place| place.rsplit_once(':')).map_or(node, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// What a collector says of itself, with the stores of a configuration.
fn with_stores(said: &Collector, config: &Config) -> Collector {
    Collector {
        copies: config.replicas.values().copied().max().unwrap_or(1),
        lists: config.stores.iter().filter_map(lists).collect(),
        ..said.clone()
    }
}

/// How many lists the cluster places of a store, if it is placed by lists.
fn lists(store: &StoreSpec) -> Option<(String, u32)> {
    let lists = match store.kind {
        StoreKind::Append { lists, .. } => lists,
        StoreKind::SketchMerge { .. } => 1,
        _ => return None,
    };
    Some((store.name.clone(), lists))
}
