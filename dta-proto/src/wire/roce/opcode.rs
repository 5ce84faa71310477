//! BTH opcodes: three bits of transport, five of operation.

use super::{AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, IMM_DT_LEN, RETH_LEN};
use crate::queue_pair::Transport;
use crate::wire::WireErrorKind;

/// An operation and its place in a message. `Rc…` opcodes are 0x00 and up, `Uc…` 0x20 and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Opcode {
    RcWriteFirst = 0x06,
    RcWriteMiddle = 0x07,
    RcWriteLast = 0x08,
    RcWriteLastImm = 0x09,
    RcWriteOnly = 0x0a,
    RcWriteOnlyImm = 0x0b,
    RcReadRequest = 0x0c,
    RcReadResponseFirst = 0x0d,
    RcReadResponseMiddle = 0x0e,
    RcReadResponseLast = 0x0f,
    RcReadResponseOnly = 0x10,
    RcAck = 0x11,
    RcAtomicAck = 0x12,
    RcCmpSwap = 0x13,
    RcFetchAdd = 0x14,
    UcWriteFirst = 0x26,
    UcWriteMiddle = 0x27,
    UcWriteLast = 0x28,
    UcWriteLastImm = 0x29,
    UcWriteOnly = 0x2a,
    UcWriteOnlyImm = 0x2b,
}

/// Which headers follow the BTH, in this order, and whether a payload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLayout {
    /// RETH, 16 bytes.
    pub reth: bool,
    /// AtomicETH, 28 bytes.
    pub atomic: bool,
    /// AETH, 4 bytes.
    pub aeth: bool,
    /// AtomicAckETH, 8 bytes.
    pub atomic_ack: bool,
    /// ImmDt, 4 bytes.
    pub imm: bool,
    /// Data.
    pub payload: bool,
}

impl HeaderLayout {
    /// Total length of the headers after the BTH.
    #[inline]
    pub const fn len(&self) -> usize {
        (if self.reth { RETH_LEN } else { 0 })
            + (if self.atomic { ATOMIC_ETH_LEN } else { 0 })
            + (if self.aeth { AETH_LEN } else { 0 })
            + (if self.atomic_ack { ATOMIC_ACK_ETH_LEN } else { 0 })
            + (if self.imm { IMM_DT_LEN } else { 0 })
    }

    /// Whether no header follows the BTH.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Opcode {
    /// All opcodes, in the order of their bytes.
    pub fn all_opcodes() -> impl Iterator<Item = Opcode> {
        (0..=u8::MAX).filter_map(|byte| Opcode::from_byte(byte).ok())
    }

    /// The opcode in the first byte of a BTH. One that the specification defines but DTA does not use (SEND and
    /// its kin, other transports, congestion notification) is [`WireErrorKind::UnsupportedOpcode`], any other
    /// [`WireErrorKind::UnknownOpcode`].
    #[inline]
    pub const fn from_byte(byte: u8) -> Result<Opcode, WireErrorKind> {
        Ok(match byte {
            0x06 => Opcode::RcWriteFirst,
            0x07 => Opcode::RcWriteMiddle,
            0x08 => Opcode::RcWriteLast,
            0x09 => Opcode::RcWriteLastImm,
            0x0a => Opcode::RcWriteOnly,
            0x0b => Opcode::RcWriteOnlyImm,
            0x0c => Opcode::RcReadRequest,
            0x0d => Opcode::RcReadResponseFirst,
            0x0e => Opcode::RcReadResponseMiddle,
            0x0f => Opcode::RcReadResponseLast,
            0x10 => Opcode::RcReadResponseOnly,
            0x11 => Opcode::RcAck,
            0x12 => Opcode::RcAtomicAck,
            0x13 => Opcode::RcCmpSwap,
            0x14 => Opcode::RcFetchAdd,
            0x26 => Opcode::UcWriteFirst,
            0x27 => Opcode::UcWriteMiddle,
            0x28 => Opcode::UcWriteLast,
            0x29 => Opcode::UcWriteLastImm,
            0x2a => Opcode::UcWriteOnly,
            0x2b => Opcode::UcWriteOnlyImm,
            // SEND on RC and UC, with invalidate on RC; all of RD; SEND ONLY on UD; congestion
            // notification.
            0x00..=0x05 | 0x16 | 0x17 | 0x20..=0x25 | 0x40..=0x56 | 0x64 | 0x65 | 0x81 => {
                return Err(WireErrorKind::UnsupportedOpcode(byte));
            }
            _ => return Err(WireErrorKind::UnknownOpcode(byte)),
        })
    }

