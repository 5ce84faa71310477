//! Reporting to Direct Telemetry Access (DTA) from a host.
//!
//! ```no_run
//! use dta_reporter::{Config, DtaBody, Key, Reporter};
//!
//! let mut reporter = Reporter::open(Config::new("192.0.2.10:40040".parse()?))?;
//! let key: Key = "10.0.0.1:5000->10.0.0.2:5000/udp".parse()?;
//! reporter.report(1, DtaBody::KeyWrite { redundancy: 0, key, value: &1500u32.to_be_bytes() })?;
//! reporter.flush()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With many reports of one kind, write them directly into the send buffer:
//!
//! ```no_run
//! # use dta_proto::key::Key;
//! # use dta_proto::wire::dta::DtaBody;
//! # fn report(reporter: &mut dta_reporter::Reporter, flows: &[([u8; 16], u32)]) -> Result<(), Box<dyn std::error::Error>> {
//! let like = DtaBody::KeyWrite { redundancy: 0, key: Key([0; 16]), value: &[0; 4] };
//! reporter.report_many(1, like, flows.len(), |n, fields| {
//!     fields.key.copy_from_slice(&flows[n].0);
//!     fields.value.copy_from_slice(&flows[n].1.to_be_bytes());
//! })?;
//! # Ok(()) }
//! ```
//!
//! [`Reporter`] accepts reports of any primitive, numbers them, sends them in batches, keeps the
//! retransmittable ones in a bounded backup and retransmits them on request of the translator (NACK). It
//! allocates only when opened and never blocks. [`pace`] keeps a rate. The module `trace` (feature `trace`)
//! turns what points of this host saw into reports. The program `dta-reporter` is in `cli`, behind the
//! feature of that name, which is on by default.

#![warn(missing_docs)]

pub mod backup;
#[cfg(feature = "cli")]
pub mod cli;
mod config;
mod counters;
mod gather;
pub mod pace;
#[cfg(feature = "trace")]
#[allow(missing_docs, reason = "for the program and the tests; others link the reporter alone")]
pub mod packet_trace;
mod reporter;
#[cfg(feature = "trace")]
#[allow(missing_docs, reason = "for the program and the tests; others link the reporter alone")]
pub mod trace;

pub use config::{Config, ReportOptions};
pub use counters::ReporterCounters;
pub use dta_proto::key::Key;
pub use dta_proto::wire::dta::DtaBody;
pub use reporter::{Observer, OpenError, Reporter, SentDatagram};
