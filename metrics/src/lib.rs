//! Metrics of DTA for Prometheus, as both daemons share them.
//!
//! - [`Page`] is what one scrape gives: families of counters and gauges, with a bound on their series.
//! - [`nodes`] puts the counters of the accounting on a page. Their names are made by [`metric_name`] from the
//!   definitions in [`dta_proto::counter`], so that each is told in one place.
//! - [`Process`] puts on it what the system knows of this process, and which build it is.
//! - [`Port`] is where pages are scraped, and [`Address`] what a configuration says of it.
//!
//! Which nodes there are, and how a daemon is, its daemon knows.

mod address;
mod name;
mod nodes;
mod page;
mod places;
mod port;
mod process;
mod reply;

pub use address::Address;
pub use name::metric_name;
pub use nodes::nodes;
pub use page::{Kind, Labels, Page};
pub use port::{Port, PortError, Served};
pub use process::Process;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Where a collector's metrics are scraped unless told otherwise.
pub const COLLECTOR_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40052);
/// Where a translator's metrics are scraped unless told otherwise.
pub const TRANSLATOR_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40053);
