//! OTLP, the protocol of OpenTelemetry: events as log records, metrics, and paths of flows and ways through hosts as traces. (opentelemetry.io, "OpenTelemetry Protocol
//! Specification" 1.5)
//!
//! A record of a spool is a request, as it is sent.

mod grpc;
mod hosts;
mod http;
mod logs;
mod metrics;
mod signal;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::ExportError;
use crate::config::{OTLP_SECRET_VARIABLE, Otlp, OtlpProtocol, Signal};
use crate::http::{authorization, lacks, secret};
use crate::names::Names;
use crate::receiver::Receiver;
use crate::sink::{Sink, What, wanted};

/// The sinks of this server: one for each signal.
pub(crate) fn sinks(config: &Otlp, name: &str, names: &Arc<Names>) -> Result<Vec<Sink>, ExportError> {
    let sink = |signal: &Signal| {
        let (what, receiver) = match signal {
            Signal::Logs => {
                let encoder = Box::new(logs::Logs::new(name, wanted(names, config.names)));
                let flush = Duration::from_millis(config.flush_ms);
                let what = What::Events { encoder, flush, state_every: None, traces: None };
                (what, server::<logs::Request>(config)?)
            }
            Signal::Traces => {
                let encoder = Box::new(traces::Traces::new(name, wanted(names, config.names)));
                let flush = Duration::from_millis(config.flush_ms);
                let traces = Some(config.traces.clone());
                (
                    What::Events { encoder, flush, state_every: None, traces },
                    server::<traces::Request>(config)?,
                )
            }
            Signal::HostTraces => {
                let encoder = Box::new(traces::Traces::new(name, wanted(names, config.names)));
                let flush = Duration::from_millis(config.flush_ms);
                let traces = config.host_traces.clone();
                (What::Packets { encoder, flush, traces }, server::<traces::Request>(config)?)
            }
            Signal::Metrics => {
                let encoder = Box::new(metrics::Metrics::new(name));
                let what = What::Pages { encoder, every: Duration::from_secs(config.metrics_seconds) };
                (what, server::<metrics::Request>(config)?)
            }
        };
        let (spool, most) = (config.spool_directory(name, *signal), config.spool_mib << 20);
        Ok(Sink { name: signal.sink(), spool, most, what, receiver })
    };
    config.signals.iter().map(sink).collect()
}

/// The server of a signal. Reads secrets and certificates; makes no connection.
fn server<R: signal::Request + 'static>(config: &Otlp) -> Result<Box<dyn Receiver>, ExportError> {
    let secret = secret(config.secret_file.as_deref(), OTLP_SECRET_VARIABLE)?;
    let secret = match (&config.secret_header, secret) {
        (Some(_), None) => return Err(lacks("`secret_header` needs a token", OTLP_SECRET_VARIABLE)),
        (Some(header), Some(secret)) => Some((header.clone(), secret)),
        (None, secret) => secret.map(|secret| authorization("Bearer", &secret)),
    };
    Ok(match config.protocol {
        OtlpProtocol::Http => Box::new(http::Server::<R>::new(config, secret)?),
        OtlpProtocol::Grpc => Box::new(grpc::Server::<R>::new(config, secret)?),
    })
}

/// Who says it: the collector of this name.
fn resource(name: &str) -> Resource {
    let attributes = [
        ("service.name", "dta-collector"),
        ("service.instance.id", name),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let attributes = attributes.map(|(key, value)| attribute(key, Value::StringValue(value.into())));
    Resource { attributes: attributes.into(), ..Resource::default() }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "dta".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}

fn attribute(key: impl Into<String>, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
