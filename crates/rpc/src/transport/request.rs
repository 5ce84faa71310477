//! Receives a whole request before it gets a place: a client that does not finish sending holds nothing but room for
//! its message, and that only as long as others do not need it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;
use tonic::body::Body;

use crate::transport::MAX_MESSAGE;
use crate::transport::accept::{ConnectionCounters, increment_counter};
use crate::transport::pool::{Permit, Pool};
use crate::transport::stream::ConnectionCloser;

/// Timeout of a message, not counting its wait for room; and timeout of that wait.
const BODY: Duration = Duration::from_secs(10);
/// Bytes before a message: whether it is compressed, and its length (big-endian).
const PREFIX: usize = 5;
/// Bytes of a message that need not wait for room: there is enough for all calls that may wait.
const SMALL: usize = 4 << 10;

/// The room for a request.
pub(crate) struct RequestBudget<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) caller: &'a Arc<str>,
    /// Closing it takes the room back.
    pub(crate) line: Arc<ConnectionCloser>,
    pub(crate) counters: &'a ConnectionCounters,
}

impl RequestBudget<'_> {
    async fn take(&self, bytes: usize) -> Result<Permit, Status> {
        let taken = self.pool.take(self.caller, bytes, &self.counters.calls_displaced);
        let place = timeout(BODY, taken).await.map_err(|_| {
            increment_counter(&self.counters.calls_refused);
            Status::resource_exhausted("too many long messages are already waiting; call again later")
        })?;
        place.mark_idle(self.line.clone());
        Ok(place)
    }
}

/// A received request body.
pub(crate) struct Received {
    /// One message, in however many frames it came.
    message: Option<Bytes>,
    /// A body that is not received, because its message is too long.
    rest: Option<Body>,
    room: Option<Permit>,
}

impl Received {
    /// From now on it is being processed, and keeps its room.
    pub(crate) fn begin_processing(&self) {
        if let Some(room) = &self.room {
            room.mark_busy();
        }
    }
}

/// Receives a body of one message, and ignores what follows it. Room for all of it is taken once its length is
/// known, so that requests do not wait for one another in a circle.
pub(crate) async fn receive_message(mut body: Body, room: RequestBudget<'_>) -> Result<Received, Status> {
    let mut message = BytesMut::new();
    let (mut whole, mut place) = (None, None);
    let mut until = Instant::now() + BODY;
    loop {
        let frame = timeout_at(until, body.frame()).await.map_err(|_| {
            increment_counter(&room.counters.calls_late);
            Status::deadline_exceeded(format!("its message did not arrive within {} s", BODY.as_secs()))
        })?;
        let Some(frame) = frame else { break };
        // Trailers of a request carry nothing.
        let Ok(data) = frame?.into_data() else { continue };
        message.extend_from_slice(&data);
        if whole.is_none()
            && let Some(length) = message.get(1..PREFIX)
        {
            let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            if length > MAX_MESSAGE {
                return Ok(Received { message: Some(message.freeze()), rest: Some(body), room: place });
            }
            whole = Some(PREFIX + length);
            if PREFIX + length > SMALL {
                let asked = Instant::now();
                place = Some(room.take(PREFIX + length).await?);
                until += asked.elapsed();
            }
            message.reserve((PREFIX + length).saturating_sub(message.len()));
        }
        if let Some(whole) = whole.filter(|whole| message.len() > *whole) {
            message.truncate(whole);
            break;
        }
    }
    let message = Some(message.freeze()).filter(|message| !message.is_empty());
    Ok(Received { message, rest: None, room: place })
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match (this.message.take(), &mut this.rest) {
            (Some(message), _) => Poll::Ready(Some(Ok(Frame::data(message)))),
            (None, Some(rest)) => Pin::new(rest).poll_frame(cx),
            (None, None) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A body that arrives in these frames.
    struct InFrames(VecDeque<Frame<Bytes>>);

    impl http_body::Body for InFrames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.get_mut().0.pop_front().map(Ok))
        }
    }

    fn frames(all: &[&[u8]]) -> Body {
        Body::new(InFrames(all.iter().map(|data| Frame::data(Bytes::copy_from_slice(data))).collect()))
    }

    /// The frames of a received request.
    async fn taken(body: Body) -> Vec<Vec<u8>> {
        let (line, _) = ConnectionCloser::new();
        let (pool, caller, counters) =
            (Pool::new(MAX_MESSAGE, MAX_MESSAGE), "".into(), ConnectionCounters::default());
        let room = RequestBudget { pool: &pool, caller: &caller, line: Arc::new(line), counters: &counters };
        let mut received = receive_message(body, room).await.unwrap();
        let mut all = Vec::new();
        while let Some(frame) = received.frame().await {
            all.push(frame.unwrap().into_data().unwrap().to_vec());
        }
        all
    }

    #[tokio::test]
    async fn a_message_is_held_as_one_frame_however_it_comes() {
        let message: Vec<u8> = [&[0, 0, 0, 3, 0][..], &[7; 768]].concat();
        let mut pieces: Vec<&[u8]> = message.chunks(1).collect();
        pieces.splice(3..3, [&[][..]; 1000]);
        assert_eq!(taken(frames(&pieces)).await, [&message[..]]);
        assert_eq!(taken(frames(&[&message])).await, [&message[..]]);
        // What follows is ignored, in the same frame and in later ones.
        let longer = [&message[..], &[9; 50]].concat();
        assert_eq!(taken(frames(&[&longer, &[9; 50]])).await, [&message[..]]);
        assert_eq!(taken(frames(&[&message, &[9; 50]])).await, [&message[..]]);
        // A truncated message fails later.
        assert_eq!(taken(frames(&[&message[..100]])).await, [&message[..100]]);
        assert!(taken(frames(&[&[], &[]])).await.is_empty() && taken(frames(&[])).await.is_empty());
    }

    #[tokio::test]
    async fn one_that_is_too_long_is_not_taken_in() {
        let prefix = [&[0][..], &(MAX_MESSAGE as u32 + 1).to_be_bytes()].concat();
        assert_eq!(taken(frames(&[&prefix, &[1], &[2, 3]])).await, [&prefix[..], &[1], &[2, 3]]);
    }
}
