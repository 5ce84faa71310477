//! A collector that has only its lists.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dta_export::source::DEFAULT_STORE;
use dta_proto::control::{
    EntriesRequest, EpochsRequest, EpochsResponse, KeyWriteAnswer, ListSessionsResponse, NodeStatistics,
    PathAnswer, PlacementResponse, ReadMemoryRequest, ReadMemoryResponse, StoreInfo, TailRequest,
    TailResponse,
};
use dta_rpc::{Ask, ClientError, QueryAnswers, Question, QuestionKind, Series, Span, TailMessages};
use tokio::sync::{mpsc, watch};
use tonic::Status;

/// The entries of a batch.
type Entries = Vec<Vec<u8>>;

/// A collector whose lists are vectors of batches, sequence 1 first, and that can be away.
#[derive(Clone, Default)]
pub(crate) struct Lists(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// By store and number.
    batches: Mutex<HashMap<(String, u32), Vec<Entries>>>,
    away: watch::Sender<bool>,
    asked: Mutex<Vec<TailRequest>>,
    /// Of a key-write store of any name.
    values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    /// Of a postcarding store of any name.
    paths: Mutex<HashMap<Vec<u8>, Vec<Option<u32>>>>,
}

impl Lists {
    /// Into a list of the events.
    pub(crate) fn put(&self, list: u32, batch: Entries) {
        self.put_in(DEFAULT_STORE, list, batch);
    }

    pub(crate) fn put_in(&self, store: &str, list: u32, batch: Entries) {
        self.0.batches.lock().unwrap().entry((store.to_owned(), list)).or_default().push(batch);
    }

    fn batches(&self, request: &TailRequest) -> Vec<Entries> {
        let batches = self.0.batches.lock().unwrap();
        batches.get(&(request.store.clone(), request.list)).cloned().unwrap_or_default()
    }

    pub(crate) fn path(&self, key: &[u8], hops: &[Option<u32>]) {
        self.0.paths.lock().unwrap().insert(key.to_vec(), hops.to_vec());
    }

    pub(crate) fn write(&self, key: &[u8], value: &[u8]) {
        self.0.values.lock().unwrap().insert(key.to_vec(), value.to_vec());
    }

    pub(crate) fn away(&self, away: bool) {
        self.0.away.send_replace(away);
    }

    /// What was asked.
    pub(crate) fn asked(&self) -> Vec<TailRequest> {
        self.0.asked.lock().unwrap().clone()
    }

    /// The first sequence that a request wants.
    fn first(&self, request: &TailRequest) -> usize {
        match (request.from_sequence, request.from_start) {
            (0, true) => 1,
            (0, false) => self.batches(request).len() + 1,
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
    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError> {
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
                let batch = lists.batches(&request).get(next - 1).cloned();
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
        Ok(TailMessages::new(tokio_stream::wrappers::ReceiverStream::new(receiver)))
    }

    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        refused()
    }
    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        refused()
    }
    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        if *self.0.away.borrow() {
            return Err(gone());
        }
        if question.kind == QuestionKind::Postcarding {
            let paths = self.0.paths.lock().unwrap();
            let answer = |key: &[u8]| {
                let Some(hops) = paths.get(key) else { return PathAnswer::default() };
                let present = hops.iter().map(Option::is_some).collect();
                let hops = hops.iter().map(|hop| hop.unwrap_or_default()).collect();
                PathAnswer { found: true, hops, present, ..PathAnswer::default() }
            };
            let of_keys = question.keys.iter().map(|key| answer(&key.0).into()).collect();
            return Ok(QueryAnswers { of_keys, ..QueryAnswers::default() });
        }
        let values = self.0.values.lock().unwrap();
        let answer =
            |key: &[u8]| KeyWriteAnswer { value: values.get(key).cloned(), ..KeyWriteAnswer::default() };
        let of_keys = question.keys.iter().map(|key| answer(&key.0).into()).collect();
        Ok(QueryAnswers { of_keys, ..QueryAnswers::default() })
    }
    async fn query_keys_in_span(&self, _: Question, _: Span) -> Result<Series, ClientError> {
        refused()
    }
    async fn fetch_epochs(&self, _: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        refused()
    }
    async fn stream_entries(&self, _: EntriesRequest) -> Result<TailMessages, ClientError> {
        refused()
    }
    async fn read_memory(&self, _: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        refused()
    }
    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        refused()
    }
    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        refused()
    }
}
