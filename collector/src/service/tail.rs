//! Streams of followed lists, and their limits.

use std::pin::Pin;

use dta_proto::control::{EntriesRequest, TailRequest, TailResponse};
use dta_rpc::transport::{Peer, Permit};
use dta_rpc::{ClientError, TailMessages};
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::StreamExt;
use tonic::{Request, Status};

use super::{CollectorService, status};

/// The stream of a tail call.
pub(super) type Stream = Pin<Box<dyn tokio_stream::Stream<Item = Result<TailResponse, Status>> + Send>>;

/// A place among the permitted streams.
type Admission = (OwnedSemaphorePermit, Option<Permit>);

/// Takes a place, and starts following a list.
pub(super) async fn start_tail(
    service: &CollectorService,
    request: Request<TailRequest>,
) -> Result<Stream, Status> {
    let (place, request) = (admit_tail(service, &request)?, request.into_inner());
    service.check_list(&request.store, request.list)?;
    response_stream(service.memory.follow_list(request, place).await)
}

/// Takes a place, and starts handing over the entries of past epochs.
pub(super) async fn start_entries(
    service: &CollectorService,
    request: Request<EntriesRequest>,
) -> Result<Stream, Status> {
    let (place, request) = (admit_tail(service, &request)?, request.into_inner());
    service.check_list(&request.store, request.list)?;
    response_stream(service.memory.entries_of(request, place).await)
}

fn admit_tail<T>(service: &CollectorService, request: &Request<T>) -> Result<Admission, Status> {
    let own = match request.extensions().get::<Peer>() {
        Some(peer) => Some(peer.reserve_stream().ok_or_else(|| {
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

fn response_stream(following: Result<TailMessages, ClientError>) -> Result<Stream, Status> {
    let following = following.map_err(status::from_client_error)?;
    Ok(Box::pin(following.map(|message| message.map_err(status::from_client_error))))
}
