use dta_proto::wire::frame::Received;
use dta_proto::wire::{checksum, ethernet, ipv4, roce, udp};

/// As the bytes are, as an Ethernet frame, and once more with the checksums made right, to come past them.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let framed = ethernet::EthernetFrame::new_checked(bytes).is_ok_and(|frame| look(frame.payload()));
    let plain = look(bytes);
    let mut bytes = bytes.to_vec();
    repair(&mut bytes);
    look(&bytes) || plain || framed
}

/// Whether it is a RoCEv2 packet whose checksum is right.
fn look(bytes: &[u8]) -> bool {
    if let Ok(packet) = ipv4::Ipv4Packet::new_checked(bytes) {
        let _ = packet.check_plain();
        if let Ok(datagram) = udp::UdpPacket::new_checked(packet.payload()) {
            let _ = datagram.verify_checksum(packet.source_address(), packet.destination_address());
        }
    }
    let received = Received::parse_packet(bytes);
    if let Ok(received) = &received {
        let len = ipv4::HEADER_LEN + udp::HEADER_LEN + received.udp.payload().len();
        assert!(roce::has_valid_icrc(&bytes[..len]), "taken with a wrong checksum");
        let _ = roce::RoceRepr::parse_packet(&received.roce);
    }
    let _ = roce::has_valid_icrc(bytes);
    received.is_ok()
}

/// Lengths, IPv4 checksum, no UDP checksum, iCRC: as a sender would have them.
fn repair(bytes: &mut [u8]) {
    let len = bytes.len();
    let Ok(total) = u16::try_from(len) else { return };
    if len < 44 {
        return;
    }
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[6..8].fill(0);
    bytes[9] = ipv4::PROTOCOL_UDP;
    bytes[10..12].fill(0);
    let sum = checksum::fold_checksum(checksum::add(0, &bytes[..20]));
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes[24..26].copy_from_slice(&(total - 20).to_be_bytes());
    bytes[26..28].fill(0);
    let icrc = roce::compute_icrc(&bytes[..len - 4]);
    bytes[len - 4..].copy_from_slice(&icrc.to_le_bytes());
}
