//! One translator, two collectors.

use std::net::TcpListener;

use dta_proto::key::Key;
use dta_proto::wire::dta::DtaBody;
use serde_json::Value;

use crate::ground::{Ground, STORES, Translator, wait_until};
use crate::loopback::own_address;

const KEY: Key = Key([5; 16]);

/// Stores of the second collector: other names and other ids than those of [`STORES`].
const OTHERS: &str = "
[[store]]
id = 11
name = 'others'
kind = 'key-write'
slots = 1024
value_len = 12
redundancy = 2

[[store]]
id = 13
name = 'counts'
kind = 'key-increment'
slots = 1024
redundancy = 2
";

const FLOWS: u16 = 1;
const OTHER_FLOWS: u16 = 11;
const COUNTS: u16 = 13;

/// Two collectors on two addresses.
fn two() -> (Ground, Ground) {
    (Ground::start(), Ground::start_with(OTHERS, "127.0.0.3"))
}

fn both(first: &Ground, second: &Ground) -> String {
    format!("{},{}", first.address(), second.address())
}

fn value(byte: u8) -> DtaBody<'static> {
    let values: &'static [[u8; 12]; 10] =
        &[[0; 12], [1; 12], [2; 12], [3; 12], [4; 12], [5; 12], [6; 12], [7; 12], [8; 12], [9; 12]];
    DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &values[usize::from(byte)] }
}

/// Whether the value of the key in a store is these equal bytes.
fn holds(ground: &Ground, store: &str, byte: u8) -> bool {
    let answer: Value = ground.collector(&["query", "key-write", "--store", store, &KEY.to_string()]);
    answer.to_string().contains(&format!("{byte:02x}").repeat(12))
}

/// Reports a value until the collector has it: what is in flight while a queue pair is rebuilt is lost.
fn arrives(translator: &mut Translator, id: u16, ground: &Ground, store: &str, byte: u8) {
    wait_until(&format!("{store} has {byte}"), || {
        translator.report(id, value(byte));
        holds(ground, store, byte)
    });
}

#[test]
fn one_translator_serves_two_collectors_and_goes_on_with_one_while_the_other_is_away() {
    let (first, mut second) = two();
    let flags = ["--collector", &both(&first, &second)];
    let mut translator =
        first.start_translator("[translator]\nname = 'leaf'\nsource = '127.71.5.1'\n", &flags);
    translator.report(FLOWS, value(1));
    translator.report(OTHER_FLOWS, value(2));
    for _ in 0..3 {
        translator.report(COUNTS, DtaBody::KeyIncrement { redundancy: 0, key: KEY, delta: 7 });
    }
    translator.wait_for("emitted", 5);
    wait_until("the first has its value", || holds(&first, "flows", 1));
    wait_until("the second has its value", || holds(&second, "others", 2));
    let count = || second.collector(&["query", "counter", &KEY.to_string()]).to_string();
    wait_until("the second counts", || count().contains("21"));
    assert_eq!(translator.counter("queue_pair.write.sent"), Some(2));
    assert_eq!(translator.counter("queue_pair.1.write.sent"), Some(2));
    // Increments that came in one batch were added up.
    wait_until("increments are acknowledged", || {
        translator.counter("queue_pair.1.atomic.outstanding") == Some(0)
    });
    assert!(translator.counter("queue_pair.1.atomic.acknowledged") >= Some(2));
    assert_eq!(translator.counter("queue_pair.atomic.sent"), Some(0));
    for ground in [&first, &second] {
        assert!(ground.session("leaf").is_some());
    }

    second.kill();
    wait_until("it is missed", || {
        translator.daemon.log().contains("continuing with the existing queue pairs")
    });
    for byte in 3..6 {
        translator.report(FLOWS, value(byte));
        translator.report(OTHER_FLOWS, value(byte));
        wait_until("the first has its value", || holds(&first, "flows", byte));
    }
    assert_eq!(translator.counter("dropped.unknown_store"), Some(0));

    second.restart();
    arrives(&mut translator, OTHER_FLOWS, &second, "others", 6);
    translator.report(COUNTS, DtaBody::KeyIncrement { redundancy: 0, key: KEY, delta: 7 });
    let count = || second.collector(&["query", "counter", &KEY.to_string()]).to_string();
    wait_until("the second counts on", || count().contains("28"));
    translator.report(FLOWS, value(7));
    wait_until("the first has its value", || holds(&first, "flows", 7));
    // Nothing of it was noticed on the queue pairs of the first.
    assert_eq!(translator.counter("queue_pair.write.replaced"), Some(0));
    assert!(translator.counter("queue_pair.1.write.replaced") >= Some(1));
    assert!(translator.daemon.runs());
}

