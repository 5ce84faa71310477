//! The page in the browser.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, ensure};
use dta_cluster::{CollectorRecord, View};
use dta_export::names::Names;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::transport::tls;
use dta_rpc::{ClientOptions, ClientTls, Spread, SpreadMember};
use dta_web::{Access, OwnNotices, ServedWeb, WebCounters, WebOptions, WebPort};

use super::check::tls_files;
use crate::config::Config;
use crate::service::CollectorService;

/// Whom the page asks: this collector and, in a cluster, all others that are there.
pub(super) struct PageMembers {
    /// By the address where it listens.
    own: SpreadMember,
    /// Its id in a cluster.
    id: Option<String>,
    spread: Spread,
    /// How the others are reached: they take this collector's certificate if their `client_ca` signed it. Locked while members
    /// change.
    tls: Mutex<Option<ClientTls>>,
}

impl PageMembers {
    /// Of a collector whose gRPC is at `listen`.
    pub(super) fn new(config: &Config, listen: SocketAddr, service: &CollectorService) -> PageMembers {
        let own = SpreadMember { address: listen.to_string(), ask: Arc::new(service.clone()) };
        PageMembers {
            spread: Spread::new(vec![own.clone()]),
            id: config.cluster.as_ref().map(|cluster| cluster.id(config).to_owned()),
            own,
            tls: Mutex::new(client_tls(config)),
        }
    }

    /// Asks those who are in a cluster by this view; connections that there were before are kept.
    pub(super) fn follow_view(&self, view: &View) {
        let tls = self.lock_tls();
        let before = self.spread.members();
        let (own, others): (Vec<_>, Vec<_>) =
            view.collectors.iter().partition(|(id, _)| self.id.as_ref() == Some(id));
        // Where others reach it.
        let address = own.first().map_or(&self.own.address, |(_, record)| &record.address);
        let mut members = vec![SpreadMember { address: address.clone(), ask: self.own.ask.clone() }];
        members.extend(others.into_iter().map(|(_, CollectorRecord { address, .. })| {
            let known = before.iter().find(|member| member.address == *address).cloned();
            known.unwrap_or_else(|| member_at(address, tls.as_ref()))
        }));
        // The same ones keep what is known of who has what.
        if !members.iter().map(|member| &member.address).eq(before.iter().map(|member| &member.address)) {
            self.spread.set_members(members);
        }
    }

    /// Connects to the others anew, by the TLS files of this configuration.
    pub(super) fn reload_tls(&self, config: &Config) {
        let mut tls = self.lock_tls();
        *tls = client_tls(config);
        let before = self.spread.members();
        let Some((own, others)) = before.split_first() else { return };
        let others = others.iter().map(|member| member_at(&member.address, tls.as_ref()));
        self.spread.set_members([own.clone()].into_iter().chain(others).collect());
    }

    fn lock_tls(&self) -> MutexGuard<'_, Option<ClientTls>> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A collector as others see it.
fn client_tls(config: &Config) -> Option<ClientTls> {
    let files = tls_files(config)?;
    Some(ClientTls {
        ca: files.client_ca.to_owned(),
        cert: files.cert.to_owned(),
        key: files.key.to_owned(),
        domain: None,
    })
}

/// Another collector. One that cannot be connected to is among the members with the reason, since sums are without it.
fn member_at(address: &str, tls: Option<&ClientTls>) -> SpreadMember {
    let ask = RemoteCollector::connect_lazy(&ClientOptions::new(address, tls.cloned()));
    let ask = ask.unwrap_or_else(|error| {
        tracing::warn!(%address, %error, "the page cannot ask a collector of the cluster");
        RemoteCollector::unreachable(&error)
    });
    SpreadMember { address: address.to_owned(), ask: Arc::new(ask) }
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
    let access = load_access(config)?;
    let tls = if config.web.exposed_address().is_some() { load_page_tls(config)? } else { None };
    let options = WebOptions {
        ask: members.spread.clone(),
        names: names.clone(),
        title: config.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        access,
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

/// Who may ask the page; reads the token.
pub(super) fn load_access(config: &Config) -> anyhow::Result<Access> {
    let token = config.web.token_file.as_deref().map(read_token).transpose()?;
    Ok(Access { hosts: config.web.hosts.clone(), token })
}

fn read_token(path: &Path) -> anyhow::Result<String> {
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
