//! The translator of Direct Telemetry Access (DTA): it turns each report into RDMA operations on a
//! collector's memory.
//!
//! - [`program`]: what a switch should hold, computed from what collectors grant and the configuration.
//! - [`session`]: the calls to the collector that open, renew and end a lease.
//! - [`switches`]: what can be programmed, and how far it got.
//! - [`lease`]: a target kept in step with its sessions, one with each collector; [`setup`]: a
//!   switch programmed once.
//! - [`packets`]: the thread that carries packets between the links and the software data plane
//!   (`dta-dataplane`).
//! - [`run`]: the program `dta-translator run`: that thread, its leases and its own service.
//! - [`switch_watch`]: the program `dta-translator watch`: a P4 switch with its leases, and flushed by time.
//! - [`reporter_watch`]: the same for a reporter switch, which is programmed from the configuration alone.
//! - [`config`], [`collectors`], [`cli`]: what the program is made of otherwise.

pub mod cli;
pub mod collectors;
pub mod config;
pub mod control_address;
pub mod lease;
pub mod packets;
pub mod program;
pub mod reporter_watch;
pub mod run;
pub mod session;
pub mod setup;
mod share;
mod start;
pub mod switch_watch;
pub mod switches;
