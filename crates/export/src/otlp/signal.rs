//! What the requests of all signals have in common.

use prost::Message;
use tonic::Status;
use tonic::transport::Channel;

use crate::receiver::{Written, halving};

/// A request of one signal, with one resource and one scope.
pub(super) trait Request: Message + Default + Clone {
    /// What it carries.
    type Item: Clone;
    /// The answer to it.
    type Response: Message + Default;
    /// Path of the URL.
    const PATH: &str;

    /// What it carries; `None` if it has no resource.
    fn items(&mut self) -> Option<&mut Vec<Self::Item>>;

    /// The points of an item.
    fn points(item: &Self::Item) -> u64;

    /// How much of what an answer counts as rejected is in an item.
    fn parts(item: &Self::Item) -> u64 {
        Self::points(item)
    }

    /// Sends it over gRPC.
    async fn call(channel: Channel, request: tonic::Request<Self>) -> Result<Self::Response, Status>;

    /// How many parts were rejected, and why.
    fn rejected(response: Self::Response) -> Option<(i64, String)>;
}

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    points: u64,
    parts: u64,
}

/// Sends a record with `send`, whose error says why it refuses a request: that is halved.
pub(super) fn write<R: Request>(
    record: &[u8],
    points: u64,
    send: impl Fn(R, Carried) -> Result<Written, String>,
) -> Written {
    let sum = |items: &[R::Item]| items.iter().map(R::points).sum();
    let mut request = match R::decode(record) {
        Ok(request) => request,
        Err(error) => return Written::Rejected { points, reason: error.to_string() },
    };
    let items = request.items().map(std::mem::take).unwrap_or_default();
    halving(&items, &sum, &mut |part| {
        let mut request = request.clone();
        if let Some(items) = request.items() {
            *items = part.to_vec();
        }
        send(request, Carried { points: sum(part), parts: part.iter().map(R::parts).sum() })
    })
}

/// What an answer of success says: some may be rejected. It does not say which: a point is only if all parts that are none do not account
/// for it.
pub(super) fn taken<R: Request>(response: R::Response, carried: Carried) -> Written {
    let Carried { points, parts } = carried;
    match R::rejected(response) {
        Some((rejected, reason)) if rejected > 0 => {
            let rejected = (rejected as u64).min(parts);
            Written::Rejected { points: rejected.saturating_sub(parts - points), reason }
        }
        Some((_, reason)) if !reason.is_empty() => {
            tracing::warn!(reason, "the receiver warns");
            Written::Done
        }
        _ => Written::Done,
    }
}
