//! The bare system calls of a UDP link, as a reference for benchmarks.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::sys::{self, Messages, Outgoing};
use crate::udp::set_receive_buffer;
use crate::{LinkError, Result};

/// Messages per call, as in a link.
const RUNS: usize = 64;
/// Buffer size that fits any message.
const LONGEST: usize = (64 << 10) + 3 * 64;

fn open() -> Result<(OwnedFd, SocketAddrV4)> {
    let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let socket = UdpSocket::bind(any).map_err(|error| LinkError::bind(any.into(), error))?;
    match socket.local_addr().map_err(LinkError::io_with_context("cannot read a socket's address"))? {
        std::net::SocketAddr::V4(local) => Ok((socket.into(), local)),
        other => Err(LinkError::Ipv6(other)),
    }
}

pub struct BareSender {
    socket: OwnedFd,
    messages: Messages,
    payload: Vec<u8>,
    to: SocketAddrV4,
    /// Bytes of a datagram.
    len: u16,
    /// Datagrams per message, and messages per call.
    run: usize,
    calls: usize,
}

impl BareSender {
    /// For datagrams of `len` bytes, `run` of them per message (1: plain), `messages` messages per call.
    ///
    /// # Errors
    /// No socket is available on loopback.
    pub fn open(to: SocketAddrV4, len: u16, run: usize, messages: usize) -> Result<Self> {
        Ok(Self {
            socket: open()?.0,
            messages: Messages::new(messages),
            payload: vec![0x5a; usize::from(len) * run],
            to,
            len,
            run,
            calls: messages,
        })
    }

    /// Makes one call; returns how many datagrams the kernel accepted.
    pub fn send(&mut self) -> Result<usize> {
        let segment = (self.run > 1).then_some(self.len);
        let message = || Outgoing { bytes: &self.payload, segment, to: Some(self.to.into()), from: None };
        let messages = (0..self.calls).map(|_| message());
        match self.messages.send(self.socket.as_fd(), messages) {
            Ok(sent) => Ok(sent * self.run),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(0),
            Err(error) => Err(LinkError::io_with_context("cannot send datagrams")(error)),
        }
    }
}

pub struct BareReceiver {
    socket: OwnedFd,
    local: SocketAddrV4,
    messages: Messages,
    buffers: Vec<u8>,
    each: usize,
}

impl BareReceiver {
    /// On a free loopback port, with the receive queue of a report link. `runs`: receive whole runs.
    ///
    /// # Errors
    /// No socket is available on loopback, or it does not support runs.
    pub fn open(runs: bool) -> Result<Self> {
        let (socket, local) = open()?;
        set_receive_buffer(socket.as_fd(), 8 << 20)?;
        if runs {
            sys::set_option(socket.as_fd(), libc::SOL_UDP, sys::UDP_GRO, 1)
                .map_err(LinkError::io_with_context("cannot receive runs (UDP_GRO)"))?;
        }
        let (count, each) = if runs { (RUNS, LONGEST) } else { (128, 2048) };
        Ok(Self { socket, local, messages: Messages::new(count), buffers: vec![0; count * each], each })
    }

    pub fn local_addr(&self) -> SocketAddrV4 {
        self.local
    }

    /// Makes one call, after a wait if nothing is there; returns how many datagrams arrived.
    pub fn recv(&mut self, timeout: Duration) -> Result<usize> {
        let Self { socket, messages, buffers, each, .. } = self;
        let mut receive = || messages.recv(socket.as_fd(), buffers.chunks_exact_mut(*each));
        let received = match receive() {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                crate::wait_readable(&[socket.as_fd()], Some(timeout))?;
                receive()
            }
            other => other,
        };
        let count = match received {
            Ok(count) => count,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => 0,
            Err(error) => return Err(LinkError::io_with_context("cannot receive datagrams")(error)),
        };
        let datagrams = |index| {
            let incoming = messages.incoming_metadata(index);
            incoming.segment.map_or(1, |segment| incoming.len.div_ceil(segment.get()))
        };
        Ok((0..count).map(datagrams).sum())
    }
}
