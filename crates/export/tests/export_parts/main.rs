//! The parts of the exporter without a collector. What starts a program is ignored unless asked for.

mod directory;
mod events;
#[cfg(feature = "otlp")]
mod grpc;
#[cfg(feature = "otlp")]
mod host_traces;
mod hostile_names;
mod influx;
mod json;
#[cfg(feature = "kafka")]
mod kafka;
mod lists;
#[path = "../../../../testbed/tests/shared/loopback.rs"]
mod loopback;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "remote-write")]
mod prometheus;
mod recorder;
#[cfg(feature = "remote-write")]
mod remote_write;
#[cfg(feature = "otlp")]
mod rotel;
mod schema;
mod source;
mod tls;
#[cfg(feature = "otlp")]
mod traces;
