//! The address of a metrics port, in a flag or configuration.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// `auto`, `off` or `HOST:PORT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Address {
    /// The program's default address, if it is free: a second instance on a host logs that it is not, and runs
    /// without metrics.
    #[default]
    Auto,
    Off,
    /// Exactly there. Port 0 takes a free one.
    At(SocketAddr),
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
