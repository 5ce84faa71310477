//! The address of a small HTTP port, in a flag or configuration: for metrics, and for the page.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use tokio::net::TcpListener;

/// `auto`, `off` or `HOST:PORT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Address {
    /// The program's default address, if it is free: a second instance on a host logs that it is taken, and
    /// runs without.
    #[default]
    Auto,
    Off,
    /// Exactly this one. Port 0 takes a free port.
    At(SocketAddr),
}

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {purpose} on {address}: {source}; choose another --{flag}, or `off`")]
pub struct PortError {
    pub purpose: &'static str,
    pub flag: &'static str,
    pub address: SocketAddr,
    pub source: io::Error,
}

impl Address {
    /// Opens the port; needs a tokio runtime. `own` is the address for [`Address::Auto`]. `None` if it is off.
    pub async fn open_port(
        self,
        own: SocketAddr,
        purpose: &'static str,
        flag: &'static str,
    ) -> Result<Option<(SocketAddr, TcpListener)>, PortError> {
        let address = match self {
            Address::Off => return Ok(None),
            Address::Auto => own,
            Address::At(address) => address,
        };
        let opened = async {
            let listener = TcpListener::bind(address).await?;
            Ok((listener.local_addr()?, listener))
        };
        match opened.await {
            Ok(port) => Ok(Some(port)),
            Err(error) if self == Address::Auto => {
                tracing::warn!(%address, %error, "no port for {purpose}: choose an address with --{flag}, or `off`");
                Ok(None)
            }
            Err(source) => Err(PortError { purpose, flag, address, source }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => {
                let address = dta_files::host::resolve_socket(text);
                address.map(Self::At).map_err(|why| format!("{why}; or `auto`, or `off`"))
            }
        }
    }
}

dta_proto::serde_as_text!(Address);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["auto", "off", "127.0.0.1:9000", "[::1]:0"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "on", "9000", "127.0.0.1"] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains("`off`"), "{error}");
        }
    }
}
