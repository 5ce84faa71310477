//! The 16-byte key of keyed primitives, and the flow 5-tuple it can hold.
