//! Who has which keys and lists, where several collectors share stores, and where that is said: in the configuration,
//! or in etcd.
//!
//! - [`View`] is what is known: the collectors, and the placement.
//! - [`Source::follow`] gives the newest view, and tells when there is another one.
//! - [`etcd`] (feature `etcd`): how a collector joins, how it is planned who has what, and how a collector is drained.

#[cfg(feature = "etcd")]
pub mod etcd;
mod source;
mod view;

pub use source::{Source, Views};
pub use view::{Collector, View};
