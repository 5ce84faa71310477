//! A placement in etcd. Below a prefix, `/dta/` unless configured otherwise:
//!
//! | key | value |
//! |---|---|
//! | `collectors/ID` | a [`CollectorRecord`](crate::CollectorRecord) as JSON, under its lease: it goes when the collector was not heard of for the time of the lease |
//! | `drained/ID` | empty: this collector is to have nothing, until the key is deleted |
//! | `planner` | id of the collector that plans, under that one's lease |
//! | `placement` | a [`ClusterPlacement`](dta_proto::placement::ClusterPlacement) as JSON, replaced only if it is still the one that was planned from, and by the planner |

mod alerts;
mod cluster;
mod connect;
mod follow;
mod join;
mod lease;
mod watched;

pub use alerts::join_alerts;
pub use follow::follow_cluster;
pub use join::join_cluster;

use dta_proto::placement::ClusterPlacement;
use dta_rpc::transport::tls::TlsError;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use crate::{Config, EtcdError, View};
use cluster::{PlacementKeyState, placement_json, placement_key};
use watched::WatchedCluster;

/// Reads the present state of the cluster from etcd.
///
/// # Errors
/// No node can be reached that has a leader and accepts this client.
pub async fn read(config: &Config) -> Result<View, EtcdError> {
    let client = config.connect_any().await?;
    Ok(WatchedCluster::start_watching(client, &config.prefix, View::default()).await?.cluster.view)
}

/// Plans from scratch, as if nothing were placed: each collector gets one range of buckets, if possible.
/// Returns the placements before and after.
///
/// # Errors
/// As for [`read`]; or there is no collector; or the placement was changed meanwhile or cannot be read.
pub async fn rebalance(config: &Config) -> Result<[ClusterPlacement; 2], EtcdError> {
    let mut client = config.connect_any().await?;
    let cluster =
        WatchedCluster::start_watching(client.clone(), &config.prefix, View::default()).await?.cluster;
    let before = cluster.view.placement.clone();
    let PlacementKeyState::At(replaces) = cluster.placed else {
        return Err(EtcdError("there is no readable placement: nothing was changed".into()));
    };
    let colours = before.colours.clone();
    let unplaced = ClusterPlacement { version: before.version, colours, ..ClusterPlacement::default() };
    let next = View { placement: unplaced, ..cluster.view }.next();
    if next.keys.is_empty() {
        return Err(EtcdError("no collector can take anything: nothing was changed".into()));
    }
    if (&next.keys, &next.lists) == (&before.keys, &before.lists) {
        return Ok([before.clone(), before]);
    }
    let key = placement_key(&config.prefix);
    let put = TxnOp::put(key.as_str(), placement_json(&next)?, None);
    let is_same = Compare::mod_revision(key, CompareOp::Equal, replaces);
    match client.txn(Txn::new().when([is_same]).and_then([put])).await?.succeeded() {
        true => Ok([before, next]),
        false => Err(EtcdError("the placement changed meanwhile: try again".into())),
    }
}

/// Drains a collector of everything it holds, or lets it hold something again.
pub async fn set_drained(config: &Config, id: &str, is: bool) -> Result<(), EtcdError> {
    let mut client = config.connect_any().await?;
    let key = cluster::drained_key(&config.prefix, id);
    match is {
        true => drop(client.put(key, "", None).await?),
        false => drop(client.delete(key, None).await?),
    }
    Ok(())
}

impl From<etcd_client::Error> for EtcdError {
    fn from(error: etcd_client::Error) -> Self {
        EtcdError(match &error {
            etcd_client::Error::GRpcStatus(status) => {
                format!("etcd: {}", dta_rpc::transport::status_reason(status))
            }
            other => format!("etcd: {other}"),
        })
    }
}

impl From<TlsError> for EtcdError {
    fn from(error: TlsError) -> Self {
        EtcdError(error.to_string())
    }
}
