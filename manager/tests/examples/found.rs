//! Where examples stand: below "Examples:" in the help of each command, and in the code blocks of the documentation.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::room::Room;

/// Other programs that the documentation runs.
const OTHERS: [&str; 17] = [
    "make",
    "cargo",
    "echo",
    "pip",
    "apt",
    "apt-get",
    "dpkg",
    "systemctl",
    "journalctl",
    "sysctl",
    "python3",
    "podman",
    "docker",
    "modprobe",
    "rdma",
    "curl",
    "grpcurl",
];

/// A command that somebody is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Example {
    /// Where it stands.
    pub(crate) place: String,
    /// What is typed, in one line.
    pub(crate) command: String,
    /// What is shown below it, line by line, where it is shown.
    pub(crate) output: Option<Vec<String>>,
    /// Whether it runs on while the next commands are typed elsewhere.
    pub(crate) stays: bool,
}

const PROGRAMS: [&str; 4] = ["dta-collector", "dta-translator", "dta-reporter", "dta-manager"];

/// Those of all help texts.
pub(crate) fn in_help(room: &Room) -> Vec<Example> {
    let mut found = Vec::new();
    for program in PROGRAMS {
        help_of(room, program, &mut found);
    }
    found
}

fn help_of(room: &Room, command: &str, found: &mut Vec<Example>) {
    let text = help(room, command);
    let mut examples = text.lines();
    let mut among_examples = false;
    // The sentence in front of what is further in.
    let mut sentence = String::new();
    while let Some(line) = examples.next() {
        let indented = line.len() - line.trim_start().len();
        match (line.is_empty(), indented) {
            (true, _) => sentence.clear(),
            (false, 0) => sentence = format!("{sentence} {line}").trim().to_owned(),
            (false, _) if !sentence.is_empty() => {
                among_examples = sentence.starts_with("Example")
                    || among_examples && sentence.ends_with(':') && !sentence.starts_with("Exit status");
                sentence.clear();
            }
            _ => {}
        }
        // What is further in explains the example before it.
        if !among_examples || !(2..12).contains(&indented) {
            continue;
        }
        let mut shown = line.trim().to_owned();
        while let Some(before) = goes_on(&shown) {
            let Some(more) = examples.next() else { break };
            shown = format!("{before} {}", more.trim());
        }
        let place = format!("{command} --help");
        // Anything else than a sentence is taken for one: the second half of an example that was too wide is no
        // example that anybody knows.
        if is_command(&shown) || !shown.ends_with(':') {
            found.push(Example { place, command: without_remark(&shown), output: None, stays: false });
        }
    }
    let commands =
        text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for line in commands.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name != "help" {
            help_of(room, &format!("{command} {name}"), found);
        }
    }
}

/// The help of a command, at the default terminal width.
pub(crate) fn help(room: &Room, command: &str) -> String {
    let output = room.command(&format!("{command} --help")).env("COLUMNS", "80").output().expect("a shell");
    assert!(output.status.success(), "{command} --help");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Those of the documentation: fenced blocks of `sh` and `console`, and lines of other blocks that begin with a
/// command of ours.
pub(crate) fn in_documents() -> Vec<Example> {
    let root = root();
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(&root).output().expect("git");
    let files = String::from_utf8(listed.stdout).expect("UTF-8");
    let mut found = Vec::new();
    // The page on two machines is followed completely.
    for file in files.lines().filter(|file| !["CHANGELOG.md", crate::two_machines::PAGE].contains(file)) {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        found.extend(of_document(file, &text));
    }
    found
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// Those of one document.
pub(crate) fn of_document(file: &str, text: &str) -> Vec<Example> {
    let mut found = Vec::<Example>::new();
    let mut fence: Option<&str> = None;
    let mut pending: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", number + 1);
        if let Some(info) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(info.trim()) };
            pending = None;
            continue;
        }
        let kind = fence.unwrap_or_default();
        let (language, stays) = (kind.split(' ').next().unwrap_or_default(), kind.ends_with(" stays"));
        let shown = match (fence, language) {
            (Some(_), "console") => match (line.strip_prefix("$ "), &pending) {
                (Some(typed), _) => typed.to_owned(),
                (None, Some(_)) => line.trim().to_owned(),
                (None, None) if line.starts_with("> ") && goes_on_in(&found) => {
                    let last = found.last_mut().expect("it was looked at");
                    last.command += &format!("\n{}", &line[2..]);
                    continue;
                }
                (None, None) => {
                    let output = found.last_mut().and_then(|last| last.output.as_mut());
                    output.unwrap_or_else(|| panic!("{place}: output of no command")).push(line.to_owned());
                    continue;
                }
            },
            (Some(_), "sh") => line.trim().to_owned(),
            (Some(_), "") if pending.is_some() || is_command(line.trim()) => line.trim().to_owned(),
            (None, _) if line.starts_with("    ") && (pending.is_some() || is_command(line.trim())) => {
                line.trim().to_owned()
            }
            _ => continue,
        };
        let typed = match pending.take() {
            Some(before) => format!("{before} {shown}"),
            None => shown,
        };
        if let Some(before) = goes_on(&typed) {
            pending = Some(before);
            continue;
        }
        if typed.is_empty() || typed.starts_with('#') {
            continue;
        }
        let output = (language == "console").then(Vec::new);
        found.push(Example { place, command: without_remark(&typed), output, stays });
    }
    found
}

