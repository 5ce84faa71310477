//! The page in the browser.

use std::collections::BTreeSet;
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

/// Whom the page queries: this collector and, in a cluster, all others that are present.
pub(super) struct PageMembers {
    /// This collector, by the address at which others reach it.
    own: SpreadMember,
    /// Its id in a cluster.
    id: Option<String>,
    spread: Spread,
    /// Locked while members are changed.
    connecting: Mutex<MemberConnecting>,
}

/// How to reach the other members.
struct MemberConnecting {
    /// The others accept this collector's certificate if their `client_ca` signed it.
    tls: Option<ClientTls>,
    /// The addresses of members that could not be connected to.
    failed: BTreeSet<String>,
}

impl PageMembers {
    /// For a collector that others reach at this address.
    pub(super) fn new(config: &Config, address: String, service: &CollectorService) -> PageMembers {
        let own = SpreadMember { address, ask: Arc::new(service.clone()) };
        PageMembers {
            spread: Spread::new(vec![own.clone()]),
            id: config.cluster.as_ref().map(|cluster| cluster.id(config).to_owned()),
            own,
            connecting: Mutex::new(MemberConnecting { tls: client_tls(config), failed: BTreeSet::new() }),
        }
    }

    /// Queries the members of a cluster in this view. Existing connections are kept.
    pub(super) fn follow_view(&self, view: &View) {
        let mut connecting = self.lock_connecting();
        let before = self.spread.members();
        let others = view.collectors.iter().filter(|(id, _)| self.id.as_ref() != Some(id));
        let mut members = vec![self.own.clone()];
        members.extend(others.map(|(_, CollectorRecord { address, .. })| {
            let known = before.iter().find(|member| member.address == *address);
            connecting.member_at(address, known)
        }));
        connecting.failed.retain(|address| members.iter().any(|member| member.address == *address));
        // If the members are the same, they keep what is known about who has what.
        let is_same =
            |(a, b): (&SpreadMember, &SpreadMember)| a.address == b.address && Arc::ptr_eq(&a.ask, &b.ask);
        if members.len() != before.len() || !members.iter().zip(&*before).all(is_same) {
            self.spread.set_members(members);
        }
    }

    /// Reconnects to the others with the TLS files of this configuration.
    pub(super) fn reload_tls(&self, config: &Config) {
        let mut connecting = self.lock_connecting();
        *connecting = MemberConnecting { tls: client_tls(config), failed: BTreeSet::new() };
        let before = self.spread.members();
        let Some((own, others)) = before.split_first() else { return };
        let others = others.iter().map(|member| connecting.member_at(&member.address, None));
        self.spread.set_members([own.clone()].into_iter().chain(others).collect());
    }

    fn lock_connecting(&self) -> MutexGuard<'_, MemberConnecting> {
        self.connecting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemberConnecting {
    /// Another collector: the `known` one if connecting to it worked. One that cannot be connected to is a
    /// member with that error, since sums lack it.
    fn member_at(&mut self, address: &str, known: Option<&SpreadMember>) -> SpreadMember {
        if let Some(known) = known.filter(|_| !self.failed.contains(address)) {
            return known.clone();
        }
        let connected = RemoteCollector::connect_lazy(&ClientOptions::new(address, self.tls.clone()));
        match (connected, known) {
            (Ok(ask), _) => {
                self.failed.remove(address);
                SpreadMember { address: address.to_owned(), ask: Arc::new(ask) }
            }
            (Err(_), Some(known)) => known.clone(),
            (Err(error), None) => {
                tracing::warn!(%address, %error, "the page cannot ask a collector of the cluster");
                self.failed.insert(address.to_owned());
                let ask = Arc::new(RemoteCollector::unreachable(&error));
                SpreadMember { address: address.to_owned(), ask }
            }
        }
    }
}

/// The TLS that this collector uses as a client of others.
fn client_tls(config: &Config) -> Option<ClientTls> {
    let files = tls_files(config)?;
    Some(ClientTls {
        ca: files.client_ca.to_owned(),
        cert: files.cert.to_owned(),
        key: files.key.to_owned(),
        domain: None,
    })
}

/// Serves the page, which queries these members.
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

/// TLS for a page that others may reach: without a token, clients need a certificate.
pub(super) fn load_page_tls(config: &Config) -> anyhow::Result<Option<Arc<tls::RustlsServerConfig>>> {
    let Some(files) = tls_files(config) else { return Ok(None) };
    let needs_certificate = config.web.token_file.is_none();
    Ok(Some(tls::load_page_tls(&files, needs_certificate, SystemTime::now())?))
}

/// Who may use the page. Reads the token.
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

#[cfg(test)]
mod tests {
    use dta_rpc::{ClientError, ServerKind};

    use super::*;

    /// The members of the collector `own`, all of whose addresses have this scheme.
    fn page_members(scheme: &str, tls: Option<ClientTls>) -> PageMembers {
        let address = format!("{scheme}://own.example:40050");
        let reason = "nobody asks it".to_owned();
        let reason = ClientError::Address { server: ServerKind::Collector, address: address.clone(), reason };
        let own = SpreadMember { address, ask: Arc::new(RemoteCollector::unreachable(&reason)) };
        PageMembers {
            spread: Spread::new(vec![own.clone()]),
            id: Some("own".into()),
            own,
            connecting: Mutex::new(MemberConnecting { tls, failed: BTreeSet::new() }),
        }
    }

    fn view_of(scheme: &str, ids: &[&str]) -> View {
        let record = |id: &str| CollectorRecord {
            address: format!("{scheme}://{id}.example:40050"),
            ..CollectorRecord::default()
        };
        View { collectors: ids.iter().map(|id| ((*id).to_owned(), record(id))).collect(), ..View::default() }
    }

    #[tokio::test]
    async fn the_group_stays_as_it_is_while_the_own_record_comes_and_goes() {
        let page = page_members("http", None);
        page.follow_view(&view_of("http", &["other"]));
        let members = page.spread.members();
        assert_eq!(members.len(), 2);
        for view in [&["other", "own"][..], &["other"]] {
            page.follow_view(&view_of("http", view));
            assert!(Arc::ptr_eq(&page.spread.members(), &members), "{view:?}");
        }
        page.follow_view(&view_of("http", &["own"]));
        assert_eq!(page.spread.members().len(), 1);
    }

    #[tokio::test]
    async fn a_member_that_could_not_be_connected_to_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| folder.path().join(name));
        let tls = ClientTls { ca: ca.clone(), cert: cert.clone(), key: key.clone(), domain: None };
        let page = page_members("https", Some(tls));
        let view = view_of("https", &["other", "own"]);
        page.follow_view(&view);
        let failed = page.spread.members();
        assert_eq!(failed.len(), 2, "it is there, with the reason");
        page.follow_view(&view);
        assert!(Arc::ptr_eq(&page.spread.members(), &failed), "it failed again");

        let own_key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["own.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&own_key).unwrap().pem();
        std::fs::write(&ca, &certificate).unwrap();
        std::fs::write(&cert, &certificate).unwrap();
        std::fs::write(&key, own_key.serialize_pem()).unwrap();
        page.follow_view(&view);
        let connected = page.spread.members();
        assert!(!Arc::ptr_eq(&connected[1].ask, &failed[1].ask));
        page.follow_view(&view);
        assert!(Arc::ptr_eq(&page.spread.members(), &connected));
    }
}
