//! The program `dta-reporter`.

#[cfg(all(feature = "ebpf", target_os = "linux"))]
mod agent;
mod args;
mod check;
mod lines;
mod report;
mod send;
#[cfg(all(feature = "ebpf", target_os = "linux"))]
mod trace;
mod value;

use std::process::ExitCode;

use dta_cli::CommandStatus;

use args::{Command, ReporterCli};

/// The user-visible cargo features.
const FEATURES: &[&str] = &[
    #[cfg(feature = "ebpf")]
    "ebpf",
];

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    main_from(std::env::args_os())
}

/// Runs the program with other arguments, the first being its name: for programs that embed it.
pub fn main_from(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    dta_cli::program::run(arguments, FEATURES, |cli: ReporterCli| match cli.command {
        Command::Send(send) => {
            send::run(&send).map(|all| if all { CommandStatus::Done } else { CommandStatus::Failed })
        }
        #[cfg(all(feature = "ebpf", target_os = "linux"))]
        Command::Points(args) => trace::print_points(&args).map(|()| CommandStatus::Done),
        #[cfg(all(feature = "ebpf", target_os = "linux"))]
        Command::Trace(trace) => trace::run(&trace).map(|()| CommandStatus::Done),
        #[cfg(all(feature = "ebpf", target_os = "linux"))]
        Command::Agent(args) => agent::run(&args),
        #[cfg(all(feature = "ebpf", target_os = "linux"))]
        Command::CheckConfig(file) => agent::check_config(&file),
        #[cfg(all(feature = "ebpf", target_os = "linux"))]
        Command::Config(_) => agent::print_example(),
        Command::Common(common) => common.run::<ReporterCli>(FEATURES),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound_and_each_help_page_has_an_example() {
        dta_cli::help::assert_sound(dta_cli::program::program_command::<ReporterCli>(FEATURES));
    }
}
