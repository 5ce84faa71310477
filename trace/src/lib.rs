//! Host tracing: programs in the kernel report each packet at each point that it passes.
//!
//! Here is what is plain: the record of a packet at a point ([`record`]), its digest ([`digest`]) and how a frame is read for it
//! ([`packet`]), the table by which the kernel chooses packets ([`matching`]), and what it counts ([`counts`]). Each is the twin of code in `trace/ebpf/`,
//! which does the same in the kernel. Beside them are what people write, compiled to that table ([`filter`]), and how the clocks of two
//! hosts are compared ([`clock`]).

pub mod clock;
pub mod counts;
pub mod digest;
pub mod filter;
pub mod matching;
pub mod packet;
pub mod record;
