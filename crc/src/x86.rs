//! By instructions of x86-64: carry-less multiplication for CRC-32, the `crc32` instruction for CRC-32C.
//!
//! The CRC-32 is the remainder of the message as a polynomial, times x^32, divided by P. Each block
//! of 16 bytes that lies d bits before the end counts as its 128 bits times x^d, and x^d may be
//! replaced by its remainder modulo P, which has 32 bits: so every block is multiplied by two
//! constants that depend on its place alone (one for each half), all blocks at once, and what is
//! left to divide is their sum of 128 bits. (Gopal et al., "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ Instruction", Intel 2009, has the identities and the last division;
//! it folds blocks one after another.)
//!
//! A message is filled up to whole blocks with zeros *in front*, which do not change a CRC whose
//! register starts in the message itself, so there is no remainder of a block to deal with.

#![allow(unsafe_code)]

use crate::{Mask, table};

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64,
    _mm_cvtsi32_si128, _mm_extract_epi32, _mm_loadu_si128, _mm_or_si128, _mm_set_epi32, _mm_set_epi64x,
    _mm_setzero_si128, _mm_shuffle_epi8, _mm_srli_si128, _mm_xor_si128,
};

/// Blocks of 16 bytes that are folded in one go.
const MOST_BLOCKS: usize = 8;

/// x^n modulo P in reflected order, shifted left by one: a multiplication of reflected numbers
/// comes out one bit short.
const fn power(n: u32) -> i64 {
    let mut r = 0x8000_0000u32;
    let mut i = 0;
    while i < n {
        r = if r & 1 == 1 { (r >> 1) ^ 0xEDB8_8320 } else { r >> 1 };
        i += 1;
    }
    (r as i64) << 1
}

/// What a block is multiplied with, low half and high half: the first for the block that lies
/// [`MOST_BLOCKS`] before the last one, the last for the block before the last one.
static FOLD: [[i64; 2]; MOST_BLOCKS] = {
    let mut fold = [[0; 2]; MOST_BLOCKS];
    let mut before = 1;
    while before <= MOST_BLOCKS {
        let d = 128 * before as u32;
        fold[MOST_BLOCKS - before] = [power(d + 32), power(d - 32)];
        before += 1;
    }
    fold
};

/// P and x^64 / P, both reflected, for the last division.
const P: i64 = 0x1_DB71_0641;
const QUOTIENT: i64 = 0x1_F701_1641;

/// Row r moves the first r bytes of a block to its end and clears what lies before them.
static TO_END: [[u8; 16]; 16] = {
    let mut rows = [[0x80; 16]; 16];
    let mut r = 0;
    while r < 16 {
        let mut i = 0;
        while i < r {
            rows[r][16 - r + i] = i as u8;
            i += 1;
        }
        r += 1;
    }
    rows
};

#[inline]
fn has_clmul() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// Continues a CRC-32 over at least 16 bytes, if the processor can.
#[inline]
pub(crate) fn crc32(crc: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.len() < 16 || !has_clmul() {
        return None;
    }
    // SAFETY: the processor has the features that `all` is compiled for, as was just asked (SSE4.1
    // comes with SSSE3).
    Some(unsafe { all::<false>(crc, bytes, &Mask::NONE) })
}

/// The same of a length that the compiler knows: one of `blocks` alone is left of it.
#[inline]
pub(crate) fn crc32_of<const LEN: usize>(crc: u32, bytes: &[u8; LEN]) -> Option<u32> {
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn one<const LEN: usize>(crc: u32, bytes: &[u8; LEN]) -> u32 {
        all::<false>(crc, bytes, &Mask::NONE)
    }
    if LEN < 16 || !has_clmul() {
        return None;
    }
    // SAFETY: as in `crc32`.
    Some(unsafe { one(crc, bytes) })
}

/// The same with the bits of `mask` set.
#[inline]
pub(crate) fn crc32_masked(crc: u32, bytes: &[u8], mask: &Mask) -> Option<u32> {
    if bytes.len() < 16 || !has_clmul() {
        return None;
    }
    // SAFETY: as in `crc32`.
    Some(unsafe { all::<true>(crc, bytes, mask) })
}

/// The CRC-32 of each message, if the processor can.
#[inline]
pub(crate) fn crc32_each<const LEN: usize>(messages: &[[u8; LEN]], sums: &mut [u32]) -> bool {
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn each<const LEN: usize>(messages: &[[u8; LEN]], sums: &mut [u32]) {
        for (message, sum) in messages.iter().zip(sums) {
            *sum = all::<false>(0, message, &Mask::NONE);
        }
    }
    if LEN < 16 || !has_clmul() {
        return false;
    }
    // SAFETY: as in `crc32`.
    unsafe { each(messages, sums) };
    true
}

#[inline]
#[target_feature(enable = "sse2")]
fn load(block: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes can be read there, and the instruction asks for no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn times(block: __m128i, [low, high]: [i64; 2]) -> __m128i {
    let by = _mm_set_epi64x(high, low);
    _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(block, by), _mm_clmulepi64_si128::<0x11>(block, by))
}

/// Any length from 16 on: in pieces of 8 blocks, the last of 16 to 143 bytes.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn all<const MASKED: bool>(crc: u32, bytes: &[u8], mask: &Mask) -> u32 {
    const PIECE: usize = 16 * MOST_BLOCKS;
    if bytes.len() < PIECE + 16 {
        return piece::<MASKED>(crc, bytes, mask);
    }
    let (first, mut rest) = bytes.split_at(PIECE);
    let mut crc = piece::<MASKED>(crc, first, mask);
    while rest.len() >= PIECE + 16 {
        let (next, after) = rest.split_at(PIECE);
        crc = piece::<false>(crc, next, mask);
        rest = after;
    }
    piece::<false>(crc, rest, mask)
}

