//! The 16-byte key of keyed primitives, and the flow 5-tuple it can hold.
//!
//! An IPv4 flow is stored as is: `src[4] dst[4] sport[2] dport[2] proto[1] 0[3]`. An IPv6 flow does not fit,
//! so its key is three CRCs of `src[16] dst[16] sport[2] dport[2] proto[1]` (37 bytes), each big-endian,
//! followed by bytes that no IPv4 flow ends in: `crc32[4] crc32c[4] crc32k[4] proto[1] 0 0 6`. The CRCs are
//! those of [`crate::crc`].

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use crate::telemetry::{FlowBytes, hashed_key};

/// Length of a key.
pub const KEY_LEN: usize = 16;

/// A key: 16 bytes whose meaning reporters and queries agree on, usually a flow.
///
/// Written as a flow (`10.0.0.1:5000->10.0.0.2:5000/udp`) or as up to 32 hex digits; missing trailing bytes
/// are zero. Displayed as a flow if it is an IPv4 flow with a protocol, else as 32 hex digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; KEY_LEN]);

/// A flow: addresses, ports (0 where the protocol has none), IP protocol number.
///
/// Written `10.0.0.1:5000->10.0.0.2:5000/udp`, `[2001:db8::1]:1->[2001:db8::2]:2/tcp`, or without ports
/// (`10.0.0.1->10.0.0.2/icmp`); the protocol by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family; in a mixed pair the IPv4 one counts as IPv4-mapped IPv6.
    pub dst: IpAddr,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// IP protocol number.
    pub proto: u8,
}

/// Whether the protocol's header starts with both ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
#[inline]
pub const fn has_ports(proto: u8) -> bool {
    matches!(proto, 6 | 17 | 33 | 132 | 136)
}

/// The string is neither a flow nor a key in hex.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a key: {what}; write a flow as 10.0.0.1:5000->10.0.0.2:5000/udp, [2001:db8::1]:1->[2001:db8::2]:2/tcp or \
     10.0.0.1->10.0.0.2/icmp, or up to 32 hex digits"
)]
pub struct ParseError {
    text: String,
    what: &'static str,
}

/// Protocols that have a name here. Others are written as numbers.
const PROTOCOLS: [(&str, u8); 10] = [
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("udp", 17),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmp6", 58),
    ("ospf", 89),
    ("sctp", 132),
];

/// The name of a protocol, if it has one here.
pub fn protocol_name(number: u8) -> Option<&'static str> {
    PROTOCOLS.iter().find(|(_, n)| *n == number).map(|(name, _)| *name)
}

/// The protocol with this name.
pub fn protocol_by_name(name: &str) -> Option<u8> {
    PROTOCOLS.iter().find(|(of, _)| *of == name).map(|(_, number)| *number)
}

impl Key {
    /// The key of a version-0 report: its four bytes, then zeros.
    pub const fn from_version_0(key: [u8; 4]) -> Key {
        let [a, b, c, d] = key;
        Key([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    /// The IPv4 flow in this key, if it is one: the key ends in three zeros and its protocol is not 0, so
    /// that padded version-0 keys are not taken for flows.
    pub fn to_ipv4_flow(&self) -> Option<Flow> {
        let [s0, s1, s2, s3, d0, d1, d2, d3, sp0, sp1, dp0, dp1, proto, z0, z1, z2] = self.0;
        if proto == 0 || [z0, z1, z2] != [0; 3] {
            return None;
        }
        Some(Flow {
            src: Ipv4Addr::new(s0, s1, s2, s3).into(),
            dst: Ipv4Addr::new(d0, d1, d2, d3).into(),
            sport: u16::from_be_bytes([sp0, sp1]),
            dport: u16::from_be_bytes([dp0, dp1]),
            proto,
        })
    }
}

impl Flow {
    /// The flow's key, as the module describes.
    #[inline]
    pub fn to_key(&self) -> Key {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.src, self.dst) else { return self.to_ipv6_key() };
        // As one number, for speed: this runs for each report.
        let addresses = u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits());
        let ports = u32::from(self.sport) << 16 | u32::from(self.dport);
        let rest = u64::from(ports) << 32 | u64::from(self.proto) << 24;
        Key((u128::from(addresses) << 64 | u128::from(rest)).to_be_bytes())
    }

    /// The key if an address is IPv6.
    fn to_ipv6_key(self) -> Key {
        hashed_key(FlowBytes::from_flow(&self).get(), [self.proto, 0, 0, 6])
    }
}

impl From<Flow> for Key {
    fn from(flow: Flow) -> Key {
        flow.to_key()
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |f: &mut fmt::Formatter<'_>, address: IpAddr, port: u16| match address {
            IpAddr::V4(a) => write!(f, "{a}:{port}"),
            IpAddr::V6(a) => write!(f, "[{a}]:{port}"),
        };
        end(f, self.src, self.sport)?;
        f.write_str("->")?;
        end(f, self.dst, self.dport)?;
        match protocol_name(self.proto) {
            Some(name) => write!(f, "/{name}"),
            None => write!(f, "/{}", self.proto),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_ipv4_flow() {
            Some(flow) => flow.fmt(f),
            None => self.0.iter().try_for_each(|b| write!(f, "{b:02x}")),
        }
    }
}

/// An address with or without a port. IPv6 with a port stands in brackets.
fn parse_end(text: &str) -> Result<(IpAddr, u16), &'static str> {
    const ADDRESS: &str = "an address cannot be read";
    const PORT: &str = "a port is not a number from 0 to 65535";
    if let Ok(address) = text.parse() {
        return Ok((address, 0));
    }
    if let Some(inside) = text.strip_prefix('[') {
        let (address, port) = inside.split_once(']').ok_or("a bracket is not closed")?;
        let address: Ipv6Addr = address.parse().map_err(|_| ADDRESS)?;
        let port = match port.strip_prefix(':') {
            Some(port) => parse_digits(port).ok_or(PORT)?,
            None if port.is_empty() => 0,
            None => return Err("a colon and a port belong after the bracket"),
        };
        return Ok((address.into(), port));
    }
    let (address, port) = text.split_once(':').ok_or(ADDRESS)?;
    let address: Ipv4Addr = address.parse().map_err(|_| ADDRESS)?;
    Ok((address.into(), parse_digits(port).ok_or(PORT)?))
}

