//! IPv4 over Ethernet, with an address of the link's own that the kernel need not have.
//!
//! On top of [`crate::packet`] or [`crate::xdp`], this adds Ethernet headers to what is sent, answers ARP for
//! its address, and resolves destinations. Neighbours must be on the link itself: there is no routing.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use dta_proto::batch::PacketBatch;
use dta_proto::wire::arp::TYPE_ARP;
use dta_proto::wire::ethernet::{self, Mac};
use dta_proto::wire::ipv4;

use crate::neighbours::{ARP_FRAME, Neighbours};
use crate::packet::NetworkInterface;
use crate::{Link, LinkCounters, PacketConfig, Result, Scope, SocketKind, WireLink};

/// ARP messages per batch; further requests and answers go into the next.
const ARP_BATCH: usize = 8;

/// Sends and receives IPv4 packets under its own address.
pub struct EthernetLink {
    link: WireLink,
    mac: [u8; 6],
    ip: Ipv4Addr,
    neighbours: Neighbours,
    arp: PacketBatch,
    /// ARP messages, and fragments of others' datagrams, counted by the link below.
    heard: (u64, u64),
    said: (u64, u64),
    unreachable: u64,
}

impl EthernetLink {
    /// Opens the link with the address `ip`, which should not be one of the kernel's (see [`crate::packet`]).
    ///
    /// # Errors
    /// As [`crate::PacketLink::open`].
    pub fn open(config: &PacketConfig, ip: Ipv4Addr) -> Result<Self> {
        Self::open_with_kind(SocketKind::Packet, config, ip)
    }

    /// The same, with frames sent and received by sockets of this `kind`.
    ///
    /// # Errors
    /// As [`WireLink::open`].
    pub fn open_with_kind(kind: SocketKind, config: &PacketConfig, ip: Ipv4Addr) -> Result<Self> {
        let link = WireLink::open(kind, config, Some(ip))?;
        let mac = config.mac.unwrap_or(link.interface().mac);
        let neighbours = Neighbours::new(Mac(mac), ip);
        let arp = PacketBatch::with_packet_capacity(ARP_BATCH, ARP_FRAME);
        Ok(Self { link, mac, ip, neighbours, arp, heard: (0, 0), said: (0, 0), unreachable: 0 })
    }

    /// The interface, as of when the link was opened.
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
    /// later speaks ARP from another Ethernet address, that one is used.
    pub fn add_neighbour(&mut self, ip: Ipv4Addr, mac: Option<[u8; 6]>) {
        self.neighbours.add_neighbour(ip, mac.map(Mac), Instant::now());
    }

    /// Sends ARP requests that are due, and returns whether all neighbours are known or have been silent for
    /// 3 s. Until then, packets to them would be lost; afterwards they count as unreachable. `recv` processes
    /// received ARP.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn resolve_neighbours(&mut self) -> Result<bool> {
        let now = Instant::now();
        while !self.arp.is_full()
            && let Some(frame) = self.neighbours.next_due_request(now)
        {
            self.queue_arp_frame(&frame);
        }
        self.send_queued_arp()?;
        Ok(self.neighbours.is_settled(now))
    }

    pub fn silent_neighbours(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.neighbours.silent_neighbours()
    }

    fn queue_arp_frame(&mut self, frame: &[u8; ARP_FRAME]) {
        // A full batch loses a message; the sender will ask again.
        let _ = self.arp.push_frame(frame, 0);
    }

    fn send_queued_arp(&mut self) -> Result<()> {
        if !self.arp.is_empty() {
            let sent = self.link.send(&mut self.arp)? as u64;
            self.said.0 += sent;
            self.said.1 += sent * dta_proto::wire::arp::LEN as u64;
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
        let Self { ip, neighbours, arp, heard, .. } = self;
        batch.retain(|frame, packet| {
            let frame = frame.and_then(|bytes| ethernet::EthernetFrame::new_checked(bytes).ok());
            let is_arp = frame.is_some_and(|frame| frame.ethertype() == TYPE_ARP);
            if is_arp && let Some(answer) = neighbours.handle_arp_message(packet) {
                let _ = arp.push_frame(&answer, 0);
            }
            let not_ours = is_arp || is_later_fragment_to_another(packet, *ip);
            if not_ours {
                heard.0 += 1;
                heard.1 += packet.len() as u64;
            }
            !not_ours
        });
        self.send_queued_arp()?;
        Ok(batch.len())
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        let mut last: Option<(Ipv4Addr, [u8; dta_proto::batch::ETHERNET_LEN])> = None;
        for index in 0..batch.len() {
            // A packet with an Ethernet header keeps it.
            if batch.ethernet_frame(index).is_some() {
                continue;
            }
            // Read from the header if the writer did not record it, even in damaged packets. One too short
            // for a header gets no Ethernet header, and the link below counts it as malformed.
            let told = batch.addresses(index).map(|addresses| *addresses.destination.ip());
            let Some(to) = told.or_else(|| {
                Some(ipv4::Ipv4Header::from_first_bytes(batch.packet(index))?.destination_address())
            }) else {
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

    /// Does not count ARP, nor fragments without ports to another address; packets to a silent neighbour are
    /// unreachable.
    fn link_counters(&self) -> LinkCounters {
        let below = self.link.link_counters();
        LinkCounters {
            received: below.received - self.heard.0,
            received_bytes: below.received_bytes - self.heard.1,
            sent: below.sent - self.said.0,
            sent_bytes: below.sent_bytes - self.said.1,
            unsent_unreachable: below.unsent_unreachable + self.unreachable,
            unsent_malformed: below.unsent_malformed - self.unreachable,
            ..below
        }
    }

    fn corruption_scope(&self) -> Scope {
        self.link.corruption_scope()
    }
}

/// Whether an IPv4 packet is a fragment without ports for an address other than `ip`: part of one of the
/// kernel's own datagrams.
fn is_later_fragment_to_another(packet: &[u8], ip: Ipv4Addr) -> bool {
    ipv4::Ipv4Header::from_first_bytes(packet)
        .is_some_and(|header| header.is_later_fragment() && header.destination_address() != ip)
}
