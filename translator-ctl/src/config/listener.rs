//! Where datagrams arrive: at a UDP socket, or at an interface by AF_XDP.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use dta_files::host;

/// Where reports, Telemetry Reports or flow exports arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// At a UDP socket.
    Udp(SocketAddr),
    /// At an interface, past the kernel's network stack.
    Xdp(XdpAddress),
}

/// An interface and a UDP port, written `xdp:INTERFACE:PORT`, or `xdp:INTERFACE` for the usual port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpAddress {
    pub interface: String,
    pub port: u16,
}

impl ListenAddress {
    /// Parses `xdp:INTERFACE[:PORT]`; `usual` is the port if it is left out. `None` if the text does not begin with `xdp:`.
    pub fn parse_xdp(text: &str, usual: u16) -> Option<Result<ListenAddress, String>> {
        let place = text.strip_prefix("xdp:")?;
        // An interface's name has no colon.
        let (interface, port) = match place.split_once(':') {
            None => (place, Some(usual)),
            Some((interface, port)) => (interface, port.parse().ok()),
        };
        // IFNAMSIZ is 16, including the terminating zero.
        let is_name = (1..=15).contains(&interface.len());
        Some(match port.filter(|_| is_name) {
            Some(port) => Ok(ListenAddress::Xdp(XdpAddress { interface: interface.into(), port })),
            None => Err(format!(
                "{text:?} is not an interface with a name of at most 15 bytes and a port; write xdp:eth1 or xdp:eth1:{usual}"
            )),
        })
    }

    /// The address for programs of switches: the unspecified one at an interface.
    pub fn ip(&self) -> IpAddr {
        match self {
            ListenAddress::Udp(address) => address.ip(),
            ListenAddress::Xdp(_) => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            ListenAddress::Udp(address) => address.port(),
            ListenAddress::Xdp(XdpAddress { port, .. }) => *port,
        }
    }

    pub fn is_ipv6(&self) -> bool {
        matches!(self, ListenAddress::Udp(address) if address.is_ipv6())
    }

    /// The interface, if it is one.
    pub fn xdp_address(&self) -> Option<&XdpAddress> {
        match self {
            ListenAddress::Udp(_) => None,
            ListenAddress::Xdp(address) => Some(address),
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> ListenAddress {
        ListenAddress::Udp(address)
    }
}

impl Display for XdpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xdp:{}:{}", self.interface, self.port)
    }
}

/// As written for reports: an address without a scheme.
impl Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Udp(address) => address.fmt(f),
            ListenAddress::Xdp(address) => address.fmt(f),
        }
    }
}

/// Where reports arrive: `HOST:PORT` or `xdp:INTERFACE[:PORT]`.
impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAddress, String> {
        ListenAddress::parse_xdp(text, dta_proto::wire::dta::PORT)
            .unwrap_or_else(|| host::resolve_socket(text).map(ListenAddress::Udp))
    }
}

dta_proto::serde_as_text!(ListenAddress);

/// Parses the URL of a listener: `udp://ADDR:PORT` or `xdp:INTERFACE[:PORT]`.
pub(super) fn parse_url(text: &str, usual: u16) -> Result<ListenAddress, String> {
    if let Some(parsed) = ListenAddress::parse_xdp(text, usual) {
        return parsed;
    }
    let Some(address) = text.strip_prefix("udp://") else {
        return Err("it starts with neither udp:// nor xdp:".into());
    };
    let address = address.parse().map_err(|_| format!("{address:?} is not an IP address and a port"))?;
    Ok(ListenAddress::Udp(address))
}

/// Writes it as [`parse_url`] reads it.
pub(super) fn write_url(address: &ListenAddress, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match address {
        ListenAddress::Udp(address) => write!(f, "udp://{address}"),
        ListenAddress::Xdp(address) => address.fmt(f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_read_with_its_port_or_the_usual_one() {
        for (text, interface, port, again) in [
            ("xdp:eth1", "eth1", 40040, "xdp:eth1:40040"),
            ("xdp:eth1:40041", "eth1", 40041, "xdp:eth1:40041"),
            ("xdp:enp1s0f0np0.100:0", "enp1s0f0np0.100", 0, "xdp:enp1s0f0np0.100:0"),
        ] {
            let address: ListenAddress = text.parse().unwrap();
            let expected = XdpAddress { interface: interface.into(), port };
            assert_eq!((address.xdp_address(), address.port()), (Some(&expected), port));
            assert_eq!(address.to_string(), again);
            assert_eq!(again.parse(), Ok(address));
        }
        for wrong in
            ["xdp:", "xdp::40040", "xdp:eth1:", "xdp:eth1:70000", "xdp:eth1:a", "xdp:sixteen-letters-"]
        {
            let error = wrong.parse::<ListenAddress>().unwrap_err();
            assert!(error.contains("xdp:eth1:40040"), "{error}");
        }
        assert_eq!("10.0.0.1:1".parse::<ListenAddress>(), Ok(SocketAddr::from(([10, 0, 0, 1], 1)).into()));
    }
}
