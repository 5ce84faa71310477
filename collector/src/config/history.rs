//! What is kept of stores that have epochs.

use std::path::PathBuf;
use std::time::Duration;

use dta_export::config::check_url;
use dta_history::clickhouse::ClickHouseServer;
use dta_proto::telemetry::KEEP_ALIVE_SECONDS;

use super::{Config, ConfigError};
use crate::epochs::Coarse;

/// The shortest epoch: translators move to new memory when they renew, which is once a second.
const SHORTEST: Duration = Duration::from_secs(2);

dta_files::config_table! {
    /// Table `[history]`.
    #[derive(Eq)]
    pub struct HistoryConfig {
        /// Folder with a table for each store that has epochs; by default [`HistoryConfig::directory`].
        #[serde(skip_serializing_if = "Option::is_none")]
        pub directory: Option<PathBuf> = None;
        /// Place in object storage for a copy of all tables, `s3://BUCKET/PREFIX`, used by this collector alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub url: Option<String> = None;
        /// Epochs that ended longer ago than this are removed.
        #[serde(with = "dta_files::span")]
        pub keep: Duration = Duration::from_secs(7 * 86_400);
        /// Bytes that all stores' data files may take together; beyond that, the largest table loses its oldest epochs.
        #[serde(with = "dta_files::size")]
        pub keep_bytes: u64 = 20 << 30;
        /// How long a value still counts for a key that was not reported again, from the end of the epoch that has it.
        #[serde(with = "dta_files::span")]
        pub look_back: Duration = Duration::from_secs(10 * KEEP_ALIVE_SECONDS);
        /// How old epochs are thinned out.
        pub coarse: Coarse = Coarse { after: Duration::from_secs(86_400), every: Duration::from_secs(3600) };
        /// A ClickHouse database that gets the rows of all tables.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub clickhouse: Option<ClickHouse> = None;
    }
}

/// The variable that holds the password of ClickHouse's user if no file does.
const SECRET_VARIABLE: &str = "DTA_HISTORY_CLICKHOUSE_SECRET";

dta_files::config_table! {
    /// Table `[history.clickhouse]`.
    #[derive(Eq)]
    pub struct ClickHouse {
        /// `http://HOST:8123` or `https://HOST:8443`; a path may follow.
        pub url: String = "http://127.0.0.1:8123".into();
        /// The database, which must exist.
        pub database: String = "default".into();
        /// The user; by default the server's default user.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub user: Option<String> = None;
        /// File whose first line is the user's password; by default `$DTA_HISTORY_CLICKHOUSE_SECRET`, or no password.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub secret_file: Option<PathBuf> = None;
        /// CAs of the server's certificate (PEM); if unset, those that browsers trust.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ca: Option<PathBuf> = None;
    }
}

impl ClickHouse {
    fn validate(&self) -> Result<(), ConfigError> {
        let what = ["a ClickHouse server", "http://HOST:8123"];
        check_url("history.clickhouse", &self.url, &self.ca, SECRET_VARIABLE, what)?;
        if self.database.is_empty() {
            return Err(ConfigError::invalid_quoted(
                "history.clickhouse.database",
                "",
                "the name of a database",
            ));
        }
        if self.secret_file.is_some() && self.user.is_none() {
            let must = "left out without `user`, whose password it has";
            return Err(ConfigError::invalid_value("history.clickhouse.secret_file", "set", must));
        }
        Ok(())
    }
}

impl HistoryConfig {
    /// Where the tables are: the configured folder, or else `history` in the state folder of the collector `name`.
    pub fn directory(&self, name: &str) -> PathBuf {
        let folder = || dta_files::state_directory(&format!("history-{name}"));
        self.directory.clone().unwrap_or_else(folder)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        match &self.url {
            Some(url) if url.strip_prefix("s3://").is_none_or(|place| place.trim_matches('/').is_empty()) => {
                Err(ConfigError::invalid_quoted("history.url", url, "s3://BUCKET or s3://BUCKET/PREFIX"))
            }
            _ => self.clickhouse.as_ref().map_or(Ok(()), ClickHouse::validate),
        }
    }
}

impl Config {
    /// The ClickHouse server that gets the rows of histories. Reads the password and the CAs; does not connect.
    pub fn clickhouse(&self) -> anyhow::Result<Option<ClickHouseServer>> {
        let Some(ClickHouse { url, database, user, secret_file, ca }) = &self.history.clickhouse else {
            return Ok(None);
        };
        let wrong = |error: String| anyhow::anyhow!("history.clickhouse: {error}");
        let secret = dta_files::http::read_secret(secret_file.as_deref(), SECRET_VARIABLE).map_err(wrong)?;
        let login = match (user, secret) {
            (None, None) => None,
            (user, secret) => {
                Some((user.as_deref().unwrap_or("default").to_owned(), secret.unwrap_or_default()))
            }
        };
        let name = self.cluster.as_ref().map_or(&self.name[..], |cluster| cluster.id(self));
        let server = ClickHouseServer::open(url, database, login, ca.as_deref(), name);
        server.map(Some).map_err(|error| wrong(error.to_string()))
    }
}

pub(super) fn check_epoch(every: Duration) -> Result<(), ConfigError> {
    if every < SHORTEST {
        return Err(ConfigError::invalid_quoted("store.epoch", format!("{every:?}"), "at least 2 seconds"));
    }
    Ok(())
}
