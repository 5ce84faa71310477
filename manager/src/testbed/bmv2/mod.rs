//! The testbed of P4 switches: hosts, a reporter and a translator on bmv2, and a collector on the software NIC, in a
//! network namespace of their own.
//!
//! [`ground`] makes the namespace, its links and processes; [`reporter`] fills the reporter's tables; [`truth`] says
//! from the packets of the capture and these entries what has to come out; [`run`] replays, waits and compares.

mod controller;
mod ground;
mod reporter;
mod run;
mod truth;

pub use ground::enter;
pub use run::{Outcome, run};
