//! What is exported to Prometheus, and where.

use std::str::FromStr;

use dta_export::gauges::GaugeLimits;
use dta_export::metrics::Address;
use dta_export::schema::Schema;
use dta_export::source::DEFAULT_STORE;

use super::ConfigError;

dta_files::config_table! {
    /// Table `[metrics]`.
    #[derive(Eq)]
    pub struct CollectorMetricsConfig {
        /// Where metrics are scraped over HTTP: `auto` is 127.0.0.1:40052 if that port is free.
        pub listen: Address = Address::Auto;
        /// Naming scheme of INT telemetry.
        pub telemetry: Telemetry = Telemetry::As(Schema::Tags);
        /// Whether the names of switches, ports and drop reasons are added as labels to their numbers (schema `tags`).
        pub names: bool = true;
        /// The append store that holds the events.
        pub store: String = DEFAULT_STORE.into();
        /// Most series in each family of telemetry.
        pub series: usize = GaugeLimits::default().series;
        /// Seconds without news after which a telemetry series is dropped.
        pub keep_seconds: u32 = GaugeLimits::default().keep_seconds;
        /// Whether flow records are summed by exporter, interface and protocol.
        pub traffic: bool = true;
        /// How many of the last minute's largest flows become metrics.
        pub largest_flows: usize = 10;
    }
}

/// Naming scheme of telemetry in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telemetry {
    Off,
    /// As in this schema.
    As(Schema),
}

impl Telemetry {
    pub const NAMES: [&'static str; 3] = ["tags", "intcollector", "off"];
}

impl std::fmt::Display for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::As(schema) => schema.fmt(f),
        }
    }
}

impl FromStr for Telemetry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::As).map_err(|_| "must be `tags`, `intcollector` or `off`".into()),
        }
    }
}

dta_proto::serde_as_text!(Telemetry);

impl CollectorMetricsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=100_000).contains(&self.series) {
            return Err(ConfigError::invalid_quoted("metrics.series", self.series, "1 to 100000"));
        }
        if self.keep_seconds == 0 {
            return Err(ConfigError::invalid_quoted("metrics.keep_seconds", 0, "1 at least"));
        }
        if self.largest_flows > 1000 {
            return Err(ConfigError::invalid_quoted(
                "metrics.largest_flows",
                self.largest_flows,
                "0 to 1000",
            ));
        }
        Ok(())
    }

    pub(crate) fn telemetry_limits(&self) -> GaugeLimits {
        GaugeLimits { series: self.series, keep_seconds: self.keep_seconds }
    }
}
