//! Whole Ethernet frames on an interface, through AF_PACKET. Needs CAP_NET_RAW.
//!
//! The kernel's own IP stack sees the same frames: unless a socket of its own is bound there, it
//! answers UDP for an address of the interface with ICMP port unreachable. Give the interface no
//! address that frames go to.

use std::cell::Cell;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dta_proto::batch::{Batch, ETHERNET_LEN};
use dta_proto::wire::arp::TYPE_ARP;
use dta_proto::wire::ethernet::{self, TYPE_IPV4};
use dta_proto::wire::ipv4;
use libc::sock_filter;

use crate::sys::{self, Frame, FrameRing, Messages, Outgoing};
use crate::udp::{SEND_RETRIES, send_all};
use crate::{Link, LinkCounters, LinkError, Result, Scope};

/// UDP ports that one link listens to at most.
pub const PORTS_MAX: usize = 64;

const CALL_MAX: usize = 256;
/// Bytes of the ring of a link for ARP alone.
const ARP_BUFFER: usize = 1 << 16;
/// How often a link on an interface that went down, and that hears nothing, looks whether the
/// interface is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A network interface of this namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// Its Ethernet address; zeros on an interface that has none.
    pub mac: [u8; 6],
    /// Bytes of the largest IPv4 packet that it carries.
    pub mtu: u32,
    /// Its first IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
}

impl Interface {
    /// Looks up an interface by name.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn lookup(name: &str) -> Result<Self> {
        let facts = sys::interface(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => LinkError::NoInterface(name.into()),
            _ => LinkError::io(format!("cannot look up interface {name}"))(error),
        })?;
        Ok(Self { name: name.into(), index: facts.index, mac: facts.mac, mtu: facts.mtu, ipv4: facts.ipv4 })
    }
}

/// How a raw-frame link is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketConfig {
    /// The interface's name.
    pub interface: String,
    /// UDP destination ports to receive, 64 at most; ARP comes too. With none, nothing is received at all.
    pub ports: Vec<u16>,
    /// Bytes of the ring that the kernel receives into: a frame takes 2,048, or more where the
    /// interface carries longer ones.
    pub receive_buffer: usize,
    /// An Ethernet address to receive under beside the interface's own. The kernel's IP stack drops
    /// frames to it at once, where it would look for a route for those to the interface's. Not
    /// every network lets a host have two.
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
/// The kernel writes received frames into a ring of memory that it shares with this process, so
/// that receiving takes no system call; what finds the ring full is counted as dropped by the
/// kernel.
///
/// Received packets have their Ethernet header in front ([`Batch::frame`]); padding after an IPv4
/// packet is cut off. Of a UDP datagram in fragments, the first is received if it is to one of the
/// ports; the others, which have no ports, are received too, so that whoever has them dropped can
/// count them. Frames with a VLAN tag, and frames that this host sends are not received. Packets
/// without Ethernet header are not sent, and counted as malformed. For two threads, open two links,
/// one without ports.
pub struct PacketLink {
    socket: OwnedFd,
    interface: Interface,
    /// `None` with no ports to receive.
    ring: Option<FrameRing>,
    messages: Messages,
    queue: Vec<u16>,
    /// Since the interface went down, and was last looked for; none when frames come.
    silent_since: Option<Instant>,
    counters: LinkCounters,
    /// What the kernel dropped at the ring, as far as it was asked: its own count starts anew each time.
    dropped: Cell<u64>,
}

impl PacketLink {
    /// Opens the link.
    ///
    /// # Errors
    /// No such interface, no CAP_NET_RAW, or too many ports.
    pub fn open(config: &PacketConfig) -> Result<Self> {
        Self::open_with(config, &filter(&config.ports), !config.ports.is_empty())
    }

    /// Opens a link that receives ARP and nothing else, under the addresses of `config`.
    pub(crate) fn open_for_arp(config: &PacketConfig) -> Result<Self> {
        let config = PacketConfig { receive_buffer: ARP_BUFFER, ports: Vec::new(), ..config.clone() };
        Self::open_with(&config, &arp_filter(), true)
    }

