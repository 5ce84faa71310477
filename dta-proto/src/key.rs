//! The 16-byte key of keyed primitives, and the flow 5-tuple it can hold.

/// The key of a keyed primitive: 16 bytes, as they stand in a version-1 report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 16]);
