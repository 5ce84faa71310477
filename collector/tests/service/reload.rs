//! Another configuration for a running collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dta_collector::config::{CollectorLimits, Config, MemoryBacking, Transport};
use dta_collector::server::RunningCollector;
use dta_proto::control::{RenewSessionRequest, TailRequest};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::Ask;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{ClientError, ClientOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{config, open_request, start};

fn more() -> StoreSpec {
    StoreSpec {
        id: 9,
        name: "more".into(),
        kind: StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2, keys: Default::default() },
    }
}

/// How many stores there are.
async fn stores(client: &RemoteCollector) -> usize {
    client.fetch_stores().await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_that_were_added_are_served_and_granted() {
    let dir = tempfile::tempdir().unwrap();
    let old = Config { memory: MemoryBacking::Directory(dir.path().join("m")), ..config() };
    let (mut server, mut client) = start(&old).await;
    let session = client.open_session(open_request("t", 0x21)).await.unwrap();
    assert_eq!((session.regions.len(), session.stores_offered), (16, 16));
    let mut follows = client
        .tail_list(TailRequest { store: "events".into(), list: 0, ..TailRequest::default() })
        .await
        .unwrap();

    let mut new = old.clone();
    new.stores.push(more());
    let placed = client.placement().await.unwrap().version;
    assert_eq!(server.reload_config(&new).await.unwrap(), ["store more (new)"]);
    assert_ne!(client.placement().await.unwrap().version, placed);
    assert_eq!(server.reload_config(&new).await.unwrap(), Vec::<String>::new());
    assert_eq!(stores(&client).await, 17);
    assert!(dir.path().join("m/more.region").exists());
    // The translator learns of it when it renews, and gets it when it opens its session again: with
    // the queue pairs that it has.
    let request =
        RenewSessionRequest { name: "t".into(), generation: session.generation, ..Default::default() };
    let renewed = client.renew_session(request).await.unwrap();
    assert_eq!((renewed.regions.len(), renewed.stores_offered), (16, 17));
    let again = client.open_session(open_request("t", 0x21)).await.unwrap();
    assert_eq!(again.regions.len(), 17);
    let numbers = |session: &dta_proto::control::Session| {
        session.queue_pairs.iter().map(|pair| pair.qpn).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&again), numbers(&session));
    // A list that was followed before is followed on.
    let waited = tokio::time::timeout(Duration::from_millis(300), follows.next_message()).await;
    assert!(waited.is_err(), "it ended: {waited:?}");
    drop(follows);
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_change_is_named_and_then_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let old = Config { memory: MemoryBacking::Directory(dir.path().join("m")), ..config() };
    let (mut server, client) = start(&old).await;
    let mut new = old.clone();
    new.stores.push(more());
    new.limits.tails_per_caller = 1;
    new.transport = Transport::Rc;
    new.stores[0].kind =
        StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2, keys: Default::default() };
    new.stores.remove(1);
    let refused = server.reload_config(&new).await.unwrap_err().to_string();
    let keys = "collector.transport, store flows, store paths (removed) cannot change";
    assert!(refused.starts_with(keys), "{refused}");
    assert_eq!(stores(&client).await, 16);
    assert!(!dir.path().join("m/more.region").exists());
    let follow =
        || client.tail_list(TailRequest { store: "events".into(), list: 0, ..TailRequest::default() });
    let _two = (follow().await.unwrap(), follow().await.unwrap());

    // A store whose memory cannot be made takes the others of its configuration with it.
    let mut new = old.clone();
    let blocked = StoreSpec { id: 10, name: "blocked".into(), ..more() };
    new.stores.extend([more(), blocked]);
    std::fs::create_dir(dir.path().join("m/blocked.region")).unwrap();
    assert!(server.reload_config(&new).await.unwrap_err().is::<dta_memory::region::RegionError>());
    assert_eq!(stores(&client).await, 16);
    assert!(!dir.path().join("m/more.region").exists());
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_those_of_now() {
    let old = config();
    let (mut server, client) = start(&old).await;
    let tail = |client: &RemoteCollector| {
        let client = client.clone();
        async move {
            client.tail_list(TailRequest { store: "events".into(), list: 0, ..TailRequest::default() }).await
        }
    };
    let _before = (tail(&client).await.unwrap(), tail(&client).await.unwrap());
    let new = Config { limits: CollectorLimits { tails_per_caller: 1, ..CollectorLimits::default() }, ..old };
    assert_eq!(server.reload_config(&new).await.unwrap(), ["limits.tails_per_caller"]);
    let client = RemoteCollector::connect(&ClientOptions::without_tls(server.listen)).await.unwrap();
    let _one = tail(&client).await.unwrap();
    match tail(&client).await {
        Err(ClientError::Status(status)) => assert_eq!(status.code(), tonic::Code::ResourceExhausted),
        other => panic!("{:?}", other.map(|_| ())),
    }
    server.shut_down().await.unwrap();
}

