//! Taking in the whole of a request before it is given a place: who does not send what he began holds nothing
//! but room for it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;

use crate::MAX_MESSAGE;
use crate::share::Places;

/// Bytes before a message: whether it is compressed, and its length (big-endian).
const PREFIX: usize = 5;

/// A request's body that is here.
pub(crate) struct Received {
    frames: VecDeque<Frame<Bytes>>,
    /// What is not taken in: that of one which is refused by its length.
    rest: Option<Body>,
    _room: Vec<OwnedSemaphorePermit>,
}

/// Takes in a body of one message; what follows the message is left out. Room is taken for all of it at the
/// first bytes, so that requests do not wait for each other in a circle.
pub(crate) async fn receive(mut body: Body, places: [Option<&Places>; 2]) -> Result<Received, Status> {
    let mut received = Received { frames: VecDeque::new(), rest: None, _room: Vec::new() };
    let (mut taken, mut whole) = (0, 0);
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            if taken == 0 {
                // A prefix in pieces is nobody's habit.
                let prefix = data.get(1..PREFIX).and_then(|length| length.try_into().ok());
                let length = prefix.map_or(MAX_MESSAGE, |length| u32::from_be_bytes(length) as usize);
                if length > MAX_MESSAGE {
                    received.frames.push_back(frame);
                    received.rest = Some(body);
                    return Ok(received);
                }
                whole = PREFIX + length;
                for places in places.into_iter().flatten() {
                    let room = places.bodies.clone().acquire_many_owned(whole as u32).await;
                    // Closed by nobody.
                    received._room.extend(room.ok());
                }
            }
            taken += data.len();
        }
        if taken > whole {
            break;
        }
        received.frames.push_back(frame);
    }
    Ok(received)
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match (this.frames.pop_front(), &mut this.rest) {
            (Some(frame), _) => Poll::Ready(Some(Ok(frame))),
            (None, Some(rest)) => Pin::new(rest).poll_frame(cx),
            (None, None) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }
}
