//! Host tracing: programs in the kernel report each packet at each point it passes.
//!
//! This crate has the platform-independent parts: the record of a packet at a point ([`record`]), its digest
//! ([`digest`]) and the parsing of a frame for it ([`packet`]), the table by which the kernel chooses packets
//! ([`matching`]) and the language compiled to it ([`filter`]), the kernel's counters ([`counts`]),
//! assembling the records of a packet ([`journey`]), and comparing the clocks of hosts ([`clock`]). Packet,
//! digest and table are twins of code in `trace/ebpf/`, which does the same in the kernel. With the feature
//! `ebpf`, `kernel` loads that code.

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
