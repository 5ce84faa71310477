//! Whole Ethernet frames on an interface, through AF_XDP. Needs CAP_NET_RAW, and for receiving also CAP_BPF
//! and CAP_NET_ADMIN.
//!
//! A small program at the interface takes frames to our UDP ports before the kernel's network stack sees them, and
//! leaves all others to the kernel. So, unlike with [`crate::packet`], the kernel does not see our frames and does
//! not answer them. ARP and neighbour discovery go to the kernel and, through a packet socket, also to us.
//!
//! The program runs in the driver (native) if possible, else after it (generic). It stays attached as long as the
//! link is open: the kernel detaches it when the link's file descriptor is closed, however the process ends.
//!
//! A queue of an interface can have only one AF_XDP socket, so an interface can have only one receiving link.
//!
//! An interface that strips VLAN tags itself hides them from the program: frames of a VLAN then look
//! untagged. If there are such frames, disable the stripping (`ethtool -K NAME rxvlan off`).

mod events;
pub(crate) mod index;
mod intake;
#[cfg(feature = "xdp")]
mod program;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dta_proto::batch::{ETHERNET_LEN, PacketBatch};
use rustix::event::epoll;

use crate::link::recv_or_wait;
use crate::packet::{self, NetworkInterface, PORTS_MAX, PacketConfig, PacketLink};
use crate::sys::{self, Frame, HEADROOM, UmemLayout, XdpOpenStep, XdpSendOutcome, XdpSocket};
use crate::udp::SEND_RETRIES;
use crate::{Link, LinkCounters, LinkError, Result, Scope};
pub use events::{EventLimits, EventTables, EventWords, ReportForm, SourceSequence, SourceSequences};
pub(crate) use intake::{XdpIntake, XdpReceiver};
pub use sys::SharedWords;

/// Most frames waiting to be sent.
const SEND: u32 = 1024;
const QUEUES_MAX: u32 = 64;
/// How long an interface may be busy before that is an error. The kernel detaches the program of a closed link and
/// releases its queues a little later, for instance when a process forked meanwhile closes its copy. On a busy
/// machine, a second was too short.
const LEAVING: Duration = Duration::from_secs(5);
/// Size of a chunk: one of these, depending on the frames' length.
const CHUNKS: [usize; 2] = [2048, 4096];

/// Where the program that takes frames off an interface runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the interface's driver.
    Native,
    /// After the driver, which need not support it.
    Generic,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpConfig {
    pub interface: String,
    /// UDP destination ports to receive, 64 at most; ARP is received too. Without any port, nothing is received and
    /// no program is loaded.
    pub ports: Vec<u16>,
    /// Our IPv4 address: fragments to it without ports are received too, so that the caller can count them.
    pub address: Option<Ipv4Addr>,
    /// Our IPv6 address: if given, UDP over IPv6 to the ports and neighbour discovery are received too.
    pub ipv6_address: Option<Ipv6Addr>,
    /// Size of the receive memory over all queues: a frame takes 2,048 bytes, or 4,096 if the interface's MTU
    /// is larger. Rounded to a power of two of frames.
    pub receive_buffer: usize,
    /// An additional Ethernet address to receive under.
    pub mac: Option<[u8; 6]>,
    /// Where the program must run; `None`: in the driver, or after it if that is not possible.
    pub mode: Option<Mode>,
}

impl XdpConfig {
    pub fn new(interface: impl Into<String>, ports: impl Into<Vec<u16>>) -> Self {
        Self {
            interface: interface.into(),
            ports: ports.into(),
            address: None,
            ipv6_address: None,
            receive_buffer: 8 << 20,
            mac: None,
            mode: None,
        }
    }
}

/// Sends and receives whole Ethernet frames on one interface, bypassing the kernel's network stack.
///
/// Frames lie in memory that this process shares with the kernel; each is copied once, into or out of a
/// [`PacketBatch`]. Received packets are preceded by their Ethernet header ([`PacketBatch::ethernet_frame`]); padding
/// after an IPv4 packet is removed. Packets without an Ethernet header are not sent, and count as malformed.
pub struct XdpLink {
    // First, so that no more frames arrive when the sockets are closed.
    #[cfg(feature = "xdp")]
    _program: Option<program::Program>,
    interface: NetworkInterface,
    mode: Option<Mode>,
    /// One socket per receive queue of the interface. Everything is sent through the first.
    queues: Vec<XdpSocket>,
    /// The queue to read first next time.
    next: usize,
    /// `None` if nothing is received.
    resolution: Option<PacketLink>,
    ready: Watch,
    /// Which packets of the current batch are being sent.
    line: Vec<u16>,
    counters: LinkCounters,
}

