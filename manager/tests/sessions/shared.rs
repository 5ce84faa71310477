//! One translator, two collectors that share the keys and lists of the same stores.

use dta_proto::buckets;
use dta_proto::key::Key;
use dta_proto::to_hex_digits;
use dta_proto::wire::dta::DtaBody;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ground::{Ground, Translator, wait_until};
use crate::loopback::own_address;

const FLOWS: u16 = 1;
const PATHS: u16 = 3;
const SKETCH: u16 = 4;
const COUNTS: u16 = 5;

/// The same stores in both.
const SHARED: &str = "
[[store]]
id = 1
name = 'flows'
kind = 'key-write'
slots = 65536
value_len = 12
redundancy = 2

[[store]]
id = 2
name = 'events'
kind = 'append'
lists = 4
ring = 64
batch_len = 32
entry_len = 8

[[store]]
id = 3
name = 'paths'
kind = 'postcarding'
slots = 65536
hops = 6
redundancy = 2

[[store]]
id = 4
name = 'sketch'
kind = 'sketch-merge'
columns = 1
rows = 2
epochs = 4
merge = 'sum'
expected = 1

[[store]]
id = 5
name = 'counts'
kind = 'key-increment'
slots = 65536
redundancy = 2
";

/// The configuration of a translator that gives the first collector all keys of the first buckets, lists 0 and 1, and
/// the sketch.
fn config(source: &str, addresses: [&str; 2], buckets: [&str; 2]) -> String {
    let of = |n: usize, more: &str| {
        format!(
            "[[translator.collector]]\naddress = '{}'\nbuckets = '{}'\n\
             lists = [{{ store = 'events', first = {}, count = 2 }}]\n{more}",
            addresses[n],
            buckets[n],
            2 * n
        )
    };
    format!(
        "[translator]\nname = 'leaf'\nsource = '{source}'\n{}{}",
        of(0, ""),
        of(1, "stores = ['flows', 'events', 'paths', 'counts']\n")
    )
}

/// Two collectors, and a translator that gives the first all keys below bucket 128.
fn world(source: &str) -> (Ground, Ground, Translator) {
    let first = Ground::start_with(SHARED, "127.0.0.1");
    let second = Ground::start_with(SHARED, "127.0.0.3");
    let config = config(source, [first.address(), second.address()], ["0-127", "128-255"]);
    let translator = first.start_translator(&config, &[]);
    (first, second, translator)
}

fn key(n: u32) -> Key {
    let mut key = Key::default();
    key.0[12..].copy_from_slice(&n.to_be_bytes());
    key
}

fn value(n: u32, turn: u8) -> [u8; 12] {
    let mut value = [turn; 12];
    value[..4].copy_from_slice(&n.to_be_bytes());
    value
}

/// Keys of the first collector and of the second.
fn keys() -> [Vec<u32>; 2] {
    let (first, second) = (0..40).partition(|n| buckets::bucket_of_key(&key(*n)) < 128);
    [first, second]
}

fn write(translator: &mut Translator, n: u32, turn: u8) {
    translator.report(FLOWS, DtaBody::KeyWrite { redundancy: 0, key: key(n), value: &value(n, turn) });
}

/// Answers about keys, by the collectors at these addresses.
fn ask(ground: &Ground, query: &[&str], keys: &[u32], addresses: &str) -> (Option<i32>, Vec<Value>, String) {
    let keys: Vec<String> = keys.iter().map(|n| to_hex_digits(&key(*n).0)).collect();
    let mut arguments: Vec<&str> = [&["query"], query].concat();
    arguments.extend(keys.iter().map(String::as_str));
    let (status, out, stderr) = ground.collector_at(addresses, &arguments);
    (status, serde_json::from_str(&out).unwrap_or_default(), stderr)
}

/// Whether each of these keys has the value of a turn.
fn hold(ground: &Ground, keys: &[u32], turn: u8, addresses: &str) -> bool {
    let (_, answers, _) = ask(ground, &["key-write", "--store", "flows"], keys, addresses);
    let right = |(n, answer): (&u32, &Value)| answer["value"] == to_hex_digits(&value(*n, turn));
    answers.len() == keys.len() && keys.iter().zip(&answers).all(right)
}

