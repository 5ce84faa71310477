//! The program `dta-translator` under a service manager: its notifications through NOTIFY_SOCKET, and its log
//! about dropped reports.

#[allow(dead_code, reason = "not all of it is needed here")]
mod common;
#[path = "../../testbed/tests/shared/supervised.rs"]
mod supervised;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::Fake;
use dta_proto::key::Key;
use dta_proto::wire::dta::{DtaBody, DtaReport};
use dta_rpc::transport::tls::ServerFiles;
use rustix::process::Signal;
use supervised::{PATIENCE, Supervised};
use tonic_health::pb::health_check_response::ServingStatus;

/// A translator on free ports. `config` is the text of its configuration, without `[translator]`.
fn start(folder: &Path, config: &str, source: &str) -> Supervised {
    write(folder, config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_dta-translator"));
    command
        .arg("--config")
        .arg(folder.join("translator.toml"))
        .args(["run", "--ready", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"])
        .args(["--source", source, "--source-port", "0"]);
    Supervised::start(command, folder, Some(Duration::from_secs(2)))
}

fn write(folder: &Path, config: &str) {
    std::fs::write(folder.join("translator.toml"), format!("[translator]\n{config}")).unwrap();
}

fn report(sequence: u32, store: u16, value: &[u8]) -> Vec<u8> {
    let report = DtaReport {
        sequence,
        reporter: 7,
        ..DtaReport::new(store, DtaBody::KeyWrite { redundancy: 0, key: Key([1; 16]), value })
    };
    let mut payload = [0; 256];
    let len = report.encode_into(&mut payload).unwrap();
    payload[..len].to_vec()
}

#[test]
fn the_service_manager_is_notified_of_start_life_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, _nic) = Fake::start();
    let config = format!("collector = '{}'", fake.url());
    let mut translator = start(folder.path(), &config, "127.0.0.60");
    let ready = translator.message_about("READY=1");
    assert!(ready.ends_with("STATUS=1 of 1 session open"), "{ready}");
    translator.message_about("WATCHDOG=1");
    translator.message_about("WATCHDOG=1");
    translator.signal(Signal::TERM);
    translator.message_about("STOPPING=1");
    assert!(translator.child.wait().unwrap().success());
}

#[test]
fn health_is_that_of_its_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, _nic) = Fake::start();
    let config = format!("collector = '{}'", fake.url());
    let translator = start(folder.path(), &config, "127.0.0.65");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = format!("http://{}", translator.said("control"));
        let channel = tonic::transport::Channel::from_shared(address).unwrap().connect().await.unwrap();
        let mut client = tonic_health::pb::health_client::HealthClient::new(channel);
        let until = Instant::now() + PATIENCE;
        let mut becomes = async |status: ServingStatus| {
            for service in ["", "dta.v1.Translator"] {
                loop {
                    let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
                    if client.check(request).await.unwrap().into_inner().status() == status {
                        break;
                    }
                    assert!(Instant::now() < until, "{service:?} is not {status:?}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        becomes(ServingStatus::Serving).await;
        // The session ends, and the collector does not let it in again.
        fake.state.lock().unwrap().refuse = Some("no".into());
        fake.state.lock().unwrap().gone = true;
        becomes(ServingStatus::NotServing).await;
        fake.state.lock().unwrap().refuse = None;
        fake.state.lock().unwrap().gone = false;
        becomes(ServingStatus::Serving).await;
    });
}

#[test]
fn a_flood_of_bad_reports_is_one_line_for_each_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, _nic) = Fake::start();
    let config = format!("collector = '{}'", fake.url());
    let translator = start(folder.path(), &config, "127.0.0.61");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = socket.local_addr().unwrap().to_string();
    let begun = Instant::now();
    for sequence in 0..300 {
        // Store 99 is nobody's, store 1 takes values of 12 bytes.
        let (store, len) = if sequence % 2 == 0 { (99, 12) } else { (1, 16) };
        socket.send_to(&report(sequence, store, &vec![0; len]), translator.said("listen")).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let (mut unknown, mut length) = (Vec::new(), Vec::new());
    // The rest of the flood is logged with the next line, ten seconds later.
    let reports = |lines: &[String]| -> u64 {
        let of = |line: &String| line.split("reports=").nth(1)?.split(' ').next()?.parse::<u64>().ok();
        lines.iter().map(|line| of(line).unwrap_or_else(|| panic!("{line}"))).sum()
    };
    while reports(&unknown) < 150 || reports(&length) < 150 {
        let line = translator.logs("reports are dropped");
        match line.contains("unknown_store") {
            true => unknown.push(line),
            false => length.push(line),
        }
    }
    // However long the flood and its lines took, lines are ten seconds apart.
    let most = 1 + begun.elapsed().as_secs() as usize / 10;
    assert!(unknown.len() <= most && length.len() <= most, "{most}: {unknown:#?}\n{length:#?}");
    for words in [&*format!("7 at {from}"), "99 (there are 1 flows, 2 events)", "dta-collector stores"] {
        assert!(unknown[0].contains(words), "{words}: {}", unknown[0]);
    }
    let misfit = "the length of the value is 16, but store `flows` takes at most 12 bytes";
    for words in ["value_length", "1 (flows, key-write)", misfit] {
        assert!(length[0].contains(words), "{words}: {}", length[0]);
    }
    assert_eq!((reports(&unknown), reports(&length)), (150, 150));
}

