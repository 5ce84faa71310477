//! The program's command line.
//!
//! One module per command. Exit statuses are those of [`dta_cli::status`].

mod check_config;
mod client_flags;
mod config;
mod dashboard;
mod devices;
mod epochs;
mod export;
mod names_flag;
mod query;
mod query_flow;
mod serve;
mod sessions;
mod stats;
mod stores;
mod supervise;
mod tail;
mod tail_events;
mod top;
mod trace;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dta_cli::program::Common;
use dta_client::{ClientError, Spread};
use dta_proto::store::StoreSpec;
use dta_views::int::IntError;

pub use client_flags::TlsFlags;

/// Collector of Direct Telemetry Access: holds memory that translators write by RDMA, and answers queries from it.
#[derive(Parser)]
#[command(name = "dta-collector", version, after_help = EXAMPLES, propagate_version = true)]
struct Cli {
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
    Config(config::Args),
    /// Query keys
    Query(query::Args),
    /// Follow an append list
    Tail(tail::Args),
    /// Export events to a database, or print them as JSON, outside the collector process
    Export(export::Args),
    /// List the flows with the most latency, drops, packets, bytes or reports
    Top(top::Args),
    /// Show where packets of flows spent time on and between hosts, and where they were dropped
    Trace(trace::Args),
    /// Show the counters of every node: where did my reports go?
    Stats(stats::Args),
    /// List stores with load, survival and advised copies
    Stores(stores::Args),
    /// List sessions, or end one
    Sessions(sessions::Args),
    /// List RDMA devices that `serve --device` can use
    Devices(devices::Args),
    /// Watch a collector in the terminal
    Dashboard(dashboard::Args),
    #[command(flatten)]
    Common(Common),
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// The cargo features built in, as `--version` prints them.
const FEATURES: &[&str] = if cfg!(feature = "verbs") { &["verbs"] } else { &[] };

/// Runs the program with these arguments, the first of which is the program's name: so another program can run it in
/// its own process.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    crate::region::name_lost_files();
    dta_cli::program::run(args, FEATURES, |cli: Cli| match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Query(args) => query::run(args),
        Command::Tail(args) => tail::run(args),
        Command::Export(args) => export::run(args),
        Command::Top(args) => top::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Stores(args) => stores::run(args),
        Command::Sessions(args) => sessions::run(args),
        Command::Devices(args) => devices::run(&args),
        Command::Dashboard(args) => dashboard::run(args),
        Command::Common(common) => common.run::<Cli>(FEATURES),
    })
}

/// The status of a failed question: a store that does not exist is a usage error.
fn int_error(error: IntError) -> anyhow::Error {
    match error {
        IntError::Client(error) => error.into(),
        IntError::NoStore(_) => dta_cli::misuse(error),
    }
}

/// Waits for the interval of `--watch`. `false` if nothing is to be shown again: without `--watch`, and after Ctrl-C.
async fn is_time_again(watch: Option<u64>) -> bool {
    let Some(seconds) = watch else { return false };
    tokio::select! {
        () = tokio::time::sleep(std::time::Duration::from_secs(seconds)) => true,
        _ = tokio::signal::ctrl_c() => false,
    }
}

/// Runs a client command: a few messages need no thread but this one.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// The stores of the collectors that answer, one of each name.
async fn specs(ask: &Spread) -> Result<Vec<StoreSpec>, ClientError> {
    let stores = ask.placement_that_answers().await?.stores;
    Ok(stores.into_iter().filter_map(|place| StoreSpec::try_from(&place.store?).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound_and_each_help_page_has_an_example() {
        dta_cli::help::assert_sound(dta_cli::program::command::<Cli>(FEATURES));
    }
}
