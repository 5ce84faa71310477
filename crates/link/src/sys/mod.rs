//! System calls that the standard library lacks: the only unsafe code of this crate.
#![allow(unsafe_code)]

mod frame_ring;
mod messages;
mod xdp_socket;

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null;
use std::time::Duration;

use libc::{c_int, c_void, sockaddr_in, socklen_t};

pub(crate) use frame_ring::{Frame, FrameRing};
pub(crate) use messages::{Incoming, Messages, Outgoing};
pub use xdp_socket::SharedWords;
pub(crate) use xdp_socket::{HEADROOM, UmemLayout, XdpOpenStep, XdpReader, XdpSendOutcome, XdpSocket};

/// linux/udp.h: as a socket option, receives runs whole; on a message, the length of each of its datagrams.
pub(crate) const UDP_GRO: c_int = 104;
/// linux/udp.h: the length of each datagram that a message is cut into.
pub(crate) const UDP_SEGMENT: c_int = 103;
/// linux/udp.h: sends datagrams over IPv6 without a UDP checksum, and receives those without one.
pub(crate) const UDP_NO_CHECK6_TX: c_int = 101;
pub(crate) const UDP_NO_CHECK6_RX: c_int = 102;

/// Wait until a datagram can be read.
pub(crate) const READABLE: i16 = libc::POLLIN;
/// Wait until a datagram can be sent.
pub(crate) const WRITABLE: i16 = libc::POLLOUT;

/// Most sockets for [`wait_for_events`]; further ones are ignored.
pub(crate) const WAIT_MAX: usize = 64;

fn check_result(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn open_socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointers.
    let fd = check_result(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel just gave this descriptor to us, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is an integer.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_option_bytes(fd, level, name, &value)
}

/// Sets a socket option whose value is a plain C structure.
fn set_option_bytes<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: value lives over the call and its size is what is said.
    check_result(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast::<c_void>(),
            size_of::<T>() as socklen_t,
        )
    })?;
    Ok(())
}

/// Restricts a socket, before it is bound, to datagrams that come and go through this interface.
pub(crate) fn bind_to_device(fd: BorrowedFd<'_>, interface: &str) -> io::Result<()> {
    let request = interface_request(interface)?;
    set_option_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &request.ifr_name)
}

/// Reads a socket option of 32-bit integers into `values`; returns how many the kernel wrote.
pub(crate) fn get_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    values: &mut [u32],
) -> io::Result<usize> {
    let mut len = size_of_val(values) as socklen_t;
    // SAFETY: the kernel writes at most len bytes to values, and any bytes are valid u32.
    check_result(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, values.as_mut_ptr().cast::<c_void>(), &raw mut len)
    })?;
    Ok(len as usize / size_of::<u32>())
}

/// Datagrams that the kernel dropped at this socket since it was opened, counted modulo 2^32.
pub(crate) fn kernel_drops(fd: BorrowedFd<'_>) -> u64 {
    // SK_MEMINFO_DROPS is the ninth value of SO_MEMINFO (Linux 4.12). Unlike SO_RXQ_OVFL it costs
    // nothing per datagram and knows of drops after the last datagram received too; unlike
    // PACKET_STATISTICS, reading does not reset it.
    let mut values = [0; 9];
    match get_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut values) {
        Ok(9) => values[8].into(),
        _ => 0,
    }
}

/// The pending error of a socket, if any; reading clears it.
pub(crate) fn pending_error(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut errno = [0];
    get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut errno)?;
    match errno[0] {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno as i32)),
    }
}

/// Frames dropped by the kernel since the last call because the ring of packet socket `fd` was full.
pub(crate) fn ring_drops(fd: BorrowedFd<'_>) -> u64 {
    // linux/if_packet.h: PACKET_STATISTICS gives struct tpacket_stats, packets and drops.
    // SO_MEMINFO does not know of a ring's drops.
    const PACKET_STATISTICS: c_int = 6;
    let mut values = [0; 2];
    match get_option(fd, libc::SOL_PACKET, PACKET_STATISTICS, &mut values) {
        Ok(2) => values[1].into(),
        _ => 0,
    }
}

/// Schedules this thread as a batch thread (SCHED_BATCH, sched(7)).
pub(crate) fn schedule_batch() -> io::Result<()> {
    // SAFETY: all zeros is a valid sched_param; its priority has to be 0 here.
    let parameters = unsafe { zeroed::<libc::sched_param>() };
    // SAFETY: thread 0 is the caller; the structure lives over the call.
    check_result(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) })?;
    Ok(())
}

