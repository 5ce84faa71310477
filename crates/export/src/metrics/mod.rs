//! DTA's metrics for Prometheus, shared by both daemons.
//!
//! - [`MetricsPage`] is the result of one scrape: families of counters and gauges, with a limit on their series.
//! - [`add_node_metrics`] adds the accounting counters to a page. [`metric_name`] derives their names from the definitions
//!   in [`dta_proto::counter`], so that each is defined in one place.
//! - [`Process`] adds what the system knows about this process, and its build.
//! - [`MetricsPort`] serves pages, and [`Address`] is its address in a configuration.
//!
//! Which nodes exist, and a daemon's health, are up to the daemon.

mod address;
mod connection_places;
mod name;
mod nodes;
mod page;
mod port;
mod process;
mod reply;

pub use address::{Address, PortError};
pub use connection_places::{ConnectionPlace, ConnectionPlaces};
pub use name::metric_name;
pub use nodes::add_node_metrics;
pub use page::{Family, Labels, MetricKind, MetricsPage, Number};
pub use port::{MetricsPort, Served, Targets};
pub use process::Process;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The default address of a collector's metrics.
pub const COLLECTOR_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40052);
/// The default address of a translator's metrics.
pub const TRANSLATOR_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40053);
