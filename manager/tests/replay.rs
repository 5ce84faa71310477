//! Captures of another project's DTA reports (version 0), replayed into a collector and a
//! translator of ours: every report is accepted, and the answers are what the capture says, read by
//! code of this test's own. Needs no privilege.

mod common;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use common::daemon::{Daemon, counter};
use common::{MANAGER, captures, manager};
use dta_proto::control::{Policy, TailRequest};
use dta_proto::key::Key;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys, ClientOptions, translator};

const STORES: &str = r#"
[[store]]
id = 1
name = "values"
kind = "key-write"
slots = 65536
value_len = 4
redundancy = 4

[[store]]
id = 2
name = "lists"
kind = "append"
lists = 4
ring = 64
batch_len = 64
entry_len = 4

[[store]]
id = 3
name = "counters"
kind = "key-increment"
slots = 65536
redundancy = 4
"#;

struct Bed {
    _collector: Daemon,
    translator: Daemon,
    client: RemoteCollector,
    control: translator::RemoteTranslator,
    _folder: tempfile::TempDir,
}

/// `name` makes an address of its own, so that tests run side by side.
async fn bed(place: u8) -> Bed {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = format!(
        "[collector]\nname = \"replay\"\nlisten = \"127.0.0.1:0\"\nmemory = \"{}\"\n[soft]\nport = 0\n{STORES}",
        path("memory")
    );
    std::fs::write(path("collector.toml"), file).unwrap();
    let collector = Daemon::start(&["__collector", "serve", "--config", &path("collector.toml")]);
    let [_, a, b, _] = std::process::id().to_be_bytes();
    let file = format!(
        "[translator]\nname = \"replay\"\nlisten = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\n\
         collector = \"http://{}\"\nsource = \"127.{}.{b}.{place}\"\nsource_port = 0\n",
        collector.said("listen"),
        128 + (a & 63),
    );
    std::fs::write(path("translator.toml"), file).unwrap();
    let translator = Daemon::start(&["__translator", "run", "--ready", "--config", &path("translator.toml")]);
    let client =
        RemoteCollector::connect(&ClientOptions::without_tls(collector.said("listen"))).await.unwrap();
    let control = translator::RemoteTranslator::connect_lazy(translator.said("control")).unwrap();
    Bed { _collector: collector, translator, client, control, _folder: folder }
}

