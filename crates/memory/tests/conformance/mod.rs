//! The RoCEv2 conformance list of `testbed/roce-conformance/` (its README says what the fields
//! mean), and the runner that puts it before a responder, whichever it is.

// Each test program that includes this module uses its own part of it, and none of them is a library.
#![allow(dead_code, unreachable_pub)]

pub mod bytes;
pub mod list;
pub mod packet;
pub mod run;
pub mod setup;

pub use list::{Case, cases};
pub use run::{Answer, Backend, Handles, State, run};
