//! Addresses and lower headers of a queue pair's frames.

use core::net::{IpAddr, Ipv4Addr};

use crate::wire::error::saturating_u16;
use crate::wire::ethernet::{self, Mac};
use crate::wire::roce::{self, ICRC_LEN};
use crate::wire::{AddressPair, Error, Layer, Result, WireErrorKind, datagram};

/// Everything below the BTH that a queue pair's frames share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRoute {
    /// Destination and source MAC address; without them a frame starts at its IP header.
    pub ethernet: Option<(Mac, Mac)>,
    /// Source and destination address.
    pub addresses: AddressPair,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// IPv4 type of service, or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 time to live, or IPv6 hop limit.
    pub ttl: u8,
}

/// The UDP source port of frames to this queue pair: `0xC000 | (QPN & 0x3fff)`.
pub const fn source_port(dest_qp: u32) -> u16 {
    0xc000 | (dest_qp & 0x3fff) as u16
}

impl FrameRoute {
    /// The profile's route to a queue pair over IPv4, without Ethernet header.
    pub const fn new(source: Ipv4Addr, destination: Ipv4Addr, dest_qp: u32) -> FrameRoute {
        FrameRoute::with_addresses(AddressPair::V4 { source, destination }, dest_qp)
    }

    /// As [`FrameRoute::new`], over IPv4 or IPv6; `None` if the addresses are of different families.
    pub const fn from_addresses(source: IpAddr, destination: IpAddr, dest_qp: u32) -> Option<FrameRoute> {
        match AddressPair::from_addresses(source, destination) {
            Some(addresses) => Some(FrameRoute::with_addresses(addresses, dest_qp)),
            None => None,
        }
    }

    const fn with_addresses(addresses: AddressPair, dest_qp: u32) -> FrameRoute {
        FrameRoute {
            ethernet: None,
            addresses,
            src_port: source_port(dest_qp),
            dst_port: roce::PORT,
            tos: 0,
            ttl: 64,
        }
    }

    /// Length of the Ethernet header, 0 or 14.
    pub(super) const fn ethernet_len(&self) -> usize {
        if self.ethernet.is_some() { ethernet::HEADER_LEN } else { 0 }
    }

    /// The Ethernet header, if any.
    pub(super) fn ethernet_header(&self) -> Option<[u8; ethernet::HEADER_LEN]> {
        self.ethernet.map(|(dst, src)| {
            let mut header = [0; ethernet::HEADER_LEN];
            let ethertype = match self.addresses {
                AddressPair::V4 { .. } => ethernet::TYPE_IPV4,
                AddressPair::V6 { .. } => ethernet::TYPE_IPV6,
            };
            ethernet::EthernetRepr { dst, src, ethertype }.encode_into(&mut header);
            header
        })
    }

    /// Writes the IP and UDP headers for `len` bytes from BTH to iCRC into `out`, which has exactly their length.
    pub(super) fn write_ip_udp(&self, len: u16, out: &mut [u8]) {
        let ports = (self.src_port, self.dst_port);
        datagram::write_header(&self.addresses, ports, len.into(), self.tos, self.ttl, out);
    }

    /// Length of the frame that carries `packet`.
    pub const fn buffer_len(&self, packet: &roce::RoceRepr<'_>) -> usize {
        self.ethernet_len() + self.addresses.datagram_header_len() + packet.buffer_len() + ICRC_LEN
    }

