//! The program's command line.
//!
//! One module per command. Exit statuses are those of [`dta_cli::status`].

#[cfg(feature = "ask")]
mod ask;
mod check_config;
mod devices;
mod names_flag;
mod serve;
mod supervise;
mod tls_flags;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dta_cli::CommandStatus;
use dta_cli::program::{Common, Example};

pub use tls_flags::TlsFlags;

/// Collector of Direct Telemetry Access: holds memory that translators write by RDMA, and answers queries from it.
#[derive(Parser)]
#[command(name = "dta-collector", version, after_help = EXAMPLES, propagate_version = true)]
struct CollectorCli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  dta-collector serve                        with a software NIC, on loopback
  dta-collector config --example > collector.toml
  dta-collector serve --config collector.toml
  dta-collector stores                       its stores, and how full they are
  dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector tail --store events --list 0 --from-start
  dta-collector stats --watch                where did my reports go?";

#[derive(Subcommand)]
enum Command {
    /// Run a collector
    Serve(serve::Args),
    /// Check the configuration that results from file, variables and flags
    CheckConfig(check_config::Args),
    /// Print a configuration
    #[command(
        after_help = "Example:\n  dta-collector config --example > collector.toml\n  dta-collector check-config --config collector.toml"
    )]
    Config(Example),
    #[cfg(feature = "ask")]
    #[command(flatten)]
    Ask(ask::Command),
    /// List RDMA devices that `serve --device` can use
    Devices(devices::Args),
    #[command(flatten)]
    Common(Common),
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// The cargo features built in, as `--version` prints them.
const FEATURES: &[&str] = match (cfg!(feature = "verbs"), cfg!(feature = "etcd")) {
    (true, true) => &["verbs", "etcd"],
    (true, false) => &["verbs"],
    (false, true) => &["etcd"],
    (false, false) => &[],
};

/// Runs the program with these arguments, the first of which is the program's name, so that another program
/// can run it in its own process.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    dta_memory::region::name_lost_files();
    dta_cli::program::run(args, FEATURES, |cli: CollectorCli| match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::Config(_) => {
            dta_cli::print_line(crate::config::EXAMPLE.trim_end())?;
            Ok(CommandStatus::Done)
        }
        #[cfg(feature = "ask")]
        Command::Ask(command) => ask::run(command),
        Command::Devices(args) => devices::run(&args),
        Command::Common(common) => common.run::<CollectorCli>(FEATURES),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound_and_each_help_page_has_an_example() {
        dta_cli::help::assert_sound(dta_cli::program::program_command::<CollectorCli>(FEATURES));
    }
}
