//! How much of a collector each client may use.

use std::time::Duration;

use super::ConfigError;

/// Threads that read memory for calls. Sessions have threads of their own.
const THREADS: usize = 8;

dta_files::config_table! {
    /// Table `[limits]`. A caller is a client certificate's identity (its DNS and URI names) or,
    /// without TLS, an IPv4 address or an IPv6 network of 64 bits.
    #[derive(Eq)]
    pub struct CollectorLimits {
        pub connections: usize = 1024, in 1..=1_000_000;
        /// Simultaneous connections from one IPv4 address, or from one IPv6 network of 64 bits.
        pub connections_per_address: usize = 256, in 1..=1_000_000;
        /// Seconds that a new connection may take for TLS and the first bytes of HTTP/2.
        pub handshake_seconds: u32 = 10, in 1..=1_000_000;
        /// Concurrent calls, including those whose answer has not been read yet; others wait.
        pub calls: usize = 64, in 1..=1_000_000;
        /// Concurrent calls of one caller.
        pub calls_per_caller: usize = 16, in 1..=1_000_000;
        /// Seconds that a call may take, including waiting; its answer must then be read within the same time.
        pub call_seconds: u32 = 30, in 1..=1_000_000;
        /// Lists that may be followed (`tail`) at a time.
        pub tails: usize = 1024, in 1..=1_000_000;
        /// Lists that one caller may follow at a time.
        pub tails_per_caller: usize = 128, in 1..=1_000_000;
        /// Sessions that one client certificate's identity may have at a time.
        pub sessions_per_certificate: usize = 16, in 1..=1_000_000;
    }
}

impl CollectorLimits {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        match self.bounded_numbers().iter().find(|(_, number, range)| !range.contains(number)) {
            Some((key, number, _)) => {
                Err(ConfigError::invalid_quoted(format!("limits.{key}"), number, "1 to 1000000"))
            }
            None => Ok(()),
        }
    }

    /// In the form the gRPC listener takes.
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
