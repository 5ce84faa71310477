//! From a line of the list to the bytes of a packet, and from the bytes of an answer to what the
//! list says of it.

use std::net::SocketAddrV4;

use dta_proto::wire::datagram::{self, UdpDatagram};
use dta_proto::wire::roce::{Opcode, RocePacket, compute_icrc, has_valid_icrc};

use super::list::{DestQp, Icrc, Op, Reply, Rkey, Send, Source, Transport, UdpChecksum};
use super::run::Handles;

/// The opcode byte of an operation on a transport.
fn opcode(op: Op, transport: Transport) -> u8 {
    let low = match op {
        Op::WriteFirst => 0x06,
        Op::WriteMiddle => 0x07,
        Op::WriteLast => 0x08,
        Op::WriteLastImm => 0x09,
        Op::WriteOnly => 0x0a,
        Op::WriteOnlyImm => 0x0b,
        Op::Read => 0x0c,
        Op::ReadResponseFirst => 0x0d,
        Op::ReadResponseMiddle => 0x0e,
        Op::ReadResponseLast => 0x0f,
        Op::ReadResponseOnly => 0x10,
        Op::Ack => 0x11,
        Op::AtomicAck => 0x12,
        Op::CmpSwap => 0x13,
        Op::FetchAdd => 0x14,
    };
    match transport {
        Transport::Rc => low,
        Transport::Uc => 0x20 | low,
    }
}

