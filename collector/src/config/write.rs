//! Writes a configuration as a file.

use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::Replicas;
use serde::Serialize;

use super::file::{CollectorConfigFile, CollectorSection, Span, StoreTable};
use super::{Config, MemoryBacking};

impl Config {
    /// The file for this configuration, with every setting that has a value.
    ///
    /// # Errors
    /// TOML cannot express it: a file name that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&CollectorConfigFile {
            collector: CollectorSection {
                name: Some(self.name.clone()),
                listen: Some(self.listen.to_string()),
                insecure: self.insecure,
                memory: Some(match &self.memory {
                    MemoryBacking::Anonymous => "anonymous".to_owned(),
                    MemoryBacking::Directory(dir) => dir.display().to_string(),
                }),
                device: Some(self.device.clone()),
                transport: self.transport,
                names: self.names.clone(),
            },
            soft: self.soft.clone(),
            verbs: self.verbs.clone(),
            tls: self.tls.clone(),
            limits: self.limits.clone(),
            metrics: self.metrics.clone(),
            web: self.web.clone(),
            export: self.export.clone(),
            history: self.history.clone(),
            alerts: self.alerts.clone(),
            cluster: self.cluster.clone(),
            store: Some(self.store_tables()),
        })
    }

    /// Only the tables of its stores, as a file with no other settings.
    pub fn stores_to_toml(&self) -> Result<String, toml::ser::Error> {
        #[derive(Serialize)]
        struct StoreTables {
            store: Vec<StoreTable>,
        }
        toml::to_string(&StoreTables { store: self.store_tables() })
    }

    fn store_tables(&self) -> Vec<StoreTable> {
        let table = |spec: &StoreSpec| {
            let replicas = self.replicas.get(&spec.name).copied();
            let of = spec.kind.primitive().replicas();
            StoreTable {
                epoch: self.epochs.get(&spec.name).copied().map(Span),
                spread_copies: replicas.filter(|_| of == Replicas::Copies).map(|_| true),
                // For counters, they are in the layout.
                replicas: replicas.filter(|_| of == Replicas::Whole),
                spec: spec.clone(),
            }
        };
        self.stores.iter().map(table).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::EXAMPLE;

    #[test]
    fn what_is_written_is_read_again() {
        // The example with every commented setting enabled.
        let all: String =
            EXAMPLE.lines().map(|l| l.strip_prefix("#! ").unwrap_or(l).to_owned() + "\n").collect();
        let all = all.replace("link = \"udp\"", "link = \"packet:eth0\"");
        for text in [
            "",
            &all,
            "[soft]\nlink = \"xdp:eth0\"\n",
            "[soft]\nthreads = 3\n",
            "[soft]\nfaults = \"drop=0.01,dup=0.5\"\n[collector]\nmemory = \"anonymous\"\n",
        ] {
            let (config, _) = Config::parse_toml(text, Path::new("x")).unwrap();
            let written = config.to_toml().unwrap();
            assert_eq!(Config::parse_toml(&written, Path::new("x")).unwrap().0, config, "{written}");
        }
    }
}
