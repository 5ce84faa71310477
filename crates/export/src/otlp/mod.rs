//! OTLP, the protocol of OpenTelemetry: events and alerts as log records, metrics, and paths of flows and of packets through hosts as traces.
//! (opentelemetry.io, "OpenTelemetry Protocol Specification" 1.5)
//!
//! A record of a spool is a request, exactly as it is sent.

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
use crate::config::{Otlp, OtlpProtocol, Signal};
use crate::http::authorization;
use crate::names::Names;
use crate::receiver::RecordReceiver;
use crate::sink::{Sink, SinkInput, names_to_write};

/// The sinks for this server: one for each signal.
pub(crate) fn build_sinks(config: &Otlp, name: &str, names: &Arc<Names>) -> Result<Vec<Sink>, ExportError> {
    let sink = |signal: &Signal| {
        let (what, receiver) = match signal {
            Signal::Logs => {
                let encoder = Box::new(logs::Logs::new(name, names_to_write(names, config.names)));
                let flush = Duration::from_millis(config.flush_ms);
                let what = SinkInput::Events {
                    encoder,
                    flush,
                    state_every: None,
                    traffic_every: None,
                    traces: None,
                    takes_alerts: true,
                };
                (what, build_receiver::<logs::Request>(config)?)
            }
            Signal::Traces => {
                let encoder = Box::new(traces::TracesEncoder::new(name, names_to_write(names, config.names)));
                let flush = Duration::from_millis(config.flush_ms);
                let traces = Some(config.traces.clone());
                let what = SinkInput::Events {
                    encoder,
                    flush,
                    state_every: None,
                    traffic_every: None,
                    traces,
                    takes_alerts: false,
                };
                (what, build_receiver::<traces::Request>(config)?)
            }
            Signal::HostTraces => {
                let encoder = Box::new(traces::TracesEncoder::new(name, names_to_write(names, config.names)));
                let flush = Duration::from_millis(config.flush_ms);
                let traces = config.host_traces.clone();
                (SinkInput::Packets { encoder, flush, traces }, build_receiver::<traces::Request>(config)?)
            }
            Signal::Metrics => {
                let encoder = Box::new(metrics::MetricsEncoder::new(name));
                let what = SinkInput::Pages { encoder, every: Duration::from_secs(config.metrics_seconds) };
                (what, build_receiver::<metrics::Request>(config)?)
            }
        };
        Ok(Sink { spool: config.signal_spool(name, *signal), what, receiver })
    };
    config.signals.iter().map(sink).collect()
}

/// The receiver of a signal. Reads secrets and certificates; makes no connection.
fn build_receiver<R: signal::Request + 'static>(
    config: &Otlp,
) -> Result<Box<dyn RecordReceiver>, ExportError> {
    let secret = match (&config.secret_header, config.read_secret()?) {
        (Some(_), None) => return Err(Otlp::missing_secret("`secret_header` needs a token")),
        (Some(header), Some(secret)) => Some((header.clone(), secret)),
        (None, secret) => secret.map(|secret| authorization("Bearer", &secret)),
    };
    Ok(match config.protocol {
        OtlpProtocol::Http => Box::new(http::OtlpHttpServer::<R>::new(config, secret)?),
        OtlpProtocol::Grpc => Box::new(grpc::OtlpGrpcServer::<R>::new(config, secret)?),
    })
}

/// The resource that everything comes from: the collector of this name.
fn collector_resource(name: &str) -> Resource {
    let attributes = [
        ("service.name", "dta-collector"),
        ("service.instance.id", name),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let attributes = attributes.map(|(key, value)| attribute(key, Value::StringValue(value.into())));
    Resource { attributes: attributes.into(), ..Resource::default() }
}

fn instrumentation_scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "dta".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}

fn attribute(key: impl Into<String>, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
