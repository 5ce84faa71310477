//! Values as written by users.

use std::str::FromStr;

use dta_proto::wire::dta::MAX_VALUE_LEN;
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// The bytes of a value or of a column's cells, at most 60.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportValue {
    bytes: [u8; MAX_VALUE_LEN],
    len: usize,
}

impl ReportValue {
    const EMPTY: ReportValue = ReportValue { bytes: [0; MAX_VALUE_LEN], len: 0 };

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The value as a single number.
    pub(super) fn to_u32(self) -> Result<u32, String> {
        self.as_bytes()
            .try_into()
            .map(u32::from_be_bytes)
            .map_err(|_| format!("the value has {} bytes, not 4", self.len))
    }

    fn push(&mut self, word: u32) -> Result<(), String> {
        let place = self.bytes.get_mut(self.len..self.len + 4).ok_or("more than 60 bytes")?;
        place.copy_from_slice(&word.to_be_bytes());
        self.len += 4;
        Ok(())
    }

    /// A number, or `0x` and whole groups of 8 hex digits.
    fn push_text(&mut self, text: &str) -> Result<(), String> {
        let Some(digits) = text.strip_prefix("0x") else {
            let number = text
                .parse()
                .map_err(|_| format!("`{text}` is neither a number below 2^32 nor 0x and hex digits"))?;
            return self.push(number);
        };
        if digits.is_empty() || digits.len() % 8 != 0 || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("`{text}`: after 0x come hex digits in groups of 8 (4 bytes each)"));
        }
        for at in (0..digits.len()).step_by(8) {
            self.push(u32::from_str_radix(&digits[at..at + 8], 16).map_err(|error| error.to_string())?)?;
        }
        Ok(())
    }
}

impl FromStr for ReportValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut value = ReportValue::EMPTY;
        text.split(',').try_for_each(|part| value.push_text(part.trim()))?;
        Ok(value)
    }
}

impl<'de> Deserialize<'de> for ReportValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a value is a number below 2^32, a list of such numbers, or a text of numbers and 0x hex"
        )]
        enum ValueForm {
            Number(u32),
            Numbers(Vec<u32>),
            Text(String),
        }
        let mut value = ReportValue::EMPTY;
        match ValueForm::deserialize(from)? {
            ValueForm::Number(number) => value.push(number),
            ValueForm::Numbers(numbers) => numbers.into_iter().try_for_each(|number| value.push(number)),
            ValueForm::Text(text) => return text.parse().map_err(de::Error::custom),
        }
        .map_err(de::Error::custom)?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_people_write_them() {
        let bytes = |text: &str| text.parse::<ReportValue>().map(|v| v.as_bytes().to_vec());
        assert_eq!(bytes("7"), Ok(vec![0, 0, 0, 7]));
        assert_eq!(bytes("1, 0xdeadbeef00000002"), Ok(vec![0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 2]));
        assert_eq!(bytes(&["1"; 15].join(",")).map(|b| b.len()), Ok(60));
        assert!(bytes(&["1"; 16].join(",")).unwrap_err().contains("60 bytes"));
        for bad in ["", "4294967296", "-1", "0x", "0x123", "0x1234567g", "a"] {
            assert!(bytes(bad).unwrap_err().contains('`'), "{bad}");
        }
        assert_eq!("7".parse::<ReportValue>().unwrap().to_u32(), Ok(7));
        assert!("7,8".parse::<ReportValue>().unwrap().to_u32().unwrap_err().contains("8 bytes, not 4"));
    }

    #[test]
    fn as_json_has_them() {
        let value = |text: &str| serde_json::from_str::<ReportValue>(text).map(|v| v.as_bytes().to_vec());
        assert_eq!(value("7").unwrap(), [0, 0, 0, 7]);
        assert_eq!(value("[1,2]").unwrap(), [0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(value("\"0x00000001\"").unwrap(), [0, 0, 0, 1]);
        assert!(value("-1").is_err());
        assert!(value("{}").unwrap_err().to_string().contains("a list of such numbers"));
    }
}
