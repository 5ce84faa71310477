//! The event lists of one collector, followed for as long as needed.
//!
//! A [`EventSource`] follows each list in a task of its own, through any [`Ask`]. A collector that goes down is retried,
//! and each list continues after the last batch read. Callers that keep the [`EntryBatch::sequence`]s of what they have
//! processed can continue there in another process ([`Begin::Behind`]).
//!
//! The key directory is read from its beginning, whatever [`Begin`] says, and before the other lists, whose entries
//! need it. Still, a key and the first event about it are in different lists: an event may arrive a moment before its
//! key.
//!
//! The lists that hosts write ([`dta_proto::trace::list`]) are followed in the same way: their names are where the key
//! directory is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dta_proto::backoff::Backoff;
use dta_proto::control::{TailRequest, TailResponse};
use dta_proto::counter::collector as names;
use dta_proto::layout::append::{advance_sequence, is_sequence_after};
use dta_proto::telemetry::{TelemetryEntry, list};
use dta_proto::trace;
use dta_rpc::{Ask, ClientError, TailMessages};
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The default store to which the translator's rules append events.
pub const DEFAULT_STORE: &str = dta_proto::telemetry::store::EVENTS;

/// The number of lists; each list's number is in [`dta_proto::telemetry::list`].
pub const LISTS: usize = list::COUNT as usize;

// Hosts have as many lists, with their names where the key directory is.
const _: () = assert!(trace::list::COUNT == list::COUNT && trace::list::NAMES == list::KEYS);

/// An entry of lists that an [`EventSource`] can follow.
pub trait ListEntry: Sized + Send + 'static {
    /// Decodes an entry; `None` if the bytes are not one.
    fn parse_entry(bytes: &[u8]) -> Option<Self>;
}

impl ListEntry for TelemetryEntry {
    fn parse_entry(bytes: &[u8]) -> Option<Self> {
        TelemetryEntry::parse_bytes(bytes)
    }
}

impl ListEntry for trace::TraceEntry {
    fn parse_entry(bytes: &[u8]) -> Option<Self> {
        trace::TraceEntry::parse_bytes(bytes)
    }
}

/// How often an empty list is checked for entries.
const LOOK: Duration = Duration::from_secs(2);
/// How long to wait before a collector is tried again.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// Batches that wait to be taken; beyond this the lists wait, and the writer may overtake them, which is reported.
const QUEUE: usize = 4;

/// Where to begin in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With the oldest batch in the ring.
    #[default]
    Oldest,
    /// With the very first batch; those no longer in the ring are reported as overwritten.
    First,
    /// With the next batch that comes.
    Next,
    /// After this sequence, for a reader that has read up to it. If the list has started over meanwhile, with its oldest batch.
    Behind(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    /// The append store with the events.
    pub store: String,
    /// Where to begin in each list, by its number; `None` = not followed. The key directory always begins with its
    /// oldest entry.
    pub begin: [Option<Begin>; LISTS],
    /// Ends when everything there has been read, instead of waiting for more.
    pub once: bool,
}

impl Default for SourceOptions {
    /// All lists of `int-events`, endlessly, from the oldest batch on.
    fn default() -> Self {
        Self { store: DEFAULT_STORE.into(), begin: [Some(Begin::Oldest); LISTS], once: false }
    }
}

/// The result of one read: at most some hundred entries of one list, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryBatch<E = TelemetryEntry> {
    /// Number of the list ([`dta_proto::telemetry::list`]).
    pub list: u32,
    /// Sequence of the last batch that was read, to continue after ([`Begin::Behind`]). 0 if none was read yet.
    pub sequence: u32,
    pub entries: Vec<E>,
    /// What was skipped before and among the entries.
    pub lost: Lost,
}

impl<E> Default for EntryBatch<E> {
    fn default() -> Self {
        EntryBatch { list: 0, sequence: 0, entries: Vec::new(), lost: Lost::default() }
    }
}

impl<E: ListEntry> EntryBatch<E> {
    pub fn from_message(list: u32, message: TailResponse) -> Self {
        let count = message.entries.len();
        let entries: Vec<E> = message.entries.iter().filter_map(|entry| E::parse_entry(entry)).collect();
        let lost = Lost {
            overwritten: message.overwritten_batches,
            missing: message.missing_batches,
            damaged: message.damaged_batches,
            unreadable: (count - entries.len()) as u64,
        };
        EntryBatch { list, sequence: message.sequence as u32, entries, lost }
    }
}

