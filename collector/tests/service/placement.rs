//! Which collector has which keys, as collectors report it, and how clients cache that.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use dta_collector::config::{Config, MemoryBacking};
use dta_collector::server::RunningCollector;
use dta_collector::service::CollectorService;
use dta_proto::buckets::{self, Buckets};
use dta_proto::control::collector_server::CollectorServer;
use dta_proto::control::{
    CollectorShare, OpenSessionRequest, Policy, RenewSessionRequest, bucket_ranges,
    copies_from_ranges as read,
};
use dta_proto::key::Key;
use dta_proto::layout::{hash, key_write};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys, ClientOptions, Moment, Question, QuestionKind, Spread, SpreadMember};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::{BoxFuture, Service as TowerService, http};
use tonic::server::NamedService;
use tonic::{Code, body::Body};

use crate::common::{config, key, open_request, start};

const KEY_WRITE: QuestionKind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };

/// A session in which each of these collectors has its buckets.
fn shared(addresses: [&str; 2], limit: u8, own_share: u32) -> OpenSessionRequest {
    let buckets = [Buckets::from_range(0, limit - 1), Buckets::from_range(limit, 255)];
    let share = |(address, buckets): (&str, Buckets)| CollectorShare {
        address: address.into(),
        buckets: bucket_ranges(&buckets.into()),
        ..CollectorShare::default()
    };
    let shares = addresses.into_iter().zip(buckets).map(share).collect();
    OpenSessionRequest { shares, own_share, ..open_request("t", 50) }
}

/// The version of a collector's placement, which its answers have as well.
async fn version(client: &RemoteCollector) -> u64 {
    let placed = client.placement().await.unwrap();
    let answers = client.query_keys(Question::now("flows", [], KEY_WRITE)).await.unwrap();
    assert_eq!(answers.placement, placed.version);
    placed.version
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placement_has_another_version_after_each_change_and_each_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { memory: MemoryBacking::Directory(dir.path().join("memory")), ..config() };
    let (server, mut client) = start(&config).await;
    let mut all = BTreeSet::from([0, version(&client).await]);
    let session = client.open_session(shared(["a:1", "b:1"], 100, 0)).await.unwrap();
    let opened = version(&client).await;
    assert!(all.insert(opened));
    let flows = &client.placement().await.unwrap().stores[0];
    assert_eq!(
        (read(&flows.buckets).unwrap(), flows.written),
        (Buckets::from_range(0, 99).into(), Some(true))
    );
    // Nothing changes with a renewal.
    let request =
        RenewSessionRequest { name: "t".into(), generation: session.generation, ..Default::default() };
    client.renew_session(request).await.unwrap();
    assert_eq!(version(&client).await, opened);
    client.open_session(shared(["a:1", "b:1"], 50, 0)).await.unwrap();
    assert!(all.insert(version(&client).await));
    client.end_session("t").await.unwrap();
    assert!(all.insert(version(&client).await));
    server.shut_down().await.unwrap();
    let (server, client) = start(&config).await;
    assert!(all.insert(version(&client).await));
    server.shut_down().await.unwrap();
}

/// Writes the number of a collector under a key.
fn write(server: &RunningCollector, key: &Key, number: u8) {
    let mut slot = [0; 16];
    key_write::encode_slot(&mut slot, key, &[number; 12]);
    for at in hash::key_slots(key, 2, 1 << 20).iter() {
        let store = server.stores().get("flows").unwrap();
        store.region.write(key_write::slot_offset(*at, 12), &slot).unwrap();
    }
}

async fn client_of(address: &str) -> RemoteCollector {
    RemoteCollector::connect(&ClientOptions::without_tls(address)).await.unwrap()
}

/// The numbers of the collectors that answer for keys.
async fn answering(spread: &Spread, keys: &[Key]) -> Vec<u8> {
    let answers = spread.key_write("flows", keys, Policy::First, 0).await.unwrap();
    answers.into_iter().map(|answer| answer.value.unwrap()[0]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_change_hands_are_found_by_who_kept_where_they_were() {
    let (first, second) = (start(&config()).await.0, start(&config()).await.0);
    let addresses = [first.listen, second.listen].map(|listen| listen.to_string());
    let addresses = addresses.each_ref().map(String::as_str);
    let keys: Vec<Key> = (0..200).map(key).collect();
    keys.iter().for_each(|key| [&first, &second].iter().zip(1..).for_each(|(at, n)| write(at, key, n)));
    let mut members = Vec::new();
    for address in addresses {
        let ask = Arc::new(client_of(address).await);
        members.push(SpreadMember { address: address.into(), ask });
    }
    let both = Spread::new(members);
    for limit in [100, 200, 50] {
        for (own, address) in (0..).zip(addresses) {
            client_of(address).await.open_session(shared(addresses, limit, own)).await.unwrap();
        }
        let expected = keys.iter().map(|key| if buckets::bucket_of_key(key) < limit { 1 } else { 2 });
        for _ in 0..2 {
            assert_eq!(answering(&both, &keys).await, expected.clone().collect::<Vec<u8>>());
        }
    }
    first.shut_down().await.unwrap();
    second.shut_down().await.unwrap();
}

/// A collector older than the call `Placement`.
#[derive(Clone)]
struct Older(CollectorServer<CollectorService>);

impl TowerService<http::Request<Body>> for Older {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if request.uri().path().ends_with("/Placement") {
            *request.uri_mut() = http::Uri::from_static("/dta.v1.Collector/Unknown");
        }
        self.0.call(request)
    }
}

impl NamedService for Older {
    const NAME: &'static str = "dta.v1.Collector";
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_collector_is_asked_for_its_stores() {
    let (first, second) = (start(&config()).await.0, start(&config()).await.0);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let older = listener.local_addr().unwrap().to_string();
    let service = Older(first.service().clone().into_server());
    let serving = tonic::transport::Server::builder().add_service(service);
    let serving = tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    let addresses = [older.as_str(), &second.listen.to_string()];
    let keys: Vec<Key> = (0..200).map(key).collect();
    keys.iter().for_each(|key| [&first, &second].iter().zip(1..).for_each(|(at, n)| write(at, key, n)));
    let mut members = Vec::new();
    for (own, address) in (0..).zip(addresses) {
        let mut client = client_of(address).await;
        client.open_session(shared(addresses, 128, own)).await.unwrap();
        members.push(SpreadMember { address: address.into(), ask: Arc::new(client) });
    }
    let expected = keys.iter().map(|key| if buckets::bucket_of_key(key) < 128 { 1 } else { 2 });
    assert_eq!(answering(&Spread::new(members), &keys).await, expected.collect::<Vec<u8>>());
    assert_eq!(client_of(&older).await.placement().await.unwrap().version, 0);

    // Another moment than now is refused by either.
    for address in addresses {
        let at = Moment::from(1_700_000_000_000);
        let question = Question { at, ..Question::now("flows", [], KEY_WRITE) };
        let refused = crate::common::status_of(client_of(address).await.query_keys(question).await);
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
    }
    serving.abort();
    first.shut_down().await.unwrap();
    second.shut_down().await.unwrap();
}
