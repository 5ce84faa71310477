//! What people see of a collector: flows, events, counters and the dashboard.
//!
//! [`int`] answers from the stores for INT and [`trace`] from those that hosts fill, [`waterfall`] lists the counters
//! of all nodes in the order in which reports pass them, [`lacks`] says what may be missing from a count, [`epoch`]
//! says which epoch of a store answered, and [`dashboard`] shows all of it in a terminal. All queries go through
//! [`dta_rpc::Ask`], to a running collector or only to its memory.

pub mod answers;
pub mod attention;
pub mod dashboard;
pub mod element;
pub mod epoch;
#[cfg(test)]
mod fake;
pub mod int;
pub mod lacks;
pub mod memory;
pub mod sessions;
pub mod stores;
pub mod trace;
pub mod waterfall;
