//! Out of a collector: the events that the translator's rules for INT append to the store `int-events`, for
//! databases and for people.
//!
//! It sees a collector only through [`dta_client::Ask`], so that it works inside the collector's process and
//! beside it. Modules point one way:
//!
//! - [`source`] follows the lists and decodes what is in them; [`directory`] remembers what keys stand for;
//! - [`names`] is what people call switches, ports and drop reasons;
//! - [`events`] puts both together: events with their flows and paths, in their order;
//! - [`schema`] makes [points](point) of events; [`json`] makes lines of them;
//! - [`gauges`] are telemetry for Prometheus;
//! - [`spool`] keeps points on disk until a thread of its own has delivered them over HTTP;
//! - [`run`] lets exporters work as a [`config`] says, and [`counters`] has what they count.

pub mod config;
pub mod counters;
mod deliver;
pub mod directory;
pub mod events;
pub mod gauges;
mod influx;
pub mod json;
pub mod names;
pub mod point;
pub mod run;
pub mod schema;
pub mod source;
pub mod spool;
mod unique;

pub use influx::InfluxError;
