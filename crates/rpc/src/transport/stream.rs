//! A connection past its handshake, as tonic takes it.

use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tonic::transport::server::Connected;

use crate::transport::gate::GatePass;
use crate::transport::peer::Peer;

/// The bytes with which every client of HTTP/2 begins (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Closes a connection from outside.
#[derive(Debug)]
pub(crate) struct ConnectionCloser(Mutex<Option<oneshot::Sender<()>>>);

impl ConnectionCloser {
    /// A line, and its end at the connection.
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, cut) = oneshot::channel();
        (Self(Mutex::new(Some(sender))), cut)
    }

    /// Closes the connection; returns whether it was open.
    pub(crate) fn close_connection(&self) -> bool {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        sender.is_some_and(|sender| sender.send(()).is_ok())
    }
}

/// A connection whose client has shown that it speaks HTTP/2.
pub struct Http2Connection {
    transport: Box<dyn Transport>,
    /// How much of the preface, which was read to check it, has been passed to the reader.
    given: usize,
    peer: Peer,
    /// Ready when it must be closed.
    cut: oneshot::Receiver<()>,
    is_cut: bool,
    _place: GatePass,
}

/// What the bytes go over: a socket, or TLS over one.
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
        Self { transport, given: 0, peer, cut, is_cut: false, _place: place }
    }

    /// An error from the time it must be closed on. Its [`ConnectionCloser`] lives as long as it, in its peer.
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

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check_still_open(cx)?;
        Pin::new(&mut this.transport).poll_shutdown(cx)
    }
}
