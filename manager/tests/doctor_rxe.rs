//! `dta-manager doctor` on the kernel's soft-RoCE: each reason why nothing lands is brought about,
//! and has to be named.
//!
//! Needs `rxe0` on `vrx` (10.9.0.1), whose other end `vtx` is this test's:
//! `testbed/rxe-guest/run-tests` runs it in a guest that has them. This test plays the switch, with
//! a session that it opened by itself, so that nobody mends what it breaks.
#![cfg(feature = "verbs")]

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dta_collector::config::{Config, MemoryBacking};
use dta_collector::server::RunningCollector;
use dta_link::{Link, PacketConfig, PacketLink};
use dta_proto::batch::PacketBatch;
use dta_proto::control::{self, Purpose};
use dta_proto::wire::ethernet::Mac;
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{self, BthFields, Psn, RoceRepr, Transport};
use dta_rpc::ClientOptions;
use dta_rpc::collector::RemoteCollector;

const COLLECTOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const SWITCH: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const COLLECTOR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const SWITCH_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// A frame to send again and again.
struct Frame(Vec<u8>);

impl Frame {
    fn new(to: Ipv4Addr, packet: &RoceRepr<'_>) -> Self {
        let route = FrameRoute {
            ethernet: Some((COLLECTOR_MAC, SWITCH_MAC)),
            ..FrameRoute::new(SWITCH, to, packet.bth.dest_qp)
        };
        let mut bytes = vec![0; route.buffer_len(packet)];
        route.write_frame(packet, &mut bytes).unwrap();
        Self(bytes)
    }

    /// With one bit of the payload flipped on the way.
    fn damaged(mut self) -> Self {
        let at = self.0.len() - roce::ICRC_LEN - 1;
        self.0[at] ^= 0x10;
        self
    }
}

fn ip(arguments: &str) {
    let ran = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is there");
    assert!(ran.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ran.stderr));
}

struct Ground {
    server: RunningCollector,
    client: RemoteCollector,
    address: String,
}

impl Ground {
    async fn new() -> Self {
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            memory: MemoryBacking::Anonymous,
            device: "rxe0".into(),
            ..Config::default()
        };
        let server = RunningCollector::start(&config).await.expect("a collector on rxe0");
        let address = server.listen.to_string();
        let client = RemoteCollector::connect(&ClientOptions::without_tls(&address)).await.unwrap();
        Self { server, client, address }
    }

    /// A session with new queue pairs.
    async fn session(&mut self) -> control::Session {
        let _ = self.client.end_session("switch").await;
        let pair = |purpose: Purpose, qpn| control::RequesterQueuePair {
            purpose: purpose.into(),
            qpn,
            start_psn: 100,
        };
        let request = control::OpenSessionRequest {
            name: "switch".into(),
            translator: Some(control::Endpoint {
                ip: SWITCH.to_string(),
                mac: SWITCH_MAC.0.to_vec(),
                ..Default::default()
            }),
            queue_pairs: vec![pair(Purpose::Write, 0x123), pair(Purpose::Atomic, 0x124)],
            ..Default::default()
        };
        self.client.open_session(request).await.expect("a session")
    }

    /// What doctor finds while the frame is sent again and again.
    async fn doctor(&self, frame: Option<Frame>) -> Vec<serde_json::Value> {
        let address = self.address.clone();
        let done = AtomicBool::new(false);
        tokio::task::block_in_place(|| {
            std::thread::scope(|scope| {
                if let Some(frame) = &frame {
                    scope.spawn(|| send_until(&done, frame));
                }
                let ran = Command::new(env!("CARGO_BIN_EXE_dta-manager"))
                    .args(["doctor", "--collector", &address, "--seconds", "2", "--output", "json"])
                    .output()
                    .expect("dta-manager runs");
                done.store(true, Ordering::Release);
                let text = String::from_utf8_lossy(&ran.stdout);
                let findings: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_else(|error| {
                    panic!("{error}: {text}\n{}", String::from_utf8_lossy(&ran.stderr))
                });
                let problems = findings.iter().any(|finding| finding["level"] == "problem");
                assert_eq!(ran.status.code(), Some(if problems { 4 } else { 0 }), "{findings:#?}");
                findings
            })
        })
    }

    async fn cause(&self, frame: Option<Frame>) -> (String, String, String) {
        let findings = self.doctor(frame).await;
        let text = |field: &str| findings[0][field].as_str().unwrap_or_default().to_owned();
        println!("{}: {}\n  -> {}", text("check"), text("found"), text("advice"));
        assert_eq!(findings[0]["level"], "problem", "{findings:#?}");
        let likely = findings.iter().filter(|finding| finding["level"] == "problem").count();
        assert_eq!(likely, 1, "{findings:#?}");
        (text("check"), text("found"), text("advice"))
    }
}

fn send_until(done: &AtomicBool, frame: &Frame) {
    let mut link = PacketLink::open(&PacketConfig::new("vtx", [])).expect("raw frames on vtx");
    let mut batch = PacketBatch::new(1);
    while !done.load(Ordering::Acquire) {
        batch.push_frame(&frame.0, 0).unwrap();
        assert_eq!(link.send(&mut batch).unwrap(), 1);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pair(session: &control::Session, purpose: Purpose) -> u32 {
    session.queue_pairs.iter().find(|pair| pair.purpose() == purpose).unwrap().qpn
}

fn region<'a>(session: &'a control::Session, store: &str) -> &'a control::Region {
    session.regions.iter().find(|r| r.store.as_ref().is_some_and(|s| s.name == store)).unwrap()
}

