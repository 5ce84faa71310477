//! The watchlist: which flows are looked at.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use dta_proto::key::Flow;

/// Some flows: all with one end in a prefix, or one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Flows whose source or destination address begins with so many bits of this one.
    Prefix(IpAddr, u8),
    /// This flow.
    Flow(Flow),
}

/// A text is no entry of a watchlist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an entry of a watchlist: write a prefix as 10.0.0.0/8 or 2001:db8::/32, an address, or a flow as \
     10.0.0.1:5000->10.0.0.2:80/tcp"
)]
pub struct WatchError(String);

fn bits_of(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl Watch {
    /// Whether a flow is one of these.
    pub fn admits(&self, flow: &Flow) -> bool {
        match self {
            Watch::Flow(watched) => watched == flow,
            Watch::Prefix(prefix, len) => {
                let (wanted, _) = bits_of(*prefix);
                let is_in = |address: IpAddr| {
                    let (bits, _) = bits_of(address);
                    let same = *len == 0 || (bits ^ wanted) >> (128 - u32::from(*len)) == 0;
                    address.is_ipv4() == prefix.is_ipv4() && same
                };
                is_in(flow.src) || is_in(flow.dst)
            }
        }
    }
}

impl FromStr for Watch {
    type Err = WatchError;

    fn from_str(text: &str) -> Result<Watch, WatchError> {
        let fail = || WatchError(text.to_owned());
        if text.contains("->") {
            return text.parse().map(Watch::Flow).map_err(|_| fail());
        }
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| fail())?;
        let (_, most) = bits_of(address);
        let len = match len {
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => len.parse().map_err(|_| fail())?,
            Some(_) => return Err(fail()),
            None => most,
        };
        if len <= most { Ok(Watch::Prefix(address, len)) } else { Err(fail()) }
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Watch::Prefix(address, len) => write!(f, "{address}/{len}"),
            Watch::Flow(flow) => flow.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(watch: &str, flow: &str) -> bool {
        watch.parse::<Watch>().unwrap().admits(&flow.parse().unwrap())
    }

    #[test]
    fn prefixes_and_flows() {
        let flow = "10.1.2.3:5->192.168.0.1:80/tcp";
        for (watch, is) in [
            ("10.0.0.0/8", true),
            ("192.168.0.1", true),
            ("192.168.0.0/31", true),
            ("192.168.0.2/31", false),
            ("0.0.0.0/0", true),
            ("::/0", false),
            ("11.0.0.0/8", false),
            (flow, true),
            ("10.1.2.3:6->192.168.0.1:80/tcp", false),
        ] {
            assert_eq!(admits(watch, flow), is, "{watch}");
        }
        assert!(admits("2001:db8::/32", "[2001:db8:1::1]:1->[::1]:2/udp"));
        assert!(!admits("2001:db8::/32", "[2001:db9::1]:1->[::1]:2/udp"));
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/+8", "10.0.0.1->10.0.0.2", "host"] {
            assert!(text.parse::<Watch>().unwrap_err().to_string().contains("watchlist"), "{text}");
        }
    }
}
