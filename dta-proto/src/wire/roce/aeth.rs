//! Acknowledgements: AETH (4 bytes) and AtomicAckETH (8 bytes).

use super::err;
use crate::wire::{Result, WireErrorKind};

/// Length of the AETH.
pub const AETH_LEN: usize = 4;
/// Length of the AtomicAckETH: the previous value, a big-endian `u64`.
pub const ATOMIC_ACK_ETH_LEN: usize = 8;

/// ACK extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Verdict.
    pub syndrome: Syndrome,
    /// Messages executed, 24 bits.
    pub msn: u32,
}

/// The verdict of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Executed (0b000xxxxx).
    Ack {
        /// Credit count, 5 bits; 0x1f means no credits.
        credits: u8,
    },
    /// No receive is posted; try again later (0b001xxxxx).
    RnrNak {
        /// Timer code, 5 bits.
        timer: u8,
    },
    /// Refused (0b011xxxxx).
    Nak(NakCode),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A PSN is missing; the NAK carries the expected one.
    PsnSequenceError = 0,
    /// Invalid request: misaligned atomic, wrong length, operation not permitted on the queue pair.
    InvalidRequest = 1,
    /// rkey, range or permission.
    RemoteAccessError = 2,
    /// The responder failed.
    RemoteOperationalError = 3,
    /// Used on RD only.
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// An ACK without a credit count, as responders with a shared queue send it.
    pub const ACK: Syndrome = Syndrome::Ack { credits: 0x1f };

    /// Parses byte 0 of the AETH. Like responders, it ignores the top bit; reserved numbers are an error.
    #[inline]
    pub const fn from_byte(byte: u8) -> Result<Syndrome> {
        let low = byte & 0x1f;
        Ok(match byte >> 5 & 3 {
            0 => Syndrome::Ack { credits: low },
            1 => Syndrome::RnrNak { timer: low },
            3 => Syndrome::Nak(match low {
                0 => NakCode::PsnSequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccessError,
                3 => NakCode::RemoteOperationalError,
                4 => NakCode::InvalidRdRequest,
                _ => return Err(err("syndrome", 12, WireErrorKind::Reserved(byte))),
            }),
            _ => return Err(err("syndrome", 12, WireErrorKind::Reserved(byte))),
        })
    }

    /// Byte 0 of the AETH.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(code) => 0x60 | code as u8,
        }
    }
}

impl Aeth {
    /// Parses the header; an error's offset counts from the BTH, which precedes the AETH.
    #[inline]
    pub fn parse_bytes(bytes: &[u8; AETH_LEN]) -> Result<Aeth> {
        let [syndrome, msn @ ..] = *bytes;
        let [a, b, c] = msn;
        Ok(Aeth { syndrome: Syndrome::from_byte(syndrome)?, msn: u32::from_be_bytes([0, a, b, c]) })
    }

    /// Writes the header.
    #[inline]
    pub fn encode_into(&self, buffer: &mut [u8; AETH_LEN]) {
        *buffer = self.msn.to_be_bytes();
        buffer[0] = self.syndrome.to_byte();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome() {
        for byte in 0..=255 {
            match Syndrome::from_byte(byte) {
                Ok(syndrome) => assert_eq!(syndrome.to_byte(), byte & 0x7f),
                Err(error) => assert_eq!(error, err("syndrome", 12, WireErrorKind::Reserved(byte))),
            }
        }
        assert_eq!(Syndrome::from_byte(0x1f), Ok(Syndrome::ACK));
        assert_eq!(Syndrome::from_byte(0x2c), Ok(Syndrome::RnrNak { timer: 12 }));
        assert_eq!(Syndrome::from_byte(0x60), Ok(Syndrome::Nak(NakCode::PsnSequenceError)));
        assert_eq!(Syndrome::from_byte(0x61), Ok(Syndrome::Nak(NakCode::InvalidRequest)));
        assert_eq!(Syndrome::from_byte(0x62), Ok(Syndrome::Nak(NakCode::RemoteAccessError)));
        assert!(Syndrome::from_byte(0x40).is_err());
        assert!(Syndrome::from_byte(0x65).is_err());
    }

    #[test]
    fn construct_and_deconstruct() {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0x01_0203 };
        let mut buffer = [0xa5; AETH_LEN];
        aeth.encode_into(&mut buffer);
        assert_eq!(buffer, [0x1f, 1, 2, 3]);
        assert_eq!(Aeth::parse_bytes(&buffer), Ok(aeth));
        // A wider number does not overflow into the syndrome.
        Aeth { syndrome: Syndrome::ACK, msn: 0xffff_ffff }.encode_into(&mut buffer);
        assert_eq!(buffer, [0x1f, 0xff, 0xff, 0xff]);
    }
}
