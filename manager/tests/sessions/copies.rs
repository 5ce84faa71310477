//! One translator and two collectors that have the same keys: the copies of values are spread over them, counters and
//! paths are at both.

use dta_proto::buckets;
use dta_proto::key::Key;
use dta_proto::to_hex_digits;
use dta_proto::wire::dta::DtaBody;
use serde_json::{Value, json};

use crate::apart;
use crate::ground::{Ground, Translator, wait_until};

const FLOWS: u16 = 1;
const PATHS: u16 = 2;
const COUNTS: u16 = 3;
const SLOTS: u64 = 1 << 17;

/// The same stores in both.
const STORES: &str = "
[[store]]
id = 1
name = 'flows'
kind = 'key-write'
slots = 131072
value_len = 12
redundancy = 2
spread_copies = true

[[store]]
id = 2
name = 'paths'
kind = 'postcarding'
slots = 131072
hops = 6
redundancy = 1
replicas = 2

[[store]]
id = 3
name = 'counts'
kind = 'key-increment'
slots = 131072
redundancy = 2
replicas = 2
";

fn config(source: &str, addresses: [&str; 2], buckets: [&str; 2]) -> String {
    let of = |n: usize| {
        format!("[[translator.collector]]\naddress = '{}'\nbuckets = {}\n", addresses[n], buckets[n])
    };
    format!("[translator]\nname = 'leaf'\nsource = '{source}'\n{}{}", of(0), of(1))
}

const HALVES: [&str; 2] = ["['0-127', '128-255']", "['128-255', '0-127']"];

struct World {
    first: Ground,
    second: Ground,
    translator: Translator,
    /// Reports that were sent.
    sent: u64,
}

impl World {
    fn start(source: &str, stores: &str) -> World {
        World::start_each(source, [stores, stores])
    }

    fn start_each(source: &str, stores: [&str; 2]) -> World {
        let first = Ground::start_with(stores[0], "127.0.0.1");
        let second = Ground::start_with(stores[1], "127.0.0.3");
        let config = config(source, [first.address(), second.address()], HALVES);
        let translator = first.start_translator(&config, &[]);
        World { first, second, translator, sent: 0 }
    }

    fn both(&self) -> String {
        format!("{},{}", self.second.address(), self.first.address())
    }

