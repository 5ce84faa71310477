//! gRPC with TLS: a client with a certificate of the client authority is served, anyone else is not.

use std::path::{Path, PathBuf};

use dta_collector::client::{Client, ClientError, ClientOptions, ClientTls};
use dta_collector::config::{Config, Tls};
use dta_collector::server::{Server, ServerError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { pem, issuer: Issuer::new(params, key) }
}

/// A certificate of the authority and its key, as PEM.
fn issue(authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, &authority.issuer).unwrap().pem(), key.serialize_pem())
}

fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_needs_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ca, stranger) = (authority(), authority());
    let (cert, key) = issue(&ca, "collector.example");
    let tls = Tls {
        cert: file(dir, "c.crt", &cert),
        key: file(dir, "c.key", &key),
        client_ca: file(dir, "ca.crt", &ca.pem),
    };
    let config = Config { tls: Some(tls.clone()), ..crate::common::config() };
    let server = Server::start(&config).await.unwrap();

    let client = |name: &str, of: &Authority| {
        let (cert, key) = issue(of, "client.example");
        ClientOptions {
            address: format!("127.0.0.1:{}", server.listen.port()),
            tls: Some(ClientTls {
                ca: tls.client_ca.clone(),
                cert: file(dir, &format!("{name}.crt"), &cert),
                key: file(dir, &format!("{name}.key"), &key),
                domain: Some("collector.example".into()),
            }),
        }
    };
    // The handshake of TLS 1.3 ends for the client before the server has judged it: a refusal may come with the first call.
    async fn ask(options: &ClientOptions) -> Result<usize, ClientError> {
        Ok(Client::connect(options).await?.stores().await?.len())
    }
    let good = client("good", &ca);
    assert_eq!(ask(&good).await.unwrap(), 5);
    assert!(ask(&client("bad", &stranger)).await.is_err(), "a stranger's certificate");
    assert!(ask(&ClientOptions { tls: None, ..good.clone() }).await.is_err(), "no TLS");
    let mut other = good.clone();
    other.tls.as_mut().unwrap().domain = Some("other.example".into());
    assert!(ask(&other).await.is_err(), "the collector is not who it should be");
    assert_eq!(ask(&good).await.unwrap(), 5, "none of these harmed it");
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let junk = file(dir.path(), "junk.pem", "no PEM at all");
    let start =
        async |tls: Tls| match Server::start(&Config { tls: Some(tls), ..crate::common::config() }).await {
            Err(error) => error,
            Ok(_) => panic!("started with junk"),
        };
    let missing = dir.path().join("missing.pem");
    let told = start(Tls { cert: missing, key: junk.clone(), client_ca: junk.clone() }).await;
    assert!(told.to_string().contains("missing.pem"), "{told}");
    let told = start(Tls { cert: junk.clone(), key: junk.clone(), client_ca: junk }).await;
    assert!(matches!(told, ServerError::Tls(_)), "{told}");
}
