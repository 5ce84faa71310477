//! Whole Ethernet frames on an interface, through AF_PACKET. Needs CAP_NET_RAW.
//!
//! The kernel's own IP stack sees the same frames: unless one of its sockets is bound there, it answers UDP
//! to an address of the interface with ICMP port unreachable. So do not give the interface the address that
//! frames are sent to.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dta_proto::batch::{ETHERNET_LEN, PacketBatch};
use dta_proto::wire::arp::TYPE_ARP;
use dta_proto::wire::ethernet::{self, TYPE_IPV4, TYPE_IPV6};
use dta_proto::wire::{ipv4, ipv6, ndp};
use libc::sock_filter;

use crate::link::recv_or_wait;
use crate::sys::{self, Frame, FrameRing, Messages, Outgoing};
use crate::udp::{SEND_RETRIES, send_queue};
use crate::{Link, LinkCounters, LinkError, Result, Scope};

/// Most UDP ports of one link.
pub const PORTS_MAX: usize = 64;

const CALL_MAX: usize = 256;
/// Ring size of a link for ARP and neighbour discovery only.
const RESOLUTION_BUFFER: usize = 1 << 16;
/// How often a silent link checks, after its interface went down, whether the interface still exists.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
    pub fn lookup_by_name(name: &str) -> Result<Self> {
        let facts = sys::interface(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => LinkError::NoInterface(name.into()),
            _ => LinkError::io_with_context(format!("cannot look up interface {name}"))(error),
        })?;
        Ok(Self { name: name.into(), index: facts.index, mac: facts.mac, mtu: facts.mtu, ipv4: facts.ipv4 })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketConfig {
    pub interface: String,
    /// UDP destination ports to receive, 64 at most; ARP is received too. Without any port, nothing is received.
    pub ports: Vec<u16>,
    /// Size of the kernel's receive ring in bytes: a frame takes 2,048, or more if the interface's MTU is
    /// larger.
    pub receive_buffer: usize,
    /// An additional Ethernet address to receive under. The kernel's IP stack drops frames to it at once, whereas it would
    /// try to route those to the interface's own address. Not every network allows a host two addresses.
    pub mac: Option<[u8; 6]>,
    /// Our IPv6 address: if given, UDP over IPv6 to the ports and neighbour discovery are received too.
    pub ipv6_address: Option<Ipv6Addr>,
}

impl PacketConfig {
    pub fn new(interface: impl Into<String>, ports: impl Into<Vec<u16>>) -> Self {
        Self {
            interface: interface.into(),
            ports: ports.into(),
            receive_buffer: 8 << 20,
            mac: None,
            ipv6_address: None,
        }
    }
}

/// Sends and receives whole Ethernet frames on one interface.
///
/// The kernel writes received frames into a ring shared with this process, so receiving takes no system call. Frames that
/// find the ring full count as dropped by the kernel.
///
/// Received packets are preceded by their Ethernet header ([`PacketBatch::ethernet_frame`]); padding after an IPv4 packet
/// is removed. The first fragment of a UDP datagram is received if it is for one of the ports; later fragments have no
/// ports and are always received, so that the caller can count them. A priority tag (VLAN 0) is removed. Frames in a VLAN,
/// RoCEv1 frames and, without an [IPv6 address](PacketConfig::ipv6_address), frames over IPv6 are counted but not received;
/// frames sent by this host are not received. Packets without an Ethernet header are not sent, and count as malformed. For
/// two threads, open two links, one of them without ports.
pub struct PacketLink {
    socket: OwnedFd,
    interface: NetworkInterface,
    /// `None` without ports.
    ring: Option<FrameRing>,
    messages: Messages,
    queue: Vec<u16>,
    /// When the interface was found down or last looked for; `None` while frames arrive.
    silent_since: Option<Instant>,
    counters: LinkCounters,
    /// Drops at the kernel's ring up to the last query, after which the kernel counts from 0 again.
    dropped: Cell<u64>,
}

impl PacketLink {
    /// Opens the link.
    ///
    /// # Errors
    /// No such interface, no CAP_NET_RAW, or too many ports.
    pub fn open(config: &PacketConfig) -> Result<Self> {
        let filter = udp_ports_filter(&config.ports, config.ipv6_address.is_some());
        Self::open_with(config, &filter, !config.ports.is_empty())
    }

    /// Opens a link that receives only ARP and, with an IPv6 address, neighbour discovery, under the addresses of `config`.
    pub(crate) fn open_for_resolution(config: &PacketConfig) -> Result<Self> {
        let config = PacketConfig { receive_buffer: RESOLUTION_BUFFER, ports: Vec::new(), ..config.clone() };
        Self::open_with(&config, &resolution_filter(config.ipv6_address.is_some()), true)
    }

