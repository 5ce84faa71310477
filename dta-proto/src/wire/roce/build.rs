//! The packets that DTA sends, built from what differs between them.

use super::{Aeth, AtomicEth, Bth, ImmDt, Opcode, Psn, Reth, RoceRepr, Transport};

/// Where a packet goes within a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BthFields {
    /// Destination queue pair number.
    pub dest_qp: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether an acknowledgement is requested.
    pub ack_req: bool,
}

impl<'a> RoceRepr<'a> {
    /// A packet with only a BTH, and as many pad bytes as make the payload a multiple of 4.
    const fn with_bth_only(opcode: Opcode, place: BthFields, payload: &'a [u8]) -> RoceRepr<'a> {
        let mut bth = Bth::new(opcode, place.dest_qp, place.psn, place.ack_req);
        bth.pad = pad_byte_count(payload.len());
        RoceRepr { bth, reth: None, atomic: None, aeth: None, atomic_ack: None, imm: None, payload }
    }

    /// WRITE ONLY of `payload` to `va`, with immediate data if given.
    pub const fn write(
        transport: Transport,
        place: BthFields,
        va: u64,
        rkey: u32,
        payload: &'a [u8],
        imm: Option<u32>,
    ) -> RoceRepr<'a> {
        let mut repr = RoceRepr::with_bth_only(Opcode::write_only(transport, imm.is_some()), place, payload);
        repr.reth = Some(Reth { va, rkey, length: payload.len() as u32 });
        if let Some(imm) = imm {
            repr.imm = Some(ImmDt(imm));
        }
        repr
    }

    /// FETCH_ADD of `add` to the eight bytes at `va`, which is a multiple of 8.
    pub const fn fetch_add(place: BthFields, va: u64, rkey: u32, add: u64) -> RoceRepr<'a> {
        let mut repr = RoceRepr::with_bth_only(Opcode::RcFetchAdd, place, &[]);
        repr.atomic = Some(AtomicEth { va, rkey, swap_add: add, compare: 0 });
        repr
    }

    /// CMP_SWAP: `swap` replaces the eight bytes at `va`, a multiple of 8, if they equal `compare`.
    pub const fn compare_swap(place: BthFields, va: u64, rkey: u32, compare: u64, swap: u64) -> RoceRepr<'a> {
        let mut repr = RoceRepr::with_bth_only(Opcode::RcCmpSwap, place, &[]);
        repr.atomic = Some(AtomicEth { va, rkey, swap_add: swap, compare });
        repr
    }

    /// READ REQUEST of `length` bytes at `va`.
    pub const fn read(place: BthFields, va: u64, rkey: u32, length: u32) -> RoceRepr<'a> {
        let mut repr = RoceRepr::with_bth_only(Opcode::RcReadRequest, place, &[]);
        repr.reth = Some(Reth { va, rkey, length });
        repr
    }

    /// ACK or NAK.
    pub const fn acknowledge(place: BthFields, aeth: Aeth) -> RoceRepr<'a> {
        let mut repr = RoceRepr::with_bth_only(Opcode::RcAck, place, &[]);
        repr.aeth = Some(aeth);
        repr
    }
}

/// Pad bytes that make a payload of `len` bytes a multiple of 4.
pub(crate) const fn pad_byte_count(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}
