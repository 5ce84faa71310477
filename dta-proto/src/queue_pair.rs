//! Queue pairs: transport, purpose and numbers.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Unreliable connection: writes without acknowledgement. A bad frame cannot stop the queue pair.
    #[default]
    Uc,
    /// Reliable connection: writes, reads and atomics, acknowledged and in order.
    Rc,
}

impl Transport {
    /// Its spellings on the command line and in configuration, in the order of [`Transport`].
    pub const NAMES: [&'static str; 2] = ["uc", "rc"];

    /// Its name in configuration.
    pub const fn canonical_name(self) -> &'static str {
        Transport::NAMES[self as usize]
    }
}

/// Its spelling in the specification.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Uc => "UC",
            Transport::Rc => "RC",
        })
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uc" => Ok(Transport::Uc),
            "rc" => Ok(Transport::Rc),
            other => Err(format!("{other:?} is neither `uc` nor `rc`")),
        }
    }
}

crate::named! {
    /// The purpose of a queue pair. A session has one for each purpose that its stores need.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Purpose {
        /// WRITE.
        Write: "write",
        /// FETCH_ADD. Atomics need RC.
        Atomic: "atomic",
    }
}

impl Purpose {
    /// The transport of a queue pair for this purpose if writes use `writes`: atomics need RC.
    pub const fn transport(self, writes: Transport) -> Transport {
        match self {
            Purpose::Write => writes,
            Purpose::Atomic => Transport::Rc,
        }
    }

    /// Its traffic, for messages.
    pub const fn operations(self) -> &'static str {
        match self {
            Purpose::Write => "writes",
            Purpose::Atomic => "atomics",
        }
    }
}

/// Whether a queue pair number or PSN is valid: both have 24 bits (InfiniBand Architecture
/// Specification, volume 1, chapter 9.2).
pub const fn has_24_bits(number: u32) -> bool {
    number >> 24 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for transport in [Transport::Uc, Transport::Rc] {
            assert_eq!(transport.canonical_name().parse(), Ok(transport));
            assert_eq!(transport.to_string().to_lowercase(), transport.canonical_name());
        }
        assert!("UD".parse::<Transport>().is_err());
        assert!(has_24_bits(0xff_ffff) && !has_24_bits(0x100_0000));
    }
}
