//! Common parts of all programs' command lines.
//!
//! - [`program`]: version, flag variables, exit statuses, `completions` and `man`.
//! - [`status`]: exit statuses and their meaning.
//! - [`output`]: the flag `-o`; [`table`], [`terminal`], [`number`]: what people see.
//! - [`counters`]: the shape of counters in JSON.
//! - [`escape`]: shows characters that a terminal would act on, wherever text leaves a program.
//! - [`service_manager`]: notifications of a daemon to its service manager.
//! - [`enough_threads`]: whether a daemon can create its threads.
//! - [`help`]: rules for help texts.

mod completions;
pub mod counters;
pub mod escape;
pub mod help;
pub mod number;
pub mod output;
pub mod program;
pub mod service_manager;
mod static_names;
pub mod status;
pub mod table;
pub mod terminal;

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

pub use service_manager::enough_threads;
pub use static_names::choose_name_sources;
pub use status::{CommandStatus, Misuse, misuse_error};

/// Prints a line to standard output, with what a terminal would act on [escaped](escape).
///
/// Returns the system's error where `println!` would panic: the disk is full, or the reader has gone
/// ([`ErrorKind::BrokenPipe`]), which [`report_result`] treats as success.
pub fn print_line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", escape::escape_hidden_but_colours(&text.to_string()))
}

/// The end of `check-config`: prints the resulting configuration as a file, and on standard error the
/// warnings and that it is valid.
pub fn configuration_is_good(text: &str, warnings: &[String]) -> anyhow::Result<CommandStatus> {
    print_line(text.trim_end())?;
    for warning in warnings {
        eprintln!("WARNING: {warning}");
    }
    eprintln!("the configuration is valid");
    Ok(CommandStatus::Done)
}

/// Parses a value from a fixed set of names, which `--help` and completions then list.
pub fn one_of_names<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// The exit status of a program; an error is first printed on standard error. A reader that has gone
/// (`| head`) has seen what it wanted, and is not an error. Where it is one, as for a daemon's ready line,
/// return another error than the system's.
pub fn report_result(program: &str, result: anyhow::Result<impl Into<ExitCode>>) -> ExitCode {
    match result {
        Ok(code) => code.into(),
        Err(error) if is_broken_pipe(&error) => CommandStatus::Done.into(),
        Err(error) => {
            // With standard error closed there is nowhere left to report it.
            let text = terminal::for_stderr(&format!("{program}: {}", error_line(&error)));
            let _ = writeln!(io::stderr().lock(), "{text}");
            let status = if error.is::<Misuse>() { CommandStatus::Misuse } else { CommandStatus::Failed };
            status.into()
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// An error with its causes on one line, leaving out causes that the text before already contains: many
/// errors include the system's message in their own.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line, for programs.
    Json,
}

impl LogFormat {
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

const KAFKA: &str = "rskafka";

/// Writes logs to standard error, in colour on a terminal. `filter` is in `RUST_LOG` syntax (`info`,
/// `dta_collector=debug`); an invalid or empty one counts as `info`. A program that has set up its own log
/// keeps it.
pub fn init_logging(filter: &str, format: LogFormat) {
    // An empty filter would be accepted, and let only errors through.
    let filter = if filter.trim().is_empty() { "info" } else { filter };
    let mut read = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // The Kafka client logs each attempt to reach a broker; its callers log its errors.
    if !filter.contains(KAFKA) {
        read = read.add_directive(Directive::from_str(&format!("{KAFKA}=off")).expect("a name and a level"));
    }
    let filter = read;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(escape::EscapedStderr::default);
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
    fn a_cause_is_named_once() {
        let in_use = || io::Error::other("address in use");
        let error = anyhow::Error::new(in_use()).context("cannot listen: address in use");
        assert_eq!(error_line(&error), "cannot listen: address in use");
        let error = Err::<(), _>(in_use()).context("cannot listen").context("no collector").unwrap_err();
        assert_eq!(error_line(&error), "no collector: cannot listen: address in use");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let gone = || Err::<CommandStatus, _>(io::Error::from(ErrorKind::BrokenPipe).into());
        assert_eq!(report_result("x", gone()), ExitCode::SUCCESS);
        assert_eq!(report_result("x", gone().context("cannot print")), ExitCode::SUCCESS);
        assert_eq!(report_result("x", Err::<CommandStatus, _>(anyhow::anyhow!("else"))), ExitCode::from(1));
        assert_eq!(
            report_result("x", Err::<CommandStatus, _>(misuse_error(anyhow::anyhow!("else")))),
            ExitCode::from(2)
        );
    }
}
