//! UDP sockets that look like packet I/O.
//!
//! On receive, each payload is preceded by the 28 bytes of IPv4 and UDP header that
//! [`datagram::encode_header`](dta_proto::wire::datagram::encode_header) makes from the two socket addresses. On
//! send, these are stripped; source and destination are those recorded in the batch, or else read from them. If the
//! kernel can, datagrams of one length that go to one place leave as a run, in one message that the kernel cuts
//! (UDP_SEGMENT), and runs are received whole and cut here (UDP_GRO). Callers still see single datagrams.
//!
//! Sockets are never connected and always set DF. Only then does the kernel send IP id 0, which the iCRC of RoCEv2
//! covers, or number the datagrams of a run from 0. Each frame in a run gets the iCRC for its number.

mod group;
mod ipv6;
mod listener;
mod numbering;
mod receiver;
mod runs;
mod sender;

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use dta_proto::batch::PacketBatch;

pub use group::Instruction;
pub use ipv6::Ipv6FrameLink;
pub use listener::UdpListener;
pub use numbering::numbers_from_zero;
use receiver::UdpReceiver;
use sender::UdpSender;
pub(crate) use sender::{SEND_RETRIES, send_queue};

use crate::sys;
use crate::{Link, LinkCounters, LinkError, Result, Scope};

/// Most datagrams per system call: the kernel's own limit is 1,024.
const CALL_MAX: usize = 256;

/// Receive queue to request from the kernel by default, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Most datagrams per run, sent or received (the kernel's smallest UDP_MAX_SEGMENTS).
pub const RUN_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// Address and port to receive on; the unspecified address receives on all, port 0 lets the
    /// kernel choose.
    pub bind: SocketAddr,
    /// The only interface for datagrams in both directions; `None`: any.
    pub interface: Option<String>,
    /// Whether payloads are protected by the UDP checksum. Otherwise they are RoCEv2's, from BTH to iCRC, and have
    /// a UDP checksum only if they may leave in runs: the kernel cuts no others.
    pub checksum: bool,
    /// Whether corrupted datagrams will be sent ([`Scope::Datagram`]): opens a raw socket, which needs
    /// CAP_NET_RAW. Only relevant with `checksum`.
    pub corrupt: bool,
    /// Receive queue to request from the kernel, in bytes. It may grant less: [`UdpLink::receive_buffer`].
    pub receive_buffer: usize,
    /// How to handle runs of datagrams, if the kernel can: see [`UdpLink::run_use`]. RoCEv2 frames, which are
    /// written for IPv4 id 0, get the iCRC for their number in the run, and are sent in runs only if their writer
    /// allows it ([`dta_proto::batch::Addresses::runs`]). A link that receives runs of frames does not know their
    /// ids ([`PacketBatch::id_unknown`]).
    pub runs: RunUse,
}

/// How to handle runs: consecutive datagrams of one length from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunUse {
    /// Send them as one message that the kernel cuts (UDP_SEGMENT).
    pub send: bool,
    /// Receive them as one message and cut it here (UDP_GRO). The kernel then counts a run dropped at the receive
    /// queue as one datagram. Uses a buffer of 64 KiB for each of 64 messages, but memory only for the parts ever
    /// filled.
    pub receive: bool,
}

impl RunUse {
    /// Every datagram is its own message.
    pub const NONE: Self = Self { send: false, receive: false };
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
    pub fn for_roce_frames(bind: SocketAddr) -> Self {
        Self {
            bind,
            interface: None,
            checksum: false,
            corrupt: false,
            receive_buffer: RECEIVE_BUFFER,
            runs: RunUse::NONE,
        }
    }

    /// For RoCEv2 frames in runs.
    pub fn roce_in_runs(bind: SocketAddr) -> Self {
        Self { runs: RunUse::BOTH, ..Self::for_roce_frames(bind) }
    }

    /// For DTA reports and NACKs: with UDP checksum. `corrupt` says whether a fault injector may corrupt what
    /// is sent.
    pub fn for_reports(bind: SocketAddr, corrupt: bool) -> Self {
        Self { checksum: true, corrupt, runs: RunUse::BOTH, ..Self::for_roce_frames(bind) }
    }
}

