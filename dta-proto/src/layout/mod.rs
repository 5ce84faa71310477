//! What lies in memory.
