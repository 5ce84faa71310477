//! Tunnels: from the header of one to the packet in it.

use super::packet::{First, TYPE_IPV6, TYPE_MPLS, behind_labels, get_be_u16, get_be_u32};
use dta_proto::key::Flow;
use dta_proto::wire::ethernet;

/// UDP destination port of VXLAN (RFC 7348).
const VXLAN: u16 = 4789;
const VXLAN_HEADER_LEN: usize = 8;
/// UDP destination port of Geneve (RFC 8926).
const GENEVE: u16 = 6081;
const GENEVE_HEADER_LEN: usize = 8;
/// UDP destination port of GTP-U (3GPP TS 29.281).
const GTP_U: u16 = 2152;
const GTP_HEADER_LEN: usize = 8;
/// Message type of a user packet.
const GTP_USER_PACKET: u8 = 255;
/// UDP destination port of MPLS (RFC 7510).
const MPLS_IN_UDP: u16 = 6635;

/// IP protocols whose packets have another one inside: GRE (RFC 2784), IPv4 (RFC 2003), IPv6 (RFC 2473).
const GRE: u8 = 47;
const IPV4: u8 = 4;
const IPV6: u8 = 41;

/// Ethernet in GRE and Geneve.
const TYPE_ETHERNET: u16 = 0x6558;
/// ERSPAN of types I and II, and of type III (draft-foschiano-erspan).
const TYPE_ERSPAN: u16 = 0x88be;
const TYPE_ERSPAN_3: u16 = 0x22eb;

/// A tunnel and the flow in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Its kind and number.
    pub kind: TunnelKind,
    /// The flow of the packet in it.
    pub flow: Flow,
}

/// The supported tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKind {
    /// VXLAN and its network identifier, 24 bits.
    Vxlan(u32),
    /// Geneve and its network identifier, 24 bits.
    Geneve(u32),
    /// GTP-U and its tunnel endpoint identifier.
    GtpU(u32),
    /// GRE and its key, if it has one (RFC 2890).
    Gre(Option<u32>),
    /// Mirrored packets in GRE, and the session's number, 10 bits; 0 in type I, which has none.
    Erspan(u16),
    /// MPLS in UDP, and the first label, 20 bits.
    MplsInUdp(u32),
    /// IP in IP.
    Ip,
}

impl TunnelKind {
    /// The number by which a network or session is known in it; 0 = none.
    pub fn identifier(self) -> u32 {
        match self {
            TunnelKind::Vxlan(number)
            | TunnelKind::Geneve(number)
            | TunnelKind::GtpU(number)
            | TunnelKind::MplsInUdp(number) => number,
            TunnelKind::Gre(key) => key.unwrap_or(0),
            TunnelKind::Erspan(session) => session.into(),
            TunnelKind::Ip => 0,
        }
    }
}

/// What may be a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outer<'a> {
    /// The payload of a UDP packet to this port.
    Udp(u16, &'a [u8]),
    /// What follows the header of an IP packet of this protocol.
    Ip(u8, &'a [u8]),
}

/// The tunnel, its payload, and the payload's first header.
pub(super) type Inside<'a> = (TunnelKind, &'a [u8], First);

impl Outer<'_> {
    pub(super) fn is_tunnel(protocol: u8) -> bool {
        matches!(protocol, GRE | IPV4 | IPV6)
    }
}

/// Whether UDP packets to this port may have another one inside.
pub(super) fn is_udp_tunnel(port: u16) -> bool {
    matches!(port, VXLAN | GENEVE | GTP_U | MPLS_IN_UDP)
}

/// `None` if it is no tunnel, or is damaged.
#[inline]
pub(super) fn decapsulate(outer: Outer<'_>) -> Option<Inside<'_>> {
    match outer {
        Outer::Udp(VXLAN, bytes) => decapsulate_vxlan(bytes),
        Outer::Udp(GENEVE, bytes) => decapsulate_geneve(bytes),
        Outer::Udp(GTP_U, bytes) => decapsulate_gtp_u(bytes),
        Outer::Udp(MPLS_IN_UDP, bytes) => {
            let label = get_be_u32(bytes, 0)? >> 12;
            Some((TunnelKind::MplsInUdp(label), behind_labels(bytes)?, First::Ip))
        }
        Outer::Udp(..) => None,
        Outer::Ip(GRE, bytes) => decapsulate_gre(bytes),
        Outer::Ip(_, bytes) => Some((TunnelKind::Ip, bytes, First::Ip)),
    }
}

#[cold]
fn decapsulate_vxlan(bytes: &[u8]) -> Option<Inside<'_>> {
    // Flag: the network identifier is valid.
    if bytes.first()? & 0x08 == 0 {
        return None;
    }
    let kind = TunnelKind::Vxlan(get_be_u32(bytes, 4)? >> 8);
    Some((kind, bytes.get(VXLAN_HEADER_LEN..)?, First::Ethernet))
}

