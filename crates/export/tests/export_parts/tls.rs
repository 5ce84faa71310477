//! Receivers with TLS: the file `ca` of a configuration decides whom an exporter trusts.

use std::path::Path;
use std::sync::Arc;

use dta_export::config::{Config, Influx};
use dta_proto::telemetry::list;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::recorder::{Bed, Recorder, answer, counted, end, until};
use crate::source::drop_at;

/// A server's certificate for 127.0.0.1 and its key (PEM).
pub(crate) struct Certificate {
    pub(crate) cert: String,
    pub(crate) key: KeyPair,
}

/// An authority, whose certificate goes into `file`, and a certificate that it issued.
pub(crate) fn issue(file: &Path) -> Certificate {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(file, issuer.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    Certificate { cert: cert.pem(), key }
}

fn server(of: &Certificate) -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(of.key.serialize_der()).unwrap();
    let cert = CertificateDer::from_pem_slice(of.cert.as_bytes()).unwrap();
    Arc::new(config.with_single_cert(vec![cert], key).unwrap())
}

#[tokio::test]
async fn points_go_over_https_to_a_server_that_the_authority_vouches_for_and_to_no_other() {
    let mut bed = Bed::new(|folder| {
        let influx = Influx {
            database: Some("d".into()),
            spool: Some(folder.join("spool")),
            ca: Some(folder.join("ca.pem")),
            ..Influx::default()
        };
        Config { influx: Some(influx), ..Config::default() }
    });
    let folder = bed.folder.path().to_owned();
    let own = issue(&folder.join("ca.pem"));
    let other = issue(&folder.join("other.pem"));
    let [trusted, stranger] =
        [&own, &other].map(|of| Recorder::over_tls(server(of), |_, _| answer("204 No Content|")));
    bed.lists.put(list::DROPS, vec![drop_at(5)]);
    bed.config.influx.as_mut().unwrap().url = stranger.url.clone();
    let exporters = bed.start(false);
    until(&exporters, "retried", 1).await;
    assert_eq!(counted(&exporters, "delivered"), 0);
    exporters.stop_exporters().await;
    assert!(stranger.asked().is_empty());
    bed.config.influx.as_mut().unwrap().url = trusted.url.clone();
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    assert_eq!(counted(&exporters, "retried"), 0);
    exporters.stop_exporters().await;
    assert_eq!(
        trusted.asked()[0].text(),
        "drops,reason=71,reason_name=traffic-manager,switch=1 value=1i 5\n"
    );
}
