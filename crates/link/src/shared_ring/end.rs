//! One end of a pair of rings, with the socket that wakes it and shows when the other end is gone.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_proto::batch::PacketBatch;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::direction::{Broken, Consumer, Extent, FRAME_MAX, Producer};
use super::memory::Memory;
use super::{RingCounters, Sizes};
use crate::sys;

/// How long a full ring is waited for before a frame counts as not sent, as for a full socket.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait for room between two checks: only a hostile other end can cause a lost wake-up.
const LOOK: Duration = Duration::from_millis(5);

/// Why a ring has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The other process has ended, or has closed its end.
    #[error("the other end is gone")]
    Gone,
    /// The other end wrote invalid data.
    #[error(transparent)]
    Broken(#[from] Broken),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RingRole {
    Requester,
    Responder,
}

/// The result of pushing a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    /// It is in the ring.
    Yes,
    Full,
    /// It is longer than the ring carries.
    TooLong,
}

#[derive(Debug)]
pub struct End {
    out: Producer,
    inward: Consumer,
    socket: UnixStream,
    route: SocketAddrV4,
    /// Kept for as long as this end lives, as a sign of life for others.
    alive: Arc<()>,
    /// The ring stayed full, and no frame waits until there is room again.
    stalled: bool,
    /// This end has announced that it sleeps.
    asleep: bool,
    counters: RingCounters,
}

impl End {
    pub(super) fn new(
        memory: Memory,
        sizes: Sizes,
        role: RingRole,
        socket: UnixStream,
        route: SocketAddrV4,
    ) -> Self {
        let memory = Arc::new(memory);
        let requests = Extent { at: 0, capacity: sizes.requests };
        let answers = Extent { at: requests.len(), capacity: sizes.answers };
        let (out, inward) = match role {
            RingRole::Requester => (requests, answers),
            RingRole::Responder => (answers, requests),
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

    pub fn served_address(&self) -> SocketAddrV4 {
        self.route
    }

    /// The counters, including what a vanished other end left in the ring.
    pub fn ring_counters(&self) -> RingCounters {
        self.counters
    }

    /// As [`Self::ring_counters`], once no more frames are pushed.
    pub(crate) fn last_counters(&self) -> RingCounters {
        RingCounters { left: self.out.untaken_frames(), ..self.counters }
    }

    /// A handle that lives as long as this end.
    pub(super) fn liveness_handle(&self) -> &Arc<()> {
        &self.alive
    }

    /// Puts a frame into the ring, waiting up to [`PATIENCE`] for room; after an unsuccessful wait, the next
    /// frames do not wait until there is room again.
    ///
    /// # Errors
    /// The ring has ended; the frame is not in it.
    #[inline]
    pub(crate) fn push(&mut self, frame: &[u8]) -> Result<PushOutcome, Over> {
        if frame.len() > FRAME_MAX {
            return Ok(PushOutcome::TooLong);
        }
        if !(self.out.push(frame)? || self.make_room()? && self.out.push(frame)?) {
            return Ok(PushOutcome::Full);
        }
        self.counters.sent += 1;
        self.counters.sent_bytes += frame.len() as u64;
        Ok(PushOutcome::Yes)
    }

    /// Makes everything put in visible.
    pub(crate) fn publish_frames(&mut self) {
        if self.out.publish_frames() {
            self.call();
        }
    }

    /// Waits for room; returns whether there is some.
    #[cold]
    fn make_room(&mut self) -> Result<bool, Over> {
        self.publish_frames();
        if self.stalled && !self.out.has_frame_room()? {
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
            let _ = sys::wait_for_events(
                &[self.socket.as_fd()],
                sys::READABLE,
                Some(LOOK.min(PATIENCE - waited)),
            );
            self.read_signals()?;
        }
    }

    /// Adds received frames to `batch`; returns how many were too long for its slots.
    ///
    /// # Errors
    /// The other end wrote invalid data. Earlier frames are in the batch.
    #[inline]
    pub(crate) fn take(&mut self, batch: &mut PacketBatch) -> Result<u64, Over> {
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

    pub(crate) fn has_frames(&self) -> bool {
        self.inward.has_frames()
    }

    pub(super) fn take_frame(&mut self) -> Result<Option<Vec<u8>>, Over> {
        Ok(self.inward.take_frame()?)
    }

    /// Expects no more than what is there already.
    pub(crate) fn stop_at_written(&mut self) -> Result<(), Over> {
        Ok(self.inward.stop_at_written()?)
    }

    /// Whether everything expected was taken, after [`Self::stop_at_written`].
    pub(crate) fn is_at_end(&self) -> bool {
        self.inward.is_at_end()
    }

    /// Announces that this end will sleep. Returns whether there are frames already, so that it need not.
    pub(crate) fn announce_sleep(&mut self) -> Result<bool, Over> {
        let here = self.inward.announce_sleep()?;
        self.asleep = !here;
        Ok(here)
    }

    pub(crate) fn cancel_sleep(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.inward.cancel_sleep();
        }
    }

    /// Reads the other end's signals.
    pub(crate) fn read_signals(&mut self) -> Result<(), Over> {
        let mut calls = [0; 64];
        // One signal at a time is usual; a flood of them is not read to its end.
        match rustix::net::recv(&self.socket, &mut calls[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Over::Gone),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Over::Gone),
        }
    }

    /// Announces more frames than the ring can hold.
    #[cfg(test)]
    pub(super) fn announce_excess_frames(&mut self) {
        self.out.announce_excess_frames();
    }

    /// Signals the other end once, to continue with the next agreed step.
    pub(super) fn signal_other_end(&self) -> Result<(), Over> {
        rustix::net::send(&self.socket, &[1], SendFlags::NOSIGNAL).map_err(|_| Over::Gone)?;
        Ok(())
    }

    /// Excludes from the counters what went through so far.
    pub(super) fn begin_counting(&mut self) {
        self.counters = RingCounters { opened: 1, ..RingCounters::default() };
    }

    /// Wakes the other end. If it reads no signals, enough of them are pending already.
    fn call(&mut self) {
        self.counters.woken += 1;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Whether it is gone shows when its signals are read.
        let _ = rustix::net::send(&self.socket, &[1], flags);
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
