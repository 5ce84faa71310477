//! The system calls that the standard library has not: the only unsafe code of this crate.
#![allow(unsafe_code)]

mod frame_ring;

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

use libc::{c_int, c_void, cmsghdr, iovec, mmsghdr, msghdr, sockaddr_in, socklen_t};

pub(crate) use frame_ring::{Frame, FrameRing};

/// Wait until a datagram can be read.
pub(crate) const READABLE: i16 = libc::POLLIN;
/// Wait until a datagram can be sent.
pub(crate) const WRITABLE: i16 = libc::POLLOUT;

/// Sockets that [`wait`] looks at; more are not waited for.
const WAIT_MAX: usize = 16;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens a socket, close-on-exec.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointers.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
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
    check(unsafe {
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

/// Reads a socket option made of 32-bit integers into `values`; gives how many the kernel wrote.
pub(crate) fn get_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    values: &mut [u32],
) -> io::Result<usize> {
    let mut len = size_of_val(values) as socklen_t;
    // SAFETY: the kernel writes at most len bytes to values, and any bytes are valid u32.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, values.as_mut_ptr().cast::<c_void>(), &raw mut len)
    })?;
    Ok(len as usize / size_of::<u32>())
}

/// Datagrams that the kernel dropped at this socket since it was opened, counted modulo 2^32.
pub(crate) fn drops(fd: BorrowedFd<'_>) -> u64 {
    // SK_MEMINFO_DROPS is the ninth value of SO_MEMINFO (Linux 4.12). Unlike SO_RXQ_OVFL it costs
    // nothing per datagram and knows of drops after the last datagram received too; unlike
    // PACKET_STATISTICS, reading does not reset it.
    let mut values = [0; 9];
    match get_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut values) {
        Ok(9) => values[8].into(),
        _ => 0,
    }
}

/// The error that is pending on a socket, if any; reading takes it off.
pub(crate) fn pending_error(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut errno = [0];
    get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut errno)?;
    match errno[0] {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno as i32)),
    }
}

/// Frames that the kernel dropped since this was asked last, because the ring of packet socket `fd` was full.
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

/// Schedules this thread as one that works in batches (SCHED_BATCH, sched(7)).
pub(crate) fn schedule_batch() -> io::Result<()> {
    // SAFETY: all zeros is a valid sched_param; its priority has to be 0 here.
    let parameters = unsafe { zeroed::<libc::sched_param>() };
    // SAFETY: thread 0 is the caller; the structure lives over the call.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) })?;
    Ok(())
}

/// Waits for `events` on one of `fds` (the first 16); `false` when the time is over or a signal came.
pub(crate) fn wait(fds: &[BorrowedFd<'_>], events: i16, timeout: Option<Duration>) -> io::Result<bool> {
    let mut polled = [libc::pollfd { fd: -1, events, revents: 0 }; WAIT_MAX];
    for (poll, fd) in polled.iter_mut().zip(fds) {
        poll.fd = fd.as_raw_fd();
    }
    let timeout = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: polled and the time live over the call; no signal mask is given.
    match check(unsafe { libc::ppoll(polled.as_mut_ptr(), WAIT_MAX as libc::nfds_t, timeout, null()) }) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// One datagram to send.
#[derive(Default)]
pub(crate) struct Outgoing<'a> {
    /// What to send.
    pub(crate) bytes: &'a [u8],
    /// Where to; `None` on a bound packet socket.
    pub(crate) to: Option<SocketAddrV4>,
    /// The source address to use, where the socket is bound to none.
    pub(crate) from: Option<Ipv4Addr>,
}

/// One datagram received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    /// Bytes in the buffer.
    pub(crate) len: usize,
    /// Whether the datagram was longer than the buffer.
    pub(crate) truncated: bool,
    /// The sender, on UDP sockets.
    pub(crate) from: SocketAddrV4,
    /// The address it was sent to, on sockets with IP_PKTINFO.
    pub(crate) to: Option<Ipv4Addr>,
}

/// Room for control messages: IP_PKTINFO takes 32 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 64]);

/// The arrays that recvmmsg and sendmmsg take, allocated once.
pub(crate) struct Messages {
    headers: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
    names: Box<[sockaddr_in]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers inside headers and vectors are written anew before each system call, from references
// that live over it, and never read otherwise; so where the thread is does not matter.
unsafe impl Send for Messages {}

impl Messages {
    /// Room for `count` datagrams a call.
    pub(crate) fn new(count: usize) -> Self {
        // SAFETY: all zeros is a valid value of these plain C structures (null pointers, zero lengths).
        let (header, vector, name) =
            unsafe { (zeroed::<mmsghdr>(), zeroed::<iovec>(), zeroed::<sockaddr_in>()) };
        Self {
            headers: vec![header; count].into(),
            vectors: vec![vector; count].into(),
            names: vec![name; count].into(),
            controls: vec![Control([0; 64]); count].into(),
        }
    }

