//! What people see of a collector: flows, events, counters and the dashboard.
//!
//! [`int`] answers from the stores for INT and [`trace`] from those that hosts fill, [`waterfall`] lists the counters of all nodes in the order in
//! which reports pass them, [`missing_reports`] says what may be missing from a count, [`epoch`] which epoch of a store answered, and [`members`]
//! what each of several collectors has; [`flows`] queries flow records, and `dashboard` (a feature) shows what is going on, in a terminal. All queries go
//! through [`dta_rpc::Ask`], to a running collector or only to its memory.

pub mod answers;
pub mod attention;
#[cfg(feature = "dashboard")]
pub mod dashboard;
pub mod element;
pub mod epoch;
pub mod flows;
pub mod int;
pub mod members;
pub mod memory;
pub mod missing_reports;
pub mod sessions;
pub mod stores;
#[cfg(test)]
mod test_collector;
pub mod trace;
pub mod waterfall;
