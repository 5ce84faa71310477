//! Packet matches: addresses with masks, port ranges, protocols.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use dta_proto::prefix::Prefix;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

/// IPv4 addresses that agree in some bits: `10.0.0.0/8`, `10.0.0.1`, or `172.0.0.7/255.0.0.255`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked {
    /// The address bits; 0 outside the mask.
    pub value: u32,
    pub mask: u32,
}

impl Masked {
    pub fn from_address(address: Ipv4Addr) -> Masked {
        Masked { value: address.to_bits(), mask: u32::MAX }
    }
}

impl From<Prefix> for Masked {
    /// For an IPv6 prefix the mask is 0: callers reject those.
    fn from(prefix: Prefix) -> Masked {
        let IpAddr::V4(address) = prefix.written_address() else { return Masked::default() };
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.length_in_bits())).unwrap_or(0);
        Masked { value: address.to_bits() & mask, mask }
    }
}

impl FromStr for Masked {
    type Err = String;

    fn from_str(text: &str) -> Result<Masked, String> {
        let bad = || {
            format!(
                "{text:?} is not an IPv4 prefix: write 10.0.0.0/8, 10.0.0.1 or, with a mask, 172.0.0.7/255.0.0.255"
            )
        };
        if let Some((address, mask)) = text.split_once('/')
            && let (Ok(address), Ok(mask)) = (address.parse::<Ipv4Addr>(), mask.parse::<Ipv4Addr>())
        {
            return Ok(Masked { value: (address & mask).to_bits(), mask: mask.to_bits() });
        }
        match text.parse::<Prefix>() {
            Ok(prefix) if prefix.written_address().is_ipv4() => Ok(prefix.into()),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Masked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, mask) = (Ipv4Addr::from(self.value), Ipv4Addr::from(self.mask));
        match self.mask.leading_ones() + self.mask.trailing_zeros() {
            32 | 64 => write!(f, "{value}/{}", self.mask.leading_ones()),
            _ => write!(f, "{value}/{mask}"),
        }
    }
}

dta_proto::serde_as_text!(Masked);

/// A range of ports: `80`, or `"5000-5999"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub low: u16,
    pub high: u16,
}

impl PortRange {
    pub const ALL: PortRange = PortRange { low: 0, high: u16::MAX };
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.low == self.high {
            true => to.serialize_u16(self.low),
            false => to.collect_str(&format_args!("{}-{}", self.low, self.high)),
        }
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<PortRange, D::Error> {
        let of = |text: &str| {
            let (low, high) = text.split_once('-').unwrap_or((text, text));
            let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
            (low <= high).then_some(PortRange { low, high })
        };
        let what = "a port such as 80, or a range of them such as \"5000-5999\"";
        from.deserialize_any(NumberOrText { what, of })
    }
}

/// An IP protocol: its number, or `icmp`, `tcp`, `udp`, `sctp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Protocol(pub u8);

impl Protocol {
    pub const UDP: Protocol = Protocol(17);
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
        let of = |text: &str| match text {
            "icmp" => Some(Protocol(1)),
            "tcp" => Some(Protocol(6)),
            "udp" => Some(Protocol::UDP),
            "sctp" => Some(Protocol(132)),
            number => number.parse().ok().map(Protocol),
        };
        from.deserialize_any(NumberOrText {
            what: "the number of an IP protocol, icmp, tcp, udp or sctp",
            of,
        })
    }
}

/// Parses what may be a number or a text.
struct NumberOrText<F> {
    what: &'static str,
    of: F,
}

impl<T, F: Fn(&str) -> Option<T>> Visitor<'_> for NumberOrText<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        let wrong = E::invalid_value(serde::de::Unexpected::Signed(number), &self.what);
        (self.of)(&number.to_string()).ok_or(wrong)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let wrong = E::invalid_value(serde::de::Unexpected::Unsigned(number), &self.what);
        (self.of)(&number.to_string()).ok_or(wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let wrong = E::invalid_value(serde::de::Unexpected::Str(text), &self.what);
        (self.of)(text).ok_or(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_prefixes_or_masks() {
        for (text, value, mask, shown) in [
            ("10.1.2.3/8", 0x0a00_0000, 0xff00_0000, "10.0.0.0/8"),
            ("10.0.0.1", 0x0a00_0001, u32::MAX, "10.0.0.1/32"),
            ("0.0.0.0/0", 0, 0, "0.0.0.0/0"),
            ("172.9.9.7/255.0.0.255", 0xac00_0007, 0xff00_00ff, "172.0.0.7/255.0.0.255"),
            ("10.0.0.0/255.0.0.0", 0x0a00_0000, 0xff00_0000, "10.0.0.0/8"),
        ] {
            let masked: Masked = text.parse().unwrap();
            assert_eq!(masked, Masked { value, mask });
            assert_eq!(masked.to_string(), shown);
            assert_eq!(shown.parse(), Ok(masked));
        }
        for text in ["", "10.0.0.0/33", "host", "2001:db8::/32", "10.0.0.0/255.0.0"] {
            assert!(text.parse::<Masked>().unwrap_err().contains("is not an IPv4 prefix"), "{text}");
        }
    }

    #[test]
    fn ports_and_protocols_are_numbers_or_texts() {
        #[derive(Debug, PartialEq, serde::Deserialize, Serialize)]
        struct File {
            ports: PortRange,
            protocol: Protocol,
        }
        for (text, low, high, protocol) in [
            ("ports = 80\nprotocol = 6", 80, 80, 6),
            ("ports = '0-65535'\nprotocol = 'udp'", 0, 65_535, 17),
            ("ports = '5000 - 5999'\nprotocol = '0'", 5000, 5999, 0),
        ] {
            let file: File = toml::from_str(text).unwrap();
            assert_eq!(file, File { ports: PortRange { low, high }, protocol: Protocol(protocol) });
            assert_eq!(toml::from_str::<File>(&toml::to_string(&file).unwrap()).unwrap(), file);
        }
        for (text, expected) in [
            ("ports = '9-8'\nprotocol = 6", "a range of them"),
            ("ports = 65536\nprotocol = 6", "a port such as 80"),
            ("ports = 1\nprotocol = 256", "an IP protocol"),
            ("ports = 1\nprotocol = 'gre'", "an IP protocol"),
        ] {
            let error = toml::from_str::<File>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
