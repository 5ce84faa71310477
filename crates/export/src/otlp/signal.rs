//! What the requests of all signals have in common.

use dta_files::http::SentSecrets;
use prost::Message;
use tonic::Status;
use tonic::transport::Channel;

use crate::receiver::{WriteOutcome, write_halving};

/// A request of one signal, with one resource and one scope.
pub(super) trait Request: Message + Default + Clone {
    type Item: Clone;
    type Response: Message + Default;
    const PATH: &str;

    /// Its items; `None` if it has no resource.
    fn items_mut(&mut self) -> Option<&mut Vec<Self::Item>>;

    fn count_points(item: &Self::Item) -> u64;

    /// How many parts, as receivers count rejected ones, are in an item.
    fn count_parts(item: &Self::Item) -> u64 {
        Self::count_points(item)
    }

    async fn call(channel: Channel, request: tonic::Request<Self>) -> Result<Self::Response, Status>;

    /// How many parts were rejected, and why.
    fn rejected_parts(response: Self::Response) -> Option<(i64, String)>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    points: u64,
    parts: u64,
}

/// Sends a record with `send`, whose error says why it refuses a request; refused requests are halved.
pub(super) fn write_record<R: Request>(
    record: &[u8],
    points: u64,
    send: impl Fn(R, Carried) -> Result<WriteOutcome, String>,
) -> WriteOutcome {
    let sum = |items: &[R::Item]| items.iter().map(R::count_points).sum();
    let mut request = match R::decode(record) {
        Ok(request) => request,
        Err(error) => return WriteOutcome::Rejected { points, reason: error.to_string() },
    };
    let items = request.items_mut().map(std::mem::take).unwrap_or_default();
    write_halving(&items, &sum, &mut |part| {
        let mut request = request.clone();
        if let Some(items) = request.items_mut() {
            *items = part.to_vec();
        }
        send(request, Carried { points: sum(part), parts: part.iter().map(R::count_parts).sum() })
    })
}

/// The outcome of a successful answer, which may reject some parts without saying which. Rejected parts are first taken to be those that
/// are no points; only what is beyond counts as rejected points.
pub(super) fn success_outcome<R: Request>(
    response: R::Response,
    carried: Carried,
    sent: &SentSecrets,
) -> WriteOutcome {
    let Carried { points, parts } = carried;
    match R::rejected_parts(response).map(|(rejected, reason)| (rejected, sent.strike_out_text(reason))) {
        Some((rejected, reason)) if rejected > 0 => {
            let rejected = (rejected as u64).min(parts);
            WriteOutcome::Rejected { points: rejected.saturating_sub(parts - points), reason }
        }
        Some((_, reason)) if !reason.is_empty() => {
            tracing::warn!(reason, "warning from the receiver");
            WriteOutcome::Done
        }
        _ => WriteOutcome::Done,
    }
}
