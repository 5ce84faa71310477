//! A connection past its handshake, in the form that tonic takes.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use crate::transport::gate::GatePass;
use crate::transport::peer::Peer;

/// The bytes with which every HTTP/2 client begins (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a client may take to close its end once the server has sent everything.
const LINGER: Duration = Duration::from_secs(5);

/// Closes a connection, or ends something else, from outside; and knows whether a connection is in use.
#[derive(Debug)]
pub struct ConnectionCloser(Mutex<LineState>);

#[derive(Debug)]
struct LineState {
    sender: Option<oneshot::Sender<()>>,
    /// Calls whose answers have not been sent.
    calls: usize,
    /// When there was last a call.
    used: Instant,
}

impl ConnectionCloser {
    /// A closer, and the receiver that is signalled to close.
    pub fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, cut) = oneshot::channel();
        (Self(Mutex::new(LineState { sender: Some(sender), calls: 0, used: Instant::now() })), cut)
    }

    /// Closes the connection; returns whether it was open.
    pub(crate) fn close_connection(&self) -> bool {
        let sender = self.lock_state().sender.take();
        sender.is_some_and(|sender| sender.send(()).is_ok())
    }

    /// Counts a call as running until this is dropped.
    pub(crate) fn begin_call(self: &Arc<Self>) -> CallOnConnection {
        self.lock_state().calls += 1;
        CallOnConnection(self.clone())
    }

    /// Since when the connection has had no calls; `None` while it has one.
    pub(crate) fn unused_since(&self) -> Option<Instant> {
        let state = self.lock_state();
        (state.calls == 0).then_some(state.used)
    }

    fn lock_state(&self) -> MutexGuard<'_, LineState> {
        // Nothing panics between changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on a connection, from its start until its answer is sent.
pub(crate) struct CallOnConnection(Arc<ConnectionCloser>);

impl Drop for CallOnConnection {
    fn drop(&mut self) {
        let mut state = self.0.lock_state();
        state.calls -= 1;
        state.used = Instant::now();
    }
}

/// A connection whose client has shown that it speaks HTTP/2.
pub struct Http2Connection {
    transport: Box<dyn Transport>,
    /// How much of the preface, which was read to check it, has been passed on to the reader.
    given: usize,
    peer: Peer,
    /// Ready when the connection must be closed.
    cut: oneshot::Receiver<()>,
    is_cut: bool,
    /// Set once nothing more is sent: how long to wait for the client to close.
    linger: Option<Pin<Box<Sleep>>>,
    _place: GatePass,
}

/// What carries the bytes: a socket, or TLS over one.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl Http2Connection {
    /// `transport` has been read up to the end of the preface.
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        peer: Peer,
        cut: oneshot::Receiver<()>,
        place: GatePass,
    ) -> Self {
        Self { transport, given: 0, peer, cut, is_cut: false, linger: None, _place: place }
    }

    /// Fails once the connection must be closed. Its [`ConnectionCloser`] is in its peer, and lives as long as it.
    fn check_still_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.is_cut && Pin::new(&mut self.cut).poll(cx).is_pending() {
            return Ok(());
        }
        self.is_cut = true;
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "others waited for places that it held without using them, or an answer was not read in time",
        ))
    }
}

impl Connected for Http2Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Http2Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check_still_open(cx)?;
        let rest = &PREFACE[this.given..];
        if !rest.is_empty() {
            let n = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..n]);
            this.given += n;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.transport).poll_read(cx, buf)
    }
}

impl AsyncWrite for Http2Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check_still_open(cx)?;
        Pin::new(&mut this.transport).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check_still_open(cx)?;
        Pin::new(&mut this.transport).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check_still_open(cx)?;
        Pin::new(&mut this.transport).poll_flush(cx)
    }

    /// Ends sending, and then discards what still arrives. Closing with unread bytes would reset the connection, and
    /// a client whose call crossed the final GOAWAY would never read that the call was not processed.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check_still_open(cx)?;
        let linger = match &mut this.linger {
            Some(linger) => linger,
            None => {
                ready!(Pin::new(&mut this.transport).poll_shutdown(cx))?;
                this.linger.insert(Box::pin(tokio::time::sleep(LINGER)))
            }
        };
        let mut discarded = [0; 1024];
        while linger.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut discarded);
            let read = ready!(Pin::new(&mut this.transport).poll_read(cx, &mut buf));
            if read.is_err() || buf.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}
