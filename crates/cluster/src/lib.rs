//! Who holds which keys and lists, when collectors find each other in etcd.
//!
//! - [`View`]: what is known, namely the collectors and the placement.
//! - [`follow_cluster`] gives the newest view and tells when there is another one; [`read`] asks once.
//! - [`join_cluster`]: a collector is present as long as its lease lasts, and plans who holds what if it is elected.
//! - [`join_alerts`]: what any collector finds fires once in the cluster, and one collector delivers it.
//! - [`set_drained`], [`rebalance`]: changes that people make.
//! - [`InEffect`]: which placement is in effect for a collector's stores; with epochs, it changes when one begins.
//!
//! Without the feature `etcd`, all of this refuses and says why.

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
