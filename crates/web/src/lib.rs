//! A read-only page in the browser, and the HTTP interface beneath it.
//!
//! [`WebPort`] opens the port and serves it. Every answer comes through [`dta_rpc::Ask`] and the views that the command line and the dashboard use. `api` has the
//! routes, whose parameters and `/api/openapi.json` come from one table. `live` sends changes as server-sent events, and `mcp` offers the routes to agents as tools.
//! `access` refuses requests that come from other sites or lack the token, and `page` embeds the page's files.

mod access;
mod api;
mod counters;
mod live;
mod mcp;
mod openapi;
mod page;
mod parameters;
mod port;
mod problem;
mod stall;

pub use access::Access;
pub use counters::WebCounters;
pub use dta_views::attention::{Notice, Severity};
pub use port::{ServedWeb, WebPort};

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use dta_export::names::Names;
use dta_rpc::Spread;

/// The default address of a collector's page.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40055);

/// Answers an agent that speaks the Model Context Protocol over standard input and output, until the input is closed.
pub async fn serve_agent(options: WebOptions) -> std::io::Result<()> {
    let server = Arc::new(api::WebServer::new(options));
    mcp::serve_standard_streams(&server).await
}

/// What a page shows, and who may see it.
pub struct WebOptions {
    /// Whom the page queries.
    pub ask: Spread,
    /// Names of switches, ports, drop reasons and networks.
    pub names: Arc<Names>,
    /// Whose figures these are, shown as the page's title.
    pub title: String,
    pub version: &'static str,
    pub access: Access,
    pub counters: Arc<WebCounters>,
    /// Finds problems that only this process itself knows about.
    pub own_notices: OwnNotices,
}

/// Finds notices; may block.
pub type OwnNotices = Arc<dyn Fn() -> Vec<Notice> + Send + Sync>;
