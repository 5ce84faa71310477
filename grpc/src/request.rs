//! Taking in the whole of a request before it is given a place: who does not send what he began holds nothing
//! but room for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
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
    /// One message, however many frames it came in.
    message: Option<Bytes>,
    /// What is not taken in: that of one which is refused by its length.
    rest: Option<Body>,
    _room: Vec<OwnedSemaphorePermit>,
}

/// Takes in a body of one message; what follows the message is left out. Room is taken for all of it once its
/// length is known, so that requests do not wait for each other in a circle.
pub(crate) async fn receive(mut body: Body, places: [Option<&Places>; 2]) -> Result<Received, Status> {
    let mut message = BytesMut::new();
    let (mut whole, mut room) = (None, Vec::new());
    while let Some(frame) = body.frame().await {
        // Trailers of a request say nothing.
        let Ok(data) = frame?.into_data() else { continue };
        message.extend_from_slice(&data);
        if whole.is_none()
            && let Some(length) = message.get(1..PREFIX)
        {
            let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            if length > MAX_MESSAGE {
                return Ok(Received { message: Some(message.freeze()), rest: Some(body), _room: room });
            }
            whole = Some(PREFIX + length);
            for places in places.into_iter().flatten() {
                let bytes = (PREFIX + length) as u32;
                // Closed by nobody.
                room.extend(places.bodies.clone().acquire_many_owned(bytes).await.ok());
            }
            message.reserve((PREFIX + length).saturating_sub(message.len()));
        }
        if let Some(whole) = whole.filter(|whole| message.len() > *whole) {
            message.truncate(whole);
            break;
        }
    }
    let message = Some(message.freeze()).filter(|message| !message.is_empty());
    Ok(Received { message, rest: None, _room: room })
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

    /// A body that comes in these frames.
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

    /// The frames of a request that was taken in.
    async fn taken(body: Body) -> Vec<Vec<u8>> {
        let mut received = receive(body, [None, None]).await.unwrap();
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
        // What follows is left out, in its frame and in others.
        let longer = [&message[..], &[9; 50]].concat();
        assert_eq!(taken(frames(&[&longer, &[9; 50]])).await, [&message[..]]);
        assert_eq!(taken(frames(&[&message, &[9; 50]])).await, [&message[..]]);
        // One that is cut short is judged by what comes of it.
        assert_eq!(taken(frames(&[&message[..100]])).await, [&message[..100]]);
        assert!(taken(frames(&[&[], &[]])).await.is_empty() && taken(frames(&[])).await.is_empty());
    }

    #[tokio::test]
    async fn one_that_is_too_long_is_not_taken_in() {
        let prefix = [&[0][..], &(MAX_MESSAGE as u32 + 1).to_be_bytes()].concat();
        assert_eq!(taken(frames(&[&prefix, &[1], &[2, 3]])).await, [&prefix[..], &[1], &[2, 3]]);
    }
}
