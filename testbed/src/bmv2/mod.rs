//! The testbed of P4 switches: hosts, a reporter and a translator on bmv2, and a collector on the software NIC, in a
//! network namespace of their own.
//!
//! `ground` makes the namespace with its links and processes, managed by `one_machine`; `machines` runs them on
//! other machines instead, and `place` stands for either. `hosts` sends the traffic. `reporter` and `files` write
//! the configurations; `truth` computes the expected result from the captured packets and these entries; `run`
//! replays, waits and compares; `disturbance` kills in the middle.

mod disturbance;
mod files;
mod ground;
mod hosts;
mod machines;
mod one_machine;
mod outcome;
mod place;
mod reporter;
mod run;
mod simple_switch;
mod truth;

pub use ground::enter_own_namespace;
pub use hosts::Hosts;
pub use machines::OptionsOnMachines;
pub use outcome::SwitchRunOutcome;
pub use run::{SwitchRunOptions, run, run_on_machines};
pub use simple_switch::{SimpleSwitch, options_of_build, read_help_text};
