//! Finds each cause, made up in a file tree and a collector's answers, and finds nothing where all is well.

use std::net::Ipv4Addr;
use std::time::Duration;

use dta_proto::control::{
    Counter, Endpoint, NodeStatistics, Purpose, QueuePairStatus, SessionInfo, Transport,
};
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{self, BthFields, Psn, RoceRepr};

use super::super::rdma::tree;
use super::super::test_machine::TestMachine;
use super::super::{Finding, Level};
use super::evidence::{Evidence, HostEvidence, Nodes};
use super::{FrameCounts, Neighbours, find_causes};

const COLLECTOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const TRANSLATOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const WRITES: u32 = 0x11;
const ATOMICS: u32 = 0x12;

const ARP: &str = "IP address  HW type  Flags  HW address  Mask  Device\n\
    10.9.0.2  0x1  0x2  02:00:00:00:00:02  *  vrx\n";
#[cfg(target_endian = "little")]
const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask\n\
    vrx 0000090A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
#[cfg(target_endian = "big")]
const ROUTES: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask\n\
    vrx 0A090000 00000000 0001 0 0 0 FFFFFF00 0 0 0\n";

fn pair(qpn: u32, purpose: Purpose, transport: Transport) -> QueuePairStatus {
    QueuePairStatus {
        qpn,
        purpose: purpose.into(),
        transport: transport.into(),
        state: "rtr".into(),
        expected_psn: 100,
        peer_qpn: 0x123,
        counters: Vec::new(),
    }
}

fn session() -> SessionInfo {
    SessionInfo {
        name: "tor1".into(),
        generation: 4,
        translator: Some(Endpoint {
            ip: TRANSLATOR.to_string(),
            gid: TRANSLATOR.to_ipv6_mapped().octets().to_vec(),
            ..Endpoint::default()
        }),
        queue_pairs: vec![
            pair(WRITES, Purpose::Write, Transport::Uc),
            pair(ATOMICS, Purpose::Atomic, Transport::Rc),
        ],
        stores: vec!["flows".into()],
        expires_in_seconds: 20.0,
        owner: String::new(),
        frames_by: String::new(),
    }
}

fn nodes(nic: &str, received: u64, nic_counters: &[(&str, u64)], translator: &[(&str, u64)]) -> Nodes {
    let node = |name: &str, session: &str, counters: &[(&str, u64)]| NodeStatistics {
        node: name.into(),
        session: session.into(),
        age_seconds: 2.0,
        counters: counters
            .iter()
            .map(|(name, value)| Counter { name: (*name).into(), value: *value })
            .collect(),
        ..NodeStatistics::default()
    };
    let mut of_nic = vec![("received", received)];
    of_nic.extend(nic_counters);
    Nodes::new(vec![
        node("collector", "", &[("session.refused", 0)]),
        node(&format!("nic/{nic}"), "", &of_nic),
        node("translator/tor1", "tor1", translator),
    ])
}

const TRANSLATED: [(&str, u64); 4] = [("received", 50), ("accepted", 50), ("emitted", 50), ("frames", 100)];

/// The evidence of a healthy collector on `rxe0`: 20 frames came and were taken.
struct Scene {
    tree: TestMachine,
    evidence: Evidence,
    frames: FrameCounts,
}

impl Scene {
    fn rxe() -> Self {
        let tree = TestMachine::with_rxe();
        tree.add(&[("proc/net/arp", ARP), ("proc/net/route", ROUTES)]);
        let before = tree::list_devices(tree.root_path()).pop();
        let session = session();
        let mut scene = Self {
            evidence: Evidence {
                device: "rxe0".into(),
                collector: COLLECTOR.into(),
                port: roce::PORT,
                asked: None,
                all_sessions: vec![session.name.clone()],
                queue_pairs: session.queue_pairs.clone(),
                sessions: vec![session],
                window: Duration::from_secs(3),
                before: nodes("rxe0", 100, &[("queue_pairs.errors", 0)], &TRANSLATED),
                after: nodes("rxe0", 120, &[("queue_pairs.errors", 0)], &TRANSLATED),
                rings: Vec::new(),
                host: Some(HostEvidence {
                    interface: Some("vrx".into()),
                    device_before: before,
                    device_after: None,
                    datagrams: Some(25),
                    neighbours: Neighbours::default(),
                    frames: Ok(FrameCounts::default()),
                }),
            },
            tree,
            frames: FrameCounts::default(),
        };
        scene.send(20, TRANSLATOR, COLLECTOR, WRITES, false);
        scene.take(120);
        scene
    }

