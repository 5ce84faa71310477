//! The reported packet: its flow, the INT stack in it, and the flow in its tunnel.

use core::net::{IpAddr, Ipv6Addr};

use super::dialect::{Form, Mark};
use super::stack::{self, Behind, Stack};
use super::tunnel::{self, Inside, Outer, Tunnel};
use dta_proto::key::{Flow, has_ports};
use dta_proto::wire::{Error, Layer, Result, WireErrorKind, ethernet, ipv4, saturating_u16, udp};

pub(super) const TYPE_IPV6: u16 = 0x86dd;
pub(super) const TYPE_MPLS: u16 = 0x8847;
/// 802.1Q, 802.1ad, and the older tag of stacked ones.
const TYPE_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// PPPoE sessions (RFC 2516), and IPv4 and IPv6 in PPP.
const TYPE_PPPOE: u16 = 0x8864;
const PPPOE_HEADER_LEN: usize = 6;
const PPP_IPV4: u16 = 0x0021;
const PPP_IPV6: u16 = 0x0057;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
pub(super) const TCP: u8 = 6;
pub(super) const TCP_HEADER_LEN: usize = 20;

/// The packet's first header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    Ethernet,
    Ip,
}

/// The reported packet, as far as its first bytes were sent.
#[derive(Clone, Copy, Debug)]
pub struct ReportedPacket<'a> {
    /// Its 5-tuple, as the sender wrote it if INT had changed port or protocol. Ports are 0 if the protocol
    /// has none, or in a fragment without them.
    pub flow: Flow,
    /// Bytes of the IP packet, as its header says.
    pub length: u16,
    pub stack: Option<Stack<'a>>,
    /// Whether it carries INT whose hops cannot be read: cut short, or with words of the source that cannot be told from hops.
    pub has_unread_int: bool,
    /// The tunnel around it.
    pub tunnel: Option<Tunnel>,
    /// What else the headers of the user's packet say: of the one in the tunnel, if any.
    pub headers: PacketHeaders,
    /// The outermost tags before its first IP header.
    pub tags: LinkTags,
}

/// Fields of the IP header and of the header after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketHeaders {
    /// Bytes of the IP packet, as its header says.
    pub length: u16,
    /// Differentiated services code point.
    pub dscp: u8,
    pub tcp_flags: u8,
    /// Type times 256, plus code.
    pub icmp: u16,
}

/// Tags between the Ethernet header and the IP header; 0 = none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTags {
    /// The outermost VLAN.
    pub vlan: u16,
    /// The outermost MPLS label.
    pub mpls_label: u32,
}

impl ReportedPacket<'_> {
    /// The user's flow: the one in the tunnel, if any.
    #[inline]
    pub fn inner_flow(&self) -> &Flow {
        self.tunnel.as_ref().map_or(&self.flow, |tunnel| &tunnel.flow)
    }
}

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Reported, field, offset, kind)
}

fn truncated(field: &'static str, need: usize, have: usize) -> Error {
    err(field, 0, WireErrorKind::Truncated { need: saturating_u16(need), have: saturating_u16(have) })
}

pub(super) fn get_be_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn get_be_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A packet from its Ethernet header on, as far as its first bytes were sent, without INT.
///
/// # Errors
/// Neither IPv4 nor IPv6, or truncated.
pub fn packet_in_ethernet(bytes: &[u8]) -> Result<ReportedPacket<'_>> {
    parse_packet(bytes, First::Ethernet, &Form::WITHOUT_INT)
}

/// As [`packet_in_ethernet`], from the IP header on.
pub fn packet_in_ip(bytes: &[u8]) -> Result<ReportedPacket<'_>> {
    parse_packet(bytes, First::Ip, &Form::WITHOUT_INT)
}

/// Parses a packet. One in a tunnel is parsed too, and may have the stack if the outer one has none.
#[cold]
pub(super) fn parse_packet<'a>(bytes: &'a [u8], first: First, form: &Form) -> Result<ReportedPacket<'a>> {
    let mut packet = NOT_READ;
    read(bytes, first, form, &mut packet);
    packet
}

/// An empty packet, to be overwritten.
pub(super) const NOT_READ: Result<ReportedPacket<'static>> =
    Err(Error::new(Layer::Reported, "packet", 0, WireErrorKind::Truncated { need: 1, have: 0 }));

