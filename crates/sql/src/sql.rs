//! `dta-history sql`

use std::io::{IsTerminal, Read};

use dta_cli::{CommandStatus, LogFormat};

use crate::output::{self, SqlOutputFormat};
use crate::prompt;
use crate::session::{Engine, STACK, StatementLimits, describe_error, statement_runtime, statements};
use crate::source::SourceFlags;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  dta-history sql \"show tables\"
  dta-history sql \"describe flows\"
  dta-history sql \"select * from dta_rows('flows',
      '10.0.0.1:5000->10.0.0.2:5000/udp') order by opened, copy\"
  dta-history sql -o csv \"select * from epochs\" > epochs.csv
  dta-history sql -o parquet \"select * from flows where opened >= now() -
      interval '1 hour'\" > hour.parquet
  echo \"select count(*) from flows;\" | dta-history sql
  dta-history sql

Each store's table has the columns that docs/history.md lists, and `opened`, the moment at which the row's epoch began (UTC). The table `epochs` has what is known of each epoch. Without a statement, and at a terminal, there is a prompt.")]
pub(crate) struct Args {
    /// Statements, separated by `;`; without, they are read from standard input
    statement: Option<String>,
    #[command(flatten)]
    source: SourceFlags,
    #[command(flatten)]
    limits: StatementLimits,
    /// How answers are printed
    #[arg(long, short, env, value_enum, default_value_t)]
    output: SqlOutputFormat,
}

pub(crate) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    dta_cli::init_logging("warn", LogFormat::Text);
    // Planning needs a large stack.
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || answer_statements(&args))?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn answer_statements(args: &Args) -> anyhow::Result<CommandStatus> {
    let runtime = statement_runtime(args.limits)?;
    let _entered = runtime.enter();
    let engine = Engine::new(&args.source, args.limits)?;
    let text = match &args.statement {
        Some(text) => text.clone(),
        None if std::io::stdin().is_terminal() => {
            prompt::run(&runtime, &engine, args.output)?;
            return Ok(CommandStatus::Done);
        }
        None => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
    };
    output::check_format(args.output)?;
    let statements = statements(&text).map_err(dta_cli::misuse_error)?;
    if args.output == SqlOutputFormat::Parquet && statements.len() > 1 {
        return Err(dta_cli::misuse_error(anyhow::anyhow!(
            "a Parquet file has the answer of one statement, not of {}",
            statements.len()
        )));
    }
    for statement in statements {
        let printed = runtime.block_on(async {
            output::print_answer(engine.begin_statement(statement).await?, args.output).await
        });
        printed.map_err(|error| {
            if error.is::<std::io::Error>() { error } else { anyhow::anyhow!(describe_error(&error)) }
        })?;
    }
    Ok(CommandStatus::Done)
}