    fn open_with(config: &PacketConfig, filter: &[sock_filter], receives: bool) -> Result<Self> {
        if config.ports.len() > PORTS_MAX {
            return Err(LinkError::TooManyPorts(config.ports.len()));
        }
        let interface = NetworkInterface::lookup_by_name(&config.interface)?;
        // With protocol 0, nothing is received until the filter is in place and the socket is bound.
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
                LinkError::io_with_context("cannot set up a ring for received frames (PACKET_RX_RING)"),
            )?),
        };
        let group = config.ipv6_address.map(|ip| ndp::multicast_mac(ndp::solicited_node_group(ip)).0);
        for mac in config.mac.into_iter().chain(group) {
            sys::receive_address(fd, interface.index, mac).map_err(LinkError::io_with_context(format!(
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

    /// The interface as it was when the link was opened.
    pub fn interface(&self) -> &NetworkInterface {
        &self.interface
    }

    /// Size of the receive ring in bytes.
    pub fn receive_buffer(&self) -> usize {
        self.ring.as_ref().map_or(0, FrameRing::len)
    }

    /// Checks whether the interface of this link still exists. If it was removed and created again under the same name, it
    /// has another index, and this link receives nothing from it.
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
        // The ring does not show that an interface went down; the socket does, once. The interface may come up again, and
        // then frames arrive again.
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
    if frame.truncated && frame.bytes.len() == ETHERNET_LEN {
        *match u16::from_be_bytes([frame.bytes[12], frame.bytes[13]]) {
            TYPE_ROCE_V1 => &mut counters.ignored_roce_v1,
            TYPE_IPV6 => &mut counters.ignored_ipv6,
            _ => &mut counters.ignored_vlan,
        } += 1;
        return;
    }
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
        recv_or_wait(self, batch, timeout, Self::recv_nonblocking)
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
    // A frame with an impossible total length is kept whole, for the code above to reject.
    if (ipv4::HEADER_LEN..packet.len()).contains(&total) { total } else { packet.len() }
}

/// As [`udp_ports_filter`], for ARP and, with `ipv6`, neighbour discovery only.
fn resolution_filter(ipv6: bool) -> [sock_filter; 10] {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let equal = |k: u32, jt, jf| sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ) as u16, jt, jf, k };
    let load = |size: u32, at: u32| statement(libc::BPF_LD | size | libc::BPF_ABS, at);
    // Without IPv6, compares with ARP's EtherType, which cannot match any more.
    let type_of_discovery = if ipv6 { TYPE_IPV6 } else { TYPE_ARP };
    [
        load(libc::BPF_H, 12),
        equal(TYPE_ARP.into(), 6, 0),
        equal(type_of_discovery.into(), 0, 6),
        load(libc::BPF_B, 20),
        equal(ipv6::NEXT_ICMPV6.into(), 0, 4),
        load(libc::BPF_B, 54),
        equal(ndp::TYPE_SOLICITATION.into(), 1, 0),
        equal(ndp::TYPE_ADVERTISEMENT.into(), 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        statement(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

/// Ethertype of RoCEv1.
const TYPE_ROCE_V1: u16 = 0x8915;
/// EtherType of a VLAN tag inside another.
const TYPE_VLAN: u32 = 0x8100;
/// The part of a VLAN tag that is its number; 0 makes it a priority tag.
const VLAN_NUMBER: u32 = 0xfff;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Next,
    Reject,
    /// Receives only the Ethernet header, to count the frame.
    Ignore,
    Accept,
    /// The checks for IPv4, for frames with a VLAN number, for frames with one more tag, and for IPv6.
    Ipv4,
    Vlan,
    Stacked,
    Ipv6,
    /// The checks of the port, in the accumulator, of a frame to accept and of a frame to ignore.
    Ports,
    IgnoredPorts,
    /// The checks for ICMP over IPv6, and for what is not IPv6.
    Icmpv6,
    OtherType,
}

/// A classic BPF program (see bpf(4) and the kernel's networking/filter.rst) that accepts ARP, UDP over IPv4 to `ports`,
/// and UDP fragments without ports, all without a VLAN tag or with a priority tag (VLAN 0), which the kernel has removed.
/// With `ipv6` it also accepts UDP over IPv6 and neighbour discovery. If only a VLAN or IPv6 stands in the way, and for
/// RoCEv1, it accepts the Ethernet header alone.
fn udp_ports_filter(ports: &[u16], ipv6: bool) -> Vec<sock_filter> {
    use Target::*;
    enum Step {
        Do(u32, u32),
        Jump(u32, u32, Target, Target),
        Label(Target),
    }
    use Step::*;
    if ports.is_empty() {
        return vec![sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    }
    let load = |size: u32, at: u32| Do(libc::BPF_LD | size | libc::BPF_ABS, at);
    let equal = |k: u32, yes, no| Jump(libc::BPF_JEQ, k, yes, no);
    let (byte, half) = (libc::BPF_B, libc::BPF_H);
    // The kernel removes a VLAN tag before the filter runs; these ancillary words say whether there was one, and which.
    let ancillary = |word: libc::c_int| (libc::SKF_AD_OFF + word) as u32;
    let udp = libc::IPPROTO_UDP as u32;
    // Loads the port of a UDP datagram over IPv4.
    let port_of_ipv4 = || {
        [
            Do(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 14),
            Do(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 16),
        ]
    };
    let mut steps = vec![
        load(byte, ancillary(libc::SKF_AD_VLAN_TAG_PRESENT)),
        equal(0, Ipv4, Next),
        load(half, ancillary(libc::SKF_AD_VLAN_TAG)),
        Jump(libc::BPF_JSET, VLAN_NUMBER, Vlan, Ipv4),
        Label(Ipv4),
        load(half, 12),
        equal(TYPE_ARP.into(), Accept, Next),
        equal(TYPE_ROCE_V1.into(), Ignore, Next),
        equal(TYPE_VLAN, Stacked, Next),
    ];
    match ipv6 {
        false => steps.push(equal(TYPE_IPV6.into(), Ipv6, Next)),
        true => steps.extend([
            equal(TYPE_IPV6.into(), Next, OtherType),
            load(byte, 20),
            equal(udp, Next, Icmpv6),
            load(half, 56),
            equal(0, Ports, Ports),
            Label(Icmpv6),
            equal(ipv6::NEXT_ICMPV6.into(), Next, Reject),
            load(byte, 54),
            equal(ndp::TYPE_SOLICITATION.into(), Accept, Next),
            equal(ndp::TYPE_ADVERTISEMENT.into(), Accept, Reject),
            Label(OtherType),
        ]),
    }
    steps.extend([
        equal(TYPE_IPV4.into(), Next, Reject),
        load(byte, 23),
        equal(udp, Next, Reject),
        // The fragment offset.
        load(half, 20),
        Jump(libc::BPF_JSET, 0x1fff, Accept, Next),
    ]);
    steps.extend(port_of_ipv4());
    steps.push(Label(Ports));
    steps.extend(ports.iter().map(|port| equal((*port).into(), Accept, Next)));
    steps.push(equal(0, Reject, Reject));
    steps.extend([
        Label(Vlan),
        load(half, 12),
        equal(TYPE_VLAN, Stacked, Next),
        equal(TYPE_ROCE_V1.into(), Ignore, Next),
        equal(TYPE_IPV6.into(), Ipv6, Next),
        equal(TYPE_IPV4.into(), Next, Reject),
        load(byte, 23),
        equal(udp, Next, Reject),
        load(half, 20),
        Jump(libc::BPF_JSET, 0x1fff, Reject, Next),
    ]);
    steps.extend(port_of_ipv4());
    steps.extend([
        equal(0, IgnoredPorts, IgnoredPorts),
        // One more tag, which is still in the frame.
        Label(Stacked),
        load(half, 16),
        equal(TYPE_IPV4.into(), Next, Reject),
        load(byte, 27),
        equal(udp, Next, Reject),
        load(half, 24),
        Jump(libc::BPF_JSET, 0x1fff, Reject, Next),
        Do(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 18),
        Do(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 20),
        equal(0, IgnoredPorts, IgnoredPorts),
        Label(Ipv6),
        load(byte, 20),
        equal(udp, Next, Reject),
        load(half, 56),
        Label(IgnoredPorts),
    ]);
    steps.extend(ports.iter().map(|port| equal((*port).into(), Ignore, Next)));
    let returns = |k: u32| Do(libc::BPF_RET | libc::BPF_K, k);
    steps.extend([
        Label(Reject),
        returns(0),
        Label(Ignore),
        returns(ETHERNET_LEN as u32),
        Label(Accept),
        returns(u32::MAX),
    ]);
    // Jumps are relative to the next instruction, and labels are not instructions.
    let mut labels = Vec::new();
    let mut at = 0;
    for step in &steps {
        match step {
            Label(target) => labels.push((*target, at)),
            _ => at += 1,
        }
    }
    let place = |target: Target, next: usize| match target {
        Next => 0,
        _ => (labels.iter().find(|(label, _)| *label == target).map_or(next, |(_, at)| *at) - next) as u8,
    };
    let mut program = Vec::with_capacity(at);
    for step in steps {
        let next = program.len() + 1;
        program.push(match step {
            Label(_) => continue,
            Do(code, k) => sock_filter { code: code as u16, jt: 0, jf: 0, k },
            Jump(code, k, yes, no) => {
                let (jt, jf) = (place(yes, next), place(no, next));
                sock_filter { code: (libc::BPF_JMP | code | libc::BPF_K) as u16, jt, jf, k }
            }
        });
    }
    program
}