    /// Sends as many reports as the socket of the translator has room for, and waits until it has executed them.
    fn send(&mut self, bodies: Vec<(u16, DtaBody<'_>)>) {
        for some in bodies.chunks(150) {
            some.iter().for_each(|(store, body)| self.translator.report(*store, *body));
            self.sent += some.len() as u64;
            self.translator.wait_for("emitted", self.sent);
        }
    }

    fn write(&mut self, keys: &[Key], turn: u8) {
        let values: Vec<[u8; 12]> = keys.iter().map(|key| value(key, turn)).collect();
        let reports = keys.iter().zip(&values);
        self.send(
            reports
                .map(|(key, value)| (FLOWS, DtaBody::KeyWrite { redundancy: 0, key: *key, value }))
                .collect(),
        );
    }

    /// Answers of the collectors at these addresses, and what the command logged.
    fn ask(&self, query: &[&str], keys: &[Key], addresses: &str) -> (Option<i32>, Vec<Value>, String) {
        let keys: Vec<String> = keys.iter().map(|key| to_hex_digits(&key.0)).collect();
        let mut arguments: Vec<&str> = [&["query"], query].concat();
        arguments.extend(keys.iter().map(String::as_str));
        let (status, out, stderr) = self.first.collector_at(addresses, &arguments);
        (status, serde_json::from_str(&out).unwrap_or_default(), stderr)
    }

    /// How many of these keys have the value of a turn.
    fn right(&self, keys: &[Key], turn: u8, addresses: &str) -> usize {
        self.right_at(&[], keys, turn, addresses)
    }

    /// The same with more flags, such as a moment.
    fn right_at(&self, flags: &[&str], keys: &[Key], turn: u8, addresses: &str) -> usize {
        let query = [&["key-write", "--store", "flows"], flags].concat();
        let (_, answers, stderr) = self.ask(&query, keys, addresses);
        assert_eq!(answers.len(), keys.len(), "{stderr}");
        let is_right = |(key, answer): &(&Key, &Value)| answer["value"] == to_hex_digits(&value(key, turn));
        keys.iter().zip(&answers).filter(is_right).count()
    }

    fn says_that_the_second_is_away(&self, stderr: &str) {
        let says = format!("the collector at {} does not answer", self.second.address());
        assert!(stderr.contains(&says), "{stderr}");
    }
}

/// Keys of both halves, no two of which share a slot at any collector.
fn keys(count: usize) -> Vec<Key> {
    let keys = apart::keys(count, SLOTS);
    assert!(
        [true, false].iter().all(|low| keys.iter().any(|key| (buckets::bucket_of_key(key) < 128) == *low))
    );
    keys
}

fn value(key: &Key, turn: u8) -> [u8; 12] {
    let mut value = [turn; 12];
    value[..4].copy_from_slice(&key.0[12..]);
    value
}

#[test]
fn of_two_collectors_with_a_copy_each_one_can_die_and_come_back_without_a_wrong_answer() {
    let keys = keys(10_000);
    let all = keys.len();
    let mut world = World::start("127.71.6.11", STORES);
    let both = world.both();
    world.write(&keys, 1);
    // No more writes than with one collector.
    assert_eq!(world.translator.counter("operations"), Some(20_000));
    wait_until("both have a copy of each key", || {
        let alone = [world.first.address(), world.second.address()];
        alone.iter().all(|address| world.right(&keys, 1, address) == all)
    });
    let (status, answers, stderr) = world.ask(&["key-write", "--store", "flows"], &keys[..1], &both);
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!((&answers[0]["agreeing"], &answers[0]["copies"]), (&json!(2), &json!(2)));

    // While it is dead.
    world.second.kill();
    assert_eq!(world.right(&keys, 1, &both), all);
    let (status, answers, stderr) = world.ask(&["key-write", "--store", "flows"], &keys[..1], &both);
    assert_eq!((status, &answers[0]["copies"]), (Some(0), &json!(1)), "{stderr}");
    world.says_that_the_second_is_away(&stderr);
    world.write(&keys, 2);
    wait_until("all values are there", || world.right(&keys, 2, &both) == all);
    assert_eq!(world.translator.counter("dropped.no_queue_pair"), Some(0));

    // Its memory has the values of before; the other one's come first.
    world.second.restart();
    for _ in 0..3 {
        assert_eq!(world.right(&keys, 2, &both), all);
    }
    wait_until("it is written to again", || {
        world.write(&keys[..100], 3);
        world.right(&keys[..100], 3, world.second.address()) == 100
    });
    world.write(&keys, 4);
    wait_until("both have a copy again", || {
        world.right(&keys, 4, &both) == all && world.right(&keys, 4, world.second.address()) == all
    });
    assert_eq!(world.translator.counter("lost"), Some(0));
}

#[test]
fn counters_and_paths_at_both_survive_one_of_them() {
    let keys = keys(2_000);
    let mut world = World::start("127.71.6.12", STORES);
    let both = world.both();
    let report = |world: &mut World, hop_value: u32| {
        let count = |key: &Key| (COUNTS, DtaBody::KeyIncrement { redundancy: 0, key: *key, delta: 5 });
        let hop = |key: &Key, hop: u8| {
            (PATHS, DtaBody::Postcard { key: *key, hop, path_length: 2, value: hop_value + u32::from(hop) })
        };
        world.send(keys.iter().flat_map(|key| [count(key), hop(key, 0), hop(key, 1)]).collect());
    };
    let right = |world: &World, addresses: &str, count: u64, hop_value: u32| {
        let (_, counts, stderr) = world.ask(&["counter", "--store", "counts"], &keys, addresses);
        assert_eq!(counts.len(), keys.len(), "{stderr}");
        let (_, paths, stderr) = world.ask(&["path", "--store", "paths"], &keys, addresses);
        assert_eq!(paths.len(), keys.len(), "{stderr}");
        counts.iter().filter(|answer| answer["counted"] == count).count()
            + paths.iter().filter(|answer| answer["hops"] == json!([hop_value, hop_value + 1])).count()
    };
    let all = 2 * keys.len();
    report(&mut world, 100);
    wait_until("both have all", || {
        let alone = [world.first.address(), world.second.address()];
        alone.iter().all(|address| right(&world, address, 5, 100) == all)
    });

    world.second.kill();
    assert_eq!(right(&world, &both, 5, 100), all);
    let (status, _, stderr) = world.ask(&["path", "--store", "paths"], &keys[..1], &both);
    assert_eq!(status, Some(0), "{stderr}");
    world.says_that_the_second_is_away(&stderr);
    report(&mut world, 200);
    wait_until("the first has what is new", || right(&world, &both, 10, 200) == all);

    world.second.restart();
    assert_eq!(right(&world, &both, 10, 200), all);
    wait_until("it is written to again", || {
        let first = keys[0];
        let hop = |hop: u8| {
            (PATHS, DtaBody::Postcard { key: first, hop, path_length: 2, value: 300 + u32::from(hop) })
        };
        world.send(vec![hop(0), hop(1)]);
        let (_, paths, _) = world.ask(&["path", "--store", "paths"], &[first], world.second.address());
        paths[0]["hops"] == json!([300, 301])
    });
    report(&mut world, 400);
    wait_until("both answer", || right(&world, &both, 15, 400) == all);
    assert_eq!(world.translator.counter("lost"), Some(0));
}

#[test]
fn a_translator_with_one_collector_refuses_to_spread_copies_in_words() {
    let ground = Ground::start_with(STORES, "127.0.0.1");
    let config = format!("[translator]\nsource = '127.71.6.13'\ncollector = '{}'\n", ground.address());
    let (status, stderr) = ground.translator_ends(&config, &[]);
    assert_ne!(status, Some(0), "{stderr}");
    for word in ["store `flows` has spread_copies = true", "2 collectors", "`buckets`"] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}

#[test]
fn a_translator_that_finds_one_of_two_collectors_gives_it_all_keys() {
    let keys = keys(200);
    let mut world = World::start("127.71.6.14", STORES);
    let both = world.both();
    world.second.kill();
    let config = config("127.71.6.15", [world.first.address(), world.second.address()], HALVES)
        // The first translator owns the paths.
        .replace("leaf", "spine")
        .replace("buckets", "stores = ['flows']\nbuckets");
    world.translator = world.first.start_translator(&config, &[]);
    world.sent = 0;
    world.write(&keys, 1);
    wait_until("all values are there", || world.right(&keys, 1, &both) == keys.len());
    assert_eq!(world.translator.counter("dropped.no_bucket"), Some(0));
    // The copies of the one that was never found are counted.
    assert_eq!(world.translator.counter("lost_operations"), Some(200));
    assert_eq!(world.translator.counter("lost"), Some(0));
}

#[test]
fn a_moment_is_asked_of_both() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let stores = folders.each_ref().map(|folder| {
        let history = format!("[history]\ndirectory = '{}'\n", folder.path().display());
        history + &STORES.replacen("id = 1\n", "id = 1\nepoch = '10s'\n", 1)
    });
    let mut world = World::start_each("127.71.6.16", stores.each_ref().map(String::as_str));
    let (keys, both) = (keys(50), world.both());
    // A moment in the epoch that the values came in, at both: they are there before and after it.
    let mut turn = 0;
    let mut at = String::new();
    wait_until("an epoch has all values", || {
        turn += 1;
        world.write(&keys, turn);
        let alone = [world.first.address(), world.second.address()];
        let are_there = || alone.iter().all(|address| world.right(&keys, turn, address) == keys.len());
        let before = are_there();
        at = dta_files::moment::format_utc(dta_files::moment::now());
        before && are_there()
    });
    // Nothing was written since, so both look back.
    wait_until("the epochs are over", || {
        let (_, answers, _) = world.ask(&["key-write", "--store", "flows"], &keys, &both);
        answers.iter().all(|answer| answer["earlier"].is_object())
    });
    assert_eq!(world.right(&keys, turn, &both), keys.len());
    let moment = ["--at", &at];
    assert_eq!(world.right_at(&moment, &keys, turn, &both), keys.len());
    let query = ["key-write", "--store", "flows", "--at", &at];
    let (_, answers, stderr) = world.ask(&query, &keys, &both);
    assert!(answers.iter().all(|answer| answer["agreeing"] == 2 && answer["copies"] == 2), "{stderr}");
    world.second.kill();
    assert_eq!(world.right_at(&moment, &keys, turn, &both), keys.len());
    let (status, answers, stderr) = world.ask(&query, &keys, &both);
    assert!(status == Some(0) && answers.iter().all(|answer| answer["copies"] == 1), "{stderr}");
    world.says_that_the_second_is_away(&stderr);
}