    /// The first byte of the BTH.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        self as u8
    }

    /// WRITE ONLY, or WRITE ONLY with immediate.
    #[inline]
    pub const fn write_only(transport: Transport, immediate: bool) -> Opcode {
        match (transport, immediate) {
            (Transport::Rc, false) => Opcode::RcWriteOnly,
            (Transport::Rc, true) => Opcode::RcWriteOnlyImm,
            (Transport::Uc, false) => Opcode::UcWriteOnly,
            (Transport::Uc, true) => Opcode::UcWriteOnlyImm,
        }
    }

    /// The transport.
    #[inline]
    pub const fn transport(self) -> Transport {
        if self.to_byte() < 0x20 { Transport::Rc } else { Transport::Uc }
    }

    /// Whether this starts a message: FIRST or ONLY of a WRITE, or a single-packet request.
    #[inline]
    pub const fn is_message_start(self) -> bool {
        matches!(self.to_byte() & 0x1f, 0x06 | 0x0a | 0x0b | 0x0c | 0x13 | 0x14)
    }

    /// Whether this ends a message: LAST or ONLY of a WRITE, or a single-packet request.
    #[inline]
    pub const fn is_message_end(self) -> bool {
        matches!(self.to_byte() & 0x1f, 0x08..=0x0c | 0x13 | 0x14)
    }

    /// Whether this goes from requester to responder.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.to_byte() & 0x1f, 0x06..=0x0c | 0x13 | 0x14)
    }

    /// Which headers follow.
    #[inline]
    pub const fn header_layout(self) -> HeaderLayout {
        let mut shape = HeaderLayout {
            reth: false,
            atomic: false,
            aeth: false,
            atomic_ack: false,
            imm: false,
            payload: false,
        };
        match self.to_byte() & 0x1f {
            0x06 | 0x0a => (shape.reth, shape.payload) = (true, true),
            0x07 | 0x08 | 0x0e => shape.payload = true,
            0x09 => (shape.imm, shape.payload) = (true, true),
            0x0b => (shape.reth, shape.imm, shape.payload) = (true, true, true),
            0x0c => shape.reth = true,
            0x0d | 0x0f | 0x10 => (shape.aeth, shape.payload) = (true, true),
            0x11 => shape.aeth = true,
            0x12 => (shape.aeth, shape.atomic_ack) = (true, true),
            // All that is left: 0x13 and 0x14.
            _ => shape.atomic = true,
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_known_unsupported_or_unknown() {
        let mut supported = 0;
        for byte in 0..=255 {
            match Opcode::from_byte(byte) {
                Ok(opcode) => {
                    assert_eq!(opcode.to_byte(), byte);
                    supported += 1;
                }
                Err(kind) => assert!(
                    kind == WireErrorKind::UnsupportedOpcode(byte)
                        || kind == WireErrorKind::UnknownOpcode(byte),
                    "{byte:#x}: {kind:?}"
                ),
            }
        }
        assert_eq!(supported, 21);
        assert_eq!(Opcode::from_byte(0x04), Err(WireErrorKind::UnsupportedOpcode(0x04)));
        assert_eq!(Opcode::from_byte(0x24), Err(WireErrorKind::UnsupportedOpcode(0x24)));
        assert_eq!(Opcode::from_byte(0x34), Err(WireErrorKind::UnknownOpcode(0x34)));
        assert_eq!(Opcode::from_byte(0x15), Err(WireErrorKind::UnknownOpcode(0x15)));
    }

    #[test]
    fn shapes() {
        let lens: Vec<usize> = Opcode::all_opcodes().map(|o| o.header_layout().len()).collect();
        assert_eq!(lens, [16, 0, 0, 4, 16, 20, 16, 4, 0, 4, 4, 4, 12, 28, 28, 16, 0, 0, 4, 16, 20]);
        assert!(Opcode::UcWriteMiddle.header_layout().is_empty());
    }

    #[test]
    fn places() {
        assert!(Opcode::RcWriteFirst.is_message_start() && !Opcode::RcWriteFirst.is_message_end());
        assert!(!Opcode::UcWriteMiddle.is_message_start() && !Opcode::UcWriteMiddle.is_message_end());
        assert!(Opcode::UcWriteLastImm.is_message_end() && !Opcode::UcWriteLastImm.is_message_start());
        assert!(Opcode::RcFetchAdd.is_message_start() && Opcode::RcFetchAdd.is_message_end());
        assert!(!Opcode::RcAck.is_request() && Opcode::RcReadRequest.is_request());
        assert_eq!(Opcode::write_only(Transport::Uc, true), Opcode::UcWriteOnlyImm);
        assert_eq!(Opcode::UcWriteOnlyImm.transport(), Transport::Uc);
        assert_eq!(Opcode::RcFetchAdd.transport(), Transport::Rc);
    }
}
