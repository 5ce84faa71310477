//! Host tracing: programs in the kernel report each packet at each point that it passes.
//!
//! Here is what is plain: the record of a packet at a point ([`record`]), its digest ([`digest`]) and how a frame is read for it
//! ([`packet`]), the table by which the kernel chooses packets ([`matching`]) and the language that is compiled to it ([`filter`]),
//! what the kernel counts ([`counts`]), how the records of a packet are put together ([`journey`]), and how the clocks of
//! hosts are compared ([`clock`]). Packet, digest and table are the twins of code in `trace/ebpf/`, which does the same in
//! the kernel. With the feature `ebpf`, `kernel` loads that code.

pub mod btf;
pub mod clock;
pub mod counts;
pub mod digest;
pub mod filter;
pub mod journey;
#[cfg(all(feature = "ebpf", target_os = "linux"))]
pub mod kernel;
pub mod matching;
pub mod packet;
pub mod point;
pub mod record;
