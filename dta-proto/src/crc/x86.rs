//! CRCs by x86-64 instructions: carry-less multiplication for CRC-32 and CRC-32K, the `crc32` instruction for
//! CRC-32C.
//!
//! The CRC-32 is the remainder of the message as a polynomial, times x^32, divided by P. Each block
//! of 16 bytes that lies d bits before the end counts as its 128 bits times x^d, and x^d may be
//! replaced by its remainder modulo P, which has 32 bits: so every block is multiplied by two
//! constants that depend on its place alone (one for each half), all blocks at once, and what is
//! left to divide is their sum of 128 bits. (Gopal et al., "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ Instruction", Intel 2009, has the identities and the last division;
//! it folds blocks one after another.)
//!
//! A message is padded to whole blocks with zeros *in front*, which do not change a CRC whose initial value
//! is part of the message, so there is no partial block.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering};

use crate::crc::{Mask, table};

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64,
    _mm_cvtsi32_si128, _mm_extract_epi32, _mm_loadu_si128, _mm_or_si128, _mm_set_epi8, _mm_set_epi32,
    _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi8, _mm_slli_si128, _mm_srli_si128, _mm_xor_si128,
};

/// Blocks of 16 bytes folded at once: as many as the longest DTA frame has.
const MOST_BLOCKS: usize = 12;

/// Polynomials of 32 bits, reversed.
const CRC32: u32 = 0xEDB8_8320;
const CRC32K: u32 = 0xEB31_D82E;

/// x^n modulo a polynomial in reflected order, shifted left by one, because a multiplication of reflected
/// numbers comes out one bit short.
const fn power_of_x(reversed: u32, n: u32) -> i64 {
    let mut r = 0x8000_0000u32;
    let mut i = 0;
    while i < n {
        r = if r & 1 == 1 { (r >> 1) ^ reversed } else { r >> 1 };
        i += 1;
    }
    (r as i64) << 1
}

/// x^64 divided by a polynomial, 33 bits in reflected order.
const fn barrett_quotient(reversed: u32) -> i64 {
    let polynomial = 1 << 32 | reversed.reverse_bits() as u128;
    let (mut rest, mut quotient, mut bit) = (1u128 << 64, 0u64, 33);
    while bit > 0 {
        bit -= 1;
        if rest >> (bit + 32) & 1 == 1 {
            rest ^= polynomial << bit;
            quotient |= 1 << bit;
        }
    }
    (quotient.reverse_bits() >> 31) as i64
}

/// The multipliers for the polynomial `R` (reversed).
struct Constants<const R: u32>;

impl<const R: u32> Constants<R> {
    /// Multipliers per block, low half and high half: the first for the block [`MOST_BLOCKS`] before the last
    /// one, the last for the block before the last one.
    const FOLD: [[i64; 2]; MOST_BLOCKS] = {
        let mut fold = [[0; 2]; MOST_BLOCKS];
        let mut before = 1;
        while before <= MOST_BLOCKS {
            let d = 128 * before as u32;
            fold[MOST_BLOCKS - before] = [power_of_x(R, d + 32), power_of_x(R, d - 32)];
            before += 1;
        }
        fold
    };

    const BY_96_AND_64: [i64; 2] = [power_of_x(R, 96), power_of_x(R, 64)];

    /// The polynomial and x^64 divided by it, both in reflected order, for the final division.
    const POLYNOMIAL: i64 = (R as i64) << 1 | 1;
    const QUOTIENT: i64 = barrett_quotient(R);
}

/// The inverse of the polynomial of CRC-32 in reflected order modulo 2^128, low half and high half: their
/// product has a 1 in its lowest bit, and zeros in the 127 above.
const INVERSE: [i64; 2] = {
    let polynomial = (CRC32 as u128) << 1 | 1;
    let (mut rest, mut inverse, mut bit) = (1u128, 0u128, 0);
    while bit < 128 {
        if rest >> bit & 1 == 1 {
            rest ^= polynomial << bit;
            inverse |= 1 << bit;
        }
        bit += 1;
    }
    [inverse as i64, (inverse >> 64) as i64]
};

/// Row r moves the first r bytes of a block to its end and clears the bytes before them.
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

