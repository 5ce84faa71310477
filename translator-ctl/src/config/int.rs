//! Table `[translator.int]`: INT Telemetry Reports from existing switches.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::listener::{parse_url, write_url};
use super::{ConfigError, ListenAddress};
use dta_link::xdp::{EventLimits, ReportForm};
use dta_proto::telemetry::{KEEP_ALIVE_SECONDS, Metric, store};
use dta_telemetry::int::{Dialect, IntSettings, Mark};
use dta_telemetry::reports::{Detect, MetricRule, Rules, TimeMode, WatchRule};

/// Port of Telemetry Reports, used if a listener at an interface names none: SD-Fabric's.
const USUAL_PORT: u16 = 32766;
/// Values for each report that a program at an interface may drop as unchanged.
const VALUES_PER_REPORT: usize = 16;
/// Longest time over which counts are summed.
const MOST_COUNT_WAIT_MS: u64 = 3_600_000;

/// Where to receive Telemetry Reports, and how to parse them.
///
/// Written `udp://ADDR:PORT?dialect=NAME&mark=MARK&source-only-words=N`, or `xdp:INTERFACE:PORT?…`, where `events=kernel`
/// may be added; the part after the question mark is optional, and so is the port at an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntListener {
    pub listen: ListenAddress,
    pub settings: IntSettings,
    /// Whether the program at the interface drops reports that say nothing new.
    pub drops_unchanged: bool,
}

/// The text is not a listener.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an INT listener: {what}; write udp://0.0.0.0:32766?dialect=sdfabric or xdp:eth1?dialect=sdfabric"
)]
pub struct IntListenerError {
    text: String,
    what: String,
}

impl FromStr for IntListener {
    type Err = IntListenerError;

    fn from_str(text: &str) -> Result<IntListener, IntListenerError> {
        let fail = |what: String| IntListenerError { text: text.to_owned(), what };
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let listen = parse_url(address, USUAL_PORT).map_err(fail)?;
        let mut settings = IntSettings::default();
        let mut drops_unchanged = false;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| fail(format!("{pair:?} has no value")))?;
            match key {
                "dialect" => settings.dialect = value.parse().map_err(|error| fail(format!("{error}")))?,
                "mark" => {
                    settings.mark = parse_mark(value).ok_or_else(|| {
                        fail(format!(
                            "mark={value} is not one of guess, always, never, dscp:VALUE, dscp:VALUE/MASK, port:PORT, probe:HEX"
                        ))
                    })?;
                }
                "source-only-words" => {
                    settings.source_only_words = value
                        .parse()
                        .map_err(|_| fail(format!("{value:?} is not a number from 0 to 255")))?;
                }
                "events" => {
                    drops_unchanged = match value {
                        "kernel" => true,
                        "translator" => false,
                        _ => return Err(fail(format!("events={value} is neither kernel nor translator"))),
                    }
                }
                other => {
                    return Err(fail(format!("{other:?} is not dialect, mark, source-only-words or events")));
                }
            }
        }
        let listener = IntListener { listen, settings, drops_unchanged };
        if drops_unchanged && listener.listen.xdp_address().is_none() {
            return Err(fail("events=kernel needs an interface".into()));
        }
        if drops_unchanged && settings.dialect == Dialect::V20 {
            return Err(fail("events=kernel is not possible with dialect=v2.0".into()));
        }
        Ok(listener)
    }
}

impl IntListener {
    /// How the program at the interface reads reports, if it drops unchanged ones.
    pub fn report_form(&self) -> Option<ReportForm> {
        self.drops_unchanged.then_some(match self.settings.dialect {
            Dialect::V05 | Dialect::SdFabric => ReportForm::V05,
            Dialect::V10 | Dialect::Geant | Dialect::NoviFlow => ReportForm::V10,
            Dialect::IntCollector => ReportForm::GuessedOrV10,
            Dialect::Auto | Dialect::V20 => ReportForm::Guessed,
        })
    }
}

