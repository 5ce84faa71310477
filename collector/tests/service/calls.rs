//! Every call of the gRPC service, against a real server with the software NIC.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::{config, key, open_request, start, status_of};
use std::sync::Arc;

use dta_collector::config::{Config, MemoryBacking, default_stores};
use dta_collector::server::RunningCollector;
use dta_memory::region::{Region, RegionHeader, RegionOptions};
use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{self, Policy, query_request};
use dta_proto::control::{MAX_KEYS, MAX_READ};
use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::trace::{self, TraceEntry};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys, ClientError, ClientOptions, Question, QuestionKind, TailMessages};
use tonic::Code;

/// Code and words of a refusal.
fn status<T>(result: Result<T, ClientError>) -> (Code, String) {
    let status = status_of(result);
    (status.code(), status.message().to_owned())
}

fn region(server: &RunningCollector, store: &str) -> Arc<Region> {
    server.stores().get(store).unwrap().region.clone()
}

/// Writes a value to all copies of a key, as a NIC would.
fn write_flow(server: &RunningCollector, key: &Key, value: &[u8; 12]) {
    let mut slot = [0; 16];
    layout::key_write::encode_slot(&mut slot, key, value);
    for at in hash::key_slots(key, 2, 1 << 20).iter() {
        region(server, "flows").write(layout::key_write::slot_offset(*at, 12), &slot).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_write() {
    let (server, client) = start(&config()).await;
    (0..100).for_each(|i| write_flow(&server, &key(i), &[i as u8; 12]));
    let keys: Vec<Key> = (0..200).map(key).collect();
    let answers = client.key_write("", &keys, Policy::First, 0).await.unwrap();
    assert_eq!(answers.len(), 200);
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(answer.key, key(i as u32).0);
        assert_eq!(answer.copies, 2);
        let expected = (i < 100).then(|| vec![i as u8; 12]);
        assert_eq!((&answer.value, answer.agreeing), (&expected, if i < 100 { 2 } else { 0 }));
    }
    let both = client.key_write("flows", &keys[..1], Policy::AtLeast, 2).await.unwrap();
    assert!(both[0].value.is_some());

    let (code, message) = status(client.key_write("flows", &keys, Policy::AtLeast, 3).await);
    assert!(code == Code::InvalidArgument && message.contains("ask for 1 to 2"), "{message}");
    let (code, message) = status(client.key_write("events", &keys, Policy::First, 0).await);
    assert!(code == Code::InvalidArgument && message.contains("flows"), "{message}");
    let (code, message) = status(client.key_write("nowhere", &keys, Policy::First, 0).await);
    assert!(code == Code::NotFound && message.contains("flows (key-write)"), "{message}");
    let too_many = vec![key(1); MAX_KEYS + 1];
    let question = Question::now("", too_many, QuestionKind::KeyIncrement);
    let (code, message) = status(client.query_keys(question).await);
    assert!(code == Code::InvalidArgument && message.contains("ask in several"), "{message}");
    // What no client of ours sends.
    let mut raw = CollectorClient::connect(format!("http://{}", server.listen)).await.unwrap();
    for (keys, policy, words) in [(vec![vec![1, 2, 3]], 0, "3 bytes"), (vec![], 77, "policy 77")] {
        let of = query_request::Of::KeyWrite(control::KeyWriteQuery { policy, at_least: 0 });
        let request = control::QueryRequest { keys, of: Some(of), ..Default::default() };
        let refused = raw.query(request).await.unwrap_err();
        assert!(refused.code() == Code::InvalidArgument && refused.message().contains(words), "{refused}");
    }
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn long_queries_are_split_and_stay_below_the_limit_of_a_message() {
    let (server, client) = start(&config()).await;
    let keys: Vec<Key> = (0..MAX_KEYS as u32 + 1).map(key).collect();
    // Every hop of the longest paths.
    let mut path = layout::postcarding::PostcardPath { length: 6, ..Default::default() };
    (0..6).for_each(|h| assert!(path.set(h, u32::MAX)));
    for key in &keys {
        let mut row = [0; 32];
        layout::postcarding::encode_row(&mut row, key, &path);
        for at in hash::key_slots(key, 2, 1 << 18).iter() {
            region(&server, "paths").write(layout::postcarding::row_offset(*at, 6), &row).unwrap();
        }
    }
    let answers = client.query_paths("", &keys).await.unwrap();
    assert_eq!(answers.len(), keys.len());
    assert_eq!(
        answers.iter().filter(|a| a.complete && a.hops == [u32::MAX; 6]).count(),
        answers.iter().filter(|a| a.found).count()
    );
    assert!(answers.iter().filter(|a| a.found).count() > keys.len() * 9 / 10);
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_paths_are_answered_as_partial() {
    let (server, client) = start(&config()).await;
    let mut path = layout::postcarding::PostcardPath { length: 5, ..Default::default() };
    path.set(0, 10);
    path.set(2, 30);
    let mut row = [0; 32];
    layout::postcarding::encode_row(&mut row, &key(1), &path);
    region(&server, "paths")
        .write(layout::postcarding::row_offset(hash::key_slots(&key(1), 2, 1 << 18)[1], 6), &row)
        .unwrap();
    let answer = client.query_paths("", &[key(1), key(2)]).await.unwrap();
    assert_eq!(answer[0].hops, [10, 0, 30, 0, 0]);
    assert_eq!(answer[0].present, [true, false, true, false, false]);
    assert_eq!(
        (answer[0].found, answer[0].complete, answer[0].path_length, answer[0].agreeing),
        (true, false, 5, 1)
    );
    assert!(!answer[1].found);
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn counter_and_sketch() {
    let (server, client) = start(&config()).await;
    for at in hash::key_slots(&key(1), 2, 1 << 20).iter() {
        region(&server, "bytes").fetch_add(layout::key_increment::counter_offset(*at), 1 << 40).unwrap();
    }
    let answers = client.query_counters("", &[key(1), key(2)]).await.unwrap();
    assert_eq!([answers[0].value, answers[1].value], [1 << 40, 0]);

    let StoreKind::SketchMerge { columns, rows, epochs, .. } =
        server.stores().get("packets").unwrap().spec.kind
    else {
        panic!("another kind")
    };
    for column in layout::sketch_merge::columns_of(&key(1), rows, columns).iter() {
        let mut bytes = [0; 32];
        let column_of_epoch =
            layout::sketch_merge::SketchColumn { epoch: 9, merged: 1, expected: 2, cells: [5, 4, 6, 0] };
        layout::sketch_merge::encode_column(&mut bytes, rows, &column_of_epoch);
        let at = layout::sketch_merge::column_offset(9, *column as u32, epochs, columns, rows);
        region(&server, "packets").write(at, &bytes).unwrap();
    }
    let answer = client.query_sketches("", &[key(1)], 9).await.unwrap();
    assert_eq!((answer[0].estimate, answer[0].merged, answer[0].expected), (Some(4), 1, 2));
    assert_eq!(client.query_sketches("", &[key(1)], 5).await.unwrap()[0].estimate, None);
    server.shut_down().await.unwrap();
}

/// Writes batch `sequence` of list 3 of `events`, with entries that hold the sequence.
fn write_batch(server: &RunningCollector, sequence: u32) {
    let mut batch = [0; 64];
    let entries: Vec<u8> =
        (0..3).flat_map(|_| [[0; 12].as_slice(), &sequence.to_be_bytes()].concat()).collect();
    layout::append::encode_batch(&mut batch, 3, sequence, 3, &entries);
    region(server, "events").write(layout::append::batch_offset(3, sequence, 1 << 12, 64), &batch).unwrap();
}

/// Writes batch `sequence` of the names of `trace-events`: what hosts say of their packets.
fn write_books(server: &RunningCollector, sequence: u32, of: &[(u16, trace::Books)]) {
    let list = trace::list::NAMES;
    let time = 1_000_000_000 * u64::from(sequence);
    let entries: Vec<u8> =
        of.iter().flat_map(|&(host, books)| TraceEntry::Books { time, host, books }.to_bytes()).collect();
    let mut batch = [0; 128];
    layout::append::encode_batch(&mut batch, list, sequence, of.len() as u8, &entries);
    let at = layout::append::batch_offset(list, sequence, 1 << 13, 128);
    region(server, trace::store::EVENTS).write(at, &batch).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rings_of_hosts_lost_is_in_the_statistics() {
    let (server, client) = start(&config()).await;
    let books = |ring_full| {
        let (reported, left_out, refused) = (60, 30, 1);
        trace::Books { seen: 91 + ring_full, reported, left_out, ring_full, refused }
    };
    write_books(&server, 1, &[(7, books(1)), (9, books(0))]);
    write_books(&server, 2, &[(7, books(9))]);
    let nodes = client.statistics().await.unwrap();
    let of = |node: &str, name: &str| {
        let node = nodes.iter().find(|n| n.node == node).unwrap();
        assert!(node.session.is_empty() && node.age_seconds > 0.0);
        node.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    };
    assert_eq!(of("agent/7", "dropped.ring-full"), Some(9), "the newest");
    assert_eq!(of("agent/7", "seen"), Some(100));
    assert_eq!(of("agent/9", "dropped.ring-full"), Some(0));
    assert_eq!(of("agent/9", "dropped.refused"), Some(1));
    server.shut_down().await.unwrap();
}

fn tail_request() -> control::TailRequest {
    control::TailRequest { store: "events".into(), list: 3, ..Default::default() }
}

async fn read_until(stream: &mut TailMessages, sequence: u64) -> control::TailResponse {
    let mut sum = control::TailResponse::default();
    while sum.sequence < sequence {
        let message = tokio::time::timeout(Duration::from_secs(60), stream.next_message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        sum.entries.extend(message.entries);
        sum.overwritten_batches += message.overwritten_batches;
        sum.missing_batches += message.missing_batches;
        sum.sequence = message.sequence;
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_follows_what_is_written() {
    let (server, client) = start(&config()).await;
    (1..=2000).for_each(|s| write_batch(&server, s));
    let mut old =
        client.tail_list(control::TailRequest { from_start: true, ..tail_request() }).await.unwrap();
    let mut new = client.tail_list(tail_request()).await.unwrap();
    let mut at =
        client.tail_list(control::TailRequest { from_sequence: 1999, ..tail_request() }).await.unwrap();
    assert_eq!(read_until(&mut old, 2000).await.entries.len(), 6000);
    assert_eq!(read_until(&mut at, 2000).await.entries.len(), 6);
    // The stream that began with what comes next has to be there before anything comes.
    tokio::time::sleep(Duration::from_secs(1)).await;
    (2001..=2010).filter(|s| *s != 2005).for_each(|s| write_batch(&server, s));
    for stream in [&mut old, &mut new] {
        let sum = read_until(stream, 2010).await;
        assert_eq!((sum.entries.len(), sum.missing_batches), (27, 1));
        assert_eq!(sum.entries[26][12..], 2010u32.to_be_bytes());
    }
    let mut once = client
        .tail_list(control::TailRequest { from_start: true, until_caught_up: true, ..tail_request() })
        .await
        .unwrap();
    let mut entries = 0;
    while let Some(message) = once.next_message().await.unwrap() {
        entries += message.entries.len();
    }
    assert_eq!(entries, 3 * 2009);
    // A reader that was here before the lists were emptied waits for what comes; one that does not
    // want to wait ends.
    for from_sequence in [2011, 2012, 6000, 1 << 30] {
        let request = control::TailRequest { from_sequence, until_caught_up: true, ..tail_request() };
        let mut ahead = client.tail_list(request).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), ahead.next_message()).await;
        assert_eq!(ended.expect("it ends").unwrap(), None, "from {from_sequence}");
    }
    // More than half of all sequences ahead is behind, as they turn: what was there is
    // reported as overwritten, at once.
    let request =
        control::TailRequest { from_sequence: 3_000_000_000, until_caught_up: true, ..tail_request() };
    let mut behind = client.tail_list(request).await.unwrap();
    let (mut entries, mut overwritten) = (0, 0);
    let read = async {
        while let Some(message) = behind.next_message().await.unwrap() {
            entries += message.entries.len();
            overwritten += message.overwritten_batches;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("it ends");
    assert_eq!((entries, overwritten), (3 * 2009, u64::from(u32::MAX) - 3_000_000_000 + 1));
    let (code, message) = status(client.tail_list(control::TailRequest { list: 16, ..tail_request() }).await);
    assert!(code == Code::InvalidArgument && message.contains("lists 0 to 15"), "{message}");
    let (code, _) =
        status(client.tail_list(control::TailRequest { store: "flows".into(), ..tail_request() }).await);
    assert_eq!(code, Code::InvalidArgument);
    // A stream that waits does not keep the collector from ending.
    tokio::time::timeout(Duration::from_secs(60), server.shut_down()).await.unwrap().unwrap();
    let (code, message) = status(old.next_message().await);
    assert!(code == Code::Unavailable && message.contains("again later"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_slow_tail_missed_is_counted() {
    let (server, client) = start(&config()).await;
    (1..=5000).for_each(|s| write_batch(&server, s));
    let mut tail =
        client.tail_list(control::TailRequest { from_sequence: 1, ..tail_request() }).await.unwrap();
    let sum = read_until(&mut tail, 5000).await;
    assert_eq!(sum.overwritten_batches, 5000 - 4096);
    assert_eq!(sum.entries.len(), 3 * 4096);
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_memory_and_statistics() {
    let (server, client) = start(&config()).await;
    (0..50_000).for_each(|i| write_flow(&server, &key(i), &[7; 12]));
    let stores = client.fetch_stores().await.unwrap();
    assert_eq!(stores.len(), 16);
    let flows = &stores[0];
    assert_eq!(flows.store.as_ref().unwrap().name, "flows");
    assert_eq!((flows.capacity, flows.length), (1 << 20, 16 << 20));
    assert!((flows.used as f64 - 50_000.0).abs() < 2_000.0, "{flows:?}");
    assert!(flows.survival() > 0.99 && flows.advised_redundancy() == 4);
    assert!(stores[2].survival.is_none());

    let bytes = |offset, length| control::ReadMemoryRequest { store: "flows".into(), offset, length };
    let at = layout::key_write::slot_offset(hash::key_slots(&key(1), 2, 1 << 20)[0], 12);
    let read = client.read_memory(bytes(at, 16)).await.unwrap();
    assert_eq!(read.data[4..], [7; 12]);
    let (code, message) = status(client.read_memory(bytes(16 << 20, 1)).await);
    assert!(code == Code::OutOfRange && message.contains("16777216 bytes"), "{message}");
    let (code, _) = status(client.read_memory(bytes(u64::MAX, 16)).await);
    assert_eq!(code, Code::OutOfRange);
    let (code, message) = status(client.read_memory(bytes(0, MAX_READ + 1)).await);
    assert!(code == Code::InvalidArgument && message.contains("read in several"), "{message}");

    client.key_write("", &[key(1), key(999_999)], Policy::First, 0).await.unwrap();
    let nodes = client.statistics().await.unwrap();
    let of = |node: &str| nodes.iter().find(|n| n.node == node).unwrap();
    let count = |node: &str, name: &str| of(node).counters.iter().find(|c| c.name == name).map(|c| c.value);
    assert_eq!(count("collector", "query.key-write.keys"), Some(2));
    assert_eq!(count("collector", "query.key-write.found"), Some(1));
    assert_eq!(count("nic/soft", "received"), Some(0));
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions() {
    let (server, mut client) = start(&config()).await;
    write_batch(&server, 1);
    write_batch(&server, 2);
    let session = client.open_session(open_request("t", 50)).await.unwrap();
    assert!(!session.resumed && session.generation > 0 && session.lease_seconds == 30 && session.mtu >= 256);
    assert_eq!(session.regions.len(), 16);
    for region in &session.regions {
        assert_eq!(region.address % region.length, 0, "address = base | offset");
    }
    assert_eq!(session.collector.as_ref().unwrap().port, u32::from(server.device.endpoint.port));
    let transports: Vec<_> =
        session.queue_pairs.iter().map(|p| (p.purpose(), p.transport(), p.expected_psn)).collect();
    assert_eq!(
        transports,
        [
            (control::Purpose::Write, control::Transport::Uc, 0xff_fff0),
            (control::Purpose::Atomic, control::Transport::Rc, 0xff_fff0)
        ]
    );
    assert!(session.queue_pairs[1].max_dest_rd_atomic > 0);
    let all = |store: &str, count| control::ListRange { store: store.into(), first: 0, count };
    assert_eq!(
        session.lists,
        [all("events", 16), all("int-events", 4), all("flow-records", 4), all("trace-events", 4)]
    );
    assert_eq!(session.positions, [control::ListPosition { store: "events".into(), list: 3, sequence: 2 }]);

    let node = control::NodeStatistics {
        node: "translator/t".into(),
        life: 1,
        time_us: 77_000_001,
        counters: vec![control::Counter { name: "received".into(), value: 42 }],
        ..Default::default()
    };
    let renew = |generation, statistics| control::RenewSessionRequest {
        name: "t".into(),
        generation,
        statistics,
        ..Default::default()
    };
    let renewed = client.renew_session(renew(session.generation, vec![node.clone()])).await.unwrap();
    assert_eq!(renewed.generation, session.generation);
    let nodes = client.statistics().await.unwrap();
    let translator = nodes.iter().find(|n| n.node == "translator/t").unwrap();
    assert_eq!((translator.session.as_str(), translator.counters[0].value), ("t", 42));
    assert_eq!(translator.time_us, 77_000_001, "the translator's own clock");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    for own in nodes.iter().filter(|n| n.session.is_empty()) {
        assert!(now.abs_diff(own.time_us) < 60_000_000, "{own:?}");
    }

    let (code, message) = status(client.open_session(open_request("u", 60)).await);
    assert!(code == Code::FailedPrecondition && message.contains("\"t\""), "{message}");
    let (code, _) = status(client.renew_session(renew(session.generation + 1, vec![])).await);
    assert_eq!(code, Code::Aborted);
    let bad = control::NodeStatistics { node: "two words".into(), ..Default::default() };
    let before_renewal = Instant::now();
    client.renew_session(renew(session.generation, vec![bad])).await.unwrap();
    let nodes = client.statistics().await.unwrap();
    let collector = nodes.iter().find(|n| n.node == "collector").unwrap();
    assert!(collector.counters.iter().any(|c| c.name == "session.statistics_left_out" && c.value == 1));

    let listed = client.fetch_sessions().await.unwrap().sessions;
    assert_eq!(
        (listed.len(), listed[0].name.as_str(), listed[0].stores.len()),
        (1, "t", default_stores().len())
    );
    assert!(listed[0].expires_in_seconds >= 30.0 - before_renewal.elapsed().as_secs_f64());
    assert_eq!(listed[0].queue_pairs.iter().map(|p| p.peer_qpn).collect::<Vec<_>>(), [50, 51]);
    assert!(listed[0].queue_pairs.iter().all(|p| p.state == "rtr"));

    client.end_session("t").await.unwrap();
    assert!(client.fetch_sessions().await.unwrap().sessions.is_empty());
    assert_eq!(status(client.end_session("t").await).0, Code::NotFound);
    assert_eq!(status(client.renew_session(renew(session.generation, vec![])).await).0, Code::NotFound);
    // What it handed in stays.
    assert!(client.statistics().await.unwrap().iter().any(|n| n.node == "translator/t"));
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_written_down_is_to_be_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let memory = MemoryBacking::Directory(dir.path().to_owned());
    let (server, mut client) = start(&Config { memory, ..config() }).await;
    // The write fails, as it does on a full disk.
    let in_the_way = dir.path().join("sessions.bin.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let (code, message) = status(client.open_session(open_request("t", 50)).await);
    assert_eq!(code, Code::Unavailable, "{message}");
    assert!(message.contains("sessions.bin"), "{message}");
    std::fs::remove_dir(&in_the_way).unwrap();
    client.open_session(open_request("t", 50)).await.unwrap();
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_open_is_refused_with_what_is_wrong_with_it() {
    let (server, mut client) = start(&config()).await;
    type Change = fn(&mut control::OpenSessionRequest);
    let cases: [(Change, &str); 9] = [
        (|r| r.translator = None, "translator"),
        (|r| r.translator.as_mut().unwrap().ip = "here".into(), "\"here\""),
        (|r| r.translator.as_mut().unwrap().mac = vec![0; 5], "mac has 5 bytes"),
        (|r| r.translator.as_mut().unwrap().gid = vec![0; 4], "gid has 4 bytes"),
        (
            |r| r.translator.as_mut().unwrap().gid = vec![1; 16],
            "gid is that of 101:101:101:101:101:101:101:101",
        ),
        (|r| r.translator.as_mut().unwrap().port = 70_000, "port is 70000"),
        (|r| r.queue_pairs[0].qpn = 1 << 24, "24 bits"),
        (|r| r.queue_pairs[0].purpose = 9, "purpose is 9"),
        (|r| r.queue_pairs.clear(), "queue pair"),
    ];
    for (change, wanted) in cases {
        let mut request = open_request("t", 50);
        change(&mut request);
        let (code, message) = status(client.open_session(request).await);
        assert!(code == Code::InvalidArgument && message.contains(wanted), "{message}");
    }
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_in_files_are_joined_to_huge_pages_after_the_start_and_say_so() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut config = Config { memory: MemoryBacking::Directory(dir.path().join("memory")), ..config() };
    let kind = StoreKind::KeyWrite { slots: 1 << 18, value_len: 12, redundancy: 2, keys: Default::default() };
    config.stores = vec![StoreSpec { id: 1, name: "flows".into(), kind }];
    let (server, client) = start(&config).await;
    // A kernel that joins no pages of files leaves them.
    let probe = RegionHeader::new(config.stores[0].clone());
    let probe = Region::open_or_create(dir.path().join("probe"), &probe, RegionOptions::default()).unwrap();
    let refused = probe.collapse_pages(|| false).err();
    let can = refused.is_none();
    // Then again with memory that a store gets later. 4 MiB of data after 2 MiB of header.
    for _ in 0..2 {
        let until = Instant::now() + Duration::from_secs(60);
        let pages = loop {
            let pages = client.fetch_stores().await.unwrap()[0].memory.clone();
            if pages != "4 KiB pages" || !can || Instant::now() > until {
                break pages;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        match can {
            true => assert!(pages.starts_with("2 MiB pages: ") && pages.ends_with(" of 3"), "{pages}"),
            // Without memory for huge pages, some may be joined all the same.
            false if refused.as_ref().is_some_and(|e| e.kind() == std::io::ErrorKind::OutOfMemory) => {}
            false => assert_eq!(pages, "4 KiB pages"),
        }
        server.stores().replace_memory(server.stores().successor("flows").unwrap(), false).unwrap();
    }
    server.shut_down().await.unwrap();
}

/// The error of a collector that is refused.
async fn refusal(config: &Config) -> String {
    match RunningCollector::start(config).await {
        Ok(_) => panic!("two collectors in one folder"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_folder_has_one_collector() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("history");
    let mut config = config();
    config.history.directory = Some(folder.clone());
    config.epochs.insert("flows".into(), Duration::from_secs(20));
    let other = Config { name: "other".into(), ..config.clone() };
    let (server, _client) = start(&config).await;
    // Also one of the same name: with anonymous memory, nothing else keeps them apart.
    for second in [&config, &other] {
        let error = refusal(second).await;
        let uses = format!("collector collector uses the history folder {}; stop it, or", folder.display());
        assert!(error.starts_with(&uses), "{error}");
    }
    server.shut_down().await.unwrap();
    let error = refusal(&other).await;
    assert!(error.contains("belongs to collector collector, and this is collector other"), "{error}");
    let (server, _client) = start(&config).await;
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_collector_serves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { memory: MemoryBacking::Directory(dir.path().join("memory")), ..config() };
    let (server, mut client) = start(&config).await;
    write_flow(&server, &key(1), b"still there!");
    let session = client.open_session(open_request("t", 50)).await.unwrap();

    let Err(second) = RunningCollector::start(&config).await else {
        panic!("two collectors in one directory")
    };
    assert!(second.to_string().starts_with("collector collector uses the memory directory"), "{second}");
    server.shut_down().await.unwrap();
    drop(client);

    let (server, mut client) = start(&config).await;
    let answer = client.key_write("", &[key(1)], Policy::First, 0).await.unwrap();
    assert_eq!(answer[0].value.as_deref(), Some(b"still there!".as_slice()));
    let request = control::RenewSessionRequest {
        name: "t".into(),
        generation: session.generation,
        ..Default::default()
    };
    let resumed = client.renew_session(request).await.unwrap();
    assert!(resumed.generation > session.generation && resumed.queue_pairs.len() == 2);
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named_in_the_error() {
    let (server, _client) = start(&config()).await;
    let mut second = config();
    second.listen = server.listen;
    let Err(error) = RunningCollector::start(&second).await else { panic!("two on one port") };
    let message = error.to_string();
    assert!(message.contains(&server.listen.to_string()) && message.contains("--listen"), "{message}");
    let mut third = config();
    third.soft.port = server.device.endpoint.port;
    let Err(error) = RunningCollector::start(&third).await else { panic!("two NICs on one port") };
    assert!(error.is::<dta_memory::nic::NicError>(), "{error}");
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_needs_verbs_says_how_to_get_them() {
    let Err(error) = RunningCollector::start(&Config { device: "mlx5_0".into(), ..config() }).await else {
        panic!("no device")
    };
    let message = error.to_string();
    if cfg!(feature = "verbs") {
        // The library then says whether the kernel has no RDMA at all, or other devices.
        assert!(message.contains("modprobe ib_uverbs") || message.contains("mlx5_0"), "{message}");
    } else {
        assert!(message.contains("--features dta-collector/verbs"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_reported_with_a_cure() {
    for (address, wanted) in
        [("localhost", "no port"), ("https://127.0.0.1:1", "--ca"), ("ftp://127.0.0.1:1", "neither")]
    {
        let error =
            RemoteCollector::connect(&ClientOptions::without_tls(address)).await.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let options = ClientOptions::without_tls("http://127.0.0.1:1");
    let error = RemoteCollector::connect(&options).await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("dta-collector serve"), "{error}");
}
