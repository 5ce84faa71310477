//! Epochs turn in the middle of the traffic: every report is in one of them, and each is asked afterwards.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use dta_collector::config::{Config, HistoryConfig, MemoryBacking, Transport};
use dta_collector::server::RunningCollector;
use dta_files::moment::now;
use dta_history::EpochTable;
use dta_proto::control::{Epoch, EpochState, KeyWriteAnswer, Policy};
use dta_proto::key::Key;
use dta_proto::layout::key_write::matches_inline;
use dta_proto::store::SlotKeys;
use dta_rpc::{Ask, AskKeys, KeyAnswer, Question, QuestionKind, Span};

use crate::ground::PATIENCE;
use crate::replaced::{KEYS, World, round_of, stores};

fn config(folder: &Path, transport: Transport, keys: SlotKeys) -> Config {
    Config {
        stores: stores(keys),
        memory: MemoryBacking::Directory(folder.join("memory")),
        history: HistoryConfig { directory: Some(folder.join("history")), ..HistoryConfig::default() },
        epochs: BTreeMap::from([("flows".to_owned(), Duration::from_secs(2))]),
        transport,
        ..Config::default()
    }
}

/// The rounds whose values "flows" held at a moment, by key, and the epoch that says so.
async fn held(ask: &dyn Ask, keys: &[Key], at: u64) -> (Vec<Option<u64>>, Epoch) {
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let question = Question { at: at.into(), ..Question::now("flows", keys, kind) };
    let round = |answer: KeyAnswer| match answer {
        KeyAnswer::KeyWrite(answer) => answer.value.map(|value| round_of(&value)),
        other => panic!("{other:?}"),
    };
    let answers = ask.query_keys(question).await.unwrap();
    (answers.of_keys.into_iter().map(round).collect(), answers.epoch.expect("a store with epochs"))
}

