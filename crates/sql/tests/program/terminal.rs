//! The prompt, on a terminal that `script` (util-linux) gives it.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

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
    let (mut out, mut shown) = (running.stdout.take().unwrap(), Vec::new());
    for (line, is_first) in [
        ("\\d", true),
        ("select count(*) as n", true),
        ("from epochs;", false),
        ("select nothing;", true),
        ("\\d flows", true),
        ("\\?", true),
        ("select 40 + 2 as last;", true),
        ("\\q", true),
    ] {
        // Statements are typed at their prompt: what is typed before is echoed elsewhere.
        let from = shown.len();
        while is_first && !shown[from..].ends_with(b"dta> ") {
            let mut byte = [0];
            out.read_exact(&mut byte).expect("a prompt");
            shown.extend(byte);
        }
        writeln!(typed, "{line}").unwrap();
    }
    out.read_to_end(&mut shown).unwrap();
    let status = running.wait().unwrap();
    let shown = text(&shown).replace('\r', "");
    assert!(status.success(), "{shown}");
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
