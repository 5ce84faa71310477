//! A whole transport packet: the UDP payload, from the BTH to the iCRC.

use super::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, Aeth, AtomicEth, BTH_LEN, Bth, ICRC_LEN, IMM_DT_LEN, ImmDt,
    RETH_LEN, Reth, err,
};
use crate::wire::error::saturating_u16;
use crate::wire::{Result, WireErrorKind};

/// A checked view of a transport packet. The iCRC is not checked here because it covers the IPv4 header too,
/// see [`super::has_valid_icrc`] and [`crate::wire::frame::Received`].
#[derive(Clone, Copy, Debug)]
pub struct RocePacket<'a> {
    bth: Bth,
    /// The headers after the BTH, whose length the opcode determines.
    headers: &'a [u8],
    payload: &'a [u8],
}

impl<'a> RocePacket<'a> {
    /// Checks the BTH, and that its opcode's headers, the pad bytes and the iCRC are there, and no payload
    /// where none is allowed. `bytes` is the payload of the UDP datagram.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self> {
        let bth = Bth::parse_bytes(bytes)?;
        let shape = bth.opcode.header_layout();
        let headers_end = BTH_LEN + shape.len();
        let pad = usize::from(bth.pad);
        let Some((covered, _)) = bytes.split_last_chunk::<ICRC_LEN>() else {
            let kind = WireErrorKind::Truncated {
                need: saturating_u16(headers_end + ICRC_LEN),
                have: saturating_u16(bytes.len()),
            };
            return Err(err("icrc", saturating_u16(headers_end), kind));
        };
        let have = saturating_u16(bytes.len());
        let (Some(headers), Some(rest)) = (covered.get(BTH_LEN..headers_end), covered.get(headers_end..))
        else {
            let kind = WireErrorKind::Truncated { need: saturating_u16(headers_end + ICRC_LEN), have };
            return Err(err("headers", BTH_LEN as u16, kind));
        };
        let Some(payload) = rest.len().checked_sub(pad).and_then(|n| rest.get(..n)) else {
            let kind = WireErrorKind::Truncated { need: saturating_u16(headers_end + pad + ICRC_LEN), have };
            return Err(err("pad", 1, kind));
        };
        if !shape.payload && !rest.is_empty() {
            let kind = WireErrorKind::TooLong { most: saturating_u16(headers_end + ICRC_LEN), have };
            return Err(err("payload", saturating_u16(headers_end), kind));
        }
        Ok(RocePacket { bth, headers, payload })
    }

    /// The base transport header.
    #[inline]
    pub fn base_header(&self) -> &Bth {
        &self.bth
    }

    /// The RETH, if the opcode has one.
    #[inline]
    pub fn rdma_header(&self) -> Option<Reth> {
        if !self.bth.opcode.header_layout().reth {
            return None;
        }
        self.headers.first_chunk::<RETH_LEN>().map(Reth::from_bytes)
    }

    /// The AtomicETH, if the opcode has one.
    #[inline]
    pub fn atomic_header(&self) -> Option<AtomicEth> {
        if !self.bth.opcode.header_layout().atomic {
            return None;
        }
        self.headers.first_chunk::<ATOMIC_ETH_LEN>().map(AtomicEth::from_bytes)
    }

    /// The immediate data, if the opcode has some.
    #[inline]
    pub fn immediate_data(&self) -> Option<ImmDt> {
        if !self.bth.opcode.header_layout().imm {
            return None;
        }
        self.headers.last_chunk::<IMM_DT_LEN>().map(ImmDt::from_bytes)
    }

    /// The AETH, if the opcode has one; an error if its syndrome is reserved.
    #[inline]
    pub fn ack_header(&self) -> Result<Option<Aeth>> {
        if !self.bth.opcode.header_layout().aeth {
            return Ok(None);
        }
        self.headers.first_chunk::<AETH_LEN>().map(Aeth::parse_bytes).transpose()
    }

    /// The previous value, in the acknowledgement of an atomic.
    #[inline]
    pub fn atomic_ack(&self) -> Option<u64> {
        if !self.bth.opcode.header_layout().atomic_ack {
            return None;
        }
        self.headers.last_chunk::<ATOMIC_ACK_ETH_LEN>().map(|b| u64::from_be_bytes(*b))
    }

    /// The data, without pad bytes.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A transport packet as a value, without its iCRC. Which headers it has is decided by the opcode's
