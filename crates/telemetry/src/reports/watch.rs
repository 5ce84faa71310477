//! The watchlist of flows.

use std::fmt;
use std::str::FromStr;

use dta_proto::key::Flow;
use dta_proto::prefix::Prefix;

/// A set of flows: all with one end in a prefix, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRule {
    /// Flows whose source or destination address is in the prefix.
    Prefix(Prefix),
    Flow(Flow),
}

/// The text is not an entry of a watchlist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an entry of a watchlist: write a prefix as 10.0.0.0/8 or 2001:db8::/32, an address, or a flow as \
     10.0.0.1:5000->10.0.0.2:80/tcp"
)]
pub struct WatchError(String);

impl WatchRule {
    /// Whether it includes a flow.
    pub fn includes_flow(&self, flow: &Flow) -> bool {
        match self {
            WatchRule::Flow(watched) => watched == flow,
            WatchRule::Prefix(prefix) => prefix.has_end_of(flow),
        }
    }
}

impl FromStr for WatchRule {
    type Err = WatchError;

    fn from_str(text: &str) -> Result<WatchRule, WatchError> {
        let fail = || WatchError(text.to_owned());
        if text.contains("->") {
            return text.parse().map(WatchRule::Flow).map_err(|_| fail());
        }
        text.parse().map(WatchRule::Prefix).map_err(|_| fail())
    }
}

impl fmt::Display for WatchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WatchRule::Prefix(prefix) => prefix.fmt(f),
            WatchRule::Flow(flow) => flow.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(watch: &str, flow: &str) -> bool {
        watch.parse::<WatchRule>().unwrap().includes_flow(&flow.parse().unwrap())
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
            assert!(text.parse::<WatchRule>().unwrap_err().to_string().contains("watchlist"), "{text}");
        }
    }
}