/// Digits only: `parse` would accept a plus sign too.
fn parse_digits<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|c| c.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn parse_flow(text: &str) -> Result<Flow, &'static str> {
    let (src, rest) = text.split_once("->").ok_or("there is no -> between two addresses")?;
    let (dst, proto) =
        rest.rsplit_once('/').ok_or("the protocol is missing: end it with /udp, /tcp or /NUMBER")?;
    let ends = [src.trim(), dst.trim()];
    let (src, sport) = parse_end(ends[0])?;
    let (dst, dport) = parse_end(ends[1])?;
    if src.is_ipv4() != dst.is_ipv4() {
        return Err("one address is IPv4, the other IPv6");
    }
    let proto = proto.trim();
    let proto = match PROTOCOLS.iter().find(|(name, _)| name.eq_ignore_ascii_case(proto)) {
        Some((_, n)) => *n,
        None => {
            parse_digits(proto).ok_or("the protocol is neither a known name nor a number from 0 to 255")?
        }
    };
    // `2001:db8::1:80` is an address by itself, though whoever writes it means a port.
    if has_ports(proto) && src.is_ipv6() && ends.iter().any(|end| !end.starts_with('[')) {
        return Err("write an IPv6 address in brackets, with its port after them: [2001:db8::1]:80");
    }
    Ok(Flow { src, dst, sport, dport, proto })
}

fn parse_hex(text: &str) -> Result<Key, &'static str> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() {
        return Err("it is empty");
    }
    if !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err("it is neither a flow nor hex");
    }
    if digits.len() % 2 == 1 {
        return Err("it has an odd number of hex digits");
    }
    if digits.len() > 2 * KEY_LEN {
        return Err("it has more than 32 hex digits");
    }
    let mut key = [0; KEY_LEN];
    for (byte, pair) in key.iter_mut().zip(digits.as_bytes().chunks(2)) {
        // Cannot fail: all are ASCII hex digits.
        *byte =
            core::str::from_utf8(pair).ok().and_then(|s| u8::from_str_radix(s, 16).ok()).ok_or("not hex")?;
    }
    Ok(Key(key))
}

impl FromStr for Flow {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Flow, ParseError> {
        parse_flow(text.trim()).map_err(|what| ParseError { text: text.to_owned(), what })
    }
}

impl FromStr for Key {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Key, ParseError> {
        let trimmed = text.trim();
        let key =
            if trimmed.contains("->") { parse_flow(trimmed).map(Key::from) } else { parse_hex(trimmed) };
        key.map_err(|what| ParseError { text: text.to_owned(), what })
    }
}

