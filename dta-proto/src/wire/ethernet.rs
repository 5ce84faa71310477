//! Ethernet II: destination, source, EtherType (14 bytes).

use core::fmt;
use core::str::FromStr;

use super::error::saturating_u16;
use super::{Error, Layer, Result, WireErrorKind};

/// Length of the header.
pub const HEADER_LEN: usize = 14;
/// EtherType of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;

/// A MAC address, in written and wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// A string is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a MAC address: write six bytes as 02:00:00:00:00:01")]
pub struct MacError(String);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(s: &str) -> core::result::Result<Self, MacError> {
        let fail = || MacError(s.to_owned());
        let mut mac = [0; 6];
        let mut parts = s.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().ok_or_else(fail)?;
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(fail());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| fail())?;
        }
        if parts.next().is_some() { Err(fail()) } else { Ok(Mac(mac)) }
    }
}

crate::serde_as_text!(Mac);

/// A checked view of a frame (without its FCS).
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> EthernetFrame<'a> {
    /// Checks that there is a whole header.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self> {
        match bytes.split_first_chunk() {
            Some((header, payload)) => Ok(EthernetFrame { header, payload }),
            None => {
                let kind =
                    WireErrorKind::Truncated { need: HEADER_LEN as u16, have: saturating_u16(bytes.len()) };
                Err(Error::new(Layer::Ethernet, "header", 0, kind))
            }
        }
    }

    /// Destination address.
    pub fn destination_mac(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// Source address.
    pub fn source_mac(&self) -> Mac {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// EtherType.
    pub fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.header[12], self.header[13]])
    }

    /// The payload, padding included.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetRepr {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// EtherType.
    pub ethertype: u16,
}

impl EthernetRepr {
    /// Writes the header.
    pub fn encode_into(&self, buffer: &mut [u8; HEADER_LEN]) {
        buffer[..6].copy_from_slice(&self.dst.0);
        buffer[6..12].copy_from_slice(&self.src.0);
        buffer[12..].copy_from_slice(&self.ethertype.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: [u8; 16] = [0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45, 0x00];

    fn repr() -> EthernetRepr {
        EthernetRepr { dst: Mac([2, 0, 0, 0, 0, 1]), src: Mac([2, 0, 0, 0, 0, 2]), ethertype: TYPE_IPV4 }
    }

    #[test]
    fn deconstruct() {
        let packet = EthernetFrame::new_checked(&BYTES).unwrap();
        let EthernetRepr { dst, src, ethertype } = repr();
        assert_eq!(
            (packet.destination_mac(), packet.source_mac(), packet.ethertype()),
            (dst, src, ethertype)
        );
        assert_eq!(packet.payload(), [0x45, 0x00]);
    }

    #[test]
    fn construct() {
        let mut buffer = [0xa5; HEADER_LEN];
        repr().encode_into(&mut buffer);
        assert_eq!(buffer, BYTES[..HEADER_LEN]);
    }

    #[test]
    fn impossible_length() {
        for n in 0..HEADER_LEN {
            let kind = WireErrorKind::Truncated { need: 14, have: n as u16 };
            let expected = Error::new(Layer::Ethernet, "header", 0, kind);
            assert_eq!(EthernetFrame::new_checked(&BYTES[..n]).unwrap_err(), expected);
        }
    }

    #[test]
    fn mac_text() {
        let mac: Mac = "02:00:5e:10:00:ff".parse().unwrap();
        assert_eq!(mac, Mac([2, 0, 0x5e, 0x10, 0, 0xff]));
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        for bad in [
            "",
            "02:00:5e:10:00",
            "02:00:5e:10:00:ff:01",
            "02:00:5e:10:00:fg",
            "2:0:5e:10:0:ff",
            "+2:00:5e:10:00:ff",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_mac_survives_text(bytes: [u8; 6]) {
            prop_assert_eq!(Mac(bytes).to_string().parse::<Mac>().unwrap(), Mac(bytes));
        }
    }
}
