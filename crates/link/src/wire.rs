//! Frames of an interface, through a packet socket or AF_XDP as configured.

use std::fmt;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::time::Duration;

use dta_proto::batch::PacketBatch;

use crate::packet::NetworkInterface;
use crate::{Link, LinkCounters, LinkError, PacketConfig, PacketLink, Result, Scope, XdpConfig, XdpLink};

dta_proto::named! {
    /// The kind of sockets for an interface's frames.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SocketKind {
        /// AF_PACKET ([`crate::packet`]).
        Packet: "packet",
        /// AF_XDP ([`crate::xdp`]).
        Xdp: "xdp",
        /// AF_XDP if available, else AF_PACKET.
        Auto: "auto",
    }
}

/// An interface and the kind of sockets: written `packet:NAME`, `xdp:NAME` or `auto:NAME`; the name alone
/// means the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wire {
    pub kind: SocketKind,
    pub interface: String,
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let named =
            s.split_once(':').and_then(|(kind, interface)| Some((SocketKind::from_name(kind)?, interface)));
        let (kind, interface) = named.unwrap_or((SocketKind::Packet, s));
        // IFNAMSIZ is 16, including the terminating zero.
        match (1..=15).contains(&interface.len()) {
            true => Ok(Self { kind, interface: interface.into() }),
            false => {
                Err("must be \"packet:INTERFACE\", \"xdp:INTERFACE\" or \"auto:INTERFACE\", with a name \
                          of at most 15 bytes"
                    .into())
            }
        }
    }
}

dta_proto::serde_as_text!(Wire);

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.interface)
    }
}

/// Whole frames of an interface, through sockets of either kind.
pub struct WireLink {
    inner: WireBackend,
    /// Why it is not AF_XDP, if that was tried.
    fallback: Option<LinkError>,
}

enum WireBackend {
    Packet(Box<PacketLink>),
    Xdp(Box<XdpLink>),
}

impl WireLink {
    /// Opens a link with sockets of this `kind` and with `config`. `address` is our IPv4 address
    /// ([`XdpConfig::address`]).
    ///
    /// # Errors
    /// As [`PacketLink::open`] and [`XdpLink::open`]. With [`SocketKind::Auto`], AF_XDP errors are not errors.
    pub fn open(kind: SocketKind, config: &PacketConfig, address: Option<Ipv4Addr>) -> Result<Self> {
        let xdp = || {
            XdpLink::open(&XdpConfig {
                receive_buffer: config.receive_buffer,
                mac: config.mac,
                address,
                ipv6_address: config.ipv6_address,
                ..XdpConfig::new(&*config.interface, &*config.ports)
            })
        };
        let fallback = match kind {
            SocketKind::Packet => None,
            SocketKind::Xdp => return xdp().map(Self::from),
            SocketKind::Auto => match xdp() {
                Ok(link) => return Ok(link.into()),
                Err(error) => Some(error),
            },
        };
        Ok(Self { fallback, ..PacketLink::open(config)?.into() })
    }

    /// The interface as it was when the link was opened.
    pub fn interface(&self) -> &NetworkInterface {
        match &self.inner {
            WireBackend::Packet(link) => link.interface(),
            WireBackend::Xdp(link) => link.interface(),
        }
    }

    /// A description of the sockets that carry the frames.
    pub fn describe(&self) -> String {
        match (&self.inner, &self.fallback) {
            (WireBackend::Packet(_), None) => "AF_PACKET".into(),
            (WireBackend::Packet(_), Some(why)) => {
                format!("AF_PACKET, because AF_XDP is not available: {why}")
            }
            (WireBackend::Xdp(link), _) => {
                let mode = link.program_mode().map(|mode| format!(", {mode} mode")).unwrap_or_default();
                let copies = if link.zero_copy() { "without copies" } else { "with a copy" };
                format!("AF_XDP{mode}, {copies} in the kernel, queues: {}", link.queue_count())
            }
        }
    }

    /// Why it is not AF_XDP, if that was tried ([`SocketKind::Auto`]).
    pub fn fallback_reason(&self) -> Option<&LinkError> {
        self.fallback.as_ref()
    }
}

impl From<PacketLink> for WireLink {
    fn from(link: PacketLink) -> Self {
        Self { inner: WireBackend::Packet(Box::new(link)), fallback: None }
    }
}

impl From<XdpLink> for WireLink {
    fn from(link: XdpLink) -> Self {
        Self { inner: WireBackend::Xdp(Box::new(link)), fallback: None }
    }
}

impl AsFd for WireLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.inner {
            WireBackend::Packet(link) => link.as_fd(),
            WireBackend::Xdp(link) => link.as_fd(),
        }
    }
}

impl Link for WireLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        match &mut self.inner {
            WireBackend::Packet(link) => link.recv(batch, timeout),
            WireBackend::Xdp(link) => link.recv(batch, timeout),
        }
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        match &mut self.inner {
            WireBackend::Packet(link) => link.send(batch),
            WireBackend::Xdp(link) => link.send(batch),
        }
    }

    fn link_counters(&self) -> LinkCounters {
        match &self.inner {
            WireBackend::Packet(link) => link.link_counters(),
            WireBackend::Xdp(link) => link.link_counters(),
        }
    }

    fn corruption_scope(&self) -> Scope {
        match &self.inner {
            WireBackend::Packet(link) => link.corruption_scope(),
            WireBackend::Xdp(link) => link.corruption_scope(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_in_text() {
        for (text, kind, interface, again) in [
            ("eth1", SocketKind::Packet, "eth1", "packet:eth1"),
            ("packet:eth1", SocketKind::Packet, "eth1", "packet:eth1"),
            ("xdp:eth1", SocketKind::Xdp, "eth1", "xdp:eth1"),
            ("auto:enp1s0f0np0", SocketKind::Auto, "enp1s0f0np0", "auto:enp1s0f0np0"),
            ("xdp", SocketKind::Packet, "xdp", "packet:xdp"),
        ] {
            let wire: Wire = text.parse().unwrap();
            assert_eq!((wire.kind, &*wire.interface), (kind, interface));
            assert_eq!(wire.to_string(), again);
            assert_eq!(again.parse(), Ok(wire));
        }
        for wrong in ["", "xdp:", "auto:sixteen-letters-", "sixteen-letters-"] {
            assert!(wrong.parse::<Wire>().is_err(), "{wrong}");
        }
    }
}