/// Whether the last example is one of a session, and nothing was printed below it so far.
fn goes_on_in(found: &[Example]) -> bool {
    found.last().is_some_and(|last| last.output.as_ref().is_some_and(Vec::is_empty))
}

/// What remains of a line when the next line belongs to it.
fn goes_on(line: &str) -> Option<String> {
    match line.strip_suffix('\\') {
        Some(before) => Some(before.trim_end().to_owned()),
        None => line.ends_with('|').then(|| line.to_owned()),
    }
}

/// Whether somebody would type this: it begins with one of our programs, or with what builds and runs them.
fn is_command(line: &str) -> bool {
    let is_variable = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
        })
    };
    // A quoted blank parts no words.
    let mut quoted = false;
    let parted = |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    };
    let mut words = line.split(parted).skip_while(|word| *word == "sudo" || is_variable(word));
    let first = words.next().unwrap_or_default();
    let name = first.rsplit('/').next().unwrap_or_default();
    PROGRAMS.contains(&name)
        || OTHERS.contains(&first)
        || (first.contains('/') && root().join(first).is_file())
}

/// A line up to its trailing remark, which two blanks or ` # ` set apart.
fn without_remark(line: &str) -> String {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if before == ' ' && at > 0 && (c == '#' || c == ' ') => return line[..at].trim().to_owned(),
            None => {}
        }
        before = c;
    }
    line.trim().to_owned()
}

#[test]
fn examples_are_found_where_they_stand() {
    let text = "Text.\n\n    make demo    # a remark\n    no command\n\n```sh\na \\\n   b 'x  # y' |\n  c\n# remark\n```\n\
                ```console stays\n$ one\nits output\n\n$ two\n> more\n```\n```\ncargo x\n```\n```toml\nmake = 1\n```\n";
    let found: Vec<_> =
        of_document("f", text).into_iter().map(|e| (e.place, e.command, e.output, e.stays)).collect();
    let of = |place: &str, command: &str, output: Option<&[&str]>, stays| {
        let output = output.map(|lines| lines.iter().map(|line| line.to_string()).collect::<Vec<_>>());
        (place.to_owned(), command.to_owned(), output, stays)
    };
    assert_eq!(
        found,
        [
            of("f:3", "make demo", None, false),
            of("f:9", "a b 'x  # y' | c", None, false),
            of("f:13", "one", Some(&["its output", ""]), true),
            of("f:16", "two\nmore", Some(&[]), true),
            of("f:20", "cargo x", None, false),
        ]
    );
}

/// Commands in sentences: what stands in backquotes and begins with one of our programs and a further word; with its
/// place, in words.
pub(crate) fn in_sentences() -> Vec<(String, Vec<String>)> {
    let root = root();
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(&root).output().expect("git");
    let files = String::from_utf8(listed.stdout).expect("UTF-8");
    let mut found = Vec::new();
    for file in files.lines().filter(|file| *file != "CHANGELOG.md") {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with("    ")) {
            for quoted in line.split('`').skip(1).step_by(2) {
                let words: Vec<_> =
                    quoted.split_whitespace().map(|w| w.trim_matches(['[', ']']).to_owned()).collect();
                if words.len() > 1 && PROGRAMS.contains(&words[0].as_str()) {
                    found.push((format!("{file}:{}", number + 1), words));
                }
            }
        }
    }
    assert!(found.len() > 20, "{found:?}");
    found
}
