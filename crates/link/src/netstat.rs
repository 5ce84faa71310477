//! The kernel's own UDP counters of the current network namespace.
//!
//! A testbed compares them before and after, to distinguish the kernel's losses from ours.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::{LinkError, Result};

/// The `Udp` lines of `/proc/net/snmp` (RFC 4113 and Linux additions), for IPv4. All count datagrams since
/// the namespace was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpStats {
    pub in_datagrams: u64,
    /// Arrived for a port without a socket.
    pub no_ports: u64,
    /// Not delivered for another reason; includes `rcvbuf_errors`, `in_csum_errors` and wrong lengths.
    pub in_errors: u64,
    /// Not delivered because a socket's receive queue was full.
    pub rcvbuf_errors: u64,
    /// Not delivered because of a wrong checksum.
    pub in_csum_errors: u64,
}

impl UdpStats {
    /// Reads the counters in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not mounted, or does not have the counters.
    pub fn read() -> Result<Self> {
        // Not /proc/net: that is the namespace of the process's first thread.
        Self::parse_snmp_text(&read_proc("/proc/thread-self/net/snmp")?)
            .ok_or_else(|| malformed("/proc/thread-self/net/snmp has no Udp counters"))
    }

    pub fn increase_since(&self, earlier: &Self) -> Self {
        Self {
            in_datagrams: self.in_datagrams.wrapping_sub(earlier.in_datagrams),
            no_ports: self.no_ports.wrapping_sub(earlier.no_ports),
            in_errors: self.in_errors.wrapping_sub(earlier.in_errors),
            rcvbuf_errors: self.rcvbuf_errors.wrapping_sub(earlier.rcvbuf_errors),
            in_csum_errors: self.in_csum_errors.wrapping_sub(earlier.in_csum_errors),
        }
    }

    fn parse_snmp_text(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, values) = (lines.next()?, lines.next()?);
        let find = |wanted: &str| {
            names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == wanted)?.1.parse().ok()
        };
        Some(Self {
            in_datagrams: find("InDatagrams")?,
            no_ports: find("NoPorts")?,
            in_errors: find("InErrors")?,
            rcvbuf_errors: find("RcvbufErrors")?,
            in_csum_errors: find("InCsumErrors")?,
        })
    }
}

/// Packets to this host itself that the kernel dropped because too many were waiting for one CPU
/// (`net.core.netdev_max_backlog`), since the calling thread's namespace was created. The kernel counts them at
/// the interface `lo`, not at a socket.
///
/// # Errors
/// `/proc` is not mounted, or `lo` is missing.
pub fn loopback_drops() -> Result<u64> {
    parse_loopback_drops(&read_proc("/proc/thread-self/net/dev")?)
        .ok_or_else(|| malformed("/proc/thread-self/net/dev has no counters of lo"))
}

/// Datagrams dropped by the kernel at the UDP socket bound to `local`, of any process, or at all sockets
/// sharing the address; `None` if there is no such socket in the calling thread's namespace.
///
/// # Errors
/// `/proc` is not mounted.
pub fn socket_drops(local: SocketAddrV4) -> Result<Option<u64>> {
    Ok(parse_socket_drops(&read_proc("/proc/thread-self/net/udp")?, local))
}

/// Kernel memory used by the receive queue of the UDP socket bound to `local`, of any process, or by all
/// sockets sharing the address, in bytes: several hundred per small datagram. `None` if there is no such
/// socket in the calling thread's namespace.
///
/// # Errors
/// `/proc` is not mounted.
pub fn socket_backlog(local: SocketAddrV4) -> Result<Option<u64>> {
    Ok(parse_socket_backlog(&read_proc("/proc/thread-self/net/udp")?, local))
}

/// Whether a UDP socket of any process is bound to `local`, or to its port at every address.
///
/// # Errors
/// `/proc` is not mounted.
pub fn is_udp_bound(local: SocketAddrV4) -> Result<bool> {
    let text = read_proc("/proc/thread-self/net/udp")?;
    let every = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port());
    if [local, every].iter().any(|address| socket_lines(&text, *address).next().is_some()) {
        return Ok(true);
    }
    // A host without IPv6 has no such file.
    let text = read_proc("/proc/thread-self/net/udp6").unwrap_or_default();
    let every = format!("{:032}:{:04X}", 0, local.port());
    Ok(text.lines().skip(1).any(|line| line.split_whitespace().nth(1) == Some(&*every)))
}

/// Whether `to` is an address of this host where no UDP socket is bound, so that anything sent there is lost.
/// `false` if that cannot be determined, as for other hosts.
pub fn is_nobody_at(to: SocketAddrV4) -> bool {
    let is_ours = std::net::UdpSocket::bind((*to.ip(), 0)).is_ok();
    is_ours && is_udp_bound(to).is_ok_and(|bound| !bound)
}

