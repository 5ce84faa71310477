//! The link for outgoing RoCEv2 frames and incoming answers: a UDP socket, or raw frames on an interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_link::shared_ring::End;
use dta_link::{
    EthernetLink, HostLink, Link, LinkCounters, LinkError, PacketConfig, Result, RingCounters, RunUse, Scope,
    UdpConfig, UdpLink,
};
use dta_proto::batch::PacketBatch;
use dta_proto::wire::roce::settle_icrc;

use tracing::{info, warn};

use crate::config::TranslatorConfig;
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Endpoint, Mac};

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
    pub fn open(config: &TranslatorConfig) -> Result<(RoceLink, Endpoint)> {
        let endpoint = config.frame_endpoint();
        let source = std::net::SocketAddr::new(config.source, config.source_port);
        let Some(wire) = &config.link else {
            // In reference mode, frames leave as they are made.
            let udp = match config.runs && !config.reference {
                true => UdpConfig::roce_in_runs(source),
                false => UdpConfig::for_roce_frames(source),
            };
            let link = UdpLink::open(&udp)?;
            let (port, runs) = (link.local_addr().port(), link.run_use().receive);
            return Ok((RoceLink::from_udp_link(link), Endpoint { port, runs, ..endpoint }));
        };
        let IpAddr::V4(ip) = config.source else { return Err(LinkError::Ipv6(source)) };
        let ports = PacketConfig::new(&*wire.interface, [config.source_port]);
        let link = EthernetLink::open_with_kind(wire.kind, &ports, ip)?;
        match link.wire_link().fallback_reason() {
            None => info!(%wire, frames = link.wire_link().describe(), "the link to collectors"),
            Some(_) => warn!(%wire, frames = link.wire_link().describe(), "the link to collectors"),
        }
        let mac = link.interface().mac;
        Ok((RoceLink::Ethernet(Box::new(link)), Endpoint { mac: Mac(mac), ..endpoint }))
    }

    /// A UDP socket without rings.
    pub fn from_udp_link(link: UdpLink) -> RoceLink {
        RoceLink::Udp(Box::new(HostLink::new(link)))
    }

    /// How runs of frames are handled on a UDP socket.
    pub fn udp_run_use(&self) -> Option<RunUse> {
        match self {
            RoceLink::Udp(link) => Some(link.udp_link().run_use()),
            RoceLink::Ethernet(_) => None,
        }
    }

    /// Learns the destinations of the queue pairs among `changes`.
    pub fn learn_destinations(&mut self, changes: &[DataPlaneChange]) {
        let RoceLink::Ethernet(link) = self else { return };
        for change in changes {
            if let DataPlaneChange::Insert { entry: DataPlaneEntry::QueuePair(pair) }
            | DataPlaneChange::Modify { to: DataPlaneEntry::QueuePair(pair), .. } = change
                && let IpAddr::V4(ip) = pair.destination.ip
            {
                link.add_neighbour(ip, pair.destination.known_mac().map(|mac| mac.0));
            }
        }
    }

    /// Whether frames can be sent: each destination's Ethernet address is known, or it was silent for so long
    /// that frames to it now count as unreachable. Call it repeatedly until true.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn resolve_destinations(&mut self) -> Result<bool> {
        match self {
            RoceLink::Udp(_) => Ok(true),
            RoceLink::Ethernet(link) => link.resolve_neighbours(),
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
    pub fn wait_for_answers(&mut self, others: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool> {
        match self {
            RoceLink::Udp(link) => link.wait_for_input(others, Some(timeout)),
            RoceLink::Ethernet(link) => {
                let own = std::iter::once(link.as_fd());
                let all: Vec<_> = own.chain(others.iter().copied()).collect();
                dta_link::wait_readable(&all, Some(timeout))
            }
        }
    }

    pub fn silent_destinations(&self) -> Vec<Ipv4Addr> {
        match self {
            RoceLink::Udp(_) => Vec::new(),
            RoceLink::Ethernet(link) => link.silent_neighbours().collect(),
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
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
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

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        match self {
            RoceLink::Udp(link) => link.send(batch),
            RoceLink::Ethernet(link) => link.send(batch),
        }
    }

    fn link_counters(&self) -> LinkCounters {
        match self {
            RoceLink::Udp(link) => link.link_counters(),
            RoceLink::Ethernet(link) => link.link_counters(),
        }
    }

    fn ring_counters(&self) -> RingCounters {
        match self {
            RoceLink::Udp(link) => link.ring_counters(),
            RoceLink::Ethernet(link) => link.ring_counters(),
        }
    }

    fn corruption_scope(&self) -> Scope {
        match self {
            RoceLink::Udp(link) => link.corruption_scope(),
            RoceLink::Ethernet(link) => link.corruption_scope(),
        }
    }
}