fn write(session: &control::Session, to: Ipv4Addr) -> Frame {
    let flows = region(session, "flows");
    let place = BthFields { dest_qp: pair(session, Purpose::Write), psn: Psn::new(100), ack_req: false };
    Frame::new(to, &RoceRepr::write(Transport::Uc, place, flows.address, flows.rkey, &[7; 16], None))
}

fn add(session: &control::Session, rkey: u32) -> Frame {
    let place = BthFields { dest_qp: pair(session, Purpose::Atomic), psn: Psn::new(100), ack_req: true };
    Frame::new(COLLECTOR, &RoceRepr::fetch_add(place, region(session, "bytes").address, rkey, 1))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
async fn each_cause_is_named() {
    let mut ground = Ground::new().await;

    // No peer yet.
    assert_eq!(ground.cause(None).await.0, "session");

    // Healthy: writes land.
    let session = ground.session().await;
    let findings = ground.doctor(Some(write(&session, COLLECTOR))).await;
    assert!(findings.iter().all(|finding| finding["level"] != "problem"), "{findings:#?}");
    let found =
        |check: &str| findings.iter().find(|f| f["check"] == check).unwrap()["found"].as_str().unwrap();
    assert!(found("GID").contains("10.9.0.1 is rxe0's"), "{findings:#?}");
    assert!(found("iCRC").starts_with("right in all frames"), "{findings:#?}");
    let mut landed = [0; 16];
    ground.server.stores().get("flows").unwrap().region.read(0, &mut landed).unwrap();
    assert_eq!(landed, [7; 16]);

    // The switch sends to an address that is not the GID's.
    let (check, finding, _) = ground.cause(Some(write(&session, Ipv4Addr::new(10, 9, 0, 7)))).await;
    assert!(
        check == "wrong GID" && finding.contains("went to 10.9.0.7, which is not a GID of rxe0"),
        "{finding}"
    );

    // Damaged frames, which rxe does not count.
    let (check, finding, _) = ground.cause(Some(write(&session, COLLECTOR).damaged())).await;
    assert!(check == "iCRC drops" && finding.contains("took 0 (rcvd_pkts)"), "{finding}");

    // A queue pair in ERROR: an atomic with a key that is none.
    let bytes = region(&session, "bytes").rkey;
    let (check, finding, _) = ground.cause(Some(add(&session, bytes ^ 0x5a))).await;
    assert!(check == "queue pair in ERROR" && finding.contains("(RC)"), "{finding}");

    // The switch's Ethernet address cannot be resolved, so answers cannot be sent. The frames are right.
    let session = ground.session().await;
    ip("neigh del 10.9.0.2 dev vrx");
    let (check, finding, advice) = ground.cause(Some(add(&session, region(&session, "bytes").rkey))).await;
    assert!(check == "no neighbour entry" && finding.contains("nobody answers"), "{finding}");
    // The advice, carried out, helps.
    let cure = advice.split("add an entry: ip ").nth(1).expect("a command");
    ip(&cure.replace("MAC", "02:00:00:00:00:02"));
    let session = ground.session().await;
    let findings = ground.doctor(Some(write(&session, COLLECTOR))).await;
    assert!(findings.iter().all(|finding| finding["level"] != "problem"), "{findings:#?}");

    // The collector's address is taken away from under it.
    ip("addr add 10.8.0.3/24 dev vrx");
    ip("addr del 10.9.0.1/24 dev vrx");
    ip("route add 10.9.0.0/24 dev vrx");
    let findings = ground.doctor(None).await;
    assert_eq!((&findings[0]["check"], &findings[0]["level"]), (&"wrong GID".into(), &"problem".into()));
    assert!(findings[0]["found"].as_str().unwrap().contains("rxe0 no longer has that GID"), "{findings:#?}");
    println!("{}", findings[0]["found"]);
    // As it was, for the next test.
    ip("addr del 10.8.0.3/24 dev vrx");
    ip("addr add 10.9.0.1/24 dev vrx");
}

#[test]
#[ignore = "needs rxe0: run by testbed/rxe-guest/run-tests"]
fn the_machine_is_described() {
    let ran = Command::new(env!("CARGO_BIN_EXE_dta-manager"))
        .args(["doctor", "--output", "json"])
        .output()
        .unwrap();
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&ran.stdout).expect("JSON");
    let found = |check: &str| {
        let one = findings.iter().find(|finding| finding["check"] == check);
        let one = one.unwrap_or_else(|| panic!("nothing on {check}: {findings:#?}"));
        (one["level"].as_str().unwrap().to_owned(), one["found"].as_str().unwrap().to_owned())
    };
    assert_eq!(found("RDMA devices"), ("ok".into(), "rxe0: port 1 4: ACTIVE, Ethernet".into()));
    let (level, gids) = found("GIDs");
    assert!(
        level == "ok"
            && gids.contains("10.9.0.1 (RoCE v2); with --device rxe0, collector and translator take index"),
        "{gids}"
    );
    assert!(found("RDMA counters").1.contains("rcvd_pkts"), "{findings:#?}");
    assert_eq!(found("verbs").1, "rxe0: /dev/infiniband/uverbs0 can be opened");
    assert_eq!(found("soft-RoCE"), ("ok".into(), "rdma_rxe is in the kernel".into()));
}