    fn soft() -> Self {
        let mut scene = Self::rxe();
        scene.evidence.device = "soft".into();
        scene.evidence.before = nodes("soft", 100, &[], &TRANSLATED);
        scene.evidence.after = nodes("soft", 120, &[("dropped.icrc", 0)], &TRANSLATED);
        scene
    }

    /// Frames that reach the port.
    fn send(&mut self, count: u64, from: Ipv4Addr, to: Ipv4Addr, qpn: u32, damaged: bool) {
        let place = BthFields { dest_qp: qpn, psn: Psn::new(1), ack_req: false };
        let write = RoceRepr::write(roce::Transport::Uc, place, 64, 5, &[7; 16], None);
        let mut bytes = [0; 200];
        let len = FrameRoute::new(from, to, qpn).write_frame(&write, &mut bytes).unwrap();
        bytes[len - 1] ^= u8::from(damaged);
        (0..count).for_each(|_| self.frames.count_packet(&bytes[..len], true));
    }

    /// What `rcvd_pkts` is at the end.
    fn take(&self, rcvd_pkts: u64) {
        let path = "sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
        self.tree.add(&[(path, &rcvd_pkts.to_string())]);
    }

    fn host(&mut self) -> &mut HostEvidence {
        self.evidence.host.as_mut().unwrap()
    }

    fn findings(mut self) -> Vec<Finding> {
        let root = self.tree.root_path().to_owned();
        let frames = self.frames.clone();
        let soft = self.evidence.is_soft_nic();
        let host = self.host();
        host.device_after = tree::list_devices(&root).pop().filter(|_| !soft);
        host.neighbours = Neighbours::read(&root);
        if host.frames.is_ok() {
            host.frames = Ok(frames);
        }
        find_causes(&self.evidence)
    }

    /// The likeliest cause, which must be the only one.
    fn cause(self) -> Finding {
        let findings = self.findings();
        let problems: Vec<_> = findings.iter().filter(|f| f.level == Level::Problem).collect();
        assert_eq!(problems.len(), 1, "{findings:#?}");
        assert_eq!(&findings[0], problems[0], "the likely cause comes first");
        assert!(findings.iter().all(|f| f.level == Level::Ok || f.advice.is_some()), "{findings:#?}");
        problems[0].clone()
    }
}

#[test]
fn what_is_healthy_is_called_so() {
    for scene in [Scene::rxe(), Scene::soft()] {
        let findings = scene.findings();
        assert!(findings.iter().all(|f| f.level == Level::Ok), "{findings:#?}");
        let said = |check: &str| findings.iter().find(|f| f.check == check).unwrap().found.clone();
        assert_eq!(said("frames"), "20 frames in 3 s to UDP port 4791 on vrx");
        assert!(said("queue pairs").contains("queue pair 0x000011 (UC) expects PSN 100"));
        assert!(said("NIC").contains("took 20 frames"));
    }
}

#[test]
fn what_was_dropped_long_ago_is_reported_with_its_reasons() {
    let translated = [
        ("received", 10_021),
        ("accepted", 10_012),
        ("emitted", 10_012),
        ("frames", 20_024),
        ("dropped.unknown_store", 6),
        ("dropped.value_length", 3),
    ];
    let mut scene = Scene::soft();
    scene.evidence.before = nodes("soft", 100, &[], &translated);
    scene.evidence.after = nodes("soft", 120, &[("dropped.icrc", 0)], &translated);
    let first = scene.findings().remove(0);
    assert_eq!((first.level, first.check), (Level::Note, "translator"));
    assert_eq!(
        first.found,
        "tor1: 10,021 reports received and 10,012 emitted since it started to count: 6 dropped.unknown_store (none of them now), \
         3 dropped.value_length (none of them now)"
    );
    assert!(first.advice.unwrap().contains("`dta-collector stores` lists stores and their ids"));

    // What still rises is reported as such; repeats are no loss.
    let mut scene = Scene::soft();
    scene.evidence.before = nodes("soft", 100, &[], &TRANSLATED);
    let now =
        [&TRANSLATED[..], &[("dropped.field", 7), ("lost.queue_full", 2), ("dropped.duplicate", 9)]].concat();
    scene.evidence.after = nodes("soft", 120, &[("dropped.icrc", 0)], &now);
    let first = scene.findings().remove(0);
    assert!(first.found.ends_with("7 dropped.field (7 in 3 s), 2 lost.queue_full (2 in 3 s)"), "{first:?}");
}

