//! `dta-manager doctor --collector` on the software NIC: what keeps reports from landing is named;
//! no privileges are needed.

mod common;

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dta_collector::config::{Config, MemoryBacking};
use dta_collector::server::RunningCollector;
use dta_link::{Link, UdpConfig, UdpLink};
use dta_proto::batch::PacketBatch;
use dta_proto::control::{self, Purpose};
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{BthFields, Psn, RoceRepr, Transport};
use dta_rpc::ClientOptions;
use dta_rpc::collector::RemoteCollector;
use serde_json::Value;

use common::daemon::Daemon;
use common::manager;

async fn collector() -> (RunningCollector, RemoteCollector) {
    let mut config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        memory: MemoryBacking::Anonymous,
        ..Config::default()
    };
    config.soft.port = 0;
    let server = RunningCollector::start(&config).await.unwrap();
    let client = RemoteCollector::connect(&ClientOptions::without_tls(server.listen)).await.unwrap();
    (server, client)
}

/// A session of this test's, and where its frames leave.
async fn session(client: &mut RemoteCollector, link: &UdpLink) -> control::Session {
    let pair =
        |purpose: Purpose, qpn| control::RequesterQueuePair { purpose: purpose.into(), qpn, start_psn: 0 };
    let request = control::OpenSessionRequest {
        name: "switch".into(),
        translator: Some(control::Endpoint {
            ip: link.local_addr().ip().to_string(),
            port: link.local_addr().port().into(),
            ..Default::default()
        }),
        queue_pairs: vec![pair(Purpose::Write, 50), pair(Purpose::Atomic, 51)],
        ..Default::default()
    };
    client.open_session(request).await.unwrap()
}

/// A WRITE into the first store, with the session's key or another.
fn write(session: &control::Session, link: &UdpLink, rkey: impl Fn(u32) -> u32) -> Vec<u8> {
    let (to, flows) = (session.collector.as_ref().unwrap(), &session.regions[0]);
    let qpn = session.queue_pairs.iter().find(|pair| pair.purpose() == Purpose::Write).unwrap().qpn;
    let route = FrameRoute {
        src_port: link.local_addr().port(),
        dst_port: to.port as u16,
        ..FrameRoute::new(*link.local_addr().ip(), to.ip.parse().unwrap(), qpn)
    };
    let place = BthFields { dest_qp: qpn, psn: Psn::new(0), ack_req: false };
    let packet = RoceRepr::write(Transport::Uc, place, flows.address, rkey(flows.rkey), &[7; 16], None);
    let mut bytes = vec![0; route.buffer_len(&packet)];
    route.write_frame(&packet, &mut bytes).unwrap();
    bytes
}