#[test]
fn each_key_and_list_is_found_at_its_collector_and_every_answer_is_right() {
    let (first, second, mut translator) = world("127.71.5.11");
    let (both, all): (String, Vec<u32>) =
        (format!("{},{}", first.address(), second.address()), (0..40).collect());
    let [of_first, of_second] = keys();
    assert!(of_first.len() > 10 && of_second.len() > 10);
    for n in &all {
        write(&mut translator, *n, 7);
        for hop in 0..2 {
            let body =
                DtaBody::Postcard { key: key(*n), hop, path_length: 2, value: 100 * n + u32::from(hop) };
            translator.report(PATHS, body);
        }
        translator
            .report(COUNTS, DtaBody::KeyIncrement { redundancy: 0, key: key(*n), delta: u64::from(*n) + 1 });
    }
    for list in 0..4 {
        (0..6).for_each(|n| translator.entry(list, 10 * list as u8 + n));
    }
    translator.report(SKETCH, DtaBody::SketchMerge { epoch: 0, column: 0, cells: &[0, 0, 0, 9, 0, 0, 0, 8] });
    translator.wait_for("emitted", 40 * 4 + 24 + 1);
    // Each of both is asked for its own keys, and answers are in the order of the keys.
    wait_until("all values are there", || hold(&first, &all, 7, &both));
    wait_until("all counts are there", || {
        let (_, answers, _) = ask(&first, &["counter", "--store", "counts"], &all, &both);
        answers.len() == 40 && all.iter().zip(&answers).all(|(n, a)| a["counted"] == n + 1)
    });
    let (status, paths, _) = ask(&first, &["path", "--store", "paths"], &all, &both);
    assert_eq!(status, Some(0));
    assert_eq!(paths.len(), 40);
    for (n, path) in all.iter().zip(&paths) {
        assert_eq!(path["hops"], json!([100 * n, 100 * n + 1]), "{path}");
    }
    // In whatever order they are named.
    let other = format!("{},{}", second.address(), first.address());
    assert!(hold(&first, &all, 7, &other));

    // A single one has its own keys, and names the one that has the others.
    assert!(hold(&first, &of_first, 7, first.address()) && hold(&first, &of_second, 7, second.address()));
    for (asked, keys, has) in [(&first, &of_second, &second), (&second, &of_first, &first)] {
        for query in [&["key-write", "--store", "flows"][..], &["path"], &["counter"]] {
            let (status, _, stderr) = ask(asked, query, &keys[..1], asked.address());
            assert_eq!(status, Some(1), "{stderr}");
            assert!(stderr.contains(has.address()) && stderr.contains("bucket"), "{stderr}");
        }
    }
    // Lists.
    let entries = |list: &str, addresses: &str| {
        let tail = ["tail", "--store", "events", "--list", list, "--from-start", "--once"];
        first.collector_at(addresses, &tail)
    };
    for list in 0..4u8 {
        let (status, out, stderr) = entries(&list.to_string(), &both);
        assert_eq!(status, Some(0), "{stderr}");
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected: Vec<String> = (0..6).map(|n| to_hex_digits(&[10 * list + n; 8])).collect();
        assert_eq!(lines.iter().map(|line| line["entry"].as_str().unwrap()).collect::<Vec<_>>(), expected);
    }
    let (status, _, stderr) = entries("3", first.address());
    assert!(status == Some(1) && stderr.contains(second.address()), "{stderr}");
    // The sketch is only at the first, and the second knows that.
    wait_until("the sketch is there", || {
        ask(&first, &["sketch", "--epoch", "0"], &all[..1], &both)
            .1
            .first()
            .is_some_and(|a| a["estimate"] == 8)
    });
    let (status, _, stderr) = ask(&second, &["sketch", "--epoch", "0"], &all[..1], second.address());
    assert!(status == Some(1) && stderr.contains(first.address()), "{stderr}");
    // Where each part of a store is.
    let here = |ground: &Ground| -> Vec<Value> {
        let stores = ground.collector(&["stores"]);
        stores.as_array().unwrap().iter().map(|store| store["here"].clone()).collect()
    };
    let keys = |buckets: &str| json!({ "buckets": buckets, "lists": null, "elsewhere": null });
    let lists =
        |first: u32| json!({ "buckets": null, "lists": [{ "first": first, "count": 2 }], "elsewhere": null });
    let (a, b) = (keys("0-127"), keys("128-255"));
    assert_eq!(here(&first), [a.clone(), lists(0), a.clone(), Value::Null, a]);
    let nothing = json!({ "buckets": null, "lists": null, "elsewhere": first.address() });
    assert_eq!(here(&second), [b.clone(), lists(2), b.clone(), nothing, b]);
    // Both together show each store.
    let (status, stores, stderr) = first.collector_at(&both, &["stores"]);
    assert_eq!(status, Some(0), "{stderr}");
    let stores: Value = serde_json::from_str(&stores).unwrap();
    assert!(stores.as_array().unwrap().len() >= 5, "{stores}");
    assert_eq!(translator.counter("dropped.no_bucket"), Some(0));
}

