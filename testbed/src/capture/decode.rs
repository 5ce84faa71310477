//! From a captured packet to its flow. Why our own code: `docs/decisions/capture-decoding.md`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use dta_proto::key::Flow;
use dta_proto::wire::arp::TYPE_ARP;
use dta_proto::wire::ethernet::TYPE_IPV4;
use dta_proto::wire::{ipv4, udp};

use super::file::{CapturedPacket, LinkType};

/// What the testbed needs from an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedPacket {
    /// Its 5-tuple; ports are 0 where the protocol has none, or in a fragment that does not carry them.
    pub flow: Flow,
    /// Length of the IP packet in bytes, by its header.
    pub length: u32,
}

/// Why a packet has no flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skip {
    Arp,
    EtherType(u16),
    /// An IEEE 802.3 length instead of an EtherType (spanning tree, for example).
    Llc,
    /// The captured bytes end inside a header.
    TooShort,
    /// A header's fields contradict each other.
    BadHeader,
    /// The capture's link type is not supported.
    LinkType(i32),
}

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Arp => f.write_str("arp"),
            Self::EtherType(kind) => write!(f, "ethertype-{kind:#06x}"),
            Self::Llc => f.write_str("ieee-802.3"),
            Self::TooShort => f.write_str("too-short"),
            Self::BadHeader => f.write_str("bad-header"),
            Self::LinkType(kind) => write!(f, "link-type-{kind}"),
        }
    }
}

/// How many packets were skipped, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkipCounts(pub BTreeMap<Skip, u64>);

impl SkipCounts {
    pub fn add(&mut self, why: Skip) {
        *self.0.entry(why).or_default() += 1;
    }
}

impl std::fmt::Display for SkipCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (why, count)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {why}")?;
        }
        Ok(())
    }
}

const TYPE_IPV6: u16 = 0x86dd;
/// 802.1Q, 802.1ad and the older 0x9100 of stacked tags.
const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// Finds the flow of a packet: Ethernet (VLAN tags skipped), raw IP, Linux cooked or loopback; IPv4 or IPv6.
pub fn decode_packet(packet: &CapturedPacket<'_>) -> Result<DecodedPacket, Skip> {
    let ip = network_layer(packet)?;
    match ip.first().map(|byte| byte >> 4) {
        Some(4) => flow_of_ipv4(ip),
        Some(6) => flow_of_ipv6(ip),
        Some(_) => Err(Skip::BadHeader),
        None => Err(Skip::TooShort),
    }
}

/// Source, destination port and payload of an IPv4 or IPv6 UDP datagram that is unfragmented and was captured whole.
pub fn udp_payload<'a>(packet: &CapturedPacket<'a>) -> Option<(Flow, &'a [u8])> {
    let flow = decode_packet(packet).ok()?.flow;
    if flow.proto != ipv4::PROTOCOL_UDP {
        return None;
    }
    let ip = network_layer(packet).ok()?;
    let behind = if ip[0] >> 4 == 4 {
        let header = ipv4::Ipv4Header::from_first_bytes(ip)?;
        if header.is_fragment() {
            return None;
        }
        ip.get(header.header_len()..)?
    } else {
        if *ip.get(6)? != ipv4::PROTOCOL_UDP {
            return None;
        }
        ip.get(40..)?
    };
    let end = udp::UdpHeader::from_first_bytes(behind)?.length_field();
    Some((flow, behind.get(udp::HEADER_LEN..end.into())?))
}

/// The bytes from the IP header on.
fn network_layer<'a>(packet: &CapturedPacket<'a>) -> Result<&'a [u8], Skip> {
    let data = packet.data;
    let (mut kind, mut at) = match packet.link {
        LinkType::RawIp => return Ok(data),
        LinkType::Loopback => return data.get(4..).ok_or(Skip::TooShort),
        LinkType::Ethernet => (u16_at(data, 12).ok_or(Skip::TooShort)?, 14),
        LinkType::LinuxCooked => (u16_at(data, 14).ok_or(Skip::TooShort)?, 16),
        LinkType::LinuxCooked2 => (u16_at(data, 0).ok_or(Skip::TooShort)?, 20),
        LinkType::Other(number) => return Err(Skip::LinkType(number)),
    };
    while VLAN.contains(&kind) {
        kind = u16_at(data, at + 2).ok_or(Skip::TooShort)?;
        at += 4;
    }
    match kind {
        TYPE_IPV4 | TYPE_IPV6 => {
            let ip = data.get(at..).ok_or(Skip::TooShort)?;
            let version = ip.first().ok_or(Skip::TooShort)? >> 4;
            if (version == 4) == (kind == TYPE_IPV4) { Ok(ip) } else { Err(Skip::BadHeader) }
        }
        TYPE_ARP => Err(Skip::Arp),
        0..=1500 => Err(Skip::Llc),
        other => Err(Skip::EtherType(other)),
    }
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

