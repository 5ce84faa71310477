//! Reports of captures (classic pcap, little-endian, Ethernet), for the data planes beside the generated ones.

use std::path::Path;

use dta_proto::program::{DataPlaneEntry, Lists, Primitive, Program, Version0};
use dta_proto::wire::{checksum, datagram, ethernet};

use super::{capture, generate};

/// Stores for reports of version 0 that take all that captures have: four copies, and lists 0 to 7.
const VERSION0: [(Primitive, u16); 3] =
    [(Primitive::KeyWrite, 4), (Primitive::Append, 43), (Primitive::KeyIncrement, 33)];

/// The generated program, so that no report of version 0 asks for more than its store has.
pub(crate) fn capture_program() -> Program {
    let mut program = generate::generate_program();
    for (primitive, store) in VERSION0 {
        program.set(DataPlaneEntry::Version0(Version0 { primitive, store }));
        if primitive == Primitive::Append {
            for first in [3, 7] {
                let collector = generate::collector_of(store);
                program.set(DataPlaneEntry::Lists(Lists {
                    store,
                    collector,
                    first,
                    count: 1,
                    positions: Vec::new(),
                }));
            }
        }
    }
    program
}

/// The IPv4 packets of a capture, with the address that reports are sent to; the port is theirs.
///
/// # Errors
/// The file cannot be read, or is no such capture.
pub(crate) fn read_packets(file: &Path) -> Result<Vec<Vec<u8>>, String> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let cut = || format!("{} is no classic pcap of Ethernet frames, or is cut", file.display());
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    if word(0) != Some(0xa1b2_c3d4) || word(20) != Some(1) {
        return Err(cut());
    }
    let packet = |frame: &&[u8]| to_service(ethernet::EthernetFrame::new_checked(frame).ok()?.payload());
    capture::parse_frames(&bytes).and_then(|frames| frames.iter().map(packet).collect()).ok_or_else(cut)
}

/// A datagram over IPv4 without options, sent to [`generate::SERVICE`].
fn to_service(packet: &[u8]) -> Option<Vec<u8>> {
    let mut packet = packet.to_vec();
    if packet.len() < 28 || packet[0] != 0x45 {
        return None;
    }
    packet[16..20].copy_from_slice(&generate::SERVICE.octets());
    packet[10..12].fill(0);
    let sum = checksum::fold_checksum(checksum::add(0, &packet[..20]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    datagram::fill_udp_checksum(&mut packet);
    Some(packet)
}
