//! Clients of the services of Direct Telemetry Access (DTA), for DTA's own programs and for others.
//!
//! - [`collector::RemoteCollector`] queries a collector: keys, lists, stores, counters, and a translator's session.
//! - [`Spread`] queries several collectors that share stores as one.
//! - [`translator::RemoteTranslator`] queries a running translator: its counters, what it holds, its program.
//! - [`event_rings`] says how far back the events of INT reach.
//! - [`flows`] turns questions about flow records into messages.
//! - [`agent::RemoteAgent`] reads and changes what a host's agent traces.
//!
//! Queries of stores are a trait, [`Ask`], which `dta-collector` also implements over memory.
//!
//! All clients connect in the same way: [`ClientOptions`] holds the server's address and TLS files, and one set of
//! rules checks the address. Failures become a [`ClientError`], whose text says what to do.

#![warn(missing_docs)]

pub mod agent;
mod ask;
mod channel;
pub mod collector;
mod epochs;
mod error;
pub mod event_rings;
mod everywhere;
pub mod flows;
mod merge;
mod options;
mod replicas;
mod spread;
mod tails;
pub mod translator;
pub mod transport;
mod unreachable;

pub use crate::transport::tls::ClientTls;
pub use ask::{
    Ask, AskKeys, AtLeastError, KeyAnswer, Moment, QueryAnswers, Question, QuestionError, QuestionKind,
    Series, Span, TailMessages, series_question,
};
pub use dta_proto::control::Policy;
pub use dta_proto::key::Key;
pub use error::{ClientError, ServerKind};
pub use options::ClientOptions;
pub use spread::{KnownAnswers, Spread, SpreadMember};

/// The default address of a collector, on this host.
pub const DEFAULT_COLLECTOR: &str = "127.0.0.1:40050";

/// The longest answer that a client accepts, in bytes: the longest is the counters of all nodes, up to 65,536 of
/// them.
const MAX_ANSWER: usize = 64 << 20;
