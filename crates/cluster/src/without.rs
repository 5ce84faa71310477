//! A build without the feature `etcd`: it knows about clusters, but cannot be in one.

use dta_proto::placement::ClusterPlacement;
use tokio::sync::watch;

use crate::{ClusterAlerts, CollectorRecord, Config, EtcdError, Membership, View, Views};

fn refuse_without_etcd<T>() -> Result<T, EtcdError> {
    Err(EtcdError("this program was built without etcd: build it with the feature `etcd`".into()))
}

/// Stands in for `follow_cluster` of builds with `etcd`.
pub fn follow_cluster(_: Config) -> Result<Views, EtcdError> {
    refuse_without_etcd()
}

/// Stands in for `join_cluster` of builds with `etcd`.
pub fn join_cluster(
    _: Config,
    _: String,
    _: watch::Receiver<CollectorRecord>,
) -> Result<Membership, EtcdError> {
    refuse_without_etcd()
}

/// Stands in for `join_alerts` of builds with `etcd`.
pub fn join_alerts(_: Config, _: String) -> Result<ClusterAlerts, EtcdError> {
    refuse_without_etcd()
}

/// Stands in for `read` of builds with `etcd`.
pub async fn read(_: &Config) -> Result<View, EtcdError> {
    refuse_without_etcd()
}

/// Stands in for `set_drained` of builds with `etcd`.
pub async fn set_drained(_: &Config, _: &str, _: bool) -> Result<(), EtcdError> {
    refuse_without_etcd()
}

/// Stands in for `rebalance` of builds with `etcd`.
pub async fn rebalance(_: &Config) -> Result<[ClusterPlacement; 2], EtcdError> {
    refuse_without_etcd()
}
