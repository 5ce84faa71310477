//! What one client cannot do to others: with messages, calls, tails and connections.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::common::{config, key, open_request, start, status_of};
use dta_collector::config::{CollectorLimits, Config};
use dta_collector::server::RunningCollector;
use dta_proto::codec::BoundedCodec;
use dta_proto::control::MAX_NODES;
use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::{self, Policy};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys, ClientOptions};
use tokio::io::AsyncReadExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

fn renewal(nodes: usize, name: &str) -> control::RenewSessionRequest {
    let node = |n| control::NodeStatistics { node: format!("{name}{n}"), ..Default::default() };
    control::RenewSessionRequest {
        name: "t".into(),
        generation: 1,
        statistics: (0..nodes).map(node).collect(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_messages_are_refused_and_short_ones_that_unfold_too() {
    let (server, mut client) = start(&config()).await;
    // 5 MB, in few parts.
    let long = renewal(10_000, &"n".repeat(500));
    let refused = status_of(client.renew_session(long).await);
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    // Below 4 MiB, with empty parts of which each takes 100 bytes and more once it is read.
    let flood = control::RenewSessionRequest {
        statistics: vec![control::NodeStatistics::default(); 2_000_000],
        ..renewal(0, "")
    };
    assert!(prost::Message::encoded_len(&flood) < 4 << 20);
    let refused = status_of(client.renew_session(flood).await);
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("parts"), "{refused}");
    // The longest query is one of these no more than it was.
    let keys: Vec<_> = (0..dta_proto::control::MAX_KEYS as u32).map(key).collect();
    client.key_write("", &keys, Policy::First, 0).await.unwrap();
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_is_bounded_and_its_session_looked_up_first() {
    let (server, mut client) = start(&config()).await;
    let refused = status_of(client.renew_session(renewal(MAX_NODES + 1, "n")).await);
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    let end = control::EndSessionRequest {
        name: "t".into(),
        generation: 1,
        statistics: renewal(MAX_NODES + 1, "n").statistics,
    };
    assert_eq!(status_of(client.give_up_session(end).await).code(), Code::NotFound);
    let session = client.open_session(open_request("t", 50)).await.unwrap();
    let with = |nodes| control::RenewSessionRequest { generation: session.generation, ..renewal(nodes, "n") };
    let refused = status_of(client.renew_session(with(MAX_NODES + 1)).await);
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    client.renew_session(with(MAX_NODES)).await.unwrap();
    server.shut_down().await.unwrap();
}

/// A client whose connection comes from an address of loopback.
async fn from(server: &RunningCollector, address: [u8; 4]) -> CollectorClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.listen)).unwrap();
    CollectorClient::new(endpoint.local_address(Some(IpAddr::from(address))).connect().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_cannot_take_all_tails() {
    let limits = CollectorLimits { tails: 4, tails_per_caller: 3, ..CollectorLimits::default() };
    let server = RunningCollector::start(&Config { limits, ..config() }).await.unwrap();
    let (mut one, mut again, mut other) = (
        from(&server, [127, 0, 0, 1]).await,
        from(&server, [127, 0, 0, 1]).await,
        from(&server, [127, 0, 0, 5]).await,
    );
    let request = || control::TailRequest { store: "events".into(), ..Default::default() };
    let mut held = Vec::new();
    for client in [&one, &again, &one] {
        held.push(client.clone().tail(request()).await.unwrap());
    }
    // Over all its connections.
    let refused = again.tail(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("tails_per_caller"), "{refused}");
    let theirs = other.tail(request()).await.unwrap();
    let refused = other.tail(request()).await.unwrap_err();
    assert!(refused.message().contains("`tails`"), "{refused}");
    drop((held.pop(), theirs));
    // The places are free once the collector has noticed that nobody reads any more.
    let until = Instant::now() + Duration::from_secs(60);
    while one.tail(request()).await.is_err() {
        assert!(Instant::now() < until, "no place becomes free");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.shut_down().await.unwrap();
}

/// Begins a call and does not send its message.
async fn stall(client: Channel) -> Status {
    let mut grpc = tonic::client::Grpc::new(client);
    grpc.ready().await.unwrap();
    let codec = BoundedCodec::<control::ListStoresRequest, control::ListStoresResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/dta.v1.Collector/ListStores");
    let request = Request::new(tokio_stream::pending::<control::ListStoresRequest>());
    grpc.client_streaming(request, path, codec).await.expect_err("must be cut off")
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_stall_keep_nobody_waiting_but_their_caller() {
    let start = async |call_seconds| {
        let limits =
            CollectorLimits { calls: 8, calls_per_caller: 4, call_seconds, ..CollectorLimits::default() };
        let server = RunningCollector::start(&Config { limits, ..config() }).await.unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", server.listen)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let stalled: Vec<_> = (0..12).map(|_| tokio::spawn(stall(channel.clone()))).collect();
        (server, channel, stalled)
    };
    let list = control::ListStoresRequest {};
    // These would stall for ten minutes.
    let (server, channel, stalled) = start(600).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut other = from(&server, [127, 0, 0, 5]).await;
    let answer = tokio::time::timeout(Duration::from_secs(60), other.list_stores(list)).await;
    answer.expect("another caller waits").unwrap();
    stalled.iter().for_each(tokio::task::JoinHandle::abort);
    drop(channel);
    server.shut_down().await.unwrap();

    let began = Instant::now();
    let (server, channel, stalled) = start(3).await;
    for call in stalled {
        let ended = tokio::time::timeout(Duration::from_secs(60), call).await.expect("cut off").unwrap();
        assert!(matches!(ended.code(), Code::Cancelled | Code::DeadlineExceeded), "{ended}");
    }
    assert!(began.elapsed() >= Duration::from_secs(3));
    CollectorClient::new(channel).list_stores(list).await.unwrap();
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded_for_each_address() {
    let limits = CollectorLimits { connections: 8, connections_per_address: 3, ..CollectorLimits::default() };
    let server = RunningCollector::start(&Config { limits, ..config() }).await.unwrap();
    // Each has a call under way: one that has had none for two seconds would leave for the fourth.
    let follow = control::TailRequest { store: "events".into(), ..Default::default() };
    let mut one = Vec::new();
    for _ in 0..3 {
        let mut client = from(&server, [127, 0, 0, 1]).await;
        let tail = client.tail(follow.clone()).await.unwrap();
        one.push((client, tail));
    }
    let mut fourth = tokio::net::TcpStream::connect(server.listen).await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(60), fourth.read(&mut [0])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)));
    let mut other = from(&server, [127, 0, 0, 5]).await;
    other.list_stores(control::ListStoresRequest {}).await.unwrap();
    let nodes = other.statistics(control::StatisticsRequest {}).await.unwrap().into_inner().nodes;
    let collector = nodes.iter().find(|n| n.node == "collector").unwrap();
    let count = |name: &str| collector.counters.iter().find(|c| c.name == name).map(|c| c.value);
    assert_eq!((count("connections.accepted"), count("connections.refused")), (Some(4), Some(1)));
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_comes_through_silent_connections() {
    let limits =
        CollectorLimits { connections: 16, connections_per_address: 16, ..CollectorLimits::default() };
    let server = RunningCollector::start(&Config { limits, ..config() }).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(server.listen).await.unwrap());
    }
    let ask = async {
        RemoteCollector::connect(&ClientOptions::without_tls(server.listen))
            .await
            .unwrap()
            .fetch_stores()
            .await
    };
    let stores = tokio::time::timeout(Duration::from_secs(60), ask).await.expect("an answer").unwrap();
    assert_eq!(stores.len(), 16);
    server.shut_down().await.unwrap();
}

/// The sockets of this process that were accepted at an address.
fn accepted_at(listen: std::net::SocketAddr) -> Vec<std::net::TcpStream> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|fd: i32| pidfd_getfd(&this, fd, PidfdGetfdFlags::empty()).ok())
        .map(std::net::TcpStream::from)
        .filter(|stream| stream.local_addr().is_ok_and(|at| at == listen) && stream.peer_addr().is_ok())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_do_not_wait_for_an_acknowledgement() {
    let (server, client) = start(&config()).await;
    client.fetch_stores().await.unwrap();
    let accepted = accepted_at(server.listen);
    assert_eq!(accepted.len(), 1);
    // Without it the last part of an answer waits until the client acknowledges the one before.
    assert!(accepted[0].nodelay().unwrap());
    drop(accepted);
    server.shut_down().await.unwrap();
}
