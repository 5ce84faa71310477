//! Writes a configuration as a file.

use std::path::Path;
use std::time::Duration;

use dta_proto::store::StoreSpec;
use serde::Serialize;

use super::{Config, History, Limits, MemoryConfig, Metrics, RingUse, SoftLink, Tls, Transport, Verbs};

#[derive(Serialize)]
struct File<'a> {
    collector: Collector<'a>,
    soft: Soft,
    verbs: &'a Verbs,
    tls: Option<&'a Tls>,
    limits: &'a Limits,
    metrics: &'a Metrics,
    export: &'a dta_export::config::Config,
    history: &'a History,
    store: Vec<StoreTable<'a>>,
}

#[derive(Serialize)]
struct StoreTable<'a> {
    epoch: Option<Span<'a>>,
    #[serde(flatten)]
    spec: &'a StoreSpec,
}

#[derive(Serialize)]
struct Span<'a>(#[serde(with = "dta_files::span")] &'a Duration);

#[derive(Serialize)]
struct Collector<'a> {
    name: &'a str,
    listen: String,
    insecure: bool,
    memory: String,
    device: &'a str,
    transport: Transport,
    names: Option<&'a Path>,
}

#[derive(Serialize)]
struct Soft {
    address: String,
    port: u16,
    link: String,
    mac: Option<String>,
    faults: String,
    fault_seed: u64,
    ring: RingUse,
    threads: usize,
}

impl Config {
    /// The file of this configuration, with every setting that has a value.
    ///
    /// # Errors
    /// TOML cannot express it: a file name that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let soft = &self.soft;
        toml::to_string(&File {
            collector: Collector {
                name: &self.name,
                listen: self.listen.to_string(),
                insecure: self.insecure,
                memory: match &self.memory {
                    MemoryConfig::Anonymous => "anonymous".to_owned(),
                    MemoryConfig::Directory(dir) => dir.display().to_string(),
                },
                device: &self.device,
                transport: self.transport,
                names: self.names.as_deref(),
            },
            soft: Soft {
                address: soft.address.to_string(),
                port: soft.port,
                link: match &soft.link {
                    SoftLink::Udp => "udp".to_owned(),
                    SoftLink::Wire(wire) => wire.to_string(),
                },
                mac: soft.mac.map(|mac| mac.to_string()),
                faults: soft.faults.to_string(),
                fault_seed: soft.fault_seed,
                ring: soft.ring,
                threads: soft.threads,
            },
            verbs: &self.verbs,
            tls: self.tls.as_ref(),
            limits: &self.limits,
            metrics: &self.metrics,
            export: &self.export,
            history: &self.history,
            store: self
                .stores
                .iter()
                .map(|spec| StoreTable { epoch: self.epochs.get(&spec.name).map(Span), spec })
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
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
            let (config, _) = Config::parse(text, Path::new("x")).unwrap();
            let written = config.to_toml().unwrap();
            assert_eq!(Config::parse(&written, Path::new("x")).unwrap().0, config, "{written}");
        }
    }
}
