//! Clients of the services of Direct Telemetry Access (DTA), for the programs of DTA and for other people's.
//!
//! - [`collector::Client`] asks a collector: queries, lists to follow, stores, counters, and a
//!   translator's session.
//! - [`Spread`] asks several collectors that share stores as one.
//! - [`translator::Client`] asks a running translator: its counters, what it holds, its program.
//! - [`agent::Client`] asks a host's agent what it traces, and changes it.
//!
//! What stores can be asked is a trait, [`Ask`], which `dta-collector` implements too, over memory.
//!
//! All clients connect in one way: [`ClientOptions`] says where the server is and which files TLS needs, and
//! one set of rules judges the address. Failures become a [`ClientError`], whose words say what to do.

pub mod agent;
mod ask;
mod channel;
pub mod collector;
mod error;
mod options;
mod spread;
pub mod translator;

pub use ask::{Answers, Ask, AskKeys, Following, KeyAnswer, Moment, Question, QuestionError, QuestionKind};
pub use dta_proto::control::Policy;
pub use dta_proto::key::Key;
pub use error::{ClientError, Server};
pub use options::{ClientOptions, ClientTls};
pub use spread::{Member, Spread};

/// Where a collector is looked for that nobody named: its default address on this host.
pub const DEFAULT_COLLECTOR: &str = "127.0.0.1:40050";

/// The longest answer that a client takes, in bytes: the counters of all nodes, 65,536 of them at most, are
/// the longest there is.
const MAX_ANSWER: usize = 64 << 20;
