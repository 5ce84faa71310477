//! CRCs by table, 16 bytes at a time, on any processor.

/// `T[n][b]` is the CRC register after byte `b` and then `n` zero bytes.
pub(crate) type Tables = [[u32; 256]; 16];

pub(crate) static CRC32: Tables = build_tables(0xEDB8_8320);
pub(crate) static CRC32C: Tables = build_tables(0x82F6_3B78);
pub(crate) static CRC32K: Tables = build_tables(0xEB31_D82E);

const fn build_tables(reversed: u32) -> Tables {
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

/// Continues a CRC-32. Kept out of line for processors with CRC instructions.
#[cold]
pub(crate) fn crc32_update(crc: u32, bytes: &[u8]) -> u32 {
    crc_update(&CRC32, crc, bytes)
}

/// CRC-32C, likewise.
#[cold]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_update(&CRC32C, 0, bytes)
}

/// Continues `crc` over `bytes`.
#[inline]
pub(crate) fn crc_update(t: &Tables, crc: u32, bytes: &[u8]) -> u32 {
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
