//! Several engines that share the reports of one address, each on its own thread.
//!
//! A report is judged by the worker with its reporter's window, and executed by the worker with the list,
//! row, column or key it writes. So workers share no state and no window. A report at the wrong worker is
//! handed over through a ring between the two; reports of one reporter for one key stay in order. A report is
//! counted by the worker where it ends up, so each worker's counters add up. See `docs/decisions/workers.md`.

mod crew;
mod handover;
mod steering;
#[cfg(test)]
mod tests;

pub use crew::{Crew, CrewView, build_crew};
pub use handover::CAPACITY;
pub(crate) use handover::{HandoverMessage, Stage};
pub use steering::{MAX_WORKERS, judge_of_id, judge_of_source};
