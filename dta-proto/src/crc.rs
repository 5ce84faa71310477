//! The three CRC-32s that DTA uses, all reflected, initial value and final exclusive-or all ones.
//!
//! | function | name | polynomial | reversed | check (`123456789`) | used for |
//! |---|---|---|---|---|---|
//! | [`crc32`] | CRC-32/ISO-HDLC | `0x04C11DB7` | `0xEDB88320` | `0xCBF43926` | iCRC, checksums of elements, IPv6 keys |
//! | [`crc32c`] | CRC-32C (Castagnoli, iSCSI) | `0x1EDC6F41` | `0x82F63B78` | `0xE3069283` | slots, IPv6 keys |
//! | [`crc32k`] | CRC-32K (Koopman) | `0x741B8CD7` | `0xEB31D82E` | `0x2D3DD0AE` | IPv6 keys |
//!
//! Inputs here are short (4 to 100 bytes), which is what the choice of implementation is measured on.

/// CRC-32/ISO-HDLC (the one of zlib and Ethernet) of `bytes`.
#[inline]
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32_update(0, bytes)
}

/// Continues a CRC-32/ISO-HDLC: `crc32_update(crc32(a), b) == crc32(a ‖ b)`; the CRC of nothing is 0.
#[inline]
pub fn crc32_update(crc: u32, bytes: &[u8]) -> u32 {
    update(&CRC32, crc, bytes)
}

/// CRC-32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of the four bytes of `word`, little-endian: `crc32c(&word.to_le_bytes())`.
#[inline]
pub fn crc32c_u32(word: u32) -> u32 {
    update(&CRC32C, 0, &word.to_le_bytes())
}

/// CRC-32K (Koopman, polynomial `0x741B8CD7`) of `bytes`.
#[inline]
pub fn crc32k(bytes: &[u8]) -> u32 {
    update(&CRC32K, 0, bytes)
}

/// Tables for 16 bytes at a time: `T[n][b]` is the CRC register after byte `b` and then `n` zero bytes.
type Tables = [[u32; 256]; 16];

static CRC32: Tables = tables(0xEDB8_8320);
static CRC32C: Tables = tables(0x82F6_3B78);
static CRC32K: Tables = tables(0xEB31_D82E);

const fn tables(reversed: u32) -> Tables {
    let mut t = [[0u32; 256]; 16];
    let mut i = 0;
    while i < 256 {
        let mut r = i as u32;
        let mut bit = 0;
        while bit < 8 {
            r = if r & 1 == 1 { (r >> 1) ^ reversed } else { r >> 1 };
            bit += 1;
        }
        t[0][i] = r;
        i += 1;
    }
    let mut n = 1;
    while n < 16 {
        let mut i = 0;
        while i < 256 {
            let before = t[n - 1][i];
            t[n][i] = (before >> 8) ^ t[0][(before & 0xff) as usize];
            i += 1;
        }
        n += 1;
    }
    t
}

#[inline]
fn update(t: &Tables, crc: u32, bytes: &[u8]) -> u32 {
    let mut r = !crc;
    let (blocks, rest) = bytes.as_chunks::<16>();
    for b in blocks {
        let first = r.to_le_bytes();
        r = t[15][usize::from(b[0] ^ first[0])]
            ^ t[14][usize::from(b[1] ^ first[1])]
            ^ t[13][usize::from(b[2] ^ first[2])]
            ^ t[12][usize::from(b[3] ^ first[3])]
            ^ t[11][usize::from(b[4])]
            ^ t[10][usize::from(b[5])]
            ^ t[9][usize::from(b[6])]
            ^ t[8][usize::from(b[7])]
            ^ t[7][usize::from(b[8])]
            ^ t[6][usize::from(b[9])]
            ^ t[5][usize::from(b[10])]
            ^ t[4][usize::from(b[11])]
            ^ t[3][usize::from(b[12])]
            ^ t[2][usize::from(b[13])]
            ^ t[1][usize::from(b[14])]
            ^ t[0][usize::from(b[15])];
    }
    let (words, rest) = rest.as_chunks::<4>();
    for w in words {
        let x = (r ^ u32::from_le_bytes(*w)).to_le_bytes();
        r = t[3][usize::from(x[0])]
            ^ t[2][usize::from(x[1])]
            ^ t[1][usize::from(x[2])]
            ^ t[0][usize::from(x[3])];
    }
    for b in rest {
        r = (r >> 8) ^ t[0][usize::from(*b ^ (r & 0xff) as u8)];
    }
    !r
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, from the definition.
    fn slow(reversed: u32, bytes: &[u8]) -> u32 {
        let mut r = !0u32;
        for b in bytes {
            r ^= u32::from(*b);
            for _ in 0..8 {
                r = if r & 1 == 1 { (r >> 1) ^ reversed } else { r >> 1 };
            }
        }
        !r
    }

    #[test]
    fn check_values() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32k(b"123456789"), 0x2D3D_D0AE);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn polynomials_reversed() {
        assert_eq!(0x04C1_1DB7u32.reverse_bits(), 0xEDB8_8320);
        assert_eq!(0x1EDC_6F41u32.reverse_bits(), 0x82F6_3B78);
        assert_eq!(0x741B_8CD7u32.reverse_bits(), 0xEB31_D82E);
    }

    proptest! {
        #[test]
        fn as_defined(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            prop_assert_eq!(crc32(&bytes), slow(0xEDB8_8320, &bytes));
            prop_assert_eq!(crc32c(&bytes), slow(0x82F6_3B78, &bytes));
            prop_assert_eq!(crc32k(&bytes), slow(0xEB31_D82E, &bytes));
            prop_assert_eq!(crc32(&bytes), crc32fast::hash(&bytes));
            let cut = cut.min(bytes.len());
            prop_assert_eq!(crc32_update(crc32(&bytes[..cut]), &bytes[cut..]), crc32(&bytes));
        }

        #[test]
        fn word_is_its_four_bytes(word: u32) {
            prop_assert_eq!(crc32c_u32(word), crc32c(&word.to_le_bytes()));
        }
    }
}
