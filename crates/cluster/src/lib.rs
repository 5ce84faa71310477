//! Who has which keys and lists, where collectors find each other in etcd.
//!
//! - [`View`] is what is known: the collectors, and the placement.
//! - [`follow_cluster`] gives the newest view, and says when there is another one; [`read`] asks once.
//! - [`join_cluster`]: a collector is there as long as its lease, and plans who has what if it is elected.
//! - [`join_alerts`]: what each finds fires once in the cluster, and one collector delivers it.
//! - [`set_drained`], [`rebalance`]: what people change.
//! - [`InEffect`]: which placement the stores of a collector go by, as those with epochs take one at an epoch's start.
//!
//! Without the feature `etcd` all of this refuses, and says so.

mod alerts;
mod config;
#[cfg(feature = "etcd")]
mod etcd;
mod in_effect;
mod membership;
mod view;
#[cfg(not(feature = "etcd"))]
mod without;

pub use alerts::{AlertLog, ClusterAlerts};
pub use config::{Config, EtcdTls};
#[cfg(feature = "etcd")]
pub use etcd::{follow_cluster, join_alerts, join_cluster, read, rebalance, set_drained};
pub use in_effect::InEffect;
pub use membership::{Lease, Membership};
pub use view::{CollectorRecord, Earlier, View, Views};
#[cfg(not(feature = "etcd"))]
pub use without::{follow_cluster, join_alerts, join_cluster, read, rebalance, set_drained};

/// Why something in etcd could not be read or changed, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EtcdError(String);
