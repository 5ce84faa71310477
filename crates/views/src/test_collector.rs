//! A collector for tests, which answers with what was put into it and refuses everything else.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dta_proto::control::{
    EntriesRequest, Epoch, EpochsRequest, EpochsResponse, FlowsRequest, FlowsResponse, KeyWriteAnswer,
    ListSessionsResponse, NodeStatistics, PlacementResponse, ReadMemoryRequest, ReadMemoryResponse,
    StoreInfo, StorePlacement, TailRequest, TailResponse,
};
use dta_proto::flow_query::{FlowTally, ScanCounts};
use dta_proto::flow_record::FlowRecord;
use dta_proto::key::Key;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::{
    Ask, ClientError, KeyAnswer, Moment, QueryAnswers, Question, QuestionKind, Series, Span, TailMessages,
    flows,
};
use tokio::sync::Barrier;
use tokio_stream::StreamExt;
use tonic::Status;

#[derive(Default)]
pub(crate) struct TestCollector {
    stores: Vec<StoreSpec>,
    answers: BTreeMap<(String, Key), KeyAnswer>,
    /// For stores with epochs, oldest first; the last one is open.
    pub(crate) epochs: BTreeMap<String, Vec<Epoch>>,
    /// By store name, key, and when the epoch was opened.
    past: BTreeMap<(String, Key, u64), KeyAnswer>,
    lists: BTreeMap<(String, u32), Vec<TailResponse>>,
    /// Entries of flow records, back to back.
    flow_records: Vec<u8>,
    pub(crate) memory: Mutex<BTreeMap<String, Vec<u8>>>,
    pub(crate) generation: AtomicU64,
    /// How often [`Ask::fetch_stores`] was called, which makes a collector sample all its memory.
    pub(crate) looks: AtomicU64,
    /// The sequences from which lists were read, in the order of the requests.
    pub(crate) tails: Mutex<Vec<u32>>,
    /// Sketch queries are answered once this many are pending.
    pub(crate) sketches_together: Option<Barrier>,
}

impl TestCollector {
    /// A collector with empty stores, whose ids count from 1.
    pub(crate) fn with_stores<'a>(stores: impl IntoIterator<Item = (&'a str, StoreKind)>) -> Self {
        let spec = |((name, kind), id): ((&str, _), _)| StoreSpec { id, name: name.into(), kind };
        Self { stores: stores.into_iter().zip(1..).map(spec).collect(), ..Self::default() }
    }

    pub(crate) fn put_answer(&mut self, store: &str, key: Key, answer: impl Into<KeyAnswer>) {
        self.answers.insert((store.to_owned(), key), answer.into());
    }

    pub(crate) fn put_value(&mut self, store: &str, key: Key, value: &[u8]) {
        let value = Some(value.to_vec());
        self.put_answer(store, key, KeyWriteAnswer { value, agreeing: 2, copies: 2, ..Default::default() });
    }

    /// Puts a value into the epoch opened at this moment.
    pub(crate) fn put_past_value(&mut self, store: &str, key: Key, opened: u64, value: &[u8]) {
        let value = Some(value.to_vec());
        let answer = KeyWriteAnswer { value, agreeing: 2, copies: 2, ..Default::default() };
        self.past.insert((store.to_owned(), key, opened), answer.into());
    }

    pub(crate) fn put_flow_records(&mut self, records: &[FlowRecord]) {
        self.flow_records.extend(records.iter().flat_map(FlowRecord::to_entry));
    }

    fn epochs_of(&self, store: &str) -> Result<&[Epoch], ClientError> {
        let none = || Status::unimplemented(format!("store {store:?} has no history")).into();
        self.epochs.get(store).map(|all| &**all).ok_or_else(none)
    }

    /// Adds a batch to a list.
    pub(crate) fn add(&mut self, store: &str, list: u32, entries: impl IntoIterator<Item = Vec<u8>>) {
        let batches = self.lists.entry((store.to_owned(), list)).or_default();
        let sequence = batches.len() as u64 + 1;
        let entries = entries.into_iter().collect();
        batches.push(TailResponse { entries, sequence, ..TailResponse::default() });
    }
}

