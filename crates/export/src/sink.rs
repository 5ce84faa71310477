//! The configured exporters with a spool: what each sends, in which form, and to whom.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, ConfiguredSpool, TraceSelection};
use crate::encode::{EncodeEvents, EncodePages};
use crate::error::ExportError;
use crate::hosts::journey::HostTrace;
use crate::influx;
use crate::names::Names;
use crate::receiver::RecordReceiver;

pub(crate) struct Sink {
    pub(crate) spool: ConfiguredSpool,
    pub(crate) what: SinkInput,
    pub(crate) receiver: Box<dyn RecordReceiver>,
}

pub(crate) enum SinkInput {
    Events {
        encoder: Box<dyn EncodeEvents>,
        /// How long events may wait to be sent together.
        flush: Duration,
        /// How often each known value is sent again; `None` = never.
        state_every: Option<Duration>,
        /// How often sums of traffic are sent; `None` = never.
        traffic_every: Option<Duration>,
        /// Which events carry the latencies of all switches on their path, for traces; `None` = none.
        traces: Option<TraceSelection>,
        /// Whether alerts are sent, too.
        takes_alerts: bool,
    },
    #[cfg_attr(not(feature = "otlp"), expect(dead_code))]
    Packets {
        encoder: Box<dyn EncodeEvents<HostTrace>>,
        /// How long they may wait to be sent together.
        flush: Duration,
        traces: TraceSelection,
    },
    /// Pages of metrics, this often.
    #[cfg_attr(not(any(feature = "otlp", feature = "remote-write")), expect(dead_code))]
    Pages { encoder: Box<dyn EncodePages>, every: Duration },
}

/// The sinks of a configuration. Reads secrets and certificates; opens no spool and makes no connection. `name` is the
/// collector's.
pub(crate) fn build_sinks(config: &Config, name: &str, names: &Arc<Names>) -> Result<Vec<Sink>, ExportError> {
    let missing_feature = |table: &str, feature: &str| {
        ExportError(format!(
            "[{table}] is configured, but this program was built without it: build it with `--features dta-collector/{feature}`"
        ))
    };
    if config.otlp.is_some() && cfg!(not(feature = "otlp")) {
        return Err(missing_feature("export.otlp", "otlp"));
    }
    if config.remote_write.is_some() && cfg!(not(feature = "remote-write")) {
        return Err(missing_feature("export.remote_write", "remote-write"));
    }
    if config.kafka.is_some() && cfg!(not(feature = "kafka")) {
        return Err(missing_feature("export.kafka", "kafka"));
    }
    let mut all = Vec::new();
    if let Some(config) = &config.influx {
        all.push(influx::build_sink(config, name, names)?);
    }
    #[cfg(feature = "otlp")]
    if let Some(config) = &config.otlp {
        all.extend(crate::otlp::build_sinks(config, name, names)?);
    }
    #[cfg(feature = "remote-write")]
    if let Some(config) = &config.remote_write {
        all.push(crate::remote_write::build_sink(config, name)?);
    }
    #[cfg(feature = "kafka")]
    if let Some(config) = &config.kafka {
        all.push(crate::kafka::build_sink(config, name, names)?);
    }
    Ok(all)
}

/// The names that an exporter writes next to numbers: empty if it writes none.
pub(crate) fn names_to_write(names: &Arc<Names>, is_wanted: bool) -> Arc<Names> {
    if is_wanted { names.clone() } else { Arc::new(Names::empty()) }
}
