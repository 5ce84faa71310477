//! Table `[translator.flows]`: NetFlow, IPFIX and sFlow from existing routers and switches.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use dta_proto::prefix::Prefix;
use dta_telemetry::flows::DecoderOptions;

use super::listener::{parse_url, write_url};
use super::{ConfigError, ListenAddress};

/// Port of NetFlow, used if a listener at an interface names none.
const USUAL_PORT: u16 = 2055;

/// Where to receive flow exports, written `udp://ADDR:PORT`, `xdp:INTERFACE:PORT` or `xdp:INTERFACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowListener(pub ListenAddress);

/// The text is not a listener.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a listener for flows; write udp://0.0.0.0:2055 or xdp:eth1:2055")]
pub struct FlowListenerError(String);

impl FromStr for FlowListener {
    type Err = FlowListenerError;

    fn from_str(text: &str) -> Result<FlowListener, FlowListenerError> {
        parse_url(text, USUAL_PORT).map(FlowListener).map_err(|_| FlowListenerError(text.to_owned()))
    }
}

impl fmt::Display for FlowListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_url(&self.0, f)
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
    }
}

impl FlowTable {
    /// Checks the ranges.
    ///
    /// # Errors
    /// What is out of range.
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
        Ok(())
    }

    /// The options of the decoder. The table was checked.
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
        let listener: FlowListener = "xdp:eth1".parse().unwrap();
        assert_eq!(listener.to_string(), "xdp:eth1:2055");
        for text in ["udp://[::]:2055", "udp://[2001:db8::1]:6343"] {
            assert_eq!(text.parse::<FlowListener>().unwrap().to_string(), text);
        }
        assert_eq!("xdp:eth1:6343".parse::<FlowListener>().unwrap().to_string(), "xdp:eth1:6343");
        for text in ["xdp:eth1:", "0.0.0.0:2055", "udp://router:2055", "udp://0.0.0.0", "tcp://0.0.0.0:4739"]
        {
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
