//! Addresses and lower headers of a queue pair's frames.

use core::net::{Ipv4Addr, SocketAddrV4};

use crate::wire::error::saturating_u16;
use crate::wire::ethernet::{self, Mac};
use crate::wire::roce::{self, ICRC_LEN};
use crate::wire::{Error, Layer, Result, WireErrorKind, datagram, ipv4, udp};

/// Everything below the BTH that a queue pair's frames share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRoute {
    /// Destination and source MAC address; without them a frame starts at its IPv4 header.
    pub ethernet: Option<(Mac, Mac)>,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// IPv4 type of service.
    pub tos: u8,
    /// IPv4 time to live.
    pub ttl: u8,
}

/// The UDP source port of frames to this queue pair: `0xC000 | (QPN & 0x3fff)`.
pub const fn source_port(dest_qp: u32) -> u16 {
    0xc000 | (dest_qp & 0x3fff) as u16
}

impl FrameRoute {
    /// The profile's route to a queue pair, without Ethernet header.
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, dest_qp: u32) -> FrameRoute {
        FrameRoute {
            ethernet: None,
            src,
            dst,
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
            ethernet::EthernetRepr { dst, src, ethertype: ethernet::TYPE_IPV4 }.encode_into(&mut header);
            header
        })
    }

    /// Source address and port.
    pub const fn source(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.src, self.src_port)
    }

    /// Destination address and port.
    pub const fn destination(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.dst, self.dst_port)
    }

    /// The IPv4 and UDP headers for `len` bytes from BTH to iCRC.
    pub(super) fn ip_udp_header(&self, len: u16) -> [u8; datagram::HEADER_LEN] {
        datagram::header_with(self.source(), self.destination(), len.into(), self.tos, self.ttl)
    }

    /// Length of the frame that carries `packet`.
    pub const fn buffer_len(&self, packet: &roce::RoceRepr<'_>) -> usize {
        self.ethernet_len() + ipv4::HEADER_LEN + udp::HEADER_LEN + packet.buffer_len() + ICRC_LEN
    }

    /// Writes the whole frame that carries `packet` to the start of `buffer` and returns its length.
    ///
    /// Fails if the buffer is too small, the frame exceeds the longest IPv4 packet, or the packet is invalid
    /// ([`roce::RoceRepr::encode_into`]).
    pub fn write_frame(&self, packet: &roce::RoceRepr<'_>, buffer: &mut [u8]) -> Result<usize> {
        let need = self.buffer_len(packet);
        let have = saturating_u16(buffer.len());
        let Ok(len) = u16::try_from(packet.buffer_len() + ICRC_LEN) else {
            return Err(Error::new(Layer::Roce, "payload", 0, WireErrorKind::Length(u16::MAX)));
        };
        if len > u16::MAX - (ipv4::HEADER_LEN + udp::HEADER_LEN) as u16 {
            return Err(Error::new(Layer::Ipv4, "total_length", 2, WireErrorKind::Length(u16::MAX)));
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
        let (headers, transport) = ip.split_at_mut(ipv4::HEADER_LEN + udp::HEADER_LEN);
        packet.encode_into(transport)?;
        headers.copy_from_slice(&self.ip_udp_header(len));
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