/// The IPv4 packet of a line. Written byte by byte rather than with the library's own emitters, so
/// that it can be wrong in every way, and so that both do not share a fault.
pub fn emit(send: &Send, transport: Transport, start_psn: u32, at: &Handles) -> Vec<u8> {
    let region = at.region(&send.region);
    let va = send.va.unwrap_or_else(|| region.iova.wrapping_add_signed(send.at));
    let rkey = match send.rkey {
        None => region.rkey,
        Some(Rkey::Zero) => 0,
        Some(Rkey::Unknown) => region.rkey ^ 0x5500_0000,
        Some(Rkey::Stale) => at.stale_rkey,
    };
    let length = send.length.unwrap_or(send.payload.0.len() as u32);
    let pad = send.pad.unwrap_or((send.payload.0.len().wrapping_neg() & 3) as u8);
    let psn = (i64::from(start_psn) + send.psn) as u32 & 0xff_ffff;

    let mut bth = Vec::new();
    bth.push(send.opcode.unwrap_or(opcode(send.op, send.transport.unwrap_or(transport))));
    let migreq = send.migreq.unwrap_or(true);
    bth.push(
        u8::from(send.solicited) << 7 | u8::from(migreq) << 6 | (pad & 3) << 4 | send.transport_version & 0xf,
    );
    bth.extend(send.pkey.unwrap_or(0xffff).to_be_bytes());
    let qpn = match send.dest_qp {
        None => at.qpn,
        // Every table of queue pairs is far smaller than 2^22.
        Some(DestQp::Unknown) => at.qpn ^ 0x40_0000,
    };
    bth.extend((u32::from(send.congestion) << 24 | qpn).to_be_bytes());
    bth.extend((u32::from(send.ack) << 31 | u32::from(send.reserved & 0x7f) << 24 | psn).to_be_bytes());

    let mut rest = Vec::new();
    match send.op {
        Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyImm | Op::Read => {
            rest.extend(va.to_be_bytes());
            rest.extend(rkey.to_be_bytes());
            rest.extend(length.to_be_bytes());
        }
        Op::CmpSwap | Op::FetchAdd => {
            rest.extend(va.to_be_bytes());
            rest.extend(rkey.to_be_bytes());
            rest.extend(if send.op == Op::CmpSwap { send.swap } else { send.add }.to_be_bytes());
            rest.extend(send.compare.to_be_bytes());
        }
        Op::Ack | Op::ReadResponseFirst | Op::ReadResponseLast | Op::ReadResponseOnly => {
            rest.extend([0x1f, 0, 0, 1])
        }
        Op::AtomicAck => rest.extend([0x1f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]),
        Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm | Op::ReadResponseMiddle => {}
    }
    if matches!(send.op, Op::WriteOnlyImm | Op::WriteLastImm) {
        rest.extend(send.imm.to_be_bytes());
    }
    rest.extend(&send.payload.0);
    // A wrong pad count changes the count, not the bytes.
    rest.extend(std::iter::repeat_n(0, send.payload.0.len().wrapping_neg() & 3));

    let source = match send.source {
        None => at.requester,
        Some(Source::Stranger) => at.stranger,
    };
    let from = SocketAddrV4::new(source, send.source_port.unwrap_or(0xc123));
    let mut packet = datagram::encode_header(from, at.responder, bth.len() + rest.len() + 4).to_vec();
    packet[1] = send.tos;
    packet[4..6].copy_from_slice(&send.id.to_be_bytes());
    packet[6] = u8::from(send.df) << 6;
    packet[8] = send.ttl.unwrap_or(64);
    packet[10..12].fill(0);
    let mut sum: u32 = packet[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet.extend(bth);
    packet.extend(rest);
    let crc = match send.icrc {
        Icrc::Right => compute_icrc(&packet).to_le_bytes(),
        Icrc::Wrong => (compute_icrc(&packet) ^ 0x0100).to_le_bytes(),
        Icrc::BigEndian => compute_icrc(&packet).to_be_bytes(),
    };
    packet.extend(crc);
    if send.udp_checksum != UdpChecksum::None {
        datagram::fill_udp_checksum(&mut packet);
    }
    if send.udp_checksum == UdpChecksum::Wrong {
        // Never 0, which would mean none.
        packet[27] ^= if packet[26..28] == [0, 1] { 2 } else { 1 };
    }
    for bit in &send.flip {
        packet[bit / 8] ^= 0x80 >> (bit % 8);
    }
    if let Some(cut) = send.cut {
        // Cut off inside the datagram, with lengths that fit: only the transport headers are too short.
        packet.truncate(packet.len() - cut);
        let total = packet.len() as u16;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[24..26].copy_from_slice(&(total - 20).to_be_bytes());
        packet.truncate(packet.len() - 4);
        let crc = compute_icrc(&packet).to_le_bytes();
        packet.extend(crc);
    }
    packet
}

/// What an answer says, in the list's words. The error says what no answer of a right responder has.
pub fn read(packet: &[u8], start_psn: u32, at: &Handles) -> Result<Reply, String> {
    if !has_valid_icrc(packet) {
        return Err("its iCRC is wrong".into());
    }
    let datagram = UdpDatagram::parse_exact(packet).map_err(|error| error.to_string())?;
    if (*datagram.source().ip(), datagram.destination()) != (*at.responder.ip(), at.answers_to) {
        return Err(format!("it goes from {} to {}", datagram.source(), datagram.destination()));
    }
    let transport = RocePacket::new_checked(datagram.payload()).map_err(|e| e.to_string())?;
    let bth = transport.base_header();
    if bth.dest_qp != at.peer_qpn {
        return Err(format!("it goes to queue pair {:#x}", bth.dest_qp));
    }
    if (bth.pkey, bth.solicited, bth.ack_req) != (0xffff, false, false) {
        return Err(format!("{bth:?}"));
    }
    let op = match bth.opcode {
        Opcode::RcAck => Op::Ack,
        Opcode::RcAtomicAck => Op::AtomicAck,
        Opcode::RcReadResponseFirst => Op::ReadResponseFirst,
        Opcode::RcReadResponseMiddle => Op::ReadResponseMiddle,
        Opcode::RcReadResponseLast => Op::ReadResponseLast,
        Opcode::RcReadResponseOnly => Op::ReadResponseOnly,
        other => return Err(format!("it is a {other:?}")),
    };
    let aeth = transport.ack_header().map_err(|e| e.to_string())?;
    let psn = i64::from(bth.psn.wrapping_sub(start_psn).get());
    Ok(Reply {
        op,
        // PSNs before the first show as negative numbers.
        psn: if psn >= 1 << 23 { psn - (1 << 24) } else { psn },
        syndrome: aeth.map(|a| a.syndrome.to_byte()),
        msn: aeth.map(|a| a.msn),
        before: transport.atomic_ack(),
        payload: super::bytes::Bytes(transport.payload().to_vec()),
    })
}