/// What could not be read of a list, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Batches of the list that were overwritten before they could be read.
    pub overwritten: u64,
    /// Batches that never came although later ones did.
    pub missing: u64,
    /// Batches whose bytes stayed wrong.
    pub damaged: u64,
    /// Entries that do not parse: of a newer version, or not the translator's.
    pub unreadable: u64,
}

impl Lost {
    pub fn add(&mut self, other: &Lost) {
        self.overwritten += other.overwritten;
        self.missing += other.missing;
        self.damaged += other.damaged;
        self.unreadable += other.unreadable;
    }

    pub fn lost_batches(&self) -> u64 {
        self.overwritten + self.missing + self.damaged
    }
}

dta_proto::shared_counters! {
    /// What was read from all sources that share it. Shared and read at any time.
    pub struct ListCounters(sink) {
        entries = names::EXPORT_ENTRIES,
        unreadable = names::EXPORT_UNREADABLE,
        overwritten = names::EXPORT_OVERWRITTEN,
        missing = names::EXPORT_MISSING,
        damaged = names::EXPORT_DAMAGED,
        interrupted = names::EXPORT_INTERRUPTED,
    }
}

impl ListCounters {
    fn count_batch<E>(&self, batch: &EntryBatch<E>) {
        for (counter, n) in [
            (&self.entries, batch.entries.len() as u64),
            (&self.unreadable, batch.lost.unreadable),
            (&self.overwritten, batch.lost.overwritten),
            (&self.missing, batch.lost.missing),
            (&self.damaged, batch.lost.damaged),
        ] {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }
}

/// The events of one collector. Dropping it stops following.
#[derive(Debug)]
pub struct EventSource<E = TelemetryEntry> {
    receiver: mpsc::Receiver<Result<EntryBatch<E>, ClientError>>,
    _lists: JoinSet<()>,
}

impl<E: ListEntry> EventSource<E> {
    /// Starts to follow what `options` say; needs a tokio runtime.
    pub fn new(ask: Arc<dyn Ask>, options: &SourceOptions, counters: Arc<ListCounters>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        // True once the key directory has been read to its end, or if it is not followed.
        let (named, is_named) = watch::channel(options.begin[list::KEYS as usize].is_none());
        let named = Arc::new(named);
        let mut lists = JoinSet::new();
        for (list, begin) in (0..list::COUNT).zip(options.begin) {
            let Some(begin) = begin else { continue };
            let is_keys = list == list::KEYS;
            let list = List {
                ask: ask.clone(),
                store: options.store.clone(),
                list,
                at: if is_keys && begin != Begin::First { Begin::Oldest } else { begin },
                once: options.once,
                sender: sender.clone(),
                counters: counters.clone(),
            };
            if is_keys {
                lists.spawn(list.follow_keys(named.clone()));
            } else {
                lists.spawn(list.follow_after_keys(is_named.clone()));
            }
        }
        Self { receiver, _lists: lists }
    }

    /// Waits for the next batch. `None` at the end, which comes only with [`SourceOptions::once`].
    ///
    /// Cancel-safe: no batch is lost if this is dropped and called again.
    ///
    /// # Errors
    /// Why a list cannot be followed at the moment. Each new failure is returned once, and the list is retried
    /// automatically: to go on, just call again.
    pub async fn next(&mut self) -> Option<Result<EntryBatch<E>, ClientError>> {
        self.receiver.recv().await
    }
}

struct List<E> {
    ask: Arc<dyn Ask>,
    store: String,
    list: u32,
    at: Begin,
    once: bool,
    sender: mpsc::Sender<Result<EntryBatch<E>, ClientError>>,
    counters: Arc<ListCounters>,
}

struct SourceDropped;

impl<E: ListEntry> List<E> {
    /// Follows the key directory: first to its current end, then onwards.
    async fn follow_keys(mut self, named: Arc<watch::Sender<bool>>) {
        if self.follow_list(true).await.is_ok() {
            named.send_replace(true);
            if !self.once {
                let _ = self.follow_list(false).await;
            }
        }
    }

