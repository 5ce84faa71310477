//! Table `[cluster]`.

use dta_cluster as placement;
use dta_proto::name;
use serde::{Deserialize, Serialize};

use super::{Config, ConfigError};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectorClusterConfig {
    /// Where etcd is: a URL, or a table.
    pub etcd: placement::Config,
    /// This collector's id in the cluster; by default the collector's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its gRPC address as seen by others; by default that of `collector.listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The failure domain it belongs to, such as a rack; empty = its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone: String,
}

impl CollectorClusterConfig {
    /// Settings for a collector with nothing configured but etcd.
    pub fn with_etcd(etcd: placement::Config) -> CollectorClusterConfig {
        CollectorClusterConfig { etcd, id: None, address: None, zone: String::new() }
    }

    pub fn id<'a>(&'a self, config: &'a Config) -> &'a str {
        self.id.as_deref().unwrap_or(&config.name)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        match self.id.as_ref().filter(|id| !name::is_valid_name(id)) {
            Some(id) => Err(ConfigError::invalid_quoted("cluster.id", id, name::PLAIN)),
            None => Ok(()),
        }
    }
}
