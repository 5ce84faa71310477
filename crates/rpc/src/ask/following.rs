//! A list being followed.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use dta_proto::control::TailResponse;
use tokio_stream::Stream;

use crate::ClientError;

/// The messages of a list being followed, until it is dropped.
pub struct TailMessages(Pin<Box<dyn Stream<Item = Result<TailResponse, ClientError>> + Send>>);

impl TailMessages {
    /// Follows the messages of a stream.
    pub fn new(stream: impl Stream<Item = Result<TailResponse, ClientError>> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }

    /// Waits for the next message; `None` at the end, which comes only if the request asked for one.
    ///
    /// Cancel-safe: no message is lost if this is dropped and called again.
    ///
    /// # Errors
    /// The list can no longer be followed; nothing comes after that.
    pub async fn next_message(&mut self) -> Result<Option<TailResponse>, ClientError> {
        poll_fn(|context| self.0.as_mut().poll_next(context)).await.transpose()
    }
}

impl Stream for TailMessages {
    type Item = Result<TailResponse, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl fmt::Debug for TailMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following").finish_non_exhaustive()
    }
}
