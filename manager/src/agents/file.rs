//! The file that names agents.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dta_files::config_file;
use dta_proto::trace::HOPS;
use dta_reporter::packet_trace::point::At;
use dta_rpc::{ClientOptions, ClientTls, ServerKind};
use serde::Deserialize;

const CALL: Duration = Duration::from_secs(20);

/// Agents, in the order in which packets pass their hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentsFile {
    tls: Option<AgentsFileTls>,
    #[serde(default)]
    pub agent: Vec<AgentEntry>,
}

/// Table `[tls]`, all PEM.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentsFileTls {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentEntry {
    /// HOST:PORT of its gRPC service.
    pub address: String,
    /// Name in its certificate, if that is not the host of its address.
    pub domain: Option<String>,
    /// Its own points, before the common ones.
    #[serde(default)]
    pub at: Vec<String>,
    /// The hop number of its first point; by default, the one after the previous agent.
    pub first_hop: Option<u8>,
}

impl AgentsFile {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(&config_file::read(path, "the agents")?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let (file, places) = config_file::parse_config::<Self>(text, path)?;
        let line = |key: &str| places.line_of_key(key).unwrap_or(1);
        for (n, agent) in file.agent.iter().enumerate() {
            let at = |key: &str| format!("{}, line {}", path.display(), line(&format!("agent[{n}].{key}")));
            file.client_options(agent).check_address(ServerKind::Agent).with_context(|| at("address"))?;
            let twice = file.agent[..n].iter().any(|other| other.address == agent.address);
            ensure!(!twice, "{}: {} is listed twice", at("address"), agent.address);
            for point in &agent.at {
                At::parse_points(point).with_context(|| at("at"))?;
            }
            ensure!(agent.first_hop.is_none_or(|hop| hop < HOPS), "{}: hops are 0 to 13", at("first_hop"));
        }
        ensure!(!file.agent.is_empty(), "{} names no [[agent]]", path.display());
        Ok(file)
    }

    pub fn client_options(&self, agent: &AgentEntry) -> ClientOptions {
        let tls = self.tls.as_ref().map(|AgentsFileTls { ca, cert, key }| ClientTls {
            ca: ca.clone(),
            cert: cert.clone(),
            key: key.clone(),
            domain: agent.domain.clone(),
        });
        ClientOptions { call: Some(CALL), ..ClientOptions::new(&agent.address, tls) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_refused_with_its_line() {
        let refused = |text: &str| {
            let error = AgentsFile::parse(text, Path::new("a.toml")).expect_err(text);
            dta_cli::error_line(&error)
        };
        for (text, expected) in [
            ("", "names no [[agent]]"),
            ("[[agent]]\naddress = \"host\"", "line 2: \"host\" is not an address of an agent (no port)"),
            ("[[agent]]\naddress = \"a:1\"\n[[agent]]\naddress = \"a:1\"", "line 4: a:1 is listed twice"),
            ("[[agent]]\naddress = \"a:1\"\nat = [\"usb:1\"]", "line 3: \"usb:1\" is not a point"),
            ("[[agent]]\naddress = \"a:1\"\nfirst_hop = 14", "line 3: hops are 0 to 13"),
            ("[[agent]]\naddress = \"a:1\"\npoints = []", "line 3, key `agent.points`"),
            ("[[agent]]\naddress = \"https://a:1\"", "the table [tls] of the agents' file"),
        ] {
            assert!(refused(text).contains(expected), "{text}: {}", refused(text));
        }
    }
}
