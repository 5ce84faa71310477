//! Writes a capture: classic pcap, nanoseconds, raw IPv4 packets with headers only.
//!
//! Source: draft-ietf-opsawg-pcap.

use std::io::{self, Write};
use std::net::IpAddr;

use dta_proto::wire::ipv4;

use super::DecodedPacket;

/// Nanoseconds, in the byte order of the file.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Link type of packets that begin with their IP header.
const RAW_IP: u32 = 101;
/// Bytes of a UDP header, and of a TCP header without options.
const UDP_LEN: u16 = 8;
const TCP_LEN: u16 = 20;
const TCP: u8 = 6;

pub fn write_header(to: &mut impl Write) -> io::Result<()> {
    to.write_all(&MAGIC.to_le_bytes())?;
    for version in [2u16, 4] {
        to.write_all(&version.to_le_bytes())?;
    }
    for field in [0, 0, 1 << 18, RAW_IP] {
        to.write_all(&u32::to_le_bytes(field))?;
    }
    Ok(())
}

/// One TCP or UDP packet over IPv4, as long as `packet` says, with its headers only. Writes nothing and returns
/// `false` for an IPv6 one, or one that is shorter than its headers or longer than IPv4 allows.
pub fn write_packet(to: &mut impl Write, packet: &DecodedPacket, time_ns: u64) -> io::Result<bool> {
    let flow = packet.flow;
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) else { return Ok(false) };
    let transport = if flow.proto == TCP { TCP_LEN } else { UDP_LEN };
    let kept = ipv4::HEADER_LEN as u16 + transport;
    let Some(length) = u16::try_from(packet.length).ok().filter(|length| *length >= kept) else {
        return Ok(false);
    };
    let mut bytes = [0u8; ipv4::HEADER_LEN + TCP_LEN as usize];
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes[8] = 64;
    bytes[9] = flow.proto;
    bytes[12..16].copy_from_slice(&src.octets());
    bytes[16..20].copy_from_slice(&dst.octets());
    let sum = header_checksum(&bytes[..ipv4::HEADER_LEN]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    let behind = &mut bytes[ipv4::HEADER_LEN..];
    behind[..2].copy_from_slice(&flow.sport.to_be_bytes());
    behind[2..4].copy_from_slice(&flow.dport.to_be_bytes());
    if flow.proto == TCP {
        // Five words of header, ACK.
        behind[12..14].copy_from_slice(&[5 << 4, 0x10]);
    } else {
        behind[4..6].copy_from_slice(&(length - ipv4::HEADER_LEN as u16).to_be_bytes());
    }
    let record = [time_ns / 1_000_000_000, time_ns % 1_000_000_000, kept.into(), length.into()];
    for field in record {
        to.write_all(&(field as u32).to_le_bytes())?;
    }
    to.write_all(&bytes[..kept.into()])?;
    Ok(true)
}

/// RFC 1071, over a header whose own checksum is 0.
fn header_checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{decode_packet, read_from};
    use crate::traffic::{Synthetic, TrafficShape};

    #[test]
    fn what_is_written_is_read_back() {
        let traffic = Synthetic::new(TrafficShape { flows: 50, exponent: 1.0, seed: 3 });
        let packets: Vec<_> = traffic.take(500).collect();
        let mut file = Vec::new();
        write_header(&mut file).unwrap();
        for packet in &packets {
            assert!(write_packet(&mut file, &packet.packet, packet.time_ns).unwrap());
        }
        let mut found = Vec::new();
        let summary = read_from(&file[..], "made", |packet| {
            found.push((decode_packet(&packet).unwrap(), packet.time_ns))
        })
        .unwrap();
        assert!(summary.cut.is_none());
        let written: Vec<_> = packets.iter().map(|p| (p.packet, p.time_ns)).collect();
        assert_eq!(found, written);
    }

    #[test]
    fn an_ipv4_header_has_its_checksum() {
        let mut file = Vec::new();
        let packet = Synthetic::new(TrafficShape { flows: 1, exponent: 1.0, seed: 1 }).next().unwrap();
        write_packet(&mut file, &packet.packet, packet.time_ns).unwrap();
        assert_eq!(header_checksum(&file[16..36]), 0);
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let mut file = Vec::new();
        let mut packet =
            Synthetic::new(TrafficShape { flows: 1, exponent: 1.0, seed: 1 }).next().unwrap().packet;
        for length in [27, 65_536] {
            packet.length = length;
            assert!(!write_packet(&mut file, &packet, 0).unwrap());
        }
        assert!(file.is_empty());
    }
}
