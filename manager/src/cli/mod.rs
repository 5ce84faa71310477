//! The command line.

mod alerts_truth;
mod bench;
mod demo;
mod doctor;
mod make_capture;
mod replay;
mod run_testbed;
mod simulate;
mod size;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dta_cli::program::Common;
use dta_testbed::far::{agent, protocol};
use dta_testbed::{folder, processes};

const AFTER_HELP: &str = "\
Examples:
  dta-manager demo                              look at a network in a browser
  dta-manager run-testbed                       a whole testbed on this machine
  dta-manager run-testbed --pcap traffic.pcap   the same on real traffic
  dta-manager run-testbed --faults drop=0.01    with losses, all accounted for
  dta-manager replay reports.pcap --translator 127.0.0.1:40040
  dta-manager bench                             how fast it is here
  dta-manager doctor                            what this machine lacks
  dta-manager size --flows 1M --reports 5M      how large stores must be";

/// Start, feed, measure and diagnose a testbed of Direct Telemetry Access (DTA).
///
/// DTA writes reports of switches and hosts into a collector's memory by RDMA, so that they can be queried at once
/// without using the collector's CPU. This program proves it on your machine: it starts a collector and a translator,
/// simulates switches that report on traffic, and compares every answer with what was really sent.
#[derive(Parser)]
#[command(name = "dta-manager", version, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate a small network and show it in a browser, until Ctrl-C
    Demo(demo::Demo),
    /// Run a whole testbed on this machine and check every answer
    RunTestbed(run_testbed::RunTestbed),
    /// Send the DTA datagrams of a capture to a translator
    Replay(replay::Replay),
    /// Write a capture of synthetic traffic, if you have none
    MakeCapture(make_capture::MakeCapture),
    /// Measure the data path, each figure against its floor
    Bench(bench::Bench),
    /// Measure how well the default alert rules find what goes wrong
    AlertsTruth(alerts_truth::AlertsTruthArgs),
    /// Show, set or reset what the agents of many hosts trace
    Trace(trace::TraceArgs),
    /// Simulate clusters of hundreds of collectors
    Simulate(simulate::Simulate),
    /// Check what this machine offers, and how to get what it lacks
    Doctor(doctor::Doctor),
    /// Say how large stores must be, and how many reports they take
    Size(size::SizeArgs),
    #[command(flatten)]
    Common(Common),
}

/// The cargo features built in, as `--version` prints them.
const FEATURES: &[&str] = if cfg!(feature = "verbs") { &["verbs"] } else { &[] };

/// Runs the program and returns its exit status, see [`dta_cli::status`].
pub fn main() -> ExitCode {
    // Collector and translator are separate processes of this program, which contains both and starts itself again.
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let role = arguments.get(1).and_then(|first| first.to_str()).map(str::to_owned);
    if let (Some(folder::ROLE), Some(path)) = (role.as_deref(), arguments.get(2)) {
        return folder::keep_until_closed(path.as_ref());
    }
    if let Some(role) = role.as_deref().filter(|role| role.starts_with("__")) {
        processes::die_with_parent();
        let text: Vec<_> = arguments[1..].iter().map(|a| a.to_string_lossy().into_owned()).collect();
        if let Some(status) = dta_testbed::bench::run_role(&text) {
            return status;
        }
        arguments.remove(1);
        match role {
            "__collector" => return dta_collector::cli::run(arguments),
            "__translator" => return dta_translator::cli::main_from(arguments),
            protocol::ROLE => return agent::main(),
            "__reporter" => return dta_reporter::cli::main_from(arguments),
            _ => arguments.insert(1, role.into()),
        }
    }
    dta_cli::program::run(arguments, FEATURES, |arguments: Arguments| match arguments.command {
        Command::Demo(command) => command.run().map(ExitCode::from),
        Command::RunTestbed(command) => command.run(),
        Command::Replay(command) => command.run().map(ExitCode::from),
        Command::MakeCapture(command) => command.run().map(ExitCode::from),
        Command::Bench(command) => command.run().map(ExitCode::from),
        Command::AlertsTruth(command) => command.run().map(ExitCode::from),
        Command::Trace(command) => command.run().map(ExitCode::from),
        Command::Simulate(command) => command.run().map(ExitCode::from),
        Command::Doctor(command) => command.run().map(ExitCode::from),
        Command::Size(command) => command.run().map(ExitCode::from),
        Command::Common(common) => common.run::<Arguments>(FEATURES).map(ExitCode::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound_and_each_help_page_has_an_example() {
        dta_cli::help::assert_sound(dta_cli::program::program_command::<Arguments>(FEATURES));
    }
}