/// As [`parse_packet`], into its final place: moving takes a third as long as parsing.
#[inline(always)] // on the path of every report
pub(super) fn read<'a>(bytes: &'a [u8], first: First, form: &Form, into: &mut Result<ReportedPacket<'a>>) {
    let behind = match read_layer(bytes, first, form, into) {
        Ok(behind) => behind,
        Err(error) => {
            *into = Err(error);
            return;
        }
    };
    if let (Some(behind), Ok(packet)) = (behind, into)
        && let Some(inside) = tunnel::decapsulate(behind)
    {
        read_tunnel(inside, form, packet);
    }
}

#[cold]
fn read_tunnel<'a>((kind, inside, first): Inside<'a>, form: &Form, packet: &mut ReportedPacket<'a>) {
    let mut inner = NOT_READ;
    if let (Ok(_), Ok(inner)) = (read_layer(inside, first, form, &mut inner), inner) {
        packet.tunnel = Some(Tunnel { kind, flow: inner.flow });
        packet.headers = inner.headers;
        packet.stack = packet.stack.or(inner.stack);
        packet.has_unread_int |= inner.has_unread_int;
    }
}

/// Parses a packet without looking into a tunnel. Returns what may be one; writes nothing if that is an
/// error.
#[inline(always)]
fn read_layer<'a>(
    bytes: &'a [u8],
    first: First,
    form: &Form,
    into: &mut Result<ReportedPacket<'a>>,
) -> Result<Option<Outer<'a>>> {
    let mut tags = LinkTags::default();
    let ip = match first {
        First::Ip => bytes,
        First::Ethernet => behind_ethernet(bytes, true, &mut tags)?,
    };
    let ip = match ip.first().map(|byte| byte >> 4) {
        Some(4) => ipv4_packet(ip)?,
        Some(6) => ipv6_packet(ip)?,
        Some(version) => return Err(err("ip_version", 0, WireErrorKind::UnknownVersion(version))),
        None => return Err(truncated("ip", 1, 0)),
    };
    // Built from parts only at the end: a packet built once is not copied.
    let (mut protocol, mut ports) = (ip.protocol, (0, 0));
    let (mut found, mut rest) = (None, &[][..]);
    let with_ports = ip.is_first && has_ports(protocol);
    if with_ports {
        ports = transport_ports(ip.rest).unwrap_or_default();
        found = match protocol {
            TCP => find_in_tcp(ip.rest, ip.dscp, form)?,
            ipv4::PROTOCOL_UDP => {
                rest = ip.rest.get(udp::HEADER_LEN..).unwrap_or(&[]);
                find_stack(rest, ip.dscp, Some(ports.1), form)?
            }
            _ => None,
        };
    }
    let mut has_unread_int = false;
    let stack = found.and_then(|(stack, behind)| {
        rest = rest.get(behind.len..).unwrap_or(&[]);
        if let Some(port) = behind.port {
            ports.1 = port;
        }
        if let Some(next) = behind.next_header {
            protocol = next;
            ports = if has_ports(next) { transport_ports(rest).unwrap_or_default() } else { (0, 0) };
            let is_udp = next == ipv4::PROTOCOL_UDP;
            rest = if is_udp { rest.get(udp::HEADER_LEN..).unwrap_or(&[]) } else { &[] };
        }
        has_unread_int = stack.is_unread;
        (!has_unread_int).then_some(stack)
    });
    let behind = if with_ports && protocol == ipv4::PROTOCOL_UDP {
        Some(Outer::Udp(ports.1, rest))
    } else if ip.is_first && Outer::is_tunnel(ip.protocol) {
        Some(Outer::Ip(ip.protocol, ip.rest))
    } else {
        None
    };
    let flow = Flow { src: ip.src, dst: ip.dst, sport: ports.0, dport: ports.1, proto: protocol };
    let headers = PacketHeaders {
        length: ip.length,
        dscp: ip.dscp,
        tcp_flags: if with_ports && protocol == TCP { ip.rest.get(13).copied().unwrap_or(0) } else { 0 },
        icmp: if ip.is_first && matches!(protocol, ICMP | ICMP6) {
            get_be_u16(ip.rest, 0).unwrap_or(0)
        } else {
            0
        },
    };
    *into =
        Ok(ReportedPacket { flow, length: ip.length, stack, has_unread_int, tunnel: None, headers, tags });
    Ok(behind)
}

