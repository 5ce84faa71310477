//! Joining a cluster, and leaving it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use dta_cluster::{CollectorRecord, View};
use dta_export::metrics::{Labels, MetricKind, MetricsPage};
use dta_files::moment;
use dta_memory::nic::Device;
use dta_proto::buckets::MAX_COPIES;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::dta::EpochEnd;
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::cluster::ClusterMembership;
use crate::config::{self, Config};

/// How long to try leaving; after that the lease simply expires.
pub(super) const LEAVE: Duration = Duration::from_secs(2);

pub(super) struct MembershipHandle {
    says: watch::Sender<CollectorRecord>,
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// A collector's membership in a cluster, before it joins.
pub(super) fn new_cluster(cluster: &config::CollectorClusterConfig, config: &Config) -> ClusterMembership {
    let replaces = |store: &&StoreSpec| {
        config.epochs.contains_key(&store.name) && store.kind.primitive().epoch_end() == EpochEnd::Replaces
    };
    let with_epochs =
        config.stores.iter().filter(replaces).map(|store| (store.name.as_str(), config.epochs[&store.name]));
    ClusterMembership::new(cluster.id(config).to_owned(), cluster.etcd.lease_duration(), with_epochs)
}

/// The address at which others reach a collector of a cluster whose gRPC is at `listen`.
pub(super) fn reachable_address(
    of: &config::CollectorClusterConfig,
    config: &Config,
    listen: SocketAddr,
) -> anyhow::Result<String> {
    let address = match &of.address {
        Some(address) => address.clone(),
        None if listen.ip().is_unspecified() => bail!(
            "others cannot reach a collector at {listen}: give its address as `address` in [cluster] (--cluster-address)"
        ),
        None if listen.ip().is_loopback() && !of.etcd.endpoints.iter().all(|node| is_local_node(node)) => {
            bail!(
                "etcd is on other hosts, which cannot reach a collector at {listen}: give an address of this host as --listen"
            )
        }
        None => listen.to_string(),
    };
    let is_plain = config.tls.is_none() || address.contains("://");
    Ok(if is_plain { address } else { format!("https://{address}") })
}

/// Joins, in a task that keeps trying while etcd is unreachable. Each view of the cluster is also passed to `follow_view`.
pub(super) fn join_cluster(
    of: &config::CollectorClusterConfig,
    config: &Config,
    address: String,
    metrics: Option<SocketAddr>,
    device: &Device,
    cluster: Arc<ClusterMembership>,
    follow_view: impl Fn(&View) + Send + 'static,
) -> anyhow::Result<MembershipHandle> {
    let collector = CollectorRecord {
        metrics: metrics.and_then(|at| reachable(at, &address)).unwrap_or_default(),
        address,
        device: device.name.clone(),
        zone: of.zone.clone(),
        // Constant for its lifetime: if its share of the load changed, it would be given other keys.
        free_memory: config.stores.iter().map(StoreSpec::region_len).sum(),
        // A later run has a higher one.
        generation: moment::now(),
        ..CollectorRecord::default()
    };
    let (says, said) = watch::channel(with_stores(&collector, config));
    let id = of.id(config).to_owned();
    let mut membership = dta_cluster::join_cluster(of.etcd.clone(), id.clone(), said)?;
    cluster.set_lease(membership.lease().clone());
    let (leave, mut leaving) = oneshot::channel();
    let task = tokio::spawn(async move {
        loop {
            tokio::select! {
                view = membership.views.next_view() => {
                    let was = cluster.placement_version();
                    let (version, buckets) = (view.placement.version, view.placement.collector_copies(MAX_COPIES, &id));
                    follow_view(&view);
                    cluster.update_view(view);
                    if version != was {
                        tracing::info!(version, %buckets, "another placement");
                    }
                }
                _ = &mut leaving => break,
            }
        }
        if tokio::time::timeout(LEAVE, membership.leave_cluster()).await.is_err() {
            tracing::warn!("etcd did not answer: this collector leaves the cluster when its lease ends");
        }
    });
    Ok(MembershipHandle { says, leave, task })
}

impl MembershipHandle {
    /// Announces the stores of another configuration, so that their lists are placed.
    pub(super) fn has_stores_of(&self, config: &Config) {
        self.says.send_if_modified(|said| {
            let next = with_stores(said, config);
            let is_other = *said != next;
            *said = next;
            is_other
        });
    }

