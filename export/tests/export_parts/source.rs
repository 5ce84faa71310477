use std::sync::Mutex;

use dta_proto::control::{
    ListSessionsResponse, NodeStatistics, QueryCounterRequest, QueryCounterResponse, QueryKeyWriteRequest,
    QueryKeyWriteResponse, QueryPathRequest, QueryPathResponse, QuerySketchRequest, QuerySketchResponse,
    ReadMemoryRequest, ReadMemoryResponse, StoreInfo,
};
use dta_proto::key::Key;
use dta_proto::telemetry::{Means, Place};
use tonic::Status;

use std::sync::Arc;
use std::time::Duration;

use dta_client::{Ask, ClientError, Following};
use dta_export::source::{Batch, Begin, Counters, LISTS, Lost, Options, Source};
use dta_proto::control::{TailRequest, TailResponse};
use dta_proto::telemetry::{Entry, list};
use tokio::sync::{mpsc, watch};

/// A collector whose lists are vectors of batches, sequence 1 first, and that can be away.
#[derive(Clone, Default)]
struct Lists(Arc<Inner>);

#[derive(Default)]
struct Inner {
    batches: Mutex<[Vec<Vec<Vec<u8>>>; LISTS]>,
    away: watch::Sender<bool>,
    asked: Mutex<Vec<TailRequest>>,
}

impl Lists {
    fn put(&self, list: u32, batch: Vec<Vec<u8>>) {
        self.0.batches.lock().unwrap()[list as usize].push(batch);
    }

    fn away(&self, away: bool) {
        self.0.away.send_replace(away);
    }

    /// The first sequence that a request wants.
    fn first(&self, request: &TailRequest) -> usize {
        match (request.from_sequence, request.from_start) {
            (0, true) => 1,
            (0, false) => self.0.batches.lock().unwrap()[request.list as usize].len() + 1,
            (sequence, _) => sequence as usize,
        }
    }
}

fn gone() -> ClientError {
    Status::unavailable("the collector is away").into()
}

fn refused<T>() -> Result<T, ClientError> {
    Err(Status::unimplemented("not asked here").into())
}

#[tonic::async_trait]
impl Ask for Lists {
    async fn tail(&self, request: TailRequest) -> Result<Following, ClientError> {
        if *self.0.away.borrow() {
            return Err(gone());
        }
        self.0.asked.lock().unwrap().push(request.clone());
        let (lists, mut next) = (self.clone(), self.first(&request));
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                if *lists.0.away.borrow() {
                    let _ = sender.send(Err(gone())).await;
                    return;
                }
                let batch = lists.0.batches.lock().unwrap()[request.list as usize].get(next - 1).cloned();
                match batch {
                    Some(entries) => {
                        let message = TailResponse { entries, sequence: next as u64, ..Default::default() };
                        next += 1;
                        if sender.send(Ok(message)).await.is_err() {
                            return;
                        }
                    }
                    None if request.until_caught_up => return,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        });
        Ok(Following::new(tokio_stream::wrappers::ReceiverStream::new(receiver)))
    }

    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        refused()
    }
    async fn query_key_write(&self, _: QueryKeyWriteRequest) -> Result<QueryKeyWriteResponse, ClientError> {
        refused()
    }
    async fn query_path(&self, _: QueryPathRequest) -> Result<QueryPathResponse, ClientError> {
        refused()
    }
    async fn query_counter(&self, _: QueryCounterRequest) -> Result<QueryCounterResponse, ClientError> {
        refused()
    }
    async fn query_sketch(&self, _: QuerySketchRequest) -> Result<QuerySketchResponse, ClientError> {
        refused()
    }
    async fn read_memory(&self, _: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        refused()
    }
    async fn sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        refused()
    }
    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        refused()
    }
}

fn drop_at(time: u64) -> Vec<u8> {
    let entry = Entry::Drop {
        time,
        key: Key::default(),
        place: Place { switch: Some(1), ..Place::default() },
        ingress_port: None,
        reason: 71,
    };
    entry.bytes().to_vec()
}

fn key(n: u8) -> Vec<u8> {
    Entry::Key { key: Key([n; 16]), means: Means::Itself }.bytes().to_vec()
}

/// Times of the drops in a batch.
fn times(batch: &Batch) -> Vec<u64> {
    let time = |entry: &Entry| match entry {
        Entry::Drop { time, .. } => *time,
        other => panic!("{other:?}"),
    };
    batch.entries.iter().map(time).collect()
}

fn source(lists: &Lists, options: &Options) -> (Source, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    (Source::new(Arc::new(lists.clone()), options, counters.clone()), counters)
}

#[tokio::test]
async fn the_directory_comes_before_the_events_and_what_is_no_entry_is_counted() {
    let lists = Lists::default();
    lists.put(list::DROPS, vec![drop_at(1), vec![0; 60], drop_at(2)]);
    (0..20).for_each(|n| lists.put(list::KEYS, vec![key(n)]));
    let (mut source, counters) = source(&lists, &Options { once: true, ..Options::default() });
    let mut batches = Vec::new();
    while let Some(batch) = source.next().await {
        batches.push(batch.unwrap());
    }
    assert_eq!(batches.len(), 21);
    assert!(batches[..20].iter().all(|batch| batch.list == list::KEYS));
    let drops = &batches[20];
    assert_eq!((drops.list, drops.sequence, times(drops)), (list::DROPS, 1, vec![1, 2]));
    assert_eq!(drops.lost, Lost { unreadable: 1, ..Lost::default() });
    assert_eq!(counters.named()[..2], [("entries", 22), ("unreadable", 1)]);
}

#[tokio::test]
async fn a_collector_that_goes_away_and_comes_back_costs_nothing() {
    let lists = Lists::default();
    (1..=3).for_each(|n| lists.put(list::DROPS, vec![drop_at(n)]));
    let mut begin = [None; LISTS];
    begin[list::DROPS as usize] = Some(Begin::Behind(1));
    let (mut source, counters) = source(&lists, &Options { begin, ..Options::default() });
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.extend(times(&source.next().await.unwrap().unwrap()));
    }
    assert_eq!(seen, [2, 3]);
    lists.away(true);
    // Told once, however long it lasts.
    assert!(source.next().await.unwrap().is_err());
    assert!(tokio::time::timeout(Duration::from_millis(700), source.next()).await.is_err());
    lists.put(list::DROPS, vec![drop_at(4)]);
    lists.away(false);
    assert_eq!(times(&source.next().await.unwrap().unwrap()), [4]);
    assert_eq!(counters.named()[5], ("interrupted", 1));
}

#[tokio::test]
async fn a_list_that_began_anew_is_read_from_its_beginning() {
    let lists = Lists::default();
    let mut begin = [None; LISTS];
    begin[list::DROPS as usize] = Some(Begin::Behind(1000));
    let (mut source, _) = source(&lists, &Options { begin, ..Options::default() });
    // As long as it is empty nothing is known.
    assert!(tokio::time::timeout(Duration::from_millis(700), source.next()).await.is_err());
    (1..=2).for_each(|n| lists.put(list::DROPS, vec![drop_at(n)]));
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.extend(times(&source.next().await.unwrap().unwrap()));
    }
    assert_eq!(seen, [1, 2]);
    let asked = lists.0.asked.lock().unwrap();
    assert!(asked.last().unwrap().from_start && !asked.last().unwrap().until_caught_up);
}
