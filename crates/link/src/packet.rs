//! Whole Ethernet frames on an interface, through AF_PACKET. Needs CAP_NET_RAW.
//!
//! The kernel's own IP stack sees the same frames: unless one of its sockets is bound there, it answers UDP
//! to an address of the interface with ICMP port unreachable. So do not give the interface the address that
//! frames are sent to.

use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dta_proto::batch::{ETHERNET_LEN, PacketBatch};
use dta_proto::wire::arp::TYPE_ARP;
use dta_proto::wire::ethernet::{self, TYPE_IPV4};
use dta_proto::wire::ipv4;
use libc::sock_filter;

use crate::sys::{self, Frame, FrameRing, Messages, Outgoing};
use crate::udp::{SEND_RETRIES, send_queue};
use crate::{Link, LinkCounters, LinkError, Result, Scope};

/// Most UDP ports of one link.
pub const PORTS_MAX: usize = 64;

const CALL_MAX: usize = 256;
/// Ring size of an ARP-only link.
const ARP_BUFFER: usize = 1 << 16;
/// How often a silent link on an interface that went down checks whether the interface still exists.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A network interface of this namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInterface {
    pub name: String,
    pub index: u32,
    /// Its Ethernet address; zeros if it has none.
    pub mac: [u8; 6],
    /// Its MTU: the longest IPv4 packet in bytes.
    pub mtu: u32,
    /// Its first IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
}

impl NetworkInterface {
    /// Looks up an interface by name.
    ///
    /// # Errors
    /// There is no interface with this name.
    pub fn lookup_by_name(name: &str) -> Result<Self> {
        let facts = sys::interface(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => LinkError::NoInterface(name.into()),
            _ => LinkError::io_with_context(format!("cannot look up interface {name}"))(error),
        })?;
        Ok(Self { name: name.into(), index: facts.index, mac: facts.mac, mtu: facts.mtu, ipv4: facts.ipv4 })
    }
}

/// How a raw-frame link is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketConfig {
    pub interface: String,
    /// UDP destination ports to receive, 64 at most; ARP comes too. Without any, nothing is received.
    pub ports: Vec<u16>,
    /// Size of the kernel's receive ring in bytes: a frame takes 2,048, or more if the interface's MTU is
    /// larger.
    pub receive_buffer: usize,
    /// An additional Ethernet address to receive under. The kernel's IP stack drops frames to it at once,
    /// whereas it would try to route those to the interface's own. Not every network allows a host two
    /// addresses.
    pub mac: Option<[u8; 6]>,
}

impl PacketConfig {
    /// Listens to `ports` on `interface`.
    pub fn new(interface: impl Into<String>, ports: impl Into<Vec<u16>>) -> Self {
        Self { interface: interface.into(), ports: ports.into(), receive_buffer: 8 << 20, mac: None }
    }
}

/// Sends and receives whole Ethernet frames on one interface.
///
/// The kernel writes received frames into a ring shared with this process, so receiving takes no system call;
/// frames that find the ring full count as dropped by the
/// kernel.
///
/// Received packets are preceded by their Ethernet header ([`Batch::build_arp_frame`]); padding after an IPv4 packet is
/// removed. Of a fragmented UDP datagram, the first fragment is received if it is to one of the ports; the
/// others have no ports and are always received, so that the caller can count them. Frames with a VLAN tag
/// and frames sent by this host are not received. Packets without Ethernet header are not sent, and count as
/// malformed. For two threads, open two links, one without ports.
pub struct PacketLink {
    socket: OwnedFd,
    interface: NetworkInterface,
    /// `None` without ports.
    ring: Option<FrameRing>,
    messages: Messages,
    queue: Vec<u16>,
    /// Time since the interface went down and was last looked for; none while frames arrive.
    silent_since: Option<Instant>,
    counters: LinkCounters,
    /// Drops at the kernel's ring up to the last query: its own counter restarts each time.
    dropped: Cell<u64>,
}

impl PacketLink {
    /// Opens the link.
    ///
    /// # Errors
    /// No such interface, no CAP_NET_RAW, or too many ports.
    pub fn open(config: &PacketConfig) -> Result<Self> {
        Self::open_with(config, &udp_ports_filter(&config.ports), !config.ports.is_empty())
    }

