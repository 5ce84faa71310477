//! The page in the browser.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use dta_export::names::Names;
use dta_rpc::transport::tls;
use dta_rpc::{Spread, SpreadMember};
use dta_web::{Access, ServedWeb, WebCounters, WebOptions, WebPort};

use super::check::tls_files;
use crate::config::Config;
use crate::service::CollectorService;

/// Serves the page of a collector whose gRPC is at `listen`.
pub(super) fn serve_page(
    port: WebPort,
    config: &Config,
    listen: SocketAddr,
    service: &CollectorService,
    names: &Arc<Names>,
    counters: Arc<WebCounters>,
) -> anyhow::Result<ServedWeb> {
    let token = config.web.token_file.as_deref().map(read_token).transpose()?;
    let tls = if config.web.exposed_address().is_some() { load_page_tls(config)? } else { None };
    let member = SpreadMember { address: listen.to_string(), ask: Arc::new(service.clone()) };
    let options = WebOptions {
        ask: Spread::new(vec![member]),
        names: names.clone(),
        title: config.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        access: Access { hosts: config.web.hosts.clone(), token },
        counters,
    };
    Ok(port.serve(options, tls))
}

/// TLS of a page that others may reach: those who have no token need a certificate.
pub(super) fn load_page_tls(config: &Config) -> anyhow::Result<Option<Arc<tls::RustlsServerConfig>>> {
    let Some(files) = tls_files(config) else { return Ok(None) };
    let needs_certificate = config.web.token_file.is_none();
    Ok(Some(tls::load_page_tls(&files, needs_certificate, SystemTime::now())?))
}

pub(super) fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = dta_files::file::read_text(path)
        .with_context(|| format!("cannot read the token of the page in {}", path.display()))?;
    let token = text.lines().next().unwrap_or_default().trim();
    ensure!(
        token.len() >= 16,
        "the token of the page in {} has less than 16 characters: take a longer one",
        path.display()
    );
    Ok(token.to_owned())
}
