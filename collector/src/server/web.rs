//! The page in the browser.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use dta_cluster::{CollectorRecord, View};
use dta_export::names::Names;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::transport::tls::{self, ServerFiles};
use dta_rpc::{ClientError, ClientOptions, ClientTls, Spread, SpreadMember};
use dta_web::{Access, OwnNotices, ServedWeb, WebCounters, WebOptions, WebPort};

use super::check::tls_files;
use crate::config::Config;
use crate::service::CollectorService;

/// Whom the page asks: this collector and, in a cluster, all others that are there.
pub(super) struct PageMembers {
    own: SpreadMember,
    /// Its id in a cluster.
    id: Option<String>,
    spread: Spread,
    /// How the others are reached: they take this collector's certificate if their `client_ca` signed it.
    tls: Option<ClientTls>,
}

impl PageMembers {
    /// Of a collector whose gRPC is at `listen`.
    pub(super) fn new(config: &Config, listen: SocketAddr, service: &CollectorService) -> PageMembers {
        let own = SpreadMember { address: listen.to_string(), ask: Arc::new(service.clone()) };
        let client = |files: ServerFiles<'_>| ClientTls {
            ca: files.client_ca.to_owned(),
            cert: files.cert.to_owned(),
            key: files.key.to_owned(),
            domain: None,
        };
        PageMembers {
            spread: Spread::new(vec![own.clone()]),
            id: config.cluster.as_ref().map(|cluster| cluster.id(config).to_owned()),
            own,
            tls: tls_files(config).map(client),
        }
    }

    /// Asks those who are in a cluster by this view; connections that there were before are kept.
    pub(super) fn follow_view(&self, view: &View) {
        let before = self.spread.members();
        let mut members = vec![self.own.clone()];
        let others = view.collectors.iter().filter(|(id, _)| self.id.as_ref() != Some(id));
        for (id, CollectorRecord { address, .. }) in others {
            let known = before.iter().find(|member| member.address == *address).cloned();
            let member = known.map_or_else(|| self.connect_to(address), Ok);
            match member {
                Ok(member) => members.push(member),
                Err(error) => tracing::warn!(%id, %error, "the page cannot ask a collector of the cluster"),
            }
        }
        // The same ones keep what is known of who has what.
        if !members.iter().map(|member| &member.address).eq(before.iter().map(|member| &member.address)) {
            self.spread.set_members(members);
        }
    }

    fn connect_to(&self, address: &str) -> Result<SpreadMember, ClientError> {
        let ask = RemoteCollector::connect_lazy(&ClientOptions::new(address, self.tls.clone()))?;
        Ok(SpreadMember { address: address.to_owned(), ask: Arc::new(ask) })
    }
}

/// Serves the page, which asks these.
pub(super) fn serve_page(
    port: WebPort,
    config: &Config,
    members: &PageMembers,
    names: &Arc<Names>,
    counters: Arc<WebCounters>,
    own_notices: OwnNotices,
) -> anyhow::Result<ServedWeb> {
    let token = config.web.token_file.as_deref().map(read_token).transpose()?;
    let tls = if config.web.exposed_address().is_some() { load_page_tls(config)? } else { None };
    let options = WebOptions {
        ask: members.spread.clone(),
        names: names.clone(),
        title: config.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        access: Access { hosts: config.web.hosts.clone(), token },
        counters,
        own_notices,
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
