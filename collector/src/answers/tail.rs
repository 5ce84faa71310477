//! Following an append list as a stream: [`follow`](crate::reader::follow) says what is read and when to
//! sleep.

use std::sync::Arc;
use std::time::Instant;

use dta_rpc::{ClientError, Following};
use dta_proto::control::{TailRequest, TailResponse};
use dta_proto::wire::dta::Primitive;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::{AskError, Memory};
use crate::reader::QueryError;
use crate::reader::append::{ListError, Lists, Start};
use crate::reader::follow::{Follower, News};
use crate::store::Store;

/// Messages queued for a slow client; beyond that its reader waits, and may be overtaken by the writer, which it
/// reports.
pub(super) const QUEUE: usize = 4;

impl Memory {
    /// Follows a list; `place` is dropped when the last work for it is done, even if the caller has long
    /// gone.
    ///
    /// # Errors
    /// As [`Ask::tail`](dta_rpc::Ask::tail).
    pub async fn follow(
        &self,
        request: TailRequest,
        place: impl Send + 'static,
    ) -> Result<Following, ClientError> {
        // To begin at either end, the whole ring is read.
        let begin = move |memory: &Self| Ok((Tail::begin(memory, &request)?, place));
        let (tail, place) = self.blocking(begin).await?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            follow(tail, sender).await;
            drop(place);
        });
        Ok(Following::new(ReceiverStream::new(receiver).map(|news| news.map_err(ClientError::from))))
    }
}

/// A list being followed, in the memory that its store had at the start.
pub(super) struct Tail {
    memory: Memory,
    store: Arc<Store>,
    follower: Follower,
}

impl Tail {
    fn begin(memory: &Memory, request: &TailRequest) -> Result<Self, AskError> {
        let start = match (request.from_sequence, request.from_start) {
            (0, false) => Start::Next,
            (0, true) => Start::Oldest,
            (sequence, _) => Start::At(sequence),
        };
        let store = memory.store(&request.store, Primitive::Append)?;
        Self::of(memory, store, request.list, start, request.until_caught_up)
    }

    pub(super) fn of(
        memory: &Memory,
        store: Arc<Store>,
        list: u32,
        start: Start,
        until_caught_up: bool,
    ) -> Result<Self, AskError> {
        let follower = Follower::new(lists(&store)?, list, start, until_caught_up);
        let follower = follower.map_err(|error| match error {
            ListError::NoSuchList { list, last } => {
                AskError::List { store: store.spec.name.clone(), list, last }
            }
            ListError::Access(error) => store.outside(error).into(),
        })?;
        Ok(Self { memory: memory.clone(), store, follower })
    }

    fn read(&mut self) -> Result<News, AskError> {
        // Checks that the file is still whole, if another process owns it.
        self.memory.current()?;
        let news = self.follower.read(lists(&self.store)?, Instant::now());
        let news = news.map_err(|error| self.store.outside(error))?;
        self.memory.counters.tail(&news.progress);
        Ok(news)
    }

    /// Whether the store still has this memory. Call it only when nothing came: the lookup takes longer the more
    /// stores there are.
    fn check_replaced(&self) -> Result<(), AskError> {
        let now = self.memory.store(&self.store.spec.name, Primitive::Append)?;
        if Arc::ptr_eq(&now.region, &self.store.region) {
            Ok(())
        } else {
            Err(AskError::Replaced(self.store.spec.name.clone()))
        }
    }

    /// What to report at the end, if everything was read and no more is wanted. Scans the whole ring.
    fn end(&mut self) -> Result<Option<News>, AskError> {
        let end = self.follower.end(lists(&self.store)?).map_err(|error| self.store.outside(error))?;
        Ok(end.map(|progress| {
            self.memory.counters.tail(&progress);
            News { progress, ..News::default() }
        }))
    }
}

pub(super) fn lists(store: &Store) -> Result<Lists<'_>, AskError> {
    Ok(Lists::new(store).ok_or(QueryError::Layout)?)
}

/// Sends what is read, until the end, an error, or the receiver is gone.
pub(super) async fn follow(mut tail: Tail, sender: mpsc::Sender<Result<TailResponse, AskError>>) {
    let (wake, mut stop) = (tail.memory.wake.clone(), tail.memory.stop.clone());
    let refused = loop {
        // Registered before the list is read, so that no wake-up is missed in between.
        let woken = wake.notified();
        let news = match tail.read() {
            Ok(news) => news,
            Err(error) => break error,
        };
        let is_idle = news.is_idle();
        if !news.is_empty() && sender.send(Ok(message(news))).await.is_err() {
            return;
        }
        if !is_idle {
            continue;
        }
        if let Err(error) = tail.check_replaced() {
            break error;
        }
        if tail.follower.may_end() {
            // Closed by nobody.
            let thread = tail.memory.looks.clone().acquire_owned().await.ok();
            let look = tokio::task::spawn_blocking(move || {
                let end = tail.end();
                drop(thread);
                (end, tail)
            });
            match look.await {
                Ok((Ok(None), same)) => tail = same,
                Ok((Ok(Some(news)), _)) => {
                    if !news.is_empty() {
                        let _ = sender.send(Ok(message(news))).await;
                    }
                    return;
                }
                Ok((Err(error), _)) => break error,
                Err(error) => break AskError::Ended(error.to_string()),
            }
        }
        tokio::select! {
            () = tokio::time::sleep(tail.follower.pause()) => tail.follower.slept(),
            () = woken => tail.memory.counters.tail_woken.add(1),
            () = sender.closed() => return,
            () = stopped(&mut stop) => break AskError::Stopping,
        }
    };
    let _ = sender.send(Err(refused)).await;
}

/// Returns when the collector shuts down, if ever.
async fn stopped(stop: &mut Option<watch::Receiver<bool>>) {
    match stop {
        // `Err` means that the sender is dropped, which happens only with the collector.
        Some(stop) => drop(stop.wait_for(|stop| *stop).await),
        None => std::future::pending().await,
    }
}

pub(super) fn message(news: News) -> TailResponse {
    TailResponse {
        sequence: news.sequence.into(),
        entries: news.entries,
        overwritten_batches: news.progress.overwritten,
        torn: news.progress.torn,
        missing_batches: news.progress.missing,
        damaged_batches: news.progress.damaged,
        epoch: None,
    }
}
