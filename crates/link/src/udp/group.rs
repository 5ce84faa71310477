//! Several links at one address and port, which share what arrives.
//!
//! A program from the caller selects the socket for each datagram (SO_ATTACH_REUSEPORT_CBPF). A run of
//! datagrams is one message: the program sees its first datagram, and the whole run goes to one socket.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::{UdpConfig, UdpLink, bind_datagram_socket, open_datagram_socket, prepare_socket};
use crate::sys;
use crate::{LinkError, Result};

/// An instruction of classic BPF (the kernel's networking/filter.rst), with one accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// linux/filter.h: SKF_NET_OFF, the base for loads relative to the network header.
const NETWORK_HEADER: i32 = -0x10_0000;

impl Instruction {
    /// Loads the byte at this offset of the UDP payload. Loading beyond the end terminates the program with
    /// 0.
    pub const fn load_byte(at: u32) -> Self {
        Self::without_jump(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at)
    }

    /// As [`Instruction::load_byte`], two bytes, the higher one first.
    pub const fn load_half(at: u32) -> Self {
        Self::without_jump(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at)
    }

    pub const fn load_source_address() -> Self {
        Self::load_network_word(12)
    }

    /// Loads the byte at this offset of the IP header.
    pub const fn load_network_byte(at: i32) -> Self {
        Self::without_jump(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, (NETWORK_HEADER + at) as u32)
    }

    /// Loads the four bytes at this offset of the IP header, the highest one first.
    pub const fn load_network_word(at: i32) -> Self {
        Self::without_jump(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (NETWORK_HEADER + at) as u32)
    }

    pub(super) const fn load_ipv4_id() -> Self {
        Self::without_jump(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, (NETWORK_HEADER + 4) as u32)
    }

    pub(super) const fn add(number: u32) -> Self {
        Self::without_jump(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, number)
    }

    /// Remembers the accumulator for [`Instruction::add_remembered`].
    pub const fn remember() -> Self {
        Self::without_jump(libc::BPF_MISC | libc::BPF_TAX, 0)
    }

    pub const fn add_remembered() -> Self {
        Self::without_jump(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0)
    }

    /// Multiplies, modulo 2^32.
    pub const fn multiply(by: u32) -> Self {
        Self::without_jump(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, by)
    }

    /// Shifts to the right by less than 32 bits.
    pub const fn shift_right(bits: u32) -> Self {
        Self::without_jump(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, bits)
    }

    pub const fn keep_bits(bits: u32) -> Self {
        Self::without_jump(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, bits)
    }

    /// The remainder of a division by this number, which is not 0.
    pub const fn modulo(by: u32) -> Self {
        Self::without_jump(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, by)
    }

    /// Skips this many instructions unless the accumulator equals the value.
    pub const fn skip_unless(value: u32, skip: u8) -> Self {
        Self { jf: skip, ..Self::without_jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value) }
    }

    pub const fn skip_always(skip: u32) -> Self {
        Self::without_jump(libc::BPF_JMP | libc::BPF_JA, skip)
    }

    /// Ends with the accumulator as the result: the socket's number.
    pub const fn choose_socket() -> Self {
        Self::without_jump(libc::BPF_RET | libc::BPF_A, 0)
    }

    /// Ends with this socket's number as the result.
    pub const fn choose_socket_number(number: u32) -> Self {
        Self::without_jump(libc::BPF_RET | libc::BPF_K, number)
    }

    const fn without_jump(code: u32, k: u32) -> Self {
        Self { code: code as u16, jt: 0, jf: 0, k }
    }

    /// The instruction as the kernel takes it.
    pub(super) fn to_sock_filter(self) -> libc::sock_filter {
        let Self { code, jt, jf, k } = self;
        libc::sock_filter { code, jt, jf, k }
    }
}

