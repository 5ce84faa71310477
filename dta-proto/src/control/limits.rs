//! How much one call may ask for, as servers check it and clients keep to it.

/// The most keys in one query: the answers stay below 4 MiB, which clients take without being told to.
pub const MAX_KEYS: usize = 16_384;

/// The most nodes whose counters come with one renewal; a translator that hears more reporters
/// renews several times.
pub const MAX_NODES: usize = 16_384;

/// The most bytes of one raw read.
pub const MAX_READ: u32 = 64 << 10;
