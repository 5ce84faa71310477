//! Where the dashboard's figures come from: a running collector, or its memory alone.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use dta_proto::control::{self, collector_client::CollectorClient};
use dta_proto::key::Key;
use dta_proto::layout::key_write::Policy;
use dta_proto::store::{StoreKind, StoreSpec};
use tonic::transport::Channel;

use super::app::{Entries, ListId, Question, Snapshot, Window};
use crate::region::Region;
use crate::store::{self, Store, Stores, append, key_increment, key_write, postcarding, sketch_merge};

/// How long any one answer may take before the dashboard says that the collector does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Entries kept of the list being followed.
pub(super) const KEPT_ENTRIES: usize = 200;

/// Batches taken at a time from memory.
const BATCHES_AT_ONCE: u64 = 4096;

/// Where figures come from.
#[derive(Debug)]
pub struct Source {
    kind: Kind,
    follower: Option<Follower>,
}

/// Finds where a store is being written: it goes round the store's memory, some at a time, and compares digests.
#[derive(Debug)]
struct Follower {
    store: String,
    digests: Vec<Option<u32>>,
    next: usize,
}

/// Bytes under one digest of the follower; also the most that one request may ask for.
const PAGE: u64 = control::MAX_READ as u64;

/// Pages looked at per refresh while writes are followed.
const PAGES_AT_ONCE: usize = 128;

// There is one of it, and it never moves.
#[expect(clippy::large_enum_variant)]
#[derive(Debug)]
enum Kind {
    Live { client: CollectorClient<Channel>, address: String, tail: Option<LiveTail> },
    Memory { directory: PathBuf, stores: Stores, tail: Option<MemoryTail> },
}

#[derive(Debug)]
struct LiveTail {
    list: ListId,
    stream: tonic::Streaming<control::TailResponse>,
    seen: Entries,
}

#[derive(Debug)]
struct MemoryTail {
    list: ListId,
    next: append::Start,
    seen: Entries,
}

impl Source {
    /// A running collector; `address` is what the title shows.
    pub fn live(client: CollectorClient<Channel>, address: String) -> Self {
        Self { kind: Kind::Live { client, address, tail: None }, follower: None }
    }

    /// The region files of a memory directory, read-only, whether or not their collector runs.
    ///
    /// # Errors
    /// A sentence that names the file and says what is wrong with it; or that there is none.
    pub fn memory(directory: &Path) -> Result<Self, String> {
        let at = directory.display();
        let files = std::fs::read_dir(directory)
            .map_err(|e| format!("cannot read the memory directory {at}: {e}"))?;
        let mut stores = Vec::new();
        for file in files {
            let path = file.map_err(|e| format!("cannot read the memory directory {at}: {e}"))?.path();
            if path.extension().is_none_or(|e| e != "region") {
                continue;
            }
            let region = Region::open_read_only(&path).map_err(|e| e.to_string())?;
            let Some(header) = region.header() else { continue };
            let (spec, generation) = (header.spec.clone(), header.generation);
            stores.push(Store { spec, region: region.into(), generation });
        }
        if stores.is_empty() {
            return Err(format!(
                "there is no region file (*.region) in {at}; give the `memory` directory of a collector"
            ));
        }
        stores.sort_by_key(|s| s.spec.id);
        let kind =
            Kind::Memory { directory: directory.into(), stores: stores.into_iter().collect(), tail: None };
        Ok(Self { kind, follower: None })
    }

    pub(super) fn title(&self) -> String {
        match &self.kind {
            Kind::Live { address, .. } => format!("collector {address}"),
            Kind::Memory { directory, .. } => format!("memory {}", directory.display()),
        }
    }