    /// Opens a link that receives only ARP, under the addresses of `config`.
    pub(crate) fn open_for_arp(config: &PacketConfig) -> Result<Self> {
        let config = PacketConfig { receive_buffer: ARP_BUFFER, ports: Vec::new(), ..config.clone() };
        Self::open_with(&config, &arp_filter(), true)
    }

    fn open_with(config: &PacketConfig, filter: &[sock_filter], receives: bool) -> Result<Self> {
        if config.ports.len() > PORTS_MAX {
            return Err(LinkError::TooManyPorts(config.ports.len()));
        }
        let interface = NetworkInterface::lookup_by_name(&config.interface)?;
        // Protocol 0 receives nothing until the filter is in place and the socket bound.
        let socket =
            sys::open_socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => LinkError::NeedsNetRaw("raw frames on an interface"),
                _ => LinkError::io_with_context("cannot open a packet socket")(error),
            })?;
        let fd = socket.as_fd();
        sys::attach_filter(fd, filter)
            .map_err(LinkError::io_with_context("cannot attach a packet filter"))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1).map_err(
            LinkError::io_with_context("cannot set PACKET_IGNORE_OUTGOING (Linux 4.20 or newer has it)"),
        )?;
        let ring = match receives {
            false => None,
            true => Some(FrameRing::new(fd, interface.mtu as usize, config.receive_buffer).map_err(
                LinkError::io_with_context("cannot have a ring for received frames (PACKET_RX_RING)"),
            )?),
        };
        if let Some(mac) = config.mac {
            sys::receive_unicast(fd, interface.index, mac).map_err(LinkError::io_with_context(format!(
                "cannot receive under another address on {}",
                interface.name
            )))?;
        }
        sys::bind_packet(fd, interface.index)
            .map_err(LinkError::io_with_context(format!("cannot bind to interface {}", config.interface)))?;
        Ok(Self {
            socket,
            interface,
            ring,
            messages: Messages::new(CALL_MAX),
            queue: Vec::new(),
            silent_since: None,
            counters: LinkCounters::default(),
            dropped: Cell::new(0),
        })
    }

    /// The interface, as of when the link was opened.
    pub fn interface(&self) -> &NetworkInterface {
        &self.interface
    }

    /// Size of the receive ring in bytes.
    pub fn receive_buffer(&self) -> usize {
        self.ring.as_ref().map_or(0, FrameRing::len)
    }

    /// Checks whether the interface of this link still exists. If it was removed and created again under the
    /// same name, it has another index, and this link receives nothing from it.
    ///
    /// # Errors
    /// [`LinkError::NoInterface`] if it was removed.
    fn check_interface(&self) -> Result<()> {
        match NetworkInterface::lookup_by_name(&self.interface.name)?.index {
            index if index == self.interface.index => Ok(()),
            _ => Err(LinkError::NoInterface(self.interface.name.clone())),
        }
    }

    /// Adds what has arrived to a batch, up to its capacity, without a system call.
    pub(crate) fn take(&mut self, batch: &mut PacketBatch) {
        if let Self { ring: Some(ring), counters, .. } = self {
            while !batch.is_full() && ring.take(|frame| push_received_frame(frame, batch, counters)).is_some()
            {
            }
        }
    }

    /// As [`Link::recv`], without waiting.
    pub(crate) fn recv_nonblocking(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        batch.clear();
        self.take(batch);
        if !batch.is_empty() {
            self.silent_since = None;
            return Ok(batch.len());
        }
        // The ring does not tell that an interface went down; the socket does, once. It may come up again,
        // and then frames arrive again.
        match sys::pending_error(self.socket.as_fd()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                self.silent_since = Some(Instant::now());
                self.check_interface()?;
            }
            Err(error) => {
                return Err(LinkError::io_with_context(format!(
                    "cannot receive frames on {}",
                    self.interface.name
                ))(error));
            }
        }
        if self.silent_since.is_some_and(|since| since.elapsed() >= LOOK_AGAIN) {
            self.silent_since = Some(Instant::now());
            self.check_interface()?;
        }
        Ok(0)
    }
}

