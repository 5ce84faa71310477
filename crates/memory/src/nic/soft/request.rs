//! Parses the bytes of a packet into a request, or the reason why it is not one.
//!
//! Damage is checked before anything else is believed, so that a frame corrupted on the way counts as damaged and not as
//! what it was turned into. Fields outside the iCRC (time to live, type of service) are ignored here too. The IPv4 header
//! checksum is checked on an interface's raw frames; on sockets the kernel has checked it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dta_proto::wire::datagram::{self, udp_checksum_ok};
use dta_proto::wire::roce::{
    ATOMIC_ETH_LEN, AtomicEth, BTH_LEN, IMM_DT_LEN, ImmDt, Opcode, Psn, RETH_LEN, Reth, has_valid_icrc,
    icrc_ok_for_any_id,
};
use dta_proto::wire::{ipv4, ipv6, udp};

use super::counter::Counter;
use super::queue_pair::WriteMessage;

/// Bytes of the IPv4 header (without options) and the UDP header.
const UDP_END: usize = datagram::HEADER_LEN;
/// Where the headers after the BTH begin.
const HEADERS: usize = UDP_END + BTH_LEN;
/// Bytes of the iCRC.
const ICRC: usize = 4;

/// What this NIC listens to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
}

impl Local {
    /// Where the part of a packet begins that everything after [`Request::check_packet`] reads. For IPv6 it includes the
    /// last 20 bytes before UDP, so that all offsets are the same as for IPv4.
    #[inline]
    pub(super) fn packet_start(&self) -> usize {
        match self.ip {
            IpAddr::V4(_) => 0,
            IpAddr::V6(_) => ipv6::HEADER_LEN - ipv4::HEADER_LEN,
        }
    }
}

/// A packet to this NIC that arrived undamaged.
pub(super) struct CheckedPacket<'p> {
    /// From [`Local::packet_start`] to the end of its UDP datagram.
    pub(super) bytes: &'p [u8],
    /// The first byte of its BTH.
    pub(super) opcode: u8,
    pub(super) source: IpAddr,
}

/// A request whose bytes arrived undamaged; its permission is not checked yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) opcode: Opcode,
    pub(super) ack_req: bool,
    pub(super) pkey: u16,
    pub(super) qpn: u32,
    pub(super) psn: Psn,
    pub(super) source: IpAddr,
    /// The range of the payload in the packet.
    pub(super) payload: (u16, u16),
    pub(super) pad: u8,
    /// The RETH, or address and rkey of the AtomicETH with length 8; zeros for MIDDLE and LAST.
    pub(super) reth: Reth,
}

