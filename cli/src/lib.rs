//! What the command lines of all programs share: printing, errors, completions, logs, files that people name
//! and what is wrong in them, the service manager that started a daemon.

pub mod config_file;
pub mod file;
pub mod service_manager;

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Command;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::Shell;
use tracing_subscriber::EnvFilter;

/// Prints text and a line end to standard output.
///
/// # Errors
/// Whatever the system says, where `println!` would panic: the disk is full, or the reader has gone
/// ([`ErrorKind::BrokenPipe`]), which [`exit`] takes for a good end.
pub fn print(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Prints the completion script of a program for a shell.
///
/// # Errors
/// As [`print`].
pub fn completions(mut command: Command, shell: Shell) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    io::stdout().lock().write_all(&script)
}

/// Parses a value that is one of a few names, which `--help` and completions then list.
pub fn one_of<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// The exit status of a program; an error is told on standard error first, and gives `failure`. A
/// reader that has gone (`| head`) has seen what it wanted, and is no error: where nobody reading
/// is one, as with a daemon's ready line, it has to come in other words than the system's.
pub fn exit(program: &str, result: anyhow::Result<ExitCode>, failure: u8) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // With standard error closed there is nobody left to tell.
            let _ = writeln!(io::stderr().lock(), "{program}: {}", error_line(&error));
            ExitCode::from(failure)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// An error with its causes in one line. A cause that the text before has told already is left out:
/// many errors put what the system said into their own sentence.
pub fn error_line(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line, for programs.
    Json,
}

impl LogFormat {
    /// Their names.
    pub const NAMES: [&'static str; 2] = ["text", "json"];
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("a log is written as {}", Self::NAMES.join(" or "))),
        }
    }
}

/// Writes logs to standard error, in colour on a terminal. `filter` as `RUST_LOG` has it (`info`,
/// `dta_collector=debug`); one that cannot be read, or that is empty, counts as `info`. A program
/// that has set up its own log keeps it.
pub fn log(filter: &str, format: LogFormat) {
    // An empty one would be taken, and let errors through alone.
    let filter = if filter.trim().is_empty() { "info" } else { filter };
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let _ = match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let in_use = || io::Error::other("address in use");
        let error = anyhow::Error::new(in_use()).context("cannot listen: address in use");
        assert_eq!(error_line(&error), "cannot listen: address in use");
        let error = Err::<(), _>(in_use()).context("cannot listen").context("no collector").unwrap_err();
        assert_eq!(error_line(&error), "no collector: cannot listen: address in use");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let gone = || Err(io::Error::from(ErrorKind::BrokenPipe).into());
        assert_eq!(exit("x", gone(), 2), ExitCode::SUCCESS);
        assert_eq!(exit("x", gone().context("cannot print"), 2), ExitCode::SUCCESS);
        assert_eq!(exit("x", Err(anyhow::anyhow!("else")), 2), ExitCode::from(2));
    }
}
