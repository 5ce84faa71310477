//! The link for outgoing RoCEv2 frames and incoming answers: a UDP socket, or raw frames on an interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_link::shared_ring::End;
use dta_link::{
    EthernetLink, HostLink, Link, LinkCounters, LinkError, PacketConfig, Result, RingCounters, RunUse, Scope,
    UdpConfig, UdpLink,
};
use dta_proto::batch::Batch;
use dta_proto::wire::roce::settle_icrc;

use tracing::{info, warn};

use crate::config::Translator;
use dta_proto::program::{Change, Endpoint, Entry, Mac};

/// A UDP socket, or raw frames under an address of our own.
pub enum RoceLink {
    /// Unprivileged; uses shared-memory rings to collectors on this host that offer one.
    Udp(Box<HostLink>),
    /// Whole frames: needed by a NIC behind a wire.
    Ethernet(Box<EthernetLink>),
}

impl RoceLink {
    /// Opens the configured link. Returns the endpoint for the collector's answers.
    ///
    /// # Errors
    /// As for the links; and an IPv6 address.
    pub fn open(config: &Translator) -> Result<(RoceLink, Endpoint)> {
        let endpoint = config.endpoint();
        let source = std::net::SocketAddr::new(config.source, config.source_port);
        let Some(wire) = &config.link else {
            // In reference mode, frames leave as they are made.
            let udp = match config.runs && !config.reference {
                true => UdpConfig::roce_in_runs(source),
                false => UdpConfig::roce(source),
            };
            let link = UdpLink::open(&udp)?;
            let (port, runs) = (link.local_addr().port(), link.runs().receive);
            return Ok((RoceLink::udp(link), Endpoint { port, runs, ..endpoint }));
        };
        let IpAddr::V4(ip) = config.source else { return Err(LinkError::Ipv6(source)) };
        let ports = PacketConfig::new(&*wire.interface, [config.source_port]);
        let link = EthernetLink::open_by(wire.kind, &ports, ip)?;
        match link.wire().fallback() {
            None => info!(%wire, frames = link.wire().describe(), "the link to collectors"),
            Some(_) => warn!(%wire, frames = link.wire().describe(), "the link to collectors"),
        }
        let mac = link.interface().mac;
        Ok((RoceLink::Ethernet(Box::new(link)), Endpoint { mac: Mac(mac), ..endpoint }))
    }

    /// A UDP socket without rings.
    pub fn udp(link: UdpLink) -> RoceLink {
        RoceLink::Udp(Box::new(HostLink::new(link)))
    }

    /// How runs of frames are handled on a UDP socket.
    pub fn runs(&self) -> Option<RunUse> {
        match self {
            RoceLink::Udp(link) => Some(link.udp().runs()),
            RoceLink::Ethernet(_) => None,
        }
    }

    /// Learns the destinations of the queue pairs among `changes`.
    pub fn follow(&mut self, changes: &[Change]) {
        let RoceLink::Ethernet(link) = self else { return };
        for change in changes {
            if let Change::Insert { entry: Entry::QueuePair(pair) }
            | Change::Modify { to: Entry::QueuePair(pair), .. } = change
                && let IpAddr::V4(ip) = pair.destination.ip
            {
                link.want(ip, pair.destination.known_mac().map(|mac| mac.0));
            }
        }
    }

    /// Whether frames can be sent: each destination's Ethernet address is known, or it was silent for so long
    /// that frames to it now count as unreachable. Call it repeatedly until true.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn settle(&mut self) -> Result<bool> {
        match self {
            RoceLink::Udp(_) => Ok(true),
            RoceLink::Ethernet(link) => link.settle(),
        }
    }

    /// Sends frames to the NIC at the other end of `end` through the ring from now on.
    pub fn add_ring(&mut self, end: End) {
        if let RoceLink::Udp(link) = self {
            link.add(end);
        }
    }

    /// Whether frames to the NIC at this address go through a ring.
    pub fn has_ring(&self, nic: SocketAddrV4) -> bool {
        matches!(self, RoceLink::Udp(link) if link.has_ring(nic))
    }

    /// Logs which rings have ended.
    pub fn tell_over(&mut self) {
        let RoceLink::Udp(link) = self else { return };
        for (collector, over) in link.take_over() {
            warn!(%collector, reason = %over, "the ring has ended: frames go by UDP until there is a new one");
        }
    }

    /// Waits for answers, or for something at `others`.
    ///
    /// # Errors
    /// As [`dta_link::wait_readable`].
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool> {
        match self {
            RoceLink::Udp(link) => link.wait(others, Some(timeout)),
            RoceLink::Ethernet(link) => {
                let own = std::iter::once(link.as_fd());
                let all: Vec<_> = own.chain(others.iter().copied()).collect();
                dta_link::wait_readable(&all, Some(timeout))
            }
        }
    }

    /// Destinations that do not answer.
    pub fn silent(&self) -> Vec<Ipv4Addr> {
        match self {
            RoceLink::Udp(_) => Vec::new(),
            RoceLink::Ethernet(link) => link.silent().collect(),
        }
    }
}

impl AsFd for RoceLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            RoceLink::Udp(link) => link.as_fd(),
            RoceLink::Ethernet(link) => link.as_fd(),
        }
    }
}

impl Link for RoceLink {
    fn recv(&mut self, batch: &mut Batch, timeout: Option<Duration>) -> Result<usize> {
        match self {
            RoceLink::Udp(link) => {
                let received = link.recv(batch, timeout)?;
                for index in 0..batch.len() {
                    if batch.id_unknown(index) {
                        settle_icrc(batch.packet_mut(index));
                    }
                }
                Ok(received)
            }
            RoceLink::Ethernet(link) => link.recv(batch, timeout),
        }
    }

    fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        match self {
            RoceLink::Udp(link) => link.send(batch),
            RoceLink::Ethernet(link) => link.send(batch),
        }
    }

    fn counters(&self) -> LinkCounters {
        match self {
            RoceLink::Udp(link) => link.counters(),
            RoceLink::Ethernet(link) => link.counters(),
        }
    }

    fn ring_counters(&self) -> RingCounters {
        match self {
            RoceLink::Udp(link) => link.ring_counters(),
            RoceLink::Ethernet(link) => link.ring_counters(),
        }
    }

    fn scope(&self) -> Scope {
        match self {
            RoceLink::Udp(link) => link.scope(),
            RoceLink::Ethernet(link) => link.scope(),
        }
    }
}