fn parse_mark(text: &str) -> Option<Mark> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let six_bits = |text: &str| number(text).filter(|n| *n < 64).map(|n| n as u8);
    match text.split_once(':') {
        None => match text {
            "guess" => Some(Mark::Guess),
            "always" => Some(Mark::Always),
            "never" => Some(Mark::Never),
            _ => None,
        },
        Some(("dscp", value)) => {
            let (value, mask) = value.split_once('/').unwrap_or((value, "63"));
            Some(Mark::Dscp { value: six_bits(value)?, mask: six_bits(mask)? })
        }
        Some(("port", port)) => port.parse().ok().map(Mark::Port),
        Some(("probe", marker)) => u64::from_str_radix(marker, 16).ok().map(Mark::Probe),
        Some(_) => None,
    }
}

impl fmt::Display for IntListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_url(&self.listen, f)?;
        write!(f, "?dialect={}", self.settings.dialect)?;
        match self.settings.mark {
            Mark::ByDialect => {}
            Mark::Guess => f.write_str("&mark=guess")?,
            Mark::Always => f.write_str("&mark=always")?,
            Mark::Never => f.write_str("&mark=never")?,
            Mark::Dscp { value, mask } => write!(f, "&mark=dscp:{value}/{mask}")?,
            Mark::Port(port) => write!(f, "&mark=port:{port}")?,
            Mark::Probe(marker) => write!(f, "&mark=probe:{marker:016x}")?,
        }
        match self.settings.source_only_words {
            0 => {}
            words => write!(f, "&source-only-words={words}")?,
        }
        f.write_str(if self.drops_unchanged { "&events=kernel" } else { "" })
    }
}

dta_proto::serde_as_text!(IntListener);

dta_files::config_table! {
    /// Table `[translator.int]`.
    #[derive(Eq)]
    pub struct IntTable {
        /// Where to receive reports. Empty = nowhere.
        pub listen: Vec<IntListener> = Vec::new();
        /// Names of the stores. Nothing is written for a missing one.
        pub stores: IntStores = IntStores::default();
        /// Whether every packet is reported, so that packets and bytes of flows can be counted.
        pub per_packet: bool = Rules::default().per_packet;
        /// Whether to count the reports of each flow.
        pub count_reports: bool = Rules::default().count_reports;
        /// Milliseconds for which a flow's counts are summed before they are written; 0 = each report writes
        /// them.
        pub count_wait_ms: u64 = Rules::default().count_wait / 1_000_000;
        /// Which time to write beside a value: `arrival`, `switch` or `raw`.
        pub timestamps: Timestamps = Timestamps::Arrival;
        /// Prefixes and flows to watch; empty = all.
        pub watch: Vec<String> = Vec::new();
        /// Keys of values to remember; 32 bytes each, and 16 for the counts of flows.
        pub keys: usize = Rules::default().keys;
        /// Flows to remember whose switches each report separately; 64 bytes each.
        pub trails: usize = Rules::default().trails;
        /// Milliseconds after a switch joined such a flow's path during which another one is not a change of
        /// path; 0 = always a change.
        pub learning_ms: u64 = Rules::default().learning / 1_000_000;
        /// Switches whose sequence numbers are tracked.
        pub sources: usize = Rules::default().sources;
        /// How to follow metrics, by name: `flow-path`, `flow-latency`, `hop-latency`, `queue-occupancy`,
        /// `queue-congestion`, `link-utilization`. One that is left out is followed as by default.
        pub metric: BTreeMap<String, MetricTable> = BTreeMap::new();
    }
}

dta_files::config_table! {
    /// Table `[translator.int.stores]`.
    #[derive(Eq)]
    pub struct IntStores {
        /// Key-write, values of 60 bytes.
        pub paths: String = store::PATHS.into();
        /// Key-write, values of 12 bytes.
        pub values: String = store::VALUES.into();
        /// Append, 4 lists, entries of 60 bytes.
        pub events: String = store::EVENTS.into();
        pub counters: String = store::COUNTERS.into();
        pub postcards: String = store::POSTCARDS.into();
    }
}

