//! Answers: ACKs, NAKs, atomic acknowledgements and READ responses, as whole IP packets.

use std::net::SocketAddrV4;

use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::roce::{AETH_LEN, Aeth, BTH_LEN, Bth, ICRC_LEN, Opcode, Psn, Syndrome, compute_icrc};
use dta_proto::wire::{AddressPair, datagram, ipv6, udp};

/// Most bytes of an answer around its payload: IPv6, UDP, BTH, AETH and AtomicAckETH, pad and iCRC.
pub(super) const OVERHEAD: usize = ipv6::HEADER_LEN + udp::HEADER_LEN + BTH_LEN + 12 + 3 + ICRC_LEN;

/// Where an answer goes, and which request it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnPath {
    /// The address that the request was sent to, and the peer's address.
    pub(super) addresses: AddressPair,
    /// The port that the request was sent to, and the peer's port.
    pub(super) ports: (u16, u16),
    /// The peer's queue pair.
    pub(super) peer_qpn: u32,
    /// Whether the peer accepts answers in runs.
    pub(super) runs: bool,
    /// Destination, source and EtherType, if the request came with them.
    pub(super) ethernet: Option<[u8; 14]>,
}

/// Writes an answer into the next slot of `out`; `fill` writes `payload` bytes. Returns whether there was room.
///
/// MIDDLE packets of a READ response have no `aeth`; only atomic acknowledgements have `before`.
pub(super) fn push(
    out: &mut PacketBatch,
    path: &ReturnPath,
    opcode: Opcode,
    psn: Psn,
    aeth: Option<Aeth>,
    before: Option<u64>,
    payload: (usize, impl FnOnce(&mut [u8])),
) -> bool {
    let (payload_len, fill) = payload;
    let pad = payload_len.wrapping_neg() & 3;
    let head = path.addresses.datagram_header_len();
    let start =
        head + BTH_LEN + if aeth.is_some() { AETH_LEN } else { 0 } + if before.is_some() { 8 } else { 0 };
    let covered = start + payload_len + pad;
    let Some(slot) = out.next_slot().and_then(|slot| slot.get_mut(..covered + ICRC_LEN)) else {
        return false;
    };
    let udp_payload = covered + ICRC_LEN - head;
    datagram::write_header(&path.addresses, path.ports, udp_payload, 0, 64, &mut slot[..head]);
    let mut bth = Bth::new(opcode, path.peer_qpn, psn, false);
    // Like the kernel's responder.
    bth.migreq = false;
    bth.pad = pad as u8;
    let mut headers = [0; BTH_LEN + AETH_LEN + 8];
    let mut len = BTH_LEN;
    if let Some(bytes) = headers.first_chunk_mut() {
        bth.encode_into(bytes);
    }
    if let Some(aeth) = aeth
        && let Some(bytes) = headers[len..].first_chunk_mut()
    {
        aeth.encode_into(bytes);
        len += AETH_LEN;
    }
    if let Some(before) = before {
        headers[len..len + 8].copy_from_slice(&before.to_be_bytes());
        len += 8;
    }
    slot[head..start].copy_from_slice(&headers[..len]);
    fill(&mut slot[start..start + payload_len]);
    slot[start + payload_len..covered].fill(0);
    let crc = compute_icrc(&slot[..covered]);
    slot[covered..].copy_from_slice(&crc.to_le_bytes());
    let addresses = match path.addresses {
        AddressPair::V4 { source, destination } => Some(Addresses {
            source: SocketAddrV4::new(source, path.ports.0),
            destination: SocketAddrV4::new(destination, path.ports.1),
            runs: path.runs,
        }),
        AddressPair::V6 { .. } => None,
    };
    out.commit_datagram(covered + ICRC_LEN, addresses, 0);
    if let Some(ethernet) = &path.ethernet {
        out.set_ethernet(out.len() - 1, ethernet);
    }
    true
}

pub(super) fn push_ack(
    out: &mut PacketBatch,
    path: &ReturnPath,
    psn: Psn,
    syndrome: Syndrome,
    msn: u32,
) -> bool {
    push(out, path, Opcode::RcAck, psn, Some(Aeth { syndrome, msn }), None, (0, |_: &mut [u8]| {}))
}
