//! Every example is run: those in the help of each command, and those in the documentation. What is judged is the
//! answer, not the exit status: [`truth`] says of each what it has to bring about, or why it cannot be run here. An
//! example that is in neither list fails the test, and so does an entry of which there is no example any more.

#[path = "../common/mod.rs"]
mod common;
mod console;
mod found;
mod room;
mod truth;
mod two_machines;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use serde_json::Value;

use found::{Example, root};
use room::{Room, Running, apart, missing};
use truth::{Judge, Known, truth};

/// Documents whose examples are one session, with what is printed.
const SESSIONS: [&str; 1] = ["docs/tutorial.md"];

/// All examples but those of sessions, each once, with all places where it stands.
fn examples(room: &Room) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for Example { place, command, output, .. } in
        found::in_help(room).into_iter().chain(found::in_documents())
    {
        // manager/tests/web runs the requests of its page.
        if output.is_none() && !(place.starts_with("docs/web.md") && command.starts_with("curl ")) {
            all.entry(command.replace("target/release/", "").replace("target/demo/", ""))
                .or_default()
                .push(place);
        }
    }
    all
}

#[test]
fn each_example_is_known_and_each_known_one_is_shown() {
    let (examples, truth) = (examples(&Room::new()), truth());
    let unknown: Vec<_> =
        examples.iter().filter(|(command, _)| !truth.iter().any(|known| known.command == *command)).collect();
    let gone: Vec<_> =
        truth.iter().map(|known| known.command).filter(|command| !examples.contains_key(*command)).collect();
    assert!(
        unknown.is_empty() && gone.is_empty(),
        "say in manager/tests/examples/truth.rs what these examples bring about:\n{unknown:#?}\nno longer shown:\n{gone:#?}"
    );
    for (n, known) in truth.iter().enumerate() {
        assert!(truth[..n].iter().all(|other| other.command != known.command), "twice: {}", known.command);
    }
}

