//! What lies in memory: where an element of a store is, what its bytes are, and how a reader checks them.
//!
//! Shared by the translator, which writes elements through the NIC, and the collector, which reads
//! them. `docs/memory-layout.md` draws every byte and `vectors/layout.json` holds examples that any
//! implementation can be tested on.
//!
//! - [`hash`]: slots and checksums, used by all keyed stores.
//! - [`key_write`], [`postcarding`], [`append`], [`key_increment`], [`sketch_merge`]: one store
//!   each. They encode one element into `&mut [u8]`, and check and decode one from `&[u8]`: a
//!   private copy of the element, since the region itself changes under the reader.
//! - [`load`]: how full a store is and what that does to answers.
//!
//! Decoding takes any bytes without panicking. Encoding panics when the buffer is not as long as
//! the store's element, which [`StoreSpec::element_len`](crate::store::StoreSpec::element_len)
//! tells: that is a mistake of the caller, not of the input.

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

/// Two big-endian bytes of `bytes` at `at`, which the caller has checked to be there.
#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