#[test]
fn no_session_or_none_of_that_name() {
    let mut scene = Scene::rxe();
    scene.evidence.sessions.clear();
    scene.evidence.asked = Some("tor9".into());
    let cause = scene.cause();
    assert_eq!(cause.check, "session");
    assert!(cause.found.contains("no session \"tor9\"; there are tor1"), "{cause:?}");
    let mut scene = Scene::rxe();
    scene.evidence.sessions[0].queue_pairs.clear();
    assert!(scene.cause().found.contains("has no queue pairs"));
}

#[test]
fn frames_to_an_address_that_is_not_the_gids() {
    let mut scene = Scene::rxe();
    scene.send(9, TRANSLATOR, Ipv4Addr::new(10, 9, 0, 7), WRITES, false);
    let cause = scene.cause();
    assert_eq!(cause.check, "wrong GID");
    assert!(
        cause.found.contains("9 frames in 3 s from 10.9.0.2 went to 10.9.0.7, which is not a GID of rxe0")
    );
    assert!(cause.advice.unwrap().contains("--roce-address"));

    // The device has that address too, but not for these queue pairs.
    let mut scene = Scene::rxe();
    scene.tree.add_gid(2, "0000:0000:0000:0000:0000:ffff:0a09:0007", "RoCE v2");
    scene.send(9, TRANSLATOR, Ipv4Addr::new(10, 9, 0, 7), WRITES, false);
    assert!(scene.cause().found.contains("the GID at index 2, not the collector's"));

    // Another program's frames, to an address that the device has.
    let mut scene = Scene::rxe();
    scene.tree.add_gid(2, "0000:0000:0000:0000:0000:ffff:0a09:0007", "RoCE v2");
    scene.send(9, TRANSLATOR, Ipv4Addr::new(10, 9, 0, 7), 0x999, false);
    assert!(scene.findings().iter().all(|f| f.level == Level::Ok));
    // Frames between other hosts are not ours.
    let mut scene = Scene::rxe();
    scene.send(9, Ipv4Addr::new(10, 9, 0, 50), Ipv4Addr::new(10, 9, 0, 60), 0x999, false);
    assert!(scene.findings().iter().all(|f| f.level == Level::Ok));

    let mut scene = Scene::soft();
    scene.evidence.after = nodes("soft", 120, &[("dropped.destination", 5)], &TRANSLATED);
    assert_eq!(scene.cause().check, "wrong GID");
}

#[test]
fn a_gid_that_the_device_has_no_longer() {
    let scene = Scene::rxe();
    for file in ["gids/1", "gid_attrs/types/1", "gid_attrs/ndevs/1"] {
        scene.tree.remove(&format!("sys/class/infiniband/rxe0/ports/1/{file}"));
    }
    let cause = scene.cause();
    assert_eq!(cause.check, "wrong GID");
    assert!(
        cause.found.contains("no longer has that GID; it has port 1 index 0: fe80::ff:fe00:1"),
        "{cause:?}"
    );
    let scene = Scene::rxe();
    scene.tree.remove("sys/class/infiniband/rxe0");
    assert!(scene.cause().found.contains("rxe0 is gone"));
    // Only version 1 of that address is no GID for us.
    let scene = Scene::rxe();
    scene.tree.add_gid(1, "0000:0000:0000:0000:0000:ffff:0a09:0001", "IB/RoCE v1");
    assert_eq!(scene.cause().check, "wrong GID");
}

#[test]
fn a_queue_pair_in_error() {
    let mut scene = Scene::rxe();
    scene.evidence.sessions[0].queue_pairs[1].state = "error".into();
    let cause = scene.cause();
    assert_eq!(cause.check, "queue pair in ERROR");
    assert!(cause.found.contains("queue pair 0x000012 (RC) is in state error"), "{cause:?}");
    assert!(cause.advice.unwrap().contains("dta-translator setup"));

    // It was rebuilt before it could be seen.
    let mut scene = Scene::rxe();
    scene.evidence.after = nodes("rxe0", 120, &[("queue_pairs.errors", 2)], &TRANSLATED);
    assert!(scene.cause().found.contains("2 queue pairs fell into ERROR in 3 s, 2 in all"));
    // An old error is only worth a note.
    let mut scene = Scene::rxe();
    scene.evidence.before = nodes("rxe0", 100, &[("queue_pairs.errors", 2)], &TRANSLATED);
    scene.evidence.after = nodes("rxe0", 120, &[("queue_pairs.errors", 2)], &TRANSLATED);
    assert_eq!(scene.findings()[0].level, Level::Note);
}