/// Which time to write beside a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timestamps {
    #[default]
    Arrival,
    /// The switch's time; a 32-bit one is completed to the time nearest to the arrival.
    Switch,
    /// The number as the switch sent it.
    Raw,
}

dta_files::config_table! {
    /// Table `[translator.int.metric.NAME]`.
    #[derive(Eq)]
    pub struct MetricTable {
        pub on: bool = true;
        /// When a value counts as changed: `powers`, `width=N`, `threshold=N` or `any`. A path always changes
        /// when a switch differs.
        pub detect: String = "powers".into();
        /// Milliseconds after which an unchanged value is reported again; 0 = never.
        pub keep_alive_ms: u64 = 1000 * KEEP_ALIVE_SECONDS;
        /// `change` writes a value with its event, `always` with each report.
        pub write: MetricWritePolicy = MetricWritePolicy::Change;
    }
}

/// When to write a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricWritePolicy {
    #[default]
    Change,
    Always,
}

fn parse_detect(text: &str) -> Option<Detect> {
    match text.split_once('=') {
        None if text == "powers" => Some(Detect::Powers),
        None if text == "any" => Some(Detect::Any),
        Some(("width", width)) => width.parse().ok().filter(|width| *width != 0).map(Detect::Width),
        Some(("threshold", most)) => most.parse().ok().map(Detect::Threshold),
        _ => None,
    }
}

impl IntTable {
    /// The interface whose program drops unchanged reports, and how much it has to know.
    pub fn events_interface(&self) -> Option<(&str, EventLimits)> {
        let listener = self.listen.iter().find(|listener| listener.drops_unchanged)?;
        let values = Rules { keys: self.keys, ..Rules::default() }.value_capacity();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let limits = EventLimits {
            values: number(values),
            reports: number(values.div_ceil(VALUES_PER_REPORT)),
            sources: number(self.sources.max(1)),
        };
        Some((&listener.listen.xdp_address()?.interface, limits))
    }