/// Whether the protocol's header begins with a source and a destination port: TCP, UDP, DCCP, SCTP, UDP-Lite.
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

fn transport_ports(protocol: u8, rest: &[u8]) -> (u16, u16) {
    match (has_ports(protocol), u16_at(rest, 0), u16_at(rest, 2)) {
        (true, Some(source), Some(destination)) => (source, destination),
        _ => (0, 0),
    }
}

/// RFC 791.
fn flow_of_ipv4(ip: &[u8]) -> Result<DecodedPacket, Skip> {
    let header = ipv4::Ipv4Header::from_first_bytes(ip).ok_or(Skip::TooShort)?;
    let (header_len, length) = (header.header_len(), header.total_length());
    // A length of 0 is what segmentation offload leaves for the device to fill in.
    if header_len < ipv4::HEADER_LEN || (length != 0 && usize::from(length) < header_len) {
        return Err(Skip::BadHeader);
    }
    let end = if length == 0 { ip.len() } else { ip.len().min(length.into()) };
    let rest = ip.get(header_len..end).unwrap_or(&[]);
    let proto = header.protocol_number();
    let (sport, dport) = if header.is_later_fragment() { (0, 0) } else { transport_ports(proto, rest) };
    Ok(DecodedPacket {
        flow: Flow {
            src: header.source_address().into(),
            dst: header.destination_address().into(),
            sport,
            dport,
            proto,
        },
        length: if length == 0 { ip.len() as u32 } else { length.into() },
    })
}

