//! Table `[translator.flows]`: NetFlow, IPFIX and sFlow from existing routers and switches.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use dta_proto::prefix::Prefix;
use dta_telemetry::flows::DecoderOptions;
use dta_telemetry::reports::Rules;

use super::ConfigError;

/// Longest time for which a flow stays with a silent exporter.
const MOST_TAKEOVER_MS: u64 = 86_400_000;

/// Where to receive flow exports, written `udp://ADDR:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowListener(pub SocketAddr);

/// The text is not a listener.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a listener for flows; write udp://0.0.0.0:2055")]
pub struct FlowListenerError(String);

impl FromStr for FlowListener {
    type Err = FlowListenerError;

    fn from_str(text: &str) -> Result<FlowListener, FlowListenerError> {
        let address = text.strip_prefix("udp://").and_then(|address| address.parse().ok());
        address.map(FlowListener).ok_or_else(|| FlowListenerError(text.to_owned()))
    }
}

impl fmt::Display for FlowListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp://{}", self.0)
    }
}

dta_proto::serde_as_text!(FlowListener);

dta_files::config_table! {
    /// Table `[translator.flows]`. Stores, watchlist and tables are those of `[translator.int]`.
    #[derive(Eq)]
    pub struct FlowTable {
        /// Where to receive NetFlow v5, v9, IPFIX and sFlow v5. Empty = nowhere.
        pub listen: Vec<FlowListener> = Vec::new();
        /// Exporters to follow, by format and domain; about 300 KB each at most.
        pub exporters: usize = DecoderOptions::default().sources, in 1..=1 << 20;
        /// Most of these that have one sender's address.
        pub sources_per_address: usize = DecoderOptions::default().sources_per_address, in 1..=1 << 20;
        /// Addresses and prefixes from which exports are taken; empty = all.
        pub allowed: Vec<Prefix> = Vec::new();
        /// Sampling rates of exporters that announce none, by address or prefix: one packet in so many.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub sampling: BTreeMap<String, u32> = BTreeMap::new();
        /// Milliseconds after which another exporter counts a flow, if the one that counts it says nothing of it.
        pub takeover_ms: u64 = Rules::default().takeover / 1_000_000, in 0..=MOST_TAKEOVER_MS;
    }
}

impl FlowTable {
    /// Checks the ranges.
    ///
    /// # Errors
    /// What is out of range, and a listener that is not IPv4.
    pub fn check_ranges(&self) -> Result<(), ConfigError> {
        ConfigError::check_numbers("translator.flows", self.bounded_numbers())?;
        for (prefix, rate) in &self.sampling {
            let key = format!("translator.flows.sampling.{prefix:?}");
            if prefix.parse::<Prefix>().is_err() {
                return Err(ConfigError::invalid_value(
                    &key,
                    prefix.clone(),
                    "an address or prefix as the key",
                ));
            }
            if *rate == 0 {
                return Err(ConfigError::invalid_value(&key, rate.to_string(), "one packet in at least 1"));
            }
        }
        match self.listen.iter().find(|listener| listener.0.is_ipv6()) {
            Some(listener) => Err(ConfigError::invalid_value(
                "translator.flows.listen",
                listener.to_string(),
                "an IPv4 address and port",
            )),
            None => Ok(()),
        }
    }

    /// What the decoder is told. The table was checked.
    pub fn decoder_options(&self) -> DecoderOptions {
        let sampling = self.sampling.iter().filter_map(|(prefix, rate)| Some((prefix.parse().ok()?, *rate)));
        DecoderOptions {
            sources: self.exporters,
            sources_per_address: self.sources_per_address,
            allowed: self.allowed.clone(),
            sampling: sampling.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_and_shown() {
        let listener: FlowListener = "udp://0.0.0.0:2055".parse().unwrap();
        assert_eq!((listener.0.port(), listener.to_string().as_str()), (2055, "udp://0.0.0.0:2055"));
        for text in ["0.0.0.0:2055", "udp://router:2055", "udp://0.0.0.0", "tcp://0.0.0.0:4739"] {
            assert!(
                text.parse::<FlowListener>().unwrap_err().to_string().contains("udp://0.0.0.0:2055"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, key) in [
            ("exporters = 0", "translator.flows.exporters"),
            ("takeover_ms = 86400001", "translator.flows.takeover_ms"),
            ("listen = ['udp://[::1]:1']", "translator.flows.listen"),
            ("sources_per_address = 0", "translator.flows.sources_per_address"),
            ("sampling = { '192.0.2.1' = 0 }", "translator.flows.sampling"),
            ("sampling = { router = 10 }", "translator.flows.sampling"),
        ] {
            let table: FlowTable = toml::from_str(text).unwrap();
            let error = table.check_ranges().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
