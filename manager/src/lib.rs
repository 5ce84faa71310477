//! The command line over [`dta_testbed`] and [`doctor`], and the commands that need neither:
//!
//! - [`replay`]: sends the DTA datagrams of a capture again.
//! - [`agents`]: what the agents of many hosts trace.
//! - [`size`]: how large stores must be, and how many reports can be taken.
//! - [`simulate`]: simulated collectors that join, leave and die.

pub mod agents;
pub mod cli;
pub mod doctor;
pub mod replay;
pub mod simulate;
pub mod size;
