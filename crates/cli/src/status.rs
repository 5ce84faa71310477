//! Exit statuses: one table for all programs.

use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CommandStatus {
    /// It was done, and found nothing wrong.
    Done = 0,
    /// It failed, in whole or in part.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Misuse = 2,
    /// A key that was asked for is not there.
    Absent = 3,
    /// It was done, and found problems.
    NotWell = 4,
}

/// Every status with its meaning, for help texts and documents.
pub const STATUSES: [(&str, &str); 6] = [
    ("0", "done; nothing wrong was found"),
    ("1", "it failed, in whole or in part; standard error says why"),
    ("2", "the command line or the configuration is wrong; nothing was done"),
    ("3", "what was asked for, such as a key, is not there"),
    ("4", "done; problems were found"),
    ("130, 143", "it was ended by SIGINT (Ctrl-C) or by SIGTERM; daemons end with 0"),
];

impl From<CommandStatus> for ExitCode {
    fn from(status: CommandStatus) -> ExitCode {
        ExitCode::from(status as u8)
    }
}

impl CommandStatus {
    /// [`CommandStatus::Done`] if `well`, otherwise [`CommandStatus::NotWell`].
    pub fn from_check(well: bool) -> CommandStatus {
        if well { CommandStatus::Done } else { CommandStatus::NotWell }
    }
}

/// A wrong command line or configuration that the argument parser cannot detect. Programs then end with
/// [`CommandStatus::Misuse`].
#[derive(Debug)]
pub struct Misuse(anyhow::Error);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Misuse {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.chain().nth(1)
    }
}

/// Marks an error as one of the command line or the configuration.
pub fn misuse_error(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Misuse(error.into()).into()
}

/// The part of a help text that explains exit statuses.
pub(crate) fn exit_status_help() -> String {
    let lines = STATUSES.map(|(status, meaning)| format!("  {status:<10}{meaning}"));
    format!("Exit status:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_status() {
        let all = [
            CommandStatus::Done,
            CommandStatus::Failed,
            CommandStatus::Misuse,
            CommandStatus::Absent,
            CommandStatus::NotWell,
        ];
        for (status, (number, _)) in all.into_iter().zip(STATUSES) {
            assert_eq!((status as u8).to_string(), number);
        }
        assert!(exit_status_help().lines().all(|line| line.len() <= 80), "{}", exit_status_help());
    }

    #[test]
    fn the_error_of_a_misuse_names_its_causes() {
        let error = misuse_error(anyhow::anyhow!("the port is 0").context("cannot use c.toml"));
        assert_eq!(crate::error_line(&error), "cannot use c.toml: the port is 0");
    }
}
