//! Parses a frame like the kernel's programs: down to the innermost IP packet. Twin of `reporter/ebpf/packet.h`.

use std::net::Ipv6Addr;

use dta_proto::key::Flow;
use dta_reporter::packet_trace::matching::{WORDS, Words, meta, word};
use dta_reporter::packet_trace::record::flags;

use super::digest::{Identity, PAYLOAD};

/// Most nested tunnels: the packet and two inside it.
pub(crate) const LAYERS: usize = 3;
/// Most IPv6 extension headers.
const EXTENSIONS: usize = 4;

/// What the bytes start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At an Ethernet header.
    Ethernet,
    /// At an IP header.
    Network,
}

/// Why a frame has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// Neither IPv4 nor IPv6.
    #[error("not an IP packet")]
    NotIp,
    /// A header extends beyond the readable bytes.
    #[error("cannot read a header")]
    Unreadable,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// The input of its digest.
    pub(crate) identity: Identity,
    /// The record's flags, as far as they follow from the bytes.
    pub(crate) flags: u16,
    /// Length from the outermost IP header, with padding.
    pub(crate) length: u32,
    words: Words,
}

impl Packet {
    /// What a filter sees of it. The kernel fills in the place, which is 0 here.
    pub(crate) fn words(&self) -> Words {
        self.words
    }

    /// The flow.
    pub(crate) fn flow(&self) -> Flow {
        let part = |mask: u64, shift: u32| (self.words[word::META] & mask) >> shift;
        Flow {
            src: Ipv6Addr::from(self.identity.source).to_canonical(),
            dst: Ipv6Addr::from(self.identity.destination).to_canonical(),
            sport: part(meta::SOURCE_PORT, meta::SOURCE_PORT_SHIFT) as u16,
            dport: part(meta::DESTINATION_PORT, meta::DESTINATION_PORT_SHIFT) as u16,
            proto: self.identity.protocol,
        }
    }
}

/// Parses a frame.
pub(crate) fn read(frame: &[u8], start: Start) -> Result<Packet, Refused> {
    let (mut at, vlan) = match start {
        Start::Ethernet => ethernet(frame, 0)?,
        Start::Network => (0, 0),
    };
    let outer_at = at;
    let mut words = [0; WORDS];
    let mut found: Option<Layer> = None;
    let mut tunnel = 0;
    for depth in 0..LAYERS {
        let layer = match layer(frame, at) {
            Err(Refused::NotIp) if depth > 0 => break,
            other => other?,
        };
        for base in if depth == 0 { [0, word::OUTER].as_slice() } else { &[0] } {
            words[base + word::SOURCE..base + word::META].copy_from_slice(&layer.address_words());
            words[base + word::META] = layer.meta;
        }
        if depth > 0 {
            tunnel = flags::TUNNEL;
        }
        let inner = layer.inner;
        found = Some(layer);
        match inner {
            None => break,
            Some((inner, Start::Network)) => at = inner,
            Some((inner, Start::Ethernet)) => match ethernet(frame, inner) {
                Ok((inner, _)) => at = inner,
                Err(Refused::NotIp) => break,
                Err(other) => return Err(other),
            },
        }
    }
    let layer = found.ok_or(Refused::NotIp)?;
    let length = (frame.len() - outer_at) as u32;
    let flags = layer.flags | tunnel;
    words[word::FRAME] = u64::from(length) << 32 | u64::from(vlan) << 16 | u64::from(flags);
    Ok(Packet { identity: layer.identity, flags, length, words })
}

/// `N` bytes at an offset.
fn bytes<const N: usize>(frame: &[u8], at: usize) -> Result<&[u8; N], Refused> {
    frame.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Refused::Unreadable)
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn is_ip(ethertype: u16) -> bool {
    matches!(ethertype, 0x0800 | 0x86dd)
}

/// Offset of an Ethernet frame's IP header, and the number of its outer VLAN or 0.
fn ethernet(frame: &[u8], at: usize) -> Result<(usize, u16), Refused> {
    let mut ethertype = be16(bytes::<14>(frame, at)?, 12);
    let mut at = at + 14;
    let mut vlan = 0;
    for tag in 0..2 {
        if !matches!(ethertype, 0x8100 | 0x88a8 | 0x9100) {
            break;
        }
        let header: &[u8; 4] = bytes(frame, at)?;
        if tag == 0 {
            vlan = be16(header, 0) & 0xfff;
        }
        ethertype = be16(header, 2);
        at += 4;
    }
    if is_ip(ethertype) { Ok((at, vlan)) } else { Err(Refused::NotIp) }
}

/// One IP packet and its payload.
struct Layer {
    identity: Identity,
    meta: u64,
    flags: u16,
    /// Offset of the inner packet, if it is a tunnel.
    inner: Option<(usize, Start)>,
}

impl Layer {
    fn address_words(&self) -> [u64; 4] {
        let word = |bytes: &[u8; 16], at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let Identity { source, destination, .. } = &self.identity;
        [word(source, 0), word(source, 8), word(destination, 0), word(destination, 8)]
    }
}

