//! Stores get other memory in the middle of the traffic: nothing else notices, and every report lands once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dta_collector::config::{Config, MemoryBacking, Transport};
use dta_collector::server::RunningCollector;
use dta_link::{Link, UdpConfig, UdpLink};
use dta_memory::reader::{key_increment, key_write};
use dta_memory::store::Store;
use dta_proto::batch::PacketBatch;
use dta_proto::control::{self, Policy, Purpose, TailRequest};
use dta_proto::key::Key;
use dta_proto::layout::{hash, key_write::Choice};
use dta_proto::store::{SlotKeys, StoreKind, StoreSpec};
use dta_proto::wire::dta::DtaBody;
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{self, BthFields, Psn, RoceRepr};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask as _, AskKeys as _, ClientOptions};

use crate::ground::{PATIENCE, Translator};

const SLOTS: u64 = 1 << 16;
/// Keys that share no slot.
pub(super) const KEYS: usize = 512;
/// Operations that may be on their way at a time, so that no socket runs over.
const UNDER_WAY: u64 = 256;

const FLOWS: u16 = 1;
const OTHERS: u16 = 2;
const BYTES: u16 = 3;
const PACKETS: u16 = 4;
const EVENTS: u16 = 5;

/// All stores; `keys` is of "flows".
pub(super) fn stores(keys: SlotKeys) -> Vec<StoreSpec> {
    let key_write = |keys| StoreKind::KeyWrite { slots: SLOTS, value_len: 12, redundancy: 1, keys };
    let counter = StoreKind::KeyIncrement { slots: SLOTS, redundancy: 1, replicas: 1 };
    let events = StoreKind::Append { lists: 1, ring: 1 << 14, batch_len: 64, entry_len: 8, notify: false };
    [
        (FLOWS, "flows", key_write(keys)),
        (OTHERS, "others", key_write(SlotKeys::Hashed)),
        (BYTES, "bytes", counter.clone()),
        (PACKETS, "packets", counter),
        (EVENTS, "events", events),
    ]
    .into_iter()
    .map(|(id, name, kind)| StoreSpec { id, name: name.into(), kind })
    .collect()
}

fn keys() -> Vec<Key> {
    let mut taken = BTreeSet::new();
    let key = |n: u32| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        Key(bytes)
    };
    (0..).map(key).filter(|key| taken.insert(hash::key_slots(key, 1, SLOTS)[0])).take(KEYS).collect()
}

fn value(n: u64) -> [u8; 12] {
    let mut value = [0xab; 12];
    value[..8].copy_from_slice(&n.to_be_bytes());
    value
}

pub(super) struct World {
    pub(super) server: RunningCollector,
    pub(super) client: RemoteCollector,
    pub(super) translator: Translator,
    source: Ipv4Addr,
    pub(super) keys: Vec<Key>,
    /// Rounds of reports sent.
    pub(super) sent: u64,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start(transport: Transport, faults: &str, source: Ipv4Addr) -> World {
        let stores = stores(SlotKeys::Hashed);
        let config = Config { memory: MemoryBacking::Anonymous, transport, stores, ..Config::default() };
        World::start_with(config, faults, source).await
    }

