//! A placement in etcd. Below a prefix, `/dta/` unless configured otherwise:
//!
//! | key | value |
//! |---|---|
//! | `collectors/ID` | a [`Collector`] as JSON, under its lease: it goes when the collector was not heard of for the time of the lease |
//! | `drained/ID` | empty: this collector is to have nothing, until the key is deleted |
//! | `planner` | id of the collector that plans, under that one's lease |
//! | `placement` | a [`Placement`](dta_proto::placement::Placement) as JSON, replaced only if it is still the one that was planned from, and by the planner |

mod cluster;
mod config;
mod error;
mod follow;
mod join;
mod watched;

pub use config::{Config, Tls};
pub use error::EtcdError;
pub(crate) use follow::follow;
pub use join::{Membership, join};

use crate::View;
use watched::Watched;

/// What etcd says now.
///
/// # Errors
/// No node can be reached, has a leader, and accepts.
pub async fn read(config: &Config) -> Result<View, EtcdError> {
    let client = config.connect_any().await?;
    Ok(Watched::begin(client, &config.prefix, View::default()).await?.cluster.view)
}

/// Has a collector lose all that it has, or lets it have something again.
///
/// # Errors
/// As [`read`].
pub async fn drain(config: &Config, id: &str, is: bool) -> Result<(), EtcdError> {
    let mut client = config.connect_any().await?;
    let key = cluster::drained_key(&config.prefix, id);
    match is {
        true => drop(client.put(key, "", None).await?),
        false => drop(client.delete(key, None).await?),
    }
    Ok(())
}
