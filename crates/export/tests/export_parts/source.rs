use std::sync::Arc;
use std::time::Duration;

use dta_export::source::{Begin, EntryBatch, EventSource, LISTS, ListCounters, Lost, SourceOptions};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::Key;
use dta_proto::telemetry::{Location, Means, TelemetryEntry, list};

use crate::lists::Lists;

pub(crate) fn drop_at(time: u64) -> Vec<u8> {
    let entry = TelemetryEntry::Drop {
        time,
        key: Key::default(),
        place: Location { switch: Some(1), ..Location::default() },
        ingress_port: None,
        reason: DropReason::from_int(71),
    };
    entry.to_bytes().to_vec()
}

pub(crate) fn key(n: u8) -> Vec<u8> {
    TelemetryEntry::Key { key: Key([n; 16]), means: Means::Itself }.to_bytes().to_vec()
}

/// Times of the drops in a batch.
fn times(batch: &EntryBatch) -> Vec<u64> {
    let time = |entry: &TelemetryEntry| match entry {
        TelemetryEntry::Drop { time, .. } => *time,
        other => panic!("{other:?}"),
    };
    batch.entries.iter().map(time).collect()
}

fn source(lists: &Lists, options: &SourceOptions) -> (EventSource, Arc<ListCounters>) {
    let counters = Arc::new(ListCounters::default());
    (EventSource::new(Arc::new(lists.clone()), options, counters.clone()), counters)
}

#[tokio::test]
async fn the_directory_comes_before_the_events_and_what_is_no_entry_is_counted() {
    let lists = Lists::default();
    lists.put(list::DROPS, vec![drop_at(1), vec![0; 60], drop_at(2)]);
    (0..20).for_each(|n| lists.put(list::KEYS, vec![key(n)]));
    let (mut source, counters) = source(&lists, &SourceOptions { once: true, ..SourceOptions::default() });
    let mut batches = Vec::new();
    while let Some(batch) = source.next().await {
        batches.push(batch.unwrap());
    }
    assert_eq!(batches.len(), 21);
    assert!(batches[..20].iter().all(|batch| batch.list == list::KEYS));
    let drops = &batches[20];
    assert_eq!((drops.list, drops.sequence, times(drops)), (list::DROPS, 1, vec![1, 2]));
    assert_eq!(drops.lost, Lost { unreadable: 1, ..Lost::default() });
    assert_eq!(
        counters.named_counters("t")[..2],
        [("export.t.entries".to_owned(), 22), ("export.t.unreadable".to_owned(), 1)]
    );
}

#[tokio::test]
async fn a_collector_that_goes_away_and_comes_back_costs_nothing() {
    let lists = Lists::default();
    (1..=3).for_each(|n| lists.put(list::DROPS, vec![drop_at(n)]));
    let mut begin = [None; LISTS];
    begin[list::DROPS as usize] = Some(Begin::Behind(1));
    let (mut source, counters) = source(&lists, &SourceOptions { begin, ..SourceOptions::default() });
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.extend(times(&source.next().await.unwrap().unwrap()));
    }
    assert_eq!(seen, [2, 3]);
    lists.away(true);
    // Logged once, however long it lasts.
    assert!(source.next().await.unwrap().is_err());
    assert!(tokio::time::timeout(Duration::from_millis(700), source.next()).await.is_err());
    lists.put(list::DROPS, vec![drop_at(4)]);
    lists.away(false);
    assert_eq!(times(&source.next().await.unwrap().unwrap()), [4]);
    assert_eq!(counters.named_counters("t")[5], ("export.t.interrupted".to_owned(), 1));
}

#[tokio::test]
async fn a_list_that_began_anew_is_read_from_its_beginning() {
    let lists = Lists::default();
    let mut begin = [None; LISTS];
    begin[list::DROPS as usize] = Some(Begin::Behind(1000));
    let (mut source, _) = source(&lists, &SourceOptions { begin, ..SourceOptions::default() });
    // As long as it is empty nothing is known.
    assert!(tokio::time::timeout(Duration::from_millis(700), source.next()).await.is_err());
    (1..=2).for_each(|n| lists.put(list::DROPS, vec![drop_at(n)]));
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.extend(times(&source.next().await.unwrap().unwrap()));
    }
    assert_eq!(seen, [1, 2]);
    let asked = lists.asked();
    assert!(asked.last().unwrap().from_start && !asked.last().unwrap().until_caught_up);
}
