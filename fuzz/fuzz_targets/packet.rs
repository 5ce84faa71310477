//! Ethernet, IPv4, UDP and the whole way to a checked RoCEv2 packet. The second half of the inputs gets its checksums made
//! right, so that the fuzzer comes past them.
#![no_main]

use dta_proto::wire::frame::Received;
use dta_proto::wire::{checksum, ethernet, ipv4, roce, udp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(frame) = ethernet::Packet::new_checked(bytes) {
        look(frame.payload());
    }
    look(bytes);
    let mut bytes = bytes.to_vec();
    repair(&mut bytes);
    look(&bytes);
});

fn look(bytes: &[u8]) {
    if let Ok(packet) = ipv4::Packet::new_checked(bytes) {
        let _ = ipv4::Repr::parse(&packet);
        if let Ok(datagram) = udp::Packet::new_checked(packet.payload()) {
            let _ = datagram.check(packet.src(), packet.dst());
        }
    }
    if let Ok(received) = Received::parse(bytes) {
        let _ = roce::Repr::parse(&received.roce);
    }
    let _ = roce::icrc_ok(bytes);
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
    let sum = checksum::finish(checksum::add(0, &bytes[..20]));
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes[24..26].copy_from_slice(&(total - 20).to_be_bytes());
    bytes[26..28].fill(0);
    let icrc = roce::icrc(&bytes[..len - 4]);
    bytes[len - 4..].copy_from_slice(&icrc.to_le_bytes());
}
