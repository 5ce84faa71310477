//! What the command lines of all programs share.
//!
//! - [`program`]: version, variables of flags, exit statuses, `completions` and `man`.
//! - [`status`]: exit statuses and their meaning.
//! - [`output`]: the flag `-o`; [`table`], [`terminal`], [`number`]: what people see.
//! - [`counters`]: the shape of counters in JSON.
//! - [`service_manager`]: what a daemon tells whoever started it.
//! - [`enough_threads`]: whether a daemon can have its threads.
//! - [`help`]: a rule for help texts.

mod completions;
pub mod counters;
pub mod help;
pub mod number;
pub mod output;
pub mod program;
pub mod service_manager;
mod static_names;
pub mod status;
pub mod table;
pub mod terminal;
mod threads;

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tracing_subscriber::EnvFilter;

pub use static_names::choose_name_sources;
pub use status::{Misuse, Status, misuse};
pub use threads::enough_threads;

/// Prints text and a line end to standard output.
///
/// # Errors
/// Whatever the system says, where `println!` would panic: the disk is full, or the reader has gone
/// ([`ErrorKind::BrokenPipe`]), which [`exit`] takes for a good end.
pub fn print(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// The end of `check-config`: prints the configuration that results, as a file, and on standard error
/// warnings and that it is good.
///
/// # Errors
/// As [`print`].
pub fn configuration_is_good(text: &str, warnings: &[String]) -> anyhow::Result<Status> {
    print(text.trim_end())?;
    for warning in warnings {
        eprintln!("WARNING: {warning}");
    }
    eprintln!("the configuration is good");
    Ok(Status::Done)
}

/// Parses a value that is one of a few names, which `--help` and completions then list.
pub fn one_of<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// The exit status of a program; an error is told on standard error first. A reader that has gone
/// (`| head`) has seen what it wanted, and is no error: where nobody reading is one, as with a
/// daemon's ready line, it has to come in other words than the system's.
pub fn exit(program: &str, result: anyhow::Result<impl Into<ExitCode>>) -> ExitCode {
    match result {
        Ok(code) => code.into(),
        Err(error) if is_broken_pipe(&error) => Status::Done.into(),
        Err(error) => {
            // With standard error closed there is nobody left to tell.
            let text = terminal::for_stderr(&format!("{program}: {}", error_line(&error)));
            let _ = writeln!(io::stderr().lock(), "{text}");
            let status = if error.is::<Misuse>() { Status::Misuse } else { Status::Failed };
            status.into()
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
        LogFormat::Text => log.with_ansi(terminal::has_colours(&io::stderr())).try_init(),
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
        let gone = || Err::<Status, _>(io::Error::from(ErrorKind::BrokenPipe).into());
        assert_eq!(exit("x", gone()), ExitCode::SUCCESS);
        assert_eq!(exit("x", gone().context("cannot print")), ExitCode::SUCCESS);
        assert_eq!(exit("x", Err::<Status, _>(anyhow::anyhow!("else"))), ExitCode::from(1));
        assert_eq!(exit("x", Err::<Status, _>(misuse(anyhow::anyhow!("else")))), ExitCode::from(2));
    }
}