/// Source and destination port at the start of a header.
#[inline]
fn transport_ports(header: &[u8]) -> Option<(u16, u16)> {
    Some((get_be_u16(header, 0)?, get_be_u16(header, 2)?))
}

type Found<'a> = Option<(Stack<'a>, Behind)>;

/// INT before or after the TCP options: the specification leaves the choice to the network.
#[inline(never)]
fn find_in_tcp<'a>(tcp: &'a [u8], dscp: u8, form: &Form) -> Result<Found<'a>> {
    let options_end = tcp.get(12).map_or(TCP_HEADER_LEN, |byte| usize::from(byte >> 4) * 4);
    let plain = tcp.get(TCP_HEADER_LEN..).unwrap_or(&[]);
    if options_end <= TCP_HEADER_LEN {
        return find_stack(plain, dscp, None, form);
    }
    let behind_options = tcp.get(options_end..).unwrap_or(&[]);
    let before = || match find_stack(plain, dscp, None, form) {
        // Options may look like the start of INT: that alone does not make it cut short.
        Ok(Some((stack, _))) if stack.is_unread && form.is_guessed() => Ok(None),
        found => found,
    };
    let behind = || find_stack(behind_options, dscp, None, form);
    let first = if form.before_options { before() } else { behind() };
    let is_read = |found: &Result<Found<'_>>| matches!(found, Ok(Some((stack, _))) if !stack.is_unread);
    if is_read(&first) {
        return first;
    }
    let second = if form.before_options { behind() } else { before() };
    match (&first, &second) {
        _ if is_read(&second) => second,
        (Ok(None), _) | (Err(_), Ok(Some(_))) => second,
        _ => first,
    }
}

/// INT at the start of these bytes. An error if INT is expected but absent. `port` is the UDP destination port, `None` in TCP.
#[inline(always)]
fn find_stack<'a>(bytes: &'a [u8], dscp: u8, port: Option<u16>, form: &Form) -> Result<Found<'a>> {
    match form.mark {
        Mark::Never => Ok(None),
        Mark::Guess | Mark::ByDialect => {
            let found = stack::parse_stack(bytes, port.is_none(), form).ok();
            Ok(found.filter(|(stack, _)| stack.is_mx || !form.only_mx))
        }
        Mark::Always => stack::parse_stack(bytes, port.is_none(), form).map(Some),
        Mark::Dscp { value, mask } if dscp & mask == value & mask => {
            stack::parse_stack(bytes, port.is_none(), form).map(Some)
        }
        Mark::Port(int) if port == Some(int) => stack::parse_stack(bytes, false, form).map(Some),
        Mark::Probe(marker) if bytes.first_chunk() == Some(&marker.to_be_bytes()) => {
            let (stack, mut behind) = stack::parse_stack(&bytes[8..], port.is_none(), form)?;
            behind.len += 8;
            Ok(Some((stack, behind)))
        }
        Mark::Dscp { .. } | Mark::Port(_) | Mark::Probe(_) => Ok(None),
    }
}

/// Skips Ethernet, VLAN tags, PPPoE and MPLS labels, and one pseudowire.
#[inline]
fn behind_ethernet<'a>(bytes: &'a [u8], may_have_labels: bool, tags: &mut LinkTags) -> Result<&'a [u8]> {
    let short = || truncated("ethernet", ethernet::HEADER_LEN, bytes.len());
    let mut kind = get_be_u16(bytes, 12).ok_or_else(short)?;
    let mut at = ethernet::HEADER_LEN;
    while TYPE_VLAN.contains(&kind) {
        if tags.vlan == 0 {
            tags.vlan = get_be_u16(bytes, at).ok_or_else(short)? & 0x0fff;
        }
        kind = get_be_u16(bytes, at + 2).ok_or_else(short)?;
        at += 4;
    }
    let behind = bytes.get(at..).unwrap_or(&[]);
    match kind {
        ethernet::TYPE_IPV4 | TYPE_IPV6 => Ok(behind),
        TYPE_MPLS if may_have_labels => behind_mpls(behind, tags),
        TYPE_PPPOE => match get_be_u16(behind, PPPOE_HEADER_LEN).ok_or_else(short)? {
            PPP_IPV4 | PPP_IPV6 => Ok(&behind[PPPOE_HEADER_LEN + 2..]),
            other => Err(err("ppp_protocol", 0, WireErrorKind::Protocol(other))),
        },
        _ => Err(err("ethertype", 12, WireErrorKind::Protocol(kind))),
    }
}