/// Shuffles that move all bytes after the first r to the start of the register, and fill with zeros.
static TO_START: [[u8; 16]; 16] = {
    let mut rows = [[0x80; 16]; 16];
    let mut r = 0;
    while r < 16 {
        let mut i = 0;
        while i < 16 - r {
            rows[r][i] = (r + i) as u8;
            i += 1;
        }
        r += 1;
    }
    rows
};

/// Whether the processor supports CRC-32 and CRC-32K: 0 if not yet checked, else [`NO`] or [`YES`]. One load,
/// where the standard library needs one per feature.
static CLMUL: AtomicU8 = AtomicU8::new(0);
const NO: u8 = 1;
const YES: u8 = 2;

#[inline]
fn has_clmul() -> bool {
    match CLMUL.load(Ordering::Relaxed) {
        0 => ask_for_clmul(),
        known => known == YES,
    }
}

#[cold]
fn ask_for_clmul() -> bool {
    let has = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1");
    CLMUL.store(if has { YES } else { NO }, Ordering::Relaxed);
    has
}

/// Continues a CRC-32 over at least 16 bytes, if the processor can.
#[inline]
pub(crate) fn crc32(crc: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.len() < 16 || !has_clmul() {
        return None;
    }
    // SAFETY: the processor has the features that `crc_any_length` is compiled for, as was just asked (SSE4.1
    // comes with SSSE3).
    Some(unsafe { crc_any_length::<CRC32, false>(crc, bytes, &Mask::NONE) })
}

/// The same for a constant length: only one case of `blocks` remains.
#[inline]
pub(crate) fn crc32_of<const LEN: usize>(crc: u32, bytes: &[u8; LEN]) -> Option<u32> {
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn crc32_fixed_length<const LEN: usize>(crc: u32, bytes: &[u8; LEN]) -> u32 {
        crc_any_length::<CRC32, false>(crc, bytes, &Mask::NONE)
    }
    if LEN < 16 || !has_clmul() {
        return None;
    }
    // SAFETY: as in `crc32`.
    Some(unsafe { crc32_fixed_length(crc, bytes) })
}

/// As [`crate::crc::crc32_update_words`], if the processor can.
#[inline]
pub(crate) fn crc32_words(crc: u32, word: u32, [first, second]: [u128; 2]) -> Option<u32> {
    // The blocks as four numbers: as arguments they stay in registers.
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn fold_two_blocks(head: u32, first: (u64, u64), second: (u64, u64)) -> u32 {
        let block = |(low, high): (u64, u64)| _mm_set_epi64x(high as i64, low as i64);
        let [_, high] = Constants::<CRC32>::FOLD[MOST_BLOCKS - 2];
        // The word is the end of a block that starts with zeros, so one of the two products is 0.
        let head = _mm_set_epi64x(0, (u64::from(head) << 32) as i64);
        let head = _mm_clmulepi64_si128::<0x00>(head, _mm_set_epi64x(0, high));
        let first = fold_block(block(first), Constants::<CRC32>::FOLD[MOST_BLOCKS - 1]);
        barrett_reduce::<CRC32>(_mm_xor_si128(_mm_xor_si128(head, first), block(second)))
    }
    if !has_clmul() {
        return None;
    }
    let halves = |block: u128| (block as u64, (block >> 64) as u64);
    // SAFETY: as in `crc32`.
    Some(unsafe { fold_two_blocks(!crc ^ word, halves(first), halves(second)) })
}

/// The same with the bits of `mask` set.
#[inline]
pub(crate) fn crc32_masked(crc: u32, bytes: &[u8], mask: &Mask) -> Option<u32> {
    if bytes.len() < 16 || !has_clmul() {
        return None;
    }
    // SAFETY: as in `crc32`.
    Some(unsafe { crc_any_length::<CRC32, true>(crc, bytes, mask) })
}

