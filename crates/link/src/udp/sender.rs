//! The sending half of a UDP link.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::datagram::{self, UdpDatagram};
use dta_proto::wire::ipv4;

use super::runs::Runs;
use super::{CALL_MAX, UdpConfig, bind};
use crate::sys::{self, Messages, Outgoing};
use crate::{LinkCounters, LinkError, Result, Scope};

/// How often a full queue is waited for (1 ms each) before a datagram counts as not sent.
pub(crate) const SEND_RETRIES: u32 = 100;

/// Most sockets that a link keeps open for sending. Sources come and go with queue pairs; beyond this, all
/// are closed, and those still in use are opened again.
pub(super) const SOURCES_MAX: usize = 64;

/// Pause before retrying a source that could not be bound.
const REBIND: Duration = Duration::from_secs(1);

/// The sending half of a UDP link: one unconnected socket per source address and port, opened when
/// first used.
pub(super) struct UdpSender {
    /// As [`UdpConfig::checksum`].
    checksum: bool,
    /// How often a full queue is waited for.
    retries: u32,
    /// The port of the receiving socket, if that is bound to all addresses.
    any: Option<u16>,
    /// The sockets, the receiving one first.
    sockets: Vec<Outlet>,
    by_source: HashMap<SocketAddrV4, u16>,
    /// Sources that could not be bound, and when that was last tried.
    unbound: HashMap<SocketAddrV4, Instant>,
    raw: Option<OwnedFd>,
    messages: Messages,
    routes: Vec<Option<SendRoute>>,
    /// The channels of these routes.
    used: Vec<Channel>,
    queue: Vec<u16>,
    /// `None` if runs are not sent.
    runs: Option<Box<Runs>>,
    counters: LinkCounters,
}

/// A socket to send through.
struct Outlet {
    socket: Arc<OwnedFd>,
    /// Whether it sends with a UDP checksum.
    checksum: bool,
}

impl Outlet {
    /// Makes it send with or without a UDP checksum.
    fn set_checksum(&mut self, checksum: bool) {
        if self.checksum != checksum {
            // If this fails, the kernel refuses runs, and frames leave one by one.
            let _ =
                sys::set_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, (!checksum).into());
            self.checksum = checksum;
        }
    }
}

/// How a datagram is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    /// Through a socket; for RoCEv2 frames, whether in runs, with a UDP checksum.
    Socket {
        index: u16,
        in_runs: bool,
    },
    Raw,
}

#[derive(Debug, Clone, Copy)]
struct SendRoute {
    channel: Channel,
    to: SocketAddrV4,
    /// The source address to request, if the socket is not bound to one.
    from: Option<Ipv4Addr>,
    /// Bytes of the packet that are not handed to the socket: at the front, and in total.
    skip: usize,
    end: usize,
}