/// What follows MPLS labels: IP, or Ethernet with or without a control word (RFC 4448, RFC 4385), which begins with four zeros.
#[cold]
fn behind_mpls<'a>(bytes: &'a [u8], tags: &mut LinkTags) -> Result<&'a [u8]> {
    let short = || truncated("mpls", 4, bytes.len());
    if tags.mpls_label == 0 {
        tags.mpls_label = get_be_u32(bytes, 0).ok_or_else(short)? >> 12;
    }
    let behind = behind_labels(bytes).ok_or_else(short)?;
    match behind.first().map(|byte| byte >> 4) {
        Some(4 | 6) | None => Ok(behind),
        Some(0) => {
            let inside = behind.get(4..).unwrap_or(&[]);
            behind_ethernet(inside, false, tags).or_else(|_| behind_ethernet(behind, false, tags))
        }
        Some(_) => behind_ethernet(behind, false, tags),
    }
}

/// What follows a stack of MPLS labels; `None` if it has no end.
pub(super) fn behind_labels(bytes: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    // Bit 8 marks the last label.
    while get_be_u32(bytes, at)? & 0x100 == 0 {
        at += 4;
    }
    bytes.get(at + 4..)
}

/// The parts of an IP header that are used, and what follows it.
struct Ip<'a> {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    dscp: u8,
    length: u16,
    /// Whether it is unfragmented or the first fragment.
    is_first: bool,
    rest: &'a [u8],
}

#[inline]
fn ipv4_packet(bytes: &[u8]) -> Result<Ip<'_>> {
    let Some(header) = ipv4::Ipv4Header::from_first_bytes(bytes) else {
        return Err(truncated("ipv4", ipv4::HEADER_LEN, bytes.len()));
    };
    let (header_len, length) = (header.header_len(), header.total_length());
    if header_len < ipv4::HEADER_LEN || usize::from(length) < header_len {
        return Err(err("ipv4", 0, WireErrorKind::Length(length)));
    }
    // The report may hold only the packet's first bytes.
    let end = bytes.len().min(length.into());
    Ok(Ip {
        src: header.source_address().into(),
        dst: header.destination_address().into(),
        protocol: header.protocol_number(),
        dscp: header.type_of_service() >> 2,
        length,
        is_first: !header.is_later_fragment(),
        rest: bytes.get(header_len..end).unwrap_or(&[]),
    })
}

/// RFC 8200; hop-by-hop, routing, fragment and destination options are skipped.
fn ipv6_packet(bytes: &[u8]) -> Result<Ip<'_>> {
    let Some(header) = bytes.first_chunk::<40>() else { return Err(truncated("ipv6", 40, bytes.len())) };
    let length = u16::from_be_bytes([header[4], header[5]]).saturating_add(40);
    let end = bytes.len().min(length.into());
    let (mut protocol, mut at, mut first_fragment) = (header[6], 40, true);
    while matches!(protocol, 0 | 43 | 44 | 60) {
        let extension: Option<&[u8; 8]> = bytes.get(at..end).and_then(|rest| rest.first_chunk());
        let Some(extension) = extension else { return Err(truncated("ipv6", at + 8, bytes.len())) };
        at += if protocol == 44 {
            first_fragment &= u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 == 0;
            8
        } else {
            8 + 8 * usize::from(extension[1])
        };
        protocol = extension[0];
    }
    let address = |at: usize| IpAddr::V6(Ipv6Addr::from(core::array::from_fn(|n| header[at + n])));
    Ok(Ip {
        src: address(8),
        dst: address(24),
        protocol,
        dscp: (header[0] << 4 | header[1] >> 4) >> 2,
        length,
        is_first: first_fragment,
        rest: bytes.get(at..end).unwrap_or(&[]),
    })
}
