//! The CRCs that wire formats and layout share: those of the crate `dta-crc`, which is apart
//! because it holds the processor's instructions, and this crate holds no unsafe code.

pub use dta_crc::{
    Mask, crc32, crc32_matches, crc32_of_two, crc32_update, crc32_update_masked, crc32_update_of,
    crc32_update_words, crc32c, crc32c_of, crc32c_spread, crc32c_u32, crc32k,
};
