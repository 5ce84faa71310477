//! Neighbour discovery for IPv6 over Ethernet (RFC 4861): who has an address, and the answer, as whole packets.
//!
//! ```text
//! offset  bytes
//!  0     40     IPv6, next header 58 (ICMPv6), hop limit 255
//! 40      1     type: 135 solicitation, 136 advertisement
//! 41      1     code 0
//! 42      2     checksum
//! 44      4     flags; of an advertisement: 0x40 solicited, 0x20 override
//! 48     16     target address
//! 64      2     option: 1 (MAC address of the source) or 2 (of the target), and its length, 1
//! 66      6     MAC address
//! ```

use core::net::Ipv6Addr;

use super::ethernet::Mac;
use super::ip::AddressPair;
use super::{Error, Layer, Result, WireErrorKind, checksum, ipv6};

/// Length of a message with one option, IPv6 header included.
pub const LEN: usize = ipv6::HEADER_LEN + ICMP_LEN + OPTION_LEN;

/// Type of a neighbour solicitation.
pub const TYPE_SOLICITATION: u8 = 135;
/// Type of a neighbour advertisement.
pub const TYPE_ADVERTISEMENT: u8 = 136;

const ICMP_LEN: usize = 24;
const OPTION_LEN: usize = 8;
/// The only valid hop limit: it shows that no router has forwarded the message.
const HOP_LIMIT: u8 = 255;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Ndp, field, offset, kind)
}

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourMessage {
    /// Whether it answers, or asks for, the target's MAC address.
    pub is_advertisement: bool,
    /// Its sender; unspecified (`::`) in a query whether an address is already in use.
    pub source: Ipv6Addr,
    /// Its receiver.
    pub destination: Ipv6Addr,
    /// The address in question.
    pub target: Ipv6Addr,
    /// MAC address of the sender, if it says so.
    pub mac: Option<Mac>,
}

impl NeighbourMessage {
    /// Parses a packet from its IPv6 header.
    ///
    /// # Errors
    /// Another packet, one that a router has forwarded, a wrong checksum, or broken options.
    pub fn parse_packet(packet: &[u8]) -> Result<NeighbourMessage> {
        let (header, icmp) = ipv6::parse_packet(packet, ipv6::NEXT_ICMPV6)?;
        if header.hop_limit() != HOP_LIMIT {
            return Err(err("hop_limit", 7, WireErrorKind::Reserved(header.hop_limit())));
        }
        let length = header.payload_length();
        let sum = header.addresses().pseudo_header_sum(ipv6::NEXT_ICMPV6, length);
        if checksum::fold_checksum(checksum::add(sum, icmp)) != 0 {
            return Err(err("checksum", 42, WireErrorKind::Checksum));
        }
        let Some((message, mut options)) = icmp.split_first_chunk::<ICMP_LEN>() else {
            return Err(err("message", 40, WireErrorKind::Truncated { need: ICMP_LEN as u16, have: length }));
        };
        let (is_advertisement, wanted) = match message[0] {
            TYPE_SOLICITATION => (false, 1),
            TYPE_ADVERTISEMENT => (true, 2),
            other => return Err(err("type", 40, WireErrorKind::UnknownOpcode(other))),
        };
        let mut mac = None;
        while let [kind, words, ..] = *options {
            let Some((option, rest)) = options.split_at_checked(usize::from(words) * 8).filter(|_| words > 0)
            else {
                return Err(err("option", 64, WireErrorKind::Length(words.into())));
            };
            if kind == wanted
                && let Some(bytes) = option.get(2..OPTION_LEN).and_then(<[u8]>::first_chunk)
            {
                mac = Some(Mac(*bytes));
            }
            options = rest;
        }
        Ok(NeighbourMessage {
            is_advertisement,
            source: header.source_address(),
            destination: header.destination_address(),
            target: message[8..].first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |b| Ipv6Addr::from(*b)),
            mac,
        })
    }

    /// The message as a packet; without a MAC address, the option holds zeros.
    pub fn to_packet(&self) -> [u8; LEN] {
        let mut packet = [0; LEN];
        let (head, icmp) = packet.split_at_mut(ipv6::HEADER_LEN);
        if let Some(head) = head.first_chunk_mut() {
            let header = ipv6::Ipv6Repr {
                src: self.source,
                dst: self.destination,
                next_header: ipv6::NEXT_ICMPV6,
                traffic_class: 0,
                hop_limit: HOP_LIMIT,
                payload_len: (ICMP_LEN + OPTION_LEN) as u16,
            };
            header.encode_into(head);
        }
        if self.is_advertisement {
            icmp[0] = TYPE_ADVERTISEMENT;
            icmp[4] = if self.destination.is_multicast() { OVERRIDE } else { SOLICITED | OVERRIDE };
        } else {
            icmp[0] = TYPE_SOLICITATION;
        }
        icmp[8..24].copy_from_slice(&self.target.octets());
        icmp[24] = if self.is_advertisement { 2 } else { 1 };
        icmp[25] = 1;
        icmp[26..].copy_from_slice(&self.mac.unwrap_or_default().0);
        let addresses = AddressPair::V6 { source: self.source, destination: self.destination };
        let sum = addresses.pseudo_header_sum(ipv6::NEXT_ICMPV6, (ICMP_LEN + OPTION_LEN) as u16);
        let sum = checksum::fold_checksum(checksum::add(sum, icmp));
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        packet
    }
}

