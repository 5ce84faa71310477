//! The program, on a history whose every row is known.

mod attack;
mod dashboard;
mod flight;
mod live;
mod made;
mod page;
mod statements;
mod terminal;
mod testbed;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dta-history");

/// A program of the workspace beside this one; `DTA_PROGRAMS` is the folder of its programs.
fn dta_program(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug");
    let path = std::env::var_os("DTA_PROGRAMS").map_or(built, PathBuf::from).join(name);
    assert!(path.exists(), "{} is missing: `make history` builds it", path.display());
    path
}

/// The program, which reads no configuration of whoever runs the tests.
fn program(folder: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .env("DTA_HISTORY_HISTORY", folder)
        .env("XDG_STATE_HOME", folder.join("state"))
        // A server that is killed leaves its folder there.
        .env("TMPDIR", folder)
        .env("RUST_BACKTRACE", "0");
    command
}

/// Runs `sql` with these arguments and this input.
fn sql(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = program(folder);
    command.arg("sql").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    running.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    running.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The rows of a statement's answer.
fn rows(folder: &Path, statement: &str) -> Vec<Value> {
    let output = sql(folder, &["-o", "json", statement], "");
    assert!(output.status.success(), "{statement}\n{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{statement}");
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The error of a statement that fails.
fn failure(folder: &Path, arguments: &[&str]) -> String {
    let output = sql(folder, arguments, "");
    assert!(!output.status.success(), "{arguments:?}\n{}", text(&output.stdout));
    text(&output.stderr)
}

/// A history in a folder of its own.
fn history() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    made::history(folder.path(), made::BEGIN);
    folder
}
