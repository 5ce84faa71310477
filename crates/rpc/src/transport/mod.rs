//! Both ends of gRPC connections, as DTA's daemons and clients share them.
//!
//! A server takes its connections from [`accept_tcp`], which does TLS, cuts off silent clients and enforces the
//! connection limits of [`ServerLimits`] before tonic sees them. `server` serves them: [`Admission`] limits calls with
//! their work ([`run_blocking`]) and answers. [`Peer`] identifies the other end.
//!
//! A client connects through [`dial`], which limits the time to connect; [`failure_reason`] explains failures.
//!
//! [`standard`] has the services of every daemon: health and reflection.
//!
//! Nothing here knows what a call means.

mod accept;
mod admit;
mod call;
pub mod dial;
mod gate;
mod peer;
mod pool;
mod process;
mod quiet;
mod reason;
mod request;
mod server;
mod share;
pub mod standard;
mod stream;
#[cfg(test)]
mod testing;
pub mod tls;
mod unix;

pub use accept::{ConnectionCounters, Incoming, Listen, accept_tcp, accept_unix, accept_until};
pub use admit::{Admission, Method};
pub use call::run_blocking;
pub use peer::{CertificateName, Identity, Peer};
pub use pool::{Permit, Pool};
pub use process::{file_limit, give_memory_back, raise_file_limit};
pub(crate) use reason::is_farewell;
pub use reason::{failure_reason, known_tls_reason, status_reason};
pub use server::build_server;
pub use stream::{ConnectionCloser, Http2Connection};
pub use unix::{UnixPath, listen_unix};

use std::time::Duration;

/// The longest message that a DTA server accepts, in bytes.
pub const MAX_MESSAGE: usize = 4 << 20;

/// The longest answer of an ordinary call, in bytes.
pub const LONGEST_ANSWER: usize = 8 << 20;

/// How much of a server its clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Simultaneous connections.
    pub connections: usize,
    /// Simultaneous connections from one IPv4 address, or from one IPv6 network of 64 bits.
    pub connections_per_address: usize,
    /// How long a new connection may take for TLS and the first bytes of HTTP/2.
    pub handshake: Duration,
    /// How long a call may take, including waiting, and how long reading its answer may then take.
    pub call: Duration,
    /// Simultaneous calls, including those with unread answers; others wait.
    pub calls: usize,
    /// Threads for the work of calls.
    pub threads: usize,
    /// Simultaneous calls of one caller, counted in the same way. A caller is a certificate's identity or, without
    /// TLS, an IPv4 address or an IPv6 network of 64 bits.
    pub calls_per_caller: usize,
    /// Simultaneous long answers (streams) of one caller.
    pub streams_per_caller: usize,
}

impl ServerLimits {
    /// For servers with few clients: a translator's own, and an agent's.
    pub const FEW: Self = Self {
        connections: 64,
        connections_per_address: 64,
        handshake: Duration::from_secs(10),
        call: Duration::from_secs(30),
        calls: 12,
        threads: 4,
        calls_per_caller: 4,
        streams_per_caller: 16,
    };

    /// Limits the number of connections to what a limit of open files allows, with `reserved` files for other things.
    pub fn within_file_limit(self, files: u64, reserved: u64) -> Self {
        let most = usize::try_from(files.saturating_sub(reserved)).unwrap_or(usize::MAX).max(1);
        Self { connections: self.connections.min(most), ..self }
    }
}
