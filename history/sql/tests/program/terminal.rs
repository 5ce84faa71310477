//! The prompt, on a terminal that `script` (util-linux) gives it.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{PROGRAM, history, text};

#[test]
fn statements_of_several_lines_are_answered_and_mistakes_end_nothing() {
    let folder = history();
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &format!("{PROGRAM} sql -o csv"), "/dev/null"]);
    script
        .env("DTA_HISTORY_HISTORY", folder.path())
        .env("XDG_STATE_HOME", folder.path())
        .env("STATE_DIRECTORY", folder.path().join("state"));
    script.env("TERM", "dumb").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = script.spawn().expect("script, of util-linux");
    let mut typed = running.stdin.take().unwrap();
    for line in [
        "\\d",
        "select count(*) as n",
        "from epochs;",
        "select nothing;",
        "\\d flows",
        "\\?",
        "select 40 + 2 as last;",
        "\\q",
    ] {
        // Each is typed when the one before is surely read: a terminal that is not yet in its own mode echoes all the same.
        std::thread::sleep(Duration::from_millis(300));
        writeln!(typed, "{line}").unwrap();
    }
    let output = running.wait_with_output().unwrap();
    let shown = text(&output.stdout).replace('\r', "");
    assert!(output.status.success(), "{shown}");
    for expected in [
        "dta,history,flows,BASE TABLE",
        "\nn\n20\n",
        "nothing",
        "checksum,Int64,NO",
        "A statement may have several lines",
        "last\n42\n",
    ] {
        assert!(shown.contains(expected), "{expected:?} is not in\n{shown}");
    }
    let kept = std::fs::read_to_string(folder.path().join("state/sql-prompt")).unwrap();
    assert!(kept.contains("select 40 + 2 as last;"), "{kept}");
}
