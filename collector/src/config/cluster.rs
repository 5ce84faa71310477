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
    /// Its name there; that of the collector if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its gRPC address as others reach it; that of `collector.listen` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What fails as a whole with it, such as a rack; empty = nothing else.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone: String,
}

impl CollectorClusterConfig {
    /// A collector with no settings of its own.
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
