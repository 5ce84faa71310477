//! UDP sockets that look like packet I/O.
//!
//! On receive, each payload is preceded by the 28 bytes of IPv4 and UDP header that [`datagram::header`]
//! makes from the two socket addresses. On send, these are stripped; source and destination are those
//! recorded in the batch, or else read from them. Where the kernel can, datagrams of one length that go to
//! one place leave as a run, in one message that the kernel cuts (UDP_SEGMENT), and runs are received whole
//! and cut here (UDP_GRO). To callers datagrams stay datagrams.
//!
//! Sockets are never connected and always set DF, because only then does the kernel send IP id 0,
//! which the iCRC of RoCEv2 covers, or number the datagrams of a run from 0. Frames in a run get the iCRC of
//! their number.

mod group;
mod numbering;
mod receiver;
mod runs;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_proto::batch::{Addresses, Batch};
use dta_proto::wire::ipv4;

use dta_proto::wire::datagram::{self, Datagram};
pub use group::Instruction;
pub use numbering::numbers_from_zero;
pub use receiver::UdpReceiver;
use runs::Runs;

use crate::sys::{self, Messages, Outgoing};
use crate::{Link, LinkCounters, LinkError, Result, Scope};

/// Most datagrams per system call: the kernel's own limit is 1,024.
const CALL_MAX: usize = 256;

/// Most datagrams per run, sent or received (the kernel's smallest UDP_MAX_SEGMENTS).
pub const RUN_MAX: usize = 64;

/// How often a full queue is waited for (1 ms each) before a datagram counts as not sent.
pub(crate) const SEND_RETRIES: u32 = 100;

/// Configuration of a UDP link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// Address and port to receive on; the unspecified address receives on all, port 0 lets the
    /// kernel choose.
    pub bind: SocketAddr,
    /// Whether payloads are protected by the UDP checksum. Otherwise they are RoCEv2's, from BTH to iCRC, and
    /// have a UDP checksum only where they may leave in runs: the kernel cuts no others.
    pub checksum: bool,
    /// Whether corrupted datagrams will be sent ([`Scope::Datagram`]): opens a raw socket, which needs
    /// CAP_NET_RAW. Only relevant with `checksum`.
    pub corrupt: bool,
    /// Receive queue to request from the kernel, in bytes. It may grant less: [`UdpLink::receive_buffer`].
    pub receive_buffer: usize,
    /// How to handle runs of datagrams, if the kernel can: see [`UdpLink::runs`]. RoCEv2 frames, made for IPv4
    /// id 0, get the iCRC of their number in the run, and leave so only where their writer allows it
    /// ([`Addresses::runs`]). A link that receives runs of them does not know their ids
    /// ([`Batch::id_unknown`]).
    pub runs: RunUse,
}

/// How to handle runs: consecutive datagrams of one length from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunUse {
    /// Send them as one message that the kernel cuts (UDP_SEGMENT).
    pub send: bool,
    /// Receive them as one message and cut it here (UDP_GRO). The kernel then counts a run dropped at the
    /// receive queue as one. Uses a buffer of 64 KiB for each of 64 messages, of which only the part ever
    /// filled takes memory.
    pub receive: bool,
}

impl RunUse {
    /// Every datagram is its own message.
    pub const NONE: Self = Self { send: false, receive: false };
    /// Both.
    pub const BOTH: Self = Self { send: true, receive: true };
}

impl fmt::Display for RunUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.send, self.receive) {
            (true, true) => "sent and received whole",
            (true, false) => "sent whole, received one by one",
            (false, true) => "sent one by one, received whole",
            (false, false) => "sent and received one by one",
        })
    }
}

impl UdpConfig {
    /// For RoCEv2 frames, each its own message, with IPv4 id 0 and without UDP checksum.
    pub fn roce(bind: SocketAddr) -> Self {
        Self { bind, checksum: false, corrupt: false, receive_buffer: 8 << 20, runs: RunUse::NONE }
    }

    /// For RoCEv2 frames in runs.
    pub fn roce_in_runs(bind: SocketAddr) -> Self {
        Self { runs: RunUse::BOTH, ..Self::roce(bind) }
    }

