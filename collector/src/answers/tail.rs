//! Follows an append list as a stream; [`follow`](dta_memory::reader::follow) decides what is read and when
//! to sleep.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use dta_memory::reader::append::{ListError, Lists, ReadStart};
use dta_memory::reader::follow::{Follower, News};
use dta_memory::store::Store;
use dta_proto::control::{TailRequest, TailResponse};
use dta_proto::wire::dta::Primitive;
use dta_rpc::{ClientError, TailMessages};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::keys::QueryError;
use super::{AskError, Memory};

/// Messages queued for a slow client. Beyond that its reader waits, and reports it if the writer overtakes
/// it.
pub(super) const QUEUE: usize = 4;

impl Memory {
    /// Follows a list. `place` is dropped once all work for it is done, even if the caller has long gone.
    ///
    /// # Errors
    /// As [`Ask::tail_list`](dta_rpc::Ask::tail_list).
    pub async fn follow_list(
        &self,
        request: TailRequest,
        place: impl Send + 'static,
    ) -> Result<TailMessages, ClientError> {
        // Beginning at either end requires reading the whole ring.
        let begin = move |memory: &Self| Ok((ListTail::from_request(memory, &request)?, place));
        let (tail, place) = self.run_blocking(begin).await?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            stream_list(tail, sender).await;
            drop(place);
        });
        Ok(TailMessages::new(ReceiverStream::new(receiver).map(|news| news.map_err(ClientError::from))))
    }
}

/// A list being followed, in the memory that its store had at the start.
pub(super) struct ListTail {
    memory: Memory,
    store: Arc<Store>,
    follower: Follower,
}

impl ListTail {
    fn from_request(memory: &Memory, request: &TailRequest) -> Result<Self, AskError> {
        let start = match (request.from_sequence, request.from_start) {
            (0, false) => ReadStart::Next,
            (0, true) => ReadStart::Oldest,
            (sequence, _) => ReadStart::At(sequence),
        };
        let store = memory.find_store(&request.store, Primitive::Append)?;
        Self::with_start(memory, store, request.list, start, request.until_caught_up)
    }

    pub(super) fn with_start(
        memory: &Memory,
        store: Arc<Store>,
        list: u32,
        start: ReadStart,
        until_caught_up: bool,
    ) -> Result<Self, AskError> {
        let follower = Follower::new(store_lists(&store)?, list, start, until_caught_up);
        let follower = follower.map_err(|error| match error {
            ListError::NoSuchList { list, last } => {
                AskError::List { store: store.spec.name.clone(), list, last }
            }
            ListError::Access(error) => store.outside_region(error).into(),
        })?;
        Ok(Self { memory: memory.clone(), store, follower })
    }

    fn read(&mut self) -> Result<News, AskError> {
        // Checks that the file is still whole, if another process owns it.
        self.memory.current_stores()?;
        let news = self.follower.read(store_lists(&self.store)?, Instant::now());
        let news = news.map_err(|error| self.store.outside_region(error))?;
        self.memory.counters.add_tail_progress(&news.progress);
        Ok(news)
    }

    /// Fails if the store's memory was replaced. Call it only when nothing came: the lookup takes longer the
    /// more stores there are.
    fn check_replaced(&self) -> Result<(), AskError> {
        let now = self.memory.find_store(&self.store.spec.name, Primitive::Append)?;
        if Arc::ptr_eq(&now.region, &self.store.region) {
            Ok(())
        } else {
            Err(AskError::Replaced(self.store.spec.name.clone()))
        }
    }

    /// The last report, if everything was read and no more is wanted. Scans the whole ring.
    fn final_news(&mut self) -> Result<Option<News>, AskError> {
        let end = self
            .follower
            .finish_reading(store_lists(&self.store)?)
            .map_err(|error| self.store.outside_region(error))?;
        Ok(end.map(|progress| {
            self.memory.counters.add_tail_progress(&progress);
            News { progress, ..News::default() }
        }))
    }
}

pub(super) fn store_lists(store: &Store) -> Result<Lists<'_>, AskError> {
    Ok(Lists::new(store).ok_or(QueryError::Layout)?)
}

/// Sends what is read until the list ends, an error occurs or the receiver is gone.
pub(super) async fn stream_list(mut tail: ListTail, sender: mpsc::Sender<Result<TailResponse, AskError>>) {
    let (wake, mut stop) = (tail.memory.wake.clone(), tail.memory.stop.clone());
    let refused = loop {
        // Registered before the list is read, so that no wake-up is missed in between.
        let woken = wake.notified();
        let news = match tail.read() {
            Ok(news) => news,
            Err(error) => break error,
        };
        let is_idle = news.is_idle();
        if !news.is_empty() && sender.send(Ok(tail_response(news))).await.is_err() {
            return;
        }
        if !is_idle {
            continue;
        }
        if let Err(error) = tail.check_replaced() {
            break error;
        }
        if tail.follower.can_end() {
            // The semaphore is never closed.
            let thread = tail.memory.looks.clone().acquire_owned().await.ok();
            let look = tokio::task::spawn_blocking(move || {
                let end = tail.final_news();
                drop(thread);
                (end, tail)
            });
            match look.await {
                Ok((Ok(None), same)) => tail = same,
                Ok((Ok(Some(news)), _)) => {
                    if !news.is_empty() {
                        let _ = sender.send(Ok(tail_response(news))).await;
                    }
                    return;
                }
                Ok((Err(error), _)) => break error,
                Err(error) => break AskError::Ended(error.to_string()),
            }
        }
        tokio::select! {
            () = tokio::time::sleep(tail.follower.sleep_duration()) => tail.follower.lengthen_sleep(),
            () = woken => { tail.memory.counters.tails.woken.fetch_add(1, Ordering::Relaxed); },
            () = sender.closed() => return,
            () = wait_for_stop(&mut stop) => break AskError::Stopping,
        }
    };
    let _ = sender.send(Err(refused)).await;
}

/// Returns when the collector shuts down; otherwise never.
async fn wait_for_stop(stop: &mut Option<watch::Receiver<bool>>) {
    match stop {
        // `Err` means that the sender was dropped, which happens only with the collector.
        Some(stop) => drop(stop.wait_for(|stop| *stop).await),
        None => std::future::pending().await,
    }
}

pub(super) fn tail_response(news: News) -> TailResponse {
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