/// Runs doctor, while the packet is sent again and again. Returns its exit status and findings.
fn doctor(address: &str, more: &[&str], sent: Option<(&mut UdpLink, &[u8])>) -> (Option<i32>, Vec<Value>) {
    let done = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        if let Some((link, packet)) = sent {
            let done = &done;
            scope.spawn(move || {
                let mut batch = PacketBatch::new(1);
                while !done.load(Ordering::Acquire) {
                    batch.push(packet, 0).unwrap();
                    link.send(&mut batch).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        let ran = Command::new(env!("CARGO_BIN_EXE_dta-manager"))
            .args(["doctor", "--collector", address, "--seconds", "1", "--output", "json"])
            .args(more)
            .output();
        done.store(true, Ordering::Release);
        ran.unwrap()
    });
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    (ran.status.code(), serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {error}")))
}

#[test]
fn of_the_machine_there_is_much_to_say() {
    let ran = manager(&["doctor", "--output", "json"]);
    let findings: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(findings.len() >= 10, "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn causes_are_named_on_the_software_nic() {
    let (server, mut client) = collector().await;
    let address = server.listen.to_string();
    let (status, findings) = doctor(&address, &[], None);
    assert_eq!((status, &findings[0]["check"]), (Some(4), &"session".into()));

    let mut link =
        UdpLink::open(&UdpConfig::for_roce_frames((Ipv4Addr::new(127, 0, 0, 2), 0).into())).unwrap();
    let session = session(&mut client, &link).await;
    let good = write(&session, &link, |rkey| rkey);
    let (status, findings) = doctor(&address, &["--session", "switch"], Some((&mut link, &good)));
    assert_eq!(status, Some(0), "{findings:#?}");
    let nic = findings.iter().find(|finding| finding["check"] == "NIC").unwrap();
    assert!(nic["found"].as_str().unwrap().starts_with("soft took "), "{nic}");

    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let (status, findings) = doctor(&address, &[], Some((&mut link, &damaged)));
    assert_eq!((status, &findings[0]["check"]), (Some(4), &"iCRC drops".into()), "{findings:#?}");

    let wrong_key = write(&session, &link, |rkey| rkey ^ 0x10_0000);
    let (status, findings) = doctor(&address, &[], Some((&mut link, &wrong_key)));
    assert_eq!(status, Some(4));
    assert!(findings[0]["found"].as_str().unwrap().ends_with("`dropped.rkey`"), "{findings:#?}");

    let (status, findings) = doctor(&address, &["--session", "other"], None);
    assert_eq!(status, Some(4));
    assert!(findings[0]["found"].as_str().unwrap().contains("there are switch"), "{findings:#?}");
    server.shut_down().await.unwrap();
}

#[test]
#[ignore = "needs root: frames are counted with a packet socket"]
fn frames_of_the_second_before_are_not_missed() {
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("memory").display().to_string();
    let collector =
        ["__collector", "serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory", &memory];
    let collector = Daemon::start(&collector);
    let address = collector.said("listen");
    let translator = ["__translator", "run", "--ready", "--collector", address, "--listen", "127.0.0.1:0"];
    let more = ["--control", "127.0.0.1:0", "--source", "127.0.0.77", "--source-port", "0"];
    let translator = Daemon::start(&[&translator[..], &more].concat());
    // The translator may report its counters at any time within a second.
    for look in 0..4 {
        let sent = manager(
            &[
                ["__reporter", "send", "key-write", "--store", "flows", "--key", "01", "--value", "1"]
                    .as_slice(),
                &["--count", "500", "--to", translator.said("listen"), "--collector", address],
            ]
            .concat(),
        );
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
        let landed = || {
            let stats = manager(&["__collector", "stats", "-o", "json", "--collector", address]);
            let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
            let nic = stats["nodes"].as_array().unwrap().iter().find(|node| node["stage"] == "nic").unwrap();
            // Two copies of each.
            nic["counters"]["executed.write"].as_u64() >= Some(1000 * (look + 1))
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !landed() {
            assert!(Instant::now() < until, "not all of them land");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(50 * look));
        let (status, findings) = doctor(address, &[], None);
        assert_eq!(status, Some(0), "{findings:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: frames are counted with a packet socket"]
async fn counters_that_come_late_are_no_lost_frames() {
    let (server, mut client) = collector().await;
    let address = server.listen.to_string();
    let mut link =
        UdpLink::open(&UdpConfig::for_roce_frames((Ipv4Addr::new(127, 0, 0, 3), 0).into())).unwrap();
    let session = session(&mut client, &link).await;
    let renewal = |frames: u64| {
        let counters = ["received", "accepted", "emitted", "operations", "frames"];
        let counters = counters.map(|name| control::Counter { name: name.into(), value: frames });
        let node = "translator/switch".into();
        let statistics =
            vec![control::NodeStatistics { node, counters: counters.into(), ..Default::default() }];
        let (name, generation) = ("switch".into(), session.generation);
        control::RenewSessionRequest { name, generation, statistics, ..Default::default() }
    };
    client.renew_session(renewal(0)).await.unwrap();
    let mut batch = PacketBatch::new(1);
    batch.push(&write(&session, &link, |rkey| rkey), 0).unwrap();
    link.send(&mut batch).unwrap();
    let look = tokio::task::spawn_blocking(move || doctor(&address, &[], None));
    while !look.is_finished() {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        client.renew_session(renewal(1)).await.unwrap();
    }
    let (status, findings) = look.await.unwrap();
    assert_eq!(status, Some(0), "{findings:#?}");
    server.shut_down().await.unwrap();
}

#[test]
fn a_collector_that_is_not_there_is_named_in_the_error() {
    let ran = Command::new(env!("CARGO_BIN_EXE_dta-manager"))
        .args(["doctor", "--collector", "127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1));
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(error.contains("127.0.0.1:1") && error.contains("dta-collector serve"), "{error}");
}
