//! Streams of lists that are followed: how many there may be, and of whom.

use std::pin::Pin;

use dta_grpc::Peer;
use dta_proto::control::{TailRequest, TailResponse};
use tokio_stream::StreamExt;
use tonic::{Request, Status};

use super::{Service, status};

/// What a tail call streams.
pub(super) type Stream = Pin<Box<dyn tokio_stream::Stream<Item = Result<TailResponse, Status>> + Send>>;

/// Takes a place among the streams that there may be, and begins to stream.
pub(super) async fn start(service: &Service, request: Request<TailRequest>) -> Result<Stream, Status> {
    let own = match request.extensions().get::<Peer>() {
        Some(peer) => Some(peer.stream().ok_or_else(|| {
            Status::resource_exhausted(
                "this caller follows as many lists as one may at a time (`tails_per_caller` in the collector's [limits])",
            )
        })?),
        None => None,
    };
    let place = service.tails.clone().try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(
            "as many lists are being followed as may be at a time (`tails` in the collector's [limits])",
        )
    })?;
    let request = request.into_inner();
    service.check_list(&request.store, request.list)?;
    let following = service.memory.follow(request, (place, own)).await;
    let following = following.map_err(status::of_ask)?;
    Ok(Box::pin(following.map(|message| message.map_err(status::of_ask))))
}
