//! Base transport header (12 bytes).

use super::{Opcode, Psn, QPN_MASK, err};
use crate::wire::error::saturating_u16;
use crate::wire::{Result, WireErrorKind};

/// Length of the BTH.
pub const BTH_LEN: usize = 12;
/// The P_Key of the default partition, full member.
pub const PKEY_DEFAULT: u16 = 0xffff;

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The operation.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state; DTA sends 1.
    pub migreq: bool,
    /// Pad bytes between payload and iCRC, 0 to 3.
    pub pad: u8,
    /// Partition key; DTA sends [`PKEY_DEFAULT`].
    pub pkey: u16,
    /// Byte 4: FECN, BECN and six reserved bits. The iCRC does not cover it; DTA sends 0.
    pub congestion: u8,
    /// Destination queue pair number, 24 bits.
    pub dest_qp: u32,
    /// Whether an acknowledgement is requested.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// A header with the frame profile's values: SE 0, MigReq 1, no pad, default P_Key.
    pub const fn new(opcode: Opcode, dest_qp: u32, psn: Psn, ack_req: bool) -> Bth {
        Bth {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            pkey: PKEY_DEFAULT,
            congestion: 0,
            dest_qp: dest_qp & QPN_MASK,
            ack_req,
            psn,
        }
    }

    /// Parses the header at the start of `bytes`. Rejects unknown and unsupported opcodes and transport
    /// versions other than 0.
    #[inline]
    pub fn parse_bytes(bytes: &[u8]) -> Result<Bth> {
        let Some([op, flags, k0, k1, congestion, q0, q1, q2, a, p0, p1, p2]) = bytes.first_chunk::<BTH_LEN>()
        else {
            let kind = WireErrorKind::Truncated { need: BTH_LEN as u16, have: saturating_u16(bytes.len()) };
            return Err(err("bth", 0, kind));
        };
        if flags & 0x0f != 0 {
            return Err(err("transport_version", 1, WireErrorKind::UnknownVersion(flags & 0x0f)));
        }
        Ok(Bth {
            opcode: Opcode::from_byte(*op).map_err(|kind| err("opcode", 0, kind))?,
            solicited: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: u16::from_be_bytes([*k0, *k1]),
            congestion: *congestion,
            dest_qp: u32::from_be_bytes([0, *q0, *q1, *q2]),
            ack_req: a & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, *p0, *p1, *p2])),
        })
    }

    /// Writes the header; the low 7 bits beside the PSN are 0.
    #[inline]
    pub fn encode_into(&self, buffer: &mut [u8; BTH_LEN]) {
        buffer[0] = self.opcode.to_byte();
        buffer[1] = u8::from(self.solicited) << 7 | u8::from(self.migreq) << 6 | (self.pad & 3) << 4;
        buffer[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        buffer[4..8].copy_from_slice(&(self.dest_qp & QPN_MASK).to_be_bytes());
        buffer[4] = self.congestion;
        buffer[8..12].copy_from_slice(&(u32::from(self.ack_req) << 31 | self.psn.get()).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: [u8; 12] = [0x0a, 0x40, 0xff, 0xff, 0x00, 0x00, 0x01, 0x23, 0x80, 0xab, 0xcd, 0xef];

    fn bth() -> Bth {
        Bth::new(Opcode::RcWriteOnly, 0x123, Psn::new(0xab_cdef), true)
    }

    #[test]
    fn deconstruct() {
        assert_eq!(Bth::parse_bytes(&BYTES), Ok(bth()));
    }

    #[test]
    fn construct() {
        let mut buffer = [0xa5; BTH_LEN];
        bth().encode_into(&mut buffer);
        assert_eq!(buffer, BYTES);
    }

    #[test]
    fn refusals() {
        for n in 0..BTH_LEN {
            let kind = WireErrorKind::Truncated { need: 12, have: n as u16 };
            assert_eq!(Bth::parse_bytes(&BYTES[..n]), Err(err("bth", 0, kind)));
        }
        let mut bytes = BYTES;
        bytes[1] = 0x41;
        assert_eq!(
            Bth::parse_bytes(&bytes),
            Err(err("transport_version", 1, WireErrorKind::UnknownVersion(1)))
        );
        bytes = BYTES;
        bytes[0] = 0x04;
        assert_eq!(Bth::parse_bytes(&bytes), Err(err("opcode", 0, WireErrorKind::UnsupportedOpcode(4))));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes: [u8; BTH_LEN], at in 0usize..12, byte: u8) {
            let _ = Bth::parse_bytes(&bytes);
            let mut bytes = BYTES;
            bytes[at] = byte;
            if let Ok(bth) = Bth::parse_bytes(&bytes) {
                let mut again = [0xa5; BTH_LEN];
                bth.encode_into(&mut again);
                // The seven reserved bits beside the PSN are not kept.
                bytes[8] &= 0x80;
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
