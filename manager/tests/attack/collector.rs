//! The collector.

use dta_proto::control::collector_client::CollectorClient;
use dta_proto::control::query_request::Of;
use dta_proto::control::{
    CollectorShare, Counter, KeyWriteQuery, ListSessionsRequest, ListStoresRequest, MAX_KEYS, MAX_READ,
    NodeStatistics, OpenSessionRequest, PostcardingQuery, QueryRequest, ReadMemoryRequest,
    RenewSessionRequest, StatisticsRequest,
};

use crate::attacker::{Attack, Call, How};
use crate::common::daemon::counter;
use crate::common::int_bed::{IntBed, Setup};
use crate::{MOST_PARTS, RENEWALS, bed, call, endures, other};

/// With `until_cut`, until it has closed a connection for an answer that was not read.
async fn collector_under(mut bed: IntBed, attack: Attack, until_cut: bool) {
    let stores = dta_rpc::Ask::fetch_stores(&bed.client).await.unwrap();
    let regions = stores.iter().map(|store| store.length).sum::<u64>();
    let daemon = bed.collector.take().unwrap();
    let at = daemon.said("listen").parse().unwrap();
    let mut other = CollectorClient::new(other(at).await).max_decoding_message_size(64 << 20);
    let mut renewed = None;
    let how = attack.how;
    let ask = async |n| {
        match n % 2 {
            0 => drop(other.list_stores(ListStoresRequest {}).await?),
            _ => {
                let keys = vec![vec![1; 16]; 100];
                other.query(query("flows", keys, Of::KeyWrite(KeyWriteQuery::default()))).await?;
            }
        }
        let nodes = other.statistics(StatisticsRequest {}).await?.into_inner().nodes;
        assert_eq!(counter(&nodes, "collector", "session.expired"), 0, "{how:?}");
        let now = counter(&nodes, "collector", "session.renewed");
        let cut = !until_cut || counter(&nodes, "collector", "connections.unread") > 0;
        Ok(cut && now >= *renewed.get_or_insert(now) + RENEWALS)
    };
    endures(daemon, "collector", regions, attack, ask).await;
}

fn query(store: &str, keys: Vec<Vec<u8>>, of: Of) -> QueryRequest {
    QueryRequest { store: store.into(), keys, at: 0, of: Some(of) }
}

const LIST_STORES: &str = "/dta.v1.Collector/ListStores";

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_calls_keep_a_collector_from_nobody() {
    let what = vec![call(LIST_STORES, &ListStoresRequest {})];
    let attack = Attack { how: How::Cancelled, addresses: 1, connections: 4, calls: 16, what };
    collector_under(bed().await, attack, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_do_not_fill_a_collector() {
    let read = ReadMemoryRequest { store: "flows".into(), offset: 0, length: MAX_READ };
    let keys = vec![vec![7; 16]; MAX_KEYS];
    let what = vec![
        call("/dta.v1.Collector/ReadMemory", &read),
        call("/dta.v1.Collector/Query", &query("paths", keys, Of::Postcarding(PostcardingQuery {}))),
    ];
    let attack = Attack { how: How::Unread, addresses: 1, connections: 40, calls: 144, what };
    let setup = Setup { dialects: &["auto"], collector: "[limits]\ncall_seconds = 10", ..Setup::default() };
    collector_under(IntBed::start(&setup).await, attack, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_messages_end_no_session() {
    let renew = Call { path: "/dta.v1.Collector/RenewSession", message: Vec::new() };
    let what = vec![call(LIST_STORES, &ListStoresRequest {}), renew];
    let attack = Attack { how: How::Empty, addresses: 8, connections: 4, calls: 16, what };
    collector_under(bed().await, attack, false).await;
}

/// A bed whose collector has been given as many counters as it keeps, with names as short as can be.
async fn full_bed() -> IntBed {
    let bed = IntBed::start(&Setup { dialects: &["auto"], ..Setup::default() }).await;
    let mut client = CollectorClient::connect(format!("http://{}", bed.address())).await.unwrap();
    let sessions = client.list_sessions(ListSessionsRequest {}).await.unwrap().into_inner().sessions;
    let letters = || (b'a'..=b'z').map(char::from);
    let names = letters().flat_map(|a| letters().map(move |b| format!("{a}{b}")));
    let counters: Vec<Counter> = names.map(|name| Counter { name, value: 1 }).collect();
    for turn in 0..60 {
        let node = |n| NodeStatistics {
            node: format!("reporter/x{}", turn * 120 + n),
            counters: counters.clone(),
            ..Default::default()
        };
        let renew = RenewSessionRequest {
            name: sessions[0].name.clone(),
            generation: sessions[0].generation,
            statistics: (0..120).map(node).collect(),
            ..Default::default()
        };
        client.renew_session(renew).await.unwrap();
    }
    bed
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: fills tables, and makes answers of hundreds of megabytes"]
async fn a_collector_with_full_tables_stays_below_its_figure() {
    let attack = |what| Attack { how: How::Unread, addresses: 3, connections: 8, calls: 16, what };
    let statistics = vec![call("/dta.v1.Collector/Statistics", &StatisticsRequest {})];
    collector_under(full_bed().await, attack(statistics), false).await;
    let open =
        OpenSessionRequest { shares: vec![CollectorShare::default(); MOST_PARTS], ..Default::default() };
    let statistics = vec![NodeStatistics::default(); MOST_PARTS];
    let renew = RenewSessionRequest { name: "nobody".into(), statistics, ..Default::default() };
    let what = vec![
        call(LIST_STORES, &ListStoresRequest {}),
        call("/dta.v1.Collector/PreviewSession", &open),
        call("/dta.v1.Collector/RenewSession", &renew),
    ];
    collector_under(full_bed().await, attack(what), false).await;
}