    /// Follows another list, once the key directory has been read to its current end.
    async fn follow_after_keys(mut self, mut named: watch::Receiver<bool>) {
        if named.wait_for(|named| *named).await.is_ok() {
            let _ = self.follow_list(self.once).await;
        }
    }

    /// Follows the list; ends when everything there has been read, if `once`.
    async fn follow_list(&mut self, once: bool) -> Result<(), SourceDropped> {
        let (mut again, mut is_reported) = (AGAIN, false);
        loop {
            match self.try_follow(once, &mut is_reported).await? {
                Ok(()) => return Ok(()),
                Err(error) => {
                    // A list that was followed and broke off is retried soon.
                    if !is_reported {
                        (again, is_reported) = (AGAIN, true);
                        self.counters.interrupted.fetch_add(1, Ordering::Relaxed);
                        self.sender.send(Err(error)).await.map_err(|_| SourceDropped)?;
                    }
                }
            }
            tokio::time::sleep(again.next_pause()).await;
        }
    }

    /// Follows the list until it fails. `is_reported` becomes false as soon as it can be followed.
    async fn try_follow(
        &mut self,
        once: bool,
        is_reported: &mut bool,
    ) -> Result<Result<(), ClientError>, SourceDropped> {
        let following = match self.start_tail(once).await {
            Ok(following) => following,
            Err(error) => return Ok(Err(error)),
        };
        let Some(mut following) = following else { return Ok(Ok(())) };
        *is_reported = false;
        loop {
            match following.next_message().await {
                Ok(Some(message)) => {
                    let batch = self.read_message(message);
                    self.counters.count_batch(&batch);
                    self.sender.send(Ok(batch)).await.map_err(|_| SourceDropped)?;
                }
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Starts to follow; `None` if there is nothing to read and no more is wanted.
    async fn start_tail(&self, once: bool) -> Result<Option<TailMessages>, ClientError> {
        let request = TailRequest {
            store: self.store.clone(),
            list: self.list,
            until_caught_up: once,
            ..TailRequest::default()
        };
        let request = match self.at {
            Begin::Oldest => TailRequest { from_start: true, ..request },
            // Sequences wrap: after two thousand million batches, the first one lies ahead.
            Begin::First => match self.newest_sequence().await? {
                newest if newest == 1 || is_sequence_after(newest, 1) => {
                    TailRequest { from_sequence: 1, ..request }
                }
                _ => TailRequest { from_start: true, ..request },
            },
            Begin::Next => request,
            Begin::Behind(0) => TailRequest { from_start: true, ..request },
            Begin::Behind(sequence) => {
                // An empty list does not show whether it started over: its first batch will.
                let newest = loop {
                    match self.newest_sequence().await? {
                        0 if once => return Ok(None),
                        0 => tokio::time::sleep(LOOK).await,
                        newest => break newest,
                    }
                };
                if newest == sequence || is_sequence_after(newest, sequence) {
                    TailRequest { from_sequence: advance_sequence(sequence, 1), ..request }
                } else {
                    TailRequest { from_start: true, ..request }
                }
            }
        };
        self.ask.tail_list(request).await.map(Some)
    }

    /// Sequence of the newest batch; 0 if there is none.
    async fn newest_sequence(&self) -> Result<u32, ClientError> {
        let request = TailRequest {
            store: self.store.clone(),
            list: self.list,
            until_caught_up: true,
            from_start: true,
            ..TailRequest::default()
        };
        let mut following = self.ask.tail_list(request).await?;
        let mut newest = 0;
        while let Some(message) = following.next_message().await? {
            newest = if message.sequence == 0 { newest } else { message.sequence as u32 };
        }
        Ok(newest)
    }

    /// Reads a message; the list continues after it.
    fn read_message(&mut self, message: TailResponse) -> EntryBatch<E> {
        if message.sequence != 0 {
            self.at = Begin::Behind(message.sequence as u32);
        }
        let sequence = match self.at {
            Begin::Behind(sequence) => sequence,
            Begin::Oldest | Begin::First | Begin::Next => 0,
        };
        EntryBatch { sequence, ..EntryBatch::from_message(self.list, message) }
    }
}