/// A bound UDP socket, and the sockets that send from other source ports.
pub struct UdpLink {
    local: SocketAddrV4,
    receiver: UdpReceiver,
    sender: UdpSender,
}

impl UdpLink {
    /// Binds the socket.
    ///
    /// # Errors
    /// The port is in use, the address is not of this host or is an IPv6 address, or a privilege is missing.
    pub fn open(config: &UdpConfig) -> Result<Self> {
        let (socket, local) = bind(config.bind, config.interface.as_deref(), config.checksum)?;
        Self::from_socket(socket, local, config)
    }

    fn from_socket(socket: OwnedFd, local: SocketAddrV4, config: &UdpConfig) -> Result<Self> {
        let raw = match config.corrupt && config.checksum {
            true => Some(sender::open_raw_socket()?),
            false => None,
        };
        // Kernels before 4.18 refuse it.
        let can_send = || sys::set_option(socket.as_fd(), libc::SOL_UDP, sys::UDP_SEGMENT, 0).is_ok();
        let may_send = || config.checksum || matches!(numbers_from_zero(), Ok(true));
        let sends_runs = config.runs.send && can_send() && may_send();
        let ids_unknown = config.runs.receive && !config.checksum;
        let socket = Arc::new(socket);
        Ok(Self {
            local,
            receiver: UdpReceiver::from_socket(
                Arc::clone(&socket),
                local.into(),
                config.receive_buffer,
                config.runs.receive,
                ids_unknown,
            )?,
            sender: UdpSender::new(socket, local, config, raw, sends_runs),
        })
    }

    /// Its receiving address and port; if port 0 was requested, the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddrV4 {
        self.local
    }

    /// How runs are handled: as requested, as far as the kernel can and has not refused them since.
    pub fn run_use(&self) -> RunUse {
        let send = self.sender.sends_runs();
        RunUse { send, receive: self.receiver.takes_runs() }
    }

    /// Receive queue granted by the kernel, in bytes (half of what it counts, as SO_RCVBUF is set).
    pub fn receive_buffer(&self) -> usize {
        self.receiver.receive_buffer()
    }

    /// Bytes of the longest IPv4 packet that can reach `destination`, as far as the kernel knows: the path MTU.
    ///
    /// # Errors
    /// There is no route.
    pub fn path_mtu(&self, destination: SocketAddrV4) -> Result<u32> {
        let refused = LinkError::io_with_context("cannot read the path MTU (IP_MTU)");
        let read = || {
            // Only a connected socket has a path.
            let socket = UdpSocket::bind((*self.local_addr().ip(), 0))?;
            socket.connect(destination)?;
            let mut mtu = [0];
            sys::get_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU, &mut mtu)?;
            Ok(mtu[0])
        };
        read().map_err(refused)
    }

    /// Opens the socket for a source address and port now, so that a port in use is noticed at start.
    pub fn open_source(&mut self, source: SocketAddrV4) -> Result<()> {
        self.sender.open_source(source)
    }

    /// The same link, but sending never waits: datagrams that find a full queue immediately count as not sent.
    pub fn without_waiting(mut self) -> Self {
        self.sender.never_wait();
        self
    }
}

impl AsFd for UdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl Link for UdpLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        self.receiver.recv(batch, timeout)
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        self.sender.send(batch)
    }

    fn link_counters(&self) -> LinkCounters {
        let mut counters = self.receiver.receive_counters();
        counters.add(&self.sender.send_counters());
        counters
    }

    fn corruption_scope(&self) -> Scope {
        self.sender.corruption_scope()
    }
}

/// Binds an unconnected IPv4 socket with DF set, on one interface or any, and returns its address.
fn bind(address: SocketAddr, interface: Option<&str>, checksum: bool) -> Result<(OwnedFd, SocketAddrV4)> {
    let SocketAddr::V4(_) = address else { return Err(LinkError::Ipv6(address)) };
    let (socket, local) = bind_datagram_socket(address, interface)?;
    let SocketAddr::V4(local) = local else { return Err(LinkError::Ipv6(local)) };
    prepare_socket(&socket, checksum)?;
    Ok((socket, local))
}

