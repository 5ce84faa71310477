//! Helpers for this crate's tests.

use std::time::Duration;

use crate::transport::ServerLimits;

pub(crate) fn test_limits() -> ServerLimits {
    ServerLimits {
        connections: 16,
        connections_per_address: 16,
        handshake: Duration::from_secs(10),
        call: Duration::from_secs(10),
        calls: 16,
        threads: 2,
        calls_per_caller: 8,
        streams_per_caller: 8,
    }
}