impl XdpLink {
    /// Opens the link.
    ///
    /// # Errors
    /// No such interface, more than 64 ports, or an MTU above 3,826 bytes; missing privileges; an XDP program on the
    /// interface, or an AF_XDP socket on a queue; no support in kernel or driver. Each error says what to do.
    pub fn open(config: &XdpConfig) -> Result<Self> {
        retry_while_busy(|| Self::open_without_retry(config))
    }

    fn open_without_retry(config: &XdpConfig) -> Result<Self> {
        if config.ports.len() > PORTS_MAX {
            return Err(LinkError::TooManyPorts(config.ports.len()));
        }
        let interface = NetworkInterface::lookup_by_name(&config.interface)?;
        let receives = !config.ports.is_empty();
        let count = match receives {
            false => 1,
            true => count_queues(&interface)?.min(QUEUES_MAX),
        };
        let shape = umem_layout(&interface, config.receive_buffer, receives, count)?;
        let resolution = match receives {
            false => None,
            true => Some(PacketLink::open_for_resolution(&PacketConfig {
                mac: config.mac,
                ipv6_address: config.ipv6_address,
                ..PacketConfig::new(&*interface.name, [])
            })?),
        };
        #[cfg(feature = "xdp")]
        let (mut program, mode) = match receives {
            false => (None, None),
            true => {
                let (program, mode) = program::Program::load(&interface, config, count)?;
                (Some(program), Some(mode))
            }
        };
        #[cfg(not(feature = "xdp"))]
        let mode = match receives {
            false => None,
            true => {
                return Err(LinkError::NoXdp {
                    interface: interface.name,
                    reason: "this program was built without the feature `xdp` of dta-link".into(),
                });
            }
        };
        let mut queues = Vec::new();
        let ready = Watch::new()?;
        for queue in 0..count {
            let socket = XdpSocket::open(interface.index, queue, shape, mode == Some(Mode::Generic), true)
                .map_err(|(step, error)| explain_refusal(&interface, queue, shape, step, error))?;
            #[cfg(feature = "xdp")]
            if let Some(program) = &mut program {
                program.add(queue, socket.as_fd())?;
                ready.add(socket.as_fd())?;
            }
            queues.push(socket);
        }
        if let Some(resolution) = &resolution {
            ready.add(resolution.as_fd())?;
        }
        Ok(Self {
            #[cfg(feature = "xdp")]
            _program: program,
            interface,
            mode,
            queues,
            next: 0,
            resolution,
            ready,
            line: Vec::new(),
            counters: LinkCounters::default(),
        })
    }

    /// The interface as it was when the link was opened.
    pub fn interface(&self) -> &NetworkInterface {
        &self.interface
    }

    /// Where the program runs; `None` if nothing is received.
    pub fn program_mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Whether the driver accesses our memory directly, so that the kernel copies nothing.
    pub fn zero_copy(&self) -> bool {
        self.queues.iter().all(XdpSocket::zero_copy)
    }

    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    fn recv_nonblocking(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        batch.clear();
        let Self { queues, next, resolution, counters, .. } = self;
        let Some(resolution) = resolution else { return Ok(0) };
        for _ in 0..queues.len() {
            // The next queue comes first next time.
            if batch.is_full() {
                break;
            }
            let queue = &mut queues[*next];
            let mut any = false;
            while !batch.is_full() {
                let add = |bytes: &[u8]| {
                    let frame = Frame { bytes, truncated: false, checksum_pending: false };
                    packet::push_received_frame(frame, batch, counters);
                };
                if queue.receive_frame(add).is_none() {
                    break;
                }
                any = true;
            }
            if any {
                queue.return_received_chunks();
            }
            *next = (*next + 1) % queues.len();
        }
        if batch.is_empty() {
            // This also notices when the interface is gone.
            return resolution.recv_nonblocking(batch);
        }
        resolution.take(batch);
        Ok(batch.len())
    }