fn parse_loopback_drops(text: &str) -> Option<u64> {
    let received = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    // The field after bytes, packets and errors.
    received.split_whitespace().nth(3)?.parse().ok()
}

fn parse_socket_drops(text: &str, local: SocketAddrV4) -> Option<u64> {
    sum(socket_lines(text, local).map(|line| line.last()?.parse().ok()))
}

fn parse_socket_backlog(text: &str, local: SocketAddrV4) -> Option<u64> {
    // After the address come the peer, the state, and the two queues.
    let received = |mut line: std::str::SplitWhitespace<'_>| {
        let (_, received) = line.nth(2)?.split_once(':')?;
        u64::from_str_radix(received, 16).ok()
    };
    sum(socket_lines(text, local).map(received))
}

/// The sum over all sockets; `None` if there are none, or if a line cannot be parsed.
fn sum(mut each: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    let first = each.next()??;
    each.try_fold(first, |sum, one| Some(sum + one?))
}

/// The fields after the local address, for each socket bound to it.
fn socket_lines(text: &str, local: SocketAddrV4) -> impl Iterator<Item = std::str::SplitWhitespace<'_>> {
    text.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let (ip, port) = fields.nth(1)?.split_once(':')?;
        // The address is printed as a number in host byte order.
        let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
        let address = SocketAddrV4::new(ip, u16::from_str_radix(port, 16).ok()?);
        (address == local).then_some(fields)
    })
}

fn read_proc(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(LinkError::io_with_context(format!("cannot read {path}")))
}

fn malformed(what: &str) -> LinkError {
    LinkError::Io { what: what.into(), source: std::io::ErrorKind::InvalidData.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNMP: &str = "Icmp: InMsgs OutMsgs\nIcmp: 7 8\n\
        Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors\n\
        Udp: 100 2 30 140 20 4 10 0 0\n\
        UdpLite: InDatagrams\nUdpLite: 0\n";

    #[test]
    fn counters_are_found_by_name() {
        let stats = UdpStats::parse_snmp_text(SNMP).unwrap();
        assert_eq!((stats.in_datagrams, stats.no_ports, stats.in_errors), (100, 2, 30));
        assert_eq!((stats.rcvbuf_errors, stats.in_csum_errors), (20, 10));
        assert_eq!(UdpStats::parse_snmp_text("Icmp: InMsgs\nIcmp: 7\n"), None);
    }

    #[test]
    fn the_difference_is_what_happened_between() {
        let earlier = UdpStats { in_errors: 5, in_datagrams: 60, ..UdpStats::default() };
        let later = UdpStats { in_errors: 7, in_datagrams: 100, ..UdpStats::default() };
        assert_eq!(
            later.increase_since(&earlier),
            UdpStats { in_errors: 2, in_datagrams: 40, ..UdpStats::default() }
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_socket_is_found_by_its_address() {
        let text = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
            104: 0100007F:12B7 00000000:0000 07 00000000:00000300 00:00000000 00000000     0        0 3344 2 0000000000000000 17\n";
        assert_eq!(parse_socket_drops(text, "127.0.0.1:4791".parse().unwrap()), Some(17));
        assert_eq!(parse_socket_drops(text, "127.0.0.2:4791".parse().unwrap()), None);
        assert_eq!(parse_socket_backlog(text, "127.0.0.1:4791".parse().unwrap()), Some(0x300));
        assert_eq!(parse_socket_backlog(text, "127.0.0.1:4792".parse().unwrap()), None);
        // Two sockets that share the address.
        let twice = format!("{text}{}", text.lines().nth(1).unwrap());
        assert_eq!(parse_socket_drops(&twice, "127.0.0.1:4791".parse().unwrap()), Some(34));
        assert_eq!(parse_socket_backlog(&twice, "127.0.0.1:4791".parse().unwrap()), Some(0x600));
    }

    #[test]
    fn drops_at_lo_are_read() {
        let text = "Inter-|   Receive                  |  Transmit\n face |bytes packets errs drop fifo|bytes\n\
            eth0: 1 2 3 4 0 0 0 0 1 2 0 0 0 0 0 0\n    lo: 900 20 0 70 0 0 0 0 900 20 0 0 0 0 0 0\n";
        assert_eq!(parse_loopback_drops(text), Some(70));
        assert_eq!(parse_loopback_drops(&text.replace("lo:", "eth1:")), None);
    }

    #[test]
    fn this_machine_has_the_counters() {
        loopback_drops().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(local) = socket.local_addr().unwrap() else {
            unreachable!("bound to IPv4")
        };
        let before = UdpStats::read().unwrap();
        socket.send_to(&[1], local).unwrap();
        socket.recv(&mut [0; 8]).unwrap();
        let moved = UdpStats::read().unwrap().increase_since(&before);
        assert!(moved.in_datagrams >= 1, "{moved:?}");
        assert_eq!(socket_drops(local).unwrap(), Some(0));
    }
}