impl Bed {
    /// Replays a capture of `reports` reports and waits until all are accepted and their frames executed.
    async fn replay(&mut self, capture: &Path, reports: u64) {
        let output = manager(&["replay", capture.to_str().unwrap(), "--to", self.translator.said("listen")]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        assert!(
            printed.replace(',', "").starts_with(&format!("{reports} of {reports} datagrams sent")),
            "{printed}"
        );
        for _ in 0..12_000 {
            self.control.flush_reports().await.unwrap();
            let own = self.control.statistics().await.unwrap();
            let nic = self.client.statistics().await.unwrap();
            let of = |name: &str| counter(&own, "translator/", name);
            let executed =
                counter(&nic, "nic/", "executed.write") + counter(&nic, "nic/", "executed.fetch_add");
            if of("received") == reports && of("held") == 0 && executed == of("operations") {
                assert_eq!(of("accepted"), reports, "a report was dropped: {own:#?}");
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("the reports of {} were not executed", capture.display());
    }
}

/// UDP payloads of a little-endian pcap of Ethernet, IPv4 without options and UDP: nothing of ours
/// reads it here.
fn payloads(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    let (mut at, mut found) = (24, Vec::new());
    while at < file.len() {
        let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        let frame = &file[at + 16..at + 16 + length];
        let udp = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
        found.push(frame[42..34 + udp].to_vec());
        at += 16 + length;
    }
    found
}

fn key(bytes: &[u8]) -> Key {
    let mut key = Key([0; 16]);
    key.0[..4].copy_from_slice(bytes);
    key
}

#[tokio::test]
async fn key_writes_with_redundancy_1_to_4_are_answered_with_their_last_values() {
    let Some(folder) = captures("replay of dta-upstream-keywrite.pcap") else { return };
    let path = folder.join("dta/dta-upstream-keywrite.pcap");
    let reports = payloads(&path);
    let mut truth = HashMap::new();
    let mut redundancies = [0; 5];
    for report in &reports {
        assert_eq!((report[0], report.len()), (1, 12));
        redundancies[usize::from(report[3])] += 1;
        truth.insert(key(&report[4..8]), report[8..12].to_vec());
    }
    assert!(redundancies[1..].iter().all(|n| *n > 0), "the capture mixes redundancies: {redundancies:?}");
    let mut bed = bed(1).await;
    bed.replay(&path, reports.len() as u64).await;
    let keys: Vec<_> = truth.keys().copied().collect();
    let answers = bed.client.key_write("values", &keys, Policy::First, 0).await.unwrap();
    for (key, answer) in keys.iter().zip(answers) {
        assert_eq!(answer.value.as_ref(), Some(&truth[key]), "{key}");
    }
    let unknown = bed.client.key_write("values", &[key(b"none")], Policy::First, 0).await.unwrap();
    assert_eq!(unknown[0].value, None);
}

#[tokio::test]
async fn appended_values_are_in_their_lists_in_order() {
    let Some(folder) = captures("replay of dta-upstream-append.pcap") else { return };
    let path = folder.join("dta/dta-upstream-append.pcap");
    let reports = payloads(&path);
    let mut truth = vec![Vec::new(); 4];
    for report in &reports {
        assert_eq!((report[0], report.len()), (2, 11));
        let list = u32::from_be_bytes(report[3..7].try_into().unwrap());
        truth[list as usize].push(report[7..11].to_vec());
    }
    let mut bed = bed(2).await;
    bed.replay(&path, reports.len() as u64).await;
    for (list, truth) in truth.iter().enumerate() {
        let request = TailRequest {
            store: "lists".into(),
            list: list as u32,
            until_caught_up: true,
            from_sequence: 1,
            ..TailRequest::default()
        };
        let mut stream = bed.client.tail_list(request).await.unwrap();
        let mut entries = Vec::new();
        while let Some(message) = stream.next_message().await.unwrap() {
            let trouble = message.overwritten_batches + message.missing_batches + message.damaged_batches;
            assert_eq!(trouble, 0, "{message:?}");
            entries.extend(message.entries);
        }
        assert_eq!(&entries, truth, "list {list}");
    }
}

#[tokio::test]
async fn increments_add_up() {
    let Some(folder) = captures("replay of dta-upstream-keyincrement.pcap") else { return };
    let path = folder.join("dta/dta-upstream-keyincrement.pcap");
    let reports = payloads(&path);
    let mut truth = HashMap::new();
    for report in &reports {
        assert_eq!((report[0], report[3], report.len()), (3, 4, 16));
        *truth.entry(key(&report[4..8])).or_insert(0) +=
            u64::from_be_bytes(report[8..16].try_into().unwrap());
    }
    let mut bed = bed(3).await;
    bed.replay(&path, reports.len() as u64).await;
    let keys: Vec<_> = truth.keys().copied().collect();
    let answers = bed.client.query_counters("counters", &keys).await.unwrap();
    for (key, answer) in keys.iter().zip(answers) {
        assert_eq!(answer.value, truth[key], "{key}");
    }
}

/// A capture of UDP datagrams to port 40040, in Ethernet, in the classic format (libpcap's
/// `pcap-savefile(5)`).
fn capture(payloads: &[&[u8]]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    let to = |last, port| std::net::SocketAddrV4::new([10, 0, 0, last].into(), port);
    for payload in payloads {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend(dta_proto::wire::datagram::encode_header(to(2, 9), to(1, 40_040), payload.len()));
        frame.extend(*payload);
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

#[test]
fn a_capture_cut_in_the_middle_is_replayed_up_to_the_cut_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.pcap");
    let whole = capture(&[b"first", b"second", b"third"]);
    std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let to = socket.local_addr().unwrap().to_string();
    let ran = Command::new(MANAGER).args(["replay", path.to_str().unwrap(), "--to", &to]).output().unwrap();
    let warned = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(0), "{warned}");
    assert!(warned.contains("cut.pcap") && warned.contains("sending what comes before the cut"), "{warned}");
    let mut bytes = [0; 100];
    for expected in [&b"first"[..], b"second"] {
        let len = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], expected);
    }
    // Cut inside the file's own header, it is no capture at all.
    std::fs::write(&path, &whole[..20]).unwrap();
    let ran = Command::new(MANAGER).args(["replay", path.to_str().unwrap(), "--to", &to]).output().unwrap();
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("cut.pcap"));
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut bytes).is_err(), "nothing more was sent");
}
