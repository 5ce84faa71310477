//! Endpoints as messages.

use std::net::IpAddr;

use super::MessageError;
use crate::control;
use crate::endpoint::Endpoint;
use crate::wire::ethernet::Mac;

impl From<&Endpoint> for control::Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        control::Endpoint {
            mac: endpoint.known_mac().map(|mac| mac.0.to_vec()).unwrap_or_default(),
            ip: endpoint.ip.to_string(),
            gid: endpoint.to_gid().to_vec(),
            port: endpoint.port.into(),
            runs: endpoint.runs,
        }
    }
}

impl TryFrom<&control::Endpoint> for Endpoint {
    type Error = MessageError;

    fn try_from(message: &control::Endpoint) -> Result<Self, MessageError> {
        let control::Endpoint { mac, ip, gid, port, runs } = message;
        let wrong = MessageError;
        let endpoint = Endpoint {
            ip: ip.parse().map_err(|_| wrong(format!("ip is {ip:?}, but must be an IP address")))?,
            mac: parse_byte_array(mac)
                .map_err(|len| wrong(format!("mac has {len} bytes, but must have 6 or none")))?
                .map(Mac)
                .unwrap_or_default(),
            port: u16::try_from(*port)
                .map_err(|_| wrong(format!("port is {port}, but must be below 65536")))?,
            runs: *runs,
        };
        match parse_byte_array(gid)
            .map_err(|len| wrong(format!("gid has {len} bytes, but must have 16 or none")))?
        {
            Some(gid) if gid != endpoint.to_gid() => {
                // Answers would go to an address other than the one that frames come from.
                let gid = IpAddr::from(gid).to_canonical();
                Err(wrong(format!("gid is that of {gid}, but must be that of ip, which is {ip}")))
            }
            _ => Ok(endpoint),
        }
    }
}

/// The bytes as an array, or `None` if there are none; the length if it is wrong.
fn parse_byte_array<const N: usize>(bytes: &[u8]) -> Result<Option<[u8; N]>, usize> {
    match bytes {
        [] => Ok(None),
        bytes => bytes.try_into().map(Some).map_err(|_| bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_read_or_named() {
        let endpoint = Endpoint {
            mac: Mac([2, 0, 0, 0, 0, 1]),
            ip: "10.9.0.1".parse().unwrap(),
            port: 65_535,
            runs: true,
        };
        let good = control::Endpoint::from(&endpoint);
        assert_eq!(Endpoint::try_from(&good), Ok(endpoint));
        let bare = control::Endpoint { ip: "::1".into(), ..Default::default() };
        let read = Endpoint::try_from(&bare).unwrap();
        assert_eq!((read.known_mac(), read.port), (None, 0));
        let mut other = good.clone();
        other.gid[15] = 2;
        for (bad, expected) in [
            (
                control::Endpoint { ip: String::new(), ..good.clone() },
                "ip is \"\", but must be an IP address",
            ),
            (control::Endpoint { mac: vec![1; 5], ..good.clone() }, "mac has 5 bytes"),
            (control::Endpoint { gid: vec![1; 17], ..good.clone() }, "gid has 17 bytes"),
            (other, "gid is that of 10.9.0.2, but must be that of ip"),
            (control::Endpoint { port: 65_536, ..good.clone() }, "port is 65536"),
        ] {
            let error = Endpoint::try_from(&bad).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