    /// Receives what is there, without waiting, one datagram into each buffer. Gives how many.
    pub(crate) fn recv<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = &'a mut [u8]>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for (index, buffer) in buffers.take(self.headers.len()).enumerate() {
            self.vectors[index] = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let control = self.controls[index].0.len();
            self.fill(index, true, control);
            count += 1;
        }
        // SAFETY: the first count headers point to a name, a vector and a control buffer of this
        // object, and each vector to a buffer that is mutably borrowed for 'a, which outlives this
        // call; all lengths are right.
        let received = check(unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
                null_mut(),
            )
        })?;
        Ok(received as usize)
    }

    /// What the last [`Messages::recv`] says of its datagram `index`.
    pub(crate) fn incoming(&self, index: usize) -> Incoming {
        let header = &self.headers[index];
        let name = &self.names[index];
        Incoming {
            len: header.msg_len as usize,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            from: SocketAddrV4::new(
                Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)),
                u16::from_be(name.sin_port),
            ),
            to: self.packet_info(index).map(|info| Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr))),
        }
    }

    /// The IP_PKTINFO control message that came with datagram `index`.
    fn packet_info(&self, index: usize) -> Option<libc::in_pktinfo> {
        let held = &self.controls[index].0[..self.headers[index].msg_hdr.msg_controllen.min(64)];
        let mut at = 0;
        while let Some(rest) = held.get(at..).filter(|rest| rest.len() >= size_of::<cmsghdr>()) {
            // SAFETY: rest holds a whole cmsghdr, which is plain integers; alignment is not asked for.
            let header = unsafe { rest.as_ptr().cast::<cmsghdr>().read_unaligned() };
            let len = header.cmsg_len;
            let data = rest.get(size_of::<cmsghdr>()..len)?;
            if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_IP, libc::IP_PKTINFO)
                && data.len() >= size_of::<libc::in_pktinfo>()
            {
                // SAFETY: data holds a whole in_pktinfo, which is plain integers; alignment is not asked for.
                return Some(unsafe { data.as_ptr().cast::<libc::in_pktinfo>().read_unaligned() });
            }
            at += len.next_multiple_of(size_of::<usize>());
        }
        None
    }

    /// Sends datagrams without waiting. Gives how many of them, from the first on, the kernel took; an error
    /// concerns the first.
    pub(crate) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for (index, datagram) in datagrams.take(self.headers.len()).enumerate() {
            // sendmmsg reads only, though iovec has a mutable pointer.
            let base = datagram.bytes.as_ptr().cast_mut().cast();
            self.vectors[index] = iovec { iov_base: base, iov_len: datagram.bytes.len() };
            if let Some(to) = datagram.to {
                self.names[index] = socket_address(to);
            }
            let control = datagram.from.map_or(0, |from| self.write_source(index, from));
            self.fill(index, datagram.to.is_some(), control);
            count += 1;
        }
        // SAFETY: as in recv; the kernel only reads what the vectors point to.
        let sent = check(unsafe {
            libc::sendmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT as _)
        })?;
        Ok(sent as usize)
    }

    /// Points header `index` at its vector, its name (if any) and `control` bytes of its control buffer.
    fn fill(&mut self, index: usize, name: bool, control: usize) {
        // SAFETY: all zeros is a valid msghdr; some C libraries have private padding that cannot be named.
        let mut header = unsafe { zeroed::<msghdr>() };
        if name {
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<sockaddr_in>() as socklen_t;
        }
        if control > 0 {
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = control as _;
        }
        header.msg_iov = &raw mut self.vectors[index];
        header.msg_iovlen = 1;
        self.headers[index] = mmsghdr { msg_hdr: header, msg_len: 0 };
    }

    /// Writes an IP_PKTINFO control message that sets the source address; gives its length.
    fn write_source(&mut self, index: usize, from: Ipv4Addr) -> usize {
        let info = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        let data_len = size_of::<libc::in_pktinfo>();
        // SAFETY: all zeros is a valid cmsghdr.
        let mut header = unsafe { zeroed::<cmsghdr>() };
        header.cmsg_len = (size_of::<cmsghdr>() + data_len) as _;
        header.cmsg_level = libc::IPPROTO_IP;
        header.cmsg_type = libc::IP_PKTINFO;
        let space = (size_of::<cmsghdr>() + data_len).next_multiple_of(size_of::<usize>());
        let control = &mut self.controls[index].0;
        assert!(space <= control.len());
        // SAFETY: the control buffer has room for both, as just asserted, and is aligned to 8.
        unsafe {
            control.as_mut_ptr().cast::<cmsghdr>().write_unaligned(header);
            control.as_mut_ptr().add(size_of::<cmsghdr>()).cast::<libc::in_pktinfo>().write_unaligned(info);
        }
        space
    }
}

fn socket_address(address: SocketAddrV4) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// A network interface as the kernel describes it.
pub(crate) struct InterfaceFacts {
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    pub(crate) ipv4: Option<Ipv4Addr>,
}

/// Looks an interface of this network namespace up by name.
pub(crate) fn interface(name: &str) -> io::Result<InterfaceFacts> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request = unsafe { zeroed::<libc::ifreq>() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let ask = |what: libc::c_ulong| {
        let mut answer = request;
        // SAFETY: these requests read the name, which ends with a zero, and write into the ifreq only.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut answer) }).map(|_| answer.ifr_ifru)
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

/// Binds a packet socket to an interface and lets it receive from now on.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut address = unsafe { zeroed::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface as c_int;
    // SAFETY: address lives over the call and its size is what is said.
    check(unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as socklen_t)
    })?;
    Ok(())
}

/// Has an interface receive frames to the Ethernet address `mac` too, for as long as the packet
/// socket `fd` is open.
pub(crate) fn receive_unicast(fd: BorrowedFd<'_>, interface: u32, mac: [u8; 6]) -> io::Result<()> {
    // linux/if_packet.h.
    const PACKET_MR_UNICAST: libc::c_ushort = 3;
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac);
    let request = libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: PACKET_MR_UNICAST,
        mr_alen: 6,
        mr_address: address,
    };
    set_option_bytes(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Lets a socket receive only what a classic BPF program accepts.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which lives over the call and has the length said; it
    // writes nothing.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast::<c_void>(),
            size_of::<libc::sock_fprog>() as socklen_t,
        )
    })?;
    Ok(())
}
