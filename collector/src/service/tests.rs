use std::net::IpAddr;
use std::time::Duration;

use dta_proto::control::collector_client::CollectorClient;
use tonic::transport::{Channel, Endpoint};

use super::*;
use crate::config::{Config, MemoryBacking};
use crate::server::RunningCollector;

/// How long to wait for an answer that comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for one that does not.
const SILENCE: Duration = Duration::from_millis(300);

async fn client(server: &RunningCollector, address: [u8; 4]) -> CollectorClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.listen)).unwrap();
    CollectorClient::new(endpoint.local_address(Some(IpAddr::from(address))).connect().await.unwrap())
}

/// A collector with as many ordinary places as one caller may have, which is as many as `Statistics` takes.
async fn server() -> RunningCollector {
    let limits = CollectorLimits { calls: 4, calls_per_caller: 4, ..CollectorLimits::default() };
    let mut config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        memory: MemoryBacking::Anonymous,
        limits,
        ..Config::default()
    };
    config.soft.port = 0;
    RunningCollector::start(&config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_all_are_read_for_one_caller_at_a_time() {
    let server = server().await;
    let turn = server.service().counting.clone().lock_owned().await;
    let mut one = client(&server, [127, 0, 0, 1]).await;
    let mut call = tokio::spawn(async move { one.statistics(StatisticsRequest {}).await });
    assert!(tokio::time::timeout(SILENCE, &mut call).await.is_err(), "it does not wait for its turn");
    drop(turn);
    let nodes = tokio::time::timeout(PATIENCE, call).await.expect("an answer").unwrap().unwrap();
    assert!(!nodes.into_inner().nodes.is_empty());
    server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_sessions_do_not_wait_for_places_of_others() {
    let server = server().await;
    // The waiting `Statistics` call occupies all ordinary places.
    let turn = server.service().counting.clone().lock_owned().await;
    let mut one = client(&server, [127, 0, 0, 1]).await;
    let holds = tokio::spawn(async move { one.statistics(StatisticsRequest {}).await });
    let mut other = client(&server, [127, 0, 0, 5]).await;
    let mut ordinary = other.clone();
    let until = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::timeout(SILENCE, ordinary.list_stores(ListStoresRequest {})).await.is_ok() {
        assert!(tokio::time::Instant::now() < until, "the places are free");
    }
    // Each call is answered, even if by a refusal.
    let code = |answer: Result<(), Status>| answer.err().map(|status| status.code());
    let open = OpenSessionRequest::default;
    let ended = EndSessionRequest { name: "t".into(), ..Default::default() };
    let renewed = RenewSessionRequest { name: "t".into(), ..Default::default() };
    let answers = tokio::time::timeout(PATIENCE, async {
        [
            code(other.preview_session(open()).await.map(drop)),
            code(other.open_session(open()).await.map(drop)),
            code(other.renew_session(renewed).await.map(drop)),
            code(other.end_session(ended).await.map(drop)),
        ]
    });
    let answers = answers.await.expect("sessions wait");
    assert!(answers.iter().all(Option::is_some), "{answers:?}");
    drop(turn);
    tokio::time::timeout(PATIENCE, holds).await.expect("an answer").unwrap().unwrap();
    server.shut_down().await.unwrap();
}