impl Request {
    /// Checks a packet, from its IP header on, for damage and for its destination. `whole_frame` says that no kernel has
    /// checked its IPv4 header, `checksum_pending` that its UDP checksum was never filled in, `id_unknown` that its id is
    /// not the one it was sent with.
    #[inline]
    pub(super) fn check_packet(
        packet: &[u8],
        local: Local,
        whole_frame: bool,
        checksum_pending: impl FnOnce() -> bool,
        id_unknown: impl FnOnce() -> bool,
    ) -> Result<CheckedPacket<'_>, Counter> {
        match local.ip {
            IpAddr::V4(ip) => {
                Request::check_ipv4_packet(packet, ip, local.port, whole_frame, checksum_pending, id_unknown)
            }
            IpAddr::V6(ip) => check_ipv6_packet(packet, ip, local, checksum_pending()),
        }
    }

    #[inline]
    fn check_ipv4_packet(
        packet: &[u8],
        local_ip: Ipv4Addr,
        local_port: u16,
        whole_frame: bool,
        checksum_pending: impl FnOnce() -> bool,
        id_unknown: impl FnOnce() -> bool,
    ) -> Result<CheckedPacket<'_>, Counter> {
        let headers = ipv4::Ipv4Header::from_first_bytes(packet)
            .zip(packet.get(ipv4::HEADER_LEN..).and_then(udp::UdpHeader::from_first_bytes));
        let Some((ip, udp)) = headers else { return Err(short_packet_fate(packet)) };
        if !ip.is_v4_without_options() {
            return Err(odd_version(packet[0]));
        }
        if whole_frame && !ip.checksum_ok() {
            return Err(Counter::DroppedIpChecksum);
        }
        if ip.protocol_number() != ipv4::PROTOCOL_UDP {
            return Err(Counter::DroppedNotRoce);
        }
        // Another fragment would have something else in place of the ports.
        if ip.is_fragment() {
            return Err(Counter::DroppedFragment);
        }
        if udp.destination_port() != local_port {
            return Err(Counter::DroppedNotRoce);
        }
        let (total, length) = (usize::from(ip.total_length()), usize::from(udp.length_field()));
        // What follows the UDP datagram is padding of short Ethernet frames.
        let end = ipv4::HEADER_LEN + length;
        let Some(packet) = packet.get(..end).filter(|_| end <= total && end >= HEADERS + ICRC) else {
            return Err(Counter::DroppedLength);
        };
        if udp.checksum_field() != 0 && !checksum_pending() && !udp_checksum_ok(packet) {
            return Err(Counter::DroppedUdpChecksum);
        }
        if !is_undamaged(packet, id_unknown) {
            return Err(Counter::DroppedIcrc);
        }
        if ip.destination_address() != local_ip {
            return Err(Counter::DroppedDestination);
        }
        check_transport(packet, ip.source_address().into())
    }

    /// The opcode in the first byte of a BTH, if it is a request's.
    #[inline]
    pub(super) fn parse_opcode(byte: u8) -> Result<Opcode, Counter> {
        match Opcode::from_byte(byte) {
            Ok(opcode) if opcode.is_request() => Ok(opcode),
            _ => Err(Counter::DroppedOpcode),
        }
    }

    /// Parses a packet that [`Request::check_packet`] returned, as a request with this opcode.
    #[inline(always)] // on every packet's path, where the compiler knows the opcode
    pub(super) fn read(packet: &[u8], source: IpAddr, opcode: Opcode) -> Result<Request, Counter> {
        let Some(bth) = packet.get(UDP_END..).and_then(<[u8]>::first_chunk::<BTH_LEN>) else {
            return Err(Counter::DroppedLength);
        };
        let pad = bth[1] >> 4 & 3;
        let start = HEADERS + opcode.header_layout().len();
        let end = packet.len();
        let Some(payload_end) = (end - ICRC).checked_sub(usize::from(pad)).filter(|&e| e >= start) else {
            return Err(Counter::DroppedLength);
        };
        let headers = &packet[HEADERS..start];
        let reth =
            if let (Some(reth), true) = (headers.first_chunk::<RETH_LEN>(), opcode.header_layout().reth) {
                Reth::from_bytes(reth)
            } else if let Some(atomic) = headers.first_chunk::<ATOMIC_ETH_LEN>() {
                let atomic = AtomicEth::from_bytes(atomic);
                Reth { va: atomic.va, rkey: atomic.rkey, length: 8 }
            } else {
                Reth { va: 0, rkey: 0, length: 0 }
            };
        Ok(Request {
            opcode,
            ack_req: bth[8] & 0x80 != 0,
            pkey: u16::from_be_bytes([bth[2], bth[3]]),
            qpn: u32::from_be_bytes([0, bth[5], bth[6], bth[7]]),
            psn: Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]])),
            source,
            payload: (start as u16, payload_end as u16),
            pad,
            reth,
        })
    }

    #[inline(always)]
    pub(super) fn to_message(self) -> WriteMessage {
        let Reth { va, rkey, length } = self.reth;
        WriteMessage { rkey, va, left: length, length }
    }

    /// Bytes of payload, without pad bytes.
    #[inline(always)]
    pub(super) fn payload_len(&self) -> u32 {
        u32::from(self.payload.1 - self.payload.0)
    }

    /// The payload, in the packet that this request was parsed from.
    #[inline(always)]
    pub(super) fn payload<'p>(&self, packet: &'p [u8]) -> &'p [u8] {
        packet.get(usize::from(self.payload.0)..usize::from(self.payload.1)).unwrap_or_default()
    }

    /// The operands of an atomic, in the packet that this request was parsed from.
    pub(super) fn atomic_operands(&self, packet: &[u8]) -> Option<AtomicEth> {
        packet.get(HEADERS..)?.first_chunk().map(AtomicEth::from_bytes)
    }

    /// The immediate, if the opcode has one, in the packet that this request was parsed from.
    pub(super) fn immediate(&self, packet: &[u8]) -> Option<u32> {
        if !self.opcode.header_layout().imm {
            return None;
        }
        // It is the last header before the payload.
        let at = usize::from(self.payload.0) - IMM_DT_LEN;
        packet.get(at..)?.first_chunk().map(|bytes| ImmDt::from_bytes(bytes).0)
    }
}

