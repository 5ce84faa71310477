//! Limits on one call, enforced by servers and respected by clients.

/// Most keys in one query: answers stay below the 4 MiB that clients accept by default.
pub const MAX_KEYS: usize = 16_384;

/// Most epochs in one answer.
pub const MAX_EPOCHS: usize = 4096;

/// Most nodes whose counters fit one renewal; a translator that hears more reporters renews several times.
pub const MAX_NODES: usize = 16_384;

/// Most bytes of one raw read.
pub const MAX_READ: u32 = 64 << 10;