/// [`super::HeaderLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceRepr<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// WRITE FIRST and ONLY, READ REQUEST.
    pub reth: Option<Reth>,
    /// FETCH_ADD, CMP_SWAP.
    pub atomic: Option<AtomicEth>,
    /// ACK, atomic ACK, READ RESPONSE (but MIDDLE).
    pub aeth: Option<Aeth>,
    /// Atomic ACK: the previous value.
    pub atomic_ack: Option<u64>,
    /// With immediate.
    pub imm: Option<ImmDt>,
    /// Data of WRITE and READ RESPONSE, without pad bytes.
    pub payload: &'a [u8],
}

impl<'a> RoceRepr<'a> {
    /// Parses a packet. A reserved syndrome is an error.
    pub fn parse_packet(packet: &RocePacket<'a>) -> Result<RoceRepr<'a>> {
        Ok(RoceRepr {
            bth: packet.bth,
            reth: packet.rdma_header(),
            atomic: packet.atomic_header(),
            aeth: packet.ack_header()?,
            atomic_ack: packet.atomic_ack(),
            imm: packet.immediate_data(),
            payload: packet.payload,
        })
    }

    /// Length of what [`RoceRepr::encode_into`] writes: BTH to pad bytes, without the iCRC.
    pub const fn buffer_len(&self) -> usize {
        BTH_LEN + self.bth.opcode.header_layout().len() + self.payload.len() + (self.bth.pad & 3) as usize
    }

    /// Writes BTH, headers, payload and zero pad bytes, without the iCRC, to the start of `buffer`
    /// and returns the length.
    ///
    /// Fails, writing nothing, if the buffer is too small, or a header or payload does not match the opcode.
    pub fn encode_into(&self, buffer: &mut [u8]) -> Result<usize> {
        let shape = self.bth.opcode.header_layout();
        let there = [
            (self.reth.is_some() == shape.reth, "reth"),
            (self.atomic.is_some() == shape.atomic, "atomic_eth"),
            (self.aeth.is_some() == shape.aeth, "aeth"),
            (self.atomic_ack.is_some() == shape.atomic_ack, "atomic_ack_eth"),
            (self.imm.is_some() == shape.imm, "imm_dt"),
            (shape.payload || (self.payload.is_empty() && self.bth.pad == 0), "payload"),
        ];
        if let Some((_, field)) = there.iter().find(|(ok, _)| !ok) {
            return Err(err(field, BTH_LEN as u16, WireErrorKind::Contradiction));
        }
        let need = self.buffer_len();
        let have = saturating_u16(buffer.len());
        let Some(out) = buffer.get_mut(..need) else {
            return Err(err("packet", 0, WireErrorKind::BufferTooSmall { need: saturating_u16(need), have }));
        };
        let mut out = Out(out);
        out.fill_next(|b| self.bth.encode_into(b));
        if let Some(reth) = &self.reth {
            out.fill_next(|b| reth.encode_into(b));
        }
        if let Some(atomic) = &self.atomic {
            out.fill_next(|b| atomic.encode_into(b));
        }
        if let Some(aeth) = &self.aeth {
            out.fill_next(|b| aeth.encode_into(b));
        }
        if let Some(before) = self.atomic_ack {
            out.fill_next(|b| *b = before.to_be_bytes());
        }
        if let Some(imm) = &self.imm {
            out.fill_next(|b| imm.encode_into(b));
        }
        let (payload, pad) = out.0.split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        pad.fill(0);
        Ok(need)
    }
}

/// What remains to be written.
struct Out<'b>(&'b mut [u8]);

