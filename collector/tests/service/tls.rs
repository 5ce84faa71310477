//! gRPC with TLS: a client with a certificate of the client authority is served, anyone else is not.

use std::path::{Path, PathBuf};

use crate::common::open_request;
use dta_collector::client::{Client, ClientError, ClientOptions, ClientTls};
use dta_collector::config::{Config, Tls};
use dta_collector::server::{Server, ServerError};
use dta_proto::control;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::Code;

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
        operators: Vec::new(),
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
    let told =
        start(Tls { cert: missing, key: junk.clone(), client_ca: junk.clone(), operators: Vec::new() }).await;
    assert!(told.to_string().contains("missing.pem"), "{told}");
    let told =
        start(Tls { cert: junk.clone(), key: junk.clone(), client_ca: junk, operators: Vec::new() }).await;
    assert!(matches!(told, ServerError::Tls(_)), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_of_the_certificate_that_opened_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ca = authority();
    let (cert, key) = issue(&ca, "collector.example");
    let tls = Tls {
        cert: file(dir, "c.crt", &cert),
        key: file(dir, "c.key", &key),
        client_ca: file(dir, "ca.crt", &ca.pem),
        operators: vec!["ops.example".into()],
    };
    let server = Server::start(&Config { tls: Some(tls.clone()), ..crate::common::config() }).await.unwrap();
    let client = async |file_name: &str, name: &str| {
        let (cert, key) = issue(&ca, name);
        let options = ClientOptions {
            address: format!("127.0.0.1:{}", server.listen.port()),
            tls: Some(ClientTls {
                ca: tls.client_ca.clone(),
                cert: file(dir, &format!("{file_name}.crt"), &cert),
                key: file(dir, &format!("{file_name}.key"), &key),
                domain: Some("collector.example".into()),
            }),
        };
        Client::connect(&options).await.unwrap()
    };
    let (mut tor1, mut tor2) = (client("tor1", "tor1.example").await, client("tor2", "tor2.example").await);
    let session = tor1.raw().open_session(open_request("tor1", 50)).await.unwrap().into_inner();
    assert_eq!(tor2.sessions().await.unwrap()[0].owner, "tor1.example");

    let renew = control::RenewSessionRequest {
        name: "tor1".into(),
        generation: session.generation,
        ..Default::default()
    };
    let refused = tor2.raw().open_session(open_request("tor1", 60)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("\"tor1.example\"") && refused.message().contains("operators"));
    assert_eq!(tor2.raw().renew_session(renew.clone()).await.unwrap_err().code(), Code::PermissionDenied);
    assert!(tor2.end_session("tor1").await.is_err());
    // The same names under another key are the same caller: certificates are issued anew.
    let mut renewed = client("renewed", "tor1.example").await;
    assert_eq!(renewed.raw().renew_session(renew).await.unwrap().into_inner().generation, session.generation);
    client("ops", "ops.example").await.end_session("tor1").await.unwrap();
    tor2.raw().open_session(open_request("tor1", 60)).await.unwrap();
    server.stop().await.unwrap();
}
