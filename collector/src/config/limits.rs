//! How much of a collector each client may use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Threads that read memory for calls. Sessions have their own.
const THREADS: usize = 8;

/// Table `[limits]`. A caller is a client certificate's identity (its DNS and URI names) or,
/// without TLS, an IPv4 address or an IPv6 network of 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CollectorLimits {
    pub connections: usize,
    /// Simultaneous connections from one IPv4 address, or from one IPv6 network of 64 bits.
    pub connections_per_address: usize,
    /// Seconds that a new connection may take for TLS and the first bytes of HTTP/2.
    pub handshake_seconds: u32,
    /// Simultaneous calls, including those whose answer has not been read; others wait.
    pub calls: usize,
    /// The same for one caller.
    pub calls_per_caller: usize,
    /// Seconds that a call may take, waiting included; and then those in which its answer must be read.
    pub call_seconds: u32,
    /// Lists followed (`tail`) at a time.
    pub tails: usize,
    /// Lists that one caller may follow at a time.
    pub tails_per_caller: usize,
    /// Sessions that one client certificate's identity may have at a time.
    pub sessions_per_certificate: usize,
}

impl Default for CollectorLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_address: 256,
            handshake_seconds: 10,
            calls: 64,
            calls_per_caller: 16,
            call_seconds: 30,
            tails: 1024,
            tails_per_caller: 128,
            sessions_per_certificate: 16,
        }
    }
}

impl CollectorLimits {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let numbers = [
            ("limits.connections", self.connections),
            ("limits.connections_per_address", self.connections_per_address),
            ("limits.handshake_seconds", self.handshake_seconds as usize),
            ("limits.calls", self.calls),
            ("limits.calls_per_caller", self.calls_per_caller),
            ("limits.call_seconds", self.call_seconds as usize),
            ("limits.tails", self.tails),
            ("limits.tails_per_caller", self.tails_per_caller),
            ("limits.sessions_per_certificate", self.sessions_per_certificate),
        ];
        match numbers.iter().find(|(_, number)| !(1..=1_000_000).contains(number)) {
            Some((key, number)) => Err(ConfigError::invalid_quoted(*key, number, "1 to 1000000")),
            None => Ok(()),
        }
    }

    /// As the gRPC listener takes them.
    pub(crate) fn of_connections(&self) -> dta_rpc::transport::ServerLimits {
        dta_rpc::transport::ServerLimits {
            connections: self.connections,
            connections_per_address: self.connections_per_address,
            handshake: Duration::from_secs(self.handshake_seconds.into()),
            call: Duration::from_secs(self.call_seconds.into()),
            calls: self.calls,
            threads: THREADS,
            calls_per_caller: self.calls_per_caller,
            streams_per_caller: self.tails_per_caller,
        }
    }
}
