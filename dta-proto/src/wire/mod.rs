//! What travels in packets.
