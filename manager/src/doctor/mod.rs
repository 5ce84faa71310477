//! `doctor`: what this machine offers, and how to get what it lacks; and why nothing lands although a session is up.
//!
//! - `checks`: the machine, as far as any testbed needs it.
//! - `rdma`: RDMA devices, as the kernel's file tree shows them.
//! - [`session`]: a running collector's sessions, and what happens to frames sent to it.

mod checks;
mod rdma;
pub mod session;
mod show;
#[cfg(test)]
mod test_machine;

pub use checks::examine_machine;
pub use show::{findings_table, machine_verdict, session_verdict};

use std::path::Path;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Ok,
    /// Works, but something is slower or unavailable.
    Note,
    /// The embedded testbed cannot run like this; for a session, a likely reason why nothing lands.
    Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked, in a word or two.
    pub check: &'static str,
    pub level: Level,
    pub found: String,
    /// What to do, if anything; preferably a command.
    pub advice: Option<String>,
}

impl Finding {
    fn new_ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), advice: None }
    }

    fn new_note(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Note, found: found.into(), advice: Some(advice.into()) }
    }

    /// A problem if it matters, otherwise a note.
    fn problem_or_note(
        matters: bool,
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        if matters { Self::new_problem(check, found, advice) } else { Self::new_note(check, found, advice) }
    }

    fn new_problem(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Problem, found: found.into(), advice: Some(advice.into()) }
    }
}

/// The trimmed text of a file; `None` if it cannot be read.
fn read_trimmed(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

/// Names in a directory, sorted as numbers if they are numbers; none if it cannot be read.
fn list_sorted_names(path: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
    names
}