    /// Leaves the cluster: what this collector holds goes to others.
    pub(super) async fn leave_cluster(self) {
        let _ = self.leave.send(());
        let _ = self.task.await;
    }
}

/// Where others reach metrics at an address of this host, if they can; takes the host from the gRPC address as they see it.
fn reachable(metrics: SocketAddr, address: &str) -> Option<String> {
    let host = address.rsplit_once("://").map_or(address, |(_, place)| place).rsplit_once(':')?.0;
    match metrics.ip() {
        ip if ip.is_unspecified() => Some(format!("{host}:{}", metrics.port())),
        ip if ip.is_loopback() && !is_local_node(address) => {
            tracing::info!(%metrics, "/targets leaves this collector out: others do not reach its metrics");
            None
        }
        _ => Some(metrics.to_string()),
    }
}

/// The metrics addresses of all present collectors, in the format of Prometheus' HTTP service discovery.
pub(super) fn scrape_targets(cluster: &ClusterMembership) -> String {
    let view = cluster.newest_view();
    let scraped = view.collectors.iter().filter(|(_, collector)| !collector.metrics.is_empty());
    let target = |(id, collector): (&String, &CollectorRecord)| json!({ "targets": [collector.metrics], "labels": { "dta_collector": id, "dta_zone": collector.zone } });
    serde_json::Value::from_iter(scraped.map(target)).to_string()
}

/// Adds metrics about a collector's place in a cluster.
pub(super) fn add_cluster_metrics(cluster: &ClusterMembership, page: &mut MetricsPage) {
    let view = cluster.newest_view();
    let mut gauge = |name: &'static str, help: &'static str, labels: Labels, value: u64| {
        page.add(name, MetricKind::Gauge, help, labels, value);
    };
    let help = "1 if this collector may answer for its part of the stores: its lease in etcd holds, or a translator goes by the placement that it knows";
    gauge(
        "dta_collector_in_cluster",
        help,
        Labels::new(),
        cluster.check_vouched(Instant::now()).is_ok().into(),
    );
    let help = "collectors in the cluster, this one included";
    gauge("dta_collector_cluster_size", help, Labels::new(), view.collectors.len() as u64);
    let help = "version of the newest placement that this collector knows; 0: none yet";
    gauge("dta_collector_placement_version", help, Labels::new(), view.placement.version);
    for copy in 0..view.placement.keys.len() {
        let help = "buckets of keys, of 256, that the placement gives this collector, by copy";
        let labels = vec![("copy".into(), copy.to_string())];
        let buckets = view.placement.buckets_of_copy(copy, cluster.id()).iter().count() as u64;
        gauge("dta_collector_placement_buckets", help, labels, buckets);
    }
}

/// Whether an etcd node is on this host, judging by its URL.
fn is_local_node(node: &str) -> bool {
    let host =
        node.rsplit("//").next().and_then(|place| place.rsplit_once(':')).map_or(node, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// What a collector announces about itself, with the stores of a configuration.
fn with_stores(said: &CollectorRecord, config: &Config) -> CollectorRecord {
    CollectorRecord {
        copies: config.replicas.values().copied().max().unwrap_or(1),
        lists: config.stores.iter().filter_map(placed_lists).collect(),
        ..said.clone()
    }
}

/// How many lists of a store the cluster places, if it is placed by lists.
fn placed_lists(store: &StoreSpec) -> Option<(String, u32)> {
    let lists = match store.kind {
        StoreKind::Append { lists, .. } => lists,
        StoreKind::SketchMerge { .. } => 1,
        _ => return None,
    };
    Some((store.name.clone(), lists))
}
