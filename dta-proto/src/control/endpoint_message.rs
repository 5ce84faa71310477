//! What a message says of an endpoint.

use std::net::IpAddr;

use crate::control;
use crate::wire::ethernet::Mac;

/// The parts of an endpoint's message, each in its own form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointParts {
    /// IP address.
    pub ip: IpAddr,
    /// Ethernet address, where it is told.
    pub mac: Option<Mac>,
    /// GID, where it is told.
    pub gid: Option<[u8; 16]>,
    /// UDP port, where it is told.
    pub port: Option<u16>,
}

/// Why a message says no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A text that is no address.
    #[error("ip is {0:?}, but must be an IP address")]
    Ip(String),
    /// An Ethernet address of another length.
    #[error("mac has {0} bytes, but must have 6 or none")]
    Mac(usize),
    /// A GID of another length.
    #[error("gid has {0} bytes, but must have 16 or none")]
    Gid(usize),
    /// A port that does not fit.
    #[error("port is {0}, but must be below 65536")]
    Port(u32),
}

impl TryFrom<&control::Endpoint> for EndpointParts {
    type Error = EndpointError;

    fn try_from(message: &control::Endpoint) -> Result<Self, EndpointError> {
        let control::Endpoint { mac, ip, gid, port } = message;
        let parts = EndpointParts {
            ip: ip.parse().map_err(|_| EndpointError::Ip(ip.clone()))?,
            mac: bytes(mac).map_err(EndpointError::Mac)?.map(Mac),
            gid: bytes(gid).map_err(EndpointError::Gid)?,
            port: Some(u16::try_from(*port).map_err(|_| EndpointError::Port(*port))?)
                .filter(|port| *port != 0),
        };
        Ok(parts)
    }
}

/// As many bytes as there have to be, or `None` for none; else how many there are.
fn bytes<const N: usize>(told: &[u8]) -> Result<Option<[u8; N]>, usize> {
    match told {
        [] => Ok(None),
        told => told.try_into().map(Some).map_err(|_| told.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_read_or_named() {
        let good = control::Endpoint {
            mac: vec![2, 0, 0, 0, 0, 1],
            ip: "10.9.0.1".into(),
            gid: vec![7; 16],
            port: 65_535,
        };
        let read = EndpointParts::try_from(&good).unwrap();
        assert_eq!((read.mac, read.gid), (Some(Mac([2, 0, 0, 0, 0, 1])), Some([7; 16])));
        assert_eq!((read.ip, read.port), ("10.9.0.1".parse().unwrap(), Some(65_535)));
        let bare = control::Endpoint { ip: "::1".into(), ..Default::default() };
        let read = EndpointParts::try_from(&bare).unwrap();
        assert_eq!((read.mac, read.gid, read.port), (None, None, None));
        for (bad, told) in [
            (control::Endpoint { ip: String::new(), ..good.clone() }, EndpointError::Ip(String::new())),
            (control::Endpoint { mac: vec![1; 5], ..good.clone() }, EndpointError::Mac(5)),
            (control::Endpoint { gid: vec![1; 17], ..good.clone() }, EndpointError::Gid(17)),
            (control::Endpoint { port: 65_536, ..good.clone() }, EndpointError::Port(65_536)),
        ] {
            assert_eq!(EndpointParts::try_from(&bad), Err(told));
        }
    }
}
