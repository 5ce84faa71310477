//! gRPC with TLS: a client with a certificate of the client authority is served, anyone else is
//! not, and each is refused with the reason.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::common::{open_request, status_of};
use dta_collector::config::{CollectorLimits, CollectorTlsConfig, Config};
use dta_collector::server::RunningCollector;
use dta_proto::control;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientError, ClientOptions, ClientTls};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair, SanType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

impl Authority {
    /// A certificate with DNS names, changed before it is signed, and its key, as PEM.
    fn issue(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Valid for this many days, from `first` days ago on.
fn for_days(first: u64, days: u64) -> impl FnOnce(&mut CertificateParams) {
    let day = Duration::from_secs(86_400);
    move |params| {
        params.not_before = (SystemTime::now() - day * first as u32).into();
        params.not_after = params.not_before + day * days as u32;
    }
}

fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A collector with TLS, and files of its clients.
struct Ground {
    dir: tempfile::TempDir,
    ca: Authority,
    tls: CollectorTlsConfig,
}

impl Ground {
    fn new() -> Self {
        let (dir, ca) = (tempfile::tempdir().unwrap(), authority());
        let (cert, key) = ca.issue(&["collector.example"], |_| {});
        let tls = CollectorTlsConfig {
            cert: file(dir.path(), "c.crt", &cert),
            key: file(dir.path(), "c.key", &key),
            client_ca: file(dir.path(), "ca.crt", &ca.pem),
            operators: Vec::new(),
        };
        Self { dir, ca, tls }
    }

    fn config(&self) -> Config {
        Config { tls: Some(self.tls.clone()), ..crate::common::config() }
    }

    /// What a client needs that has this certificate.
    fn client(&self, server: &RunningCollector, (cert, key): &(String, String)) -> ClientOptions {
        let mut n = 0;
        let path = loop {
            n += 1;
            let path = self.dir.path().join(format!("client{n}.crt"));
            if !path.exists() {
                break path;
            }
        };
        std::fs::write(&path, cert).unwrap();
        std::fs::write(path.with_extension("key"), key).unwrap();
        let tls = ClientTls {
            ca: self.tls.client_ca.clone(),
            key: path.with_extension("key"),
            cert: path,
            domain: Some("collector.example".into()),
        };
        ClientOptions::new(format!("127.0.0.1:{}", server.listen.port()), Some(tls))
    }

    async fn connect(&self, server: &RunningCollector, name: &str) -> RemoteCollector {
        let options = self.client(server, &self.ca.issue(&[name], |_| {}));
        RemoteCollector::connect(&options).await.unwrap()
    }
}

/// The handshake of TLS 1.3 ends for the client before the server has judged it: a refusal may come
/// with the first call.
async fn ask(options: &ClientOptions) -> Result<usize, ClientError> {
    Ok(RemoteCollector::connect(options).await?.fetch_stores().await?.len())
}

async fn refusal(options: &ClientOptions) -> String {
    let answer = tokio::time::timeout(Duration::from_secs(60), ask(options)).await.expect("an answer");
    answer.expect_err("must be refused").to_string()
}

/// When the certificate in use ends, by the metrics, in days from now.
async fn days_left(server: &RunningCollector) -> f64 {
    let mut stream =
        tokio::net::TcpStream::connect(server.scrape_address().expect("they are served")).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let name = "dta_collector_certificate_end_timestamp_seconds ";
    let end: f64 = page.lines().find_map(|line| line.strip_prefix(name)).expect(name).parse().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (end - now.as_secs_f64()) / 86_400.0
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_say_when_the_certificate_in_use_ends() {
    let ground = Ground::new();
    let replace = |days| {
        let (cert, key) = ground.ca.issue(&["collector.example"], for_days(1, days));
        std::fs::write(&ground.tls.cert, cert).unwrap();
        std::fs::write(&ground.tls.key, key).unwrap();
    };
    replace(11);
    let mut config = ground.config();
    config.metrics.listen = dta_export::metrics::Address::At("127.0.0.1:0".parse().unwrap());
    let mut server = RunningCollector::start(&config).await.unwrap();
    assert!((9.9..10.1).contains(&days_left(&server).await));
    // One that lies there and is not in use says nothing yet.
    replace(91);
    // A page is kept for a second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!((9.9..10.1).contains(&days_left(&server).await));
    server.reload_config(&config).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!((89.9..90.1).contains(&days_left(&server).await));
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_again_and_bad_ones_change_nothing() {
    let ground = Ground::new();
    let mut server = RunningCollector::start(&ground.config()).await.unwrap();
    let good = ground.client(&server, &ground.ca.issue(&["client.example"], |_| {}));
    let connected = RemoteCollector::connect(&good).await.unwrap();
    // A key of another pair.
    let (_, other) = ground.ca.issue(&["other.example"], |_| {});
    std::fs::write(&ground.tls.key, other).unwrap();
    let refused = server.reload_config(&ground.config()).await.unwrap_err().to_string();
    assert!(refused.contains("does not belong to the certificate"), "{refused}");
    assert_eq!(ask(&good).await.unwrap(), 16);

    let (cert, key) = ground.ca.issue(&["second.example"], |_| {});
    std::fs::write(&ground.tls.cert, cert).unwrap();
    std::fs::write(&ground.tls.key, key).unwrap();
    assert_eq!(server.reload_config(&ground.config()).await.unwrap(), ["the TLS files"]);
    assert!(refusal(&good).await.contains("second.example"));
    let mut second = good.clone();
    second.tls.as_mut().unwrap().domain = Some("second.example".into());
    assert_eq!(ask(&second).await.unwrap(), 16);
    // Connected clients are asked to reconnect, and see the new certificate.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while connected.fetch_stores().await.is_ok() {
        assert!(std::time::Instant::now() < until, "the connection of before goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_needs_a_certificate_and_a_refusal_says_what_is_wrong() {
    let ground = Ground::new();
    let server = RunningCollector::start(&ground.config()).await.unwrap();
    let good = ground.client(&server, &ground.ca.issue(&["client.example"], |_| {}));
    assert_eq!(ask(&good).await.unwrap(), 16);

    let with = |change: &dyn Fn(&mut ClientTls)| {
        let mut options = good.clone();
        change(options.tls.as_mut().unwrap());
        options
    };
    let other_ca = file(ground.dir.path(), "other.crt", &authority().pem);
    let error = refusal(&with(&|tls| tls.ca = other_ca.clone())).await;
    assert!(error.contains("its certificate") && error.contains("authority that issued it"), "{error}");
    let error = refusal(&with(&|tls| tls.domain = Some("other.example".into()))).await;
    assert!(error.contains("\"other.example\"") && error.contains("collector.example"), "{error}");
    assert!(error.contains("--tls-domain"), "{error}");
    let error = refusal(&ground.client(&server, &authority().issue(&["client.example"], |_| {}))).await;
    assert!(error.contains("refuses this client's certificate"), "{error}");
    let expired = ground.client(&server, &ground.ca.issue(&["client.example"], for_days(10, 7)));
    let error = refusal(&expired).await;
    assert!(error.contains("expired 3 days ago") && error.contains(".crt"), "{error}");
    let error = refusal(&with(&|tls| tls.key = ground.tls.key.clone())).await;
    assert!(error.contains("c.key does not belong to the certificate"), "{error}");
    let error = refusal(&ClientOptions { tls: None, ..good.clone() }).await;
    assert!(error.contains("wants TLS") && error.contains("https://"), "{error}");

    assert_eq!(ask(&good).await.unwrap(), 16, "none of these harmed it");
    server.shut_down().await.unwrap();

    // TLS to a collector that has none.
    let plain = RunningCollector::start(&crate::common::config()).await.unwrap();
    let error = refusal(&ClientOptions { address: plain.listen.to_string(), ..good }).await;
    assert!(error.contains("does not speak TLS"), "{error}");
    plain.shut_down().await.unwrap();
}

/// A server that somebody else runs, or this one when its certificate ended while it ran.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_server_is_named_as_that() {
    let ground = Ground::new();
    let server = RunningCollector::start(&ground.config()).await.unwrap();
    let good = ground.client(&server, &ground.ca.issue(&["client.example"], |_| {}));
    let (cert, key) = ground.ca.issue(&["collector.example"], for_days(10, 7));
    let identity = tonic::transport::Identity::from_pem(cert, key);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = tonic::transport::Server::builder()
        .tls_config(tonic::transport::ServerTlsConfig::new().identity(identity))
        .unwrap()
        .add_routes(tonic::service::Routes::default())
        .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
    let serving = tokio::spawn(serve);
    let error = refusal(&ClientOptions { address, ..good }).await;
    assert!(error.contains("its certificate expired 3 days ago"), "{error}");
    serving.abort();
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_used_are_named() {
    let ground = Ground::new();
    let dir = ground.dir.path();
    let start = async |tls: CollectorTlsConfig| match RunningCollector::start(&Config {
        tls: Some(tls),
        ..crate::common::config()
    })
    .await
    {
        Err(error) if error.is::<dta_rpc::transport::tls::TlsError>() => error.to_string(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("started with junk"),
    };
    let error = start(CollectorTlsConfig { cert: dir.join("missing.pem"), ..ground.tls.clone() }).await;
    assert!(error.contains("missing.pem"), "{error}");
    for which in 0..3 {
        let mut tls = ground.tls.clone();
        let junk = file(dir, &format!("junk{which}.pem"), "no PEM at all");
        *[&mut tls.cert, &mut tls.key, &mut tls.client_ca][which] = junk;
        let error = start(tls).await;
        assert!(error.contains(&format!("junk{which}.pem")) && error.contains("PEM"), "{error}");
    }
    let (_, other) = ground.ca.issue(&["collector.example"], |_| {});
    let error = start(CollectorTlsConfig { key: file(dir, "other.key", &other), ..ground.tls.clone() }).await;
    assert!(error.contains("other.key does not belong to the certificate"), "{error}");
    let (cert, key) = ground.ca.issue(&["collector.example"], for_days(10, 7));
    let (cert, key) = (file(dir, "old.crt", &cert), file(dir, "old.key", &key));
    let error = start(CollectorTlsConfig { cert, key, ..ground.tls.clone() }).await;
    assert!(error.contains("old.crt expired 3 days ago"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_of_the_certificate_that_opened_it() {
    let mut ground = Ground::new();
    ground.tls.operators = vec!["ops.example".into()];
    let server = RunningCollector::start(&ground.config()).await.unwrap();
    let (mut tor1, mut tor2) =
        (ground.connect(&server, "tor1.example").await, ground.connect(&server, "tor2.example").await);
    let session = tor1.open_session(open_request("tor1", 50)).await.unwrap();
    assert_eq!(tor2.fetch_sessions().await.unwrap().sessions[0].owner, "DNS:tor1.example");

    let renew = control::RenewSessionRequest {
        name: "tor1".into(),
        generation: session.generation,
        ..Default::default()
    };
    let refused = status_of(tor2.open_session(open_request("tor1", 60)).await);
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("\"DNS:tor1.example\"") && refused.message().contains("operators"));
    assert_eq!(status_of(tor2.renew_session(renew.clone()).await).code(), Code::PermissionDenied);
    assert!(tor2.end_session("tor1").await.is_err());
    // The same letters as a URI are another's name.
    let uri = ground.ca.issue(&[], |p| p.subject_alt_names = vec![uri_name("tor1.example")]);
    let mut uri = RemoteCollector::connect(&ground.client(&server, &uri)).await.unwrap();
    let refused = status_of(uri.open_session(open_request("tor1", 60)).await);
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let operator = ground.ca.issue(&[], |p| p.subject_alt_names = vec![uri_name("ops.example")]);
    let mut operator = RemoteCollector::connect(&ground.client(&server, &operator)).await.unwrap();
    assert!(operator.end_session("tor1").await.is_err(), "an operator by its DNS name alone");
    // The same names with another key are the same caller: certificates are renewed.
    let mut renewed = ground.connect(&server, "tor1.example").await;
    assert_eq!(renewed.renew_session(renew).await.unwrap().generation, session.generation);
    ground.connect(&server, "ops.example").await.end_session("tor1").await.unwrap();
    tor2.open_session(open_request("tor1", 60)).await.unwrap();
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_without_names_is_refused() {
    let ground = Ground::new();
    let server = RunningCollector::start(&ground.config()).await.unwrap();
    let empty = ground.ca.issue(&[], |p| p.distinguished_name = DistinguishedName::new());
    for certificate in [empty, ground.ca.issue(&[], |_| {})] {
        let options = ground.client(&server, &certificate);
        let error = refusal(&options).await;
        assert!(
            error.contains("no DNS or URI name") && error.contains("subject alternative name"),
            "{error}"
        );
        let mut client = RemoteCollector::connect(&options).await.unwrap();
        let refused = status_of(client.open_session(open_request("t", 50)).await);
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_certificate_cannot_take_all_sessions() {
    let ground = Ground::new();
    let limits = CollectorLimits { sessions_per_certificate: 2, ..CollectorLimits::default() };
    let server = RunningCollector::start(&Config { limits, ..ground.config() }).await.unwrap();
    let mut tor1 = ground.connect(&server, "tor1.example").await;
    let open = |name: &str, qpn| control::OpenSessionRequest {
        stores: vec!["flows".into()],
        ..open_request(name, qpn)
    };
    tor1.open_session(open("a", 50)).await.unwrap();
    tor1.open_session(open("b", 60)).await.unwrap();
    let refused = status_of(tor1.open_session(open("c", 70)).await);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("sessions_per_certificate"), "{refused}");
    ground.connect(&server, "tor2.example").await.open_session(open("c", 70)).await.unwrap();
    server.shut_down().await.unwrap();
}

fn uri_name(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

/// The status of the page for a client with these options of curl; 0 where TLS keeps it out.
fn page_status(ground: &Ground, server: &RunningCollector, options: &[&str]) -> u16 {
    let port = server.page_url().unwrap().rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let output = std::process::Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "30", "--cacert"])
        .arg(&ground.tls.cert)
        .args(["--connect-to", &format!("::127.0.0.1:{port}"), "https://collector.example/api/v1/stores"])
        .args(options)
        .output()
        .expect("curl is one of the packages that tests need");
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_beyond_loopback_wants_a_certificate_or_the_token() {
    let ground = Ground::new();
    let mut config = ground.config();
    config.web.listen = dta_export::metrics::Address::At("0.0.0.0:0".parse().unwrap());
    config.web.hosts = vec!["collector.example".into()];
    let server = RunningCollector::start(&config).await.unwrap();
    assert!(server.page_url().unwrap().starts_with("https://"));
    assert_eq!(page_status(&ground, &server, &[]), 0);
    let (cert, key) = ground.ca.issue(&["browser.example"], |_| {});
    let (cert, key) = (file(ground.dir.path(), "b.crt", &cert), file(ground.dir.path(), "b.key", &key));
    let own = ["--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    assert_eq!(page_status(&ground, &server, &own), 200);
    server.shut_down().await.unwrap();

    config.web.token_file = Some(file(ground.dir.path(), "token", "0123456789abcdef\n"));
    let server = RunningCollector::start(&config).await.unwrap();
    assert_eq!(page_status(&ground, &server, &[]), 401);
    assert_eq!(page_status(&ground, &server, &["-u", "me:0123456789abcdef"]), 200);
    assert_eq!(page_status(&ground, &server, &["-u", "me:0123456789abcdee"]), 401);
    assert_eq!(page_status(&ground, &server, &["-H", "Authorization: Bearer 0123456789abcdef"]), 200);
    server.shut_down().await.unwrap();

    config.web.token_file = Some(file(ground.dir.path(), "short", "secret\n"));
    let refused = RunningCollector::start(&config).await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("16 characters"), "{refused}");
    config.tls = None;
    let refused = RunningCollector::start(&config).await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("without TLS"), "{refused}");
}