#[test]
fn what_is_named_in_a_sentence_exists() {
    let room = Room::new();
    let mut helps = BTreeMap::new();
    let mut wrong = Vec::new();
    for (place, words) in found::in_sentences() {
        // The longest run of words that is a command.
        let mut command = words[0].clone();
        for word in &words[1..] {
            let help = helps.entry(command.clone()).or_insert_with_key(|command| found::help(&room, command));
            let commands = help.lines().skip_while(|line| *line != "Commands:");
            let is_command = commands
                .clone()
                .any(|line| line.strip_prefix("  ").is_some_and(|line| line.split(' ').next() == Some(word)));
            if is_command {
                command = format!("{command} {word}");
            } else if commands.count() > 0
                && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                && !word.starts_with('-')
            {
                wrong.push(format!("{place}: {command} has no command {word}"));
                break;
            } else if word.starts_with("--") {
                let flag = word.split(['=', ' ']).next().unwrap_or_default();
                let has =
                    help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).any(|part| part == flag);
                if !has {
                    wrong.push(format!("{place}: {command} has no flag {flag}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "needs root: makes namespaces"]
fn each_example_brings_about_what_it_should() {
    apart("each_example_brings_about_what_it_should", |room| {
        let examples = examples(&room);
        // What sends comes first: others ask for it.
        let order = |known: &&Known| !known.command.contains("dta-reporter send");
        let truth = truth();
        let mut known: Vec<_> = truth.iter().filter(|known| examples.contains_key(known.command)).collect();
        known.sort_by_key(order);
        // All of them are run before any of them fails the test.
        let fails =
            |known: &&&Known| std::panic::catch_unwind(AssertUnwindSafe(|| judge(&room, known))).is_err();
        let running = daemons(&room);
        let mut failed: Vec<_> = known.iter().filter(|known| known.up).filter(fails).collect();
        nothing_was_dropped(&room);
        running.into_iter().rev().for_each(Running::interrupt);
        failed.extend(known.iter().filter(|known| !known.up).filter(fails));
        let failed: Vec<_> = failed.iter().map(|known| known.command).collect();
        assert!(failed.is_empty(), "see above: {failed:#?}");
    });
}

#[test]
fn what_prints_is_shown_in_sessions_alone() {
    for Example { place, output, .. } in found::in_documents() {
        assert!(
            output.is_none() || SESSIONS.iter().any(|file| place.starts_with(file)),
            "{place}: add the file to SESSIONS"
        );
    }
}

#[test]
#[ignore = "needs root: makes namespaces"]
fn sessions_of_documents_print_what_is_shown() {
    apart("sessions_of_documents_print_what_is_shown", |room| {
        for file in SESSIONS {
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            console::run(&room, file, &text);
        }
    });
}

#[test]
#[ignore = "needs root, nft and openssl: makes namespaces"]
fn two_machines_are_as_the_page_says() {
    apart("two_machines_are_as_the_page_says", |room| two_machines::run(&room));
}

/// Collector and translator with default settings.
fn daemons(room: &Room) -> Vec<Running> {
    let mut collector = room.start("dta-collector serve");
    collector.shows(&["127.0.0.1:40050"]);
    let mut translator = room.start("dta-translator run --ready");
    translator.shows(&["127.0.0.1:40040"]);
    vec![collector, translator]
}

fn judge(room: &Room, known: &Known) {
    let command = known.command;
    eprintln!("{command}");
    if !known.before.is_empty() {
        let made = room.run(&format!("set -e\n{}", known.before));
        assert!(made.status.success(), "before {command}: {}", String::from_utf8_lossy(&made.stderr));
    }
    let beside: Vec<_> = known
        .beside
        .iter()
        .map(|(line, ready)| {
            let mut running = room.start(line);
            running.shows(&[ready]);
            running
        })
        .collect();
    match known.judge {
        // What was reported before takes a moment to land.
        Judge::Says(wanted)
            if known.before.contains("dta-reporter send") && command.starts_with("dta-collector") =>
        {
            room.ask(command, wanted, None)
        }
        Judge::Says(wanted) => says(room, command, wanted),
        Judge::Instead(other, wanted, why) => {
            eprintln!("  as {other}: {why}");
            says(room, other, wanted);
        }
        Judge::Then(question, wanted) => {
            let output = room.run(command);
            let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{command}: {printed}");
            room.ask(question, wanted, None);
        }
        Judge::Serves(question, wanted) => {
            let running = room.start(command);
            let question = format!("{question} || exit 0");
            room.ask(&question, wanted, Some(&running));
            running.interrupt();
        }
        Judge::Shows(wanted) => {
            let mut running = room.start(command);
            running.shows(wanted);
            running.interrupt();
        }
        Judge::Screen(wanted) => {
            let typed = command.replace('\'', "'\\''");
            let mut running = room.start(&format!("stty cols 80 rows 24 2>/dev/null; TERM=xterm script -qefc 'stty cols 80 rows 24; {typed}' /dev/null"));
            running.shows(wanted);
            running.interrupt();
        }
        Judge::NotHere(why) => eprintln!("  not run: {why}"),
    }
    beside.into_iter().rev().for_each(Running::interrupt);
}

fn says(room: &Room, command: &str, wanted: &[&str]) {
    let output = room.run(command);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command}: {:?} {printed}{errors}", output.status);
    if let Some(lacking) = missing(&printed, wanted) {
        panic!("{command} does not say {lacking:?}: {printed}{errors}");
    }
}

/// No report of an example was dropped on its way.
fn nothing_was_dropped(room: &Room) {
    let output = room.run("dta-collector stats --output json");
    let stats: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = stats["nodes"].as_array().expect("nodes");
    let translator = nodes.iter().find(|node| node["stage"] == "translator").expect("a translator");
    let counters = translator["counters"].as_object().expect("counters by name");
    assert!(counters.contains_key("accepted"));
    assert!(!counters.iter().any(|(name, n)| name.starts_with("dropped.") && *n != 0), "{translator}");
}

#[test]
fn what_cannot_land_is_refused_before_it_is_sent() {
    let room = Room::new();
    let mut collector =
        room.start("exec dta-collector serve --listen 127.0.0.1:0 --soft-port 0 --memory memory");
    collector.shows(&["\"roce\""]);
    let address = |text: &str, name: &str| -> String {
        let line = text.lines().find(|line| line.starts_with('{')).expect("a ready line");
        let ready: Value = serde_json::from_str(line).expect("JSON");
        ready[name].as_str().expect("an address").to_owned()
    };
    let collector_is = address(&collector.printed(), "listen");
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let mut translator = room.start(&format!(
        "exec dta-translator run --ready --collector {collector_is} --listen 127.0.0.1:0 --control 127.0.0.1:0 \
         --source 127.{}.{b}.{c} --source-port 0",
        192 + (a & 31)
    ));
    translator.shows(&["\"listen\""]);
    let translator_is = address(&translator.printed(), "listen");
    let variables = format!(
        "export DTA_COLLECTOR_COLLECTOR={collector_is} DTA_REPORTER_COLLECTOR={collector_is} DTA_REPORTER_TRANSLATOR={translator_is}"
    );
    let run = |line: &str| {
        let output = room.run(&format!("{variables}\n{line}"));
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (line, expected) in REFUSED {
        let (good, error) = run(line);
        assert!(!good && error.contains(expected), "{line}: {error}");
    }
    let (good, error) = run("dta-reporter send key-write --store 0 --key 01 --value 1 --unchecked");
    assert!(good, "{error}");
}

/// What `dta-reporter send` refuses, and what it says.
const REFUSED: [(&str, &str); 8] = [
    ("dta-reporter send key-write --store 0 --key 01 --value 1", "no store 0, but 1 `flows` (key-write)"),
    ("dta-reporter send key-write --store bytes --key 01 --value 1", "takes no key-write reports"),
    ("dta-reporter send append --list 16 --value 1,2,3,4", "list is 16, but store `events` takes 0 to 15"),
    ("dta-reporter send append --list 1 --value 1,2,3", "length of the value is 12"),
    ("dta-reporter send sketch-merge --epoch 1 --column 1 --cells 1,2", "number of cells is 2"),
    (
        "dta-reporter send key-write --key 01 --value 1 --translator 127.0.0.1:9",
        "nobody listens at 127.0.0.1:9",
    ),
    (
        "echo '{\"primitive\":\"append\",\"list\":99,\"value\":[1,2,3,4]}' | dta-reporter send --file -",
        "line 1: it cannot land",
    ),
    ("dta-reporter send key-write --key 01 --value 1 --collector 127.0.0.1:9", "--unchecked"),
];