fn layer(frame: &[u8], at: usize) -> Result<Layer, Refused> {
    let mut identity = Identity::default();
    let mut flags = 0;
    let mut transport;
    let end;
    let version = bytes::<1>(frame, at)?[0] >> 4;
    match version {
        4 => {
            let header: &[u8; 20] = bytes(frame, at)?;
            let words = usize::from(header[0] & 0xf);
            if words < 5 {
                return Err(Refused::NotIp);
            }
            transport = at + 4 * words;
            end = match be16(header, 2) {
                0 => frame.len(),
                total => at + usize::from(total),
            };
            identity.ip_id = be16(header, 4);
            let fragment = be16(header, 6);
            identity.fragment_offset = fragment & 0x1fff;
            if fragment & 0x3fff != 0 {
                flags |= flags::FRAGMENT;
            }
            identity.protocol = header[9];
            identity.source[10..12].fill(0xff);
            identity.destination[10..12].fill(0xff);
            identity.source[12..].copy_from_slice(&header[12..16]);
            identity.destination[12..].copy_from_slice(&header[16..20]);
        }
        6 => {
            let header: &[u8; 40] = bytes(frame, at)?;
            transport = at + 40;
            end = match be16(header, 4) {
                0 => frame.len(),
                payload => transport + usize::from(payload),
            };
            flags |= flags::IPV6;
            identity.protocol = header[6];
            identity.source.copy_from_slice(&header[8..24]);
            identity.destination.copy_from_slice(&header[24..40]);
            for _ in 0..EXTENSIONS {
                if !matches!(identity.protocol, 0 | 43 | 44 | 60) || identity.fragment_offset != 0 {
                    break;
                }
                let extension: &[u8; 8] = bytes(frame, transport)?;
                if identity.protocol == 44 {
                    flags |= flags::FRAGMENT;
                    identity.fragment_offset = be16(extension, 2) >> 3;
                    identity.ip_id = be16(extension, 6);
                    transport += 8;
                } else {
                    transport += 8 * (usize::from(extension[1]) + 1);
                }
                identity.protocol = extension[0];
            }
        }
        _ => return Err(Refused::NotIp),
    }

    let mut tcp_flags = 0;
    let mut ports = (0, 0);
    let mut payload = (transport, PAYLOAD);
    let mut inner = None;
    let room = end.saturating_sub(transport);
    let later = identity.fragment_offset != 0;
    match identity.protocol {
        _ if later => {}
        6 if room >= 20 => {
            let header: &[u8; 20] = bytes(frame, transport)?;
            ports = (be16(header, 0), be16(header, 2));
            identity.sequence = be32(header, 4);
            identity.acknowledgement = be32(header, 8);
            let length = 4 * usize::from(header[12] >> 4);
            tcp_flags = header[13];
            identity.has_data = room > length;
            payload = (transport, 0);
            if length >= 32 && room >= 32 {
                let options: &[u8; 12] = bytes(frame, transport + 20)?;
                if options[..4] == [1, 1, 8, 10] {
                    payload = (transport + 24, 8);
                }
            }
        }
        17 if room >= 8 => {
            let header: &[u8; 8] = bytes(frame, transport)?;
            ports = (be16(header, 0), be16(header, 2));
            identity.sequence = u32::from(be16(header, 4));
            payload.0 += 8;
            if room >= 16 && matches!(ports.1, 4789 | 8472 | 6081) {
                inner = udp_tunnel(bytes(frame, transport + 8)?, ports.1, transport + 16);
            }
        }
        number @ (1 | 58) if room >= 8 => {
            let header: &[u8; 8] = bytes(frame, transport)?;
            identity.sequence = u32::from(be16(header, 0)) << 16;
            let echo = if number == 1 { matches!(header[0], 0 | 8) } else { matches!(header[0], 128 | 129) };
            if echo {
                identity.destination_port = be16(header, 4);
                identity.sequence |= u32::from(be16(header, 6));
            }
            payload.0 += 8;
        }
        132 if room >= 12 => {
            ports = (be16(bytes::<4>(frame, transport)?, 0), be16(bytes::<4>(frame, transport)?, 2));
            payload.0 += 12;
        }
        47 if room >= 4 => {
            let header: &[u8; 4] = bytes(frame, transport)?;
            let optional = [0x80, 0x20, 0x10].iter().filter(|bit| header[0] & **bit != 0).count();
            let (behind, version) = (transport + 4 + 4 * optional, header[1] & 7);
            inner = match be16(header, 2) {
                _ if version != 0 => None,
                0x6558 => Some((behind, Start::Ethernet)),
                other if is_ip(other) => Some((behind, Start::Network)),
                _ => None,
            };
        }
        4 | 41 if room >= 20 => inner = Some((transport, Start::Network)),
        _ => {}
    }
    if !matches!(identity.protocol, 1 | 58) {
        (identity.source_port, identity.destination_port) = ports;
    }

    let wanted = payload.1.min(end.saturating_sub(payload.0));
    match frame.get(payload.0..payload.0 + wanted) {
        Some(bytes) => identity.payload[..wanted].copy_from_slice(bytes),
        None => flags |= flags::PARTIAL,
    }
    let meta = u64::from(version) << meta::VERSION_SHIFT
        | u64::from(identity.protocol) << meta::PROTOCOL_SHIFT
        | u64::from(ports.0) << meta::SOURCE_PORT_SHIFT
        | u64::from(ports.1) << meta::DESTINATION_PORT_SHIFT
        | if later { meta::LATER_FRAGMENT } else { 0 }
        | u64::from(tcp_flags);
    Ok(Layer { identity, meta, flags, inner })
}

/// Offset of the packet in VXLAN or Geneve; `header` is what follows the UDP header.
fn udp_tunnel(header: &[u8; 8], port: u16, behind: usize) -> Option<(usize, Start)> {
    if port != 6081 {
        // The flag for a valid network identifier.
        return (header[0] & 0x08 != 0).then_some((behind, Start::Ethernet));
    }
    let behind = behind + 4 * usize::from(header[0] & 0x3f);
    match be16(header, 2) {
        _ if header[0] >> 6 != 0 => None,
        0x6558 => Some((behind, Start::Ethernet)),
        other if is_ip(other) => Some((behind, Start::Network)),
        _ => None,
    }
}
