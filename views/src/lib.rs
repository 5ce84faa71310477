//! What people see of a collector: flows, events, counters and the dashboard.
//!
//! [`int`] answers from the stores for INT and [`trace`] from those that hosts fill, [`waterfall`] puts the counters of all nodes in
//! the order in which reports pass them, [`lacks`] says what a count may lack, and [`dashboard`] shows all of it in a terminal.
//! Everything is asked through [`dta_client::Ask`], so that none of it knows whether a running collector answers or its memory alone.

pub mod dashboard;
#[cfg(test)]
mod fake;
pub mod int;
pub mod lacks;
pub mod trace;
pub mod waterfall;