/// The group to which a query for an address is sent (RFC 4291, section 2.7.1).
pub fn solicited_node_group(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The MAC address of a multicast group (RFC 2464, section 7).
pub fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, 0x3456);
    const PEER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

    fn question() -> NeighbourMessage {
        NeighbourMessage {
            is_advertisement: false,
            source: PEER,
            destination: solicited_node_group(US),
            target: US,
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        }
    }

    #[test]
    fn a_solicitation_of_the_kernel() {
        // Sent by Linux 6.18 for fe80::2 from fe80::1, captured on a veth pair.
        let expected = [
            0x60, 0, 0, 0, 0, 32, 58, 255, // IPv6
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, //
            0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2, //
            135, 0, 0x7a, 0x97, 0, 0, 0, 0, //
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, //
            1, 1, 2, 0, 0, 0, 0, 1,
        ];
        let ours = NeighbourMessage {
            is_advertisement: false,
            source: "fe80::1".parse().unwrap(),
            destination: "ff02::1:ff00:2".parse().unwrap(),
            target: "fe80::2".parse().unwrap(),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        };
        assert_eq!(ours.destination, solicited_node_group(ours.target));
        assert_eq!(ours.to_packet(), expected);
        assert_eq!(NeighbourMessage::parse_packet(&expected), Ok(ours));
    }

    #[test]
    fn groups() {
        assert_eq!(solicited_node_group(US), "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(solicited_node_group(US)), Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
    }

    #[test]
    fn every_flip_is_found() {
        let answer = NeighbourMessage { is_advertisement: true, destination: PEER, ..question() };
        for message in [question(), answer] {
            let packet = message.to_packet();
            assert_eq!(NeighbourMessage::parse_packet(&packet), Ok(message));
            // Traffic class and flow label are in no checksum.
            for bit in (0..LEN * 8).filter(|bit| !(4..32).contains(bit)) {
                let mut flipped = packet;
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                assert!(NeighbourMessage::parse_packet(&flipped).is_err(), "bit {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_options(options in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut packet = question().to_packet()[..ipv6::HEADER_LEN + ICMP_LEN].to_vec();
            packet.extend(&options);
            packet[5] = (ICMP_LEN + options.len()) as u8;
            packet[42..44].fill(0);
            let addresses = AddressPair::V6 { source: PEER, destination: solicited_node_group(US) };
            let sum = addresses.pseudo_header_sum(58, u16::from(packet[5]));
            let sum = checksum::fold_checksum(checksum::add(sum, &packet[40..]));
            packet[42..44].copy_from_slice(&sum.to_be_bytes());
            if let Ok(message) = NeighbourMessage::parse_packet(&packet) {
                prop_assert_eq!(message.target, US);
            }
        }
    }
}
