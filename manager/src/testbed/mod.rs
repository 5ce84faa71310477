//! The testbed: real processes, simulated switches, and the truth about every report.

pub mod check;
pub mod journal;
pub mod processes;
pub mod workload;