/// As [`crate::crc::crc32_matches`], if the processor can.
///
/// A message followed by its CRC, inverted and little-endian, is a multiple of P. Here that is the key, the
/// value and the byte-swapped checksum: no more bytes than key and slot.
#[inline]
pub(crate) fn crc32_matches<'f, const SLOT: usize, const N: usize>(
    firsts: impl Iterator<Item = &'f [u8; 16]>,
    slots: &[[[u8; SLOT]; N]],
    matching: &mut [u8],
) -> bool {
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn match_each_slot<'f, const SLOT: usize, const N: usize>(
        firsts: impl Iterator<Item = &'f [u8; 16]>,
        slots: &[[[u8; SLOT]; N]],
        matching: &mut [u8],
    ) {
        let swap = _mm_set_epi8(0, 1, 2, 3, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
        for ((first, slots), matching) in firsts.zip(slots).zip(matching) {
            // The register starts with ones, and the CRC is inverted: both are the same for all slots.
            let first = _mm_xor_si128(load(first), _mm_cvtsi32_si128(-1));
            let first = fold_block(first, Constants::<CRC32>::FOLD[MOST_BLOCKS - SLOT / 16]);
            let first = _mm_xor_si128(first, _mm_set_epi32(-1, 0, 0, 0));
            let mut bits = 0;
            for (n, slot) in slots.iter().enumerate() {
                let mut sum = first;
                // Blocks of the value, which follows the checksum; the last has 12 bytes.
                let (blocks, _) = slot.get(4..).unwrap_or_default().as_chunks::<16>();
                for (i, block) in blocks.iter().enumerate() {
                    let fold = Constants::<CRC32>::FOLD[MOST_BLOCKS + 1 + i - SLOT / 16];
                    sum = _mm_xor_si128(sum, fold_block(load(block), fold));
                }
                let (start, end) =
                    (slot.first_chunk().unwrap_or(&[0; 16]), slot.last_chunk().unwrap_or(&[0; 16]));
                let checksum = _mm_shuffle_epi8(load(start), swap);
                let last = _mm_or_si128(_mm_srli_si128::<4>(load(end)), checksum);
                bits |= u8::from(is_multiple(_mm_xor_si128(sum, last))) << n;
            }
            *matching = bits;
        }
    }
    if SLOT == 0 || !SLOT.is_multiple_of(16) || SLOT / 16 > MOST_BLOCKS || !has_clmul() {
        return false;
    }
    // SAFETY: as in `crc32`.
    unsafe { match_each_slot(firsts, slots, matching) };
    true
}

/// Whether these 128 bits are a multiple of the CRC-32 polynomial. As with odd integers: exact division by an
/// odd number is multiplication by its inverse modulo 2^128, and then the quotient has 96 bits.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn is_multiple(x: __m128i) -> bool {
    let inverse = _mm_set_epi64x(INVERSE[1], INVERSE[0]);
    let low = _mm_clmulepi64_si128::<0x00>(x, inverse);
    let high =
        _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(x, inverse), _mm_clmulepi64_si128::<0x10>(x, inverse));
    let quotient = _mm_xor_si128(low, _mm_slli_si128::<8>(high));
    _mm_extract_epi32::<3>(quotient) == 0
}

