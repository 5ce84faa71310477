//! A testbed whose parts run on other machines.
//!
//! [`config`] is the part of the topology file with the machines. [`ssh`] runs the system's OpenSSH client, through
//! which [`machine`] talks to [`agent`], which is this program on the other machine: it starts daemons, sends
//! reports, and ends everything when the connection ends. [`protocol`] has their messages; a [`tunnel`] leads to a
//! service there. [`start`] brings collector, translator and reporters up.

pub mod agent;
pub mod config;
pub mod machine;
pub mod protocol;
pub mod reporters;
pub mod ssh;
pub mod start;
pub mod tunnel;

pub use reporters::FarReporters;
