//! NACKs: requests for missing reports.

use crate::wire::error::saturating_u16;
use crate::wire::{Error, Layer, Result, WireErrorKind};

/// Length of a version-0 NACK.
pub const NACK_V0_LEN: usize = 2;
/// Length of a version-1 NACK.
pub const NACK_V1_LEN: usize = 12;
/// Bit 7 of byte 1.
const NACK: u8 = 0x80;
/// Bits 1 and 0 of byte 1.
const VERSION: u8 = 0x03;

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Nack, field, offset, kind)
}

/// Retransmittable reports that the translator has not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nack {
    /// Version 0, to UDP port 40044 of the reporter: one sequence.
    V0 {
        /// Low 8 bits of the missing sequence.
        sequence: u8,
    },
    /// Version 1, to the address and port that the reporter uses: a run of sequences.
    V1 {
        /// The reporter.
        reporter: u16,
        /// First missing sequence.
        first: u32,
        /// How many are missing from there (modulo 2^32), at least 1.
        count: u16,
    },
}

impl Nack {
    /// Parses the payload of one UDP datagram.
    pub fn parse_payload(bytes: &[u8]) -> Result<Nack> {
        let have = saturating_u16(bytes.len());
        let [_, flags, ..] = *bytes else {
            return Err(err("header", 0, WireErrorKind::Truncated { need: NACK_V0_LEN as u16, have }));
        };
        if flags & NACK == 0 {
            return Err(err("nack", 1, WireErrorKind::NotANack));
        }
        let exact = |len: usize| {
            let len = len as u16;
            if have > len {
                return Err(err("end", len, WireErrorKind::TooLong { most: len, have }));
            }
            Ok(())
        };
        match flags & VERSION {
            0 => {
                exact(NACK_V0_LEN)?;
                Ok(Nack::V0 { sequence: bytes[0] })
            }
            1 => {
                exact(NACK_V1_LEN)?;
                let Some([sequence, _, r0, r1, f0, f1, f2, f3, c0, c1, _, _]) =
                    bytes.first_chunk::<NACK_V1_LEN>()
                else {
                    return Err(err("body", 2, WireErrorKind::Truncated { need: NACK_V1_LEN as u16, have }));
                };
                if sequence != f3 {
                    return Err(err("sequence", 0, WireErrorKind::Contradiction));
                }
                let count = u16::from_be_bytes([*c0, *c1]);
                if count == 0 {
                    return Err(err("count", 8, WireErrorKind::NotANack));
                }
                Ok(Nack::V1 {
                    reporter: u16::from_be_bytes([*r0, *r1]),
                    first: u32::from_be_bytes([*f0, *f1, *f2, *f3]),
                    count,
                })
            }
            version => Err(err("version", 1, WireErrorKind::UnknownVersion(version))),
        }
    }

    /// Length of what [`Nack::encode_into`] writes.
    pub const fn buffer_len(&self) -> usize {
        match self {
            Nack::V0 { .. } => NACK_V0_LEN,
            Nack::V1 { .. } => NACK_V1_LEN,
        }
    }

    /// Writes the NACK to the start of `buffer` and returns its length. Fails if the buffer is too
    /// small or the count is 0.
    pub fn encode_into(&self, buffer: &mut [u8]) -> Result<usize> {
        let need = self.buffer_len();
        let have = saturating_u16(buffer.len());
        let Some(out) = buffer.get_mut(..need) else {
            return Err(err("nack", 0, WireErrorKind::BufferTooSmall { need: need as u16, have }));
        };
        match *self {
            Nack::V0 { sequence } => out.copy_from_slice(&[sequence, NACK]),
            Nack::V1 { count: 0, .. } => return Err(err("count", 8, WireErrorKind::NotANack)),
            Nack::V1 { reporter, first, count } => {
                out[0] = first as u8;
                out[1] = NACK | 1;
                out[2..4].copy_from_slice(&reporter.to_be_bytes());
                out[4..8].copy_from_slice(&first.to_be_bytes());
                out[8..10].copy_from_slice(&count.to_be_bytes());
                out[10..].fill(0);
            }
        }
        Ok(need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const V0: [u8; 2] = [0x2a, 0x80];
    const V1: [u8; 12] = [0x04, 0x81, 0x00, 0x09, 0x01, 0x02, 0x03, 0x04, 0x00, 0x05, 0x00, 0x00];

    fn all() -> [(&'static [u8], Nack); 2] {
        [(&V0, Nack::V0 { sequence: 42 }), (&V1, Nack::V1 { reporter: 9, first: 0x0102_0304, count: 5 })]
    }

    #[test]
    fn deconstruct() {
        for (bytes, nack) in all() {
            assert_eq!(Nack::parse_payload(bytes), Ok(nack));
        }
    }

    #[test]
    fn construct() {
        for (bytes, nack) in all() {
            let mut buffer = [0xa5; 16];
            assert_eq!(nack.encode_into(&mut buffer), Ok(bytes.len()));
            assert_eq!(&buffer[..bytes.len()], bytes);
            assert_eq!(nack.buffer_len(), bytes.len());
            assert!(nack.encode_into(&mut buffer[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn impossible_lengths() {
        for (bytes, _) in all() {
            for n in 0..bytes.len() {
                assert!(matches!(
                    Nack::parse_payload(&bytes[..n]).unwrap_err().kind,
                    WireErrorKind::Truncated { .. }
                ));
            }
            let long = [bytes, &[0]].concat();
            assert!(matches!(Nack::parse_payload(&long).unwrap_err().kind, WireErrorKind::TooLong { .. }));
        }
    }

    #[test]
    fn refusals() {
        let with = |at: usize, byte: u8| {
            let mut bytes = V1;
            bytes[at] = byte;
            Nack::parse_payload(&bytes)
        };
        assert_eq!(with(1, 0x01), Err(err("nack", 1, WireErrorKind::NotANack)));
        assert_eq!(with(1, 0x82), Err(err("version", 1, WireErrorKind::UnknownVersion(2))));
        assert_eq!(with(0, 5), Err(err("sequence", 0, WireErrorKind::Contradiction)));
        assert_eq!(with(9, 0), Err(err("count", 8, WireErrorKind::NotANack)));
        let nothing = Nack::V1 { reporter: 0, first: 0, count: 0 };
        assert_eq!(nothing.encode_into(&mut [0; 12]), Err(err("count", 8, WireErrorKind::NotANack)));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
            if let Ok(nack) = Nack::parse_payload(&bytes) {
                let mut again = [0xa5; 12];
                let len = nack.encode_into(&mut again).unwrap();
                prop_assert_eq!(Nack::parse_payload(&again[..len]), Ok(nack));
            }
        }

        #[test]
        fn mutated_bytes(at in 0usize..12, byte: u8, len in 0usize..=12) {
            let mut bytes = V1;
            bytes[at] = byte;
            let _ = Nack::parse_payload(&bytes[..len]);
        }
    }
}
