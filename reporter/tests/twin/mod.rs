//! What the kernel's programs compute of a frame, in Rust: the tests compare both.
#![allow(dead_code, reason = "each test needs a part of it")]

pub(crate) mod digest;
pub(crate) mod packet;
