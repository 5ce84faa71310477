//! IP over Ethernet, with an IPv4 or IPv6 address of the link's own that the kernel need not have.
//!
//! On top of [`crate::packet`] or [`crate::xdp`], this adds Ethernet headers to what is sent, answers ARP or neighbour
//! discovery for its address, and resolves destinations. Neighbours must be on the link itself: there is no routing.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use dta_proto::batch::PacketBatch;
use dta_proto::wire::arp::TYPE_ARP;
use dta_proto::wire::ethernet::{self, Mac, TYPE_IPV6};
use dta_proto::wire::{ipv4, ipv6};

use crate::neighbours::{MESSAGE_MAX, Neighbours};
use crate::packet::NetworkInterface;
use crate::{Link, LinkCounters, PacketConfig, Result, Scope, SocketKind, WireLink};

/// Messages of ARP or neighbour discovery per batch; further requests and answers go into the next.
const RESOLUTION_BATCH: usize = 8;

/// Sends and receives packets under an address of its own.
pub struct EthernetLink {
    link: WireLink,
    mac: [u8; 6],
    ip: IpAddr,
    neighbours: Neighbours,
    /// Messages of ARP or neighbour discovery to send.
    messages: PacketBatch,
    /// Number and bytes of packets that only the link below counts: messages of ARP or neighbour discovery, and
    /// fragments of others' datagrams.
    not_ours_received: (u64, u64),
    messages_sent: (u64, u64),
    unreachable: u64,
}

impl EthernetLink {
    /// Opens the link with the address `ip`, which should not be one of the kernel's (see [`crate::packet`]).
    pub fn open(config: &PacketConfig, ip: impl Into<IpAddr>) -> Result<Self> {
        Self::open_with_kind(SocketKind::Packet, config, ip)
    }

    /// As [`EthernetLink::open`], with frames sent and received by sockets of this `kind`.
    pub fn open_with_kind(kind: SocketKind, config: &PacketConfig, ip: impl Into<IpAddr>) -> Result<Self> {
        let ip = ip.into();
        let link = match ip {
            IpAddr::V4(ip) => WireLink::open(kind, config, Some(ip))?,
            IpAddr::V6(ip) => {
                let config = PacketConfig { ipv6_address: Some(ip), ..config.clone() };
                WireLink::open(kind, &config, None)?
            }
        };
        let mac = config.mac.unwrap_or(link.interface().mac);
        Ok(Self {
            link,
            mac,
            ip,
            neighbours: Neighbours::new(Mac(mac), ip),
            messages: PacketBatch::with_packet_capacity(RESOLUTION_BATCH, MESSAGE_MAX),
            not_ours_received: (0, 0),
            messages_sent: (0, 0),
            unreachable: 0,
        })
    }

    /// The interface as it was when the link was opened.
    pub fn interface(&self) -> &NetworkInterface {
        self.link.interface()
    }

    pub fn wire_link(&self) -> &WireLink {
        &self.link
    }

    /// The link's Ethernet address: the interface's, unless it has its own.
    pub fn mac_address(&self) -> [u8; 6] {
        self.mac
    }

    /// Announces that packets will go to `ip`, which is resolved unless its Ethernet address is given. If it
    /// later speaks ARP or neighbour discovery from another Ethernet address, that one is used.
    pub fn add_neighbour(&mut self, ip: impl Into<IpAddr>, mac: Option<[u8; 6]>) {
        self.neighbours.add_neighbour(ip.into(), mac.map(Mac), Instant::now());
    }

    /// Sends requests that are due, and returns whether all neighbours are known or have been silent for
    /// 3 s. Until then, packets to them would be lost; afterwards they count as unreachable. `recv` processes
    /// received answers.
    pub fn resolve_neighbours(&mut self) -> Result<bool> {
        let now = Instant::now();
        while !self.messages.is_full()
            && let Some(frame) = self.neighbours.next_due_request(now)
        {
            // A full batch loses a message; the sender will ask again.
            let _ = self.messages.push_frame(&frame, 0);
        }
        self.send_queued_messages()?;
        Ok(self.neighbours.is_settled(now))
    }

    pub fn silent_neighbours(&self) -> impl Iterator<Item = IpAddr> {
        self.neighbours.silent_neighbours()
    }

