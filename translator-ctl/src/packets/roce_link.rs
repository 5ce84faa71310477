//! The link that RoCEv2 frames leave by and answers come in by: a UDP socket, or the raw frames of
//! an interface.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_link::{
    Batch, Counters, EthernetLink, Link, LinkError, PacketConfig, Result, Scope, UdpConfig, UdpLink,
};

use crate::config::Translator;
use dta_proto::program::{Change, Endpoint, Entry, Mac};

/// A UDP socket, or raw frames under an address of our own.
pub enum RoceLink {
    /// Unprivileged.
    Udp(UdpLink),
    /// Whole frames: what a NIC behind a wire needs.
    Ethernet(EthernetLink),
}

impl RoceLink {
    /// Opens the link that the configuration asks for. Gives the endpoint that the collector is to answer to.
    ///
    /// # Errors
    /// As the links'; and an IPv6 address.
    pub fn open(config: &Translator) -> Result<(RoceLink, Endpoint)> {
        let endpoint = config.endpoint();
        let source = std::net::SocketAddr::new(config.source, config.source_port);
        let Some(interface) = &config.link else {
            let link = UdpLink::open(&UdpConfig::roce(source))?;
            let port = link.local_addr().port();
            return Ok((RoceLink::Udp(link), Endpoint { port, ..endpoint }));
        };
        let IpAddr::V4(ip) = config.source else { return Err(LinkError::Ipv6(source)) };
        let link = EthernetLink::open(&PacketConfig::new(interface, [config.source_port]), ip)?;
        let mac = link.interface().mac;
        Ok((RoceLink::Ethernet(link), Endpoint { mac: Mac(mac), ..endpoint }))
    }

    /// Takes note of where the queue pairs among `changes` send to.
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

    /// Whether frames can leave: each destination's Ethernet address is known, or nobody answered
    /// for it for so long that frames to it are rather counted as unreachable. To be called again
    /// and again until it is so.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn settle(&mut self) -> Result<bool> {
        match self {
            RoceLink::Udp(_) => Ok(true),
            RoceLink::Ethernet(link) => link.settle(),
        }
    }

    /// Destinations that nobody answered for.
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
            RoceLink::Udp(link) => link.recv(batch, timeout),
            RoceLink::Ethernet(link) => link.recv(batch, timeout),
        }
    }

    fn send(&mut self, batch: &mut Batch) -> Result<usize> {
        match self {
            RoceLink::Udp(link) => link.send(batch),
            RoceLink::Ethernet(link) => link.send(batch),
        }
    }

    fn counters(&self) -> Counters {
        match self {
            RoceLink::Udp(link) => link.counters(),
            RoceLink::Ethernet(link) => link.counters(),
        }
    }

    fn scope(&self) -> Scope {
        match self {
            RoceLink::Udp(link) => link.scope(),
            RoceLink::Ethernet(link) => link.scope(),
        }
    }
}
