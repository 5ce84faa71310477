//! A UDP link that uses shared rings to processes on this machine, where available.
//!
//! A ring is a shortcut to one address and port: frames for it go into the ring, everything else through the
//! socket. Received frames come from both. The user of the link sees a single link, and a ring that ends is
//! replaced by the socket.
//!
//! When a destination changes between ring and socket, frames keep their order: a ring whose other end is
//! gone is read to its end before anything else; and when a ring gets its first frame, the socket is read
//! first, because by then everything the other end sent through it has arrived. An end closes its ring before
//! it uses the socket instead. So after reading the socket, the link checks which rings have ended, and reads
//! those first.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_proto::batch::PacketBatch;
use dta_proto::wire::datagram::UdpDatagram;

use crate::shared_ring::{Arrivals, Door, End, Over, PushOutcome, confirm_ring_token};
use crate::sys;
use crate::{Link, LinkCounters, LinkError, Result, RingCounters, Scope, UdpLink};

const RINGS_MAX: usize = 32;
/// Turns after which the socket is read even if the rings have frames, and the other ends' signals are read.
const LOOK_AROUND: u32 = 32;
/// Most batches read from the socket when a ring starts.
const BEFORE_A_RING: u32 = 64;

pub struct HostLink {
    udp: UdpLink,
    rings: Vec<HostRing>,
    arrivals: Option<Arrivals>,
    /// The ring to read next.
    next: usize,
    turn: u32,
    /// Number of batches to read from the socket before any ring.
    socket_first: u32,
    /// Packets received through the socket that wait until ending rings are empty.
    later: Option<PacketBatch>,
    /// Counters of frames that rings lost or rejected.
    lost: LinkCounters,
    former: RingCounters,
    /// For each packet of the current batch, whether it went through a ring, or counts as lost.
    done: Vec<bool>,
    over: Vec<(SocketAddrV4, Over)>,
}

struct HostRing {
    end: End,
    /// Its other end is gone or has another ring: it is read to its end.
    ending: bool,
    /// It has had a frame.
    begun: bool,
}

impl HostLink {
    pub fn new(udp: UdpLink) -> Self {
        Self {
            udp,
            rings: Vec::new(),
            arrivals: None,
            next: 0,
            turn: 0,
            socket_first: 0,
            later: None,
            lost: LinkCounters::default(),
            former: RingCounters::default(),
            done: Vec::new(),
            over: Vec::new(),
        }
    }

    /// The same link, with a door for requesters on this machine. See [`Door`] for its name.
    pub fn with_door(mut self, name: String) -> std::io::Result<(Self, Door)> {
        let (door, arrivals) = Door::open(name)?;
        self.arrivals = Some(arrivals);
        Ok((self, door))
    }

    pub fn udp_link(&self) -> &UdpLink {
        &self.udp
    }

    /// Sends frames for the address and port of `end` through it from now on, replacing any earlier ring.
    pub fn add(&mut self, end: End) {
        self.read_ring_signals();
        for ring in self.rings.iter_mut().filter(|ring| ring.end.served_address() == end.served_address()) {
            ring.ending = true;
        }
        self.settle_endings();
        if self.rings.len() >= RINGS_MAX {
            // The other end sees this one close, and continues by UDP.
            return;
        }
        self.rings.push(HostRing { end, ending: false, begun: false });
    }

    /// Whether frames to this address go through a ring.
    pub fn has_ring(&self, route: SocketAddrV4) -> bool {
        self.rings.iter().any(|ring| !ring.ending && ring.end.served_address() == route)
    }

