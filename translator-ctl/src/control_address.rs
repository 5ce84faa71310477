//! Address of a translator's own service: a loopback port, or a socket that only its owner may use.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlAddress {
    /// A TCP port: every user of the host reaches it.
    Tcp(SocketAddr),
    /// A socket in the file system, accessible only to its owner (mode 0600).
    Unix(PathBuf),
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{}{}", dta_rpc::transport::dial::UNIX, path.display()),
        }
    }
}

dta_proto::serde_as_text!(ControlAddress);

impl FromStr for ControlAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(dta_rpc::transport::dial::UNIX) {
            Some("") => Err(format!("{text:?} must be HOST:PORT or unix:PATH")),
            Some(path) => Ok(Self::Unix(path.into())),
            None => dta_files::host::resolve_socket(text).map(Self::Tcp),
        }
    }
}
