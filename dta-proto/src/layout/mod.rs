//! What lies in memory: where a store's elements are, their bytes, and how a reader checks them.
//!
//! Shared by the translator, which writes elements through the NIC, and the collector, which reads them.
//! `docs/memory-layout.md` draws every byte and `vectors/layout.json` has test vectors for any
//! implementation.
//!
//! - [`hash`]: slots and checksums, used by all keyed stores.
//! - [`key_write`], [`postcarding`], [`append`], [`key_increment`], [`sketch_merge`]: one store
//!   each. They encode one element into `&mut [u8]`, and check and decode one from `&[u8]`: a
//!   private copy of the element, since the region itself changes under the reader.
//! - [`load`]: how full a store is and what that does to answers.
//!
//! Decoding accepts any bytes without panicking. Encoding panics if the buffer does not have the length of
//! the store's element ([`StoreSpec::element_len`](crate::store::StoreSpec::element_len)): that is the
//! caller's mistake, not the input's.

pub mod append;
pub mod hash;
pub mod key_increment;
pub mod key_write;
pub mod load;
pub mod postcarding;
pub mod sketch_merge;

/// Four big-endian bytes of `bytes` at `at`, which the caller has checked to be there.
#[inline]
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Two big-endian bytes at `at`, which the caller has checked to exist.
#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
