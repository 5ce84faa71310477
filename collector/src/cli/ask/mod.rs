//! The commands that ask a running collector, or read what it left in memory. They are behind the feature
//! `ask`, as a program that only serves needs none of them.

mod alerts;
mod client_flags;
mod cluster_flag;
mod dashboard;
mod export;
mod flows;
mod history;
mod past_stats;
mod placement;
mod query;
mod query_flow;
mod query_series;
mod sessions;
mod sketch_epochs;
mod stats;
mod stores;
mod tail;
mod tail_events;
mod top;
mod trace;
#[cfg(feature = "web")]
mod web;

use clap::Subcommand;
use dta_cli::{CommandStatus, output};
use dta_proto::store::StoreSpec;
use dta_rpc::{ClientError, Span, Spread};
use dta_views::int::IntError;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Query keys
    Query(query::Args),
    /// List the epochs of a store
    History(history::Args),
    /// Follow an append list
    Tail(tail::Args),
    /// Export events to a database, or print them as JSON, outside the collector process
    Export(export::Args),
    /// Sum up flow records: filtered, grouped, the largest first
    Flows(flows::Args),
    /// List alerts, and check and test the rules that make them
    Alerts(alerts::Args),
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
    /// Show and change what the collectors of a cluster have
    Placement(placement::Args),
    /// Watch a collector in the terminal
    Dashboard(dashboard::Args),
    /// Serve the page of several collectors, or of one elsewhere, on this machine
    #[cfg(feature = "web")]
    Web(web::WebArgs),
    /// Answer an agent over the Model Context Protocol, on standard input and output
    #[cfg(feature = "web")]
    Mcp(web::AgentArgs),
}

/// The span that flags ask about, a moment being a span of a millisecond; `None` = now.
fn asked_span(at: Option<u64>, since: Option<u64>, until: Option<u64>) -> Option<Span> {
    let since = since.or(at)?;
    Some(Span { since, until: at.map(|at| at + 1).or(until).unwrap_or_default() })
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandStatus> {
    match command {
        Command::Query(args) => query::run(args),
        Command::History(args) => history::run(args),
        Command::Tail(args) => tail::run(args),
        Command::Export(args) => export::run(args),
        Command::Flows(args) => flows::run(args),
        Command::Alerts(args) => alerts::run(args),
        Command::Top(args) => top::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Stores(args) => stores::run(args),
        Command::Sessions(args) => sessions::run(args),
        Command::Placement(args) => placement::run(args),
        Command::Dashboard(args) => dashboard::run(args),
        #[cfg(feature = "web")]
        Command::Web(args) => web::run_page(args),
        #[cfg(feature = "web")]
        Command::Mcp(args) => web::run_agent(args),
    }
}

/// Turns the error of a question into a status: a store that does not exist is a usage error.
fn int_error(error: IntError) -> anyhow::Error {
    match error {
        IntError::Client(error) => error.into(),
        IntError::NoStore(_) => dta_cli::misuse_error(error),
        IntError::NotKept(_) => error.into(),
    }
}

/// Waits for the interval of `--watch`. Returns `false` to stop: without `--watch`, and after Ctrl-C.
async fn is_time_again(watch: Option<u64>) -> bool {
    let Some(seconds) = watch else { return false };
    tokio::select! {
        () = tokio::time::sleep(std::time::Duration::from_secs(seconds)) => true,
        _ = tokio::signal::ctrl_c() => false,
    }
}

/// Prints what `--watch` repeats. A terminal shows only the latest, as `watch` does; elsewhere all are printed.
fn show_again(watch: Option<u64>, text: impl std::fmt::Display) -> anyhow::Result<()> {
    let is_apart = watch.is_some() && !dta_cli::terminal::clear_screen()?;
    Ok(dta_cli::print_line(format_args!("{text}{}", if is_apart { "\n" } else { "" }))?)
}

/// Prints a document for programs, on one line if `--watch` repeats it.
fn print_json(watch: Option<u64>, document: &impl serde::Serialize) -> anyhow::Result<()> {
    if watch.is_some() { output::json_line(document) } else { output::print_json(document) }
}

/// Runs a client command on this thread: a few messages need no other.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// The stores of the collectors that answer, each name once.
async fn store_specs(ask: &Spread) -> Result<Vec<StoreSpec>, ClientError> {
    let stores = ask.placement_that_answers().await?.stores;
    Ok(stores.into_iter().filter_map(|place| StoreSpec::try_from(&place.store?).ok()).collect())
}
