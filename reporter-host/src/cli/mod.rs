//! The program `dta-reporter`.

mod args;
mod check;
mod lines;
mod send;
mod value;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};

/// Runs the program with the process's arguments. Exit status 0: all reports left; 1: some did not,
/// or something else went wrong; 2: the arguments are wrong.
pub fn main() -> ExitCode {
    run(Cli::parse())
}

/// Runs the program with other arguments, the first being its name: for a program that stands in for it.
pub fn main_from(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    run(Cli::parse_from(arguments))
}

fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Send(send) => send::run(&send),
        Command::Completions { shell } => {
            dta_cli::completions(Cli::command(), shell).map(|()| true).map_err(Into::into)
        }
    };
    dta_cli::exit("dta-reporter", result.map(|all| ExitCode::from(u8::from(!all))), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound() {
        Cli::command().debug_assert();
    }
}