/// RFC 8200; skips hop-by-hop, routing, fragment and destination options.
fn flow_of_ipv6(ip: &[u8]) -> Result<DecodedPacket, Skip> {
    let header: &[u8; 40] = ip.first_chunk().ok_or(Skip::TooShort)?;
    let length = 40 + u32::from(u16::from_be_bytes([header[4], header[5]]));
    let end = ip.len().min(length as usize);
    let (mut protocol, mut at, mut first_fragment) = (header[6], 40, true);
    while matches!(protocol, 0 | 43 | 44 | 60) {
        let Some(extension) = ip.get(at..end).and_then(|rest| rest.first_chunk::<8>()) else {
            return Err(Skip::TooShort);
        };
        at += if protocol == 44 {
            first_fragment &= u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 == 0;
            8
        } else {
            8 + 8 * usize::from(extension[1])
        };
        protocol = extension[0];
    }
    let rest = ip.get(at..end).unwrap_or(&[]);
    let (sport, dport) = if first_fragment { transport_ports(protocol, rest) } else { (0, 0) };
    let address = |at: usize| {
        let bytes: [u8; 16] = std::array::from_fn(|n| header[at + n]);
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    Ok(DecodedPacket {
        flow: Flow { src: address(8), dst: address(24), sport, dport, proto: protocol },
        length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(link: LinkType, data: &[u8]) -> CapturedPacket<'_> {
        CapturedPacket { time_ns: 0, original_len: data.len() as u32, link, data }
    }

    fn ipv4_bytes(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ip[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        ip.extend(payload);
        ip
    }

    fn ethernet(tags: &[u16], kind: u16, rest: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 5]);
        }
        frame.extend(kind.to_be_bytes());
        frame.extend(rest);
        frame
    }

    fn text(decoded: DecodedPacket) -> (String, u32) {
        let Flow { src, dst, sport, dport, proto } = decoded.flow;
        (format!("{src} {sport} {dst} {dport} {proto}"), decoded.length)
    }

    #[test]
    fn ipv4_under_any_number_of_vlan_tags_and_with_padding() {
        let udp = [0x13, 0x88, 0x13, 0x89, 0, 12, 0, 0, 1, 2, 3, 4];
        let mut ip = ipv4_bytes(17, 0, &udp);
        ip.extend([0; 14]);
        for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100], &[0x9100, 0x88a8, 0x8100, 0x8100]] {
            let frame = ethernet(tags, TYPE_IPV4, &ip);
            let packet = packet(LinkType::Ethernet, &frame);
            assert_eq!(text(decode_packet(&packet).unwrap()), ("10.0.0.1 5000 10.0.0.2 5001 17".into(), 32));
            let (flow, payload) = udp_payload(&packet).unwrap();
            assert_eq!((flow.dport, payload), (5001, &[1, 2, 3, 4][..]));
        }
    }

    #[test]
    fn later_fragments_and_protocols_without_ports_have_port_zero() {
        let later = ipv4_bytes(17, 0x0010, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            text(decode_packet(&packet(LinkType::RawIp, &later)).unwrap()).0,
            "10.0.0.1 0 10.0.0.2 0 17"
        );
        assert!(udp_payload(&packet(LinkType::RawIp, &later)).is_none());
        let icmp = ipv4_bytes(1, 0, &[8, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(
            text(decode_packet(&packet(LinkType::RawIp, &icmp)).unwrap()).0,
            "10.0.0.1 0 10.0.0.2 0 1"
        );
    }

    #[test]
    fn a_capture_cut_short_has_the_flow_that_is_left() {
        // Truncated options, and a first fragment.
        let mut ip = ipv4_bytes(17, 0x2000, &[0x13, 0x88, 0x13, 0x89, 0, 40, 0, 0]);
        assert_eq!(
            text(decode_packet(&packet(LinkType::RawIp, &ip)).unwrap()).0,
            "10.0.0.1 5000 10.0.0.2 5001 17"
        );
        assert!(udp_payload(&packet(LinkType::RawIp, &ip)).is_none());
        ip[0] = 0x46;
        let cut = packet(LinkType::RawIp, &ip[..20]);
        assert_eq!(text(decode_packet(&cut).unwrap()), ("10.0.0.1 0 10.0.0.2 0 17".into(), 28));
        // An IPv6 extension header that is longer than what was captured.
        let mut ip = vec![0x60, 0, 0, 0, 0, 24, 0, 64];
        ip.resize(40, 1);
        ip.extend([60, 0, 0, 0, 0, 0, 0, 0]);
        for captured in 40..48 {
            assert_eq!(decode_packet(&packet(LinkType::RawIp, &ip[..captured])), Err(Skip::TooShort));
        }
        for more in 0..8 {
            let cut = [&ip[..], &[44, 255, 0, 0, 0, 0, 0][..more.min(7)]].concat();
            assert_eq!(decode_packet(&packet(LinkType::RawIp, &cut)), Err(Skip::TooShort));
        }
    }

    #[test]
    fn ipv6_steps_over_extension_headers() {
        let mut ip = vec![0x60, 0, 0, 0, 0, 24, 0, 64];
        ip.extend([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        ip.extend([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        ip.extend([60, 0, 1, 2, 3, 4, 5, 6]); // hop-by-hop, then destination options
        ip.extend([6, 0, 1, 2, 3, 4, 5, 6]); // destination options, then TCP
        ip.extend([0, 80, 1, 187, 0, 0, 0, 0]);
        let (flow, length) =
            text(decode_packet(&packet(LinkType::Ethernet, &ethernet(&[], TYPE_IPV6, &ip))).unwrap());
        assert_eq!((flow.as_str(), length), ("2001::1 80 2001::2 443 6", 64));
    }

    #[test]
    fn what_is_no_ip_is_skipped_by_reason() {
        let mut counts = SkipCounts::default();
        let cases: [(&[u8], Skip); 4] = [
            (&ethernet(&[], TYPE_ARP, &[0; 28]), Skip::Arp),
            (&ethernet(&[], 0x88cc, &[0; 28]), Skip::EtherType(0x88cc)),
            (&ethernet(&[], 38, &[0; 38]), Skip::Llc),
            (&ethernet(&[], TYPE_IPV4, &[0x45, 0]), Skip::TooShort),
        ];
        for (frame, why) in cases {
            let got = decode_packet(&packet(LinkType::Ethernet, frame)).unwrap_err();
            assert_eq!(got, why);
            counts.add(got);
        }
        assert_eq!(decode_packet(&packet(LinkType::Other(147), &[1])), Err(Skip::LinkType(147)));
        assert_eq!(counts.0.values().sum::<u64>(), 4);
        assert_eq!(counts.to_string(), "1 arp, 1 ethertype-0x88cc, 1 ieee-802.3, 1 too-short");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(data in proptest::collection::vec(any::<u8>(), 0..120), link in 0usize..5, kind in any::<bool>()) {
            let mut data = data;
            if data.len() > 14 {
                data[12..14].copy_from_slice(if kind { &[8, 0] } else { &[0x86, 0xdd] });
            }
            let link = [LinkType::Ethernet, LinkType::RawIp, LinkType::LinuxCooked, LinkType::LinuxCooked2, LinkType::Loopback][link];
            let packet = packet(link, &data);
            let _ = decode_packet(&packet);
            let _ = udp_payload(&packet);
        }
    }
}