/// As [`crate::crc::crc32_of_two`], if the second part has a value's length; else `None`.
#[inline]
pub(crate) fn crc32_of_two(first: &[u8; 16], second: &[u8]) -> Option<u32> {
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn crc32_with_4_bytes(first: &[u8; 16], second: &[u8; 4]) -> u32 {
        crc32_of_joined::<1>(first, second, _mm_cvtsi32_si128(i32::from_le_bytes(*second)))
    }
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn crc32_with_12_bytes(first: &[u8; 16], second: &[u8; 12]) -> u32 {
        let [a, b, c, d, e, f, g, h, high @ ..] = *second;
        let low = i64::from_le_bytes([a, b, c, d, e, f, g, h]);
        crc32_of_joined::<1>(first, second, _mm_set_epi64x(u32::from_le_bytes(high).into(), low))
    }
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn crc32_with_28_bytes(first: &[u8; 16], second: &[u8; 28]) -> Option<u32> {
        Some(crc32_of_joined::<2>(first, second, load(second.first_chunk()?)))
    }
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn crc32_with_60_bytes(first: &[u8; 16], second: &[u8; 60]) -> Option<u32> {
        Some(crc32_of_joined::<4>(first, second, load(second.first_chunk()?)))
    }
    if !has_clmul() {
        return None;
    }
    // Checked here rather than in the callee, because callers often know the length.
    // SAFETY: as in `crc32`.
    unsafe {
        match second.len() {
            4 => Some(crc32_with_4_bytes(first, second.try_into().ok()?)),
            12 => Some(crc32_with_12_bytes(first, second.try_into().ok()?)),
            28 => crc32_with_28_bytes(first, second.try_into().ok()?),
            60 => crc32_with_60_bytes(first, second.try_into().ok()?),
            _ => None,
        }
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn load(block: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes can be read there, and the instruction asks for no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn fold_block(block: __m128i, [low, high]: [i64; 2]) -> __m128i {
    let by = _mm_set_epi64x(high, low);
    _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(block, by), _mm_clmulepi64_si128::<0x11>(block, by))
}

/// Any length from 16: the first 12 blocks with the odd bytes before them, then pieces of up to 12 blocks. The remainder of
/// a piece is the block before the next one, so that only the last is divided.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn crc_any_length<const R: u32, const MASKED: bool>(crc: u32, bytes: &[u8], mask: &Mask) -> u32 {
    const PIECE: usize = 16 * MOST_BLOCKS;
    if bytes.len() < PIECE + 16 {
        return crc_of_piece::<R, MASKED>(crc, bytes, mask);
    }
    let (first, rest) = bytes.split_at((bytes.len() & 15) + PIECE);
    let Some(mut remainder) = fold_blocks::<R, MOST_BLOCKS, MASKED>(crc, first, mask) else {
        // Unreachable: that is how long the first piece is.
        return crc_by_table::<R>(crc, bytes);
    };
    for piece in rest.as_chunks::<16>().0.chunks(MOST_BLOCKS) {
        let folds = &const { &Constants::<R>::FOLD }[MOST_BLOCKS - piece.len()..];
        let mut before = remainder;
        remainder = _mm_setzero_si128();
        for (block, fold) in piece.iter().zip(folds) {
            remainder = _mm_xor_si128(remainder, fold_block(before, *fold));
            before = load(block);
        }
        remainder = _mm_xor_si128(remainder, before);
    }
    barrett_reduce::<R>(remainder)
}

/// 16 to 207 bytes. Each number of blocks has its own loop-free code.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn crc_of_piece<const R: u32, const MASKED: bool>(crc: u32, bytes: &[u8], mask: &Mask) -> u32 {
    match bytes.len() / 16 {
        1 => crc_of_blocks::<R, 1, MASKED>(crc, bytes, mask),
        2 => crc_of_blocks::<R, 2, MASKED>(crc, bytes, mask),
        3 => crc_of_blocks::<R, 3, MASKED>(crc, bytes, mask),
        4 => crc_of_blocks::<R, 4, MASKED>(crc, bytes, mask),
        5 => crc_of_blocks::<R, 5, MASKED>(crc, bytes, mask),
        6 => crc_of_blocks::<R, 6, MASKED>(crc, bytes, mask),
        7 => crc_of_blocks::<R, 7, MASKED>(crc, bytes, mask),
        8 => crc_of_blocks::<R, 8, MASKED>(crc, bytes, mask),
        9 => crc_of_blocks::<R, 9, MASKED>(crc, bytes, mask),
        10 => crc_of_blocks::<R, 10, MASKED>(crc, bytes, mask),
        11 => crc_of_blocks::<R, 11, MASKED>(crc, bytes, mask),
        12 => crc_of_blocks::<R, 12, MASKED>(crc, bytes, mask),
        // Unreachable: callers check the length.
        _ => crc_by_table::<R>(crc, bytes),
    }
}

#[cold]
fn crc_by_table<const R: u32>(crc: u32, bytes: &[u8]) -> u32 {
    table::crc_update(if R == CRC32K { &table::CRC32K } else { &table::CRC32 }, crc, bytes)
}

