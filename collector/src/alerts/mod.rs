//! Alerts: rules over flow records and events as they come, and over counters and values as they are read;
//! and the state of what the rules find.
//!
//! `rule` has the checked rules of a configuration. `engine` takes entries and readings and finds groups for which a rule's condition holds;
//! `tally` has their windows, `groups` the groups of these, and `history` their past. `board` turns findings into alerts, remembers them across
//! restarts and numbers their transitions, which `deliver` sends to receivers. None of them except `deliver` reads a clock or memory:
//! `crate::server::alerts` does.

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