#[test]
fn a_collector_that_is_away_or_ends_its_session_is_missed_by_its_own_keys_alone() {
    let (first, mut second, mut translator) = world("127.71.5.12");
    let both = format!("{},{}", first.address(), second.address());
    let [of_first, of_second] = keys();
    let all: Vec<u32> = (0..40).collect();
    all.iter().for_each(|n| write(&mut translator, *n, 1));
    wait_until("all values are there", || hold(&first, &all, 1, &both));

    second.kill();
    wait_until("it is missed", || {
        translator.daemon.log().contains("continuing with the existing queue pairs")
    });
    all.iter().for_each(|n| write(&mut translator, *n, 2));
    wait_until("the first has its values", || hold(&first, &of_first, 2, first.address()));
    assert_eq!(
        (translator.counter("dropped.no_bucket"), translator.counter("dropped.no_queue_pair")),
        (Some(0), Some(0))
    );

    // A client of both gets what the first has, and learns that the second is down.
    assert!(hold(&first, &of_first, 2, &both));
    let (status, _, stderr) = ask(&first, &["key-write", "--store", "flows"], &all, &both);
    assert!(
        status == Some(1) && stderr.contains(second.address()) && stderr.contains("does not answer"),
        "{stderr}"
    );
    let counts = ["key-increment", "--store", "counts"];
    let (status, _, stderr) = ask(&first, &counts, &of_first[..1], &both);
    assert_eq!(status, Some(3), "{stderr}");

    // Back, it knows from before what it has, whether or not its session has been opened since.
    second.restart();
    let (status, _, stderr) =
        ask(&second, &["key-write", "--store", "flows"], &of_first[..1], second.address());
    assert!(status == Some(1) && stderr.contains(first.address()), "{stderr}");
    wait_until("the second takes values again", || {
        of_second.iter().for_each(|n| write(&mut translator, *n, 3));
        hold(&first, &of_second, 3, &both)
    });
    assert!(hold(&first, &of_first, 2, &both));

    // Another translator takes the session: reports for it are dropped by name, and those for the first go on.
    let other = second.run_translator("[translator]\nname = 'leaf'\nsource = '127.71.5.13'\n", &[]);
    wait_until("it is logged", || translator.daemon.log().contains("another translator has opened session"));
    let dropped = |translator: &Translator| translator.counter("dropped.no_queue_pair");
    wait_until("they are dropped by name", || {
        write(&mut translator, of_second[0], 4);
        dropped(&translator) > Some(0)
    });
    let before = dropped(&translator).unwrap();
    all.iter().for_each(|n| write(&mut translator, *n, 5));
    wait_until("the first has its values", || hold(&first, &of_first, 5, first.address()));
    wait_until("each of the others is dropped once", || {
        dropped(&translator) == Some(before + of_second.len() as u64)
    });
    wait_until("that is logged", || translator.daemon.log().contains("no_queue_pair"));
    assert!(translator.daemon.runs());
    drop(other);
}

