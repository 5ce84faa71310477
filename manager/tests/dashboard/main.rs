//! The dashboard as people see it: in a real terminal, with a running collector, translator and reporters.

#[path = "../common/mod.rs"]
mod common;

mod bed;
mod pictures;
mod svg;
mod terminal;

use std::time::{Duration, Instant};

use bed::Bed;
use terminal::Terminal;

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:5000/udp";

/// The rate between two words of a line, as 12.3k of `written: 12.3k frames/s`.
fn number(screen: &str, before: &str, after: &str) -> Option<f64> {
    let text =
        screen.lines().find_map(|line| line.split_once(before)?.1.split_once(after).map(|(text, _)| text))?;
    let text = text.trim();
    let (number, factor) = match text.strip_suffix('k') {
        Some(number) => (number, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |number| (number, 1e6)),
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// Looks at the rate of writes while a reporter sends, and says what is wrong with it.
fn look_at_rates() -> Result<(), String> {
    const REPORTS: u32 = 80_000;
    const RATE: u32 = 4000;
    let bed = Bed::start();
    let terminal = Terminal::start(bed.path(), &bed.dashboard(), 80, 24);
    terminal.press(&["2"]);
    terminal.shows("key-write");
    let (count, rate) = (REPORTS.to_string(), RATE.to_string());
    let start = Instant::now();
    let report = ["key-write", "--store", "flows", "--key", "0a000000", "--value", "7", "--vary", "key"];
    let mut reporter = bed.reporter(&[&report[..], &["--count", &count, "--rate", &rate]].concat());
    // Each report is written twice (N = 2). Beside other work the sender starts late, and its mean is below its pace.
    let pace = 2.0 * f64::from(RATE);
    // The first words of a node that begins to count are no rate of a whole second yet.
    let has_begun = terminal.until("a rate", |screen| {
        let is_shown = number(screen, "written:", "frames/s").is_some_and(|rate| rate > pace / 2.0);
        let has_ended = reporter.try_wait().unwrap().is_some();
        (is_shown || has_ended).then_some(is_shown)
    });
    if !has_begun {
        return Err("no rate was shown before the sender ended".into());
    }
    std::thread::sleep(Duration::from_secs(2));
    let mut seen = Vec::new();
    while reporter.try_wait().unwrap().is_none() && seen.len() < 30 {
        let screen = terminal.screen();
        seen.push(number(&screen, "written:", "frames/s").ok_or(screen));
        std::thread::sleep(Duration::from_millis(170));
    }
    assert!(reporter.wait().unwrap().success());
    let truth = 2.0 * f64::from(REPORTS) / start.elapsed().as_secs_f64();
    let mut seen = seen
        .into_iter()
        .collect::<Result<Vec<f64>, String>>()
        .map_err(|screen| format!("a rate is not shown all the time:\n{screen}"))?;
    if seen.len() < 10 {
        return Err(format!("the sender ended too early: {seen:?}"));
    }
    seen.sort_by(f64::total_cmp);
    let (least, median, most) = (seen[0], seen[seen.len() / 2], seen[seen.len() - 1]);
    eprintln!(
        "sent {truth:.0} frames/s; seen {least:.0} to {most:.0}, median {median:.0}, in {} looks",
        seen.len()
    );
    terminal.press(&["q"]);
    terminal.shows("left with 0");
    if median <= 0.85 * truth || median >= 1.15 * pace {
        return Err(format!("{median} seen, {truth} sent: {seen:?}"));
    }
    // It was 0 and twice the truth in turn. Beside other work, one look or another really is.
    let wrong = seen.iter().filter(|rate| **rate <= 0.4 * truth || **rate >= 1.7 * pace).count();
    if 3 * wrong > seen.len() {
        return Err(format!("{truth} sent, {wrong} looks are wrong: {seen:?}"));
    }
    Ok(())
}

#[test]
#[ignore = "needs tmux"]
fn the_rate_of_writes_is_that_of_the_sender() {
    // If a process is stopped for a second on a busy machine, a rate really is near 0 and then doubled.
    // A fault of the dashboard is in all tries.
    let mut wrong = Vec::new();
    for _ in 0..4 {
        match look_at_rates() {
            Ok(()) => return,
            Err(what) => wrong.push(what),
        }
    }
    panic!("wrong in each try:\n{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs tmux"]
fn a_collector_that_goes_away_and_comes_back() {
    let mut bed = Bed::start_at(common::loopback::own_address());
    let terminal = Terminal::start(bed.path(), &bed.dashboard(), 80, 24);
    terminal.shows("live, every 0.5 s");
    terminal.press(&["4", "f"]);
    terminal.shows("follows writes");
    bed.kill("collector");
    for text in ["NO ANSWER for", "figures are", "! Trying again", "? help  q quit"] {
        terminal.shows(text);
    }
    terminal.press(&["2"]);
    terminal.shows("selected store");
    let coloured = terminal.coloured();
    // The second store: the first is selected.
    assert!(svg::colours(&coloured, "postcarding").contains(&Some(8)), "{coloured}");
    bed.start_collector();
    terminal.shows("live, every 0.5 s");
    assert!(!terminal.screen().contains("Trying again"));
    // What is shown goes on automatically, too.
    terminal.press(&["4"]);
    terminal.until("an end of the first look", |screen| screen.contains("nothing changed yet").then_some(()));
    terminal.press(&["q"]);
    terminal.shows("left with 0");
}

#[test]
#[ignore = "needs tmux"]
fn following_writes_leads_to_the_report_that_was_sent() {
    let bed = Bed::start();
    let terminal = Terminal::start(bed.path(), &bed.dashboard(), 100, 24);
    terminal.shows("nic/soft");
    terminal.press(&["4", "f"]);
    terminal.shows("nothing changed yet");
    bed.send(&["key-write", "--store", "flows", "--key", FLOW, "--value", "0x68656c6c6f20776f726c6421"]);
    terminal.shows("▶");
    let screen = terminal
        .until("the value", |screen| screen.contains("value \"hello world!\"").then(|| screen.to_owned()));
    let marked = screen.lines().find(|line| line.starts_with('▶')).expect("what changed is marked");
    assert!(marked.contains("hello world!"), "{screen}");
    terminal.press(&["q"]);
    terminal.shows("left with 0");
}

#[test]
#[ignore = "needs tmux"]
fn the_terminal_is_as_it_was_however_the_dashboard_ends() {
    let bed = Bed::start();
    // Beside the folder of this test's own program: `cargo test --workspace` builds it, as does `cargo build --workspace --examples`.
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples");
    let panicking = folder.join("panicking_dashboard");
    assert!(panicking.is_file(), "no {}", panicking.display());
    // A backtrace would push what was said off the screen.
    let panic = format!("RUST_BACKTRACE=0 {} {}", panicking.display(), bed.collector);
    let dashboard = bed.dashboard();
    let endings: [(&str, &str, &[&str], &str); 4] = [
        ("q", &dashboard, &["q"], "left with 0"),
        ("Ctrl-C", &dashboard, &["C-c"], "left with 0"),
        ("SIGTERM", &dashboard, &[], "left with 0"),
        ("a panic", &panic, &[], "left with 1"),
    ];
    for (how, line, keys, said) in endings {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        // A shell passes no signal on, so the number of the program is needed.
        let line = match how {
            "SIGTERM" => format!("set -m; {line} & echo $! > {}; fg", pid.display()),
            _ => line.to_owned(),
        };
        let terminal = Terminal::start(folder.path(), &line, 80, 24);
        terminal.until("the dashboard", |_| (terminal.property("#{alternate_on}") == "1").then_some(()));
        if how != "a panic" {
            terminal.shows("nic/soft");
            assert_eq!(terminal.property("#{mouse_any_flag}"), "0", "the mouse is the terminal's");
            assert_eq!(terminal.property("#{cursor_flag}"), "0");
        }
        if how == "SIGTERM" {
            let pid = std::fs::read_to_string(pid).unwrap();
            let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        } else if !keys.is_empty() {
            terminal.press(keys);
        }
        terminal.shows(said);
        let properties =
            ["#{alternate_on}", "#{mouse_any_flag}", "#{cursor_flag}"].map(|f| terminal.property(f));
        assert_eq!(properties, ["0", "0", "1"], "{how}");
        if how == "a panic" {
            assert!(terminal.screen().contains("a bug made by the test"), "{}", terminal.screen());
        }
        // Lines are edited and echoed again: `cat` returns them.
        terminal.type_text("hello");
        terminal.press(&["Enter"]);
        terminal.until("an echo", |screen| (screen.matches("hello").count() == 2).then_some(()));
    }
}

#[test]
#[ignore = "needs tmux"]
fn the_dashboard_ends_when_its_terminal_is_closed() {
    let bed = Bed::start();
    // A shell that was itself started without hangups leaves nothing else to end it.
    for before in ["", "trap '' HUP TERM; "] {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let line = format!("{before}echo $$ > {}; exec {}", pid.display(), bed.dashboard());
        let terminal = Terminal::start(folder.path(), &line, 80, 24);
        terminal.shows("nic/soft");
        let stat = format!("/proc/{}/stat", std::fs::read_to_string(pid).unwrap().trim());
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(runs());
        drop(terminal);
        let end = Instant::now() + Duration::from_secs(60);
        while runs() {
            assert!(Instant::now() < end, "it still runs");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
#[ignore = "needs tmux"]
fn no_color_a_resize_and_a_small_terminal() {
    let bed = Bed::start();
    let terminal = Terminal::start(bed.path(), &format!("NO_COLOR=1 {}", bed.dashboard()), 80, 24);
    terminal.press(&["2"]);
    terminal.shows("key-write");
    let screen = terminal.coloured();
    assert!(!svg::has_colours(&screen), "{screen:?}");
    assert!(screen.contains("\x1b[7m") || screen.contains(";7m"), "what is selected can be seen: {screen:?}");
    terminal.resize(30, 8);
    terminal.shows("30x8 is too small");
    terminal.resize(60, 16);
    terminal.shows("not shown, 80x24 has room");
    terminal.resize(120, 40);
    terminal.until("no notes", |screen| {
        (!screen.contains("not shown") && screen.contains("survive")).then_some(())
    });
    terminal.press(&["?"]);
    terminal.shows("any other key closes");
    terminal.press(&["x"]);
    terminal.press(&["q"]);
    terminal.shows("left with 0");
}
