//! Streams of followed lists, and their limits.

use std::pin::Pin;

use dta_grpc::Peer;
use dta_proto::control::{TailRequest, TailResponse};
use tokio_stream::StreamExt;
use tonic::{Request, Status};

use super::{Service, status};

/// The stream of a tail call.
pub(super) type Stream = Pin<Box<dyn tokio_stream::Stream<Item = Result<TailResponse, Status>> + Send>>;

/// Takes a place among the allowed streams, and starts to stream.
pub(super) async fn start(service: &Service, request: Request<TailRequest>) -> Result<Stream, Status> {
    let own = match request.extensions().get::<Peer>() {
        Some(peer) => Some(peer.stream().ok_or_else(|| {
            Status::resource_exhausted(
                "this caller already follows the most lists that it may (`tails_per_caller` in the collector's [limits])",
            )
        })?),
        None => None,
    };
    let place = service.tails.clone().try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(
            "this collector already follows the most lists that it may (`tails` in its [limits])",
        )
    })?;
    let request = request.into_inner();
    service.check_list(&request.store, request.list)?;
    let following = service.memory.follow(request, (place, own)).await;
    let following = following.map_err(status::of_ask)?;
    Ok(Box::pin(following.map(|message| message.map_err(status::of_ask))))
}
