//! Bytes as the list writes them: hex, or `HH*N` for a byte repeated, parts separated by blanks.

use serde::{Deserialize, Deserializer};

/// Bytes written in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Reads `"0a0b 00*12"`.
    pub fn parse(text: &str) -> Result<Bytes, String> {
        let mut all = Vec::new();
        for part in text.split_whitespace() {
            let (hex, times) = match part.split_once('*') {
                Some((hex, times)) => {
                    (hex, times.parse().map_err(|_| format!("`{part}`: no number after *"))?)
                }
                None => (part, 1usize),
            };
            if hex.len() % 2 != 0 {
                return Err(format!("`{part}`: an odd number of hex digits"));
            }
            let bytes: Result<Vec<u8>, _> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16)).collect();
            let bytes = bytes.map_err(|_| format!("`{part}` is not hex"))?;
            all.extend(bytes.repeat(times));
        }
        Ok(Bytes(all))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Bytes::parse(&String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}
