//! Streams of followed lists, and their limits.

use std::pin::Pin;

use dta_rpc::{ClientError, Following};
use dta_rpc::transport::{Peer, Permit};
use dta_proto::control::{EntriesRequest, TailRequest, TailResponse};
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::StreamExt;
use tonic::{Request, Status};

use super::{Service, status};

/// The stream of a tail call.
pub(super) type Stream = Pin<Box<dyn tokio_stream::Stream<Item = Result<TailResponse, Status>> + Send>>;

/// A place among the allowed streams.
type Admission = (OwnedSemaphorePermit, Option<Permit>);

/// Takes a place, and starts to follow a list.
pub(super) async fn start(service: &Service, request: Request<TailRequest>) -> Result<Stream, Status> {
    let (place, request) = (place(service, &request)?, request.into_inner());
    service.check_list(&request.store, request.list)?;
    stream(service.memory.follow(request, place).await)
}

/// Takes a place, and starts to hand over the entries of past epochs.
pub(super) async fn entries(service: &Service, request: Request<EntriesRequest>) -> Result<Stream, Status> {
    let (place, request) = (place(service, &request)?, request.into_inner());
    service.check_list(&request.store, request.list)?;
    stream(service.memory.entries_of(request, place).await)
}

fn place<T>(service: &Service, request: &Request<T>) -> Result<Admission, Status> {
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
    Ok((place, own))
}

fn stream(following: Result<Following, ClientError>) -> Result<Stream, Status> {
    let following = following.map_err(status::of_ask)?;
    Ok(Box::pin(following.map(|message| message.map_err(status::of_ask))))
}
