//! Following an append list as a stream: [`follow`](crate::store::follow) says what is read and when to sleep.

use std::time::Instant;

use dta_client::{ClientError, Following};
use dta_proto::control::{TailRequest, TailResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::{AskError, Memory};
use crate::region::AccessError;
use crate::store::append::{ListError, Lists, Start};
use crate::store::follow::{Follower, News};

/// Messages on their way to a slow client; then its reader waits, and may be overtaken by the writer, which it will tell.
const QUEUE: usize = 4;

impl Memory {
    /// Follows a list; `place` is dropped when the last work for it is done, even if the caller has long gone.
    ///
    /// # Errors
    /// As [`Ask::tail`](dta_client::Ask::tail).
    pub async fn follow(
        &self,
        request: TailRequest,
        place: impl Send + 'static,
    ) -> Result<Following, ClientError> {
        // Beginning at either end reads the whole ring.
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

/// A list that is followed. It keeps the store's name, not the store: that is looked up whenever it is read.
struct Tail {
    memory: Memory,
    store: String,
    generation: u64,
    follower: Follower,
}

impl Tail {
    fn begin(memory: &Memory, request: &TailRequest) -> Result<Self, AskError> {
        let start = match (request.from_sequence, request.from_start) {
            (0, false) => Start::Next,
            (0, true) => Start::Oldest,
            (sequence, _) => Start::At(sequence),
        };
        memory.ask(&request.store, "append", |store| {
            let lists = Lists::new(store).ok_or(AskError::Layout)?;
            let follower = Follower::new(lists, request.list, start, request.until_caught_up);
            let follower = follower.map_err(|error| match error {
                ListError::NoSuchList { list, last } => {
                    AskError::List { store: store.spec.name.clone(), list, last }
                }
                ListError::Access(error) => AskError::outside(store, error),
            })?;
            let (memory, generation) = (memory.clone(), store.generation);
            Ok(Self { memory, store: store.spec.name.clone(), generation, follower })
        })
    }

    fn look<T>(
        &mut self,
        look: impl FnOnce(&mut Follower, Lists<'_>) -> Result<T, AccessError>,
    ) -> Result<T, AskError> {
        self.memory.ask(&self.store, "append", |store| {
            if store.generation != self.generation {
                // The sequences of another memory are not those of this one.
                return Err(AskError::Replaced(self.store.clone()));
            }
            let lists = Lists::new(store).ok_or(AskError::Layout)?;
            look(&mut self.follower, lists).map_err(|error| AskError::outside(store, error))
        })
    }

    fn read(&mut self) -> Result<News, AskError> {
        let news = self.look(|follower, lists| follower.read(lists, Instant::now()))?;
        let counters = &self.memory.counters;
        counters.tail_entries.add(news.progress.entries);
        counters.tail_overwritten.add(news.progress.overwritten);
        counters.tail_missing.add(news.progress.missing);
        counters.tail_damaged.add(news.progress.damaged);
        Ok(news)
    }

    fn caught_up(&mut self) -> Result<bool, AskError> {
        self.look(|follower, lists| follower.caught_up(lists))
    }
}

/// Sends what is read, until the end, an error, or nobody listens.
async fn follow(mut tail: Tail, sender: mpsc::Sender<Result<TailResponse, AskError>>) {
    let (wake, mut stop) = (tail.memory.wake.clone(), tail.memory.stop.clone());
    let refused = loop {
        // Registered before the list is read, so that no wake-up falls between.
        let woken = wake.notified();
        let news = match tail.read() {
            Ok(news) => news,
            Err(error) => break error,
        };
        let idle = news.is_idle();
        if !news.is_empty() && sender.send(Ok(message(news))).await.is_err() {
            return;
        }
        if !idle {
            continue;
        }
        if tail.follower.may_end() {
            // Looks at the whole ring.
            let look = tokio::task::spawn_blocking(move || (tail.caught_up(), tail));
            match look.await {
                Ok((Ok(false), same)) => tail = same,
                Ok((Ok(true), _)) => return,
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

/// Returns when the collector shuts down, if it ever does.
async fn stopped(stop: &mut Option<watch::Receiver<bool>>) {
    match stop {
        // An error says that the sender is gone, which it only is with the collector.
        Some(stop) => drop(stop.wait_for(|stop| *stop).await),
        None => std::future::pending().await,
    }
}

fn message(news: News) -> TailResponse {
    TailResponse {
        sequence: news.sequence.into(),
        entries: news.entries,
        overwritten_batches: news.progress.overwritten,
        torn: news.progress.torn,
        missing_batches: news.progress.missing,
        damaged_batches: news.progress.damaged,
    }
}
