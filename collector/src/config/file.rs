//! The TOML file: its structure, and which line an error is in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dta_files::config_file::{self, KeyPositions};
use dta_files::host;
use dta_proto::store::{StoreKind, StoreSpec};
use serde::{Deserialize, Serialize};

use super::{
    AlertsConfig, CollectorClusterConfig, CollectorLimits, CollectorMetricsConfig, CollectorTlsConfig,
    CollectorWebConfig, Config, ConfigError, EXAMPLE, HistoryConfig, MemoryBacking, Soft, Transport,
    UsedStoreNames, Verbs, default_directory,
};

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CollectorConfigFile {
    pub(super) collector: CollectorSection,
    pub(super) soft: Soft,
    pub(super) verbs: Verbs,
    pub(super) tls: Option<CollectorTlsConfig>,
    pub(super) limits: CollectorLimits,
    pub(super) metrics: CollectorMetricsConfig,
    pub(super) web: CollectorWebConfig,
    pub(super) export: dta_export::config::Config,
    pub(super) history: HistoryConfig,
    pub(super) alerts: AlertsConfig,
    pub(super) cluster: Option<CollectorClusterConfig>,
    pub(super) store: Option<Vec<StoreTable>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoreTable {
    pub(super) epoch: Option<Span>,
    pub(super) spread_copies: Option<bool>,
    pub(super) replicas: Option<u8>,
    #[serde(flatten)]
    pub(super) spec: StoreSpec,
}

impl StoreTable {
    /// The store. For counters, the number of replicas is part of the layout.
    fn into_spec(mut self) -> StoreSpec {
        if let (StoreKind::KeyIncrement { replicas, .. }, Some(of_table)) =
            (&mut self.spec.kind, self.replicas)
        {
            *replicas = of_table;
        }
        self.spec
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Span(#[serde(with = "dta_files::span")] pub(super) Duration);

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CollectorSection {
    pub(super) name: Option<String>,
    pub(super) listen: Option<String>,
    pub(super) insecure: bool,
    pub(super) memory: Option<String>,
    pub(super) device: Option<String>,
    pub(super) transport: Transport,
    pub(super) names: Option<PathBuf>,
}

/// The stores of [`EXAMPLE`]: one of each kind, some tens of megabytes in all, and the small ones written by
/// the translator's rules for INT and host traces.
pub fn default_stores() -> Vec<StoreSpec> {
    let file: CollectorConfigFile = toml::from_str(EXAMPLE).expect("the example is a configuration");
    file.store.into_iter().flatten().map(StoreTable::into_spec).collect()
}

impl Config {
    /// Reads and checks a file. Leaves it to [`Config::validate`] to check whether the gRPC address is safe,
    /// because flags may still change it. Also returns where in the file the keys are.
    pub fn load(path: &Path) -> Result<(Self, KeyPositions), ConfigError> {
        Self::parse_toml(&config_file::read(path, "the configuration")?, path)
    }

    /// Like [`Config::load`], but from text; `path` is only for messages.
    pub fn parse_toml(text: &str, path: &Path) -> Result<(Self, KeyPositions), ConfigError> {
        let (file, places) = config_file::parse_config::<CollectorConfigFile>(text, path)?;
        let config = config_from_file(file).map_err(|error| places.locate_error(error))?;
        Ok((config, places))
    }
}

fn config_from_file(file: CollectorConfigFile) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    if let Some(name) = file.collector.name {
        config.memory = MemoryBacking::Directory(default_directory(&name));
        config.name = name;
    }
    if let Some(listen) = file.collector.listen {
        config.listen = host::resolve_socket(&listen)
            .map_err(|why| ConfigError::new("collector.listen", format!("collector.listen: {why}")))?;
    }
    config.insecure = file.collector.insecure;
    if let Some(memory) = file.collector.memory {
        let must = "\"anonymous\" or a directory";
        config.memory =
            memory.parse().map_err(|_| ConfigError::invalid_quoted("collector.memory", &memory, must))?;
    }
    if let Some(device) = file.collector.device {
        config.device = device;
    }
    config.transport = file.collector.transport;
    config.names = file.collector.names;
    config.soft = file.soft;
    config.verbs = file.verbs;
    config.tls = file.tls;
    config.limits = file.limits;
    config.metrics = file.metrics;
    config.web = file.web;
    config.export = file.export;
    config.history = file.history;
    config.alerts = file.alerts;
    config.cluster = file.cluster;
    if let Some(tables) = file.store {
        let of = |table: &StoreTable| Some((table.spec.name.clone(), table.epoch?.0));
        config.epochs = tables.iter().filter_map(of).collect();
        for (index, table) in tables.iter().enumerate() {
            let replicas =
                super::replicas::table_replicas(table).map_err(|error| at_table_index(error, index))?;
            if replicas > 1 {
                config.replicas.insert(table.spec.name.clone(), replicas);
            }
        }
        let stores: Vec<StoreSpec> = tables.into_iter().map(StoreTable::into_spec).collect();
        let mut taken = UsedStoreNames::default();
        for (index, store) in stores.iter().enumerate() {
            let epoch = config.epochs.get(&store.name);
            let checked = taken.add(store);
            let checked =
                checked.and_then(|()| epoch.map_or(Ok(()), |every| super::history::check_epoch(*every)));
            checked.map_err(|error| at_table_index(error, index))?;
        }
        config.stores = stores;
    }
    // A flag may still override the addresses, so they are checked later.
    let listen = std::mem::replace(&mut config.listen, super::DEFAULT_LISTEN);
    let web = std::mem::take(&mut config.web.listen);
    config.validate()?;
    (config.listen, config.web.listen) = (listen, web);
    Ok(config)
}

/// Places an error of a store in the table with this index.
fn at_table_index(error: ConfigError, index: usize) -> ConfigError {
    let key = error.config_key().replacen("store", &format!("store[{index}]"), 1);
    error.with_key(key)
}

#[cfg(test)]
mod tests {
    use dta_proto::telemetry::store as int;
    use dta_proto::trace;

    use super::*;

    fn error(text: &str) -> String {
        Config::parse_toml(text, Path::new("collector.toml")).expect_err("must be refused").to_string()
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse_toml("", Path::new("x")).unwrap().0, Config::default());
        Config::default().validate().unwrap();
    }

    #[test]
    fn the_example_is_the_default() {
        assert_eq!(Config::parse_toml(EXAMPLE, Path::new("x")).unwrap().0, Config::default());
        insta::assert_debug_snapshot!("default_stores", default_stores());
        let stores = default_stores();
        assert!(trace::default_trace_stores().iter().all(|store| stores.contains(store)));
        let names = [int::PATHS, int::VALUES, int::EVENTS, int::COUNTERS, int::POSTCARDS];
        assert!(names.iter().all(|name| stores.iter().any(|store| store.name == *name)));
    }

    #[test]
    fn every_commented_key_of_the_example_is_known() {
        // Uncommenting the lines that look like keys gives a valid file.
        let text: String =
            EXAMPLE.lines().map(|l| l.strip_prefix("#! ").unwrap_or(l).to_owned() + "\n").collect();
        assert_ne!(text, EXAMPLE);
        // Setting an Ethernet address requires raw frames.
        let text = text.replace("link = \"udp\"", "link = \"packet:eth0\"");
        let (config, _) = Config::parse_toml(&text, Path::new("x")).unwrap();
        assert!(config.tls.is_some());
    }

    #[test]
    fn errors_name_line_and_key() {
        let counters = |id: u16, name: &str, more: &str| {
            format!("[[store]]\nid = {id}\nname = \"{name}\"\nkind = \"key-increment\"\n{more}\n")
        };
        let good = counters(1, "a", "slots = 8\nredundancy = 1");
        let cases = [
            ("unknown key", "[collector]\nlisten = \"127.0.0.1:1\"\ncolour = 1\n".to_owned()),
            ("unknown table", "[colector]\n".into()),
            (
                "unknown key of a store",
                good.clone() + &counters(2, "b", "slots = 8\nredundancy = 1\nrows = 2"),
            ),
            ("missing key of a store", good.clone() + &counters(2, "b", "slots = 8")),
            ("missing id", "[[store]]\nname = \"a\"\nkind = \"append\"\n".into()),
            ("unknown kind", "[[store]]\nid = 1\nname = \"a\"\nkind = \"heap\"\n".into()),
            ("type of a store's key", good.clone() + &counters(2, "b", "slots = 8\nredundancy = \"two\"")),
            ("range of a store's key", good.clone() + &counters(2, "b", "slots = 8\nredundancy = 300")),
            ("type", "[limits]\ncalls = \"many\"\n".into()),
            ("slots", good.clone() + &counters(2, "b", "slots = 9\nredundancy = 1")),
            ("double id", good.clone() + &counters(1, "b", "slots = 8\nredundancy = 1")),
            ("double name", good.clone() + &counters(2, "a", "slots = 8\nredundancy = 1")),
            ("no store", "store = []\n".into()),
            ("epoch", counters(1, "a", "slots = 8\nredundancy = 1\nepoch = \"soon\"")),
            (
                "short epoch",
                "[[store]]\nid = 1\nname = \"a\"\nkind = \"key-write\"\nslots = 8\nvalue_len = 12\nredundancy = 1\nepoch = \"1s\"\n".into(),
            ),
            ("history", "[history]\nkeep_bytes = \"0GiB\"\n".into()),
            ("place of copies", "[history]\nurl = \"https://bucket\"\n".into()),
            ("server of rows", "[history.clickhouse]\nurl = \"clickhouse://db:9000\"\n".into()),
            (
                "password of the server's URL",
                "[history.clickhouse]\nurl = \"http://dta:secret@db:8123\"\n".into(),
            ),
            ("password of nobody", "[history.clickhouse]\nsecret_file = \"/etc/dta/secret\"\n".into()),
            ("coarse", "[history]\ncoarse = { after = \"1d\" }\n".into()),
            ("listen", "[collector]\nlisten = \"localhost\"\n".into()),
            ("link", "[soft]\nlink = \"tcp\"\n".into()),
            ("mac", "[soft]\nmac = \"02:00:00\"\n".into()),
            ("threads", "[soft]\nthreads = 0\n".into()),
            ("threads of whole frames", "[soft]\nlink = \"packet:eth0\"\nthreads = 2\n".into()),
            ("mac with udp", "[soft]\nmac = \"02:00:00:00:00:01\"\n".into()),
            ("fault", "[soft]\nfaults = \"drop=2\"\n".into()),
            ("transport", "[collector]\ntransport = \"tcp\"\n".into()),
            ("name", "[collector]\nname = \"../x\"\n".into()),
            ("limit", "[limits]\ncalls = 0\n".into()),
            ("unknown limit", "[limits]\nstreams = 1\n".into()),
            (
                "operator",
                "[tls]\ncert = \"a\"\nkey = \"b\"\nclient_ca = \"c\"\noperators = [\"the boss\"]\n".into(),
            ),
            ("export without a place", "[export.influx]\nurl = \"http://db:8086\"\n".into()),
            (
                "password in a URL",
                "[export.influx]\nurl = \"http://me:secret@db:8086\"\ndatabase = \"int\"\n".into(),
            ),
            ("unknown schema", "[export.influx]\ndatabase = \"int\"\nschema = \"mine\"\n".into()),
            ("spool", "[export.influx]\ndatabase = \"int\"\nspool_mib = 1\n".into()),
            ("half of TLS", "[tls]\ncert = \"a\"\nkey = \"b\"\n".into()),
            ("not TOML", "[collector\n".into()),
        ];
        for (what, text) in &cases {
            let message = error(text);
            let starts = message
                .strip_prefix("collector.toml, line ")
                .is_some_and(|rest| rest.starts_with(char::is_numeric));
            assert!(starts, "{what}: {message}");
        }
        let errors: String =
            cases.iter().map(|(what, text)| format!("# {what}\n{}\n\n", error(text))).collect();
        insta::assert_snapshot!("errors", errors);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Config::load(Path::new("/nonexistent/collector.toml")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/collector.toml"), "{error}");
    }

    #[test]
    fn an_open_address_needs_tls_or_insecure() {
        let (mut config, _) =
            Config::parse_toml("[collector]\nlisten = \"0.0.0.0:40050\"\n", Path::new("collector.toml"))
                .unwrap();
        insta::assert_snapshot!("exposed", config.validate().unwrap_err().to_string());
        config.insecure = true;
        config.validate().unwrap();
        config.insecure = false;
        config.tls = Some(CollectorTlsConfig {
            cert: "a".into(),
            key: "b".into(),
            client_ca: "c".into(),
            operators: Vec::new(),
        });
        config.validate().unwrap();
    }
}
