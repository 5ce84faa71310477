//! Whole Ethernet frames on an interface, through AF_PACKET. Needs CAP_NET_RAW.
//!
//! The kernel's own IP stack sees the same frames: unless a socket of its own is bound there, it answers UDP for
//! an address of the interface with ICMP port unreachable. Give the interface no address that frames go to.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::sock_filter;

use crate::batch::{ETHERNET_LEN, HEADROOM};
use crate::sys::{self, Messages, Outgoing};
use crate::udp::{SEND_RETRIES, send_all, set_receive_buffer};
use crate::{Batch, Counters, Link, LinkError, Result, Scope};

/// UDP ports that one link listens to at most.
pub const PORTS_MAX: usize = 64;

const CALL_MAX: usize = 256;
/// How often a link on an interface that went down, and that hears nothing, looks whether the interface is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;

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
    /// Bytes of receive queue to ask the kernel for.
    pub receive_buffer: usize,
}

impl PacketConfig {
    /// Listens to `ports` on `interface`.
    pub fn new(interface: impl Into<String>, ports: impl Into<Vec<u16>>) -> Self {
        Self { interface: interface.into(), ports: ports.into(), receive_buffer: 8 << 20 }
    }
}

/// Sends and receives whole Ethernet frames on one interface.
///
/// Received packets have their Ethernet header in front ([`Batch::frame`]); padding after an IPv4 packet is cut
/// off. Frames with a VLAN tag, IP fragments, and frames that this host sends are not received. Packets without
/// Ethernet header are not sent, and counted as malformed. For two threads, open two links, one without ports.
pub struct PacketLink {
    socket: OwnedFd,
    interface: Interface,
    receive_buffer: usize,
    messages: Messages,
    queue: Vec<u16>,
    /// Since the interface went down, and was last looked for; none when frames come.
    silent_since: Option<Instant>,
    counters: Counters,
}

impl PacketLink {
    /// Opens the link.
    ///
    /// # Errors
    /// No such interface, no CAP_NET_RAW, or too many ports.
    pub fn open(config: &PacketConfig) -> Result<Self> {
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
        sys::attach_filter(fd, &filter(&config.ports))
            .map_err(LinkError::io("cannot attach a packet filter"))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)
            .map_err(LinkError::io("cannot set PACKET_IGNORE_OUTGOING (Linux 4.20 or newer has it)"))?;
        sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)
            .map_err(LinkError::io("cannot set PACKET_AUXDATA"))?;
        let receive_buffer = set_receive_buffer(fd, config.receive_buffer)?;
        sys::bind_packet(fd, interface.index)
            .map_err(LinkError::io(format!("cannot bind to interface {}", config.interface)))?;
        Ok(Self {
            socket,
            interface,
            receive_buffer,
            messages: Messages::new(CALL_MAX),
            queue: Vec::new(),
            silent_since: None,
            counters: Counters::default(),
        })
    }

    /// The interface, as it was when the link was opened.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Bytes of receive queue that the kernel granted.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// An interface that is gone is another one when it comes back: this link will hear nothing more.
    fn is_still_there(&self) -> Result<()> {
        match Interface::lookup(&self.interface.name)?.index {
            index if index == self.interface.index => Ok(()),
            _ => Err(LinkError::NoInterface(self.interface.name.clone())),
        }
    }

    fn recv_now(&mut self, batch: &mut Batch) -> Result<usize> {
        const FRAME: usize = HEADROOM - ETHERNET_LEN;
        batch.clear();
        let count = match self.messages.recv(self.socket.as_fd(), batch.buffers(FRAME)) {
            Ok(count) => count,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => 0,
                // Told once when the interface goes down. It may come up again, and then frames come again.
                Some(libc::ENETDOWN) => {
                    self.silent_since = Some(Instant::now());
                    self.is_still_there()?;
                    0
                }
                _ => {
                    return Err(LinkError::io(format!("cannot receive frames on {}", self.interface.name))(
                        error,
                    ));
                }
            },
        };
        if let Some(since) = self.silent_since {
            if count > 0 {
                self.silent_since = None;
            } else if since.elapsed() >= LOOK_AGAIN {
                self.silent_since = Some(Instant::now());
                self.is_still_there()?;
            }
        }
        for index in 0..count {
            let incoming = self.messages.incoming(index);
            if incoming.truncated {
                self.counters.dropped_too_long += 1;
                continue;
            }
            let len = packet_len(&batch.slot(index, FRAME)[..incoming.len]);
            batch.adopt(index, len);
            let index = batch.len() - 1;
            batch.set_has_ethernet(index);
            if incoming.checksum_pending {
                batch.set_checksum_pending(index);
            }
            self.counters.count_received(len);
        }
        Ok(batch.len())
    }
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
            (Outgoing { bytes, to: None, from: None }, batch.packet(index).len())
        });
        let sent = (counters.sent - before) as usize;
        batch.clear();
        Ok(sent)
    }

    fn counters(&self) -> Counters {
        Counters { dropped_by_kernel: sys::drops(self.as_fd()), ..self.counters }
    }

    fn scope(&self) -> Scope {
        Scope::Packet
    }
}

/// Bytes of the packet in a frame, without the padding that Ethernet puts after a short IPv4 packet.
fn packet_len(frame: &[u8]) -> usize {
    let Some((ethernet, packet)) = frame.split_at_checked(ETHERNET_LEN) else { return 0 };
    let total = match packet {
        [_, _, high, low, ..] if ethernet[12..14] == ETHERTYPE_IPV4.to_be_bytes() => {
            usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => packet.len(),
    };
    // A total length that cannot be is left for the code above to refuse, with all that came.
    if (20..packet.len()).contains(&total) { total } else { packet.len() }
}

/// A classic BPF program (see bpf(4) and the kernel's networking/filter.rst) that accepts ARP and unfragmented
/// UDP over IPv4 to `ports`, without VLAN tag.
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
        jump(libc::BPF_JEQ, ETHERTYPE_ARP.into(), 8 + count, 0),
        jump(libc::BPF_JEQ, ETHERTYPE_IPV4.into(), 0, 6 + count),
        statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 23),
        jump(libc::BPF_JEQ, libc::IPPROTO_UDP as u32, 0, 4 + count),
        statement(load_half, 20),
        jump(libc::BPF_JSET, 0x3fff, 2 + count, 0),
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