    pub(super) async fn snapshot(&mut self) -> Result<Snapshot, String> {
        let taken = Instant::now();
        match &mut self.kind {
            Kind::Live { client, .. } => {
                let stores = ask(client.list_stores(control::ListStoresRequest {})).await?.stores;
                let sessions = ask(client.list_sessions(control::ListSessionsRequest {})).await?.sessions;
                let nodes = ask(client.statistics(control::StatisticsRequest {})).await?.nodes;
                Ok(Snapshot { stores, sessions, nodes, taken, live: true })
            }
            Kind::Memory { stores, .. } => {
                // A collector beside us may have replaced a file.
                stores.follow_files().map_err(|e| e.to_string())?;
                let stores = stores.iter().map(|store| store::info(&store)).collect();
                Ok(Snapshot { stores, sessions: Vec::new(), nodes: Vec::new(), taken, live: false })
            }
        }
    }

    pub(super) async fn memory_bytes(&mut self, window: &Window) -> Result<Vec<u8>, String> {
        match &mut self.kind {
            Kind::Live { client, .. } => {
                let request = control::ReadMemoryRequest {
                    store: window.store.clone(),
                    offset: window.offset,
                    length: window.length,
                };
                Ok(ask(client.read_memory(request)).await?.data)
            }
            Kind::Memory { stores, .. } => {
                let store = stores.get(&window.store).map_err(|e| e.to_string())?;
                let length = u64::from(window.length).min(store.region.len().saturating_sub(window.offset));
                let mut bytes = vec![0; length as usize];
                store.region.read(window.offset, &mut bytes).map_err(|e| e.to_string())?;
                Ok(bytes)
            }
        }
    }

    /// The element of `spec`'s store that was written most recently as far as one more stretch of its memory shows; `None` where
    /// nothing changed. The first round only learns what is there.
    pub(super) async fn written(&mut self, spec: &StoreSpec) -> Result<Option<u64>, String> {
        let pages = spec.region_len().div_ceil(PAGE) as usize;
        let mut follower = match self.follower.take() {
            Some(follower) if follower.store == spec.name => follower,
            _ => Follower { store: spec.name.clone(), digests: vec![None; pages], next: 0 },
        };
        let mut changed = None;
        for _ in 0..PAGES_AT_ONCE.min(pages) {
            let page = follower.next;
            let offset = page as u64 * PAGE;
            let length = PAGE.min(spec.region_len() - offset) as u32;
            let bytes = self.memory_bytes(&Window { store: spec.name.clone(), offset, length }).await?;
            let digest = dta_proto::crc::crc32(&bytes);
            if follower.digests[page].replace(digest).is_some_and(|old| old != digest) {
                changed = Some(offset);
            }
            follower.next = (page + 1) % pages;
        }
        self.follower = Some(follower);
        Ok(changed)
    }

    pub(super) async fn tail(&mut self, list: &ListId) -> Result<Entries, String> {
        match &mut self.kind {
            Kind::Live { client, tail, .. } => {
                if tail.as_ref().is_none_or(|t| t.list != *list) {
                    *tail = None;
                    let request = control::TailRequest {
                        store: list.store.clone(),
                        list: list.list,
                        from_start: true,
                        until_caught_up: false,
                        ..Default::default()
                    };
                    let stream = ask(client.tail(request)).await?;
                    *tail = Some(LiveTail { list: list.clone(), stream, seen: Entries::default() });
                }
                let Some(live) = tail else { return Ok(Entries::default()) };
                // Take what is there; the stream stays open while it is quiet.
                while let Ok(message) =
                    tokio::time::timeout(Duration::from_millis(20), live.stream.message()).await
                {
                    match message {
                        Ok(Some(news)) => {
                            live.seen.overwritten += news.overwritten_batches;
                            live.seen.torn += news.torn;
                            live.seen.sequence = news.sequence;
                            keep(&mut live.seen, news.entries);
                        }
                        Ok(None) => {
                            let seen = std::mem::take(&mut live.seen);
                            *tail = None;
                            return Ok(seen);
                        }
                        Err(status) => {
                            *tail = None;
                            return Err(status.message().to_owned());
                        }
                    }
                }
                Ok(live.seen.clone())
            }
            Kind::Memory { stores, tail, .. } => {
                if tail.as_ref().is_none_or(|t| t.list != *list) {
                    *tail = Some(MemoryTail {
                        list: list.clone(),
                        next: append::Start::Oldest,
                        seen: Entries::default(),
                    });
                }
                let Some(tail) = tail else { return Ok(Entries::default()) };
                let store = stores.of_primitive(&list.store, "append").map_err(|e| e.to_string())?;
                let lists = append::Lists::new(&store).ok_or("not an append store")?;
                let mut reader = lists
                    .reader(list.list, tail.next)
                    .ok_or_else(|| format!("there are lists 0 to {}", lists.count() - 1))?;
                let mut news = Vec::new();
                let progress = reader.read(BATCHES_AT_ONCE, Instant::now(), |sequence, entries| {
                    tail.seen.sequence = sequence.into();
                    news.extend(entries.chunks_exact(lists.entry_len()).map(<[u8]>::to_vec));
                });
                tail.next = append::Start::At(reader.sequence());
                tail.seen.overwritten += progress.overwritten;
                tail.seen.torn += progress.torn;
                keep(&mut tail.seen, news);
                Ok(tail.seen.clone())
            }
        }
    }