#[test]
fn sighup_is_a_reload_and_never_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, nic) = Fake::start();
    let config = |more: &str| format!("collector = '{}'\n{more}", fake.url());
    let mut translator = start(folder.path(), &config(""), "127.0.0.62");
    translator.message_about("READY=1");
    let reload = || {
        translator.signal(Signal::HUP);
        let message = translator.message_about("RELOADING=1");
        assert!(message.contains("MONOTONIC_USEC="), "{message}");
        translator.message_about("READY=1");
        translator.logs("reloaded")
    };
    let opened = || fake.state.lock().unwrap().opened.clone();
    assert!(reload().contains("nothing has changed"));
    assert_eq!(opened().len(), 1);

    // Its requests to the collector change: the session is reopened, with its existing queue pairs.
    write(
        folder.path(),
        &config("stores = ['flows', 'events']\nreporters = [{ id = 9, address = '127.0.0.1' }]"),
    );
    let line = reload();
    assert!(line.contains("translator.reporters, translator.stores"), "{line}");
    let until = Instant::now() + PATIENCE;
    while opened().len() < 2 {
        assert!(Instant::now() < until, "it was not opened again");
        std::thread::sleep(Duration::from_millis(20));
    }
    let last = opened().pop().unwrap();
    assert_eq!((last.stores, last.fresh), (vec!["flows".to_owned(), "events".to_owned()], false));
    // Reporter 7 is no longer listed, without a restart.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&report(1, 1, &[0; 12]), translator.said("listen")).unwrap();
    assert!(translator.logs("reports are dropped").contains("reporter_not_listed"));
    assert!(nic.recv().is_none());

    // Settings that cannot change are named, and then nothing changes, not even what could.
    write(folder.path(), &config("tos = 8\nversion0_nacks = 5"));
    let line = reload();
    assert!(line.contains("translator.tos cannot change"), "{line}");
    // The same if the collector refuses the request.
    write(folder.path(), &config("stores = ['nobody']"));
    fake.state.lock().unwrap().refuse = Some("there is no store nobody".into());
    let line = reload();
    assert!(
        line.contains("configuration not reloaded") && line.contains("there is no store nobody"),
        "{line}"
    );
    fake.state.lock().unwrap().refuse = None;
    write(folder.path(), &config("\nlease_seconds = 'long'"));
    let line = reload();
    assert!(line.contains("translator.toml, line 4, key `translator.lease_seconds`"), "{line}");
    assert_eq!(opened().len(), 2);
    assert!(translator.child.try_wait().unwrap().is_none(), "it goes on");
    translator.signal(Signal::TERM);
    assert!(translator.child.wait().unwrap().success());
}

