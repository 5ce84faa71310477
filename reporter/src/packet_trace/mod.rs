//! Host tracing: programs in the kernel report each packet at each point it passes.
//!
//! This crate has the platform-independent parts: the record of a packet at a point ([`process_record`]), its digest
//! ([`path_digest`]), the table by which the kernel chooses packets ([`matching`]) and the language compiled to it
//! ([`compile_filter`]), the kernel's counters ([`counts`]), assembling the records of a packet ([`journey_points`]), and
//! comparing the clocks of hosts ([`clock`]). The code in `trace/ebpf/` parses frames, computes digests and
//! applies the table in the kernel; `trace/tests/twin/` does the same for tests. With the feature `ebpf`,
//! `kernel` loads that code.

pub mod btf;
pub mod counts;
pub mod digest;
pub mod filter;
pub mod journey;
#[cfg(all(feature = "ebpf", target_os = "linux"))]
pub mod kernel;
pub mod matching;
pub mod point;
pub mod record;
