//! A build without the feature `etcd`: it knows what a cluster is, and can be in none.

use dta_proto::placement::Placement;
use tokio::sync::watch;

use crate::{Collector, Config, EtcdError, Membership, View, Views};

fn refuse<T>() -> Result<T, EtcdError> {
    Err(EtcdError("this program was built without etcd: build it with the feature `etcd`".into()))
}

/// `follow` of a build with `etcd`.
///
/// # Errors
/// Always.
pub fn follow(_: Config) -> Result<Views, EtcdError> {
    refuse()
}

/// `join` of a build with `etcd`.
///
/// # Errors
/// Always.
pub fn join(_: Config, _: String, _: watch::Receiver<Collector>) -> Result<Membership, EtcdError> {
    refuse()
}

/// `read` of a build with `etcd`.
///
/// # Errors
/// Always.
pub async fn read(_: &Config) -> Result<View, EtcdError> {
    refuse()
}

/// `drain` of a build with `etcd`.
///
/// # Errors
/// Always.
pub async fn drain(_: &Config, _: &str, _: bool) -> Result<(), EtcdError> {
    refuse()
}

/// `rebalance` of a build with `etcd`.
///
/// # Errors
/// Always.
pub async fn rebalance(_: &Config) -> Result<[Placement; 2], EtcdError> {
    refuse()
}
