//! ARP for IPv4 over Ethernet (RFC 826): who has an address, and the answer.
//!
//! ```text
//! offset  bytes
//!  0      2     hardware type 1 (Ethernet)
//!  2      2     protocol type 0x0800 (IPv4)
//!  4      1     6, bytes of a hardware address
//!  5      1     4, bytes of a protocol address
//!  6      2     operation: 1 request, 2 reply
//!  8      6     sender MAC
//! 14      4     sender IPv4
//! 18      6     target MAC (0 in a request)
//! 24      4     target IPv4
//! ```

use core::net::Ipv4Addr;

use super::error::saturating_u16;
use super::ethernet::Mac;
use super::{Error, Layer, Result, WireErrorKind};

/// EtherType of ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// Length of a message.
pub const LEN: usize = 28;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Who has the target address?
    Request,
    /// The sender has its address.
    Reply,
}

/// An ARP message as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpRepr {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Sender's MAC address.
    pub sender_mac: Mac,
    /// Sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// Target's MAC address; zeros in a request.
    pub target_mac: Mac,
    /// Target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Arp, field, offset, kind)
}

impl ArpRepr {
    /// Reads a message; bytes after it (padding of short frames) are ignored.
    pub fn parse_bytes(bytes: &[u8]) -> Result<ArpRepr> {
        let Some(b) = bytes.first_chunk::<LEN>() else {
            return Err(err(
                "message",
                0,
                WireErrorKind::Truncated { need: LEN as u16, have: saturating_u16(bytes.len()) },
            ));
        };
        let be16 = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        for (field, at, wanted) in
            [("hardware_type", 0, 1), ("protocol_type", 2, 0x0800), ("address_lengths", 4, 0x0604)]
        {
            if be16(at) != wanted {
                return Err(err(field, at as u16, WireErrorKind::Protocol(be16(at))));
            }
        }
        let operation = match be16(6) {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            other => return Err(err("operation", 6, WireErrorKind::UnknownOpcode(other.min(0xff) as u8))),
        };
        let mac = |at: usize| Mac([b[at], b[at + 1], b[at + 2], b[at + 3], b[at + 4], b[at + 5]]);
        let ip = |at: usize| Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3]);
        Ok(ArpRepr {
            operation,
            sender_mac: mac(8),
            sender_ip: ip(14),
            target_mac: mac(18),
            target_ip: ip(24),
        })
    }

    /// Writes the message.
    pub fn encode_into(&self, buffer: &mut [u8; LEN]) {
        let operation = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        buffer[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, operation]);
        buffer[8..14].copy_from_slice(&self.sender_mac.0);
        buffer[14..18].copy_from_slice(&self.sender_ip.octets());
        buffer[18..24].copy_from_slice(&self.target_mac.0);
        buffer[24..].copy_from_slice(&self.target_ip.octets());
    }

    /// The reply to a request, saying that `mac` has the address.
    pub fn reply_with_mac(&self, mac: Mac) -> ArpRepr {
        ArpRepr {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: [u8; 28] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 10, 9, 0, 2];

    #[test]
    fn a_request_and_its_reply() {
        let request = ArpRepr::parse_bytes(&REQUEST).unwrap();
        assert_eq!(request.operation, ArpOperation::Request);
        assert_eq!(request.target_ip, Ipv4Addr::new(10, 9, 0, 2));
        let mut buffer = [0xa5; LEN];
        request.encode_into(&mut buffer);
        assert_eq!(buffer, REQUEST);
        request.reply_with_mac(Mac([2, 0, 0, 0, 0, 2])).encode_into(&mut buffer);
        let expected = [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 9, 0, 2, 2, 0, 0, 0, 0, 1, 10, 9, 0, 1];
        assert_eq!(buffer, expected);
    }

    #[test]
    fn refusals_name_the_field() {
        for n in 0..LEN {
            assert_eq!(ArpRepr::parse_bytes(&REQUEST[..n]).unwrap_err().field, "message");
        }
        for (at, field) in
            [(1, "hardware_type"), (2, "protocol_type"), (5, "address_lengths"), (7, "operation")]
        {
            let mut bytes = REQUEST;
            bytes[at] = 9;
            assert_eq!(ArpRepr::parse_bytes(&bytes).unwrap_err().field, field);
        }
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(repr) = ArpRepr::parse_bytes(&bytes) {
                let mut buffer = [0xa5; LEN];
                repr.encode_into(&mut buffer);
                prop_assert_eq!(&buffer[..], &bytes[..LEN]);
            }
        }
    }
}
