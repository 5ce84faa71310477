//! Endpoints as messages.

use std::net::IpAddr;

use crate::control;
use crate::endpoint::Endpoint;
use crate::wire::ethernet::Mac;

/// Why a message is not a valid endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not an IP address.
    #[error("ip is {0:?}, but must be an IP address")]
    Ip(String),
    /// An Ethernet address of the wrong length.
    #[error("mac has {0} bytes, but must have 6 or none")]
    Mac(usize),
    /// A GID of the wrong length.
    #[error("gid has {0} bytes, but must have 16 or none")]
    Gid(usize),
    /// A GID that does not match the IP address: answers would go to another address than frames come from.
    #[error("gid is that of {gid}, but must be that of ip, which is {ip}")]
    OtherGid {
        /// The address that the GID stands for.
        gid: IpAddr,
        /// The address.
        ip: IpAddr,
    },
    /// A port out of range.
    #[error("port is {0}, but must be below 65536")]
    Port(u32),
}

impl From<&Endpoint> for control::Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        control::Endpoint {
            mac: endpoint.known_mac().map(|mac| mac.0.to_vec()).unwrap_or_default(),
            ip: endpoint.ip.to_string(),
            gid: endpoint.gid().to_vec(),
            port: endpoint.port.into(),
        }
    }
}

impl TryFrom<&control::Endpoint> for Endpoint {
    type Error = EndpointError;

    fn try_from(message: &control::Endpoint) -> Result<Self, EndpointError> {
        let control::Endpoint { mac, ip, gid, port } = message;
        let endpoint = Endpoint {
            ip: ip.parse().map_err(|_| EndpointError::Ip(ip.clone()))?,
            mac: bytes(mac).map_err(EndpointError::Mac)?.map(Mac).unwrap_or_default(),
            port: u16::try_from(*port).map_err(|_| EndpointError::Port(*port))?,
        };
        match bytes(gid).map_err(EndpointError::Gid)? {
            Some(gid) if gid != endpoint.gid() => {
                Err(EndpointError::OtherGid { gid: IpAddr::from(gid).to_canonical(), ip: endpoint.ip })
            }
            _ => Ok(endpoint),
        }
    }
}

/// The bytes as an array, or `None` if there are none; the length if it is wrong.
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
        let endpoint =
            Endpoint { mac: Mac([2, 0, 0, 0, 0, 1]), ip: "10.9.0.1".parse().unwrap(), port: 65_535 };
        let good = control::Endpoint::from(&endpoint);
        assert_eq!(Endpoint::try_from(&good), Ok(endpoint));
        let bare = control::Endpoint { ip: "::1".into(), ..Default::default() };
        let read = Endpoint::try_from(&bare).unwrap();
        assert_eq!((read.known_mac(), read.port), (None, 0));
        let mut other = good.clone();
        other.gid[15] = 2;
        let of_another = EndpointError::OtherGid { gid: "10.9.0.2".parse().unwrap(), ip: endpoint.ip };
        for (bad, told) in [
            (control::Endpoint { ip: String::new(), ..good.clone() }, EndpointError::Ip(String::new())),
            (control::Endpoint { mac: vec![1; 5], ..good.clone() }, EndpointError::Mac(5)),
            (control::Endpoint { gid: vec![1; 17], ..good.clone() }, EndpointError::Gid(17)),
            (other, of_another),
            (control::Endpoint { port: 65_536, ..good.clone() }, EndpointError::Port(65_536)),
        ] {
            assert_eq!(Endpoint::try_from(&bad), Err(told));
        }
    }
}