/// As [`Request::check_packet`], over IPv6.
fn check_ipv6_packet(
    packet: &[u8],
    local_ip: Ipv6Addr,
    local: Local,
    checksum_pending: bool,
) -> Result<CheckedPacket<'_>, Counter> {
    if !ipv6::is_ipv6(packet) {
        return Err(Counter::DroppedNotRoce);
    }
    let Some(ip) = ipv6::Ipv6Header::from_first_bytes(packet) else { return Err(Counter::DroppedLength) };
    match ip.next_header() {
        ipv4::PROTOCOL_UDP => {}
        ipv6::NEXT_FRAGMENT => return Err(Counter::DroppedFragment),
        _ => return Err(Counter::DroppedNotRoce),
    }
    let Some(udp) = packet.get(ipv6::HEADER_LEN..).and_then(udp::UdpHeader::from_first_bytes) else {
        return Err(Counter::DroppedLength);
    };
    if udp.destination_port() != local.port {
        return Err(Counter::DroppedNotRoce);
    }
    let (length, end) = (udp.length_field(), ipv6::HEADER_LEN + usize::from(udp.length_field()));
    let is_long = length <= ip.payload_length() && end >= local.packet_start() + HEADERS + ICRC;
    let Some(packet) = packet.get(..end).filter(|_| is_long) else { return Err(Counter::DroppedLength) };
    let datagram = udp::UdpPacket::new_checked(&packet[ipv6::HEADER_LEN..]);
    let is_checked =
        checksum_pending || datagram.is_ok_and(|datagram| datagram.verify_checksum(&ip.addresses()).is_ok());
    if !is_checked {
        return Err(Counter::DroppedUdpChecksum);
    }
    if !has_valid_icrc(packet) {
        return Err(Counter::DroppedIcrc);
    }
    if ip.destination_address() != local_ip {
        return Err(Counter::DroppedDestination);
    }
    check_transport(&packet[local.packet_start()..], ip.source_address().into())
}

/// The last check: the transport version of an undamaged packet.
#[inline]
fn check_transport(bytes: &[u8], source: IpAddr) -> Result<CheckedPacket<'_>, Counter> {
    let Some(bth) = bytes[UDP_END..].first_chunk::<BTH_LEN>() else {
        return Err(Counter::DroppedLength);
    };
    if bth[1] & 0xf != 0 {
        return Err(Counter::DroppedVersion);
    }
    Ok(CheckedPacket { bytes, opcode: bth[0], source })
}

#[inline]
pub(super) fn is_undamaged(packet: &[u8], id_unknown: impl FnOnce() -> bool) -> bool {
    if id_unknown() { icrc_ok_for_any_id(packet) } else { has_valid_icrc(packet) }
}

/// Whether a packet has no UDP checksum.
#[inline]
pub(super) fn has_no_checksum(packet: &[u8]) -> bool {
    packet
        .get(ipv4::HEADER_LEN..)
        .and_then(udp::UdpHeader::from_first_bytes)
        .is_some_and(|udp| udp.checksum_field() == 0)
}

/// The PSN, and the address in the RETH; zeros if the packet is too short for them.
#[inline(always)]
pub(super) fn psn_and_address(packet: &[u8]) -> (Psn, u64) {
    let Some(headers) = packet.get(UDP_END..).and_then(<[u8]>::first_chunk::<{ BTH_LEN + 8 }>) else {
        return (Psn::new(0), 0);
    };
    let (bth, va) = headers.split_at(BTH_LEN);
    let psn = u32::from_be_bytes([0, bth[9], bth[10], bth[11]]);
    (Psn::new(psn), va.first_chunk().map_or(0, |va| u64::from_be_bytes(*va)))
}

#[cold]
fn short_packet_fate(packet: &[u8]) -> Counter {
    // Shorter than the headers: "not RoCE" if the bytes show that it is something else.
    match packet {
        [0x40..=0x4f, ..] if packet.get(9).is_none_or(|&protocol| protocol == 17) => Counter::DroppedLength,
        [] => Counter::DroppedLength,
        _ => Counter::DroppedNotRoce,
    }
}

#[cold]
fn odd_version(byte: u8) -> Counter {
    match byte {
        0x46..=0x4f => Counter::DroppedOptions,
        0x40..=0x44 => Counter::DroppedLength,
        _ => Counter::DroppedNotRoce,
    }
}
