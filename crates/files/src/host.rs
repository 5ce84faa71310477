//! Addresses as users write them: numbers, or host names, which are looked up once, when a program starts. Of
//! several addresses, the first IPv4 one is used, or else the first.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};

/// Parses `HOST:PORT`.
///
/// # Errors
/// Why the text is invalid, or that the host has no address.
pub fn resolve_socket(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = split_host_port(text)?;
    first_address(host, look_up_host(host, port)?)
}

/// Parses `HOST:PORT`, IPv4 only.
///
/// # Errors
/// As [`resolve_socket`]; and for a host that has only IPv6 addresses.
pub fn socket_v4(text: &str) -> Result<SocketAddrV4, String> {
    match resolve_socket(text)? {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => Err(no_ipv4_message(text, address.to_string())),
    }
}

pub fn resolve_ip(text: &str) -> Result<IpAddr, String> {
    match text.parse() {
        Ok(address) => Ok(address),
        Err(_) if !is_host_name(text) => {
            Err(format!("{text:?} is neither an address nor the name of a host"))
        }
        Err(_) => Ok(first_address(text, look_up_host(text, 0)?)?.ip()),
    }
}

/// Parses a host, IPv4 only.
pub fn resolve_ipv4(text: &str) -> Result<Ipv4Addr, String> {
    match resolve_ip(text)? {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(address) => Err(no_ipv4_message(text, address.to_string())),
    }
}

fn no_ipv4_message(text: &str, address: String) -> String {
    if text == address {
        format!("{text:?} is not an IPv4 address")
    } else {
        format!("the host {text:?} has no IPv4 address, only {address}")
    }
}

fn split_host_port(text: &str) -> Result<(&str, u16), String> {
    let bad = || {
        format!("{text:?} is not an address: give HOST:PORT, such as 127.0.0.1:40040 or tor1.example:40040")
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    if !is_host_name(host) {
        return Err(bad());
    }
    Ok((host, port.parse().map_err(|_| format!("{port:?} in {text:?} is not a port: ports are 0 to 65535"))?))
}

/// Whether this may be a host name (RFC 1123), so that invalid ones are not looked up.
fn is_host_name(host: &str) -> bool {
    let mark = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    (1..=253).contains(&host.len())
        && host.bytes().all(mark)
        && !host.bytes().all(|c| c.is_ascii_digit() || c == b'.')
}

fn look_up_host(host: &str, port: u16) -> Result<impl Iterator<Item = SocketAddr>, String> {
    (host, port).to_socket_addrs().map_err(|error| format!("no known address for host {host:?}: {error}"))
}

fn first_address(host: &str, addresses: impl Iterator<Item = SocketAddr>) -> Result<SocketAddr, String> {
    let all: Vec<_> = addresses.collect();
    let of_v4 = all.iter().find(|address| address.is_ipv4());
    of_v4.or(all.first()).copied().ok_or_else(|| format!("the host {host:?} has no address"))
}

/// For `#[serde(deserialize_with = "…")]`: the same from a string in a file.
pub mod serde {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use serde::de::{Deserialize, Deserializer, Error};

    /// As [`resolve_socket`](super::resolve_socket).
    pub fn deserialize_socket<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
        super::resolve_socket(&String::deserialize(from)?).map_err(Error::custom)
    }

    /// As [`resolve_socket`](super::resolve_socket), if the key is present.
    pub fn some_socket<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
        deserialize_socket(from).map(Some)
    }

    /// As [`resolve_ip`](super::resolve_ip).
    pub fn deserialize_ip<'de, D: Deserializer<'de>>(from: D) -> Result<IpAddr, D::Error> {
        super::resolve_ip(&String::deserialize(from)?).map_err(Error::custom)
    }

    /// As [`resolve_ip`](super::resolve_ip), if the key is present.
    pub fn deserialize_some_ip<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
        deserialize_ip(from).map(Some)
    }

    /// As [`resolve_ipv4`](super::resolve_ipv4).
    pub fn deserialize_ipv4<'de, D: Deserializer<'de>>(from: D) -> Result<Ipv4Addr, D::Error> {
        super::resolve_ipv4(&String::deserialize(from)?).map_err(Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_taken() {
        assert_eq!(resolve_socket("10.0.0.1:7"), Ok(SocketAddr::from(([10, 0, 0, 1], 7))));
        assert_eq!(resolve_socket("[::1]:7").unwrap().to_string(), "[::1]:7");
        assert_eq!(resolve_socket("localhost:7"), Ok(SocketAddr::from(([127, 0, 0, 1], 7))));
        assert_eq!(socket_v4("localhost:7").unwrap().to_string(), "127.0.0.1:7");
        assert_eq!(resolve_ip("localhost"), Ok(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(resolve_ipv4("localhost"), Ok(Ipv4Addr::LOCALHOST));
        assert_eq!(resolve_ip("::1").unwrap().to_string(), "::1");
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (text, expected) in [
            ("localhost", "give HOST:PORT"),
            ("", "give HOST:PORT"),
            ("10.0.0.300:7", "give HOST:PORT"),
            ("http://a:7", "give HOST:PORT"),
            ("localhost:70000", "ports are 0 to 65535"),
            // RFC 6761: names under .invalid do not exist.
            ("nobody.invalid:7", "no known address for host \"nobody.invalid\""),
        ] {
            let error = resolve_socket(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(socket_v4("[::1]:7").unwrap_err().contains("not an IPv4 address"));
        assert!(resolve_ip("a b").unwrap_err().contains("neither an address nor the name of a host"));
        assert!(resolve_ipv4("::1").unwrap_err().contains("not an IPv4 address"));
    }
}