    pub(super) async fn start_with(config: Config, faults: &str, source: Ipv4Addr) -> World {
        let mut config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..config };
        config.soft.port = 0;
        config.soft.faults = faults.parse().unwrap();
        let server = RunningCollector::start(&config).await.unwrap();
        let client = RemoteCollector::connect(&ClientOptions::without_tls(server.listen)).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let settings = format!("[translator]\nname = 'leaf'\nsource = '{source}'\nflush.append_ms = 5\n");
        let flags = ["--faults", faults];
        let translator = Translator::start(folder.path(), &server.listen.to_string(), &settings, &flags);
        World { server, client, translator, source, keys: keys(), sent: 0, _folder: folder }
    }

    /// A counter of the collector's NIC or of the collector itself.
    pub(super) async fn counter(&mut self, node: &str, name: &str) -> u64 {
        let nodes = self.client.statistics().await.unwrap();
        let node = nodes.iter().find(|n| n.node == node).unwrap();
        node.counters.iter().find(|c| c.name == name).map_or(0, |c| c.value)
    }

    /// One report to each store.
    fn round(&mut self) {
        let n = self.sent;
        let key = self.keys[n as usize % KEYS];
        for store in [FLOWS, OTHERS] {
            self.translator.report(store, DtaBody::KeyWrite { redundancy: 1, key, value: &value(n) });
        }
        for store in [BYTES, PACKETS] {
            self.translator.report(store, DtaBody::KeyIncrement { redundancy: 1, key, delta: 1 });
        }
        self.translator.report(EVENTS, DtaBody::Append { list: 0, value: &n.to_be_bytes() });
        self.sent += 1;
    }

    /// Goes on reporting until it is so, and for half a second more.
    pub(super) async fn load(&mut self, what: &str, so: impl Fn(&World) -> bool) {
        let start = Instant::now();
        let mut end: Option<Instant> = None;
        loop {
            for _ in 0..16 {
                self.round();
            }
            // Two values, and entries by seven at most.
            let writes = 2 * self.sent + self.sent / 7;
            while self.counter("nic/soft", "executed.write").await + UNDER_WAY < writes {
                assert!(start.elapsed() < 2 * PATIENCE, "{what}: nothing arrives");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // After a stall, these rounds are all that came since it is so.
            if end.is_some_and(|end| Instant::now() >= end) {
                return;
            }
            if end.is_none() && so(self) {
                end = Some(Instant::now() + Duration::from_millis(500));
            }
            assert!(start.elapsed() < 2 * PATIENCE, "{what}: not yet");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The session as its translator has it, with its keys.
    async fn session(&mut self) -> control::Session {
        let pair = |purpose: Purpose, qpn| control::RequesterQueuePair {
            purpose: purpose.into(),
            qpn,
            start_psn: 0,
        };
        let request = control::OpenSessionRequest {
            name: "leaf".into(),
            translator: Some(control::Endpoint { ip: self.source.to_string(), ..Default::default() }),
            queue_pairs: vec![pair(Purpose::Write, 0x11), pair(Purpose::Atomic, 0x12)],
            ..Default::default()
        };
        self.client.preview_session(request).await.unwrap()
    }

    fn store(&self, name: &str) -> Arc<Store> {
        self.server.stores().get(name).unwrap()
    }

    /// How many last wrote a key before round `n`.
    pub(super) fn last_before(&self, key: usize, n: u64) -> Option<u64> {
        (n > key as u64).then(|| (n - 1 - key as u64) / KEYS as u64 * KEYS as u64 + key as u64)
    }
}

/// The round that sent a value.
pub(super) fn round_of(value: &[u8]) -> u64 {
    assert_eq!(value[8..], [0xab; 4]);
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

/// The rounds whose values a key-write store holds, by key.
fn values(store: &Store, keys: &[Key]) -> Vec<Option<u64>> {
    let reader = key_write::KeyWriteReader::new(store).unwrap();
    let mut answers = vec![key_write::KeyWriteReading::default(); keys.len()];
    let mut values = vec![0; 12 * keys.len()];
    reader.query_keys(keys, Choice::First, &mut answers, &mut values).unwrap();
    answers.iter().zip(values.chunks(12)).map(|(a, v)| a.found.then(|| round_of(v))).collect()
}

fn counters(store: &Store, keys: &[Key]) -> Vec<u64> {
    let mut answers = vec![0; keys.len()];
    key_increment::KeyIncrementReader::new(store).unwrap().query_keys(keys, &mut answers).unwrap();
    answers
}

/// Whether nothing but our own hold is on a store's memory: no key leads there any more.
fn is_left(store: &Store) -> bool {
    Arc::strong_count(&store.region) == 1
}

async fn stores_are_replaced(transport: Transport, faults: &str, source: Ipv4Addr) {
    let mut w = World::start(transport, faults, source).await;
    let entries: Arc<Mutex<Vec<u64>>> = Arc::default();
    let request = TailRequest { store: "events".into(), from_start: true, ..Default::default() };
    let mut tail = w.client.tail_list(request).await.unwrap();
    let read = entries.clone();
    let following = tokio::spawn(async move {
        while let Ok(Some(news)) = tail.next_message().await {
            let number = |entry: &Vec<u8>| u64::from_be_bytes(entry[..].try_into().unwrap());
            read.lock().unwrap().extend(news.entries.iter().map(number));
            assert_eq!((news.missing_batches, news.damaged_batches, news.overwritten_batches), (0, 0, 0));
        }
    });
    w.load("the first traffic", |w| w.sent > 2 * KEYS as u64).await;
    let before = w.session().await;

    let flows = w.store("flows");
    w.server.stores().replace_memory(w.server.stores().successor("flows").unwrap(), false).unwrap();
    w.load("writes go to the new region", |_| is_left(&flows)).await;
    let bytes = w.store("bytes");
    w.server.stores().replace_memory(w.server.stores().successor("bytes").unwrap(), false).unwrap();
    w.load("additions go to the new region", |_| is_left(&bytes)).await;

    // Everything lands, in one of the two.
    let sent = w.sent;
    let keys = w.keys.clone();
    let others: Vec<Option<u64>> = (0..KEYS).map(|key| w.last_before(key, sent)).collect();
    let counts: Vec<u64> = (0..KEYS as u64).map(|key| (sent - key).div_ceil(KEYS as u64)).collect();
    let until = Instant::now() + PATIENCE;
    loop {
        let sum: Vec<u64> = std::iter::zip(counters(&bytes, &keys), counters(&w.store("bytes"), &keys))
            .map(|(a, b)| a + b)
            .collect();
        let done = values(&w.store("others"), &keys) == others
            && counters(&w.store("packets"), &keys) == counts
            && sum == counts
            && entries.lock().unwrap().len() as u64 == sent;
        if done {
            break;
        }
        assert!(
            Instant::now() < until,
            "of {sent} rounds, {} entries were read; packets {:?}, bytes {sum:?}",
            entries.lock().unwrap().len(),
            counters(&w.store("packets"), &keys),
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(std::iter::zip(0.., entries.lock().unwrap().iter()).all(|(n, entry)| n == *entry), "in order");
    following.abort();

    // There is one round from which on all writes went to the new region.
    let (old, new) = (values(&flows, &keys), values(&w.store("flows"), &keys));
    let cut = old.iter().flatten().max().unwrap() + 1;
    assert!(cut > KEYS as u64 && cut < sent, "{cut} of {sent}");
    for key in 0..KEYS {
        assert_eq!(old[key], w.last_before(key, cut), "key {key}, before round {cut}");
        let last = w.last_before(key, sent).filter(|last| *last >= cut);
        assert_eq!(new[key], last, "key {key}, from round {cut} on");
    }
    assert!(counters(&bytes, &keys).iter().sum::<u64>() > 0);
    assert!(counters(&w.store("bytes"), &keys).iter().sum::<u64>() > 0);

    // No queue pair is another one, and none was refused anything.
    let after = w.session().await;
    let pairs = |s: &control::Session| {
        s.queue_pairs.iter().map(|q| (q.purpose, q.qpn, q.generation)).collect::<Vec<_>>()
    };
    assert_eq!(pairs(&after), pairs(&before));
    let generations = |s: &control::Session| -> BTreeMap<String, u64> {
        s.regions.iter().map(|r| (r.store.clone().unwrap().name, r.generation)).collect()
    };
    let (had, have) = (generations(&before), generations(&after));
    assert!(
        ["others", "packets", "events"].iter().all(|name| had[*name] == have[*name]),
        "{had:?}, {have:?}"
    );
    assert_eq!(have["flows"], before.generation + 1);
    assert_eq!((have["bytes"], after.generation), (before.generation + 2, before.generation + 2));
    assert_eq!(w.counter("collector", "session.queue_pairs_rebuilt").await, 0);
    for name in ["queue_pair_errors", "dropped.rkey", "dropped.unknown_queue_pair"] {
        assert_eq!(w.counter("nic/soft", name).await, 0, "{name}");
    }
    for pair in ["write", "atomic"] {
        for name in ["replaced", "nak_error"] {
            assert_eq!(w.translator.counter(&format!("queue_pair.{pair}.{name}")), Some(0), "{pair} {name}");
        }
    }
    if faults != "none" {
        assert!(w.translator.counter("queue_pair.atomic.retransmitted") > Some(0));
    }
    let asked = w.client.key_write("others", &keys, Policy::First, 0).await.unwrap();
    assert!(asked.iter().all(|answer| answer.value.is_some()));

    // The earlier key is invalid.
    let region = before.regions.iter().find(|r| r.store.as_ref().is_some_and(|s| s.name == "flows")).unwrap();
    let pair = after.queue_pairs.iter().find(|pair| pair.purpose() == Purpose::Write).unwrap();
    let mut link = UdpLink::open(&UdpConfig::for_roce_frames(SocketAddrV4::new(w.source, 0).into())).unwrap();
    let to = after.collector.as_ref().unwrap();
    let route = FrameRoute {
        src_port: link.local_addr().port(),
        dst_port: to.port as u16,
        ..FrameRoute::new(w.source, to.ip.parse().unwrap(), pair.qpn)
    };
    let by = match transport {
        Transport::Uc => roce::Transport::Uc,
        Transport::Rc => roce::Transport::Rc,
    };
    let place = BthFields { dest_qp: pair.qpn, psn: Psn::new(pair.expected_psn), ack_req: false };
    let packet = RoceRepr::write(by, place, region.address, region.rkey, &[7; 16], None);
    let mut frame = vec![0; route.buffer_len(&packet)];
    route.write_frame(&packet, &mut frame).unwrap();
    let mut batch = PacketBatch::new(1);
    batch.push(&frame, 0).unwrap();
    link.send(&mut batch).unwrap();
    let until = Instant::now() + PATIENCE;
    while w.counter("nic/soft", "dropped.rkey").await != 1 {
        assert!(Instant::now() < until, "the key of before is still good");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_is_replaced_under_load_on_uc() {
    stores_are_replaced(Transport::Uc, "none", Ipv4Addr::new(127, 71, 7, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_is_replaced_under_load_on_rc() {
    stores_are_replaced(Transport::Rc, "none", Ipv4Addr::new(127, 71, 7, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_is_replaced_under_load_on_rc_over_links_that_lose_and_reorder() {
    let faults = "drop=0.03,dup=0.02,reorder=0.02";
    stores_are_replaced(Transport::Rc, faults, Ipv4Addr::new(127, 71, 7, 3)).await;
}
