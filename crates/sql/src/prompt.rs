//! The prompt: editable lines, statements of several lines, and a history of them.

use anyhow::Context;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};
use tokio::runtime::Runtime;

use crate::output::{self, SqlOutputFormat};
use crate::session::{Engine, describe_error, statements};

const HELP: &str = "\
A statement may have several lines, and ends with `;`. Besides statements:
  \\d         lists the tables
  \\d TABLE   describes one
  \\q         ends, as Ctrl-D does
Ctrl-C ends a statement that takes too long.";

/// A statement is complete when it ends with `;`.
struct StatementHelper;

impl Completer for StatementHelper {
    type Candidate = String;
}

impl Hinter for StatementHelper {
    type Hint = String;
}

impl Highlighter for StatementHelper {}

impl Helper for StatementHelper {}

impl Validator for StatementHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input().trim();
        let complete = text.is_empty() || text.starts_with('\\') || text.ends_with(';');
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

/// Reads statements and prints their answers until the end of the input. A wrong statement does not end the prompt.
pub(crate) fn run(runtime: &Runtime, engine: &Engine, format: SqlOutputFormat) -> anyhow::Result<()> {
    output::check_format(format)?;
    let mut editor: Editor<StatementHelper, FileHistory> = Editor::new().context("the terminal")?;
    editor.set_helper(Some(StatementHelper));
    let kept = dta_files::state_directory("sql-prompt");
    // If it is missing or cannot be read, the history starts empty.
    let _ = editor.load_history(&kept);
    dta_cli::print_line("SQL over the history of stores; \\? for help")?;
    loop {
        let text = match editor.readline("dta> ") {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("the terminal"),
        };
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        editor.add_history_entry(text)?;
        let mut words = text.trim_end_matches(';').split_whitespace();
        let text = match (words.next().unwrap_or_default(), words.next()) {
            ("\\q", _) => break,
            ("\\d", None) => "show tables".to_owned(),
            ("\\d", Some(table)) => format!("describe {table}"),
            (command, _) if command.starts_with('\\') => {
                dta_cli::print_line(HELP)?;
                continue;
            }
            _ => text.to_owned(),
        };
        if let Err(error) = runtime.block_on(answer_statements(engine, &text, format)) {
            eprintln!("{}", dta_cli::terminal::for_stderr(&describe_error(&error)));
        }
    }
    if let Some(folder) = kept.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let _ = editor.save_history(&kept);
    Ok(())
}

async fn answer_statements(engine: &Engine, text: &str, format: SqlOutputFormat) -> anyhow::Result<()> {
    for statement in statements(text)? {
        tokio::select! {
            printed = async { output::print_answer(engine.begin_statement(statement).await?, format).await } => printed?,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted by Ctrl-C"),
        }
    }
    Ok(())
}
