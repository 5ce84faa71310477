//! The gRPC server common to all daemons.

use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Server;
use tower_layer::{Identity, Stack};

use crate::transport::admit::{Admission, Method};
use crate::transport::{ConnectionCounters, ServerLimits};

/// A connection that is silent for this long is pinged, and given up after [`ALIVE`].
const ASK: Duration = Duration::from_secs(30);
const ALIVE: Duration = Duration::from_secs(20);
/// Bytes that a connection may have sent without anybody having read them, over all its calls.
const WINDOW: u32 = 64 << 10;

/// A server to add services to, for connections from [`accept_tcp`](crate::transport::accept_tcp). `method` returns the kind of the
/// method at a path of the daemon's own service.
pub fn build_server(
    limits: ServerLimits,
    method: fn(&str) -> Method,
    counters: Arc<ConnectionCounters>,
) -> Server<Stack<Admission, Identity>> {
    let streams = u32::try_from(limits.streams_per_caller + limits.calls_per_caller).unwrap_or(u32::MAX);
    Server::builder()
        .http2_keepalive_interval(Some(ASK))
        .http2_keepalive_timeout(Some(ALIVE))
        .initial_connection_window_size(Some(WINDOW))
        .initial_stream_window_size(Some(WINDOW))
        .max_concurrent_streams(Some(streams))
        .timeout(limits.call)
        .layer(Admission::new(limits, method, counters))
}
