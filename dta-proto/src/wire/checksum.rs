//! The Internet checksum (RFC 1071).

/// Sum of the big-endian 16-bit words of `bytes` (an odd last byte is a high byte), added to `sum`,
/// not folded.
///
/// `sum` cannot overflow for up to 64 KiB of bytes.
pub fn add(sum: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let mut sum = words.iter().fold(sum, |s, w| s.wrapping_add(u32::from(u16::from_be_bytes(*w))));
    if let [last] = rest {
        sum = sum.wrapping_add(u32::from(*last) << 8);
    }
    sum
}

/// Folds a sum to 16 bits and complements it: the value for a checksum field, or 0 if the bytes hold a valid
/// one.
pub const fn fold_checksum(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold_checksum(add(0, &bytes)), !0xddf2);
    }

    #[test]
    fn odd_length() {
        assert_eq!(add(0, &[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    }
}