    fn open_with(config: &PacketConfig, filter: &[sock_filter], receives: bool) -> Result<Self> {
        if config.ports.len() > PORTS_MAX {
            return Err(LinkError::TooManyPorts(config.ports.len()));
        }
        let interface = Interface::lookup(&config.interface)?;
        // Protocol 0 receives nothing until the filter is in place and the socket bound.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => LinkError::NeedsNetRaw("raw frames on an interface"),
            _ => LinkError::io("cannot open a packet socket")(error),
        })?;
        let fd = socket.as_fd();
        sys::attach_filter(fd, filter).map_err(LinkError::io("cannot attach a packet filter"))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)
            .map_err(LinkError::io("cannot set PACKET_IGNORE_OUTGOING (Linux 4.20 or newer has it)"))?;
        let ring = match receives {
            false => None,
            true => Some(
                FrameRing::new(fd, interface.mtu as usize, config.receive_buffer)
                    .map_err(LinkError::io("cannot have a ring for received frames (PACKET_RX_RING)"))?,
            ),
        };
        if let Some(mac) = config.mac {
            sys::receive_unicast(fd, interface.index, mac).map_err(LinkError::io(format!(
                "cannot receive under another address on {}",
                interface.name
            )))?;
        }
        sys::bind_packet(fd, interface.index)
            .map_err(LinkError::io(format!("cannot bind to interface {}", config.interface)))?;
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

    /// The interface, as it was when the link was opened.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Bytes of the ring that frames are received into.
    pub fn receive_buffer(&self) -> usize {
        self.ring.as_ref().map_or(0, FrameRing::len)
    }

    /// Looks whether the interface of this link still exists. If it was removed and made again under
    /// the same name, it has another index, and this link receives nothing from it.
    ///
    /// # Errors
    /// [`LinkError::NoInterface`] where it was removed.
    fn check_interface(&self) -> Result<()> {
        match Interface::lookup(&self.interface.name)?.index {
            index if index == self.interface.index => Ok(()),
            _ => Err(LinkError::NoInterface(self.interface.name.clone())),
        }
    }

    /// Adds what has arrived to a batch, as much as it holds, without a system call.
    pub(crate) fn take(&mut self, batch: &mut Batch) {
        if let Self { ring: Some(ring), counters, .. } = self {
            while !batch.is_full() && ring.take(|frame| receive(frame, batch, counters)).is_some() {}
        }
    }

    /// As [`Link::recv`], without waiting.
    pub(crate) fn recv_now(&mut self, batch: &mut Batch) -> Result<usize> {
        batch.clear();
        self.take(batch);
        if !batch.is_empty() {
            self.silent_since = None;
            return Ok(batch.len());
        }
        // The ring says nothing of an interface that went down; the socket does, once. It may come
        // up again, and then frames come again.
        match sys::pending_error(self.socket.as_fd()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                self.silent_since = Some(Instant::now());
                self.check_interface()?;
            }
            Err(error) => {
                return Err(LinkError::io(format!("cannot receive frames on {}", self.interface.name))(
                    error,
                ));
            }
        }
        if self.silent_since.is_some_and(|since| since.elapsed() >= LOOK_AGAIN) {
            self.silent_since = Some(Instant::now());
            self.check_interface()?;
        }
        Ok(0)
    }
}

/// Adds a frame to a batch that is not full, or counts why not.
pub(crate) fn receive(frame: Frame<'_>, batch: &mut Batch, counters: &mut LinkCounters) {
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
    fn recv(&mut self, batch: &mut Batch, timeout: Option<Duration>) -> Result<usize> {
        let received = self.recv_now(batch)?;
        if received > 0 || timeout == Some(Duration::ZERO) {
            return Ok(received);
        }
        crate::wait_readable(&[self.as_fd()], timeout)?;
        self.recv_now(batch)
    }

    fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        let Self { socket, messages, queue, counters, .. } = self;
        let before = counters.sent;
        queue.clear();
        queue
            .extend((0..batch.len()).filter(|index| batch.frame(*index).is_some()).map(|index| index as u16));
        counters.unsent_malformed += (batch.len() - queue.len()) as u64;
        send_all(socket.as_fd(), messages, counters, queue, SEND_RETRIES, |index| {
            let bytes = batch.frame(index).unwrap_or_default();
            (Outgoing { bytes, ..Outgoing::default() }, batch.packet(index).len())
        });
        let sent = (counters.sent - before) as usize;
        batch.clear();
        Ok(sent)
    }

    fn counters(&self) -> LinkCounters {
        self.dropped.set(self.dropped.get() + sys::ring_drops(self.as_fd()));
        LinkCounters { dropped_by_kernel: self.dropped.get(), ..self.counters }
    }

    fn scope(&self) -> Scope {
        Scope::Packet
    }
}

/// Bytes of the packet in a frame, without the padding that Ethernet puts after a short IPv4 packet.
fn packet_len(frame: &[u8]) -> usize {
    let Ok(frame) = ethernet::Packet::new_checked(frame) else { return 0 };
    let packet = frame.payload();
    let total = match ipv4::Header::of(packet) {
        Some(header) if frame.ethertype() == TYPE_IPV4 => usize::from(header.total_length()),
        _ => packet.len(),
    };
    // A total length that cannot be is left for the code above to refuse, with all that came.
    if (ipv4::HEADER_LEN..packet.len()).contains(&total) { total } else { packet.len() }
}

/// As [`filter`], for ARP alone.
fn arp_filter() -> [sock_filter; 4] {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    [
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 12),
        sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ) as u16, jt: 0, jf: 1, k: TYPE_ARP.into() },
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

/// A classic BPF program (see bpf(4) and the kernel's networking/filter.rst) that accepts ARP, UDP
/// over IPv4 to `ports`, and fragments of UDP that do not say where to, without VLAN tag.
fn filter(ports: &[u16]) -> Vec<sock_filter> {
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
    // The kernel takes VLAN tags off before the filter; this ancillary word tells that there was one.
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
        // The offset of a fragment.
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
