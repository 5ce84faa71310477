//! One end of a pair of rings, and the socket that wakes it and says when the other end is gone.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_proto::batch::Batch;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::direction::{Broken, Consumer, Extent, FRAME_MAX, Producer};
use super::memory::Memory;
use super::{RingCounters, Sizes};
use crate::sys;

/// How long a full ring is waited for before a frame is counted as not sent, as for a full socket.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait for room between two looks: a wake-up can be lost with a hostile other end alone.
const LOOK: Duration = Duration::from_millis(5);

/// Why a ring is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The other process has ended, or has closed its end.
    #[error("the other end is gone")]
    Gone,
    /// The other end wrote what cannot be.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Sends requests: a translator.
    Requester,
    /// Takes them: a NIC.
    Responder,
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is in the ring.
    Yes,
    /// The ring stayed full.
    Full,
    /// It is longer than the ring carries.
    TooLong,
}

/// One end.
#[derive(Debug)]
pub struct End {
    out: Producer,
    inward: Consumer,
    socket: UnixStream,
    route: SocketAddrV4,
    /// Kept as long as this end lives, for who wants to know that.
    alive: Arc<()>,
    /// The ring stayed full, and was not waited for since.
    stalled: bool,
    /// This end said that it sleeps.
    asleep: bool,
    counters: RingCounters,
}

impl End {
    pub(super) fn new(
        memory: Memory,
        sizes: Sizes,
        role: Role,
        socket: UnixStream,
        route: SocketAddrV4,
    ) -> Self {
        let memory = Arc::new(memory);
        let requests = Extent { at: 0, capacity: sizes.requests };
        let answers = Extent { at: requests.len(), capacity: sizes.answers };
        let (out, inward) = match role {
            Role::Requester => (requests, answers),
            Role::Responder => (answers, requests),
        };
        Self {
            out: Producer::new(Arc::clone(&memory), out),
            inward: Consumer::new(memory, inward),
            socket,
            route,
            alive: Arc::new(()),
            stalled: false,
            asleep: false,
            counters: RingCounters { opened: 1, ..RingCounters::default() },
        }
    }

    /// The address and port at the other end: frames for these go into this ring.
    pub fn route(&self) -> SocketAddrV4 {
        self.route
    }

    /// What went through, and what was left in it by an other end that is gone.
    pub fn counters(&self) -> RingCounters {
        self.counters
    }

    /// As [`Self::counters`], once no frame is put in any more.
    pub(crate) fn last_counters(&self) -> RingCounters {
        RingCounters { left: self.out.left(), ..self.counters }
    }

    /// Something that lives as long as this end.
    pub(super) fn alive(&self) -> &Arc<()> {
        &self.alive
    }

    /// Puts a frame into the ring, waiting for room as long as [`PATIENCE`]; if there was none, the
    /// next frames are not waited for until there is some.
    ///
    /// # Errors
    /// The ring is over; the frame is not in it.
    #[inline]
    pub(crate) fn push(&mut self, frame: &[u8]) -> Result<Sent, Over> {
        if frame.len() > FRAME_MAX {
            return Ok(Sent::TooLong);
        }
        if !(self.out.push(frame)? || self.make_room()? && self.out.push(frame)?) {
            return Ok(Sent::Full);
        }
        self.counters.sent += 1;
        self.counters.sent_bytes += frame.len() as u64;
        Ok(Sent::Yes)
    }

    /// Lets the other end see what was put in.
    pub(crate) fn publish(&mut self) {
        if self.out.publish() {
            self.call();
        }
    }

    /// Waits for room; gives whether there is some.
    #[cold]
    fn make_room(&mut self) -> Result<bool, Over> {
        self.publish();
        if self.stalled && !self.out.has_room()? {
            return Ok(false);
        }
        self.counters.full += 1;
        let start = Instant::now();
        loop {
            if self.out.wait_for_room()? {
                self.stalled = false;
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= PATIENCE {
                self.stalled = true;
                return Ok(false);
            }
            let _ = sys::wait(&[self.socket.as_fd()], sys::READABLE, Some(LOOK.min(PATIENCE - waited)));
            self.hear()?;
        }
    }

    /// Adds frames that have come to `batch`; gives how many were too long for its slots.
    ///
    /// # Errors
    /// The other end wrote what cannot be. What was good before is in the batch.
    #[inline]
    pub(crate) fn take(&mut self, batch: &mut Batch) -> Result<u64, Over> {
        let before = batch.len();
        let took = self.inward.take(batch);
        for index in before..batch.len() {
            self.counters.received += 1;
            self.counters.received_bytes += batch.packet(index).len() as u64;
        }
        let took = took?;
        if took.wake {
            self.call();
        }
        Ok(took.too_long)
    }

    /// Whether there is something to take.
    pub(crate) fn has_frames(&self) -> bool {
        self.inward.has_frames()
    }

    /// Takes one frame of any length.
    pub(super) fn take_one(&mut self) -> Result<Option<Vec<u8>>, Over> {
        Ok(self.inward.take_one()?)
    }

    /// Nothing more is awaited than what is there.
    pub(crate) fn end_here(&mut self) -> Result<(), Over> {
        Ok(self.inward.end_here()?)
    }

    /// Whether all that was awaited was taken, after [`Self::end_here`].
    pub(crate) fn is_at_end(&self) -> bool {
        self.inward.is_at_end()
    }

    /// Says that this end is going to sleep. Gives whether there are frames already, and it need not.
    pub(crate) fn sleep(&mut self) -> Result<bool, Over> {
        let here = self.inward.sleep()?;
        self.asleep = !here;
        Ok(here)
    }

    /// After sleeping.
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.inward.wake();
        }
    }

    /// Takes note of the other end's calls.
    ///
    /// # Errors
    /// [`Over::Gone`].
    pub(crate) fn hear(&mut self) -> Result<(), Over> {
        let mut calls = [0; 64];
        // A call at a time is usual; who sends more of them is not listened to longer.
        match rustix::net::recv(&self.socket, &mut calls[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Over::Gone),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Over::Gone),
        }
    }

    /// Says that more frames are there than the ring holds.
    #[cfg(test)]
    pub(super) fn lie(&mut self) {
        self.out.lie();
    }

    /// Calls the other end once, so that it goes on with what was agreed.
    pub(super) fn say(&self) -> Result<(), Over> {
        rustix::net::send(&self.socket, &[1], SendFlags::NOSIGNAL).map_err(|_| Over::Gone)?;
        Ok(())
    }

    /// What went through so far were no frames.
    pub(super) fn begin_counting(&mut self) {
        self.counters = RingCounters { opened: 1, ..RingCounters::default() };
    }

    /// Wakes the other end. One that hears no calls has enough of them waiting.
    fn call(&mut self) {
        self.counters.woken += 1;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // That it is gone shows when it is listened to.
        let _ = rustix::net::send(&self.socket, &[1], flags);
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
