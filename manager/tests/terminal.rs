//! What every program prints on a terminal of 80 columns, and in a pipe: no word is broken, no line
//! is wider than the terminal, colours only where they are wanted, and no code of a terminal in a pipe.

mod bed;

use std::process::{Command, Output, Stdio};

use bed::{Bed, program};

const MANAGER: &str = env!("CARGO_BIN_EXE_dta-manager");

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:5000/udp";
const COLUMNS: usize = 80;

/// Commands of all programs, with what a person would give them.
fn commands(bed: &Bed) -> Vec<Vec<&str>> {
    let of_collector: [&[&str]; 12] = [
        &["stores"],
        &["stores", "-o", "wide"],
        &["sessions"],
        &["sessions", "-o", "wide"],
        &["stats"],
        &["stats", "--all"],
        &["query", "key-write", FLOW, "abcd"],
        &["query", "postcarding", FLOW, "abcd"],
        &["query", "key-increment", FLOW, "abcd"],
        &["query", "sketch-merge", "--epoch", "1", FLOW],
        &["tail", "--from-start", "--once"],
        &["stores", "-o", "json"],
    ];
    let collector = |flags: &&[&'static str]| {
        [&["__collector"], *flags, &["--collector", bed.collector.as_str()]].concat()
    };
    let translator = |flags: &[&'static str], more: &[&'static str]| {
        [&["__translator"], flags, &[bed.control.as_str()], more].concat()
    };
    let mut all: Vec<Vec<&str>> = of_collector.iter().map(collector).collect();
    all.push(translator(&["stats", "--translator"], &[]));
    all.push(translator(&["flush", "--translator"], &[]));
    all.push([&["__translator", "plan", "--collector"], &[bed.collector.as_str()][..]].concat());
    all.push(vec!["__translator", "check-config"]);
    all.push(vec!["__collector", "check-config", "--memory", "anonymous"]);
    all.push(vec!["__collector", "devices"]);
    let to = bed.reports.as_str();
    all.push(vec![
        "__reporter",
        "send",
        "key-write",
        "--unchecked",
        "--store",
        "1",
        "--key",
        FLOW,
        "--value",
        "1,2,3",
        "--count",
        "2000",
        "--to",
        to,
    ]);
    all.push(vec!["doctor"]);
    all
}

/// Runs a command on its own terminal (script(1)); returns what it printed there.
fn on_terminal(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let quoted: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    on_terminal_for("", &quoted, environment)
}

/// As [`on_terminal`], of words that the shell takes as they are, with a command before the program.
fn on_terminal_for(before: &str, quoted: &[String], environment: &[(&str, &str)]) -> String {
    let line = format!("stty cols {COLUMNS} rows 24; exec {before}{MANAGER} {}", quoted.join(" "));
    let mut command = Command::new("script");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DTA_") || name == "NO_COLOR") {
        command.env_remove(name);
    }
    let output = command
        .args(["--quiet", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("script (util-linux) is installed");
    String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
}

fn in_pipe(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// A text without the codes of colours and styles.
fn without_styles(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        rest = after.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("");
    }
    plain + rest
}

/// Whether a text has codes that choose a colour (SGR 30 to 38, 40 to 48, 90 to 107).
fn has_colours(text: &str) -> bool {
    text.split("\x1b[").skip(1).any(|code| {
        let end = code.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
        let number = |part: &str| part.parse().is_ok_and(|n: u8| matches!(n, 30..=38 | 40..=48 | 90..=107));
        code[end..].starts_with('m') && code[..end].split(';').any(number)
    })
}

/// Whether a word stays the same from one run to the next.
fn is_stable(word: &&str) -> bool {
    word.len() > 1 && word.chars().all(|c| c.is_alphabetic() || "-_.:>".contains(c))
}

#[test]
fn no_line_is_wider_than_the_terminal_and_no_word_is_broken() {
    let bed = Bed::start();
    for arguments in commands(&bed) {
        let shown = without_styles(&on_terminal(&arguments, &[]));
        let is_log = |line: &&str| line.split_whitespace().nth(1).is_some_and(|level| level == "WARN");
        let wide: Vec<_> =
            shown.lines().filter(|line| line.chars().count() > COLUMNS && !is_log(line)).collect();
        // What is for programs, one long word, and a line of the log may be wider.
        if !arguments.contains(&"json") && !arguments.contains(&"check-config") {
            assert!(wide.is_empty(), "{arguments:?}: {wide:#?}");
        }
        let piped = String::from_utf8(in_pipe(&arguments).stdout).unwrap();
        for word in piped.split_whitespace().filter(is_stable) {
            assert!(
                shown.split_whitespace().any(|w| w == word),
                "{arguments:?}: {word} is broken in\n{shown}"
            );
        }
    }
}

#[test]
fn a_pipe_gets_no_codes_and_a_terminal_only_those_that_are_wanted() {
    let bed = Bed::start();
    for arguments in commands(&bed) {
        let output = in_pipe(&arguments);
        for text in [output.stdout, output.stderr] {
            let text = String::from_utf8(text).unwrap();
            assert!(!text.contains('\x1b'), "{arguments:?} in a pipe: {text:?}");
        }
        let text = on_terminal(&arguments, &[("NO_COLOR", "1")]);
        assert!(!has_colours(&text), "{arguments:?} with NO_COLOR: {text:?}");
    }
    // The dashboard stays; a signal ends it, on a busy machine before it shows figures.
    let quoted: Vec<String> =
        ["__collector", "dashboard", "--collector", &bed.collector].map(String::from).into();
    let watch = |environment: &[(&str, &str)]| {
        let mut tries = [4, 15, 60]
            .into_iter()
            .map(|seconds| on_terminal_for(&format!("timeout {seconds} "), &quoted, environment));
        tries.find(|text| text.contains("live, every")).expect("a dashboard that shows figures")
    };
    let text = watch(&[("NO_COLOR", "1")]);
    assert!(text.contains("\x1b[") && !has_colours(&text), "{text:?}");
    assert!(has_colours(&watch(&[])));
    // So that the above can fail.
    assert!(has_colours(&on_terminal(&["doctor"], &[])));
    assert!(on_terminal(&["--help"], &[]).contains("\x1b["));
    assert!(!on_terminal(&["--help"], &[("NO_COLOR", "1")]).contains("\x1b["));
}

#[test]
fn progress_has_round_numbers() {
    let arguments = ["run-testbed", "--reports", "60000", "--seed", "3"];
    let text = on_terminal(&arguments, &[("NO_COLOR", "1")]);
    let rates: Vec<&str> = text.split_whitespace().filter(|word| word.ends_with("/s")).collect();
    assert!(rates.iter().any(|rate| rate.ends_with("k/s") || rate.ends_with("M/s")), "{text}");
    for rate in rates {
        let digits = rate.chars().filter(char::is_ascii_digit).count();
        assert!(digits <= 4, "{rate}");
    }
    let wide: Vec<_> =
        text.split(['\n', '\r']).filter(|line| without_styles(line).chars().count() > COLUMNS).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}
