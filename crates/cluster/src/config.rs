//! How to reach etcd.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::EtcdError;

/// How to reach etcd: in a configuration, either a URL or a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EtcdSetting")]
pub struct Config {
    /// The nodes: HOST:PORT, http:// or https://.
    pub endpoints: Vec<String>,
    /// What all keys begin with. Clusters with different prefixes do not know about each other.
    pub prefix: String,
    /// TLS files; if given, all nodes are reached over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<EtcdTls>,
    /// A file whose first line is NAME:PASSWORD, if etcd requires authentication. It is read for each connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// Seconds without news after which a collector counts as dead.
    pub lease_seconds: u32,
}

impl Config {
    /// How long a collector's lease lasts unless it is renewed.
    pub fn lease_duration(&self) -> Duration {
        Duration::from_secs(self.lease_seconds.max(1).into())
    }
}

/// As written in a file.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "etcd is a URL, etcd://HOST:PORT[,HOST:PORT][/PREFIX], or a table with `endpoints`"
)]
enum EtcdSetting {
    Url(String),
    Table(EtcdConfigTable),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EtcdConfigTable {
    endpoints: Vec<String>,
    #[serde(default = "default_prefix")]
    prefix: String,
    tls: Option<EtcdTls>,
    credentials: Option<PathBuf>,
    #[serde(default = "lease_seconds")]
    lease_seconds: u32,
}

impl TryFrom<EtcdSetting> for Config {
    type Error = EtcdError;

    fn try_from(written: EtcdSetting) -> Result<Config, EtcdError> {
        match written {
            EtcdSetting::Url(url) => url.parse(),
            EtcdSetting::Table(EtcdConfigTable { endpoints, .. }) if endpoints.is_empty() => {
                Err(EtcdError("`endpoints` is empty: give the addresses of etcd's nodes".into()))
            }
            EtcdSetting::Table(EtcdConfigTable { endpoints, prefix, tls, credentials, lease_seconds }) => {
                let prefix = format!("{}/", prefix.trim_end_matches('/'));
                Ok(Config { endpoints, prefix, tls, credentials, lease_seconds })
            }
        }
    }
}

/// Files for TLS, all PEM. They are read for each connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdTls {
    /// The CA of etcd's certificates.
    pub ca: PathBuf,
    /// The client's certificate chain, leaf first.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The name in etcd's certificates, if it is not the host of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

fn default_prefix() -> String {
    "/dta/".into()
}

fn lease_seconds() -> u32 {
    10
}

/// The scheme of a cluster's URL.
const SCHEME: &str = "etcd://";

impl Config {
    /// A configuration with nodes at these addresses, and defaults otherwise.
    pub fn new(endpoints: Vec<String>) -> Config {
        Config {
            endpoints,
            prefix: default_prefix(),
            tls: None,
            credentials: None,
            lease_seconds: lease_seconds(),
        }
    }
}

/// `etcd://HOST:PORT[,HOST:PORT…][/PREFIX]`, and defaults otherwise. A slash is appended to the prefix.
impl FromStr for Config {
    type Err = EtcdError;

    fn from_str(text: &str) -> Result<Config, EtcdError> {
        let wrong =
            || EtcdError(format!("{text:?} is not a cluster: write etcd://HOST:PORT[,HOST:PORT][/PREFIX]"));
        let rest = text.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let (nodes, path) = rest.split_once('/').unwrap_or((rest, ""));
        let nodes: Vec<String> = nodes.split(',').map(str::to_owned).collect();
        let is_node = |node: &String| {
            node.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !nodes.iter().all(is_node) {
            return Err(wrong());
        }
        let config = Config::new(nodes);
        Ok(match path.trim_matches('/') {
            "" => config,
            path => Config { prefix: format!("/{path}/"), ..config },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_a_url() {
        let read = |text: &str| text.parse::<Config>().map(|config| (config.endpoints, config.prefix));
        let nodes = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>();
        assert_eq!(read("etcd://a:1"), Ok((nodes(&["a:1"]), "/dta/".into())));
        assert_eq!(read("etcd://a:1,[::1]:2/"), Ok((nodes(&["a:1", "[::1]:2"]), "/dta/".into())));
        assert_eq!(read("etcd://a:1/site/one"), Ok((nodes(&["a:1"]), "/site/one/".into())));
        for text in ["a:1", "etcd://", "etcd://a", "etcd://a:1,", "etcd://:1", "etcd://a:x/p", "etc://a:1"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("etcd://HOST:PORT"), "{error}");
        }
    }
}