    /// For DTA reports and NACKs: with UDP checksum. `corrupt` says whether a fault injector may corrupt what
    /// is sent.
    pub fn reports(bind: SocketAddr, corrupt: bool) -> Self {
        Self { bind, checksum: true, corrupt, receive_buffer: 8 << 20, runs: RunUse::BOTH }
    }
}

/// A bound UDP socket, and the sockets that send from other source ports.
pub struct UdpLink {
    receiver: UdpReceiver,
    sender: UdpSender,
}

impl UdpLink {
    /// Binds the socket.
    ///
    /// # Errors
    /// The port is in use, the address is not of this host or IPv6, or a privilege is missing.
    pub fn open(config: &UdpConfig) -> Result<Self> {
        let (socket, local) = bind(config.bind, config.checksum)?;
        Self::of(socket, local, config)
    }

    /// A link for a bound socket.
    fn of(socket: OwnedFd, local: SocketAddrV4, config: &UdpConfig) -> Result<Self> {
        let raw = match config.corrupt && config.checksum {
            true => Some(open_raw()?),
            false => None,
        };
        let receive_buffer = set_receive_buffer(socket.as_fd(), config.receive_buffer)?;
        let any = local.ip().is_unspecified();
        if any {
            sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
                .map_err(LinkError::io("cannot ask for IP_PKTINFO"))?;
        }
        // Older kernels (before 5.0 and 4.18) refuse these.
        let can = |option, value| sys::set_option(socket.as_fd(), libc::SOL_UDP, option, value).is_ok();
        let receives_runs = config.runs.receive && can(sys::UDP_GRO, 1);
        let may_send = || config.checksum || matches!(numbers_from_zero(), Ok(true));
        let sends_runs = config.runs.send && can(sys::UDP_SEGMENT, 0) && may_send();
        let ids_unknown = config.runs.receive && !config.checksum;
        let socket = Arc::new(socket);
        Ok(Self {
            receiver: UdpReceiver::new(
                Arc::clone(&socket),
                local,
                receive_buffer,
                receives_runs,
                ids_unknown,
            ),
            sender: UdpSender {
                checksum: config.checksum,
                retries: SEND_RETRIES,
                any: any.then_some(local.port()),
                by_source: if any { HashMap::new() } else { HashMap::from([(local, 0)]) },
                sockets: vec![Outlet { socket, checksum: config.checksum }],
                last: None,
                unbound: HashMap::new(),
                raw,
                messages: Messages::new(CALL_MAX),
                routes: Vec::new(),
                used: Vec::new(),
                taking: Vec::new(),
                queue: Vec::new(),
                runs: sends_runs.then(|| Box::new(Runs::new(!config.checksum))),
                counters: LinkCounters::default(),
            },
        })
    }

    /// Its receive address and port; if 0 was requested, the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddrV4 {
        self.receiver.local()
    }

    /// How runs are handled: as requested, as far as the kernel can and has not refused since.
    pub fn runs(&self) -> RunUse {
        let send = self.sender.runs.as_ref().is_some_and(|runs| runs.work());
        RunUse { send, receive: self.receiver.takes_runs() }
    }

    /// Receive queue granted by the kernel, in bytes (half of what it counts, as SO_RCVBUF is set).
    pub fn receive_buffer(&self) -> usize {
        self.receiver.receive_buffer()
    }

    /// Opens the socket for a source address and port now, so that a port in use shows at start.
    ///
    /// # Errors
    /// As [`UdpLink::open`].
    pub fn open_source(&mut self, source: SocketAddrV4) -> Result<()> {
        self.sender.open_source(source)
    }

    /// The same link, but sending never waits: datagrams that find a full queue count as not sent at once.
    pub fn without_waiting(mut self) -> Self {
        self.sender.retries = 0;
        self
    }

    /// Splits it into its two directions, for two threads.
    pub fn split(self) -> (UdpReceiver, UdpSender) {
        (self.receiver, self.sender)
    }
}

impl AsFd for UdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl Link for UdpLink {
    fn recv(&mut self, batch: &mut Batch, timeout: Option<Duration>) -> Result<usize> {
        self.receiver.recv(batch, timeout)
    }

    fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        self.sender.send(batch)
    }

    fn counters(&self) -> LinkCounters {
        let LinkCounters { received, received_bytes, dropped_too_long, dropped_by_kernel, .. } =
            self.receiver.counters();
        LinkCounters {
            received,
            received_bytes,
            dropped_too_long,
            dropped_by_kernel,
            ..self.sender.counters()
        }
    }

    fn scope(&self) -> Scope {
        self.sender.scope()
    }
}

/// Most sockets that a link keeps open for sending. Sources come and go with queue pairs; beyond this, all
/// are closed, and those still in use are opened again.
const SOURCES_MAX: usize = 64;

/// Pause before retrying a source that could not be bound.
const REBIND: Duration = Duration::from_secs(1);

/// The sending half of a UDP link: one unconnected socket per source address and port, opened when
/// first used.
pub struct UdpSender {
    /// As [`UdpConfig::checksum`].
    checksum: bool,
    /// How often a full queue is waited for.
    retries: u32,
    /// The port of the receiving socket when that is bound to all addresses.
    any: Option<u16>,
    /// The receiving socket first.
    sockets: Vec<Outlet>,
    by_source: HashMap<SocketAddrV4, u16>,
    /// The source looked up last, which the next datagram most likely has, too.
    last: Option<(SocketAddrV4, u16)>,
    /// Sources that could not be bound, and when that was last tried.
    unbound: HashMap<SocketAddrV4, Instant>,
    raw: Option<OwnedFd>,
    messages: Messages,
    routes: Vec<Option<Route>>,
    used: Vec<Way>,
    /// Destinations of this batch's frames that may leave in runs.
    taking: Vec<SocketAddrV4>,
    queue: Vec<u16>,
    /// Where runs are sent as such.
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
    /// Makes it send with a UDP checksum or without.
    fn set_checksum(&mut self, checksum: bool) {
        if self.checksum != checksum {
            // If it fails, the kernel refuses runs, and frames leave one by one.
            let _ =
                sys::set_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, (!checksum).into());
            self.checksum = checksum;
        }
    }
}

/// How a datagram is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Through a socket; of RoCEv2 frames, whether in runs, with a UDP checksum.
    Socket {
        index: u16,
        in_runs: bool,
    },
    Raw,
}

#[derive(Debug, Clone, Copy)]
struct Route {
    way: Way,
    to: SocketAddrV4,
    /// The source address to request, if the socket is not bound to one.
    from: Option<Ipv4Addr>,
    /// Bytes of the packet not handed to the socket: at the front, and in total.
    skip: usize,
    end: usize,
}

impl UdpSender {
    /// As [`UdpLink::open_source`].
    pub fn open_source(&mut self, source: SocketAddrV4) -> Result<()> {
        self.socket_of(source).map(drop)
    }