/// 16 to 143 bytes. Each number of blocks has its own code, without a loop.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn piece<const MASKED: bool>(crc: u32, bytes: &[u8], mask: &Mask) -> u32 {
    match bytes.len() / 16 {
        1 => blocks::<1, MASKED>(crc, bytes, mask),
        2 => blocks::<2, MASKED>(crc, bytes, mask),
        3 => blocks::<3, MASKED>(crc, bytes, mask),
        4 => blocks::<4, MASKED>(crc, bytes, mask),
        5 => blocks::<5, MASKED>(crc, bytes, mask),
        6 => blocks::<6, MASKED>(crc, bytes, mask),
        7 => blocks::<7, MASKED>(crc, bytes, mask),
        8 => blocks::<8, MASKED>(crc, bytes, mask),
        // Cannot be: callers see to the length.
        _ => table::update(&table::CRC32, crc, bytes),
    }
}

/// `N` whole blocks, after up to 15 bytes in front.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn blocks<const N: usize, const MASKED: bool>(crc: u32, bytes: &[u8], mask: &Mask) -> u32 {
    let odd = bytes.len() & 15;
    let (Some(start), Some(whole)) =
        (bytes.first_chunk::<16>(), bytes.get(odd..).and_then(|b| b.as_chunks::<16>().0.first_chunk::<N>()))
    else {
        // Cannot be: callers see to the length.
        return table::update(&table::CRC32, crc, bytes);
    };
    // The CRC so far goes onto the first four bytes, which may lie in two blocks.
    let register = !crc;
    let mut head = load(start);
    if MASKED {
        head = _mm_or_si128(head, load(mask.block(0)));
    }
    head = _mm_xor_si128(head, _mm_cvtsi32_si128(register as i32));
    head = _mm_shuffle_epi8(head, load(&TO_END[odd]));
    let mut onto = _mm_cvtsi32_si128(register.checked_shr(8 * odd as u32).unwrap_or(0) as i32);
    let mut sum = _mm_setzero_si128();
    let mut carried = head;
    // Each round multiplies the block before and takes up the next one, so the last one is left as it is.
    for (i, block) in whole.iter().enumerate() {
        sum = _mm_xor_si128(sum, times(carried, FOLD[MOST_BLOCKS - N + i]));
        carried = load(block);
        if MASKED && 16 * i < Mask::LEN {
            carried = _mm_or_si128(carried, load(mask.block(odd + 16 * i)));
        }
        carried = _mm_xor_si128(carried, onto);
        onto = _mm_setzero_si128();
    }
    reduce(_mm_xor_si128(sum, carried))
}

/// The CRC of a message that is these 128 bits, its register being in them already.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn reduce(x: __m128i) -> u32 {
    const BY_96_AND_64: [i64; 2] = [power(96), power(64)];
    let low32 = _mm_set_epi32(0, 0, 0, -1);
    let by = _mm_set_epi64x(BY_96_AND_64[1], BY_96_AND_64[0]);
    // 128 bits to 96, to 64.
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(x, by), _mm_srli_si128::<8>(x));
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(_mm_and_si128(x, low32), by), _mm_srli_si128::<4>(x));
    // Barrett's division of the 64 bits.
    let by = _mm_set_epi64x(QUOTIENT, P);
    let t = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(x, low32), by);
    let t = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(t, low32), by);
    !(_mm_extract_epi32::<1>(_mm_xor_si128(x, t)) as u32)
}

/// CRC-32C, if the processor can.
#[inline]
pub(crate) fn crc32c(bytes: &[u8]) -> Option<u32> {
    if !is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: the processor has SSE4.2, as was just asked.
    Some(unsafe { crc32c_sse42(bytes) })
}

#[target_feature(enable = "sse4.2")]
fn crc32c_sse42(bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let r = eights.iter().fold(u64::from(!0u32), |r, b| _mm_crc32_u64(r, u64::from_le_bytes(*b))) as u32;
    let (fours, rest) = rest.as_chunks::<4>();
    let r = fours.iter().fold(r, |r, b| _mm_crc32_u32(r, u32::from_le_bytes(*b)));
    !rest.iter().fold(r, |r, b| _mm_crc32_u8(r, *b))
}

/// CRC-32C of four bytes, if the processor can.
#[inline]
pub(crate) fn crc32c_u32(word: u32) -> Option<u32> {
    #[target_feature(enable = "sse4.2")]
    fn one(word: u32) -> u32 {
        !_mm_crc32_u32(!0, word)
    }
    if !is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: the processor has SSE4.2, as was just asked.
    Some(unsafe { one(word) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_paper() {
        assert_eq!(power(128 + 32), 0x1_7519_97d0);
        assert_eq!(power(128 - 32), 0x0_ccaa_009e);
        assert_eq!(power(64), 0x1_63cd_6124);
        assert_eq!(FOLD[MOST_BLOCKS - 1], [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!(P, i64::from(0xEDB8_8320u32) << 1 | 1);
    }

    #[test]
    fn short_bytes_go_by_table() {
        assert_eq!(crc32(0, &[0; 15]), None);
        assert_eq!(crc32_masked(0, &[0; 15], &Mask::NONE), None);
    }
}
