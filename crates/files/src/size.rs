//! Sizes in configurations: `512MiB`, `20GiB`.

use serde::{Deserialize, Deserializer, Serializer};

/// Units, each a power of two, the largest first.
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Reads a size above 0, in bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let of_unit = |(unit, shift): &(&str, u32)| {
        let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(1 << shift)
    };
    let size = UNITS.iter().find_map(of_unit).filter(|size| *size > 0);
    size.ok_or_else(|| "a size such as \"512MiB\" or \"20GiB\"".to_owned())
}

/// For fields of configurations (`#[serde(with = "dta_files::size")]`).
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse_size(&text).map_err(|must| serde::de::Error::custom(format!("{text:?} is not {must}")))
}

/// For fields of configurations.
pub fn serialize<S: Serializer>(size: &u64, to: S) -> Result<S::Ok, S::Error> {
    let whole = |(_, shift): &&(&str, u32)| size.is_multiple_of(1 << shift);
    let (unit, shift) = UNITS.iter().find(whole).expect("whole bytes");
    to.collect_str(&format_args!("{}{unit}", size >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, Deserialize, PartialEq, Debug)]
    struct Table {
        #[serde(with = "super")]
        size: u64,
    }

    #[test]
    fn sizes_are_read_and_written_and_others_are_refused() {
        for (text, size) in [("20GiB", 20 << 30), ("1536 MiB", 1536 << 20), ("7B", 7), ("1TiB", 1 << 40)] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
            let written = toml::to_string(&Table { size }).unwrap();
            assert_eq!(toml::from_str::<Table>(&written).unwrap(), Table { size }, "{written}");
        }
        for bad in ["", "20", "0GiB", "-1GiB", "1.5GiB", "GiB", "20GB", "99999999999TiB"] {
            assert!(parse_size(bad).is_err_and(|must| must.contains("20GiB")), "{bad}");
        }
    }
}
