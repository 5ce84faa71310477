//! Sending and receiving many messages per call.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZero;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

use libc::{c_int, cmsghdr, iovec, mmsghdr, msghdr, sockaddr_in, sockaddr_in6, socklen_t};

use super::{UDP_GRO, UDP_SEGMENT, check_result};

/// One datagram to send, or a run of them.
#[derive(Default)]
pub(crate) struct Outgoing<'a> {
    pub(crate) bytes: &'a [u8],
    /// Length of each datagram that the kernel cuts this into; the last one may be shorter.
    pub(crate) segment: Option<u16>,
    /// The destination; `None` on a bound packet socket.
    pub(crate) to: Option<SocketAddr>,
    /// The source address, if the socket is not bound to one.
    pub(crate) from: Option<Ipv4Addr>,
}

/// One datagram received, or a run of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    pub(crate) len: usize,
    /// Length of each datagram of a run, except the last, which may be shorter; `None` for a single datagram.
    pub(crate) segment: Option<NonZero<usize>>,
    /// Whether the datagram was longer than the buffer.
    pub(crate) truncated: bool,
    /// The sender, on UDP sockets: an address of the socket's family.
    pub(crate) from: SocketAddr,
    /// The address that it was sent to, on sockets with IP_PKTINFO.
    pub(crate) to: Option<Ipv4Addr>,
}

/// Room for control messages: 32 bytes for IP_PKTINFO, 24 each for UDP_SEGMENT and UDP_GRO.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

const CONTROL: usize = 64;

/// The address of a socket, of either family.
#[repr(C)]
#[derive(Clone, Copy)]
union SocketName {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl SocketName {
    fn from_address(address: SocketAddr) -> SocketName {
        // SAFETY: both variants are plain integers, of which zeros are a value.
        let mut name = unsafe { zeroed::<SocketName>() };
        match address {
            SocketAddr::V4(address) => {
                name.v4 = sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                }
            }
            SocketAddr::V6(address) => {
                name.v6 = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                }
            }
        }
        name
    }

    fn to_address(self) -> SocketAddr {
        // SAFETY: both variants begin with the family and are plain integers, of which any bytes are a value; all bytes
        // are initialized, since names begin as zeros.
        let v4 = unsafe { self.v4 };
        if i32::from(v4.sin_family) == libc::AF_INET6 {
            // SAFETY: as above; and by its family, the address is one of these.
            let v6 = unsafe { self.v6 };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            return SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into();
        }
        SocketAddrV4::new(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)), u16::from_be(v4.sin_port)).into()
    }
}

/// The arrays for recvmmsg and sendmmsg, allocated once.
pub(crate) struct Messages {
    headers: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
    names: Box<[SocketName]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers inside headers and vectors are written anew before each system call, from references
// that live over it, and never read otherwise; so where the thread is does not matter.
unsafe impl Send for Messages {}

impl Messages {
    /// Room for `count` datagrams per call.
    pub(crate) fn new(count: usize) -> Self {
        // SAFETY: all zeros is a valid value of these plain C structures (null pointers, zero lengths).
        let (header, vector, name) =
            unsafe { (zeroed::<mmsghdr>(), zeroed::<iovec>(), zeroed::<SocketName>()) };
        Self {
            headers: vec![header; count].into(),
            vectors: vec![vector; count].into(),
            names: vec![name; count].into(),
            controls: vec![Control([0; CONTROL]); count].into(),
        }
    }

    /// Receives what is there, without waiting, one datagram into each buffer. Returns how many.
    pub(crate) fn recv<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = &'a mut [u8]>,
    ) -> io::Result<usize> {
        let mut count = 0;
        for (index, buffer) in buffers.take(self.headers.len()).enumerate() {
            self.vectors[index] = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let control = self.controls[index].0.len();
            self.fill_header(index, true, control);
            count += 1;
        }
        // SAFETY: the first count headers point to a name, a vector and a control buffer of this
        // object, and each vector to a buffer that is mutably borrowed for 'a, which outlives this
        // call; all lengths are right.
        let received = check_result(unsafe {
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

    /// The metadata of datagram `index` from the last [`Messages::recv`].
    pub(crate) fn incoming_metadata(&self, index: usize) -> Incoming {
        let header = &self.headers[index];
        let mut incoming = Incoming {
            len: header.msg_len as usize,
            segment: None,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            from: self.names[index].to_address(),
            to: None,
        };
        let mut held = &self.controls[index].0[..header.msg_hdr.msg_controllen.min(CONTROL)];
        while let Some(ControlMessage { kind, data, rest }) = ControlMessage::parse_first(held) {
            match kind {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = read_plain_value::<libc::in_pktinfo>(data);
                    incoming.to = info.map(|info| Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)));
                }
                (libc::SOL_UDP, UDP_GRO) => {
                    let bytes = read_plain_value::<c_int>(data).and_then(|bytes| usize::try_from(bytes).ok());
                    incoming.segment = bytes.and_then(NonZero::new);
                }
                _ => {}
            }
            held = rest;
        }
        incoming
    }