    /// Writes the whole frame that carries `packet` to the start of `buffer` and returns its length.
    ///
    /// Fails if the buffer is too small, the frame exceeds the longest packet (65,535 bytes), or the packet is invalid
    /// ([`roce::RoceRepr::encode_into`]).
    pub fn write_frame(&self, packet: &roce::RoceRepr<'_>, buffer: &mut [u8]) -> Result<usize> {
        let need = self.buffer_len(packet);
        let have = saturating_u16(buffer.len());
        let Ok(len) = u16::try_from(packet.buffer_len() + ICRC_LEN) else {
            return Err(Error::new(Layer::Roce, "payload", 0, WireErrorKind::Length(u16::MAX)));
        };
        let header_len = self.addresses.datagram_header_len();
        if usize::from(len) > datagram::PACKET_MAX - header_len {
            return Err(Error::new(Layer::Roce, "frame", 0, WireErrorKind::Length(u16::MAX)));
        }
        let Some(out) = buffer.get_mut(..need) else {
            return Err(Error::new(
                Layer::Roce,
                "frame",
                0,
                WireErrorKind::BufferTooSmall { need: saturating_u16(need), have },
            ));
        };
        let (head, ip) = out.split_at_mut(self.ethernet_len());
        let (headers, transport) = ip.split_at_mut(header_len);
        packet.encode_into(transport)?;
        self.write_ip_udp(len, headers);
        if let Some(header) = self.ethernet_header() {
            head.copy_from_slice(&header);
        }
        let covered = ip.len() - ICRC_LEN;
        let icrc = roce::compute_icrc(&ip[..covered]);
        ip[covered..].copy_from_slice(&icrc.to_le_bytes());
        Ok(need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::roce::{Aeth, BthFields, Psn, RoceRepr, Syndrome, Transport};

    const ROUTE: FrameRoute = FrameRoute::new(Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 1), 0x123);

    #[test]
    fn source_ports() {
        assert_eq!(source_port(0x11), 0xc011);
        assert_eq!(source_port(0xff_ffff), 0xffff);
    }

    #[test]
    fn write_only() {
        let place = BthFields { dest_qp: 0x123, psn: Psn::new(0x64), ack_req: false };
        let packet = RoceRepr::write(Transport::Uc, place, 0x1_0000_0040, 0x5678, &[1, 2, 3, 4], None);
        let mut buffer = [0xa5; 80];
        let len = ROUTE.write_frame(&packet, &mut buffer).unwrap();
        assert_eq!(len, 64);
        assert_eq!(len, ROUTE.buffer_len(&packet));
        let expected = [
            0x45, 0, 0, 64, 0, 0, 0x40, 0, 64, 17, 0x26, 0x99, 10, 9, 0, 2, 10, 9, 0, 1, // IPv4
            0xc1, 0x23, 0x12, 0xb7, 0, 44, 0, 0, // UDP
            0x2a, 0x40, 0xff, 0xff, 0, 0, 0x01, 0x23, 0, 0, 0, 0x64, // BTH
            0, 0, 0, 1, 0, 0, 0, 0x40, 0, 0, 0x56, 0x78, 0, 0, 0, 4, // RETH
            1, 2, 3, 4,
        ];
        assert_eq!(buffer[..60], expected);
        assert!(roce::has_valid_icrc(&buffer[..64]));
        assert_eq!(buffer[64..], [0xa5; 16]);
        let error = ROUTE.write_frame(&packet, &mut buffer[..63]).unwrap_err();
        assert_eq!(error.kind, WireErrorKind::BufferTooSmall { need: 64, have: 63 });
    }

    #[test]
    fn ethernet_goes_in_front() {
        let route =
            FrameRoute { ethernet: Some((Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))), ..ROUTE };
        let place = BthFields { dest_qp: 0x123, psn: Psn::new(0x64), ack_req: false };
        let packet = RoceRepr::acknowledge(place, Aeth { syndrome: Syndrome::ACK, msn: 1 });
        let (mut with, mut without) = ([0xa5; 80], [0xa5; 80]);
        let len = route.write_frame(&packet, &mut with).unwrap();
        assert_eq!(ROUTE.write_frame(&packet, &mut without), Ok(len - 14));
        assert_eq!(with[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        assert_eq!(with[14..len], without[..len - 14]);
    }

    #[test]
    fn too_long_for_ipv4() {
        let place = BthFields { dest_qp: 1, psn: Psn::new(0), ack_req: false };
        let mut buffer = vec![0; 1 << 17];
        for len in [65_476, 65_508, 70_000] {
            let payload = vec![0; len];
            let packet = RoceRepr::write(Transport::Rc, place, 0, 0, &payload, None);
            assert!(
                matches!(ROUTE.write_frame(&packet, &mut buffer).unwrap_err().kind, WireErrorKind::Length(_)),
                "{len}"
            );
        }
        let payload = vec![0; 65_472];
        let packet = RoceRepr::write(Transport::Rc, place, 0, 0, &payload, None);
        assert_eq!(ROUTE.write_frame(&packet, &mut buffer), Ok(65_532));
    }
}