/// `N` whole blocks, after up to 15 bytes in front.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn crc_of_blocks<const R: u32, const N: usize, const MASKED: bool>(
    crc: u32,
    bytes: &[u8],
    mask: &Mask,
) -> u32 {
    match fold_blocks::<R, N, MASKED>(crc, bytes, mask) {
        Some(remainder) => barrett_reduce::<R>(remainder),
        // Unreachable: callers check the length.
        None => crc_by_table::<R>(crc, bytes),
    }
}

/// The same as one block that has the same remainder; `None` if `bytes` are fewer.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn fold_blocks<const R: u32, const N: usize, const MASKED: bool>(
    crc: u32,
    bytes: &[u8],
    mask: &Mask,
) -> Option<__m128i> {
    let odd = bytes.len() & 15;
    let start = bytes.first_chunk::<16>()?;
    let whole = bytes.get(odd..)?.as_chunks::<16>().0.first_chunk::<N>()?;
    // The CRC so far is XORed into the first four bytes, which may span two blocks.
    let register = !crc;
    let mut head = load(start);
    if MASKED {
        head = _mm_or_si128(head, load(mask.mask_block_at(0)));
    }
    head = _mm_xor_si128(head, _mm_cvtsi32_si128(register as i32));
    head = _mm_shuffle_epi8(head, load(&TO_END[odd]));
    let mut onto = _mm_cvtsi32_si128(register.checked_shr(8 * odd as u32).unwrap_or(0) as i32);
    let mut sum = _mm_setzero_si128();
    let mut carried = head;
    // Each round multiplies the previous block and adds the next one, so the last one stays unmultiplied.
    for (i, block) in whole.iter().enumerate() {
        sum = _mm_xor_si128(sum, fold_block(carried, Constants::<R>::FOLD[MOST_BLOCKS - N + i]));
        carried = load(block);
        if MASKED && 16 * i < Mask::LEN {
            carried = _mm_or_si128(carried, load(mask.mask_block_at(odd + 16 * i)));
        }
        carried = _mm_xor_si128(carried, onto);
        onto = _mm_setzero_si128();
    }
    Some(_mm_xor_si128(sum, carried))
}

/// The CRC-32 of 16 bytes and a second part whose length is not a multiple of 16, N blocks in total with the
/// end of the first. `block` is the first 16 bytes of that part, zero-padded. The parts are joined in a
/// register, not in memory.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn crc32_of_joined<const N: usize>(first: &[u8; 16], second: &[u8], block: __m128i) -> u32 {
    let odd = second.len() & 15;
    let first = _mm_xor_si128(load(first), _mm_cvtsi32_si128(-1));
    let head = _mm_shuffle_epi8(first, load(&TO_END[odd]));
    let meet = _mm_or_si128(
        _mm_shuffle_epi8(first, load(&TO_START[odd])),
        _mm_shuffle_epi8(block, load(&TO_END[odd])),
    );
    let whole = second.get(odd..).unwrap_or(&[]).as_chunks::<16>().0;
    let mut sum = fold_block(head, Constants::<CRC32>::FOLD[MOST_BLOCKS - N]);
    let mut carried = meet;
    for (i, block) in whole.iter().take(N - 1).enumerate() {
        sum = _mm_xor_si128(sum, fold_block(carried, Constants::<CRC32>::FOLD[MOST_BLOCKS - N + 1 + i]));
        carried = load(block);
    }
    barrett_reduce::<CRC32>(_mm_xor_si128(sum, carried))
}

/// The CRC of a message of these 128 bits, into which the register is already XORed.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn barrett_reduce<const R: u32>(x: __m128i) -> u32 {
    let low32 = _mm_set_epi32(0, 0, 0, -1);
    let by = _mm_set_epi64x(Constants::<R>::BY_96_AND_64[1], Constants::<R>::BY_96_AND_64[0]);
    // 128 bits to 96, to 64.
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(x, by), _mm_srli_si128::<8>(x));
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(_mm_and_si128(x, low32), by), _mm_srli_si128::<4>(x));
    // Barrett's division of the 64 bits.
    let by = _mm_set_epi64x(Constants::<R>::QUOTIENT, Constants::<R>::POLYNOMIAL);
    let t = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(x, low32), by);
    let t = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(t, low32), by);
    !(_mm_extract_epi32::<1>(_mm_xor_si128(x, t)) as u32)
}