    /// Rings that ended since the last call, and why.
    pub fn take_over(&mut self) -> impl Iterator<Item = (SocketAddrV4, Over)> + '_ {
        self.over.drain(..)
    }

    /// As [`crate::wait_readable`], for input here or at `others`.
    pub fn wait_for_input(&mut self, others: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool> {
        let ready = self.sleep_until_input(others, timeout);
        for ring in &mut self.rings {
            ring.end.cancel_sleep();
        }
        let ready = ready.map_err(LinkError::io_with_context("cannot wait for datagrams"))?;
        if ready {
            self.read_ring_signals();
        }
        Ok(ready)
    }

    fn sleep_until_input(
        &mut self,
        others: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> std::io::Result<bool> {
        if self.later.is_some() {
            return Ok(true);
        }
        for ring in &mut self.rings {
            // An error shows up when frames are read.
            if ring.ending || ring.end.announce_sleep().unwrap_or(true) {
                return Ok(true);
            }
        }
        let mut fds = [self.udp.as_fd(); sys::WAIT_MAX];
        let ours = self.rings.iter().map(|ring| ring.end.as_fd());
        let mut count = 1;
        for (place, fd) in fds[1..].iter_mut().zip(ours.chain(others.iter().copied())) {
            *place = fd;
            count += 1;
        }
        sys::wait_for_events(&fds[..count], sys::READABLE, timeout)
    }

    /// Reads the other ends' signals. Ends that are gone have sent everything that they will.
    fn read_ring_signals(&mut self) {
        for ring in self.rings.iter_mut().filter(|ring| !ring.ending) {
            ring.ending = ring.end.read_signals().is_err();
        }
        self.settle_endings();
    }

    /// Limits ending rings to what has been written.
    fn settle_endings(&mut self) {
        let mut index = 0;
        while index < self.rings.len() {
            let ring = &mut self.rings[index];
            if ring.ending
                && let Err(over) = ring.end.stop_at_written()
            {
                self.remove_ring(index, over);
            } else {
                index += 1;
            }
        }
    }

    fn admit_joined_ring(&mut self) {
        let Some(arrivals) = &self.arrivals else { return };
        let Ok((mut end, token)) = arrivals.try_recv() else { return };
        // Ends that violate the protocol are not served.
        if confirm_ring_token(&mut end, &token) == Ok(true) {
            self.add(end);
        }
    }

    /// Reads the socket; returns whether `batch` has packets now. If a ring has ended meanwhile, `batch` gets
    /// the ring's packets, and the socket's wait.
    fn take_from_socket(&mut self, batch: &mut PacketBatch) -> Result<bool> {
        if self.udp.recv(batch, Some(Duration::ZERO))? == 0 {
            return Ok(false);
        }
        self.read_ring_signals();
        if self.rings.iter().any(|ring| ring.ending) {
            let empty = PacketBatch::with_packet_capacity(batch.slot_count(), batch.packet_capacity());
            self.later = Some(std::mem::replace(batch, empty));
            self.take_ending(batch);
        }
        Ok(!batch.is_empty() || self.take_later(batch))
    }

    /// Takes the packets that waited for ending rings; returns whether there were any.
    fn take_later(&mut self, batch: &mut PacketBatch) -> bool {
        let Some(later) = self.later.take() else { return false };
        *batch = later;
        true
    }

    fn take_ending(&mut self, batch: &mut PacketBatch) {
        let mut index = 0;
        while index < self.rings.len() {
            if !self.rings[index].ending {
                index += 1;
                continue;
            }
            self.take_from(index, batch);
            if !batch.is_empty() {
                return;
            }
            if self.rings.get(index).is_some_and(|ring| ring.ending && ring.end.is_at_end()) {
                self.remove_ring(index, Over::Gone);
            }
        }
    }

    /// Reads the rings, ending ones first.
    fn take(&mut self, batch: &mut PacketBatch) {
        self.take_ending(batch);
        if !batch.is_empty() {
            return;
        }
        for _ in 0..self.rings.len() {
            self.next = (self.next + 1) % self.rings.len().max(1);
            if self.next >= self.rings.len() {
                return;
            }
            self.take_from(self.next, batch);
            if !batch.is_empty() {
                return;
            }
        }
    }

    /// Makes the next turn read the socket first.
    #[cfg(test)]
    pub(crate) fn look_around_next(&mut self) {
        self.turn = LOOK_AROUND - 1;
    }

    fn take_from(&mut self, index: usize, batch: &mut PacketBatch) {
        match self.rings[index].end.take(batch) {
            Ok(too_long) => self.lost.dropped_too_long += too_long,
            Err(over) => self.remove_ring(index, over),
        }
    }

    fn remove_ring(&mut self, index: usize, over: Over) {
        let ring = self.rings.remove(index);
        self.former.add(&ring.end.last_counters());
        self.former.broken += u64::from(matches!(over, Over::Broken(_)));
        self.over.push((ring.end.served_address(), over));
        // A caller that never asks does not need them all.
        let most = self.over.len().saturating_sub(RINGS_MAX);
        self.over.drain(..most);
    }

    /// Puts packets into the rings that they belong to; returns how many.
    fn send_by_rings(&mut self, batch: &PacketBatch) -> usize {
        let mut sent = 0;
        self.done.clear();
        self.done.resize(batch.len(), false);
        let mut last: Option<(SocketAddrV4, usize)> = None;
        for index in 0..batch.len() {
            let packet = batch.packet(index);
            let to = match batch.addresses(index) {
                Some(addresses) => addresses.destination,
                None => match UdpDatagram::parse_exact(packet) {
                    Ok(read) => read.destination(),
                    Err(_) => continue,
                },
            };
            let at = match last {
                Some((route, at)) if route == to => at,
                _ => match self.rings.iter().position(|ring| !ring.ending && ring.end.served_address() == to)
                {
                    Some(at) => at,
                    None => continue,
                },
            };
            last = Some((to, at));
            match self.rings[at].end.push(packet) {
                Ok(what) => {
                    self.done[index] = true;
                    match what {
                        PushOutcome::Yes => sent += 1,
                        PushOutcome::Full => self.lost.unsent_queue_full += 1,
                        PushOutcome::TooLong => self.lost.unsent_too_long += 1,
                    }
                }
                Err(over) => {
                    // The remaining packets go through the socket.
                    last = None;
                    self.remove_ring(at, over);
                }
            }
        }
        for ring in &mut self.rings {
            ring.end.publish_frames();
        }
        sent
    }
}

impl AsFd for HostLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }
}

