//! Addresses and networks as pcap writes them.

use std::net::{IpAddr, Ipv4Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Net {
    /// The network's bits; all others are 0.
    pub(super) address: IpAddr,
    /// Number of bits, at most 32, or 128 for IPv6.
    pub(super) length: u8,
}

/// What is wrong with a network that has bits beyond its length.
pub(super) const HOST_BITS: &str =
    "bits beyond the network's length are set; write the network's own address";
const LENGTH: &str = "the length of a network is 0 to 32, or 0 to 128 of IPv6";
const NET: &str = "a network is written 10.0.0.0/8, 10, 192.168.1 or 2001:db8::/32";

impl Net {
    pub(super) fn single_host(address: IpAddr) -> Net {
        Net { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Parses `10.0.0.0/8`, `10.0.0.0` (one address), `10`, `172.16`, `192.168.1` (as many bytes as
    /// are written), `2001:db8::/32`. The length may also be given separately.
    pub(super) fn parse(text: &str) -> Result<Net, &'static str> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u8>().map_err(|_| LENGTH)?)),
            None => (text, None),
        };
        let (address, written) = match address.parse::<IpAddr>() {
            Ok(address) => (address, Net::single_host(address).length),
            Err(_) => {
                let bytes = address.split('.').map(str::parse::<u8>).collect::<Result<Vec<u8>, _>>();
                let bytes = bytes.map_err(|_| NET)?;
                if bytes.len() > 3 {
                    return Err(NET);
                }
                let mut all = [0; 4];
                all[..bytes.len()].copy_from_slice(&bytes);
                (Ipv4Addr::from(all).into(), 8 * bytes.len() as u8)
            }
        };
        Net { address, length: length.unwrap_or(written) }.validate()
    }

    /// Parses an address with a mask, such as `255.255.0.0`.
    pub(super) fn with_mask(text: &str, mask: &str) -> Result<Net, &'static str> {
        let Ok(Net { address: IpAddr::V4(address), .. }) = Net::parse(text) else {
            return Err("only IPv4 networks can have a mask");
        };
        let mask: Ipv4Addr = mask.parse().map_err(|_| "a mask is written as 255.255.0.0")?;
        let length = mask.to_bits().leading_ones() as u8;
        if mask.to_bits().count_ones() != u32::from(length) {
            return Err("a mask has ones first and then zeros");
        }
        Net { address: address.into(), length }.validate()
    }

    fn validate(self) -> Result<Net, &'static str> {
        if self.length > Net::single_host(self.address).length {
            return Err(LENGTH);
        }
        let host_bits = match self.address {
            IpAddr::V4(address) => {
                address.to_bits() & u32::MAX.checked_shr(self.length.into()).unwrap_or(0) != 0
            }
            IpAddr::V6(address) => {
                address.to_bits() & u128::MAX.checked_shr(self.length.into()).unwrap_or(0) != 0
            }
        };
        if host_bits { Err(HOST_BITS) } else { Ok(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_as_they_are_written() {
        for (text, address, length) in [
            ("10.0.0.0/8", "10.0.0.0", 8),
            ("10", "10.0.0.0", 8),
            ("172.16", "172.16.0.0", 16),
            ("192.168.1", "192.168.1.0", 24),
            ("10.1.2.3", "10.1.2.3", 32),
            ("0.0.0.0/0", "0.0.0.0", 0),
            ("2001:db8::/32", "2001:db8::", 32),
            ("::/0", "::", 0),
            ("::1", "::1", 128),
        ] {
            let net = Net { address: address.parse().unwrap(), length };
            assert_eq!(Net::parse(text), Ok(net), "{text}");
        }
        for text in
            ["10.0.0.1/8", "10.0.0.0/33", "2001:db8::1/64", "::/129", "300", "10.0.0.0.0", "", "/8", "10./8"]
        {
            assert!(Net::parse(text).is_err(), "{text}");
        }
        assert_eq!(Net::with_mask("10.1.0.0", "255.255.0.0"), Net::parse("10.1.0.0/16"));
        assert!(Net::with_mask("10.1.0.0", "255.0.255.0").is_err());
        assert!(Net::with_mask("10.1.0.0", "255.0.0.0").is_err());
    }
}