/// Waits for `events` on one of `fds` (the first [`WAIT_MAX`]); `false` on a timeout or signal.
pub(crate) fn wait_for_events(
    fds: &[BorrowedFd<'_>],
    events: i16,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    let mut polled = [libc::pollfd { fd: -1, events, revents: 0 }; WAIT_MAX];
    for (poll, fd) in polled.iter_mut().zip(fds) {
        poll.fd = fd.as_raw_fd();
    }
    let count = fds.len().min(WAIT_MAX);
    let timeout = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: polled, of which the first `count` are filled in, and the time live over the call; no
    // signal mask is given.
    match check_result(unsafe { libc::ppoll(polled.as_mut_ptr(), count as libc::nfds_t, timeout, null()) }) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// A network interface as the kernel describes it.
pub(crate) struct InterfaceFacts {
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    pub(crate) ipv4: Option<Ipv4Addr>,
}

fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid ifreq.
    let mut request = unsafe { zeroed::<libc::ifreq>() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Number of receive queues of an interface; 1 if its driver does not report it.
pub(crate) fn receive_queues(name: &str) -> io::Result<u32> {
    // linux/ethtool.h: ETHTOOL_GCHANNELS fills in struct ethtool_channels, whose first word is the command,
    // followed by the maximum and current numbers of receive, transmit, other and combined queues.
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let socket = open_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut request = interface_request(name)?;
    let mut channels = [0u32; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
    // SAFETY: the request reads the name, which ends with a zero, and writes into `channels`, which is as
    // long as the command says and lives over the call.
    match check_result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) }) {
        Ok(_) => Ok((channels[5] + channels[8]).max(1)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        Err(error) => Err(error),
    }
}

/// Looks up an interface of this network namespace by name.
pub(crate) fn interface(name: &str) -> io::Result<InterfaceFacts> {
    let socket = open_socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let request = interface_request(name)?;
    let ask = |what: libc::c_ulong| {
        let mut answer = request;
        // SAFETY: these requests read the name, which ends with a zero, and write into the ifreq only.
        check_result(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut answer) })
            .map(|_| answer.ifr_ifru)
    };
    let ipv4 = match ask(libc::SIOCGIFADDR) {
        // SAFETY: SIOCGIFADDR wrote a sockaddr of family AF_INET, which is what an AF_INET socket gives.
        Ok(union) => Some(unsafe { (&raw const union.ifru_addr).cast::<sockaddr_in>().read_unaligned() }),
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => None,
        Err(error) => return Err(error),
    };
    // SAFETY: SIOCGIFHWADDR wrote ifru_hwaddr, SIOCGIFINDEX ifru_ifindex and SIOCGIFMTU ifru_mtu.
    let (address, index, mtu) = unsafe {
        (
            ask(libc::SIOCGIFHWADDR)?.ifru_hwaddr.sa_data,
            ask(libc::SIOCGIFINDEX)?.ifru_ifindex,
            ask(libc::SIOCGIFMTU)?.ifru_mtu,
        )
    };
    Ok(InterfaceFacts {
        index: index as u32,
        mac: std::array::from_fn(|byte| address[byte] as u8),
        mtu: mtu as u32,
        ipv4: ipv4.map(|address| Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))),
    })
}

/// The IPv4 addresses of an interface.
pub(crate) fn interface_addresses(name: &str) -> io::Result<Vec<Ipv4Addr>> {
    let mut first = std::ptr::null_mut::<libc::ifaddrs>();
    // SAFETY: the call writes the address of a list to `first`.
    check_result(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: the list ends with a null pointer and lives until freeifaddrs below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: every entry has a name, which ends with a zero.
        let is_of_interface = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes() == name.as_bytes();
        // SAFETY: an address, where there is one, begins with its family, and one of AF_INET is a sockaddr_in.
        let address = unsafe {
            entry
                .ifa_addr
                .as_ref()
                .filter(|address| c_int::from(address.sa_family) == libc::AF_INET)
                .map(|_| entry.ifa_addr.cast::<sockaddr_in>().read_unaligned())
        };
        if let Some(address) = address.filter(|_| is_of_interface) {
            addresses.push(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)));
        }
    }
    // SAFETY: the list of getifaddrs, freed once; nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// Binds a packet socket to an interface, which starts reception.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut address = unsafe { zeroed::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface as c_int;
    // SAFETY: address lives over the call and its size is what is said.
    check_result(unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as socklen_t)
    })?;
    Ok(())
}

/// Makes an interface also receive frames to the Ethernet address `mac`, for as long as the packet socket
/// `fd` is open.
pub(crate) fn receive_address(fd: BorrowedFd<'_>, interface: u32, mac: [u8; 6]) -> io::Result<()> {
    // linux/if_packet.h.
    const PACKET_MR_MULTICAST: libc::c_ushort = 0;
    const PACKET_MR_UNICAST: libc::c_ushort = 3;
    let is_group = mac[0] & 1 != 0;
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac);
    let request = libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: if is_group { PACKET_MR_MULTICAST } else { PACKET_MR_UNICAST },
        mr_alen: 6,
        mr_address: address,
    };
    set_option_bytes(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Attaches a classic BPF filter to a socket.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach_program(fd, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a classic BPF program that selects the socket of a SO_REUSEPORT group for each datagram: it runs
/// on the UDP payload and returns the socket's number, in binding order.
pub(crate) fn attach_choice(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach_program(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn attach_program(fd: BorrowedFd<'_>, option: c_int, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which lives over the call and has the length said; it
    // writes nothing.
    check_result(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const program).cast::<c_void>(),
            size_of::<libc::sock_fprog>() as socklen_t,
        )
    })?;
    Ok(())
}
