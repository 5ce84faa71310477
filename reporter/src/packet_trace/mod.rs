//! Host tracing: programs in the kernel report each packet at each point it passes.
//!
//! This module has the platform-independent parts: the record of a packet at a point ([`record`]), its digest
//! ([`digest`]), the table by which the kernel chooses packets ([`matching`]) and the language compiled into it
//! ([`filter`]), the kernel's counters ([`counts`]), and assembling the records of a packet ([`journey`]). Hosts'
//! clocks are compared by [`dta_proto::clock`]. The code in `reporter/ebpf/` parses frames, computes digests and
//! applies the table in the kernel; `reporter/tests/twin/` does the same for tests. With the feature `ebpf`, `kernel`
//! loads that code.

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
