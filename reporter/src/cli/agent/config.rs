//! An agent's configuration: one TOML file.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use dta_files::config_file::{self, ConfigError};
use dta_files::host;
use dta_proto::trace::HOPS;
use dta_proto::wire::dta::PORT;
use serde::{Deserialize, Deserializer, Serialize};

use super::trace_spec::TraceSpec;

/// The commented configuration that `dta-reporter config --example` prints.
pub(super) const EXAMPLE: &str = include_str!("example.toml");

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Config {
    pub(super) agent: AgentTable,
    pub(super) trace: AgentTraceTable,
    pub(super) tls: Option<AgentTlsTable>,
}

dta_files::config_table! {
    /// Table `[agent]`; `example.toml` explains its keys.
    pub(super) struct AgentTable {
        #[serde(deserialize_with = "host::serde::deserialize_socket")]
        pub(super) listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 40054));
        pub(super) insecure: bool = false;
        pub(super) name: Option<String> = None;
        pub(super) reporter_id: u16 = 0;
        #[serde(deserialize_with = "socket_v4")]
        pub(super) translator: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT);
        pub(super) collector: Option<String> = None;
        pub(super) first_hop: u8 = 0;
        pub(super) slow_ms: Option<f64> = None;
        pub(super) synced: bool = false;
        pub(super) settle_ms: u64 = 200;
        pub(super) namespaces: bool = false;
        pub(super) follow: bool = true;
        pub(super) clsact: bool = false;
    }
}

dta_files::config_table! {
    /// Table `[trace]`.
    #[derive(Eq)]
    pub(super) struct AgentTraceTable {
        pub(super) at: Vec<String> = Vec::new();
        pub(super) filter: String = String::new();
        pub(super) sample: String = "1/1".into();
    }
}

/// Table `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentTlsTable {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: PathBuf,
}

fn socket_v4<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddrV4, D::Error> {
    host::socket_v4(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

impl Config {
    /// The requested file, else the one in the usual place, else the defaults; and the file's path.
    pub(super) fn load(asked: Option<&Path>) -> Result<(Self, Option<PathBuf>)> {
        let Some(path) = config_file::find_config_file(asked, "agent.toml") else {
            return Ok((Self::default(), None));
        };
        let config = Self::parse(&config_file::read(&path, "the configuration")?, &path)?;
        Ok((config, Some(path)))
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let (config, places) = config_file::parse_config::<Self>(text, path)?;
        let located =
            |(key, why): (&str, String)| places.locate_error(ConfigError::new(key, format!("{key}: {why}")));
        config.validate().map_err(located)?;
        Ok(config)
    }

    /// An error, with the key that it is about.
    fn validate(&self) -> Result<(), (&'static str, String)> {
        let agent = &self.agent;
        if !agent.listen.ip().is_loopback() && self.tls.is_none() && !agent.insecure {
            return Err((
                "agent.listen",
                format!(
                    "refusing to listen on {} without TLS: anyone who reaches it can choose which packets \
                    are traced. Set cert, key and client_ca in [tls], listen on loopback, or set insecure \
                    = true if the network itself keeps others out",
                    agent.listen
                ),
            ));
        }
        if agent.first_hop >= HOPS {
            return Err(("agent.first_hop", format!("is {}, but must be 0 to 13", agent.first_hop)));
        }
        if !(1..=2000).contains(&agent.settle_ms) {
            return Err(("agent.settle_ms", format!("is {}, but must be 1 to 2000", agent.settle_ms)));
        }
        if agent.slow_ms.is_some_and(|ms| Duration::try_from_secs_f64(ms / 1e3).is_err()) {
            return Err(("agent.slow_ms", "must be a number from 0 on".into()));
        }
        TraceSpec::of_config(self).map(drop)
    }

    /// Packets that take longer are reported individually.
    pub(super) fn slow_threshold(&self) -> Option<Duration> {
        self.agent.slow_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok())
    }

    /// The keys that differ but cannot change while the agent runs.
    pub(super) fn fixed_key_changes(&self, new: &Self) -> Vec<String> {
        let mut keys = config_file::changed_keys(&self.agent, &new.agent);
        keys.iter_mut().for_each(|key| *key = format!("agent.{key}"));
        if self.tls.is_some() != new.tls.is_some() {
            keys.push("tls".into());
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(text, Path::new("a.toml")).expect_err(text).to_string()
    }

    #[test]
    fn the_example_says_what_the_defaults_are() {
        assert_eq!(Config::parse(EXAMPLE, Path::new("example.toml")).unwrap(), Config::default());
        // Once the settings without defaults are filled in, it must also be valid.
        let full = EXAMPLE.replace("#! ", "");
        let full = Config::parse(&full, Path::new("example.toml")).unwrap();
        assert_eq!(
            (full.agent.name.as_deref(), full.slow_threshold()),
            (Some("web1"), Some(Duration::from_millis(10)))
        );
        assert!(full.tls.is_some());
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_line() {
        for (text, expected) in [
            (
                "[agent]\nlisten = \"0.0.0.0:1\"",
                "a.toml, line 2: agent.listen: refusing to listen on 0.0.0.0:1",
            ),
            ("[agent]\nfirst_hop = 14", "line 2: agent.first_hop: is 14"),
            ("[agent]\nsettle_ms = 0", "line 2: agent.settle_ms"),
            ("[agent]\nslow_ms = -1.0", "line 2: agent.slow_ms"),
            ("[agent]\nspeed = 1", "line 2, key `agent.speed`"),
            ("[trace]\nat = [\"usb:1\"]", "line 2: trace.at: \"usb:1\" is not a point"),
            ("[trace]\nat = [\"netns:a/iface:e0\"]", "namespaces = true"),
            ("[trace]\nfilter = \"tcp prt 80\"", "line 2: trace.filter"),
            ("[trace]\nsample = \"64\"", "line 2: trace.sample: write a share as 1/64"),
        ] {
            let error = refused(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        Config::parse("[agent]\nlisten = \"0.0.0.0:1\"\ninsecure = true", Path::new("a.toml")).unwrap();
    }

    #[test]
    fn points_can_change_while_it_runs_and_the_rest_cannot() {
        let old = Config::default();
        let mut new = old.clone();
        new.trace.filter = "tcp".into();
        assert!(old.fixed_key_changes(&new).is_empty());
        new.agent.reporter_id = 7;
        assert_eq!(old.fixed_key_changes(&new), ["agent.reporter_id"]);
    }
}
