//! Reporting to Direct Telemetry Access (DTA) from a host.
//!
//! ```no_run
//! use dta_reporter::{Body, Config, Key, Reporter};
//!
//! let mut reporter = Reporter::open(Config::new("192.0.2.10:40040".parse()?))?;
//! let key: Key = "10.0.0.1:5000->10.0.0.2:5000/udp".parse()?;
//! reporter.report(1, Body::KeyWrite { redundancy: 0, key, value: &1500u32.to_be_bytes() })?;
//! reporter.flush()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Reporter`] takes reports of any primitive, numbers them, sends them in batches, keeps the
//! retransmittable ones in a bounded backup and sends them again when the translator asks (NACK).
//! It allocates when it is opened and never waits. [`pace`] keeps a rate. The program
//! `dta-reporter` is in `cli`, with the feature of that name, which is on by default.

pub mod backup;
#[cfg(feature = "cli")]
pub mod cli;
mod config;
mod counters;
pub mod pace;
mod reporter;

pub use config::{Config, Options};
pub use counters::Counters;
pub use dta_proto::key::Key;
pub use dta_proto::wire::dta::Body;
pub use reporter::{Observer, OpenError, Reporter, Sent};
