//! `dta-history`: SQL over what the stores of Direct Telemetry Access held, epoch by epoch, and over what they hold now.
//!
//! [`tables`] are the stores' Delta tables as DataFusion reads them, [`live`] those of a running collector's memory,
//! [`functions`] the SQL functions for keys. [`session`] runs one statement, which can only read, within
//! [`session::StatementLimits`]. [`sql`] is the command and its prompt, [`serve`] is Arrow Flight SQL.

mod cli;
mod functions;
mod live;
mod output;
mod prompt;
mod serve;
mod session;
mod source;
mod sql;
mod tables;

use std::process::ExitCode;

fn main() -> ExitCode {
    dta_cli::choose_name_sources();
    if std::env::args_os().nth(1).is_some_and(|command| command == serve::WORKER) {
        return serve::run_worker();
    }
    cli::main()
}