/// Writes a certificate of `t.example`, which an authority signed, that lasts until the year, and its key.
fn certificate(folder: &Path, authority: &rcgen::Issuer<'_, rcgen::KeyPair>, name: &str, until: i32) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["t.example".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    std::fs::write(folder.join(format!("{name}.crt")), params.signed_by(&key, authority).unwrap().pem())
        .unwrap();
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

#[test]
fn the_end_of_the_certificate_that_is_exported_is_that_of_the_one_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(folder.join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    let authority = rcgen::Issuer::new(params, key);
    certificate(folder, &authority, "collector", 2090);
    certificate(folder, &authority, "mine", 2091);
    let at = |name: &str| folder.join(name);
    let files =
        ServerFiles { cert: &at("collector.crt"), key: &at("collector.key"), client_ca: &at("ca.crt") };
    let (fake, _nic) = Fake::start_with_tls(&files);
    let config = |more: &str| {
        format!(
            "collector = '{0}'\nmetrics = '127.0.0.1:0'\n{more}\n\
             [translator.tls]\nca = '{1}/ca.crt'\ncert = '{1}/mine.crt'\nkey = '{1}/mine.key'\ndomain = 't.example'\n",
            fake.url(),
            folder.display()
        )
    };
    let translator = start(folder, &config(""), "127.0.0.64");
    let exported = || -> u64 {
        // A page is cached for a second.
        std::thread::sleep(Duration::from_millis(1100));
        let mut stream = TcpStream::connect(translator.said("metrics")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let name = "\ndta_translator_certificate_end_timestamp_seconds ";
        let (_, rest) = page.split_once(name).unwrap_or_else(|| panic!("{page}"));
        rest.split_whitespace().next().unwrap().parse::<f64>().unwrap() as u64
    };
    let end = |year: i32| rcgen::date_time_ymd(year, 1, 1).unix_timestamp() as u64;
    assert_eq!(exported(), end(2091));
    // Another certificate, and an invalid configuration: the earlier one stays in use.
    certificate(folder, &authority, "mine", 2092);
    write(folder, &config("version0 = { key-write = 'nobody' }"));
    translator.signal(Signal::HUP);
    assert!(translator.logs("configuration not reloaded").contains("nothing has changed"));
    translator.message_about("RELOADING=1");
    translator.message_about("READY=1");
    assert_eq!(exported(), end(2091));
    write(folder, &config(""));
    translator.signal(Signal::HUP);
    assert!(translator.logs("configuration reloaded").contains("only the TLS files"));
    translator.message_about("RELOADING=1");
    translator.message_about("READY=1");
    assert_eq!(exported(), end(2092));
}

#[test]
fn stores_that_a_collector_gets_are_asked_for_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, _nic) = Fake::start();
    fake.state.lock().unwrap().offered = 2;
    let config = format!("collector = '{}'", fake.url());
    let translator = start(folder.path(), &config, "127.0.0.63");
    fake.state.lock().unwrap().offered = 3;
    translator.logs("the collector has more stores: requesting them");
    let until = Instant::now() + PATIENCE;
    while fake.state.lock().unwrap().opened.len() < 2 {
        assert!(Instant::now() < until, "it was not opened again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!fake.state.lock().unwrap().opened[1].fresh);
    // One that is refused continues with what it has.
    {
        // Both at once: no renewal may come between.
        let mut state = fake.state.lock().unwrap();
        state.offered = 4;
        state.refuse = Some("another session has the lists".into());
    }
    translator.logs("continues without them");
    assert!(translator.logs_within("reopening the session", Duration::from_secs(3)).is_none());
}

#[test]
fn logs_are_json_where_that_is_asked_for() {
    let ran = Command::new(env!("CARGO_BIN_EXE_dta-translator"))
        .args(["--log-format", "json", "--config", "none", "run", "--source", "127.0.0.64"])
        .args(["--listen", "127.0.0.1:0", "--source-port", "0", "--control", "unix:/nonexistent/socket"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1));
    let log = String::from_utf8_lossy(&ran.stderr);
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).expect("JSON");
    assert_eq!(first["message"], "no configuration file: using the defaults");
    assert_eq!(first["level"], "INFO");
}