impl UdpSender {
    /// Sends through a bound socket. `raw` sends corrupted datagrams; `runs` says whether others may leave in runs.
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        local: SocketAddrV4,
        config: &UdpConfig,
        raw: Option<OwnedFd>,
        runs: bool,
    ) -> UdpSender {
        let checksum = config.checksum;
        let any = local.ip().is_unspecified();
        UdpSender {
            checksum,
            retries: SEND_RETRIES,
            any: any.then_some(local.port()),
            by_source: if any { HashMap::new() } else { HashMap::from([(local, 0)]) },
            sockets: vec![Outlet { socket, checksum }],
            unbound: HashMap::new(),
            raw,
            messages: Messages::new(CALL_MAX),
            routes: Vec::new(),
            used: Vec::new(),
            queue: Vec::new(),
            runs: runs.then(|| Box::new(Runs::new(!checksum))),
            counters: LinkCounters::default(),
        }
    }

    /// As [`super::UdpLink::open_source`].
    pub(super) fn open_source(&mut self, source: SocketAddrV4) -> Result<()> {
        self.socket_of(source).map(drop)
    }

    /// As [`super::UdpLink::without_waiting`].
    pub(super) fn never_wait(&mut self) {
        self.retries = 0;
    }

    /// As [`crate::Link::send`]. Datagrams from one source keep their order; those of different sources may overtake
    /// each other, as they may on different sockets anyway.
    ///
    /// A source that cannot be bound (another program has its port) is tried again after a second;
    /// until then its datagrams are counted as `unsent_no_source`.
    ///
    /// # Errors
    /// A corrupted datagram is sent on a link opened without `corrupt`. The other datagrams were sent.
    pub(super) fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        let before = self.counters.sent;
        if self.sockets.len() > SOURCES_MAX {
            self.sockets.truncate(1);
            self.by_source.retain(|_, index| *index == 0);
        }
        let result = self.find_routes(batch);
        for position in 0..self.used.len() {
            self.send_through(self.used[position], batch);
        }
        batch.clear();
        result.map(|()| (self.counters.sent - before) as usize)
    }

    /// Counters of what was sent, and of what was not, by reason.
    pub(super) fn send_counters(&self) -> LinkCounters {
        self.counters
    }

    /// Which bits a corrupting fault may flip on this link.
    pub(super) fn corruption_scope(&self) -> Scope {
        if self.checksum { Scope::Datagram } else { Scope::Payload }
    }

    pub(super) fn sends_runs(&self) -> bool {
        self.runs.as_ref().is_some_and(|runs| runs.are_worthwhile())
    }

    /// How each packet of a batch is sent. An error concerns one packet; the others have their routes.
    fn find_routes(&mut self, batch: &PacketBatch) -> Result<()> {
        self.routes.clear();
        self.used.clear();
        let mut result = Ok(());
        // Most packets have the addresses of the one before.
        let mut last: Option<(Addresses, SendRoute)> = None;
        for index in 0..batch.len() {
            let plain = batch.addresses(index).filter(|_| !batch.is_verbatim(index));
            let route = match (plain, last) {
                (Some(addresses), Some((before, route))) if addresses == before => {
                    Some(SendRoute { end: batch.packet(index).len(), ..route })
                }
                _ => {
                    let route = self.route_packet(batch, index).unwrap_or_else(|error| {
                        result = Err(error);
                        None
                    });
                    last = plain.zip(route);
                    if let Some(SendRoute { channel, .. }) = route
                        && !self.used.contains(&channel)
                    {
                        self.used.push(channel);
                    }
                    route
                }
            };
            self.routes.push(route);
        }
        let leave = |in_runs: bool| {
            let mut used = self.used.iter();
            used.any(|channel| matches!(channel, Channel::Socket { in_runs: is, .. } if *is == in_runs))
        };
        if !self.checksum && leave(true) && leave(false) {
            self.keep_frames_together();
        }
        result
    }

    /// A frame that a fault has changed has no addresses: it leaves like the others to its destination, so that all
    /// keep their order.
    fn keep_frames_together(&mut self) {
        let Self { routes, used, .. } = self;
        let mut taking: Vec<SocketAddrV4> = Vec::new();
        for route in routes.iter().flatten() {
            if let Channel::Socket { in_runs: true, .. } = route.channel
                && !taking.contains(&route.to)
            {
                taking.push(route.to);
            }
        }
        used.clear();
        for route in routes.iter_mut().flatten() {
            if let Channel::Socket { in_runs, .. } = &mut route.channel {
                *in_runs = taking.contains(&route.to);
            }
            if !used.contains(&route.channel) {
                used.push(route.channel);
            }
        }
    }

    /// How packet `index` is sent; `None`, with the packet counted, if it cannot be sent.
    fn route_packet(&mut self, batch: &PacketBatch, index: usize) -> Result<Option<SendRoute>> {
        let packet = batch.packet(index);
        if batch.is_verbatim(index) {
            if self.raw.is_none() {
                return Err(LinkError::NeedsNetRaw(CORRUPT));
            }
            // The raw socket takes the packet as it is, but also needs the destination.
            let Ok(ip) = ipv4::Ipv4Packet::new_checked(packet) else {
                self.counters.unsent_malformed += 1;
                return Ok(None);
            };
            let to = SocketAddrV4::new(ip.destination_address(), 0);
            return Ok(Some(SendRoute { channel: Channel::Raw, to, from: None, skip: 0, end: packet.len() }));
        }
        let (Addresses { source, destination: to, runs }, end) = match batch.addresses(index) {
            Some(given) => {
                debug_assert_eq!(
                    batch.udp_datagram(index).map(|datagram| (datagram.source(), datagram.destination())),
                    Some((given.source, given.destination))
                );
                (given, packet.len())
            }
            None => {
                let Ok(sent) = UdpDatagram::parse_exact(packet) else {
                    self.counters.unsent_malformed += 1;
                    return Ok(None);
                };
                let read = Addresses::new(sent.source(), sent.destination());
                (read, datagram::HEADER_LEN + sent.payload().len())
            }
        };
        let (index, from) = match self.any == Some(source.port()) {
            true => (0, Some(*source.ip())),
            false => match self.socket_to_send(source) {
                Some(index) => (index, None),
                None => {
                    self.counters.unsent_no_source += 1;
                    return Ok(None);
                }
            },
        };
        let channel = Channel::Socket { index, in_runs: runs && self.sends_runs() };
        Ok(Some(SendRoute { channel, to, from, skip: datagram::HEADER_LEN, end }))
    }

    /// As [`Self::socket_of`], but a source that could not be bound is not retried each time.
    fn socket_to_send(&mut self, source: SocketAddrV4) -> Option<u16> {
        if !self.unbound.is_empty() && self.unbound.get(&source).is_some_and(|tried| tried.elapsed() < REBIND)
        {
            return None;
        }
        match self.socket_of(source) {
            Ok(index) => {
                if !self.unbound.is_empty() {
                    self.unbound.remove(&source);
                }
                Some(index)
            }
            Err(_) => {
                if self.unbound.len() >= SOURCES_MAX {
                    self.unbound.clear();
                }
                self.unbound.insert(source, Instant::now());
                None
            }
        }
    }

    fn socket_of(&mut self, source: SocketAddrV4) -> Result<u16> {
        if let Some(index) = self.by_source.get(&source) {
            return Ok(*index);
        }
        let (socket, _) = bind(source.into(), None, self.checksum)?;
        // Nothing is received here: a minimal queue, so that strangers cannot fill memory.
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0)
            .map_err(LinkError::io_with_context("cannot set SO_RCVBUF"))?;
        let index = self.sockets.len() as u16;
        self.sockets.push(Outlet { socket: Arc::new(socket), checksum: self.checksum });
        self.by_source.insert(source, index);
        Ok(index)
    }

    fn send_through(&mut self, channel: Channel, batch: &PacketBatch) {
        let Self { sockets, raw, messages, routes, queue, runs, counters, retries, checksum, .. } = self;
        let (socket, in_runs) = match (channel, raw.as_ref()) {
            (Channel::Socket { index, in_runs }, _) => {
                let outlet = &mut sockets[usize::from(index)];
                let in_runs = in_runs || *checksum;
                outlet.set_checksum(in_runs);
                (outlet.socket.as_fd(), in_runs)
            }
            (Channel::Raw, Some(raw)) => (raw.as_fd(), false),
            (Channel::Raw, None) => return,
        };
        queue.clear();
        for (index, route) in (0..).zip(&*routes) {
            if route.is_some_and(|route| route.channel == channel) {
                queue.push(index);
            }
        }
        let datagram = |index: usize| {
            let packet = batch.packet(index);
            let outgoing = routes[index].map(|route| Outgoing {
                bytes: &packet[route.skip..route.end],
                segment: None,
                to: Some(route.to.into()),
                from: route.from,
            });
            (outgoing.unwrap_or_default(), packet.len())
        };
        match runs.as_mut().filter(|runs| runs.are_worthwhile() && in_runs) {
            Some(runs) => runs.send(socket, messages, counters, queue, *retries, datagram),
            None => send_queue(socket, messages, counters, queue, *retries, datagram),
        }
    }
}