crate::serde_as_text!(Key, Flow);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc;
    use proptest::prelude::*;

    #[test]
    fn ipv4_flow_is_the_key() {
        let key: Key = "10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap();
        assert_eq!(key.0, [10, 0, 0, 1, 10, 0, 0, 2, 0x13, 0x88, 0, 80, 6, 0, 0, 0]);
        assert_eq!(key.to_string(), "10.0.0.1:5000->10.0.0.2:80/tcp");
        assert_eq!("10.0.0.1:5000 -> 10.0.0.2:80 / 6".parse(), Ok(key));
        assert_eq!(
            "10.0.0.1->10.0.0.2/icmp".parse::<Key>().unwrap().0,
            [10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0]
        );
        assert_eq!("::1->::2/58".parse::<Flow>().unwrap().to_string().parse(), "::1->::2/58".parse::<Flow>());
    }

    #[test]
    fn ipv6_flow_is_three_crcs() {
        let flow: Flow = "[2001:db8::1]:5000->[2001:db8::2]:443/udp".parse().unwrap();
        assert_eq!(flow.to_string(), "[2001:db8::1]:5000->[2001:db8::2]:443/udp");
        let mut tuple = vec![0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        tuple.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        tuple.extend([0x13, 0x88, 0x01, 0xbb, 17]);
        let key = flow.to_key();
        assert_eq!(key.0[..4], crc::crc32(&tuple).to_be_bytes());
        assert_eq!(key.0[4..8], crc::crc32c(&tuple).to_be_bytes());
        assert_eq!(key.0[8..12], crc::crc32k(&tuple).to_be_bytes());
        assert_eq!(key.0[12..], [17, 0, 0, 6]);
        assert_eq!(key.to_ipv4_flow(), None);
        assert_eq!(key.to_string().parse(), Ok(key));
    }

    #[test]
    fn hex() {
        let v0 = Key::from_version_0([0x0a, 0, 0, 1]);
        assert_eq!("0a000001".parse(), Ok(v0));
        assert_eq!("0x0A000001".parse(), Ok(v0));
        assert_eq!(v0.to_string(), "0a000001000000000000000000000000");
    }

    #[test]
    fn refusals_say_why() {
        for (text, what) in [
            ("", "empty"),
            ("abc", "odd"),
            ("xyz", "neither a flow nor hex"),
            ("000000000000000000000000000000000000", "more than 32"),
            ("10.0.0.1:5000->10.0.0.2:5000", "protocol is missing"),
            ("10.0.0.1:5000->10.0.0.2:5000/xyz", "neither a known name"),
            ("10.0.0.1:5000->10.0.0.2:5000/256", "neither a known name"),
            ("10.0.0.1:65536->10.0.0.2:5000/udp", "port"),
            ("10.0.0.1:+5->10.0.0.2:5000/udp", "port"),
            ("10.0.0:1->10.0.0.2:5000/udp", "address"),
            ("[::1:5->[::2]:5/udp", "bracket"),
            ("[::1]5->[::2]:5/udp", "colon"),
            ("[::1]:5->10.0.0.2:5/udp", "one address is IPv4"),
            ("2001:db8::1:80->[2001:db8::2]:443/tcp", "in brackets, with its port"),
            ("[2001:db8::1]:80->2001:db8::2:443/tcp", "in brackets, with its port"),
        ] {
            let error = text.parse::<Key>().unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn serde_as_text() {
        let key: Key = "10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap();
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json, "\"10.0.0.1:5000->10.0.0.2:80/tcp\"");
        assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), key);
        assert!(serde_json::from_str::<Key>("\"q\"").unwrap_err().to_string().contains("is not a key"));
    }

    proptest! {
        #[test]
        fn any_key_survives_text(bytes: [u8; 16]) {
            prop_assert_eq!(Key(bytes).to_string().parse::<Key>(), Ok(Key(bytes)));
        }

        #[test]
        fn flow_like_keys_survive_text(bytes: [u8; 13]) {
            let mut key = [0; 16];
            key[..13].copy_from_slice(&bytes);
            prop_assert_eq!(Key(key).to_string().parse::<Key>(), Ok(Key(key)));
        }

        #[test]
        fn ipv4_flows_survive(src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16, proto: u8) {
            let flow = Flow { src: src.into(), dst: dst.into(), sport, dport, proto };
            prop_assert_eq!(flow.to_string().parse::<Flow>(), Ok(flow));
            prop_assert_eq!(flow.to_key().to_ipv4_flow(), (proto != 0).then_some(flow));
        }

        #[test]
        fn ipv6_flows_survive_text(src: [u8; 16], dst: [u8; 16], sport: u16, dport: u16, proto: u8) {
            let flow = Flow { src: src.into(), dst: dst.into(), sport, dport, proto };
            prop_assert_eq!(flow.to_string().parse::<Flow>(), Ok(flow));
            prop_assert_eq!(flow.to_string().parse::<Key>(), Ok(flow.to_key()));
        }

        #[test]
        fn any_text_is_a_key_or_an_error(text in ".{0,60}") {
            let _ = text.parse::<Key>();
            let _ = text.parse::<Flow>();
        }
    }
}