impl Out<'_> {
    /// Lets `write` fill the next `N` bytes; the total length was checked beforehand.
    fn fill_next<const N: usize>(&mut self, write: impl FnOnce(&mut [u8; N])) {
        if let Some((chunk, rest)) = core::mem::take(&mut self.0).split_first_chunk_mut() {
            write(chunk);
            self.0 = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Opcode, Psn, Syndrome};
    use super::*;
    use proptest::prelude::*;

    /// WRITE ONLY with immediate, 3 bytes of payload and one of padding, and an iCRC.
    const WRITE_IMM: [u8; 40] = [
        0x2b, 0x50, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x07, // BTH
        0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 3, // RETH
        0, 0, 0, 9, // ImmDt
        1, 2, 3, 0, // payload, pad
        0xd, 0xc, 0xb, 0xa, // iCRC
    ];

    fn write_imm() -> RoceRepr<'static> {
        let mut bth = Bth::new(Opcode::UcWriteOnlyImm, 0x11, Psn::new(7), false);
        bth.pad = 1;
        RoceRepr {
            bth,
            reth: Some(Reth { va: 1 << 32, rkey: 0x1234, length: 3 }),
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: Some(ImmDt(9)),
            payload: &[1, 2, 3],
        }
    }

    fn bare(opcode: Opcode) -> RoceRepr<'static> {
        let shape = opcode.header_layout();
        RoceRepr {
            bth: Bth::new(opcode, 0x11, Psn::new(7), false),
            reth: shape.reth.then_some(Reth { va: 1 << 32, rkey: 0x1234, length: 4 }),
            atomic: shape.atomic.then_some(AtomicEth { va: 8, rkey: 1, swap_add: 2, compare: 3 }),
            aeth: shape.aeth.then_some(Aeth { syndrome: Syndrome::ACK, msn: 1 }),
            atomic_ack: shape.atomic_ack.then_some(77),
            imm: shape.imm.then_some(ImmDt(9)),
            payload: if shape.payload { &[1, 2, 3, 4] } else { &[] },
        }
    }

    #[test]
    fn deconstruct() {
        let packet = RocePacket::new_checked(&WRITE_IMM).unwrap();
        assert_eq!(RoceRepr::parse_packet(&packet), Ok(write_imm()));
    }

    #[test]
    fn construct() {
        let mut buffer = [0xa5; 40];
        assert_eq!(write_imm().encode_into(&mut buffer), Ok(36));
        assert_eq!(buffer[..36], WRITE_IMM[..36]);
        assert_eq!(buffer[36..], [0xa5; 4]);
        assert!(write_imm().encode_into(&mut buffer[..35]).is_err());
    }

    #[test]
    fn every_opcode_there_and_back() {
        for opcode in Opcode::all_opcodes() {
            let repr = bare(opcode);
            let mut buffer = [0xa5; 100];
            let len = repr.encode_into(&mut buffer).unwrap();
            assert_eq!(len, repr.buffer_len());
            let packet = RocePacket::new_checked(&buffer[..len + ICRC_LEN]).unwrap();
            assert_eq!(RoceRepr::parse_packet(&packet), Ok(repr));
            // Without a payload, no shorter bytes are a valid packet.
            let least = len - repr.payload.len() + ICRC_LEN;
            for n in 0..least {
                assert!(matches!(
                    RocePacket::new_checked(&buffer[..n]).unwrap_err().kind,
                    WireErrorKind::Truncated { .. }
                ));
            }
        }
    }

    #[test]
    fn refusals() {
        let mut buffer = [0xa5; 100];
        let mut repr = bare(Opcode::RcAck);
        repr.payload = &[1];
        assert_eq!(repr.encode_into(&mut buffer).unwrap_err().field, "payload");
        let mut repr = bare(Opcode::RcWriteOnly);
        repr.reth = None;
        assert_eq!(repr.encode_into(&mut buffer).unwrap_err().field, "reth");
        assert_eq!(buffer, [0xa5; 100]);
        let len = bare(Opcode::RcAck).encode_into(&mut buffer).unwrap();
        let error = RocePacket::new_checked(&buffer[..len + 5]).unwrap_err();
        assert_eq!(error, err("payload", 16, WireErrorKind::TooLong { most: 20, have: 21 }));
        let mut bytes = WRITE_IMM;
        bytes[1] |= 0x30;
        let no_room = [&bytes[..32], &bytes[36..]].concat();
        assert_eq!(
            RocePacket::new_checked(&no_room).unwrap_err(),
            err("pad", 1, WireErrorKind::Truncated { need: 39, have: 36 })
        );
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(packet) = RocePacket::new_checked(&bytes) {
                let _ = RoceRepr::parse_packet(&packet);
            }
        }

        #[test]
        fn mutated_bytes(which: prop::sample::Index, at: prop::sample::Index, byte: u8, cut in 0usize..100) {
            let mut buffer = [0; 100];
            let len = bare(*which.get(&Opcode::all_opcodes().collect::<Vec<_>>())).encode_into(&mut buffer).unwrap() + ICRC_LEN;
            buffer[at.index(len)] = byte;
            if let Ok(packet) = RocePacket::new_checked(&buffer[..len.min(cut)])
                && let Ok(repr) = RoceRepr::parse_packet(&packet)
            {
                let mut again = [0xa5; 100];
                let n = repr.encode_into(&mut again).unwrap();
                let packet = RocePacket::new_checked(&again[..n + ICRC_LEN]).unwrap();
                prop_assert_eq!(RoceRepr::parse_packet(&packet), Ok(repr));
            }
        }
    }
}