#[test]
fn buckets_change_hands_while_the_translator_runs_and_collectors_do_not() {
    let (first, second, mut translator) = world("127.71.5.16");
    let both = format!("{},{}", first.address(), second.address());
    let all: Vec<u32> = (0..40).collect();
    let reload = |translator: &Translator, addresses: [&str; 2], buckets: [&str; 2]| {
        let before = translator.daemon.log().len();
        std::fs::write(translator.config(), config("127.71.5.16", addresses, buckets)).unwrap();
        translator.daemon.signal(Signal::HUP);
        wait_until("it is logged", || translator.daemon.log()[before..].contains("reloaded"));
        translator.daemon.log()[before..].to_owned()
    };
    let (a, b) = (first.address(), second.address());
    let log = reload(&translator, [a, b], ["0-63", "64-255"]);
    assert!(log.contains("translator.collector.buckets") && !log.contains("collector.stores"), "{log}");
    let moved: Vec<u32> =
        all.iter().copied().filter(|n| (64..128).contains(&buckets::bucket_of_key(&key(*n)))).collect();
    assert!(!moved.is_empty());
    // The collectors learn it with the sessions, which are reopened.
    wait_until("both know of it", || {
        let refused = |ground: &Ground, n: u32| {
            ask(ground, &["key-write", "--store", "flows"], &[n], ground.address()).0 == Some(1)
        };
        refused(&first, moved[0]) && !refused(&second, moved[0])
    });
    wait_until("all values are where they are looked for", || {
        all.iter().for_each(|n| write(&mut translator, *n, 2));
        hold(&first, &all, 2, &both)
    });
    assert!(hold(&first, &moved, 2, second.address()));
    assert_eq!(translator.counter("dropped.no_bucket"), Some(0));

    // Other collectors, and what is wrong, are refused whole.
    for (addresses, buckets, words) in [
        ([b, a], ["0-63", "64-255"], "translator.collector.address cannot change while the translator runs"),
        ([a, "127.0.0.1:9"], ["0-99", "100-255"], "translator.collector.address cannot change"),
        ([a, b], ["0-64", "64-255"], "bucket 64"),
    ] {
        let log = reload(&translator, addresses, buckets);
        assert!(log.contains(words) && log.contains("nothing has changed"), "{log}");
    }
    all.iter().for_each(|n| write(&mut translator, *n, 3));
    wait_until("it goes on as before", || hold(&first, &all, 3, &both));
}

#[test]
fn keys_of_a_collector_that_was_never_heard_are_dropped_by_name() {
    let first = Ground::start_with(SHARED, "127.0.0.1");
    // A closed port.
    let port = std::net::TcpListener::bind((own_address(), 0)).unwrap();
    let nobody = port.local_addr().unwrap().to_string();
    drop(port);
    let config = format!(
        "[translator]\nname = 'leaf'\nsource = '127.71.5.14'\n\
         [[translator.collector]]\naddress = '{}'\nbuckets = '0-127'\nlists = [{{ store = 'events', first = 0, count = 2 }}]\n\
         [[translator.collector]]\naddress = '{nobody}'\nbuckets = '128-255'\n",
        first.address()
    );
    let mut translator = first.start_translator(&config, &[]);
    let [of_first, of_second] = keys();
    (0..40).for_each(|n| write(&mut translator, n, 1));
    wait_until("the first has its values", || hold(&first, &of_first, 1, first.address()));
    translator.wait_for("dropped.no_bucket", of_second.len() as u64);
    translator.entry(2, 1);
    translator.wait_for("dropped.list_not_owned", 1);
    wait_until("that is logged", || translator.daemon.log().contains("no_bucket"));
}

#[test]
fn buckets_that_overlap_are_refused_with_their_line() {
    let first = Ground::start_with(SHARED, "127.0.0.1");
    let config = |second: &str| {
        format!(
            "[translator]\nsource = '127.71.5.15'\n[[translator.collector]]\naddress = 'a:1'\nbuckets = '0-127'\n\
             [[translator.collector]]\naddress = 'b:1'\nbuckets = '{second}'\n"
        )
    };
    for (second, words) in [
        ("127-255", &["line 8", "bucket 127", "a:1"][..]),
        ("129-255", &["without buckets 128"]),
        ("128-256", &["key `translator.collector`", "`buckets`"]),
    ] {
        let (status, stderr) = first.translator_ends(&config(second), &[]);
        assert_ne!(status, Some(0));
        for word in words {
            assert!(stderr.contains(word), "{second}: {stderr}");
        }
    }
}