impl Link for HostLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        self.turn = self.turn.wrapping_add(1);
        let around = self.turn.is_multiple_of(LOOK_AROUND);
        if self.rings.is_empty() && self.arrivals.is_none() && self.later.is_none() {
            return self.udp.recv(batch, timeout);
        }
        batch.clear();
        if self.later.is_some() {
            self.take_ending(batch);
            if !batch.is_empty() || self.take_later(batch) {
                return Ok(batch.len());
            }
        }
        if around {
            self.read_ring_signals();
            self.admit_joined_ring();
        }
        let mut waited = false;
        loop {
            for ring in self.rings.iter_mut().filter(|ring| !ring.begun) {
                ring.begun = ring.end.has_frames();
                if ring.begun {
                    self.socket_first = BEFORE_A_RING;
                }
            }
            let first = self.socket_first > 0;
            if first || around {
                self.socket_first = self.socket_first.saturating_sub(1);
                if self.take_from_socket(batch)? {
                    return Ok(batch.len());
                }
                self.socket_first = 0;
            }
            self.take(batch);
            if !batch.is_empty() {
                return Ok(batch.len());
            }
            if !around && self.take_from_socket(batch)? {
                return Ok(batch.len());
            }
            if waited || timeout == Some(Duration::ZERO) {
                return Ok(0);
            }
            self.wait_for_input(&[], timeout)?;
            self.admit_joined_ring();
            waited = true;
        }
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        if self.rings.is_empty() {
            return self.udp.send(batch);
        }
        let sent = self.send_by_rings(batch);
        // The usual case: every packet went through a ring.
        if self.done.iter().all(|done| *done) {
            batch.clear();
            return Ok(sent);
        }
        let mut done = self.done.iter();
        batch.retain(|_, _| !done.next().copied().unwrap_or(false));
        if batch.is_empty() {
            return Ok(sent);
        }
        Ok(sent + self.udp.send(batch)?)
    }

    fn link_counters(&self) -> LinkCounters {
        let (mut counters, ring) = (self.udp.link_counters(), self.ring_counters());
        counters.add(&self.lost);
        counters.received += ring.received;
        counters.received_bytes += ring.received_bytes;
        counters.sent += ring.sent;
        counters.sent_bytes += ring.sent_bytes;
        counters
    }

    fn ring_counters(&self) -> RingCounters {
        let mut sum = self.former;
        self.rings.iter().for_each(|ring| sum.add(&ring.end.ring_counters()));
        sum
    }

    /// The socket's scope: any frame may go through it.
    fn corruption_scope(&self) -> Scope {
        self.udp.corruption_scope()
    }
}