/// Readers do not notice that the configuration is read again, whenever their calls fall.
#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_while_it_changes() {
    let mut new = config();
    let (mut server, client) = start(&new).await;
    let (done, over) = tokio::sync::watch::channel(false);
    let calls: [Arc<AtomicU64>; 4] = Default::default();
    let readers: Vec<_> = calls
        .iter()
        .map(|calls| {
            let (client, over, calls) = (client.clone(), over.clone(), Arc::clone(calls));
            tokio::spawn(async move {
                while !*over.borrow() {
                    assert!(!client.placement().await.unwrap().stores.is_empty());
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for round in 0..50 {
        new.limits.tails_per_caller = 100 + round;
        assert_eq!(server.reload_config(&new).await.unwrap(), ["limits.tails_per_caller"]);
        assert_eq!(stores(&client).await, 16);
        tokio::time::sleep(Duration::from_millis(20)).await;
        // A call is made again a few times: no configuration ends before each reader has begun and ended a
        // call under it.
        let before = calls.each_ref().map(|calls| calls.load(Ordering::Relaxed));
        while readers.iter().all(|reader| !reader.is_finished())
            && calls.iter().zip(before).any(|(calls, before)| calls.load(Ordering::Relaxed) < before + 2)
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    done.send_replace(true);
    for reader in readers {
        reader.await.unwrap();
    }
    server.shut_down().await.unwrap();
}

/// What a client sends after the final GOAWAY must not reset the connection: it would lose the GOAWAY with it, and not
/// learn that its call was not processed.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_still_send_when_the_collector_has_said_its_last() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    let mut new = config();
    let (mut server, _client) = start(&new).await;
    let mut stream = TcpStream::connect(server.listen).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&SETTINGS).await.unwrap();
    // The collector has the connection once it says something.
    let mut head = [0; 9];
    stream.peek(&mut head).await.unwrap();
    new.limits.tails_per_caller += 1;
    server.reload_config(&new).await.unwrap();
    let mut last = None;
    while stream.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        match head[3] {
            GOAWAY => last = Some(u32::from_be_bytes(payload[..4].try_into().unwrap())),
            PING if head[4] == 0 => {
                head[4] = 1;
                stream.write_all(&[&head[..], &payload].concat()).await.unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(last, Some(0), "the last call that was processed");
    for _ in 0..3 {
        stream.write_all(&SETTINGS).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.shut_down().await.unwrap();
}

/// Asks the page on a connection that ends with the answer.
async fn ask_page(server: &RunningCollector, path: &str, host: &str, token: &str) -> TcpStream {
    let url = server.page_url().unwrap();
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// The status of the page's answer.
async fn page_status(server: &RunningCollector, host: &str, token: &str) -> u16 {
    let mut stream = ask_page(server, "/", host, token).await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_takes_the_token_and_the_hosts_of_now() {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "the first token of the page\n").unwrap();
    let mut config = config();
    config.web.listen = dta_export::metrics::Address::At("127.0.0.1:0".parse().unwrap());
    config.web.token_file = Some(token_file.clone());
    let (mut server, _client) = start(&config).await;
    let [first, second] = ["the first token of the page", "the second token of the page"];
    assert_eq!(page_status(&server, "localhost", first).await, 200);
    assert_eq!(page_status(&server, "page.example", first).await, 403);
    let mut live = ask_page(&server, "/api/v1/waterfall/live", "localhost", first).await;
    let mut messages = Vec::new();
    while !String::from_utf8_lossy(&messages).contains("event: waterfall") {
        assert_ne!(live.read_buf(&mut messages).await.unwrap(), 0);
    }

    std::fs::write(&token_file, second).unwrap();
    config.web.hosts = vec!["page.example".into()];
    let changed = ["hosts or token of the page"];
    assert_eq!(server.reload_config(&config).await.unwrap(), changed);
    assert_eq!(server.reload_config(&config).await.unwrap(), Vec::<String>::new());
    assert_eq!(page_status(&server, "localhost", first).await, 401);
    assert_eq!(page_status(&server, "page.example", second).await, 200);
    // What was opened with the first ends, behind at most what waited.
    messages.clear();
    while live.read_buf(&mut messages).await.unwrap() != 0 {
        assert!(String::from_utf8_lossy(&messages).matches("event: waterfall").count() < 20);
    }

    // One that cannot be used leaves everything as it is.
    std::fs::write(&token_file, "short").unwrap();
    let refused = server.reload_config(&config).await.unwrap_err().to_string();
    assert!(refused.contains("16 characters"), "{refused}");
    assert_eq!(page_status(&server, "localhost", second).await, 200);
    let mut new = config.clone();
    new.web.listen = dta_export::metrics::Address::Off;
    new.web.token_file = None;
    std::fs::write(&token_file, second).unwrap();
    let refused = server.reload_config(&new).await.unwrap_err().to_string();
    assert!(refused.starts_with("web.listen, web.token_file cannot change"), "{refused}");
    server.shut_down().await.unwrap();
}