    /// As [`Link::send`]. Datagrams from one source keep their order; those of different sources may overtake
    /// each other, as they may on different sockets anyway.
    ///
    /// A source that cannot be bound (another program has its port) is tried again after a second;
    /// until then its datagrams are counted as `unsent_no_source`.
    ///
    /// # Errors
    /// A corrupted datagram is sent on a link opened without `corrupt`. The other datagrams were sent.
    pub fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        let before = self.counters.sent;
        if self.sockets.len() > SOURCES_MAX {
            self.sockets.truncate(1);
            self.by_source.retain(|_, index| *index == 0);
            self.last = None;
        }
        let mut result = Ok(());
        self.routes.clear();
        self.used.clear();
        for index in 0..batch.len() {
            let route = match self.route(batch, index) {
                Ok(Some(route)) => Some(route),
                Ok(None) => None,
                Err(error) => {
                    result = Err(error);
                    None
                }
            };
            self.routes.push(route);
        }
        if !self.checksum && self.sends_runs() {
            self.keep_frames_together();
        }
        for Route { way, .. } in self.routes.iter().flatten() {
            if !self.used.contains(way) {
                self.used.push(*way);
            }
        }
        for position in 0..self.used.len() {
            self.send_through(self.used[position], batch);
        }
        batch.clear();
        result.map(|()| (self.counters.sent - before) as usize)
    }

    /// Counters of what was sent, and what was not, by reason.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Which bits a corrupting fault may flip on this link.
    pub fn scope(&self) -> Scope {
        if self.checksum { Scope::Datagram } else { Scope::Payload }
    }

    fn sends_runs(&self) -> bool {
        self.runs.as_ref().is_some_and(|runs| runs.work())
    }

    /// A frame that a fault has changed has no addresses: it leaves as the others to its destination, so that
    /// all keep their order.
    fn keep_frames_together(&mut self) {
        let Self { routes, taking, .. } = self;
        taking.clear();
        for route in routes.iter().flatten() {
            if let Way::Socket { in_runs: true, .. } = route.way
                && !taking.contains(&route.to)
            {
                taking.push(route.to);
            }
        }
        for route in routes.iter_mut().flatten() {
            if let Way::Socket { in_runs, .. } = &mut route.way {
                *in_runs = taking.contains(&route.to);
            }
        }
    }

    /// How packet `index` is sent; `None`, and counted, if it cannot be.
    fn route(&mut self, batch: &Batch, index: usize) -> Result<Option<Route>> {
        let packet = batch.packet(index);
        if batch.is_verbatim(index) {
            if self.raw.is_none() {
                return Err(LinkError::NeedsNetRaw(CORRUPT));
            }
            // The raw socket takes the packet as it is, and also needs the destination.
            let Ok(ip) = ipv4::Packet::new_checked(packet) else {
                self.counters.unsent_malformed += 1;
                return Ok(None);
            };
            let to = SocketAddrV4::new(ip.dst(), 0);
            return Ok(Some(Route { way: Way::Raw, to, from: None, skip: 0, end: packet.len() }));
        }
        let (Addresses { source, destination: to, runs }, end) = match batch.addresses(index) {
            Some(told) => {
                debug_assert_eq!(
                    batch.udp(index).map(|datagram| (datagram.source(), datagram.destination())),
                    Some((told.source, told.destination))
                );
                (told, packet.len())
            }
            None => {
                let Ok(sent) = Datagram::parse_exact(packet) else {
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
        let way = Way::Socket { index, in_runs: runs && self.sends_runs() };
        Ok(Some(Route { way, to, from, skip: datagram::HEADER_LEN, end }))
    }

    /// As [`Self::socket_of`], but does not retry a source that cannot be bound each time.
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
        if let Some((_, index)) = self.last.filter(|(last, _)| *last == source) {
            return Ok(index);
        }
        if let Some(index) = self.by_source.get(&source) {
            self.last = Some((source, *index));
            return Ok(*index);
        }
        let (socket, _) = bind(source.into(), self.checksum)?;
        // Nothing is received here: a minimal queue, so that strangers cannot fill memory.
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0)
            .map_err(LinkError::io("cannot set SO_RCVBUF"))?;
        let index = self.sockets.len() as u16;
        self.sockets.push(Outlet { socket: Arc::new(socket), checksum: self.checksum });
        self.by_source.insert(source, index);
        Ok(index)
    }

    fn send_through(&mut self, way: Way, batch: &Batch) {
        let Self { sockets, raw, messages, routes, queue, runs, counters, retries, checksum, .. } = self;
        let (socket, in_runs) = match (way, raw.as_ref()) {
            (Way::Socket { index, in_runs }, _) => {
                let outlet = &mut sockets[usize::from(index)];
                let in_runs = in_runs || *checksum;
                outlet.set_checksum(in_runs);
                (outlet.socket.as_fd(), in_runs)
            }
            (Way::Raw, Some(raw)) => (raw.as_fd(), false),
            (Way::Raw, None) => return,
        };
        let route = |index: usize| routes[index].filter(|route| route.way == way);
        queue.clear();
        queue.extend((0..batch.len()).filter(|index| route(*index).is_some()).map(|index| index as u16));
        let datagram = |index: usize| {
            let packet = batch.packet(index);
            let outgoing = route(index).map(|route| Outgoing {
                bytes: &packet[route.skip..route.end],
                segment: None,
                to: Some(route.to),
                from: route.from,
            });
            (outgoing.unwrap_or_default(), packet.len())
        };
        match runs.as_mut().filter(|runs| runs.work() && in_runs) {
            Some(runs) => runs.send(socket, messages, counters, queue, *retries, datagram),
            None => send_all(socket, messages, counters, queue, *retries, datagram),
        }
    }
}