/// Binds a UDP socket, on one interface or any, and returns its address.
fn bind_datagram_socket(address: SocketAddr, interface: Option<&str>) -> Result<(OwnedFd, SocketAddr)> {
    let socket = open_datagram_socket(address, interface)?;
    rustix::net::bind(&socket, &address).map_err(|error| LinkError::bind(address, error.into()))?;
    let cannot_read = LinkError::io_with_context("cannot read a socket's address");
    let local = rustix::net::getsockname(&socket).and_then(SocketAddr::try_from);
    Ok((socket, local.map_err(|error| cannot_read(error.into()))?))
}

/// Opens a UDP socket of an address's family, on one interface or any, without binding it.
fn open_datagram_socket(address: SocketAddr, interface: Option<&str>) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sys::open_socket(family, libc::SOCK_DGRAM, 0)
        .map_err(LinkError::io_with_context("cannot open a UDP socket"))?;
    if address.is_ipv6() {
        // The unspecified address also receives IPv4, whatever the system's default is.
        sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)
            .map_err(LinkError::io_with_context("cannot take IPv4 at an IPv6 address (IPV6_V6ONLY)"))?;
    }
    if let Some(name) = interface {
        sys::bind_to_device(socket.as_fd(), name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => LinkError::NoInterface(name.into()),
            _ => LinkError::io_with_context(format!("cannot receive datagrams of interface {name} only"))(
                error,
            ),
        })?;
    }
    Ok(socket)
}

/// Sets the options common to all sockets of links.
fn prepare_socket(socket: &OwnedFd, checksum: bool) -> Result<()> {
    sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
        .map_err(LinkError::io_with_context("cannot set DF (IP_MTU_DISCOVER)"))?;
    if !checksum {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
            .map_err(LinkError::io_with_context("cannot leave out the UDP checksum (SO_NO_CHECK)"))?;
    }
    Ok(())
}

/// Requests a receive queue, beyond the system's limit where allowed, and returns what was granted.
pub(crate) fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> Result<usize> {
    // The kernel doubles the requested size to make up for its own overhead.
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted)
        .or_else(|_| sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, wanted))
        .map_err(LinkError::io_with_context("cannot set SO_RCVBUF"))?;
    let mut granted = [0];
    sys::get_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut granted)
        .map_err(LinkError::io_with_context("cannot read SO_RCVBUF"))?;
    Ok(granted[0] as usize / 2)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use dta_proto::wire::datagram;

    use super::*;

    #[test]
    fn runs_that_the_kernel_refuses_leave_one_by_one_and_soon_no_more_are_made() {
        let open = || UdpLink::open(&UdpConfig::for_reports((Ipv4Addr::LOCALHOST, 0).into(), false)).unwrap();
        let (mut link, mut peer) = (open(), open());
        let (from, to) = (link.local_addr(), peer.local_addr());
        let (mut batch, mut received) = (PacketBatch::default(), PacketBatch::default());
        let mut round = |link: &mut UdpLink| {
            while !batch.is_full() {
                batch.push_datagram(from, to, &[batch.len() as u8; 40], 0).unwrap();
            }
            assert_eq!(link.send(&mut batch).unwrap(), 64);
            let mut got = Vec::new();
            while got.len() < 64 && peer.recv(&mut received, Some(Duration::from_secs(5))).unwrap() > 0 {
                got.extend(received.iter().map(|packet| packet[datagram::HEADER_LEN]));
            }
            assert_eq!(got, (0..64).collect::<Vec<u8>>());
        };
        round(&mut link);
        assert!(link.run_use().send);
        // Without UDP checksums, the kernel does not cut runs (EINVAL).
        sys::set_option(link.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        for _ in 0..3 {
            round(&mut link);
        }
        assert!(link.run_use().send, "some may be refused");
        for _ in 0..3 {
            round(&mut link);
        }
        assert_eq!(link.run_use(), RunUse { send: false, receive: true });
        assert_eq!((link.link_counters().sent, link.link_counters().unsent_packets()), (7 * 64, 0));
    }
}