#[cold]
fn decapsulate_geneve(bytes: &[u8]) -> Option<Inside<'_>> {
    let first = *bytes.first()?;
    // Version 0; options are counted in words.
    if first >> 6 != 0 {
        return None;
    }
    let behind = bytes.get(GENEVE_HEADER_LEN + 4 * usize::from(first & 0x3f)..)?;
    let kind = TunnelKind::Geneve(get_be_u32(bytes, 4)? >> 8);
    Some((kind, behind, first_of_ethertype(get_be_u16(bytes, 2)?)?))
}

#[cold]
fn decapsulate_gtp_u(bytes: &[u8]) -> Option<Inside<'_>> {
    let flags = *bytes.first()?;
    // Version 1, GTP and not GTP'.
    if flags & 0xf0 != 0x30 || *bytes.get(1)? != GTP_USER_PACKET {
        return None;
    }
    let kind = TunnelKind::GtpU(get_be_u32(bytes, 4)?);
    let mut at = GTP_HEADER_LEN;
    if flags & 0x07 != 0 {
        let mut next = if flags & 0x04 != 0 { *bytes.get(at + 3)? } else { 0 };
        at += 4;
        // Extension headers: length in words first, type of the next one last.
        while next != 0 {
            let len = usize::from(*bytes.get(at)?) * 4;
            if len == 0 {
                return None;
            }
            next = *bytes.get(at + len - 1)?;
            at += len;
        }
    }
    Some((kind, bytes.get(at..)?, First::Ip))
}

#[cold]
fn decapsulate_gre(bytes: &[u8]) -> Option<Inside<'_>> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const VERSION: u16 = 0x0007;
    let (flags, protocol) = (get_be_u16(bytes, 0)?, get_be_u16(bytes, 2)?);
    // Version 1 is PPTP's; source routes exist only in RFC 1701, and nobody has sent them for a long time.
    if flags & (VERSION | ROUTING) != 0 {
        return None;
    }
    let mut at = if flags & CHECKSUM != 0 { 8 } else { 4 };
    let key = if flags & KEY != 0 {
        at += 4;
        Some(get_be_u32(bytes, at - 4)?)
    } else {
        None
    };
    let has_sequence = flags & SEQUENCE != 0;
    at += if has_sequence { 4 } else { 0 };
    let behind = bytes.get(at..)?;
    let session = |behind: &[u8]| Some(TunnelKind::Erspan(get_be_u16(behind, 2)? & 0x03ff));
    match protocol {
        // Type I has neither a sequence number nor a header.
        TYPE_ERSPAN if !has_sequence => Some((TunnelKind::Erspan(0), behind, First::Ethernet)),
        TYPE_ERSPAN => Some((session(behind)?, behind.get(8..)?, First::Ethernet)),
        TYPE_ERSPAN_3 => {
            // The last bit says that a platform's own header of 8 bytes follows.
            let len = if get_be_u32(behind, 8)? & 1 != 0 { 20 } else { 12 };
            let first = match get_be_u16(behind, 10)? >> 10 & 0x1f {
                0 => First::Ethernet,
                2 => First::Ip,
                _ => return None,
            };
            Some((session(behind)?, behind.get(len..)?, first))
        }
        TYPE_MPLS => Some((TunnelKind::Gre(key), behind_labels(behind)?, First::Ip)),
        _ => Some((TunnelKind::Gre(key), behind, first_of_ethertype(protocol)?)),
    }
}

/// What a packet of this EtherType begins with.
fn first_of_ethertype(ethertype: u16) -> Option<First> {
    match ethertype {
        TYPE_ETHERNET => Some(First::Ethernet),
        ethernet::TYPE_IPV4 | TYPE_IPV6 => Some(First::Ip),
        _ => None,
    }
}
