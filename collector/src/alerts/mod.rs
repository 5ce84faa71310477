//! Alerts: rules over flow records and events as they come and counters and values as they are read, and the state of what
//! they find.
//!
//! `rule` has what a configuration says, checked. `engine` takes entries and readings and finds groups for which the condition of a rule
//! holds; `tally` has their windows, by group of `groups`, and `history` their past. `board` makes alerts of findings, remembers them over restarts
//! and numbers their transitions, which `deliver` sends to receivers. But for `deliver`, none of them reads a clock or
//! memory: `crate::server::alerts` does.

mod alert;
mod board;
pub mod deliver;
mod engine;
mod groups;
mod history;
mod reading;
mod rule;
mod simulation;
mod sketch;
mod source;
mod tally;

pub use alert::Finding;
pub use board::{AlertBoard, AlertCounters};
pub use engine::{AlertEngine, Evaluation};
pub use reading::{Reading, ReadingKind};
pub use rule::{AlertSeverity, AlertsConfig, DEFAULT_RULES, Rule, RuleConfig};
pub use simulation::{FiredAlert, RuleTest, RuleTestResult, RuleTests};