    fn send_queued_messages(&mut self) -> Result<()> {
        if !self.messages.is_empty() {
            // All messages of a link have one length.
            let len = self.messages.packet(0).len() as u64;
            let sent = self.link.send(&mut self.messages)? as u64;
            self.messages_sent.0 += sent;
            self.messages_sent.1 += sent * len;
        }
        Ok(())
    }
}

impl AsFd for EthernetLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl Link for EthernetLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        self.link.recv(batch, timeout)?;
        let Self { ip, neighbours, messages, not_ours_received, .. } = self;
        batch.retain(|frame, packet| {
            let frame = frame.and_then(|bytes| ethernet::EthernetFrame::new_checked(bytes).ok());
            let answer = frame.and_then(|frame| match frame.ethertype() {
                TYPE_ARP => Some(neighbours.handle_arp_message(packet)),
                TYPE_IPV6 if is_icmp(packet) => Some(neighbours.handle_discovery(frame.source_mac(), packet)),
                _ => None,
            });
            if let Some(Some(answer)) = &answer {
                let _ = messages.push_frame(answer, 0);
            }
            let not_ours = answer.is_some() || is_later_fragment_to_another(packet, *ip);
            if not_ours {
                not_ours_received.0 += 1;
                not_ours_received.1 += packet.len() as u64;
            }
            !not_ours
        });
        self.send_queued_messages()?;
        Ok(batch.len())
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        let mut last: Option<(IpAddr, [u8; dta_proto::batch::ETHERNET_LEN])> = None;
        for index in 0..batch.len() {
            // A packet with an Ethernet header keeps it.
            if batch.ethernet_frame(index).is_some() {
                continue;
            }
            // Read from the header if the writer did not record it, even in damaged packets. A packet too short for a
            // header gets no Ethernet header, and the link below counts it as malformed.
            let destination = batch.addresses(index).map(|addresses| IpAddr::V4(*addresses.destination.ip()));
            let Some(to) = destination.or_else(|| destination_address(batch.packet(index))) else {
                continue;
            };
            if last.is_none_or(|(ip, _)| ip != to) {
                last = self.neighbours.ethernet_header(to).map(|header| (to, header));
            }
            match last {
                Some((_, header)) => batch.set_ethernet(index, &header),
                None => self.unreachable += 1,
            }
        }
        self.link.send(batch)
    }

    /// Does not count ARP and neighbour discovery, nor fragments without ports for another address; packets to a
    /// silent neighbour count as unreachable.
    fn link_counters(&self) -> LinkCounters {
        let below = self.link.link_counters();
        LinkCounters {
            received: below.received - self.not_ours_received.0,
            received_bytes: below.received_bytes - self.not_ours_received.1,
            sent: below.sent - self.messages_sent.0,
            sent_bytes: below.sent_bytes - self.messages_sent.1,
            unsent_unreachable: below.unsent_unreachable + self.unreachable,
            unsent_malformed: below.unsent_malformed - self.unreachable,
            ..below
        }
    }

    fn corruption_scope(&self) -> Scope {
        self.link.corruption_scope()
    }
}

/// The destination in a packet's header.
fn destination_address(packet: &[u8]) -> Option<IpAddr> {
    match ipv6::is_ipv6(packet) {
        false => Some(ipv4::Ipv4Header::from_first_bytes(packet)?.destination_address().into()),
        true => Some(ipv6::Ipv6Header::from_first_bytes(packet)?.destination_address().into()),
    }
}

/// Whether an IPv6 packet is ICMP, of which only neighbour discovery is received.
fn is_icmp(packet: &[u8]) -> bool {
    ipv6::Ipv6Header::from_first_bytes(packet).is_some_and(|header| header.next_header() == ipv6::NEXT_ICMPV6)
}

/// Whether an IPv4 packet is a fragment without ports for an address other than `ip`: part of one of the
/// kernel's own datagrams.
fn is_later_fragment_to_another(packet: &[u8], ip: IpAddr) -> bool {
    !ipv6::is_ipv6(packet)
        && ipv4::Ipv4Header::from_first_bytes(packet)
            .is_some_and(|header| header.is_later_fragment() && header.destination_address() != ip)
}