#[test]
fn frames_to_a_queue_pair_that_is_none_or_from_a_stranger() {
    let mut scene = Scene::rxe();
    scene.frames = FrameCounts::default();
    scene.send(4, TRANSLATOR, COLLECTOR, 0x77, false);
    let cause = scene.cause();
    assert_eq!(cause.check, "unknown queue pair");
    assert!(cause.found.ends_with("4 to 0x000077"), "{cause:?}");
    // Next to valid ones they may be another program's.
    let mut scene = Scene::rxe();
    scene.send(4, TRANSLATOR, COLLECTOR, 0x77, false);
    let first = scene.findings().remove(0);
    assert_eq!((first.level, first.check), (Level::Note, "unknown queue pair"));

    let mut scene = Scene::rxe();
    scene.send(4, Ipv4Addr::new(10, 9, 0, 9), COLLECTOR, WRITES, false);
    let cause = scene.cause();
    assert_eq!(cause.check, "wrong sender");
    assert!(cause.found.ends_with("4 from 10.9.0.9 to 0x000011"), "{cause:?}");

    for (counter, check) in
        [("dropped.unknown_queue_pair", "unknown queue pair"), ("dropped.peer", "wrong sender")]
    {
        let mut scene = Scene::soft();
        scene.evidence.after = nodes("soft", 120, &[(counter, 5)], &TRANSLATED);
        assert_eq!(scene.cause().check, check);
    }
}

#[test]
fn nobody_answers_for_the_translator() {
    let silent = ARP.replace("0x2", "0x0");
    let scene = Scene::rxe();
    scene.tree.add(&[("proc/net/arp", &silent)]);
    let cause = scene.cause();
    assert_eq!(cause.check, "no neighbour entry");
    assert!(
        cause.advice.unwrap().contains("ip neigh replace 10.9.0.2 lladdr MAC nud permanent dev vrx"),
        "with a cure"
    );
    // Without RC no answer is needed until the queue pair is rebuilt.
    let mut scene = Scene::rxe();
    scene.tree.add(&[("proc/net/arp", &silent)]);
    scene.evidence.sessions[0].queue_pairs.truncate(1);
    assert_eq!(scene.findings()[0].level, Level::Note);
    let scene = Scene::rxe();
    scene.tree.remove("proc/net/route");
    assert!(scene.cause().found.contains("no route"));

    // The other way round: the translator cannot resolve the collector's address, and says so.
    let mut scene = Scene::rxe();
    let mut counters = TRANSLATED.to_vec();
    counters.push(("link.roce.dropped.unsent-unreachable", 70));
    scene.evidence.after = nodes("rxe0", 120, &[], &counters);
    let cause = scene.cause();
    assert_eq!(cause.check, "no neighbour entry");
    assert!(cause.found.contains("the translator could not send 70 frames: nobody answered for 10.9.0.1"));
    counters.push(("link.roce.sent", 9000));
    let mut scene = Scene::rxe();
    scene.evidence.before = nodes("rxe0", 100, &[], &counters);
    scene.evidence.after = nodes("rxe0", 120, &[], &counters);
    assert_eq!(scene.findings()[0].level, Level::Note, "some, long ago");
}

#[test]
fn damaged_frames_that_rxe_does_not_count() {
    let mut scene = Scene::rxe();
    scene.send(30, TRANSLATOR, COLLECTOR, WRITES, true);
    let cause = scene.cause();
    assert_eq!(cause.check, "iCRC drops");
    assert_eq!(
        cause.found,
        "the iCRC of 30 frames is wrong; 50 frames in 3 s reached port 4791, and rxe0 took 20 (rcvd_pkts): 30 less"
    );
    // Without privileges there is only the difference, over all datagrams of the host: a hint.
    let mut scene = Scene::rxe();
    scene.host().frames = Err("needs CAP_NET_RAW".into());
    let findings = scene.findings();
    assert!(findings.iter().all(|f| f.level != Level::Problem), "{findings:#?}");
    let hint = findings.iter().find(|f| f.check == "iCRC drops").unwrap();
    assert!(hint.found.contains("25 UDP datagrams") && hint.found.contains("up to 5"), "{hint:?}");
    // Devices that count it are believed.
    let scene = Scene::rxe();
    scene.tree.add(&[("sys/class/infiniband/rxe0/ports/1/hw_counters/rx_icrc_encapsulated", "6")]);
    assert!(scene.cause().found.contains("dropped 6 frames"));
    let mut scene = Scene::soft();
    scene.evidence.after = nodes("soft", 120, &[("dropped.icrc", 6)], &TRANSLATED);
    assert_eq!(scene.cause().check, "iCRC drops");
}

