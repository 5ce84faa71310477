//! Following an append list as a stream: [`follow`](crate::store::follow) says what is read and when to sleep.

use std::time::Instant;

use dta_grpc::Peer;
use dta_proto::control::{TailRequest, TailResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::Service;
use super::query::of_its_kind;
use crate::store::Store;
use crate::store::append::{Lists, Start};
use crate::store::follow::{Follower, Moves, News};

/// What a tail call streams.
pub(super) type Stream = ReceiverStream<Result<TailResponse, Status>>;

/// Messages on their way to a slow client; then its reader waits, and may be overtaken by the writer, which it will tell.
const QUEUE: usize = 4;

/// Checks a request and begins to stream.
pub(super) fn start(service: &Service, request: Request<TailRequest>) -> Result<Stream, Status> {
    let peer = request.extensions().get::<Peer>().cloned();
    let request = request.into_inner();
    let store = service.store(&request.store, "append")?;
    let lists = of_its_kind(Lists::new(&store))?;
    if request.list >= lists.count() {
        return Err(Status::invalid_argument(format!(
            "there is no list {}: store {:?} has lists 0 to {}",
            request.list,
            request.store,
            lists.count() - 1
        )));
    }
    let own = match peer {
        Some(peer) => Some(peer.stream().ok_or_else(|| {
            Status::resource_exhausted(
                "this caller follows as many lists as one may at a time (`tails_per_caller` in the collector's [limits])",
            )
        })?),
        None => None,
    };
    let permit = service.tails.clone().try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(
            "as many lists are being followed as may be at a time (`tails` in the collector's [limits])",
        )
    })?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let service = service.clone();
    tokio::spawn(async move {
        follow(service, request, sender).await;
        drop((permit, own));
    });
    Ok(ReceiverStream::new(receiver))
}

async fn follow(service: Service, request: TailRequest, sender: mpsc::Sender<Result<TailResponse, Status>>) {
    let mut start = match (request.from_sequence, request.from_start) {
        (0, false) => Start::Next,
        (0, true) => Start::Oldest,
        (sequence, _) => Start::At(sequence),
    };
    // Once for each memory that the store gets meanwhile.
    while let Ok(store) = service.stores.of_primitive(&request.store, "append")
        && let Some(next) = follow_memory(&service, &request, &store, start, &sender).await
    {
        start = next;
    }
}

/// Follows a list in the memory that a store has now. Gives where to go on in the memory that took its place; `None` if the stream
/// has ended.
async fn follow_memory(
    service: &Service,
    request: &TailRequest,
    store: &Store,
    start: Start,
    sender: &mpsc::Sender<Result<TailResponse, Status>>,
) -> Option<Start> {
    let lists = Lists::new(store)?;
    // Beginning at either end reads the whole ring.
    let mut follower =
        tokio::task::block_in_place(|| Follower::new(lists, request.list, start, request.until_caught_up))?;
    let mut stop = service.stop.clone();
    loop {
        // Registered before the list is read, so that no wake-up falls between.
        let woken = service.wake.notified();
        let news = follower.read(Instant::now());
        let idle = news.is_idle();
        service.counters.tail_entries.add(news.progress.entries);
        service.counters.tail_overwritten.add(news.progress.overwritten);
        service.counters.tail_missing.add(news.progress.missing);
        service.counters.tail_damaged.add(news.progress.damaged);
        if !news.is_empty() && sender.send(Ok(message(news))).await.is_err() {
            return None;
        }
        if !idle {
            continue;
        }
        let moves = moves(service, store, &mut follower);
        if let Moves::To(start) = moves {
            return Some(start);
        }
        if moves == Moves::No && follower.may_end() && tokio::task::block_in_place(|| follower.caught_up()) {
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep(follower.pause()) => follower.slept(),
            () = woken => service.counters.tail_woken.add(1),
            () = sender.closed() => return None,
            () = stopped(&mut stop) => {
                let _ = sender.send(Err(Status::unavailable("the collector is shutting down; tail again later"))).await;
                return None;
            }
        }
    }
}

/// Whether the store has other memory by now, and it is time to go on there.
fn moves(service: &Service, store: &Store, follower: &mut Follower<'_>) -> Moves {
    let Ok(now) = service.stores.get(&store.spec.name) else { return Moves::No };
    match Lists::new(&now) {
        Some(lists) if now.generation != store.generation => {
            tokio::task::block_in_place(|| follower.moves_to(&lists, Instant::now()))
        }
        _ => Moves::No,
    }
}

/// Returns when the collector shuts down.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone, which it only is with the collector.
    let _ = stop.wait_for(|stop| *stop).await;
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
