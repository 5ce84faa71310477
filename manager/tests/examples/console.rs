//! A document whose blocks of `console` are one session: what is typed in it is run in order, and what it prints is
//! compared with what is shown. In what is shown, `…` stands for any text within a line, and for any lines where it
//! stands alone. Blanks count as one.

use crate::found::{Example, of_document};
use crate::room::{Room, Running};

/// Runs the session of a document. What stays is ended with it, as with Ctrl-C.
pub(crate) fn run(room: &Room, file: &str, text: &str) {
    let examples = of_document(file, text);
    assert!(!examples.is_empty(), "{file} shows nothing");
    let mut running = Vec::new();
    // Variables stay set, as in a shell.
    let mut exported = String::new();
    for example in examples {
        let Example { place, command, output, stays } = example;
        // Blocks of other kinds are judged as all examples are.
        let Some(shown) = output else { continue };
        if command.starts_with("export ") {
            exported += &format!("{command}\n");
        }
        let line = format!("{exported}{command}");
        if stays {
            running.push(stay(room, &place, &line, &shown));
            continue;
        }
        let done = room.run(&line);
        let printed = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success(), "{place}: {command} failed: {printed}");
        let lines: Vec<_> = printed.lines().map(str::to_owned).collect();
        assert!(
            is_as_shown(&shown, &lines),
            "{place}: {command} shows\n{}\nand printed\n{printed}",
            shown.join("\n")
        );
    }
    running.into_iter().rev().for_each(Running::interrupt);
}

fn stay(room: &Room, place: &str, line: &str, shown: &[String]) -> Running {
    let started = room.start(line);
    for _ in 0..1200 {
        let lines: Vec<_> = started.printed().lines().map(str::to_owned).collect();
        if is_as_shown(shown, &lines) {
            return started;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{place}: {line} shows\n{}\nand printed\n{}", shown.join("\n"), started.printed());
}

/// Whether the lines that were printed are those that are shown.
pub(crate) fn is_as_shown(shown: &[String], printed: &[String]) -> bool {
    let trimmed = |lines: &[String]| -> Vec<String> {
        let plain = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        plain.filter(|line| !line.is_empty()).collect()
    };
    matches_lines(&trimmed(shown), &trimmed(printed))
}

fn matches_lines(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => {
            (0..=printed.len()).any(|skipped| matches_lines(rest, &printed[skipped..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(line, others)| matches_line(first, line) && matches_lines(rest, others)),
    }
}

fn matches_line(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[test]
fn an_ellipsis_stands_for_what_differs() {
    let of = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let good =
        |shown: &str, printed: &str| assert!(is_as_shown(&of(shown), &of(printed)), "{shown:?} {printed:?}");
    let bad =
        |shown: &str, printed: &str| assert!(!is_as_shown(&of(shown), &of(printed)), "{shown:?} {printed:?}");
    good("a  b\n\nc", "a b\nc\n\n");
    good("a … c …", "a b b c d");
    good("…", "");
    good("…\nb\n…", "a\nb\nc\nd");
    good("took … s", "took 1.5 s");
    bad("a", "a\nb");
    bad("a …", "b");
    bad("took … s", "took 1.5 ms of");
    bad("…\nb", "a\nb\nc");
    bad("", "a");
}
