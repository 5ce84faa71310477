//! Queries of one key at a time, over two collectors that share a store and over one collector. The collectors run in
//! this process and are queried over loopback. A translator's session, or etcd, says which of them has which keys.

use std::cell::Cell;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dta_collector::config::{CollectorClusterConfig, Config, MemoryBacking};
use dta_collector::server::RunningCollector;
use dta_proto::buckets::{self, Buckets};
use dta_proto::control::{
    CollectorShare, Endpoint, OpenSessionRequest, Policy, Purpose, RequesterQueuePair, bucket_ranges,
};
use dta_proto::key::Key;
use dta_proto::layout::{self, hash};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys, ClientOptions, Spread, SpreadMember};
use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::harness::{Rates, Scale, measure_rates};
use super::query::key_from_number;

const SLOTS: u64 = 1 << 16;
/// Few enough that all are found.
const KEYS: u64 = 256;
/// Queries per call: some milliseconds.
const QUESTIONS: usize = 64;
/// The first bucket of the second collector.
const SECOND: u8 = 128;
/// How long a cluster may take to place everything.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(scale: &Scale) -> anyhow::Result<Rates> {
    let runtime = build_runtime()?;
    let (first, second) = runtime
        .block_on(async { anyhow::Ok((start_collector(None).await?, start_collector(None).await?)) })?;
    runtime.block_on(announce_shares([&first, &second]))?;
    measure_query_rates(scale, &runtime, [first, second], Buckets::from_range(0, SECOND - 1))
}

/// The same in a cluster, with a node of etcd that is started for it.
pub(super) fn in_cluster(scale: &Scale) -> anyhow::Result<Rates> {
    let etcd = Etcd::spawn_node()?;
    let config = etcd.placement_config();
    let runtime = build_runtime()?;
    let of = |id: &str| CollectorClusterConfig {
        id: Some(id.to_owned()),
        ..CollectorClusterConfig::with_etcd(config.clone())
    };
    let (first, second) = runtime.block_on(async {
        anyhow::Ok((start_collector(Some(of("a"))).await?, start_collector(Some(of("b"))).await?))
    })?;
    let begin = Instant::now();
    let placed = loop {
        let placed = runtime.block_on(dta_cluster::read(&config)).map(|view| view.placement);
        match placed {
            Ok(placed) if placed.keys.iter().any(|of_copy| of_copy.len() == 2) => break placed,
            _ if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(100)),
            Ok(placed) => anyhow::bail!("not everything is placed: {placed:?}"),
            Err(error) => return Err(error.into()),
        }
    };
    // Until both collectors have heard of it, too.
    let both = [&first.1, &second.1];
    while runtime
        .block_on(join_all(both.map(Ask::placement)))
        .iter()
        .any(|answer| answer.as_ref().map_or(0, |placement| placement.cluster) < placed.version)
    {
        ensure!(begin.elapsed() < PATIENCE, "a collector does not receive the placement");
        std::thread::sleep(Duration::from_millis(100));
    }
    measure_query_rates(scale, &runtime, [first, second], placed.buckets_of_copy(0, "a"))
}

