//! Exports from a collector the events that the translator's INT rules append to the store `int-events`, for
//! databases and for people.
//!
//! It reads a collector only through [`dta_rpc::Ask`], so it works both inside and outside the collector's
//! process. Modules depend in one direction:
//!
//! - [`source`] follows the lists and decodes their entries; [`directory`] remembers what keys stand for;
//! - [`kind`] says what an event is about, and [`fields`] what it says; [`names`] has people's names for switches,
//!   ports and drop reasons, and [`networks`] the owners of addresses;
//! - [`events`] combines both: events with their flows and paths, in order;
//! - [`hosts`] puts together what hosts report of packets;
//! - [`schema`] turns events into [points](point), and [`json`] into lines;
//! - [`gauges`] are telemetry for Prometheus, and [`traffic`] has sums of flow records;
//! - [`spool`] keeps records on disk until a separate thread has delivered them;
//! - `sink` says what goes where: how events and pages of metrics are encoded (`encode`), and who receives them
//!   (`receiver`). There is a module for each kind: `influx`, `otlp`, `remote_write`, `kafka`;
//! - [`run`] runs exporters as a [`config`] says, and [`counters`] has their counters.

pub mod alert;
pub mod config;
pub mod counters;
mod deliver;
pub mod directory;
mod encode;
mod error;
pub mod events;
pub mod fields;
pub mod gauges;
pub mod hosts;
mod http;
mod influx;
pub mod json;
#[cfg(feature = "kafka")]
mod kafka;
pub mod kind;
pub mod metrics;
pub mod names;
pub mod networks;
#[cfg(feature = "otlp")]
mod otlp;
pub mod point;
mod receiver;
#[cfg(feature = "remote-write")]
mod remote_write;
pub mod run;
pub mod schema;
mod sink;
pub mod source;
pub mod spool;
pub mod traffic;
mod unique;

pub use error::ExportError;