/// CRC-32K of at least 16 bytes, if the processor can.
#[inline]
pub(crate) fn crc32k(bytes: &[u8]) -> Option<u32> {
    if bytes.len() < 16 || !has_clmul() {
        return None;
    }
    // SAFETY: as in `crc32`.
    Some(unsafe { crc_any_length::<CRC32K, false>(0, bytes, &Mask::NONE) })
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

#[inline]
#[target_feature(enable = "sse4.2")]
fn crc32c_sse42(bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let r = eights.iter().fold(u64::from(!0u32), |r, b| _mm_crc32_u64(r, u64::from_le_bytes(*b))) as u32;
    let (fours, rest) = rest.as_chunks::<4>();
    let r = fours.iter().fold(r, |r, b| _mm_crc32_u32(r, u32::from_le_bytes(*b)));
    !rest.iter().fold(r, |r, b| _mm_crc32_u8(r, *b))
}

/// CRC-32C for a constant length, if the processor supports it.
#[inline]
pub(crate) fn crc32c_of<const LEN: usize>(bytes: &[u8; LEN]) -> Option<u32> {
    #[target_feature(enable = "sse4.2")]
    fn crc32c_fixed_length<const LEN: usize>(bytes: &[u8; LEN]) -> u32 {
        crc32c_sse42(bytes)
    }
    if !is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: the processor has SSE4.2, as was just asked.
    Some(unsafe { crc32c_fixed_length(bytes) })
}

/// CRC-32C of four bytes, if the processor can.
#[inline]
pub(crate) fn crc32c_u32(word: u32) -> Option<u32> {
    #[target_feature(enable = "sse4.2")]
    fn crc32c_of_word(word: u32) -> u32 {
        !_mm_crc32_u32(!0, word)
    }
    if !is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: the processor has SSE4.2, as was just asked.
    Some(unsafe { crc32c_of_word(word) })
}

/// As [`crate::crc::crc32c_spread`], if the processor can.
#[inline]
pub(crate) fn crc32c_spread<'k, const N: usize>(
    keys: impl Iterator<Item = &'k [u8; 16]>,
    constants: [u32; N],
    sums: &mut [[u32; N]],
) -> bool {
    #[target_feature(enable = "sse4.2")]
    fn spread_each_key<'k, const N: usize>(
        keys: impl Iterator<Item = &'k [u8; 16]>,
        constants: [u32; N],
        sums: &mut [[u32; N]],
    ) {
        for (key, sums) in keys.zip(sums) {
            let sum = crc32c_sse42(key);
            for (constant, to) in constants.iter().zip(sums) {
                *to = !_mm_crc32_u32(!0, sum.wrapping_add(*constant));
            }
        }
    }
    if !is_x86_feature_detected!("sse4.2") {
        return false;
    }
    // SAFETY: the processor has SSE4.2, as was just asked.
    unsafe { spread_each_key(keys, constants, sums) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_paper() {
        type Of = Constants<CRC32>;
        assert_eq!(power_of_x(CRC32, 128 + 32), 0x1_7519_97d0);
        assert_eq!(power_of_x(CRC32, 128 - 32), 0x0_ccaa_009e);
        assert_eq!(power_of_x(CRC32, 64), 0x1_63cd_6124);
        assert_eq!(Of::FOLD[MOST_BLOCKS - 1], [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!((Of::POLYNOMIAL, Of::QUOTIENT), (0x1_DB71_0641, 0x1_F701_1641));
    }

    #[test]
    fn the_inverse_and_the_polynomial_make_one() {
        let inverse = INVERSE[0] as u64 as u128 | (INVERSE[1] as u64 as u128) << 64;
        let polynomial = Constants::<CRC32>::POLYNOMIAL as u128;
        let product =
            (0..128).filter(|bit| polynomial >> bit & 1 == 1).fold(0, |sum, bit| sum ^ inverse << bit);
        assert_eq!(product, 1);
    }

    #[test]
    fn short_bytes_go_by_table() {
        assert_eq!(crc32(0, &[0; 15]), None);
        assert_eq!(crc32_masked(0, &[0; 15], &Mask::NONE), None);
    }
}
