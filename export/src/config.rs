//! The configuration of an exporter: the table `[export]` of a collector's configuration.

use std::path::PathBuf;

use dta_files::config_file::ConfigError;
use serde::{Deserialize, Serialize};

use crate::events::Stores;
use crate::schema::Schema;
use crate::source::DEFAULT_STORE;

/// The variable with the token or password if no file has it.
pub const SECRET_VARIABLE: &str = "DTA_EXPORT_INFLUX_SECRET";

/// The table `[export]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The append store with the events.
    pub events: String,
    /// Store of paths.
    pub paths: String,
    /// Store of values.
    pub values: String,
    /// An InfluxDB server.
    pub influx: Option<Influx>,
    /// A file of JSON lines.
    pub json: Option<Json>,
}

impl Default for Config {
    fn default() -> Self {
        let Stores { paths, values } = Stores::default();
        Self { events: DEFAULT_STORE.into(), paths, values, influx: None, json: None }
    }
}

/// The table `[export.influx]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Influx {
    /// `http://HOST:PORT` or `https://HOST:PORT`; a path may follow.
    pub url: String,
    /// Database of a 1.x server; created if it does not exist.
    pub database: Option<String>,
    /// User of a 1.x server with authentication.
    pub user: Option<String>,
    /// Organisation of a 2.x server.
    pub org: Option<String>,
    /// Bucket of a 2.x server.
    pub bucket: Option<String>,
    /// File with the token (2.x) or the user's password (1.x) in its first line; unset, the variable
    /// [`SECRET_VARIABLE`].
    pub secret_file: Option<PathBuf>,
    /// CAs of the server's certificate (PEM); unset, those that browsers trust.
    pub ca: Option<PathBuf>,
    /// How events are named.
    pub schema: Schema,
    /// Whether names of switches, ports and drop reasons are written next to their numbers (schema `tags`).
    pub names: bool,
    /// Directory of the spool; unset, [`Influx::spool_directory`].
    pub spool: Option<PathBuf>,
    /// Limit of the spool, in MiB.
    pub spool_mib: u64,
    /// Milliseconds that events may wait to be sent together.
    pub flush_ms: u64,
    /// Seconds after which each known value is written again, changed or not; 0 = never.
    pub state_seconds: u64,
}

impl Default for Influx {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:8086".into(),
            database: None,
            user: None,
            org: None,
            bucket: None,
            secret_file: None,
            ca: None,
            schema: Schema::default(),
            names: true,
            spool: None,
            spool_mib: 256,
            flush_ms: 200,
            state_seconds: 0,
        }
    }
}

impl Influx {
    /// The default spool directory: `/var/lib/dta/export-NAME` for root, else in the user's state folder.
    pub fn spool_directory(&self, name: &str) -> PathBuf {
        if let Some(spool) = &self.spool {
            return spool.clone();
        }
        dta_files::state_directory(&format!("export-{name}"))
    }
}

/// The table `[export.json]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Json {
    /// The file that lines are appended to, or `-` for standard output.
    pub file: PathBuf,
    /// Whether names of switches, ports and drop reasons are written next to their numbers.
    #[serde(default = "yes")]
    pub names: bool,
}

const fn yes() -> bool {
    true
}

impl Config {
    /// Whether anything is to be exported.
    pub fn is_on(&self) -> bool {
        self.influx.is_some() || self.json.is_some()
    }

    /// The stores other than that of the events.
    pub fn stores(&self) -> Stores {
        Stores { paths: self.paths.clone(), values: self.values.clone() }
    }

    /// Checks it. Reads no file and makes no connection.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (key, name) in
            [("export.events", &self.events), ("export.paths", &self.paths), ("export.values", &self.values)]
        {
            if name.is_empty() {
                return Err(ConfigError::new(
                    key,
                    format!("`{key}` must name a store, such as \"int-events\""),
                ));
            }
        }
        if let Some(json) = &self.json
            && json.file.as_os_str().is_empty()
        {
            return Err(ConfigError::new(
                "export.json.file",
                "`file` must name a file, or \"-\" for standard output",
            ));
        }
        self.influx.as_ref().map_or(Ok(()), Influx::check)
    }
}

impl Influx {
    fn check(&self) -> Result<(), ConfigError> {
        let rest = self.url.strip_prefix("http://").or_else(|| self.url.strip_prefix("https://"));
        let rest = rest.map(|rest| rest.trim_end_matches('/'));
        match rest {
            None | Some("") => {
                return Err(ConfigError::new(
                    "export.influx.url",
                    format!(
                        "{:?} is not the URL of an InfluxDB server; write http://HOST:8086",
                        self.url.split('@').next_back().unwrap_or_default()
                    ),
                ));
            }
            Some(rest) if rest.contains(['?', '#', ' ']) => {
                return Err(ConfigError::new(
                    "export.influx.url",
                    "the URL of an InfluxDB server ends with its host, port or path: database, organisation and bucket are keys of their own",
                ));
            }
            // What precedes the @ is not repeated: it may be a password.
            Some(rest) if rest.split('/').next().is_some_and(|host| host.contains('@')) => {
                return Err(ConfigError::new(
                    "export.influx.url",
                    format!(
                        "the URL of an InfluxDB server names a user or password: give `user`, and the password in `secret_file` or the variable {SECRET_VARIABLE}"
                    ),
                ));
            }
            Some(_) => {}
        }
        let blank = |name: &Option<String>| name.as_ref().is_some_and(String::is_empty);
        match (&self.database, &self.org, &self.bucket) {
            (Some(_), None, None) if blank(&self.database) => {
                Err(ConfigError::new("export.influx.database", "`database` must name a database"))
            }
            (Some(_), None, None) => Ok(()),
            (None, Some(_), Some(_)) if blank(&self.org) || blank(&self.bucket) => Err(ConfigError::new(
                "export.influx.bucket",
                "`org` and `bucket` must name an organisation and a bucket",
            )),
            (None, Some(_), Some(_)) if self.user.is_some() => Err(ConfigError::new(
                "export.influx.user",
                "a 2.x server has tokens instead of users: leave `user` out",
            )),
            (None, Some(_), Some(_)) => Ok(()),
            (Some(_), _, _) => Err(ConfigError::new(
                "export.influx.database",
                "`database` is for a 1.x server, `org` and `bucket` for a 2.x server: give one or the other",
            )),
            (None, _, _) => Err(ConfigError::new(
                "export.influx",
                "`database` (1.x server), or `org` and `bucket` (2.x server), must say where points go",
            )),
        }?;
        if self.ca.is_some() && !self.url.starts_with("https://") {
            return Err(ConfigError::new("export.influx.ca", "`ca` is for an https URL"));
        }
        for (key, value, least, most) in [
            ("export.influx.spool_mib", self.spool_mib, 16, 1 << 20),
            ("export.influx.flush_ms", self.flush_ms, 1, 60_000),
            ("export.influx.state_seconds", self.state_seconds, 0, 86_400),
        ] {
            if !(least..=most).contains(&value) {
                let name = key.rsplit('.').next().unwrap_or(key);
                return Err(ConfigError::new(
                    key,
                    format!("`{name}` is {value}; it must be {least} to {most}"),
                ));
            }
        }
        Ok(())
    }
}