const CORRUPT: &str = "corrupt faults on a UDP link with checksum (DTA reports and NACKs)";

/// Sends the datagrams of `queue` in order, waiting up to `patience` times for room; counts each, sent or
/// not. `datagram` returns what to send for an index, and the bytes to count.
pub(crate) fn send_all<'a>(
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

/// Whether to retry a message that the kernel refused with `error`; waits a moment where that helps.
/// `patience` is how often a full queue is waited for; `retries` counts.
fn wait_for_room(socket: BorrowedFd<'_>, error: &io::Error, patience: u32, retries: &mut u32) -> bool {
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
        // An error of poll shows again at the next send.
        Some(libc::EAGAIN) => drop(sys::wait(&[socket], sys::WRITABLE, Some(Duration::from_millis(1)))),
        _ => {}
    }
    true
}

/// A raw socket that sends whole IPv4 packets and receives none.
fn open_raw() -> Result<OwnedFd> {
    sys::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => LinkError::NeedsNetRaw(CORRUPT),
        _ => LinkError::io("cannot open a raw socket")(error),
    })
}

/// Binds an unconnected socket with DF set, and returns its address.
fn bind(address: SocketAddr, checksum: bool) -> Result<(OwnedFd, SocketAddrV4)> {
    let IpAddr::V4(_) = address.ip() else { return Err(LinkError::Ipv6(address)) };
    let socket = UdpSocket::bind(address).map_err(|error| LinkError::bind(address, error))?;
    let SocketAddr::V4(local) =
        socket.local_addr().map_err(LinkError::io("cannot read a socket's address"))?
    else {
        return Err(LinkError::Ipv6(address));
    };
    let socket = OwnedFd::from(socket);
    prepare(&socket, checksum)?;
    Ok((socket, local))
}

/// Sets the options common to all sockets of links.
fn prepare(socket: &OwnedFd, checksum: bool) -> Result<()> {
    sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
        .map_err(LinkError::io("cannot set DF (IP_MTU_DISCOVER)"))?;
    if !checksum {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
            .map_err(LinkError::io("cannot leave out the UDP checksum (SO_NO_CHECK)"))?;
    }
    Ok(())
}

/// Requests a receive queue, beyond the system's limit where allowed, and returns what was granted.
pub(crate) fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> Result<usize> {
    // The kernel doubles the requested size to make up for its own overhead.
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted)
        .or_else(|_| sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, wanted))
        .map_err(LinkError::io("cannot set SO_RCVBUF"))?;
    let mut granted = [0];
    sys::get_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut granted)
        .map_err(LinkError::io("cannot read SO_RCVBUF"))?;
    Ok(granted[0] as usize / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_the_kernel_refuses_leave_one_by_one_and_soon_no_more_are_made() {
        let open = || UdpLink::open(&UdpConfig::reports((Ipv4Addr::LOCALHOST, 0).into(), false)).unwrap();
        let (mut link, mut peer) = (open(), open());
        let (from, to) = (link.local_addr(), peer.local_addr());
        let (mut batch, mut received) = (Batch::default(), Batch::default());
        let mut round = |link: &mut UdpLink| {
            while !batch.is_full() {
                batch.push_udp(from, to, &[batch.len() as u8; 40], 0).unwrap();
            }
            assert_eq!(link.send(&mut batch).unwrap(), 64);
            let mut got = Vec::new();
            while got.len() < 64 && peer.recv(&mut received, Some(Duration::from_secs(5))).unwrap() > 0 {
                got.extend(received.iter().map(|packet| packet[datagram::HEADER_LEN]));
            }
            assert_eq!(got, (0..64).collect::<Vec<u8>>());
        };
        round(&mut link);
        assert!(link.runs().send);
        // Without UDP checksums the kernel does not cut runs (EINVAL).
        sys::set_option(link.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        for _ in 0..3 {
            round(&mut link);
        }
        assert!(link.runs().send, "some may be refused");
        for _ in 0..3 {
            round(&mut link);
        }
        assert_eq!(link.runs(), RunUse { send: false, receive: true });
        assert_eq!((link.counters().sent, link.counters().unsent()), (7 * 64, 0));
    }
}
