//! A received RoCEv2 packet, checked from the IP header to the iCRC.

use crate::wire::datagram::UdpDatagram;
use crate::wire::error::saturating_u16;
use crate::wire::roce::{self, BTH_LEN, ICRC_LEN};
use crate::wire::{AddressPair, Error, Layer, Result, WireErrorKind, ipv4, ipv6, udp};

/// A checked packet.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Source and destination.
    pub addresses: AddressPair,
    /// Ports.
    pub udp: udp::UdpPacket<'a>,
    /// BTH to iCRC.
    pub roce: roce::RocePacket<'a>,
}

impl<'a> Received<'a> {
    /// Parses a packet from its IP header; bytes beyond its length are ignored.
    ///
    /// Checks in this order: [`UdpDatagram::parse_packet`] and the IPv4 header checksum, or [`ipv6::parse_packet`]; the UDP
    /// checksum (0 means none), the iCRC, a valid BTH and the headers that its opcode needs. The UDP destination port is
    /// left to the caller.
    #[inline]
    pub fn parse_packet(packet: &'a [u8]) -> Result<Received<'a>> {
        let (addresses, udp) = if ipv6::is_ipv6(packet) {
            let (header, payload) = ipv6::parse_packet(packet, ipv4::PROTOCOL_UDP)?;
            (header.addresses(), udp::UdpPacket::new_checked(payload)?)
        } else {
            let UdpDatagram { ipv4, udp } = UdpDatagram::parse_packet(packet)?;
            ipv4.check_plain()?;
            (ipv4.addresses(), udp)
        };
        udp.verify_checksum(&addresses)?;
        let len = udp.payload().len();
        if len < BTH_LEN + ICRC_LEN {
            let kind =
                WireErrorKind::Truncated { need: (BTH_LEN + ICRC_LEN) as u16, have: saturating_u16(len) };
            return Err(Error::new(Layer::Roce, "bth", 0, kind));
        }
        let whole = packet.get(..addresses.datagram_header_len() + len);
        if !whole.is_some_and(roce::has_valid_icrc) {
            return Err(Error::new(
                Layer::Roce,
                "icrc",
                saturating_u16(len - ICRC_LEN),
                WireErrorKind::Checksum,
            ));
        }
        let roce = roce::RocePacket::new_checked(udp.payload())?;
        Ok(Received { addresses, udp, roce })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::FrameRoute;
    use crate::wire::roce::{Aeth, Bth, BthFields, Opcode, Psn, RoceRepr, Syndrome, Transport};
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    const ROUTE: FrameRoute = FrameRoute::new(Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 1), 0x123);
    const ROUTES: [FrameRoute; 2] = [
        ROUTE,
        FrameRoute {
            addresses: AddressPair::V6 {
                source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
                destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
            },
            ..ROUTE
        },
    ];
    const PLACE: BthFields = BthFields { dest_qp: 0x123, psn: Psn::new(0x64), ack_req: true };

    fn packets() -> [RoceRepr<'static>; 8] {
        let ack = RoceRepr::acknowledge(PLACE, Aeth { syndrome: Syndrome::ACK, msn: 3 });
        let bth = |opcode| Bth::new(opcode, PLACE.dest_qp, PLACE.psn, PLACE.ack_req);
        [
            RoceRepr::write(Transport::Uc, PLACE, 64, 5, &[7; 16], None),
            RoceRepr::write(Transport::Rc, PLACE, 64, 5, &[7; 15], Some(9)),
            RoceRepr::fetch_add(PLACE, 64, 5, 1),
            RoceRepr::compare_swap(PLACE, 64, 5, 1, 2),
            RoceRepr::read(PLACE, 64, 5, 4096),
            RoceRepr { bth: bth(Opcode::RcReadResponseMiddle), aeth: None, payload: &[1; 64], ..ack },
            ack,
            RoceRepr { bth: bth(Opcode::RcAtomicAck), atomic_ack: Some(12), ..ack },
        ]
    }

    #[test]
    fn what_is_sent_is_received() {
        for (packet, route) in packets().into_iter().flat_map(|packet| ROUTES.map(|route| (packet, route))) {
            let mut buffer = [0xa5; 200];
            let len = route.write_frame(&packet, &mut buffer).unwrap();
            // With trailing bytes, like Ethernet padding.
            let received = Received::parse_packet(&buffer).unwrap();
            assert_eq!(RoceRepr::parse_packet(&received.roce), Ok(packet));
            assert_eq!(received.addresses, route.addresses);
            assert_eq!((received.udp.source_port(), received.udp.destination_port()), (0xc123, 4791));
            for n in 0..len {
                assert!(Received::parse_packet(&buffer[..n]).is_err());
            }
        }
    }

    #[test]
    fn every_flip_is_found_but_in_masked_fields() {
        // Only BTH byte 4: the IPv4 checksum covers TOS and TTL, and a nonzero UDP checksum is checked.
        let masked_ipv4 = |bit: usize| bit / 8 == 32;
        // And traffic class, flow label and hop limit.
        let masked_ipv6 = |bit: usize| matches!(bit, 0..4) || matches!(bit / 8, 1..=3 | 7 | 52);
        for packet in packets() {
            for (route, masked) in ROUTES.iter().zip([&masked_ipv4 as &dyn Fn(usize) -> bool, &masked_ipv6]) {
                let mut buffer = [0; 200];
                let len = route.write_frame(&packet, &mut buffer).unwrap();
                for bit in 0..len * 8 {
                    let mut flipped = buffer;
                    flipped[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(Received::parse_packet(&flipped[..len]).is_ok(), masked(bit), "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn refusals() {
        let mut buffer = [0; 100];
        let len = ROUTE.write_frame(&packets()[6], &mut buffer).unwrap();
        let mut wrong = buffer;
        wrong[len - 1] ^= 1;
        let error = Received::parse_packet(&wrong[..len]).unwrap_err();
        assert_eq!(error, Error::new(Layer::Roce, "icrc", 16, WireErrorKind::Checksum));
        // Protocol 6, with the checksum that goes with it.
        let mut tcp = buffer;
        tcp[9] = 6;
        tcp[10..12].copy_from_slice(&(u16::from_be_bytes([buffer[10], buffer[11]]) + 11).to_be_bytes());
        let error = Received::parse_packet(&tcp[..len]).unwrap_err();
        assert_eq!(error, Error::new(Layer::Ipv4, "protocol", 9, WireErrorKind::Protocol(6)));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Received::parse_packet(&bytes);
        }

        /// Mutations with corrected checksums, so that they reach the transport headers.
        #[test]
        fn mutated_packets(which in 0usize..8, family in 0usize..2, at: prop::sample::Index, byte: u8,
                           cut: prop::sample::Index) {
            let route = ROUTES[family];
            let head = route.addresses.datagram_header_len();
            let mut buffer = [0; 200];
            let len = route.write_frame(&packets()[which], &mut buffer).unwrap();
            let mut packet = buffer[..head + cut.index(len - head + 1)].to_vec();
            if packet.len() > head {
                let at = head + at.index(packet.len() - head);
                packet[at] = byte;
            }
            packet.extend([0; 4]);
            let len = (packet.len() - head) as u16;
            route.write_ip_udp(len, &mut packet[..head]);
            let covered = packet.len() - 4;
            let icrc = roce::compute_icrc(&packet[..covered]);
            packet[covered..].copy_from_slice(&icrc.to_le_bytes());
            if let Err(error) = Received::parse_packet(&packet) {
                prop_assert_eq!(error.layer, Layer::Roce);
                prop_assert_ne!(error.kind, WireErrorKind::Checksum);
            }
        }
    }
}