async fn epochs_turn(transport: Transport, slot_keys: SlotKeys, faults: &str, source: Ipv4Addr) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), transport, slot_keys);
    let mut w = World::start_with(config.clone(), faults, source).await;
    let generation = |w: &World| w.server.stores().get("flows").unwrap().generation;
    // A moment of each epoch.
    let mut moments: BTreeMap<u64, u64> = BTreeMap::new();
    while moments.len() < 4 {
        let before = generation(&w);
        let at = now();
        w.load("traffic goes on", |_| true).await;
        if generation(&w) == before {
            moments.entry(before).or_insert(at);
        }
    }
    let last = *moments.keys().last().unwrap();
    // The last of them is over, too.
    w.load("the last epoch ends", |w| generation(w) > last).await;
    let until = Instant::now() + PATIENCE;
    let is_kept = |epoch: &Epoch| (epoch.generation, epoch.state()) == (last, EpochState::Kept);
    let listed = loop {
        let listed = w.client.all_epochs("flows", 0, 0).await.unwrap();
        if listed.iter().any(is_kept) {
            break listed;
        }
        assert!(Instant::now() < until, "not all epochs are written");
        w.load("traffic goes on", |_| true).await;
    };
    // A moment between the end of an epoch and the change of its memory is the next one's.
    moments.retain(|generation, at| {
        let is_its = |epoch: &Epoch| {
            epoch.generation == *generation && (epoch.opened..=epoch.flipped_from).contains(at)
        };
        listed.iter().any(is_its)
    });
    assert!(moments.len() >= 2, "{moments:?}");
    let keys = w.keys.clone();
    let mut epochs = Vec::new();
    for (generation, at) in &moments {
        let (rounds, epoch) = held(&w.client, &keys, *at).await;
        assert_eq!((epoch.generation, epoch.state()), (*generation, EpochState::Kept));
        assert!((epoch.opened..=epoch.flipped_from).contains(at) && epoch.confirmed, "{at}: {epoch:?}");
        assert!(listed.contains(&epoch), "{epoch:?} is not among {listed:?}");
        epochs.push(rounds);
    }

    // A series has the same in each of them.
    let span = Span { since: moments.values().copied().min().unwrap(), until: 0 };
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let series = w.client.series_of::<KeyWriteAnswer>("flows", &keys, kind, span).await.unwrap();
    for (generation, rounds) in moments.keys().zip(&epochs) {
        let of_epoch = series.iter().filter(|(epoch, _)| epoch.generation == *generation);
        let answers = of_epoch.flat_map(|(_, answers)| answers);
        let answered: Vec<_> = answers.map(|answer| answer.value.as_deref().map(round_of)).collect();
        assert_eq!(answered, *rounds, "in the series, epoch {generation}");
    }

    // From the first epoch that was asked on, each has the last round of each key between two cuts.
    let cut = |epoch: &[Option<u64>]| epoch.iter().flatten().max().unwrap() + 1;
    let is_next = |a: u64, b: u64| b == a + 1;
    let generations: Vec<u64> = moments.keys().copied().collect();
    for (n, epoch) in epochs.iter().enumerate() {
        let end = cut(epoch);
        // Of the first, and behind one that was not asked, only the end is known.
        let begin = (n > 0 && is_next(generations[n - 1], generations[n])).then(|| cut(&epochs[n - 1]));
        let begin = begin.unwrap_or_else(|| *epoch.iter().flatten().min().unwrap());
        assert_eq!(epoch.len(), KEYS);
        for (key, held) in epoch.iter().enumerate() {
            let last = w.last_before(key, end).filter(|last| *last >= begin);
            assert_eq!(*held, last, "key {key} in rounds {begin} to {end}, epoch {}", generations[n]);
        }
    }

    assert_eq!(w.counter("collector", "epochs.lost").await, 0);
    assert_eq!(w.counter("collector", "session.queue_pairs_rebuilt").await, 0);
    for name in ["queue_pair_errors", "dropped.rkey", "dropped.unknown_queue_pair"] {
        assert_eq!(w.counter("nic/soft", name).await, 0, "{name}");
    }
    for name in ["replaced", "nak_error"] {
        assert_eq!(w.translator.counter(&format!("queue_pair.write.{name}")), Some(0), "{name}");
    }

    // A collector that starts again knows them.
    let World { server, translator, .. } = w;
    drop(translator);
    server.shut_down().await.unwrap();
    let mut again = Config { listen: "127.0.0.1:0".parse().unwrap(), ..config };
    again.soft.port = 0;
    let server = RunningCollector::start(&again).await.unwrap();
    for (at, epoch) in moments.values().zip(&epochs) {
        assert_eq!(held(server.service(), &keys, *at).await.0, *epoch, "after a restart, at {at}");
    }
    server.shut_down().await.unwrap();

    if slot_keys == SlotKeys::Inline {
        let table = EpochTable::open_existing(&folder.path().join("history"), "flows").unwrap();
        for (generation, rounds) in moments.keys().zip(&epochs) {
            assert_eq!(listed_in(&table, *generation), of_keys(&keys, rounds), "epoch {generation}");
        }
    }
}

/// The rounds of keys that have one, by key.
fn of_keys(keys: &[Key], rounds: &[Option<u64>]) -> BTreeMap<Key, u64> {
    keys.iter().zip(rounds).filter_map(|(key, round)| Some((*key, (*round)?))).collect()
}

/// What the history alone says that its keys had in an epoch.
fn listed_in(table: &EpochTable, generation: u64) -> BTreeMap<Key, u64> {
    let epochs = table.kept_epochs().unwrap();
    let kept = epochs.iter().find(|kept| kept.epoch.generation == generation).unwrap();
    let mut listed = BTreeMap::new();
    let each = |_, slot: &[u8]| {
        let key = Key(*slot[4..].first_chunk().unwrap());
        let value = matches_inline(slot, &key).expect("a whole slot");
        listed.insert(key, round_of(value));
    };
    table.scan_epoch(kept.epoch.number, each).unwrap();
    listed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn epochs_turn_under_load_on_uc() {
    epochs_turn(Transport::Uc, SlotKeys::Hashed, "none", Ipv4Addr::new(127, 71, 8, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn epochs_turn_under_load_on_rc_over_links_that_lose_and_reorder() {
    let faults = "drop=0.1,dup=0.02,reorder=0.02";
    epochs_turn(Transport::Rc, SlotKeys::Hashed, faults, Ipv4Addr::new(127, 71, 8, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn epochs_of_a_store_with_inline_keys_turn_and_their_history_lists_the_keys() {
    epochs_turn(Transport::Uc, SlotKeys::Inline, "none", Ipv4Addr::new(127, 71, 8, 3)).await;
}