    /// Sends the packets in `self.line`, or counts why it cannot.
    fn send_line(&mut self, batch: &PacketBatch) {
        let Self { queues, line, counters, .. } = self;
        let [queue, ..] = &mut queues[..] else { return };
        let mut rest = &line[..];
        let mut retries = 0;
        while !rest.is_empty() {
            let frame = |index: &&u16| batch.ethernet_frame(usize::from(**index)).unwrap_or_default();
            let put = rest.iter().take_while(|index| queue.queue_frame(frame(index))).count();
            let XdpSendOutcome { taken, error } = queue.send();
            let errno = error.as_ref().and_then(io::Error::raw_os_error);
            // The device refused the last frame that the kernel accepted: it is retried.
            let refused = usize::from(errno == Some(libc::EBUSY) && taken > 0);
            for index in &rest[..taken - refused] {
                counters.count_sent(batch.packet(usize::from(*index)).len());
            }
            rest = &rest[taken - refused..];
            if taken > refused {
                retries = 0;
            }
            if rest.is_empty() || (taken > 0 && refused == 0 && matches!(errno, None | Some(libc::EAGAIN))) {
                continue;
            }
            let errno = match errno {
                Some(libc::EBUSY) => libc::ENOBUFS,
                // There is no room even for the first one.
                None if put == 0 => libc::EAGAIN,
                None => continue,
                Some(errno) => errno,
            };
            let again = matches!(errno, libc::EAGAIN | libc::ENOBUFS | libc::EINTR);
            if again && retries < SEND_RETRIES {
                retries += 1;
                // Nothing signals when the device accepts more.
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            counters.count_unsent(&io::Error::from_raw_os_error(errno));
            rest = &rest[1..];
            retries = 0;
        }
    }
}

/// Becomes readable when one of several sockets does.
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub(crate) fn new() -> Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC)
            .map(Self)
            .map_err(|error| LinkError::io_with_context("cannot wait for several sockets")(error.into()))
    }

    pub(crate) fn add(&self, socket: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.0, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|error| LinkError::io_with_context("cannot wait for several sockets")(error.into()))
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Link for XdpLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        recv_or_wait(self, batch, timeout, Self::recv_nonblocking)
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        let before = self.counters.sent;
        self.line.clear();
        for index in 0..batch.len() {
            if batch.ethernet_frame(index).is_none() {
                self.counters.unsent_malformed += 1;
            } else if batch.packet(index).len() > self.interface.mtu as usize {
                // No layer below checks this.
                self.counters.unsent_too_long += 1;
            } else {
                self.line.push(index as u16);
            }
        }
        self.send_line(batch);
        batch.clear();
        Ok((self.counters.sent - before) as usize)
    }

    fn link_counters(&self) -> LinkCounters {
        let resolution = self.resolution.as_ref().map(Link::link_counters).unwrap_or_default();
        LinkCounters {
            received: self.counters.received + resolution.received,
            received_bytes: self.counters.received_bytes + resolution.received_bytes,
            dropped_too_long: self.counters.dropped_too_long + resolution.dropped_too_long,
            dropped_by_kernel: self.queues.iter().map(XdpSocket::kernel_drops).sum::<u64>()
                + resolution.dropped_by_kernel,
            ..self.counters
        }
    }

    fn corruption_scope(&self) -> Scope {
        Scope::Packet
    }
}

/// Checks whether this process and this kernel support links that receive by AF_XDP, independently of the
/// interface: opens an AF_XDP socket with memory, and loads the program.
pub fn probe_support() -> Result<()> {
    let any = NetworkInterface { name: "any interface".into(), index: 0, mac: [0; 6], mtu: 1500, ipv4: None };
    let shape = UmemLayout { chunk: CHUNKS[0], receive: 1, send: 1 };
    match XdpSocket::open(any.index, 0, shape, true, true) {
        // No interface has this index, and the index is checked last.
        Ok(_) | Err((XdpOpenStep::Bind, _)) => {}
        Err((step, error)) => return Err(explain_refusal(&any, 0, shape, step, error)),
    }
    #[cfg(feature = "xdp")]
    program::probe_loading(&any)?;
    Ok(())
}

/// Checks the same for listeners whose unchanged reports the program at the interface drops.
pub fn probe_events() -> Result<()> {
    probe_support()?;
    #[cfg(feature = "xdp")]
    events::probe_loading()?;
    Ok(())
}