#[test]
fn nothing_reaches_the_port() {
    let mut scene = Scene::rxe();
    scene.frames = FrameCounts::default();
    scene.take(100);
    let quiet = scene.findings();
    assert_eq!((quiet[0].level, quiet[0].check), (Level::Note, "frames"), "nobody is known to have sent");

    let mut scene = Scene::rxe();
    scene.frames = FrameCounts::default();
    scene.take(100);
    let more = [("received", 90), ("accepted", 90), ("emitted", 90), ("frames", 180)];
    scene.evidence.after = nodes("rxe0", 100, &[], &more);
    let cause = scene.cause();
    assert_eq!(cause.check, "frames");
    assert!(cause.found.contains("though translators sent 80"), "{cause:?}");

    let mut scene = Scene::rxe();
    let mut astray = FrameCounts::default();
    let mut bytes = [0; 100];
    let place = BthFields { dest_qp: WRITES, psn: Psn::new(1), ack_req: false };
    let probe = RoceRepr::write(roce::Transport::Uc, place, 0, 0, &[], None);
    let len = FrameRoute::new(TRANSLATOR, COLLECTOR, WRITES).write_frame(&probe, &mut bytes).unwrap();
    astray.count_packet(&bytes[..len], false);
    scene.frames = astray;
    assert_eq!(scene.cause().check, "wrong MAC");
}

#[test]
fn the_translator_is_at_fault() {
    let scene_with = |counters: &[(&str, u64)]| {
        let mut scene = Scene::rxe();
        scene.evidence.after = nodes("rxe0", 120, &[], counters);
        scene
    };
    assert!(scene_with(&[("received", 0)]).cause().found.contains("no report has reached the translator"));
    let cause = scene_with(&[("received", 9), ("accepted", 0), ("dropped.unknown_store", 9)]).cause();
    assert!(cause.check == "translator" && cause.found.contains("9 as `unknown_store`"), "{cause:?}");
    let mut forbidden = TRANSLATED.to_vec();
    forbidden.push(("link.roce.dropped.unsent-forbidden", 3));
    assert!(scene_with(&forbidden).cause().advice.unwrap().contains("nft"));
    // A few of many, with no new ones, are not the reason why nothing lands.
    forbidden.push(("link.roce.sent", 97));
    let mut scene = scene_with(&forbidden);
    scene.evidence.before = nodes("rxe0", 100, &[], &forbidden);
    assert_eq!(scene.findings()[0].level, Level::Note);
    let held = scene_with(&[("received", 9), ("accepted", 9), ("held", 9)]).findings();
    assert!(held[0].level == Level::Note && held[0].found.contains("9 reports wait"), "{:?}", held[0]);
}

#[test]
fn what_the_software_nic_drops_is_named_with_a_cure() {
    let mut scene = Scene::soft();
    scene.evidence.after = nodes("soft", 120, &[("dropped.rkey", 8)], &TRANSLATED);
    let cause = scene.cause();
    assert_eq!(cause.check, "NIC drops");
    assert!(cause.found.contains("8 frames") && cause.advice.unwrap().contains("key of an earlier session"));
}

#[test]
fn a_port_that_is_down() {
    let scene = Scene::rxe();
    scene.tree.add(&[("sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n")]);
    assert_eq!(scene.cause().check, "port down");
}

#[test]
fn a_collector_on_another_host_is_judged_by_what_it_says() {
    let mut scene = Scene::rxe();
    scene.evidence.sessions[0].queue_pairs[0].state = "error".into();
    scene.evidence.host = None;
    let findings = find_causes(&scene.evidence);
    assert_eq!(findings[0].check, "queue pair in ERROR");
    assert!(findings.iter().any(|f| f.advice.as_deref() == Some("run this command there")));
}