    /// The answer as lines for a person.
    pub(super) async fn query(&mut self, question: &Question) -> Result<Vec<String>, String> {
        match &mut self.kind {
            Kind::Live { client, .. } => {
                let stores = ask(client.list_stores(control::ListStoresRequest {})).await?.stores;
                let spec = stores
                    .iter()
                    .filter_map(|s| s.store.as_ref())
                    .find(|s| s.name == question.store)
                    .ok_or_else(|| {
                        unknown(
                            &question.store,
                            stores.iter().filter_map(|s| s.store.as_ref()).map(|s| &*s.name),
                        )
                    })?;
                let spec = StoreSpec::try_from(spec).map_err(|e| e.to_string())?;
                ask_live(client, &spec, question).await
            }
            Kind::Memory { stores, .. } => {
                let store = stores
                    .get(&question.store)
                    .map_err(|_| unknown(&question.store, stores.specs().map(|spec| &*spec.name)))?;
                ask_memory(&store, question)
            }
        }
    }
}

fn unknown<'a>(store: &str, have: impl Iterator<Item = &'a str>) -> String {
    format!("there is no store {store:?}; there are {}", have.collect::<Vec<_>>().join(", "))
}

/// Waits for an answer, but not for ever; an error as one sentence.
async fn ask<T>(
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err(format!("the collector has not answered for {} s", PATIENCE.as_secs())),
    }
}

fn keep(seen: &mut Entries, news: Vec<Vec<u8>>) {
    seen.total += news.len() as u64;
    let skip = news.len().saturating_sub(KEPT_ENTRIES);
    seen.newest.extend(news.into_iter().skip(skip));
    while seen.newest.len() > KEPT_ENTRIES {
        VecDeque::pop_front(&mut seen.newest);
    }
}

fn key_of(question: &Question) -> Result<Key, String> {
    Key::from_str(&question.key).map_err(|e| e.to_string())
}

