use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dta_export::events::{EventReader, LookupCounters, LookupStores};
use dta_export::source::{EventSource, SourceOptions};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::telemetry::{Location, Means, Metric, SwitchPath, TelemetryEntry, Via, Why, list};

use crate::lists::Lists;

/// A flow whose key does not say which it is.
fn flow() -> Flow {
    "[2001:db8::1]:1->[2001:db8::2]:2/tcp".parse().unwrap()
}

fn drop_of_flow() -> Vec<u8> {
    let place = Location { switch: Some(1), ..Location::default() };
    let entry = TelemetryEntry::Drop {
        time: 1,
        key: flow().to_key(),
        place,
        ingress_port: None,
        reason: DropReason::from_int(71),
    };
    entry.to_bytes().to_vec()
}

fn name_of_flow() -> Vec<u8> {
    TelemetryEntry::Key { key: flow().to_key(), means: Means::Flow(flow()) }.to_bytes().to_vec()
}

/// A reader that has seen that there are no keys, and reads the other lists.
async fn reader(lists: &Lists) -> (EventReader, Arc<LookupCounters>) {
    let ask = Arc::new(lists.clone());
    let source = EventSource::new(ask.clone(), &SourceOptions::default(), Arc::default());
    let counters = Arc::new(LookupCounters::default());
    let mut reader = EventReader::new(source, ask, LookupStores::default(), None, counters.clone());
    nothing_comes(&mut reader).await;
    (reader, counters)
}

async fn nothing_comes(reader: &mut EventReader) {
    assert!(tokio::time::timeout(Duration::from_millis(300), reader.next()).await.is_err());
}

/// Whether the next event has its name.
async fn is_named(reader: &mut EventReader) -> bool {
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
async fn an_event_whose_key_is_never_reported_goes_without_its_name() {
    let lists = Lists::default();
    let (mut reader, counters) = reader(&lists).await;
    lists.put(list::DROPS, vec![drop_of_flow()]);
    assert!(!is_named(&mut reader).await);
    assert_eq!(counters.unnamed.load(Ordering::Relaxed), 1);
}

fn change(metric: Metric, why: Why, path: Via) -> Vec<u8> {
    let key = "10.0.0.1:1->10.0.0.2:2/udp".parse::<Flow>().unwrap().to_key();
    let new = match path {
        Via::Path(path) => path.hops.into(),
        Via::Digest(_) => 9,
    };
    let place = Location::default();
    TelemetryEntry::Change { time: 1, key, metric, why, old: 1, new, place, path: Some(path) }
        .to_bytes()
        .to_vec()
}

/// The paths of the next events, as they are written.
async fn paths(reader: &mut EventReader) -> Vec<String> {
    let events = reader.next().await.unwrap().unwrap().events;
    events.iter().map(|event| event.path.map_or("none".to_owned(), |path| path.to_string())).collect()
}

#[tokio::test]
async fn an_event_has_its_own_path_and_not_the_one_that_came_after_it() {
    let lists = Lists::default();
    let (mut reader, counters) = reader(&lists).await;
    let key = "10.0.0.1:1->10.0.0.2:2/udp".parse::<Flow>().unwrap().to_key();
    let (a, b) = (SwitchPath::from_switches(&[7]), SwitchPath::from_switches(&[17]));
    let (long, other) = (
        SwitchPath::from_switches(&[1, 2, 3, 4, 5, 6, 7, 8, 9]),
        SwitchPath::from_switches(&[1, 2, 3, 4, 5, 6, 7, 9, 8]),
    );
    let digest = |path: SwitchPath| Via::Digest(path.path_digest());
    let of_path = |path: SwitchPath| change(Metric::FlowPath, Why::Moved, Via::from_path(&path));
    let of_latency = |path| change(Metric::FlowLatency, Why::Moved, digest(path));
    // By the time that they are read, the store has the last of them.
    lists.write(&key.0, &a.to_bytes());
    lists.put(list::CHANGES, vec![of_path(a), of_latency(a), of_path(b), of_latency(b), of_path(a)]);
    assert_eq!(paths(&mut reader).await, ["7", "7", "17", "17", "7"]);
    // One that is longer than an event has room for is looked up, and so is that of a latency; what the store has is of
    // the same length, and another.
    lists.write(&key.0, &long.to_bytes());
    lists.put(list::CHANGES, vec![of_path(other), of_latency(other), of_path(long), of_latency(long)]);
    let nine = "1:2:3:4:5:6:7:8:9";
    assert_eq!(paths(&mut reader).await, ["none", "none", nine, nine]);
    assert_eq!(counters.without_path.load(Ordering::Relaxed), 2);
}
