//! Both ends of gRPC connections, as the daemons and clients of DTA share them.
//!
//! A server takes its connections from [`accept`]: there, before tonic gets one, TLS is done,
//! silent clients are cut off and the numbers of [`Limits`] are kept. [`server`] serves them:
//! [`Admission`] bounds the calls on them, with their work ([`blocking`]) and answers. [`Peer`] says
//! who is at the other end.
//!
//! A client connects through [`dial`], which limits the time that connecting may take, and tells
//! with [`reason`] why it failed.
//!
//! [`standard`] has the services that every daemon serves beside its own: health and reflection.
//!
//! What a call means is not known here.

mod accept;
mod admit;
mod call;
pub mod dial;
mod files;
mod gate;
mod memory;
mod peer;
mod pool;
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

pub use accept::{ConnectionCounters, Incoming, Listen, accept, accept_unix, accept_until};
pub use admit::{Admission, Method};
pub use call::blocking;
pub use files::{file_limit, raise_file_limit};
pub use memory::give_memory_back;
pub use peer::{Identity, Name, Peer};
pub use pool::Permit;
pub use reason::{is_farewell, known, reason, status_reason};
pub use server::server;
pub use stream::Connection;
pub use unix::{UnixPath, listen_unix};

use std::time::Duration;

/// The longest message that a server of DTA takes, in bytes.
pub const MAX_MESSAGE: usize = 4 << 20;

/// The longest answer of an ordinary call, in bytes.
pub const LONGEST_ANSWER: usize = 8 << 20;

/// How much of a server its clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Connections at a time from one IPv4 address, or from one IPv6 network of 64 bits.
    pub connections_per_address: usize,
    /// How long a new connection may take for TLS and the first bytes of HTTP/2.
    pub handshake: Duration,
    /// How long a call may take with the time for which it waited, and how long its answer may then take to
    /// be read.
    pub call: Duration,
    /// Calls that are worked on, or whose answers are not read yet, at a time; others wait.
    pub calls: usize,
    /// Threads that work on them.
    pub threads: usize,
    /// Calls of one caller that are worked on, or whose answers are not read yet, at a time. A caller is a certificate's identity or,
    /// without TLS, an IPv4 address or an IPv6 network of 64 bits.
    pub calls_per_caller: usize,
    /// Long answers (streams) of one caller at a time.
    pub streams_per_caller: usize,
}

impl Limits {
    /// For servers at which a few people and programs look: a translator's own, and an agent's.
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

    /// Connections that a limit of open files allows, of those that are wanted: `reserved` files
    /// are for other things.
    pub fn within(self, files: u64, reserved: u64) -> Self {
        let most = usize::try_from(files.saturating_sub(reserved)).unwrap_or(usize::MAX).max(1);
        Self { connections: self.connections.min(most), ..self }
    }
}
