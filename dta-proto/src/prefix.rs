//! A prefix of addresses: `10.0.0.0/8`, `2001:db8::/32`, or one address.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use crate::key::Flow;

/// All addresses of one family that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

/// The text is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a prefix: write 10.0.0.0/8, 2001:db8::/32, or an address")]
pub struct PrefixError(String);

/// The address at the upper end of 128 bits, and its length in bits.
fn to_upper_bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl Prefix {
    /// The address as written, with any bits set beyond the prefix.
    pub fn written_address(&self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits.
    pub fn length_in_bits(&self) -> u8 {
        self.len
    }

    /// Whether the prefix contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let differ = to_upper_bits(address).0 ^ to_upper_bits(self.address).0;
        let same = self.len == 0 || differ >> (128 - u32::from(self.len)) == 0;
        address.is_ipv4() == self.address.is_ipv4() && same
    }

    /// Whether a flow's source or destination is in the prefix.
    pub fn has_end_of(&self, flow: &Flow) -> bool {
        self.contains(flow.src) || self.contains(flow.dst)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let fail = || PrefixError(text.to_owned());
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| fail())?;
        let (_, most) = to_upper_bits(address);
        let len = match len {
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => len.parse().map_err(|_| fail())?,
            Some(_) => return Err(fail()),
            None => most,
        };
        if len <= most { Ok(Prefix { address, len }) } else { Err(fail()) }
    }
}

crate::serde_as_text!(Prefix);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_or_out() {
        for (prefix, address, is_in) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("11.0.0.0/8", "10.1.2.3", false),
            ("192.168.0.1", "192.168.0.1", true),
            ("192.168.0.2/31", "192.168.0.1", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("::/0", "1.2.3.4", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
        ] {
            let prefix: Prefix = prefix.parse().unwrap();
            assert_eq!(prefix.contains(address.parse().unwrap()), is_in, "{prefix} {address}");
            assert_eq!(prefix.to_string().parse(), Ok(prefix));
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/+8", "host", "10.0.0.0/"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }
}
