//! Following an append list as a stream: [`follow`](crate::store::follow) says what is read and when to sleep.

use std::sync::Arc;
use std::time::Instant;

use dta_grpc::Peer;
use dta_proto::control::{TailRequest, TailResponse};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::Service;
use crate::store::append::{Lists, Start};
use crate::store::follow::{Follower, News};

/// What a tail call streams.
pub(super) type Stream = ReceiverStream<Result<TailResponse, Status>>;

/// Messages on their way to a slow client; then its reader waits, and may be overtaken by the writer, which it will tell.
const QUEUE: usize = 4;

/// Checks a request and begins to stream.
pub(super) fn start(service: &Service, request: Request<TailRequest>) -> Result<Stream, Status> {
    let peer = request.extensions().get::<Peer>().cloned();
    let request = request.into_inner();
    let (_, lists) = service.reader(&request.store, "append", Lists::new)?;
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
    let start = match (request.from_sequence, request.from_start) {
        (0, false) => Start::Next,
        (0, true) => Start::Oldest,
        (sequence, _) => Start::At(sequence),
    };
    let stores = Arc::clone(&service.stores);
    let follower = stores
        .of_primitive(&request.store, "append")
        .ok()
        .and_then(Lists::new)
        // Beginning at either end reads the whole ring.
        .and_then(|lists| {
            let (list, end) = (request.list, request.until_caught_up);
            tokio::task::block_in_place(|| Follower::new(lists, list, start, end))
        });
    let Some(mut follower) = follower else {
        return;
    };
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
            return;
        }
        if !idle {
            continue;
        }
        if follower.may_end() && tokio::task::block_in_place(|| follower.caught_up()) {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(follower.pause()) => follower.slept(),
            () = woken => service.counters.tail_woken.add(1),
            () = sender.closed() => return,
            () = stopped(&mut stop) => {
                let _ = sender.send(Err(Status::unavailable("the collector is shutting down; tail again later"))).await;
                return;
            }
        }
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