impl UdpLink {
    /// Binds `count` sockets to one address and port. `choose` returns the number of the socket for a
    /// datagram; for an invalid number the kernel chooses by both addresses and ports.
    ///
    /// # Errors
    /// As [`UdpLink::open`]; if another program has the port in its own group; and if the kernel rejects the
    /// program.
    pub fn open_group(config: &UdpConfig, count: usize, choose: &[Instruction]) -> Result<Vec<Self>> {
        if config.bind.is_ipv6() {
            return Err(LinkError::Ipv6(config.bind));
        }
        let (sockets, local) = bind_group(config.bind, config.interface.as_deref(), count, choose)?;
        let SocketAddr::V4(local) = local else { return Err(LinkError::Ipv6(local)) };
        let open = |socket: OwnedFd| {
            prepare_socket(&socket, config.checksum)?;
            UdpLink::from_socket(socket, local, config)
        };
        sockets.into_iter().map(open).collect()
    }

    /// From now on, another program chooses among the sockets of the group.
    ///
    /// # Errors
    /// The kernel rejects the program.
    pub fn replace_choice(&self, choose: &[Instruction]) -> Result<()> {
        attach_choice(self, choose)
    }
}

/// Binds `count` sockets to one address and port; a program chooses among them.
pub(super) fn bind_group(
    address: SocketAddr,
    interface: Option<&str>,
    count: usize,
    choose: &[Instruction],
) -> Result<(Vec<OwnedFd>, SocketAddr)> {
    // Not in a group at first: otherwise it would silently join another program's.
    let (first, local) = bind_datagram_socket(address, interface)?;
    enable_port_sharing(&first)?;
    let mut sockets = vec![first];
    for _ in 1..count {
        let socket = open_datagram_socket(local, interface)?;
        enable_port_sharing(&socket)?;
        rustix::net::bind(&socket, &local).map_err(|error| LinkError::bind(local, error.into()))?;
        sockets.push(socket);
    }
    if let Some(first) = sockets.first() {
        attach_choice(first, choose)?;
    }
    Ok((sockets, local))
}

/// From now on, another program chooses among the sockets of a group.
pub(super) fn attach_choice(socket: &impl AsFd, choose: &[Instruction]) -> Result<()> {
    let program: Vec<_> = choose.iter().copied().map(Instruction::to_sock_filter).collect();
    sys::attach_choice(socket.as_fd(), &program).map_err(LinkError::io_with_context(
        "cannot attach the program that chooses a socket (SO_ATTACH_REUSEPORT_CBPF)",
    ))
}

fn enable_port_sharing(socket: &OwnedFd) -> Result<()> {
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
        .map_err(LinkError::io_with_context("cannot share a UDP port (SO_REUSEPORT)"))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};
    use std::time::Duration;

    use dta_proto::batch::PacketBatch;

    use super::*;
    use crate::Link;

    /// The first byte of the payload, modulo 3.
    const BY_FIRST_BYTE: [Instruction; 3] =
        [Instruction::load_byte(0), Instruction::modulo(3), Instruction::choose_socket()];

    #[test]
    fn each_socket_of_a_group_gets_what_the_program_says_and_the_port_is_nobody_elses() {
        let config = UdpConfig::for_reports(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into(), false);
        let mut group = UdpLink::open_group(&config, 3, &BY_FIRST_BYTE).unwrap();
        let to = group[0].local_addr();
        assert!(group.iter().all(|link| link.local_addr() == to));
        // The port is taken, both for a single socket and for a group.
        let taken = UdpConfig { bind: to.into(), ..config.clone() };
        assert!(UdpLink::open(&taken).is_err());
        assert!(UdpLink::open_group(&taken, 2, &BY_FIRST_BYTE).is_err());

        let mut sender = UdpLink::open(&config).unwrap();
        let mut batch = PacketBatch::default();
        for n in 0..60u8 {
            batch.push_datagram(sender.local_addr(), to, &[n, 1, 2, 3], 0).unwrap();
            // One by one, because a run would go to a single socket.
            sender.send(&mut batch).unwrap();
        }
        for (number, link) in group.iter_mut().enumerate() {
            let mut got = Vec::new();
            while got.len() < 20 && link.recv(&mut batch, Some(Duration::from_secs(30))).unwrap() > 0 {
                got.extend(batch.iter().map(|packet| packet[28]));
            }
            assert_eq!(got, (0..60).filter(|n| usize::from(n % 3) == number).collect::<Vec<u8>>());
        }
    }
}
