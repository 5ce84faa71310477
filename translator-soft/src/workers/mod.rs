//! Several engines that share the reports of one address, each on a thread of its own.
//!
//! A report is judged by the worker that has its reporter's window, and executed by the worker that has the
//! list, row, column or key that it writes. So no two workers hold state of one thing, and no window is
//! shared. A report that is at the wrong worker is handed over through a ring between the two; reports of
//! one reporter for one key stay in order. It is counted by the worker where it ends, so the books of each
//! worker close by themselves. See `docs/decisions/workers.md`.

mod crew;
mod handover;
mod steering;
#[cfg(test)]
mod tests;

pub use crew::{Crew, CrewView, crew};
pub use handover::CAPACITY;
pub(crate) use handover::{Message, Stage};
pub use steering::{MAX_WORKERS, judge_of_id, judge_of_source};
