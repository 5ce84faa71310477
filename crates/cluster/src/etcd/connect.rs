//! Connections to nodes.

use std::time::{Duration, SystemTime};

use dta_files::file;
use dta_rpc::transport::tls::{self, ClientTls};
use etcd_client::{Client, ConnectOptions, GetOptions};

use crate::{Config, EtcdError, EtcdTls};

/// How long a call or a connection may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often a connection is probed, and how long the answer may take. etcd accepts one ping in 5 seconds,
/// and closes connections with more.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// A random node to begin with, so that not everybody uses the first one.
pub(super) fn random_turn() -> usize {
    getrandom::u32().unwrap_or_default() as usize
}

impl Config {
    /// A client of one node, chosen by turn. Sends nothing yet, unless there are credentials.
    ///
    /// A client of all nodes would, by chance, send calls to a node that is down, which then fail.
    pub(super) async fn connect_node(&self, turn: usize) -> Result<Client, EtcdError> {
        let Some(node) = self.endpoints.get(turn % self.endpoints.len().max(1)) else {
            return Err(EtcdError("no etcd node is given (endpoints)".into()));
        };
        let mut options = ConnectOptions::new()
            .with_timeout(TIMEOUT)
            .with_connect_timeout(TIMEOUT)
            .with_keep_alive(PING.0, PING.1)
            // Otherwise a node without a leader would not reveal that its data is old.
            .with_require_leader(true);
        if let Some(EtcdTls { ca, cert, key, domain }) = self.tls.clone() {
            let files = ClientTls { ca, cert, key, domain };
            options = options.with_tls(tls::load_client_tls(&files, SystemTime::now())?);
        }
        if let Some(path) = &self.credentials {
            let bad = |reason: &str| {
                EtcdError(format!("cannot use the credentials in {}: {reason}", path.display()))
            };
            let text = file::read_text(path).map_err(|error| bad(&error.to_string()))?;
            let line = text.lines().next().unwrap_or_default().trim();
            let (name, password) =
                line.split_once(':').ok_or_else(|| bad("the first line must be NAME:PASSWORD"))?;
            options = options.with_user(name, password);
        }
        Ok(Client::connect([node], Some(options)).await?)
    }

    /// A client of a node that answers and has a leader.
    pub(super) async fn connect_any(&self) -> Result<Client, EtcdError> {
        let first = random_turn();
        let mut turn = 0;
        loop {
            match self.try_connect_node(first.wrapping_add(turn)).await {
                Err(_) if turn + 1 < self.endpoints.len() => turn += 1,
                tried => return tried,
            }
        }
    }

    async fn try_connect_node(&self, turn: usize) -> Result<Client, EtcdError> {
        let mut client = self.connect_node(turn).await?;
        client.get(self.prefix.as_str(), Some(GetOptions::new().with_count_only())).await?;
        Ok(client)
    }
}
