//! A build without the feature `etcd`: it knows what a cluster is, and can be in none.

use dta_proto::placement::ClusterPlacement;
use tokio::sync::watch;

use crate::{ClusterAlerts, CollectorRecord, Config, EtcdError, Membership, View, Views};

fn refuse_without_etcd<T>() -> Result<T, EtcdError> {
    Err(EtcdError("this program was built without etcd: build it with the feature `etcd`".into()))
}

/// `follow_cluster` of a build with `etcd`.
pub fn follow_cluster(_: Config) -> Result<Views, EtcdError> {
    refuse_without_etcd()
}

/// `join_cluster` of a build with `etcd`.
pub fn join_cluster(
    _: Config,
    _: String,
    _: watch::Receiver<CollectorRecord>,
) -> Result<Membership, EtcdError> {
    refuse_without_etcd()
}

/// `join_alerts` of a build with `etcd`.
pub fn join_alerts(_: Config, _: String) -> Result<ClusterAlerts, EtcdError> {
    refuse_without_etcd()
}

/// `read` of a build with `etcd`.
pub async fn read(_: &Config) -> Result<View, EtcdError> {
    refuse_without_etcd()
}

/// `set_drained` of a build with `etcd`.
pub async fn set_drained(_: &Config, _: &str, _: bool) -> Result<(), EtcdError> {
    refuse_without_etcd()
}

/// `rebalance` of a build with `etcd`.
pub async fn rebalance(_: &Config) -> Result<[ClusterPlacement; 2], EtcdError> {
    refuse_without_etcd()
}