#[tonic::async_trait]
impl Ask for TestCollector {
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let info = |spec: &StoreSpec| StoreInfo {
            store: Some(spec.into()),
            generation: self.generation.load(Ordering::Relaxed),
            length: spec.region_len(),
            capacity: spec.element_count(),
            ..StoreInfo::default()
        };
        Ok(self.stores.iter().map(info).collect())
    }

    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        let generation = self.generation.load(Ordering::Relaxed);
        let placement = |spec: &StoreSpec| StorePlacement {
            store: Some(spec.into()),
            generation,
            ..StorePlacement::default()
        };
        let stores = self.stores.iter().map(placement).collect();
        Ok(PlacementResponse { version: 1, stores, ..PlacementResponse::default() })
    }

    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        if let (QuestionKind::SketchMerge { .. }, Some(together)) = (question.kind, &self.sketches_together) {
            together.wait().await;
        }
        let store = &question.store;
        let opened = match question.at {
            Moment::Now => None,
            Moment::UnixMillis(at) => {
                let mut by_then =
                    self.epochs_of(store)?.iter().rev().filter(|epoch| epoch.opened <= at.get());
                Some(by_then.next().ok_or_else(|| Status::out_of_range("not kept"))?.opened)
            }
        };
        let answer = |key: &Key| {
            let known = match opened {
                None => self.answers.get(&(store.clone(), *key)),
                Some(opened) => self.past.get(&(store.clone(), *key, opened)),
            };
            known.cloned().unwrap_or_else(|| question.kind.answer_of_none())
        };
        let of_keys = question.keys.iter().map(answer).collect();
        Ok(QueryAnswers { of_keys, ..QueryAnswers::default() })
    }

    async fn fetch_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        let mut tally = FlowTally::new(flows::parse_request(&request)?, true);
        tally.add_entries([&self.flow_records[..]]);
        flows::answer_request(&request, tally, ScanCounts::default())
    }

    async fn query_keys_in_span(&self, _: Question, _: Span) -> Result<Series, ClientError> {
        Err(Status::unimplemented("no epochs").into())
    }

    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        let EpochsRequest { store, since, until, most } = request;
        let all = self.epochs_of(&store)?.iter().rev();
        let is_in = |epoch: &&Epoch| {
            (until == 0 || epoch.opened < until) && (epoch.flipped_from == 0 || epoch.flipped_from > since)
        };
        let most = if most == 0 { usize::MAX } else { most as usize };
        Ok(EpochsResponse { epochs: all.filter(is_in).take(most).cloned().collect(), older: 0 })
    }

    /// The first batch is 1; a followed list never ends.
    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError> {
        self.tails.lock().unwrap().push(request.from_sequence);
        let all = self.lists.get(&(request.store, request.list)).cloned().unwrap_or_default();
        let first = if request.from_start { 1 } else { u64::from(request.from_sequence) };
        let batches: Vec<_> =
            all.into_iter().filter(|batch| first != 0 && batch.sequence >= first).map(Ok).collect();
        let batches = tokio_stream::iter(batches);
        Ok(match request.until_caught_up {
            true => TailMessages::new(batches),
            false => TailMessages::new(batches.chain(tokio_stream::pending())),
        })
    }

    async fn stream_entries(&self, _: EntriesRequest) -> Result<TailMessages, ClientError> {
        Err(Status::unimplemented("no history of lists").into())
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        let memory = self.memory.lock().unwrap();
        let start = request.offset as usize;
        let bytes =
            memory.get(&request.store).and_then(|all| all.get(start..start + request.length as usize));
        let data = bytes.ok_or_else(|| Status::out_of_range("no such memory"))?.to_vec();
        Ok(ReadMemoryResponse { data, generation: 1 })
    }

    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        Err(Status::unimplemented("no sessions").into())
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        Err(Status::unimplemented("no counters").into())
    }
}