/// Opens something at an interface, retrying for a while if the interface is busy.
fn retry_while_busy<T>(mut open: impl FnMut() -> Result<T>) -> Result<T> {
    let until = Instant::now() + LEAVING;
    loop {
        match open() {
            Err(LinkError::XdpInUse(_) | LinkError::QueueInUse { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return opened,
        }
    }
}

/// Number of receive queues of an interface.
fn count_queues(interface: &NetworkInterface) -> Result<u32> {
    sys::receive_queues(&interface.name)
        .map_err(LinkError::io_with_context(format!("cannot count the queues of {}", interface.name)))
}

/// How the memory of each of `queues` sockets is divided.
fn umem_layout(
    interface: &NetworkInterface,
    bytes: usize,
    receives: bool,
    queues: u32,
) -> Result<UmemLayout> {
    let frame = interface.mtu as usize + ETHERNET_LEN;
    let Some(chunk) = CHUNKS.into_iter().find(|chunk| frame <= chunk - HEADROOM) else {
        return Err(LinkError::XdpMtu {
            interface: interface.name.clone(),
            mtu: interface.mtu,
            most: (CHUNKS[1] - HEADROOM - ETHERNET_LEN) as u32,
        });
    };
    let frames = (bytes / chunk / queues.max(1) as usize).clamp(1, 1 << 20) as u32;
    // Rounded down to a power of two.
    let receive = if receives { 1 << frames.ilog2() } else { 0 };
    Ok(UmemLayout { chunk, receive, send: SEND })
}

fn explain_refusal(
    interface: &NetworkInterface,
    queue: u32,
    shape: UmemLayout,
    step: XdpOpenStep,
    error: io::Error,
) -> LinkError {
    let name = interface.name.clone();
    let no_xdp = |reason: &str| LinkError::NoXdp { interface: name.clone(), reason: reason.into() };
    match (step, error.raw_os_error()) {
        (XdpOpenStep::Socket, Some(libc::EPERM)) => {
            LinkError::NeedsXdp { what: "an AF_XDP socket", interface: name, capability: "CAP_NET_RAW" }
        }
        (XdpOpenStep::Socket, Some(libc::EAFNOSUPPORT)) => no_xdp("the kernel was built without AF_XDP"),
        (XdpOpenStep::Memory, Some(libc::ENOBUFS | libc::EPERM)) => {
            LinkError::XdpMemory((shape.receive + shape.send) as usize * shape.chunk)
        }
        (XdpOpenStep::Bind, Some(libc::EBUSY)) => LinkError::QueueInUse { interface: name, queue },
        (XdpOpenStep::Bind, Some(libc::EOPNOTSUPP)) => no_xdp("its driver does not support AF_XDP sockets"),
        (step, _) => {
            let what = match step {
                XdpOpenStep::Socket => "open an AF_XDP socket",
                XdpOpenStep::Memory => "share memory with the kernel",
                XdpOpenStep::Rings => "create the rings of an AF_XDP socket",
                XdpOpenStep::Bind => "bind an AF_XDP socket",
            };
            LinkError::io_with_context(format!("cannot {what} for queue {queue} of {name}"))(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(mtu: u32) -> NetworkInterface {
        NetworkInterface { name: "eth1".into(), index: 1, mac: [0; 6], mtu, ipv4: None }
    }

    #[test]
    fn memory_is_cut_as_the_interface_needs_it() {
        let cut = |mtu, bytes, queues| umem_layout(&interface(mtu), bytes, true, queues).unwrap();
        assert_eq!(cut(1500, 8 << 20, 1), UmemLayout { chunk: 2048, receive: 4096, send: SEND });
        assert_eq!(cut(1778, 8 << 20, 1).chunk, 2048, "the longest that fits");
        assert_eq!(cut(1779, 8 << 20, 1), UmemLayout { chunk: 4096, receive: 2048, send: SEND });
        assert_eq!(cut(1500, 8 << 20, 3).receive, 1024, "a power of two for each queue");
        assert_eq!(cut(1500, 0, 64).receive, 1);
        assert_eq!(umem_layout(&interface(1500), 8 << 20, false, 1).unwrap().receive, 0);
        assert_eq!(cut(3826, 1 << 20, 1).chunk, 4096);
        let error = umem_layout(&interface(9000), 1 << 20, true, 1).unwrap_err().to_string();
        assert!(error.contains("9000 bytes") && error.contains("mtu 3826") && error.contains("packet:eth1"));
    }

    #[test]
    fn what_the_kernel_refuses_says_what_to_do() {
        let shape = UmemLayout { chunk: 2048, receive: 4096, send: SEND };
        let message = |step, errno| {
            explain_refusal(&interface(1500), 3, shape, step, io::Error::from_raw_os_error(errno)).to_string()
        };
        assert!(message(XdpOpenStep::Socket, libc::EPERM).contains("CAP_NET_RAW"));
        assert!(message(XdpOpenStep::Bind, libc::EBUSY).contains("queue 3 of eth1"));
        assert!(message(XdpOpenStep::Bind, libc::EBUSY).contains("ss --xdp"));
        assert!(message(XdpOpenStep::Memory, libc::ENOBUFS).contains("LimitMEMLOCK"));
        assert!(message(XdpOpenStep::Memory, libc::ENOBUFS).contains("10485760 bytes"));
        assert!(message(XdpOpenStep::Socket, libc::EAFNOSUPPORT).contains("packet:eth1"));
        assert!(
            message(XdpOpenStep::Bind, libc::EINVAL)
                .contains("cannot bind an AF_XDP socket for queue 3 of eth1")
        );
    }
}