fn build_runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// Asks two collectors, the first of which has these buckets, compared with the first one alone.
fn measure_query_rates(
    scale: &Scale,
    runtime: &Runtime,
    [first, second]: [Collector; 2],
    of_first: Buckets,
) -> anyhow::Result<Rates> {
    let all: Vec<Key> = (0..KEYS).map(key_from_number).collect();
    let is_of_first = |key: &Key| of_first.contains(buckets::bucket_of_key(key));
    for key in &all {
        write_all_copies(if is_of_first(key) { &first.0 } else { &second.0 }, key)?;
    }
    let member = |(_, client, address): &Collector| SpreadMember {
        address: address.clone(),
        ask: Arc::new(client.clone()),
    };
    let both = Spread::new(vec![member(&first), member(&second)]);
    let of_first: Vec<Key> = all.iter().copied().filter(is_of_first).collect();
    let (mut work, mut floor) = (all.iter().cycle(), of_first.iter().cycle());
    let lacking = Cell::new(0);
    let ask = |ask: &dyn Ask, key: &Key| {
        let answers = runtime.block_on(ask.key_write("flows", &[*key], Policy::First, 0));
        let is_there = answers.is_ok_and(|answers| answers.iter().all(|answer| answer.value.is_some()));
        lacking.set(lacking.get() + u64::from(!is_there));
    };
    let rates = measure_rates(
        scale,
        || {
            work.by_ref().take(QUESTIONS).for_each(|key| ask(&both, key));
            QUESTIONS as u64
        },
        || {
            floor.by_ref().take(QUESTIONS).for_each(|key| ask(&first.1, key));
            QUESTIONS as u64
        },
    );
    ensure!(lacking.get() == 0, "{} queries returned no value", lacking.get());
    drop(both);
    for (server, ..) in [first, second] {
        runtime.block_on(server.shut_down())?;
    }
    Ok(rates)
}

/// A collector with its client and its address.
type Collector = (RunningCollector, RemoteCollector, String);

async fn start_collector(cluster: Option<CollectorClusterConfig>) -> anyhow::Result<Collector> {
    let kind = StoreKind::KeyWrite { slots: SLOTS, value_len: 12, redundancy: 2, keys: Default::default() };
    let stores = vec![StoreSpec { id: 1, name: "flows".into(), kind }];
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let mut config =
        Config { listen, memory: MemoryBacking::Anonymous, stores, cluster, ..Config::default() };
    config.soft.port = 0;
    let server = RunningCollector::start(&config).await?;
    let address = server.listen.to_string();
    Ok((server, RemoteCollector::connect(&ClientOptions::without_tls(&address)).await?, address))
}

/// A node of etcd, killed when it is dropped.
struct Etcd {
    node: Child,
    url: String,
    _folder: TempDir,
}

impl Etcd {
    fn spawn_node() -> anyhow::Result<Etcd> {
        let folder = tempfile::tempdir()?;
        let free = || anyhow::Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?);
        let [url, peers] = [free()?, free()?].map(|address| format!("http://{address}"));
        let node = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.path())
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start etcd: install etcd-server")?;
        Ok(Etcd { node, url, _folder: folder })
    }

    fn placement_config(&self) -> dta_cluster::Config {
        dta_cluster::Config::new(vec![self.url.clone()])
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

/// Announces to both which keys each of them has, as a translator does.
async fn announce_shares(both: [&Collector; 2]) -> anyhow::Result<()> {
    let buckets = [Buckets::from_range(0, SECOND - 1), Buckets::from_range(SECOND, u8::MAX)];
    let share = |((_, _, address), buckets): (&Collector, Buckets)| CollectorShare {
        address: address.clone(),
        buckets: bucket_ranges(&buckets.into()),
        ..CollectorShare::default()
    };
    let shares: Vec<_> = both.into_iter().zip(buckets).map(share).collect();
    for (own_share, (_, client, _)) in (0..).zip(both) {
        let request = OpenSessionRequest {
            name: "bench".into(),
            translator: Some(Endpoint { ip: "127.0.0.2".into(), ..Endpoint::default() }),
            queue_pairs: vec![RequesterQueuePair { purpose: Purpose::Write.into(), qpn: 16, start_psn: 0 }],
            shares: shares.clone(),
            own_share,
            ..OpenSessionRequest::default()
        };
        client.clone().open_session(request).await?;
    }
    Ok(())
}

/// Writes a value to all copies of a key, as the NIC would.
fn write_all_copies(server: &RunningCollector, key: &Key) -> anyhow::Result<()> {
    let mut slot = [0; 16];
    layout::key_write::encode_slot(&mut slot, key, &[7; 12]);
    let store = server.stores().get("flows")?;
    for at in hash::key_slots(key, 2, SLOTS).iter() {
        store.region.write(layout::key_write::slot_offset(*at, 12), &slot).context("inside the store")?;
    }
    Ok(())
}
