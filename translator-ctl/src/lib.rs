//! The translator of Direct Telemetry Access (DTA): it turns each report into RDMA operations on a
//! collector's memory.
//!
//! - [`program`]: what a switch should hold, computed from the collectors' grants and the configuration.
//! - [`session`]: the calls to the collector that open, renew and end a lease.
//! - [`targets`]: the targets of configured switches (`dta-switch`); [`software`]: software translators as targets.
//! - [`lease`]: keeps a target in step with its sessions, one per collector; [`setup`]: programs a switch
//!   once.
//! - [`packets`]: the thread that carries packets between the links and the software data plane
//!   (`dta-dataplane`).
//! - [`run`]: the program `dta-translator run`: that thread, its leases and its own service.
//! - [`switch_watch`]: the program `dta-translator watch`: a P4 switch with its leases, flushed by age.
//! - [`reporter_watch`]: the same for a reporter switch, programmed from the configuration alone.
//! - [`config`], [`collectors`], [`cli`]: the rest of the program.

pub mod cli;
pub(crate) mod cluster;
pub mod collectors;
pub mod config;
pub mod control_address;
pub mod lease;
pub mod packets;
pub mod program;
mod reporter_tables;
pub mod reporter_watch;
pub mod run;
pub mod session;
pub mod setup;
mod share;
pub mod software;
mod start;
pub mod switch_watch;
pub mod targets;