    /// The rules that this table describes.
    pub fn telemetry_rules(&self) -> Result<Rules, ConfigError> {
        let fail = |key: &str, value: String, must: &str| {
            Err(ConfigError::invalid_value(format!("translator.int.{key}"), value, must))
        };
        let mut rules = Rules {
            per_packet: self.per_packet,
            count_reports: self.count_reports,
            count_wait: self.count_wait_ms.saturating_mul(1_000_000),
            time: match self.timestamps {
                Timestamps::Arrival => TimeMode::Arrival,
                Timestamps::Switch => TimeMode::Switch,
                Timestamps::Raw => TimeMode::Raw,
            },
            keys: self.keys,
            trails: self.trails,
            learning: self.learning_ms.saturating_mul(1_000_000),
            sources: self.sources,
            ..Rules::default()
        };
        for (name, table) in &self.metric {
            let Some(metric) = Metric::from_name(name) else {
                return fail(
                    "metric",
                    format!("{name:?}"),
                    "flow-path, flow-latency, hop-latency, queue-occupancy, queue-congestion or link-utilization",
                );
            };
            let Some(detect) = parse_detect(&table.detect) else {
                let key = format!("metric.{name}.detect");
                return fail(&key, format!("{:?}", table.detect), "powers, width=N, threshold=N or any");
            };
            rules.metrics[metric.index()] = MetricRule {
                on: table.on,
                detect,
                keep_alive: table.keep_alive_ms.saturating_mul(1_000_000),
                always: table.write == MetricWritePolicy::Always,
            };
        }
        for text in &self.watch {
            match text.parse::<WatchRule>() {
                Ok(watch) => rules.watch.push(watch),
                Err(_) => {
                    let must = "prefixes (10.0.0.0/8) and flows (10.0.0.1:5000->10.0.0.2:80/tcp)";
                    return fail("watch", format!("{text:?}"), must);
                }
            }
        }
        if self.count_wait_ms > MOST_COUNT_WAIT_MS {
            return fail("count_wait_ms", self.count_wait_ms.to_string(), "at most 3600000, an hour");
        }
        for (key, value, most) in [
            ("keys", self.keys, 1 << 26),
            ("trails", self.trails, 1 << 24),
            ("sources", self.sources, 1 << 20),
        ] {
            if !(1..=most).contains(&value) {
                return fail(
                    key,
                    value.to_string(),
                    "at least 1, and at most 67108864 (keys), 16777216 (trails), 1048576 (sources)",
                );
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_and_shown() {
        let plain: IntListener = "udp://0.0.0.0:32766".parse().unwrap();
        assert_eq!((plain.listen.port(), plain.settings), (32766, IntSettings::default()));
        for text in [
            "udp://0.0.0.0:32766?dialect=sdfabric",
            "udp://127.0.0.1:0?dialect=auto&mark=dscp:23/63",
            "udp://[2001:db8::1]:32766?dialect=auto",
            "udp://127.0.0.1:0?dialect=v2.0&mark=port:32766&source-only-words=2",
            "udp://127.0.0.1:0?dialect=v1.0&mark=probe:0123456789abcdef",
            "xdp:eth1:54321?dialect=v0.5&mark=port:32766",
            "xdp:eth1:54321?dialect=noviflow&events=kernel",
        ] {
            let listener: IntListener = text.parse().unwrap();
            assert_eq!(listener.to_string(), text);
        }
        let usual: IntListener = "xdp:eth1?dialect=sdfabric".parse().unwrap();
        assert_eq!(usual.to_string(), "xdp:eth1:32766?dialect=sdfabric");
        for (text, what) in [
            ("xdp:eth1:x?dialect=v1.0", "xdp:eth1:32766"),
            ("xdp:eth1?colour=red", "colour"),
            ("0.0.0.0:1", "udp://"),
            ("udp://host:1", "IP address"),
            ("udp://0.0.0.0:1?dialect=cisco", "is not a dialect"),
            ("udp://0.0.0.0:1?mark=dscp:64", "mark=dscp:64"),
            ("udp://0.0.0.0:1?colour=red", "colour"),
            ("udp://0.0.0.0:1?dialect", "no value"),
            ("udp://0.0.0.0:1?events=kernel", "needs an interface"),
            ("xdp:eth1?events=kernel&dialect=v2.0", "not possible with dialect=v2.0"),
            ("xdp:eth1?events=xdp", "neither kernel nor translator"),
        ] {
            let error = text.parse::<IntListener>().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn rules_come_of_the_table_and_what_is_wrong_is_named() {
        let table = |text: &str| toml::from_str::<IntTable>(text).unwrap();
        assert_eq!(IntTable::default().telemetry_rules().unwrap(), Rules::default());
        let rules = table(
            "per_packet = true\ntimestamps = 'raw'\nwatch = ['10.0.0.0/8']\n[metric.hop-latency]\ndetect = 'width=64'\n\
             keep_alive_ms = 5\nwrite = 'always'",
        )
        .telemetry_rules()
        .unwrap();
        let hop = rules.metrics[Metric::HopLatency.index()];
        assert_eq!((hop.detect, hop.keep_alive, hop.always), (Detect::Width(64), 5_000_000, true));
        assert_eq!((rules.time, rules.per_packet, rules.watch.len()), (TimeMode::Raw, true, 1));
        for (text, key) in [
            ("[metric.latency]", "translator.int.metric is"),
            ("[metric.hop-latency]\ndetect = 'width=0'", "translator.int.metric.hop-latency.detect"),
            ("watch = ['host']", "translator.int.watch"),
            ("count_wait_ms = 3600001", "translator.int.count_wait_ms"),
            ("keys = 0", "translator.int.keys"),
        ] {
            let error = table(text).telemetry_rules().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
