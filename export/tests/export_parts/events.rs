use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dta_export::events::{Counters, Reader, Stores};
use dta_export::source::{Options, Source};
use dta_proto::key::Flow;
use dta_proto::telemetry::{Entry, Means, Place, list};

use crate::lists::Lists;

/// A flow whose key does not say which it is.
fn flow() -> Flow {
    "[2001:db8::1]:1->[2001:db8::2]:2/tcp".parse().unwrap()
}

fn drop_of_flow() -> Vec<u8> {
    let place = Place { switch: Some(1), ..Place::default() };
    let entry = Entry::Drop { time: 1, key: flow().key(), place, ingress_port: None, reason: 71 };
    entry.bytes().to_vec()
}

fn name_of_flow() -> Vec<u8> {
    Entry::Key { key: flow().key(), means: Means::Flow(flow()) }.bytes().to_vec()
}

/// A reader that has seen that there are no keys, and reads the other lists.
async fn reader(lists: &Lists) -> (Reader, Arc<Counters>) {
    let ask = Arc::new(lists.clone());
    let source = Source::new(ask.clone(), &Options::default(), Arc::default());
    let counters = Arc::new(Counters::default());
    let mut reader = Reader::new(source, ask, Stores::default(), counters.clone());
    nothing_comes(&mut reader).await;
    (reader, counters)
}

async fn nothing_comes(reader: &mut Reader) {
    assert!(tokio::time::timeout(Duration::from_millis(300), reader.next()).await.is_err());
}

/// Whether the next event has its name.
async fn is_named(reader: &mut Reader) -> bool {
    let events = reader.next().await.unwrap().unwrap().events;
    assert_eq!(events.len(), 1);
    events[0].meaning.is_some()
}

#[tokio::test]
async fn a_host_that_stood_still_costs_no_event_its_name() {
    let lists = Lists::default();
    let (mut reader, counters) = reader(&lists).await;
    lists.put(list::DROPS, vec![drop_of_flow()]);
    nothing_comes(&mut reader).await;
    lists.put(list::KEYS, vec![name_of_flow()]);
    std::thread::sleep(Duration::from_secs(3));
    assert!(is_named(&mut reader).await);
    assert_eq!(counters.unnamed.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_event_whose_key_is_never_told_goes_without_its_name() {
    let lists = Lists::default();
    let (mut reader, counters) = reader(&lists).await;
    lists.put(list::DROPS, vec![drop_of_flow()]);
    assert!(!is_named(&mut reader).await);
    assert_eq!(counters.unnamed.load(Ordering::Relaxed), 1);
}