    /// Sends datagrams, or runs of them, without waiting. Returns how many of these, from the first, the
    /// kernel accepted; an error concerns the first.
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
                self.names[index] = SocketName::from_address(to);
            }
            let mut control = 0;
            if let Some(from) = datagram.from {
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                control = self.write_control(index, control, (libc::IPPROTO_IP, libc::IP_PKTINFO), info);
            }
            if let Some(segment) = datagram.segment {
                control = self.write_control(index, control, (libc::SOL_UDP, UDP_SEGMENT), segment);
            }
            self.fill_header(index, datagram.to.is_some(), control);
            count += 1;
        }
        // SAFETY: as in recv; the kernel only reads what the vectors point to.
        let sent = check_result(unsafe {
            libc::sendmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT as _)
        })?;
        Ok(sent as usize)
    }

    /// Points header `index` to its vector, its name (if any) and `control` bytes of its control buffer.
    fn fill_header(&mut self, index: usize, name: bool, control: usize) {
        // SAFETY: all zeros is a valid msghdr; some C libraries have private padding that cannot be named.
        let mut header = unsafe { zeroed::<msghdr>() };
        if name {
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<SocketName>() as socklen_t;
        }
        if control > 0 {
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = control as _;
        }
        header.msg_iov = &raw mut self.vectors[index];
        header.msg_iovlen = 1;
        self.headers[index] = mmsghdr { msg_hdr: header, msg_len: 0 };
    }

    /// Writes a control message after the first `at` bytes of control buffer `index`; returns where it ends.
    fn write_control<T: PlainOldData>(
        &mut self,
        index: usize,
        at: usize,
        kind: (c_int, c_int),
        data: T,
    ) -> usize {
        let len = size_of::<cmsghdr>() + size_of::<T>();
        let end = at + len.next_multiple_of(size_of::<usize>());
        let control = &mut self.controls[index].0[at..end];
        // SAFETY: all zeros is a valid cmsghdr.
        let mut header = unsafe { zeroed::<cmsghdr>() };
        header.cmsg_len = len as _;
        (header.cmsg_level, header.cmsg_type) = kind;
        // SAFETY: `control` has room for both, one after the other; alignment is not asked for.
        unsafe {
            control.as_mut_ptr().cast::<cmsghdr>().write_unaligned(header);
            control.as_mut_ptr().add(size_of::<cmsghdr>()).cast::<T>().write_unaligned(data);
        }
        end
    }
}

/// C types in control messages: any bytes are a valid value.
///
/// # Safety
/// Any bytes must be a valid value, and a value must have no padding.
unsafe trait PlainOldData: Copy {}
// SAFETY: three 32-bit integers.
unsafe impl PlainOldData for libc::in_pktinfo {}
// SAFETY: an integer.
unsafe impl PlainOldData for c_int {}
// SAFETY: an integer.
unsafe impl PlainOldData for u16 {}

/// The value in a control message, if it is long enough.
fn read_plain_value<T: PlainOldData>(data: &[u8]) -> Option<T> {
    // SAFETY: there are enough bytes, any of which make a `T`; alignment is not asked for.
    (data.len() >= size_of::<T>()).then(|| unsafe { data.as_ptr().cast::<T>().read_unaligned() })
}

struct ControlMessage<'a> {
    kind: (c_int, c_int),
    data: &'a [u8],
    /// The bytes after it.
    rest: &'a [u8],
}

impl<'a> ControlMessage<'a> {
    /// The first control message in `held`.
    fn parse_first(held: &'a [u8]) -> Option<ControlMessage<'a>> {
        if held.len() < size_of::<cmsghdr>() {
            return None;
        }
        // SAFETY: there is a whole cmsghdr, which is plain integers; alignment is not asked for.
        let header = unsafe { held.as_ptr().cast::<cmsghdr>().read_unaligned() };
        let data = held.get(size_of::<cmsghdr>()..header.cmsg_len)?;
        let rest = held.get(header.cmsg_len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        Some(ControlMessage { kind: (header.cmsg_level, header.cmsg_type), data, rest })
    }
}