/// Adds a frame to a batch that is not full, or counts why it cannot.
pub(crate) fn push_received_frame(frame: Frame<'_>, batch: &mut PacketBatch, counters: &mut LinkCounters) {
    let len = packet_len(frame.bytes);
    let end = (ETHERNET_LEN + len).min(frame.bytes.len());
    if frame.truncated || batch.push_frame(&frame.bytes[..end], 0).is_err() {
        counters.dropped_too_long += 1;
        return;
    }
    if frame.checksum_pending {
        batch.set_checksum_pending(batch.len() - 1);
    }
    counters.count_received(len);
}

impl AsFd for PacketLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link for PacketLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        let received = self.recv_nonblocking(batch)?;
        if received > 0 || timeout == Some(Duration::ZERO) {
            return Ok(received);
        }
        crate::wait_readable(&[self.as_fd()], timeout)?;
        self.recv_nonblocking(batch)
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        let Self { socket, messages, queue, counters, .. } = self;
        let before = counters.sent;
        queue.clear();
        queue.extend(
            (0..batch.len()).filter(|index| batch.ethernet_frame(*index).is_some()).map(|index| index as u16),
        );
        counters.unsent_malformed += (batch.len() - queue.len()) as u64;
        send_queue(socket.as_fd(), messages, counters, queue, SEND_RETRIES, |index| {
            let bytes = batch.ethernet_frame(index).unwrap_or_default();
            (Outgoing { bytes, ..Outgoing::default() }, batch.packet(index).len())
        });
        let sent = (counters.sent - before) as usize;
        batch.clear();
        Ok(sent)
    }

    fn link_counters(&self) -> LinkCounters {
        self.dropped.set(self.dropped.get() + sys::ring_drops(self.as_fd()));
        LinkCounters { dropped_by_kernel: self.dropped.get(), ..self.counters }
    }

    fn corruption_scope(&self) -> Scope {
        Scope::Packet
    }
}

/// Length of the packet in a frame, without Ethernet padding after a short IPv4 packet.
fn packet_len(frame: &[u8]) -> usize {
    let Ok(frame) = ethernet::EthernetFrame::new_checked(frame) else { return 0 };
    let packet = frame.payload();
    let total = match ipv4::Ipv4Header::from_first_bytes(packet) {
        Some(header) if frame.ethertype() == TYPE_IPV4 => usize::from(header.total_length()),
        _ => packet.len(),
    };
    // An impossible total length is left for the code above to reject, with everything received.
    if (ipv4::HEADER_LEN..packet.len()).contains(&total) { total } else { packet.len() }
}

/// As [`udp_ports_filter`], for ARP only.
fn arp_filter() -> [sock_filter; 4] {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    [
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 12),
        sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ) as u16, jt: 0, jf: 1, k: TYPE_ARP.into() },
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

/// A classic BPF program (see bpf(4) and the kernel's networking/filter.rst) that accepts ARP, UDP over IPv4
/// to `ports`, and UDP fragments without ports, all without VLAN tag.
fn udp_ports_filter(ports: &[u16]) -> Vec<sock_filter> {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |code: u32, k: u32, jt: usize, jf: usize| sock_filter {
        code: (libc::BPF_JMP | code) as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    let load_half = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    let reject = statement(libc::BPF_RET | libc::BPF_K, 0);
    if ports.is_empty() {
        return vec![reject];
    }
    let count = ports.len();
    // The kernel removes VLAN tags before the filter runs; this ancillary word says that there was one.
    let vlan_present = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
    // Jumps are relative to the next instruction; `reject` is at 11 + count, `accept` one after it.
    let mut program = vec![
        statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, vlan_present),
        jump(libc::BPF_JEQ, 0, 0, 9 + count),
        statement(load_half, 12),
        jump(libc::BPF_JEQ, TYPE_ARP.into(), 8 + count, 0),
        jump(libc::BPF_JEQ, TYPE_IPV4.into(), 0, 6 + count),
        statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 23),
        jump(libc::BPF_JEQ, libc::IPPROTO_UDP as u32, 0, 4 + count),
        // A fragment's offset.
        statement(load_half, 20),
        jump(libc::BPF_JSET, 0x1fff, 3 + count, 0),
        statement(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 14),
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 16),
    ];
    for (at, port) in ports.iter().enumerate() {
        program.push(jump(libc::BPF_JEQ, (*port).into(), count - at, 0));
    }
    program.push(reject);
    program.push(statement(libc::BPF_RET | libc::BPF_K, u32::MAX));
    program
}