async fn ask_live(
    client: &mut CollectorClient<Channel>,
    spec: &StoreSpec,
    question: &Question,
) -> Result<Vec<String>, String> {
    let store = spec.name.clone();
    let keys = vec![key_of(question)?.0.to_vec()];
    match spec.kind {
        StoreKind::KeyWrite { .. } => {
            let request = control::QueryKeyWriteRequest { store, keys, policy: 0, at_least: 0 };
            let answer =
                ask(client.query_key_write(request)).await?.answers.into_iter().next().ok_or("no answer")?;
            Ok(say_value(answer.value.as_deref(), answer.agreeing, answer.differing, answer.copies))
        }
        StoreKind::Postcarding { .. } => {
            let request = control::QueryPathRequest { store, keys };
            let answer =
                ask(client.query_path(request)).await?.answers.into_iter().next().ok_or("no answer")?;
            let hops: Vec<_> = answer
                .hops
                .iter()
                .zip(&answer.present)
                .map(|(hop, present)| present.then_some(*hop))
                .collect();
            Ok(say_path(answer.found, &hops, answer.complete))
        }
        StoreKind::KeyIncrement { .. } => {
            let request = control::QueryCounterRequest { store, keys };
            let answer =
                ask(client.query_counter(request)).await?.answers.into_iter().next().ok_or("no answer")?;
            Ok(vec![answer.value.to_string()])
        }
        StoreKind::SketchMerge { .. } => {
            let request = control::QuerySketchRequest { store, keys, epoch: question.epoch };
            let answer =
                ask(client.query_sketch(request)).await?.answers.into_iter().next().ok_or("no answer")?;
            Ok(say_sketch(answer.estimate, answer.merged, answer.expected, question.epoch))
        }
        StoreKind::Append { .. } => Err("an append store has lists, not keys: see the Lists tab".into()),
    }
}

fn ask_memory(store: &Store, question: &Question) -> Result<Vec<String>, String> {
    let keys = [key_of(question)?];
    if let Some(reader) = key_write::Reader::new(store) {
        let mut answers = [key_write::Answer::default()];
        let mut value = vec![0; reader.value_len()];
        reader.query(&keys, Policy::First, &mut answers, &mut value);
        let found = answers[0].found.then_some(&*value);
        return Ok(say_value(
            found,
            answers[0].agreeing.into(),
            answers[0].differing.into(),
            reader.copies().into(),
        ));
    }
    if let Some(reader) = postcarding::Reader::new(store) {
        let mut answers = [postcarding::Answer::default()];
        reader.query(&keys, &mut answers).map_err(|e| e.to_string())?;
        let path = answers[0].path.unwrap_or_default();
        let last = (0..dta_proto::layout::postcarding::MAX_HOPS as u8).rev().find(|h| path.hop(*h).is_some());
        let hops: Vec<_> = (0..last.map_or(0, |h| h + 1)).map(|h| path.hop(h)).collect();
        return Ok(say_path(answers[0].path.is_some(), &hops, path.is_complete()));
    }
    if let Some(reader) = key_increment::Reader::new(store) {
        let mut answers = [0];
        reader.query(&keys, &mut answers).map_err(|e| e.to_string())?;
        return Ok(vec![answers[0].to_string()]);
    }
    if let Some(reader) = sketch_merge::Reader::new(store) {
        let mut answers = [sketch_merge::Answer::default()];
        reader.query(&keys, question.epoch, &mut answers).map_err(|e| e.to_string())?;
        let answer = answers[0];
        return Ok(say_sketch(
            answer.estimate.map(u64::from),
            answer.merged.into(),
            answer.expected.into(),
            question.epoch,
        ));
    }
    Err("an append store has lists, not keys: see the Lists tab".into())
}

fn say_value(value: Option<&[u8]>, agreeing: u32, differing: u32, copies: u32) -> Vec<String> {
    let copies = format!("{agreeing} of {copies} copies agree, {differing} differ");
    match value {
        Some(value) => vec![super::element::hex(value), copies],
        None => vec!["absent".into(), copies],
    }
}

fn say_path(found: bool, hops: &[Option<u32>], complete: bool) -> Vec<String> {
    if !found {
        return vec!["absent".into()];
    }
    let hops: Vec<_> = hops.iter().map(|h| h.map_or("?".into(), |h| h.to_string())).collect();
    vec![hops.join(" → "), if complete { "complete" } else { "partial" }.into()]
}

fn say_sketch(estimate: Option<u64>, merged: u32, expected: u32, epoch: u32) -> Vec<String> {
    match estimate {
        Some(n) => vec![n.to_string(), format!("{merged} of {expected} reporters merged in epoch {epoch}")],
        None => vec!["unknown".into(), format!("the columns hold another epoch than {epoch}")],
    }
}
