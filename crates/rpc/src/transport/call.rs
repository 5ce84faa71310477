//! What a call holds on a server: its places among the calls, from its admission until its work has ended and its
//! answer has been sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tonic::Status;
use tonic::body::Body;

use crate::transport::pool::{Permit, Pool};

tokio::task_local! {
    /// The call that the current task answers.
    pub(crate) static CALL: Arc<CallPlaces>;
}

/// The places of a call; free again when the last holder drops them.
pub(crate) struct CallPlaces {
    pub(crate) place: Permit,
    /// Threads shared by calls of its kind; `None` if it waits for no other.
    pub(crate) threads: Option<Arc<Pool>>,
}

/// Runs `work` on a thread that may block. Within a call, work that has not begun is dropped when the call is cancelled;
/// running work keeps the call's places until it ends. So nobody can have more work under way than calls.
///
/// # Errors
/// The work panicked.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let held = CALL.try_with(Arc::clone).ok();
    let thread = match held.as_deref() {
        Some(CallPlaces { place, threads: Some(threads) }) => {
            Some(threads.wait_for_places(place.caller_name(), 1).await)
        }
        _ => None,
    };
    let all = move || {
        let done = work();
        drop((thread, held));
        done
    };
    tokio::task::spawn_blocking(all).await
}

/// Encodes an answer right away. tonic would encode it only once the client lets it be sent, and until then the
/// message takes several times as much memory.
pub(crate) async fn encode_answer(answer: Response<Body>) -> Response<Body> {
    if answer.body().is_end_stream() {
        return answer;
    }
    let (head, body) = answer.into_parts();
    match body.collect().await {
        Ok(bytes) => Response::from_parts(head, Body::new(bytes)),
        Err(status) => status.into_http(),
    }
}

/// An answer being sent; dropped after its last byte.
pub(crate) struct Sending {
    pub(crate) _held: Arc<CallPlaces>,
    /// The other end notices the drop.
    pub(crate) _sent: oneshot::Sender<()>,
}

/// The body of an answer, whose bytes hold the call's places until they are written to the connection.
pub(crate) struct AnswerBody {
    pub(crate) body: Body,
    pub(crate) sending: Arc<Sending>,
    /// How many more bytes it may have.
    pub(crate) left: usize,
}

/// Bytes of an answer.
struct AnswerBytes {
    bytes: Bytes,
    _sending: Arc<Sending>,
}

impl AsRef<[u8]> for AnswerBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        Poll::Ready(Some(match frame.data_ref().map(Bytes::len) {
            Some(len) if len > this.left => Err(Status::resource_exhausted("the answer is too long")),
            Some(len) => {
                this.left -= len;
                let sending = this.sending.clone();
                Ok(frame.map_data(|bytes| Bytes::from_owner(AnswerBytes { bytes, _sending: sending })))
            }
            None => Ok(frame),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::StreamBody;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_its_bytes_before_anybody_reads_it() {
        let (message, mut gone) = oneshot::channel::<()>();
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let frames = [Frame::data(Bytes::from_static(b"abc")), Frame::trailers(trailers.clone())];
        // Encoding happens on demand.
        let frames = frames.map(Ok::<_, Status>).into_iter().inspect(move |_| assert!(!message.is_closed()));
        let answer =
            encode_answer(Response::new(Body::new(StreamBody::new(tokio_stream::iter(frames))))).await;
        assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Closed), "it is held until it is read");
        let all = answer.into_body().collect().await.unwrap();
        assert_eq!(all.trailers(), Some(&trailers));
        assert_eq!(all.to_bytes(), "abc");
    }

    #[tokio::test]
    async fn one_that_cannot_be_encoded_is_its_error() {
        let frames = [Err::<Frame<Bytes>, _>(Status::internal("no bytes"))];
        let answer =
            encode_answer(Response::new(Body::new(StreamBody::new(tokio_stream::iter(frames))))).await;
        assert_eq!(Status::from_header_map(answer.headers()).unwrap().message(), "no bytes");
    }
}
