//! What the page of `dta-manager demo` shows is what its scenario did. Needs no privilege.

mod common;
#[path = "web/http.rs"]
mod http;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::MANAGER;
use dta_proto::drop_reason::DropReason;
use dta_testbed::scenario::network::{spine_switch, switch_name};
use dta_testbed::scenario::{Episode, EpisodeKind, Scenario, tracked_flow};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SEED: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// The scenario of the demonstration, so many seconds after its beginning.
fn scenario_after(seconds: u64) -> Scenario {
    let mut scenario = Scenario::new(SEED, Episode::demonstration(SEED, Duration::from_secs(3600)), 0);
    while scenario.elapsed() < Duration::from_secs(seconds) {
        scenario.advance_tick();
    }
    scenario
}

fn first_of_kind(scenario: &Scenario, kind: EpisodeKind) -> (usize, &Episode) {
    scenario.episodes().iter().enumerate().find(|(_, episode)| episode.kind == kind).unwrap()
}

/// Asks until the answer has what is wanted.
fn ask_until<T: PartialEq + std::fmt::Debug>(page: &str, path: &str, pick: impl Fn(&Value) -> T, wanted: T) {
    let begun = Instant::now();
    loop {
        let answer = http::get(page, path);
        // A busy machine may let it wait for too long, which is a problem document.
        let is_answered = (answer.status, answer.header("content-type")) == (200, "application/json");
        let got = is_answered.then(|| pick(&answer.json()));
        if got.as_ref() == Some(&wanted) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{path}: {got:?} instead of {wanted:?}\n{}", answer.body);
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The demonstration, which ends with the test, however that ends.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command of docs/alerts-tutorial.md, and what is shown of what it prints.
struct TutorialCommand {
    words: &'static str,
    shown: Vec<&'static str>,
}

fn tutorial_commands() -> Vec<TutorialCommand> {
    let mut commands: Vec<TutorialCommand> = Vec::new();
    for block in include_str!("../../docs/alerts-tutorial.md").split("```text\n").skip(1) {
        let mut lines = block.split("```").next().unwrap().lines();
        if let Some(words) = lines.clone().next().unwrap().strip_prefix("$ ") {
            lines.next();
            commands.push(TutorialCommand { words, shown: lines.collect() });
        }
    }
    commands
}

impl TutorialCommand {
    /// What it prints about a collector.
    fn run(&self, collector: &str) -> String {
        let arguments = self.words.strip_prefix("dta-collector ").expect(self.words);
        let command = format!("exec {MANAGER} __collector {arguments} --collector {collector}");
        let output = Command::new("sh").arg("-c").arg(command).output().unwrap();
        assert!(output.status.success(), "{}: {}", self.words, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether the lines that are shown are among those printed, in order.
    fn is_shown_by(&self, printed: &str) -> bool {
        let mut lines = printed.lines();
        self.shown.iter().all(|shown| lines.any(|line| is_like(shown, line)))
    }
}

/// Whether a line is as shown, where `…` stands for anything, and any number of blanks for one.
fn is_like(shown: &str, line: &str) -> bool {
    let collapsed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = collapsed(line);
    let mut rest = line.as_str();
    shown.split('…').map(collapsed).all(|part| match rest.split_once(&part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => part.is_empty(),
    })
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn the_page_knows_the_flows_drops_and_paths_of_the_scenario() {
    let mut demo = Demo(
        Command::new(MANAGER)
            .args(["demo", "--seed", &SEED.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let opened = lines.find(|line| line.contains("Open http://")).expect("it says where its page is");
    let page = opened.split("http://").nth(1).unwrap().split('/').next().unwrap();
    // It never waits for somebody to read what it prints.
    let (sender, printed) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.try_for_each(|line| sender.send(line)));

    let flow = encoded(&tracked_flow().to_string());
    let quiet = scenario_after(5);
    let path = |answer: &Value| -> Vec<u32> {
        let hops = answer[0]["hops"].as_array().into_iter().flatten();
        hops.map(|hop| hop["switch"].as_u64().unwrap() as u32).collect()
    };
    ask_until(page, &format!("/api/v1/flow?flow={flow}"), path, quiet.truth().tracked_path.clone());

    // The elephant has ended after 10 seconds, the blackhole after 16.
    let later = scenario_after(18);
    let (number, elephant) = first_of_kind(&later, EpisodeKind::Elephant);
    let sums = later.truth().of_episodes[number];
    let condition = encoded(&format!("dst = {} and dst-port = 5201", elephant.victim));
    let total = |answer: &Value| ["bytes", "packets", "flows"].map(|sum| answer["total"][sum].as_u64());
    let wanted = [sums.bytes, sums.packets, sums.records].map(Some);
    ask_until(page, &format!("/api/v1/flows?group=flow&since=-1h&where={condition}"), total, wanted);

    let (_, blackhole) = first_of_kind(&later, EpisodeKind::Blackhole);
    let spine = spine_switch(blackhole.spine);
    let dropped = later.truth().drops[&(spine, DropReason::from_int(29))];
    let spine = switch_name(spine);
    let events = |answer: &Value| {
        let places = answer["places"].as_array().into_iter().flatten();
        places
            .filter(|place| place["reason_name"] == "ip-miss")
            .filter_map(|place| place["events"].as_u64())
            .sum()
    };
    ask_until(page, &format!("/api/v1/drops?switch={spine}"), events, dropped);

    // Its link goes down and comes back: both paths are among the events.
    let paths = later.truth().tracked_paths.clone();
    assert_eq!(paths.len(), 2);
    let moved = |answer: &Value| {
        let events = answer.as_array().into_iter().flatten();
        let path = |line: &Value| -> Option<Vec<u32>> {
            let switches = line["event"]["path"].as_array()?.iter();
            switches.map(|switch| switch.as_u64().map(|number| number as u32)).collect()
        };
        events.filter_map(path).collect()
    };
    ask_until(page, &format!("/api/v1/events?kind=flow-path&flow={flow}&number=100"), moved, paths);

    // The collector finds the flood by itself.
    let (_, flood) = first_of_kind(&later, EpisodeKind::SynFlood);
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &String| line.contains("alert syn-flood")) {
        lines.push(printed.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no alert: {lines:#?}")));
    }
    assert!(lines.last().unwrap().contains(&flood.victim.to_string()), "{lines:#?}");
    for wanted in [elephant.describe(), elephant.page_view(), flood.describe()] {
        assert!(lines.iter().any(|line| line.contains(&wanted)), "{wanted} is not in {lines:#?}");
    }

    let address =
        lines.iter().find_map(|line| line.split_once("dashboard --collector ")).unwrap().1.to_owned();
    check_tutorial(&address);

    kill_process(Pid::from_raw(demo.0.id() as i32).unwrap(), Signal::INT).unwrap();
    assert!(demo.0.wait().unwrap().success());
}

/// The commands of docs/alerts-tutorial.md print what it shows, here of the same network.
fn check_tutorial(collector: &str) {
    let commands = tutorial_commands();
    let (start, asked) = commands.split_first().unwrap();
    assert!(start.words.starts_with(&format!("dta-manager demo --seed {SEED} ")), "{}", start.words);
    assert_eq!(asked.len(), 4);
    for command in asked {
        let begun = Instant::now();
        loop {
            // It is resolved a minute after the flood, which a slow machine may not notice in time.
            let printed = command.run(collector).replace("resolved", "firing");
            if command.is_shown_by(&printed) {
                break;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{} prints {printed} in place of {:#?}",
                command.words,
                command.shown
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn it_ends_after_the_time_that_it_is_given_and_keeps_files_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let output = common::manager(&["demo", "--for", "2s", "--keep", kept.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("Sent: ") && !printed.contains("Sent: 0 "), "{printed}");
    for name in ["collector.toml", "collector.log", "translator.log", "memory", "names.toml"] {
        assert!(kept.join(name).exists(), "{name}");
    }
}