const CORRUPT: &str = "corrupt faults on a UDP link with checksum (DTA reports and NACKs)";

/// Sends the datagrams of `queue` in order, waiting up to `patience` times for room; counts each, sent or
/// not. `datagram` returns what to send for an index, and the bytes to count.
pub(crate) fn send_queue<'a>(
    socket: BorrowedFd<'_>,
    messages: &mut Messages,
    counters: &mut LinkCounters,
    queue: &[u16],
    patience: u32,
    datagram: impl Fn(usize) -> (Outgoing<'a>, usize),
) {
    let mut rest = queue;
    let mut retries = 0;
    while !rest.is_empty() {
        let error = match messages.send(socket, rest.iter().map(|index| datagram(usize::from(*index)).0)) {
            Ok(sent) => {
                for index in &rest[..sent] {
                    counters.count_sent(datagram(usize::from(*index)).1);
                }
                rest = &rest[sent..];
                retries = 0;
                continue;
            }
            Err(error) => error,
        };
        if wait_for_room(socket, &error, patience, &mut retries) {
            continue;
        }
        counters.count_unsent(&error);
        rest = &rest[1..];
        retries = 0;
    }
}

/// Whether to retry a message that the kernel refused with `error`; waits a moment if that helps. `patience` is how
/// often a full queue is waited for; `retries` counts.
pub(super) fn wait_for_room(
    socket: BorrowedFd<'_>,
    error: &io::Error,
    patience: u32,
    retries: &mut u32,
) -> bool {
    let most = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS) => patience,
        // A late error for an earlier datagram, or a signal: this one has not been tried.
        Some(libc::ECONNREFUSED | libc::EINTR) => SEND_RETRIES,
        _ => 0,
    };
    if *retries >= most {
        return false;
    }
    *retries += 1;
    match error.raw_os_error() {
        // The device's queue is full, which poll does not report.
        Some(libc::ENOBUFS) => std::thread::sleep(Duration::from_micros(100)),
        // An error of poll shows up again at the next send.
        Some(libc::EAGAIN) => {
            drop(sys::wait_for_events(&[socket], sys::WRITABLE, Some(Duration::from_millis(1))))
        }
        _ => {}
    }
    true
}

/// A raw socket that sends whole IPv4 packets and receives none.
pub(super) fn open_raw_socket() -> Result<OwnedFd> {
    sys::open_socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => LinkError::NeedsNetRaw(CORRUPT),
        _ => LinkError::io_with_context("cannot open a raw socket")(error),
    })
}
