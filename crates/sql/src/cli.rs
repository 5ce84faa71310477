//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dta_cli::program::Common;

use crate::{serve, sql};

#[derive(Parser)]
#[command(
    name = "dta-history",
    about = "Query with SQL what stores held in past epochs, and what they hold now",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  dta-history sql \"show tables\"
  dta-history sql \"select store, count(*), sum(rows) from epochs group by store\"
  dta-history serve

docs/sql.md has the tables, the functions, and questions with their SQL."
)]
struct HistoryCli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run SQL statements, or start a prompt
    Sql(sql::Args),
    /// Answer SQL over the network: Arrow Flight SQL
    Serve(serve::Args),
    #[command(flatten)]
    Common(Common),
}

pub(crate) fn main() -> ExitCode {
    dta_cli::program::run(std::env::args_os(), &[], |cli: HistoryCli| match cli.command {
        Command::Sql(args) => sql::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Common(common) => common.run::<HistoryCli>(&[]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound_and_each_help_page_has_an_example() {
        dta_cli::help::assert_sound(dta_cli::program::program_command::<HistoryCli>(&[]));
    }
}
