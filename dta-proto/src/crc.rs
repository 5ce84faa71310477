//! The CRCs that wire formats and memory layout share, from `dta-crc`: that crate holds the
//! processor-specific unsafe code, so that this one has none.

pub use dta_crc::{
    Mask, crc32, crc32_matches, crc32_of_two, crc32_update, crc32_update_masked, crc32_update_of,
    crc32_update_words, crc32c, crc32c_of, crc32c_spread, crc32c_u32, crc32k,
};