#[test]
fn a_store_that_two_collectors_offer_is_refused_until_it_is_said_whose_is_wanted() {
    let (first, second) = (Ground::start(), Ground::start_with(STORES, "127.0.0.3"));
    let config = "[translator]\nname = 'leaf'\nsource = '127.71.5.2'\n";
    let (status, stderr) = first.translator_ends(config, &["--collector", &both(&first, &second)]);
    assert_eq!(status, Some(1), "{stderr}");
    for words in ["both offer store `flows` (id 1)", first.address(), second.address(), "`stores`"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }

    let tables = format!(
        "{config}[[translator.collector]]\naddress = '{}'\nstores = ['events']\n\
         [[translator.collector]]\naddress = '{}'\nstores = ['flows']\n",
        first.address(),
        second.address()
    );
    let mut translator = first.start_translator(&tables, &[]);
    translator.report(FLOWS, value(4));
    (0..3).for_each(|n| translator.entry(0, n));
    wait_until("the second has the value", || holds(&second, "flows", 4));
    wait_until("the first has the batch", || first.tail("0").len() == 3);
    assert!(!holds(&first, "flows", 4));
    assert!(second.tail("0").is_empty());
}

#[test]
fn a_collector_that_comes_late_is_taken_up_and_one_that_is_away_stops_nobody() {
    let first = Ground::start();
    // A closed port, which will be open soon.
    let port = TcpListener::bind((own_address(), 0)).unwrap();
    let address = port.local_addr().unwrap().to_string();
    drop(port);
    let flags = ["--collector", &format!("{address},{}", first.address())];
    let mut translator =
        first.start_translator("[translator]\nname = 'leaf'\nsource = '127.71.5.3'\n", &flags);
    translator.report(FLOWS, value(1));
    translator.report(OTHER_FLOWS, value(2));
    translator.wait_for("received", 2);
    translator.wait_for("dropped.unknown_store", 1);
    wait_until("the other has its value", || holds(&first, "flows", 1));

    let late = Ground::start_at(OTHERS, "127.0.0.3", &address);
    arrives(&mut translator, OTHER_FLOWS, &late, "others", 3);
    translator.report(FLOWS, value(4));
    wait_until("the other has its value", || holds(&first, "flows", 4));
    // It was named first, so it is the first one.
    assert!(translator.counter("queue_pair.write.sent") > Some(0));
    assert_eq!(translator.counter("queue_pair.1.write.sent"), Some(4));
}

#[test]
fn a_session_that_another_translator_takes_ends_for_its_collector_alone() {
    let (first, second) = two();
    let flags = ["--collector", &both(&first, &second)];
    let mut translator =
        first.start_translator("[translator]\nname = 'leaf'\nsource = '127.71.5.4'\n", &flags);
    let other = second.run_translator("[translator]\nname = 'leaf'\nsource = '127.71.5.5'\n", &[]);
    wait_until("it is logged", || translator.daemon.log().contains("another translator has opened session"));
    for byte in 1..4 {
        translator.report(OTHER_FLOWS, value(byte));
        translator.report(FLOWS, value(byte));
        wait_until("the first has its value", || holds(&first, "flows", byte));
    }
    wait_until("those of the other are dropped by name", || {
        translator.counter("dropped.no_queue_pair") == Some(3)
    });
    assert!(translator.daemon.runs());
    drop(other);
}
